//! Host lists of options and variables: `node[1-3]:2,ada@login,[fe80::1]`.

use std::net::Ipv6Addr;

use super::cursor::{Cursor, Fault, begins_name, is_blank, is_name};
use super::error::HostsError;
use super::expression::Expression;
use super::problem::{
    TEXT_FILE, blank, empty, name_begin, name_missing, name_too_long, number_missing, shown, stray, too_large,
    too_many_hosts, user_missing,
};
use super::{HOSTS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::cluster::node::Node;
use crate::refusal::Refusal;
use nla::core::limits::RANKS_MAX;

/// Parses the hosts of a list such as `a,b:4,ada@c[1-3]:2`, in order; duplicates stay. An empty list is an error,
/// and so is any blank.
pub fn parse_list(text: &[u8]) -> Result<Vec<Node>, HostsError> {
    whole(text, |cursor| {
        let mut entries = Vec::new();
        list(cursor, &mut entries)?;
        Ok(entries)
    })
}

/// Parses the names of a list without users and slots, in order.
pub fn expand(text: &[u8]) -> Result<Vec<String>, HostsError> {
    whole(text, |cursor| {
        let mut entries = Vec::new();
        loop {
            let begin = cursor.at();
            let item = item(cursor)?;
            if item.user.is_some() || item.slots.is_some() {
                let text = "only host names are allowed here, without user or slots";
                return Err(cursor.fault_since(begin, Refusal::new(text, "write names alone, as in node[1-4],login")));
            }
            item.add_to(&mut entries)?;
            if !cursor.eat(',') {
                return Ok(entries.into_iter().map(|entry| entry.name).collect());
            }
        }
    })
}

/// Parses a text of one line.
pub(super) fn whole<'a, T>(
    text: &'a [u8],
    read: impl FnOnce(&mut Cursor<'a>) -> Result<T, Fault>,
) -> Result<T, HostsError> {
    if text.is_empty() {
        return Err(HostsError::without_place(empty()));
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(HostsError::without_place(too_large()));
    }
    let text = str::from_utf8(text).map_err(|error| not_utf8(text, None, error.valid_up_to()))?;
    let mut cursor = Cursor::new(text);
    let in_line = |fault| HostsError::in_line(text, None, fault);
    let value = read(&mut cursor).map_err(in_line)?;
    match cursor.peek() {
        None => Ok(value),
        Some(c) if is_blank(c) => Err(in_line(cursor.fault_here(blank()))),
        Some(c) => Err(in_line(cursor.fault_here(stray(c)))),
    }
}

/// Returns the error for a line that is not UTF-8 from a position on.
pub(super) fn not_utf8(line: &[u8], number: Option<usize>, valid_bytes: usize) -> HostsError {
    let fault = Fault::new(valid_bytes..valid_bytes + 1, Refusal::new("this is not UTF-8 text", TEXT_FILE));
    HostsError::in_line(&String::from_utf8_lossy(line), number, fault)
}

/// Parses items between commas, and adds their hosts.
pub(super) fn list(cursor: &mut Cursor<'_>, entries: &mut Vec<Node>) -> Result<(), Fault> {
    loop {
        item(cursor)?.add_to(entries)?;
        if !cursor.eat(',') {
            return Ok(());
        }
    }
}

/// The text between two commas.
struct Item<'a> {
    at: std::ops::Range<usize>,
    user: Option<&'a str>,
    host: Host<'a>,
    slots: Option<u32>,
}

enum Host<'a> {
    Address(&'a str),
    Names(Expression<'a>),
}

impl Item<'_> {
    /// Adds its hosts, if all of them stay within the bound.
    fn add_to(self, entries: &mut Vec<Node>) -> Result<(), Fault> {
        let count = match &self.host {
            Host::Address(_) => 1,
            Host::Names(expression) => expression.count(),
        };
        if count > HOSTS_MAX - entries.len() {
            return Err(Fault::new(self.at, too_many_hosts()));
        }
        let names = match self.host {
            Host::Address(address) => vec![address.to_owned()],
            Host::Names(expression) => expression.names(),
        };
        let user = self.user.map(str::to_owned);
        let entry = |name| Node { user: user.clone(), slots: self.slots, ..Node::named(name) };
        entries.extend(names.into_iter().map(entry));
        Ok(())
    }
}

