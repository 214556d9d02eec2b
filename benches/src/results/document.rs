//! The results page of a suite: replaces the tables of a section between its markers.

use std::fmt::Display;

use crate::suite::Suite;

/// Returns a page that has only the markers of each section.
pub(super) fn blank(suite: Suite) -> String {
    let places =
        suite.sections().iter().map(|section| format!("\n## {section}\n\n{}\n{}\n", begin(*section), end(*section)));
    format!("# {}\n{}", suite.name(), places.collect::<String>())
}

/// Returns a page that has only the markers of one table.
pub(crate) fn blank_overview(place: &str) -> String {
    format!("{}\n{}\n", begin(place), end(place))
}

/// Returns the page with `block` between the markers of `place` in place of the old text; fails with a
/// missing marker.
pub(super) fn filled(page: &str, place: impl Display + Copy, block: &str) -> Result<String, String> {
    let (begin, end) = (begin(place), end(place));
    let Some((before, rest)) = page.split_once(&begin) else { return Err(begin) };
    let Some((_, after)) = rest.split_once(&end) else { return Err(end) };
    Ok(format!("{before}{begin}\n\n{block}\n{end}{after}"))
}

fn begin(place: impl Display) -> String {
    format!("<!-- {place}: written by the bench -->")
}

fn end(place: impl Display) -> String {
    format!("<!-- {place}: end -->")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Section;

    #[test]
    fn text_outside_the_markers_is_kept() {
        let page = blank(Suite::Caches).replace("## 1:p\n", "## 1:p\n\nBy hand.\n");
        let once = filled(&page, Section::CachedOneToAll, "first").unwrap();
        let twice = filled(&once, Section::CachedOneToAll, "second").unwrap();
        assert_eq!(
            twice,
            page.replace("<!-- 1:p: written by the bench -->\n", "<!-- 1:p: written by the bench -->\n\nsecond\n",)
        );
    }

    #[test]
    fn a_page_without_markers_is_refused() {
        let marker = "<!-- 1:2: written by the bench -->";
        assert_eq!(filled("by hand", Section::CachedOneToTwo, "block"), Err(marker.to_owned()));
        assert_eq!(filled(marker, Section::CachedOneToTwo, "block"), Err("<!-- 1:2: end -->".to_owned()));
    }
}
