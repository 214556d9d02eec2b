//! Hosts files, also called machinefiles.
//!
//! Each line is a list, with optional attributes of all its hosts:
//!
//! ```text
//! node[001-032] slots=8 max-slots=16     # Open MPI
//! node033:8                              # Hydra
//! ada@login
//! gpu[1-4] gres=gpu:a100:4,fpga:allreduce:1
//! ```
//!
//! A line has one list, as in the files of Hydra, Open MPI, Slurm and PBS: none of them understands a
//! second host after a blank, and Hydra and Open MPI take it for an attribute. PBS's files repeat a name for each of
//! its slots; each repetition is an entry here.
//!
//! `#` begins a comment at the beginning of a line or word. Blanks around `=` are skipped, as in Open MPI. CR at the
//! end of a line and a byte order mark at the beginning of the file are skipped too. Comments may contain any bytes.

use super::TEXT_BYTES_MAX;
use super::cursor::{Cursor, Fault, is_blank};
use super::error::HostsError;
use super::list::{checked_user, list, not_utf8, slots};
use super::problem::{not_an_attribute, shown, shown_char, stray, too_large};
use crate::cluster::node::Node;
use crate::refusal::Refusal;
use nla::core::{ResourceError, Resources};

/// Parses the hosts of a file, in order; duplicates stay. A file without hosts is an error.
pub fn parse_file(bytes: &[u8]) -> Result<Vec<Node>, HostsError> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(HostsError::without_place(too_large()));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut entries = Vec::new();
    for (line, number) in bytes.split(|&byte| byte == b'\n').zip(1..) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let said = without_comment(line);
        let said = str::from_utf8(said).map_err(|error| not_utf8(line, Some(number), error.valid_up_to()))?;
        let in_line = |fault| HostsError::in_line(&String::from_utf8_lossy(line), Some(number), fault);
        read_line(&mut Cursor::new(said), &mut entries).map_err(in_line)?;
    }
    if entries.is_empty() {
        let hint = "write a host on each line, as in: node1 slots=8";
        return Err(HostsError::without_place(Refusal::new("there is no host in it", hint)));
    }
    Ok(entries)
}

/// Returns the text before a comment.
fn without_comment(line: &[u8]) -> &[u8] {
    let begins = |&at: &usize| line[at] == b'#' && (at == 0 || is_blank(char::from(line[at - 1])));
    let end = (0..line.len()).find(begins).unwrap_or(line.len());
    &line[..end]
}

/// Adds the hosts of a line, if it has any.
fn read_line(cursor: &mut Cursor<'_>, entries: &mut Vec<Node>) -> Result<(), Fault> {
    cursor.take_while(is_blank);
    if cursor.is_at_end() {
        return Ok(());
    }
    let before = entries.len();
    list(cursor, entries)?;
    if let Some(c) = cursor.peek().filter(|&c| !is_blank(c)) {
        return Err(cursor.fault_here(stray(c)));
    }
    let hosts = entries.get_mut(before..).unwrap_or_default();
    let mut max_slots = None;
    loop {
        cursor.take_while(is_blank);
        if cursor.is_at_end() {
            break;
        }
        attribute(cursor, hosts, &mut max_slots)?;
    }
    let Some((max_slots, at)) = max_slots else { return Ok(()) };
    for host in hosts {
        if let Some(slots) = host.slots.filter(|&slots| slots > max_slots) {
            let text = format!("max-slots={max_slots} is less than the {slots} slots of a host on this line");
            let hint = "make max-slots at least as large, or leave it out";
            return Err(Fault::new(at, Refusal::new(text, hint)));
        }
        host.max_slots = Some(max_slots);
    }
    Ok(())
}

