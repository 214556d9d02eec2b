//! The page of a suite's results: where in it a section's tables go.

use crate::sections::Section;
use crate::suite::Suite;

/// A page with a place for each section and nothing else.
pub(super) fn blank(suite: Suite) -> String {
    let places =
        suite.sections().iter().map(|section| format!("\n## {section}\n\n{}\n{}\n", begin(*section), end(*section)));
    format!("# {}\n{}", suite.name(), places.collect::<String>())
}

/// The page with `block` between the section's markers, instead of what was there; else the marker that is missing.
pub(super) fn filled(page: &str, section: Section, block: &str) -> Result<String, String> {
    let (begin, end) = (begin(section), end(section));
    let Some((before, rest)) = page.split_once(&begin) else { return Err(begin) };
    let Some((_, after)) = rest.split_once(&end) else { return Err(end) };
    Ok(format!("{before}{begin}\n\n{block}\n{end}{after}"))
}

fn begin(section: Section) -> String {
    format!("<!-- {section}: written by the bench -->")
}

fn end(section: Section) -> String {
    format!("<!-- {section}: end -->")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_by_hand_stays() {
        let page = blank(Suite::Caches).replace("## 1:p\n", "## 1:p\n\nBy hand.\n");
        let once = filled(&page, Section::CachedOneToAll, "first").unwrap();
        let twice = filled(&once, Section::CachedOneToAll, "second").unwrap();
        assert_eq!(
            twice,
            page.replace("<!-- 1:p: written by the bench -->\n", "<!-- 1:p: written by the bench -->\n\nsecond\n",)
        );
    }

    #[test]
    fn a_page_without_markers_is_left_alone() {
        let marker = "<!-- 1:2: written by the bench -->";
        assert_eq!(filled("by hand", Section::CachedOneToTwo, "block"), Err(marker.to_owned()));
        assert_eq!(filled(marker, Section::CachedOneToTwo, "block"), Err("<!-- 1:2: end -->".to_owned()));
    }
}
