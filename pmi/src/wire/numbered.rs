//! Numbered fields that make up a list, such as `arg1`, `arg2`, ... in a spawn of either protocol version.

use std::collections::BTreeMap;

/// Keys and values that are numbered alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberedPairs {
    /// The announced number of pairs.
    pub(crate) announced: Option<usize>,
    pub(crate) keys: BTreeMap<u32, Vec<u8>>,
    pub(crate) values: BTreeMap<u32, Vec<u8>>,
}

impl NumberedPairs {
    /// Returns the pairs in order, if each key has a value and their number is the announced one.
    pub(crate) fn into_list(self) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let keys = into_list(self.keys, self.announced)?;
        let values = into_list(self.values, self.announced)?;
        (keys.len() == values.len()).then(|| keys.into_iter().zip(values).collect())
    }
}

/// Returns the items of a list, if they count from 0 or 1 without gaps and their number is the announced one.
pub(crate) fn into_list(list: BTreeMap<u32, Vec<u8>>, announced: Option<usize>) -> Option<Vec<Vec<u8>>> {
    // PMI-1: arguments count from 1 and pairs from 0 in all of MPICH; Flux RFC 13 has arguments
    // from 0. PMI-2: all from 0, but arguments from 1 by the specification of MPICH >= 4.1.
    let first = list.first_key_value().map_or(0, |(&first, _)| first);
    let last = list.last_key_value().map_or(0, |(&last, _)| last);
    let dense = list.is_empty() || (first <= 1 && (last - first) as usize == list.len() - 1);
    let complete = announced.is_none_or(|announced| announced == list.len());
    (dense && complete).then(|| list.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(numbers: &[u32], announced: Option<usize>, expected: bool) {
        let list = numbers.iter().map(|&number| (number, Vec::new())).collect();
        assert_eq!(into_list(list, announced).map(|list| list.len()), expected.then_some(numbers.len()));
    }

    #[test]
    fn lists_with_gaps_or_of_another_length_are_refused() {
        check(&[], None, true);
        check(&[], Some(0), true);
        check(&[], Some(1), false);
        check(&[0, 1, 2], Some(3), true);
        check(&[1, 2], None, true);
        check(&[2, 3], None, false);
        check(&[0, 2], None, false);
        check(&[0, 1], Some(3), false);
        check(&[u32::MAX], None, false);
        check(&[0, u32::MAX], None, false);
    }
}
