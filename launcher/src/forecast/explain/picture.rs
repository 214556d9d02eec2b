//! Draws a tree of agents in a few lines.

use nla::core::Subtree;

use crate::cluster::hosts::fold_within;

/// The levels of which a subtree is drawn. What is below is counted.
const LEVELS_MAX: u32 = 3;
/// The most bytes that the names of agents on one line take.
const NAMES_BYTES_MAX: usize = 24;

/// Draws a tree whose agents have these names, for example `scela-run ─┬─ node001 ─── node002`.
///
/// Of the children that have children, the first is drawn and the others share a line. Children without children share
/// a line too. So each level adds at most two lines.
pub(super) fn picture(tree: Subtree, names: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    draw(&mut lines, ("scela-run".to_owned(), " ".repeat("scela-run".len())), tree, names, LEVELS_MAX);
    lines
}

/// Draws the children of a subtree's head. `text` is the line that ends with the head, and `margin` is what the lines
/// below begin with, up to the same column.
fn draw(lines: &mut Vec<String>, (text, margin): (String, String), tree: Subtree, names: &[String], levels: u32) {
    let (inner, leaves): (Vec<Subtree>, Vec<Subtree>) = tree.children().partition(|child| child.size() > 1);
    let (drawn, counted) = inner.split_at(usize::from(levels > 1).min(inner.len()));
    let parts: Vec<&[Subtree]> = [drawn, counted, &leaves].into_iter().filter(|part| !part.is_empty()).collect();
    for (at, part) in parts.iter().enumerate() {
        let is_last = at + 1 == parts.len();
        let heads = part.iter().filter_map(|child| names.get(child.head().0 as usize - 1));
        let mut label = fold_within(heads, NAMES_BYTES_MAX);
        let below = part.iter().map(|child| child.size() - 1);
        if let (true, Some(least), Some(most)) = (*part == counted, below.clone().min(), below.max()) {
            let number = if least == most { most.to_string() } else { format!("{least} or {most}") };
            label += &format!(" ({number} below{})", if part.len() > 1 { " each" } else { "" });
        }
        let (begin, joint) = match (at, is_last) {
            (0, true) => (&text, "───"),
            (0, false) => (&text, "─┬─"),
            (_, true) => (&margin, " └─"),
            (_, false) => (&margin, " ├─"),
        };
        let line = format!("{begin} {joint} {label}");
        match part {
            [child] if *part == drawn => {
                let bar = if is_last { " " } else { "│" };
                let margin = format!("{margin}  {bar}  {:width$}", "", width = label.chars().count());
                draw(lines, (line, margin), *child, names, levels - 1);
            }
            _ => lines.push(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(agents: u32, fanout: u32) -> String {
        let names: Vec<String> = (1..=agents).map(|agent| format!("n{agent:03}")).collect();
        picture(Subtree::whole(agents, fanout), &names).join("\n")
    }

    #[test]
    fn trees_are_folded() {
        assert_eq!(drawn(0, 2), "");
        assert_eq!(drawn(1, 2), "scela-run ─── n001");
        assert_eq!(drawn(32, 32), "scela-run ─── n[001-032]");
        let expected = "\
scela-run ─┬─ n002 ─── n003
           └─ n001";
        assert_eq!(drawn(3, 2), expected);
        let expected = "\
scela-run ─┬─ n001 ─── n[002-004]
           └─ n[005,009,013]";
        assert!(drawn(16, 4).starts_with(expected), "{}", drawn(16, 4));
    }

    #[test]
    fn large_trees_take_a_few_lines_of_a_screen() {
        let text = drawn(999, 2);
        assert!(text.lines().count() <= 7 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
