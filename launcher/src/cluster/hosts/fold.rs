//! Folds names into a short text: `node[001-003,017],login`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv6Addr;

use litemap::LiteMap;

use super::NAME_BYTES_MAX;
use super::cursor::{begins_name, is_name};
use super::problem::shown_char;

/// Returns a short list of all names, each once, that [`expand`](super::expand) parses again.
///
/// The result depends only on the set of names, so the same hosts read the same in every report. Names that differ
/// only in numbers with the same padding are folded together, the last number first. Names are in alphabetical
/// order, numbers in numeric order, addresses at the end. Ranges have no steps, which other tools do not parse.
///
/// A name that no list can express is written as it is, with invisible characters escaped.
pub fn fold<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<S> = names.into_iter().collect();
    folded(&names.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

fn folded(names: &[&str]) -> String {
    let mut alike: LiteMap<Vec<&str>, Vec<Vec<Number>>> = LiteMap::new();
    let mut others = BTreeSet::new();
    for name in names {
        if is_host_name(name) {
            let (texts, numbers) = split(name);
            alike.entry(texts).or_default().push(numbers);
        } else {
            others.insert(literal(name));
        }
    }
    let mut folded = Vec::new();
    for (texts, numbers) in &alike {
        for (widths, rows) in by_widths(numbers) {
            folded.extend(boxes(rows, widths.len()).iter().map(|row| written(texts, &widths, row)));
        }
    }
    folded.extend(others);
    folded.join(",")
}

/// Folds names into at most `bytes_max` bytes, or else counts all but the first.
pub fn fold_within<S: AsRef<str>>(names: impl IntoIterator<Item = S>, bytes_max: usize) -> String {
    let names: Vec<S> = names.into_iter().collect();
    let folded = fold(names.iter().map(AsRef::as_ref));
    match names.first() {
        Some(first) if folded.len() > bytes_max && names.len() > 1 => {
            format!("{} and {} more", literal(first.as_ref()), names.len() - 1)
        }
        _ => folded,
    }
}

/// Quotes a list of names for a command that the user may copy, if a shell could take it for a pattern. The quotes are double ones,
/// because single ones are around the commands of hints.
pub fn quoted(list: &str) -> String {
    if list.contains('[') { format!("\"{list}\"") } else { list.to_owned() }
}

/// Lists items by their texts, and counts those beyond the first `shown_max`: `a, b and 3 more`.
pub(crate) fn first_of<T>(items: &[T], shown_max: usize, text: impl Fn(&T) -> String) -> String {
    let shown: Vec<String> = items.iter().take(shown_max).map(text).collect();
    match items.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns whether a list can express the name without brackets.
fn is_host_name(name: &str) -> bool {
    name.starts_with(begins_name) && name.chars().all(is_name) && name.len() <= NAME_BYTES_MAX
}

/// A name that is not folded.
fn literal(name: &str) -> String {
    let address = name.split('%').next().unwrap_or_default();
    let shown: String = name.chars().map(shown_char).collect();
    if address.parse::<Ipv6Addr>().is_ok() { format!("[{shown}]") } else { shown }
}

/// A number in a name.
#[derive(Debug, Clone, Copy)]
struct Number {
    value: u64,
    digits: usize,
    /// Returns whether it has leading zeros. A single 0 has none.
    is_padded: bool,
}

/// Splits a name into texts and the numbers between them; one text more than numbers. Digits of a number that is
/// too large are text.
fn split(name: &str) -> (Vec<&str>, Vec<Number>) {
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    let (mut begin, mut at) = (0, 0);
    while let Some(offset) = name[at..].find(|c: char| c.is_ascii_digit()) {
        let first = at + offset;
        let digits = name[first..].bytes().take_while(u8::is_ascii_digit).count();
        at = first + digits;
        if let Ok(value) = name[first..at].parse() {
            texts.push(&name[begin..first]);
            numbers.push(Number { value, digits, is_padded: name[first..].starts_with('0') });
            begin = at;
        }
    }
    texts.push(&name[begin..]);
    (texts, numbers)
}

/// Groups the numbers of names by padding: the least digits of each number. A number without leading zeros counts
/// as padded if another one with leading zeros has as many digits: `009`, `100`.
fn by_widths(names: &[Vec<Number>]) -> LiteMap<Vec<usize>, Vec<Vec<u64>>> {
    let mut padded = BTreeSet::new();
    for numbers in names {
        padded.extend((0..).zip(numbers).filter(|(_, n)| n.is_padded).map(|(i, n)| (i, n.digits)));
    }
    let mut alike: LiteMap<Vec<usize>, Vec<Vec<u64>>> = LiteMap::new();
    for numbers in names {
        let width = |(i, n): (usize, &Number)| if padded.contains(&(i, n.digits)) { n.digits } else { 1 };
        let widths = numbers.iter().enumerate().map(width).collect();
        alike.entry(widths).or_default().push(numbers.iter().map(|number| number.value).collect());
    }
    alike
}

/// First and last numbers of ranges, in order.
type Spans = Vec<(u64, u64)>;

/// Returns rows of numbers as boxes of ranges, in order. Merges rows that differ in one number only, the last number
/// first.
fn boxes(rows: Vec<Vec<u64>>, dimensions: usize) -> Vec<Vec<Spans>> {
    let mut boxes: Vec<Vec<Spans>> =
        rows.into_iter().map(|row| row.into_iter().map(|number| vec![(number, number)]).collect()).collect();
    for dimension in (0..dimensions).rev() {
        let mut alike: LiteMap<Vec<Spans>, Vec<u64>> = LiteMap::new();
        for mut row in boxes {
            let span = row.get_mut(dimension).map(std::mem::take).unwrap_or_default();
            alike.entry(row).or_default().extend(span.iter().map(|(first, _)| *first));
        }
        let folded = alike.into_iter().map(|(mut row, numbers)| {
            if let Some(spans) = row.get_mut(dimension) {
                *spans = self::spans(numbers);
            }
            row
        });
        boxes = folded.collect();
    }
    boxes.sort_unstable();
    // Rows without numbers are the same name.
    boxes.dedup();
    boxes
}

/// Returns the ranges that cover these numbers.
fn spans(mut numbers: Vec<u64>) -> Spans {
    numbers.sort_unstable();
    let mut spans: Spans = Vec::new();
    for number in numbers {
        match spans.last_mut() {
            Some((_, last)) if *last == number => {}
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => spans.push((number, number)),
        }
    }
    spans
}

/// Joins texts and the numbers between them.
fn written(texts: &[&str], widths: &[usize], row: &[Spans]) -> String {
    let mut out = String::new();
    for (i, text) in texts.iter().enumerate() {
        out.push_str(text);
        let (Some(spans), Some(&width)) = (row.get(i), widths.get(i)) else { continue };
        match spans.as_slice() {
            [(first, last)] if first == last => {
                let _ = write!(out, "{first:0width$}");
            }
            spans => {
                for (j, (first, last)) in spans.iter().enumerate() {
                    let _ = write!(out, "{}{first:0width$}", if j == 0 { "[" } else { "," });
                    if first != last {
                        let _ = write!(out, "-{last:0width$}");
                    }
                }
                out.push(']');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::expand;
    use super::*;

    #[track_caller]
    fn check(names: &str, folded: &str) {
        let names: Vec<&str> = names.split_whitespace().collect();
        assert_eq!(fold(&names), folded);
        assert_eq!(fold(names.iter().rev()), folded, "the order of the names is no matter");
        let set = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
        if !names.is_empty() {
            let expanded = expand(folded.as_bytes()).expect("what was folded can be read");
            let distinct = set(names.iter().map(|&name| name.to_owned()).collect());
            assert_eq!(expanded.len(), distinct.len(), "each once");
            assert_eq!(set(expanded), distinct);
        }
    }

    #[test]
    fn items_beyond_the_first_are_counted() {
        let list = |items: &[u32]| first_of(items, 2, u32::to_string);
        assert_eq!([list(&[]), list(&[7]), list(&[7, 8])], ["", "7", "7, 8"]);
        assert_eq!([list(&[7, 8, 9]), list(&[1, 2, 3, 4])], ["7, 8 and 1 more", "1, 2 and 2 more"]);
    }

    #[test]
    fn names_fold() {
        check("", "");
        check("login", "login");
        check("node1", "node1");
        check("node2 node1", "node[1-2]");
        check("node3 node1 node2 node5", "node[1-3,5]");
        check("node001 node003 login node002 node017", "login,node[001-003,017]");
        check("n8 n9 n10 n11", "n[8-11]");
        check("a a b1 b1", "a,b1");
        check("n1-ib n2-ib n1", "n1,n[1-2]-ib");
        check("1 2 3a 4a", "[1-2],[3-4]a");
        check("10.0.0.1 10.0.0.2 10.0.1.1", "10.0.0.[1-2],10.0.1.1");
        check("n1.c2.example.org n2.c2.example.org", "n[1-2].c2.example.org");
        check("n1 n3 n5", "n[1,3,5]");
        check("n0 n1", "n[0-1]");
        check("z9 z10 a2", "a2,z[9-10]");
    }

    #[test]
    fn leading_zeros_are_kept() {
        check("n9 n10 n09", "n9,n[09-10]");
        check("n009 n010 n100", "n[009-010,100]");
        check("n099 n100 n1000", "n1000,n[099-100]");
        check("n00 n01 n0", "n0,n[00-01]");
        check("n1 n01 n001", "n1,n01,n001");
        check("a01b1 a10b2 a10b1", "a01b1,a10b[1-2]");
    }

    #[test]
    fn several_numbers_fold() {
        check("r1n1 r1n2 r2n1 r2n2", "r[1-2]n[1-2]");
        check("r1n1 r1n2 r2n1", "r1n[1-2],r2n1");
        check("r1n1 r2n2", "r1n1,r2n2");
        check("r1n1 r2n1 r4n1", "r[1-2,4]n1");
        check("a1b1c1 a1b1c2 a1b2c1 a1b2c2 a2b1c1 a2b1c2 a2b2c1 a2b2c2", "a[1-2]b[1-2]c[1-2]");
        check("r2n10 r10n2 r10n10 r2n2", "r[2,10]n[2,10]");
        check("r1n01 r1n02 r2n1", "r2n1,r1n[01-02]");
    }

    #[test]
    fn addresses_and_long_numbers_do_not_fold() {
        let named = |names: &[&str]| fold(names);
        assert_eq!(named(&["::2", "::1", "a", "fe80::1%eth0"]), "a,[::1],[::2],[fe80::1%eth0]");
        check("n18446744073709551614 n18446744073709551615", "n[18446744073709551614-18446744073709551615]");
        check("n99999999999999999999 n99999999999999999998", "n99999999999999999998,n99999999999999999999");
        check("a99999999999999999999b1 a99999999999999999999b2", "a99999999999999999999b[1-2]");
    }

    #[test]
    fn names_that_no_list_can_express_are_escaped() {
        assert_eq!(fold(["a\x1b[2Jb", "a,b", "-x", "", "n1"]), "n1,,-x,a,b,a\\u{1b}[2Jb");
        assert_eq!(fold(["x".repeat(254)]), "x".repeat(254));
    }

    #[test]
    fn many_names_fold_at_once() {
        let names: Vec<String> = (0..100_000).map(|i| format!("r{}n{:03}", i / 1000, i % 1000)).collect();
        assert_eq!(fold(&names), "r[0-99]n[000-999]");
        let names: Vec<String> = (0..100_000).map(|i| format!("x{}", i * 2)).collect();
        assert_eq!(expand(fold(&names).as_bytes()).ok(), Some(names));
    }
}