/// Parses up to a comma, a blank or the end.
fn item<'a>(cursor: &mut Cursor<'a>) -> Result<Item<'a>, Fault> {
    let begin = cursor.at();
    let bare = |cursor: &Cursor<'_>| bare_address(cursor, begin);
    if cursor.peek().is_some_and(is_blank) {
        return Err(cursor.fault_here(blank()));
    }
    let user = user(cursor)?;
    let host = match address(cursor)? {
        Some(address) => Host::Address(address),
        None => Host::Names(Expression::parse(cursor).map_err(|fault| {
            // `::1` begins as a host without a name does.
            let address = if fault.problem == name_missing() { bare(cursor) } else { None };
            address.unwrap_or(fault)
        })?),
    };
    if cursor.peek() == Some('@') {
        return Err(cursor.fault_here(Refusal::new("there is a second '@'", "write user@host")));
    }
    let slots = if cursor.eat(':') {
        Some(slots(cursor, is_item_end).map_err(|fault| bare(cursor).unwrap_or(fault))?)
    } else {
        None
    };
    Ok(Item { at: cursor.since(begin), user, host, slots })
}

fn is_item_end(c: char) -> bool {
    is_blank(c) || c == ','
}

/// Parses the user, if there is an `@`.
fn user<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, Fault> {
    let mut ahead = *cursor;
    let user = ahead.take_while(is_name);
    if ahead.peek() != Some('@') {
        return Ok(None);
    }
    if user.is_empty() {
        return Err(ahead.fault_here(user_missing()));
    }
    checked_user(user, cursor)?;
    ahead.eat('@');
    *cursor = ahead;
    Ok(Some(user))
}

/// Checks a user's name, which begins at the cursor.
pub(super) fn checked_user(user: &str, cursor: &Cursor<'_>) -> Result<(), Fault> {
    let at = cursor.at()..cursor.at() + user.len();
    match user.chars().next() {
        None => Err(cursor.fault_here(user_missing())),
        Some(first) if is_name(first) && !begins_name(first) => Err(cursor.fault_here(name_begin(first))),
        _ if user.len() > NAME_BYTES_MAX => Err(Fault::new(at, name_too_long())),
        _ => match user.char_indices().find(|(_, c)| !is_name(*c)) {
            Some((offset, c)) => Err(Fault::new(at.start + offset..at.start + offset + c.len_utf8(), stray(c))),
            None => Ok(()),
        },
    }
}

/// Parses an address in brackets; `None` if the brackets contain ranges.
fn address<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, Fault> {
    let mut ahead = *cursor;
    if !ahead.eat('[') {
        return Ok(None);
    }
    let begin = ahead.at();
    let Some((inside, _)) = ahead.rest().split_once(']').filter(|(inside, _)| is_address(inside)) else {
        return Ok(None);
    };
    ahead.take_part(inside.len());
    let (address, zone) = inside.split_once('%').map_or((inside, None), |(address, zone)| (address, Some(zone)));
    let is_zone = |zone: &str| !zone.is_empty() && zone.chars().all(is_name);
    if address.parse::<Ipv6Addr>().is_err() || !zone.is_none_or(is_zone) {
        let hint = "write an address as in [2001:db8::7] or [fe80::1%eth0], ranges as in [1-4]";
        let text = format!("'{}' is not an IPv6 address", shown(inside));
        return Err(ahead.fault_since(begin, Refusal::new(text, hint)));
    }
    if inside.len() > NAME_BYTES_MAX {
        return Err(ahead.fault_since(begin, name_too_long()));
    }
    ahead.eat(']');
    let begin = ahead.at();
    let tail = ahead.take_while(|c| !is_item_end(c) && c != ':');
    if !tail.is_empty() {
        let text = format!("'{}' cannot follow an address", shown(tail));
        let hint = "an address stands alone, or with slots: [fe80::1]:8";
        return Err(ahead.fault_since(begin, Refusal::new(text, hint)));
    }
    *cursor = ahead;
    Ok(Some(inside))
}

/// Returns whether the text in brackets is meant as an address. No address has a dash or two points; ranges with a
/// colon have one of them.
fn is_address(inside: &str) -> bool {
    let address = inside.split('%').next().unwrap_or_default();
    address.contains(':') && !address.contains('-') && !address.contains("..")
}

/// Returns the fault of an item that looks like an address without brackets.
fn bare_address(cursor: &Cursor<'_>, begin: usize) -> Option<Fault> {
    let mut item = *cursor;
    item.take_while(|c| !is_item_end(c));
    let text = item.text_since(begin);
    let is_bare = !text.contains(['[', ']']) && text.matches(':').count() > 1;
    let hint = "put an IPv6 address in brackets, and slots behind them: [fe80::1]:8";
    let problem = || Refusal::new(format!("'{}' has more than one ':'", shown(text)), hint);
    is_bare.then(|| item.fault_since(begin, problem()))
}