/// Parses `name=value` and applies it to all hosts. Returns `max_slots` with its position for a later check.
fn attribute(
    cursor: &mut Cursor<'_>,
    hosts: &mut [Node],
    max_slots: &mut Option<(u32, std::ops::Range<usize>)>,
) -> Result<(), Fault> {
    let begin = cursor.at();
    let name = cursor.take_while(|c| !is_blank(c) && c != '=');
    let at = cursor.since(begin);
    cursor.take_while(is_blank);
    if !cursor.eat('=') {
        return Err(Fault::new(at, not_an_attribute(&shown(name))));
    }
    cursor.take_while(is_blank);
    let twice =
        |name| Fault::new(at.clone(), Refusal::new(format!("'{name}' is given twice"), "remove one of the two"));
    match name {
        "slots" => {
            let value = slots(cursor, is_blank)?;
            for host in hosts {
                if host.slots.replace(value).is_some() {
                    return Err(twice("slots"));
                }
            }
        }
        "max-slots" | "max_slots" => {
            let value = slots(cursor, is_blank)?;
            if max_slots.replace((value, cursor.since(begin))).is_some() {
                return Err(twice("max-slots"));
            }
        }
        "user" => {
            let mut ahead = *cursor;
            let value = ahead.take_while(|c| !is_blank(c));
            checked_user(value, cursor)?;
            *cursor = ahead;
            for host in hosts {
                if host.user.replace(value.to_owned()).is_some() {
                    return Err(twice("user"));
                }
            }
        }
        "gres" => {
            let begin = cursor.at();
            let value = cursor.take_while(|c| !is_blank(c));
            let gres: Resources = value.parse().map_err(|error: ResourceError| {
                let hint = "write the devices of the host, as in gres=gpu:a100:4,fpga:allreduce:1";
                Fault::new(
                    cursor.since(begin),
                    Refusal::new(error.to_string().chars().map(shown_char).collect::<String>(), hint),
                )
            })?;
            for host in hosts {
                if !std::mem::replace(&mut host.gres, gres.clone()).is_empty() {
                    return Err(twice("gres"));
                }
            }
        }
        _ => {
            let text = format!("there is no attribute '{}', only slots, max-slots, gres and user", shown(name));
            return Err(Fault::new(at, Refusal::new(text, "remove it, or put it behind a '#'")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(entry: &Node) -> String {
        let user = entry.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let slots = entry.slots.map(|slots| format!("*{slots}")).unwrap_or_default();
        let max_slots = entry.max_slots.map(|max| format!("<{max}")).unwrap_or_default();
        let gres = if entry.gres.is_empty() { String::new() } else { format!("+{}", entry.gres) };
        format!("{user}{}{slots}{max_slots}{gres}", entry.name)
    }

    fn read(text: &str) -> Result<String, (Option<usize>, Option<usize>, String)> {
        let entries =
            parse_file(text.as_bytes()).map_err(|error| (error.line(), error.column(), error.problem().to_string()))?;
        Ok(entries.iter().map(written).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn hosts_of_files() {
        for (text, hosts) in [
            ("a", "a"),
            ("a\nb\n", "a b"),
            ("a\r\nb:2\r\n\r\n", "a b*2"),
            ("\u{feff}a\n", "a"),
            ("\n  \n\t\na\n \n", "a"),
            ("# all\na # b\n\t# c\nd", "a d"),
            ("a:2 #b\n#c", "a*2"),
            ("  a  ", "a"),
            ("a slots=8 max-slots=16", "a*8<16"),
            ("a max_slots=16 slots=16", "a*16<16"),
            ("a\tslots = 8\tmax-slots= 16", "a*8<16"),
            ("a:8 max-slots=9", "a*8<9"),
            ("a max-slots=3", "a<3"),
            ("n[1-2],m slots=4\no", "n1*4 n2*4 m*4 o"),
            ("a:2,b:3 max-slots=3", "a*2<3 b*3<3"),
            ("a user=ada slots=2", "ada@a*2"),
            ("ada@[fe80::1%eth0]:2 max-slots=4 # x", "ada@fe80::1%eth0*2<4"),
            ("n[1-2] gres=gpu:a100:4,fpga slots=2", "n1*2+gpu:a100:4,fpga:1 n2*2+gpu:a100:4,fpga:1"),
            ("a gres = GPU # x", "a+gpu:1"),
            // PBS: a line for each slot.
            ("n1\nn1\nn2\nn1\n", "n1 n1 n2 n1"),
        ] {
            assert_eq!(read(text), Ok(hosts.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn errors_name_their_place() {
        for (text, line, column, message) in [
            ("a\nb[1-\n", 2, 2, "this '[' is not closed"),
            ("a\r\n b,,c", 2, 4, "the name of a host is missing here"),
            ("a b", 1, 3, "'b' is not an attribute"),
            ("a 4", 1, 3, "'4' is not an attribute"),
            ("a, b", 1, 3, "there is a blank inside the list"),
            ("a slots", 1, 3, "'slots' is not an attribute"),
            ("a slots=", 1, 9, "a number is missing here"),
            ("a slots= # 4", 1, 10, "a number is missing here"),
            ("a slots=x", 1, 9, "'x' is not a number of slots"),
            ("a slots=4x", 1, 9, "'4x' is not a number of slots"),
            ("a slots=0", 1, 9, "0 slots are out of range, there must be 1 to 16777216"),
            ("a slots=4,b", 1, 9, "'4,b' is not a number of slots"),
            ("a max-slots=16777217", 1, 13, "16777217 slots are out of range, there must be 1 to 16777216"),
            ("a Slots=4", 1, 3, "there is no attribute 'Slots', only slots, max-slots, gres and user"),
            ("a slots=4 binding=rr", 1, 11, "there is no attribute 'binding', only slots, max-slots, gres and user"),
            ("a =4", 1, 3, "there is no attribute '', only slots, max-slots, gres and user"),
            ("a slots=4 slots=4", 1, 11, "'slots' is given twice"),
            ("a:4 slots=4", 1, 5, "'slots' is given twice"),
            ("b,a:4 slots=4", 1, 7, "'slots' is given twice"),
            ("a max-slots=4 max_slots=4", 1, 15, "'max-slots' is given twice"),
            ("ada@a user=ada", 1, 7, "'user' is given twice"),
            ("a user=", 1, 8, "the name of a user is missing here"),
            ("a user=-x", 1, 8, "the name of a host or user cannot begin with '-'"),
            ("a user=a$b", 1, 9, "there cannot be a '$' in a name"),
            ("a:4,b:8 max-slots=6 ", 1, 9, "max-slots=6 is less than the 8 slots of a host on this line"),
            ("a max-slots=6 slots=8", 1, 3, "max-slots=6 is less than the 8 slots of a host on this line"),
            ("a gres=", 1, 8, "'' is not a name of devices"),
            ("a gres=gpu:0", 1, 8, "'0' is not a number of devices from 1 to 1024"),
            ("a gres=gpu:1,gpu:2", 1, 8, "'gpu' is given twice"),
            ("a gres=gpu gres=fpga", 1, 12, "'gres' is given twice"),
            ("a#b", 1, 2, "there cannot be a '#' in a name"),
            ("// a", 1, 1, "there cannot be a '/' in a name"),
            ("a\rb", 1, 2, "there is a control character, U+000D"),
            ("a\u{c}", 1, 2, "there is a control character, U+000C"),
            ("a\n\u{feff}b", 2, 1, "there cannot be a '\\u{feff}' in a name"),
            ("süd\tslots=x", 1, 11, "'x' is not a number of slots"),
        ] {
            assert_eq!(read(text), Err((Some(line), Some(column), message.to_owned())), "{text:?}");
        }
        for text in ["", "\n\n", "# a\n", "\u{feff}"] {
            assert_eq!(read(text), Err((None, None, "there is no host in it".to_owned())), "{text:?}");
        }
    }

    #[test]
    fn an_error_has_text_place_and_hint() {
        let error = parse_file(b"login\r\n\tnode1 slots=8 4  # x\r\n").expect_err("a second word");
        let expected = "line 2, column 16: '4' is not an attribute\n     node1 slots=8 4  # x\n                   ^";
        assert_eq!((error.to_string().as_str(), error.hint()), (expected, "write slots=4"));
    }

    #[test]
    fn bytes_that_are_not_utf8() {
        let entries = parse_file(b"a # R\xe4ume\n# \xff\nb").map(|entries| entries.len());
        assert_eq!(entries.ok(), Some(2), "comments may have them");
        let error = parse_file(b"a\nb\xe4,c # \xff").expect_err("a name may not");
        assert_eq!(error.to_string(), "line 2, column 2: this is not UTF-8 text\n    b\u{fffd},c # \u{fffd}\n     ^");
        let error = parse_file(b"\xff\xfea\0\n\0").expect_err("UTF-16");
        assert_eq!((error.problem().to_string().as_str(), error.column()), ("this is not UTF-8 text", Some(1)));
    }

    #[test]
    fn files_have_bounds() {
        let error = parse_file(&vec![b'\n'; TEXT_BYTES_MAX + 1]).expect_err("too large");
        assert_eq!(error.problem(), &too_large());
        let error = parse_file(&vec![b'#'; TEXT_BYTES_MAX]).expect_err("one long comment");
        assert_eq!(error.problem().to_string(), "there is no host in it");
        let most = crate::cluster::hosts::HOSTS_MAX;
        let error = parse_file(format!("a[2-{most}]\nb\nc\n").as_bytes()).expect_err("one too many");
        assert_eq!((error.problem(), error.line()), (&super::super::problem::too_many_hosts(), Some(3)));
    }
}
