//! `--select`: takes hosts by their positions in a list, as Cplant's `-l 1..4,10`.

use super::cursor::Fault;
use super::error::HostsError;
use super::list::whole;
use super::ranges::ranges;
use crate::refusal::Refusal;

/// Returns the hosts at the positions of `text`, counted from 1, in the order of the positions: `1..4,10`,
/// `1-4,10` or `1-9/2`. Fails on a position beyond the list and on one given twice.
pub fn select<T: Clone>(hosts: &[T], text: &[u8]) -> Result<Vec<T>, HostsError> {
    const COUNT: &str = "count the hosts in the order of the list, from 1";
    whole(text, |cursor| {
        let mut is_selected = vec![false; hosts.len()];
        let mut selected = Vec::new();
        for (at, range) in ranges(&mut cursor.take_part(cursor.rest().len()))? {
            let fault = |text, hint| Err(Fault::new(at.clone(), Refusal::new(text, hint)));
            if range.first == 0 {
                return fault("there is no host 0, the first is host 1".to_owned(), COUNT);
            }
            if range.last > hosts.len() as u64 {
                let index = range.numbers().find(|&index| index > hosts.len() as u64).unwrap_or(range.last);
                return fault(format!("there is no host {index}, the list has {}", hosts.len()), COUNT);
            }
            for index in range.numbers() {
                let place = usize::try_from(index - 1).unwrap_or(usize::MAX);
                if is_selected.get_mut(place).is_none_or(|is_selected| std::mem::replace(is_selected, true)) {
                    let hint = "remove one of the two; for more ranks on a host give it slots";
                    return fault(format!("host {index} is selected twice"), hint);
                }
                selected.extend(hosts.get(place).cloned());
            }
        }
        Ok(selected)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, hosts: usize) -> Result<Vec<usize>, (Option<usize>, String)> {
        let hosts: Vec<usize> = (1..=hosts).collect();
        select(&hosts, text.as_bytes()).map_err(|error| (error.column(), error.problem().to_string()))
    }

    #[test]
    fn hosts_by_number() {
        for (text, selected) in [
            ("1", &[1][..]),
            ("1..4,10", &[1, 2, 3, 4, 10]),
            ("1-4,10", &[1, 2, 3, 4, 10]),
            ("10,2-3", &[10, 2, 3]),
            ("1-9/4", &[1, 5, 9]),
            ("1-12/6", &[1, 7]),
            ("007", &[7]),
        ] {
            assert_eq!(read(text, 10), Ok(selected.to_vec()), "{text}");
        }
    }

    #[test]
    fn errors_name_their_place() {
        for (text, column, message) in [
            ("11", 1, "there is no host 11, the list has 10"),
            ("1,8..12", 3, "there is no host 11, the list has 10"),
            ("1-18446744073709551615/2", 1, "there is no host 11, the list has 10"),
            ("1,0-3", 3, "there is no host 0, the first is host 1"),
            ("1-4,3", 5, "host 3 is selected twice"),
            ("4,1-4", 3, "host 4 is selected twice"),
            ("4..1", 1, "the range 4-1 goes downwards"),
            ("1..", 4, "a number is missing here"),
            ("1,", 3, "a number is missing here"),
            ("1, 2", 3, "there is a blank inside the list"),
            ("node1", 1, "'node1' is not a number"),
            ("[1]", 1, "'[1]' is not a number"),
        ] {
            assert_eq!(read(text, 10), Err((Some(column), message.to_owned())), "{text}");
        }
        assert_eq!(read("", 10), Err((None, "the list is empty".to_owned())));
        assert_eq!(read("1", 0), Err((Some(1), "there is no host 1, the list has 0".to_owned())));
    }
}