/// Parses a number of slots.
pub(super) fn slots(cursor: &mut Cursor<'_>, is_end: fn(char) -> bool) -> Result<u32, Fault> {
    let begin = cursor.at();
    let text = cursor.take_while(|c| !is_end(c));
    if text.is_empty() {
        return Err(cursor.fault_here(number_missing()));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let text = format!("'{}' is not a number of slots", shown(text));
        return Err(cursor.fault_since(begin, Refusal::new(text, "write slots as in node1:8, or leave ':' out")));
    }
    let slots = text.parse().ok().filter(|slots| (1..=RANKS_MAX).contains(slots));
    slots.ok_or_else(|| {
        let text = format!("{} slots are out of range, there must be 1 to {RANKS_MAX}", shown(text));
        cursor.fault_since(begin, Refusal::new(text, "leave out a host that has none"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an entry as a list has it.
    fn written(entry: &Node) -> String {
        let user = entry.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let slots = entry.slots.map(|slots| format!("*{slots}")).unwrap_or_default();
        assert_eq!(entry.max_slots, None);
        format!("{user}{}{slots}", entry.name)
    }

    fn read(text: &str) -> Result<String, (usize, String)> {
        let entries = parse_list(text.as_bytes())
            .map_err(|error| (error.column().unwrap_or_default(), error.problem().to_string()))?;
        Ok(entries.iter().map(written).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn hosts_of_lists() {
        for (text, hosts) in [
            ("a", "a"),
            ("a,b:4,c[1-3]:2", "a b*4 c1*2 c2*2 c3*2"),
            ("node[001-003,040],gpu[1-4/2]", "node001 node002 node003 node040 gpu1 gpu3"),
            ("b,a,b:2", "b a b*2"),
            ("ada@a,bob.b@n[1-2]:3", "ada@a bob.b@n1*3 bob.b@n2*3"),
            ("[::1]", "::1"),
            ("[::1]:8,a", "::1*8 a"),
            ("[fe80::1%eth0]:8", "fe80::1%eth0*8"),
            ("[fe80::1%br-0.1]", "fe80::1%br-0.1"),
            ("[2001:DB8::7],[::ffff:10.0.0.1]", "2001:DB8::7 ::ffff:10.0.0.1"),
            ("ada@[::1],ada@[1-2]", "ada@::1 ada@1 ada@2"),
            ("10.0.0.1:2", "10.0.0.1*2"),
            ("a:16777216,b:007", "a*16777216 b*7"),
        ] {
            assert_eq!(read(text), Ok(hosts.to_owned()), "{text}");
        }
    }

    #[test]
    fn ranges_at_the_beginning_are_no_address() {
        for (text, hosts) in [
            ("[1-2]", "1 2"),
            ("[1-3:2]", "1 3"),
            ("[1..3:2]", "1 3"),
            ("[1,2-4:2]", "1 2 4"),
            ("[10]:2", "10*2"),
            ("[1-2]a:2", "1a*2 2a*2"),
            ("a[1-3:2]:2", "a1*2 a3*2"),
        ] {
            assert_eq!(read(text), Ok(hosts.to_owned()), "{text}");
        }
        for (text, column, message) in [
            ("[1:2]", 2, "'1:2' is not an IPv6 address"),
            ("[fe80:1]", 2, "'fe80:1' is not an IPv6 address"),
            ("[::1%]", 2, "'::1%' is not an IPv6 address"),
            ("[::1%a/b]", 2, "'::1%a/b' is not an IPv6 address"),
            ("[::g]", 2, "'::g' is not an IPv6 address"),
            ("[:]", 2, "':' is not an IPv6 address"),
            ("[fe80]", 2, "'fe80' is not a number"),
            ("[10.0.0.1]", 4, "'.0.0.1' is not a number"),
            ("[1-3:2%x]", 7, "'%x' is not a number"),
            ("[::1", 1, "this '[' is not closed"),
            ("a[::1]", 3, "a number is missing here"),
        ] {
            assert_eq!(read(text), Err((column, message.to_owned())), "{text}");
        }
    }

    #[test]
    fn errors_name_their_place() {
        for (text, column, message) in [
            ("a,,b", 3, "the name of a host is missing here"),
            ("a,", 3, "the name of a host is missing here"),
            (",a", 1, "the name of a host is missing here"),
            (":4", 1, "the name of a host is missing here"),
            ("ada@", 5, "the name of a host is missing here"),
            ("@a", 1, "the name of a user is missing here"),
            ("a@b@c", 4, "there is a second '@'"),
            ("a[1-2]@b", 7, "there is a second '@'"),
            ("-l@a", 1, "the name of a host or user cannot begin with '-'"),
            ("a,b c", 4, "there is a blank inside the list"),
            ("a, b", 3, "there is a blank inside the list"),
            (" a", 1, "there is a blank inside the list"),
            ("a\n", 2, "there is a control character, U+000A"),
            ("a:", 3, "a number is missing here"),
            ("a:,b", 3, "a number is missing here"),
            ("a:b", 3, "'b' is not a number of slots"),
            ("a:*", 3, "'*' is not a number of slots"),
            ("a:-1", 3, "'-1' is not a number of slots"),
            ("a:0", 3, "0 slots are out of range, there must be 1 to 16777216"),
            ("x,a:16777217", 5, "16777217 slots are out of range, there must be 1 to 16777216"),
            ("a:99999999999", 3, "99999999999 slots are out of range, there must be 1 to 16777216"),
            ("x,fe80::1", 3, "'fe80::1' has more than one ':'"),
            ("::1,x", 1, "'::1' has more than one ':'"),
            ("ada@2001:db8::1", 1, "'ada@2001:db8::1' has more than one ':'"),
            ("a:1:2", 1, "'a:1:2' has more than one ':'"),
            ("[::1]a", 6, "'a' cannot follow an address"),
            ("[::1][1-2]", 6, "'[1-2]' cannot follow an address"),
            ("[::1]:x", 7, "'x' is not a number of slots"),
            ("ada@bob@[::1]", 8, "there is a second '@'"),
            ("a(2)", 2, "there cannot be a '(' in a name"),
        ] {
            assert_eq!(read(text), Err((column, message.to_owned())), "{text}");
        }
        assert_eq!(read(""), Err((0, "the list is empty".to_owned())));
        let error = parse_list(b"s\xc3\xbcd,\xff").expect_err("not UTF-8");
        assert_eq!(error.to_string(), "column 5: this is not UTF-8 text\n    süd,\u{fffd}\n        ^");
    }

    #[test]
    fn an_error_has_text_place_and_hint() {
        let error = parse_list(b"login,node[001-003,9-3]:8").expect_err("a range goes down");
        let expected =
            "column 20: the range 9-3 goes downwards\n    login,node[001-003,9-3]:8\n                       ^^^";
        assert_eq!((error.to_string().as_str(), error.hint()), (expected, "write 3-9"));
    }

    #[test]
    fn hosts_have_a_bound_over_the_whole_list() {
        let most = parse_list(format!("a,b[2-{HOSTS_MAX}]").as_bytes());
        assert_eq!(most.map(|entries| entries.len()).ok(), Some(HOSTS_MAX));
        let error = parse_list(format!("a,b[1-{HOSTS_MAX}]:2,c").as_bytes()).expect_err("one too many");
        assert_eq!((error.problem(), error.column()), (&too_many_hosts(), Some(3)));
        let error = parse_list(format!("b[1-{HOSTS_MAX}],[::1]").as_bytes()).expect_err("one too many");
        assert_eq!((error.problem(), error.column()), (&too_many_hosts(), Some(14)));
    }

    #[test]
    fn text_users_and_addresses_have_bounds() {
        let error = parse_list(&vec![b'a'; TEXT_BYTES_MAX + 1]).expect_err("too large");
        assert_eq!((error.problem(), error.column()), (&too_large(), None));
        let error = parse_list(&vec![b'^'; TEXT_BYTES_MAX]).expect_err("a character that no name has");
        assert_eq!(error.column(), Some(1));
        assert!(read(&format!("{}@a", "u".repeat(253))).is_ok());
        assert_eq!(read(&format!("x,{}@a", "u".repeat(254))), Err((3, "a name is longer than 253 bytes".to_owned())));
        assert!(read(&format!("[fe80::1%{}]", "z".repeat(245))).is_ok());
        assert!(read(&format!("[fe80::1%{}]", "z".repeat(246))).is_err());
    }

    #[test]
    fn names_only() {
        let names = |text: &str| expand(text.as_bytes()).map_err(|error| (error.column(), error.problem().to_string()));
        let texts = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names("a[2-1],b"), Err((Some(3), "the range 2-1 goes downwards".to_owned())));
        assert_eq!(names("b,a[1-2],[::1],b"), Ok(texts(&["b", "a1", "a2", "::1", "b"])));
        let names_only = || "only host names are allowed here, without user or slots".to_owned();
        assert_eq!(names("b,a:2"), Err((Some(3), names_only())));
        assert_eq!(names("ada@a,b"), Err((Some(1), names_only())));
    }
}
