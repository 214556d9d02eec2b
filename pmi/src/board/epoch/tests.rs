//! Tests of [`Epoch`].

use super::*;

fn puts(list: &[(u32, &str, &str)]) -> Puts {
    let mut puts = Puts::new();
    for (rank, key, value) in list {
        puts.push(Rank(*rank), key.as_bytes(), value.as_bytes());
    }
    puts
}

fn epoch(entries: &[(&str, &str)]) -> Epoch {
    Epoch::from_entries(entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())))
}

#[test]
fn the_last_put_of_the_highest_rank_wins() {
    let merged = Epoch::merge(&puts(&[
        (2, "a", "from 2"),
        (3, "a", "first of 3"),
        (1, "a", "from 1"),
        (3, "a", "last of 3"),
        (0, "b", "b"),
    ]))
    .unwrap();
    assert_eq!(merged.len(), 2);
    assert_eq!(merged.get(b"a"), Some(&b"last of 3"[..]));
    assert_eq!(merged.get(b"b"), Some(&b"b"[..]));
    assert_eq!(merged.get(b"c"), None);
    let in_order: Vec<_> = merged.iter().collect();
    assert_eq!(in_order, [(&b"b"[..], &b"b"[..]), (b"a", b"last of 3")]);
}

#[test]
fn an_empty_epoch_has_no_bytes() {
    for empty in [Epoch::default(), epoch(&[]), Epoch::merge(&Puts::new()).unwrap()] {
        assert!(empty.is_empty() && empty.bytes().is_empty());
        assert_eq!(empty.get(b""), None);
        assert_eq!(empty.iter().count(), 0);
        assert_eq!(Epoch::from_bytes(empty.bytes().clone()), Ok(empty));
    }
}

#[test]
fn empty_keys_and_values_are_entries() {
    let both = epoch(&[("", "v"), ("k", "")]);
    assert_eq!(both.get(b""), Some(&b"v"[..]));
    assert_eq!(both.get(b"k"), Some(&b""[..]));
}

#[test]
fn entries_share_the_memory_of_the_epoch() {
    let both = epoch(&[("a", "1"), ("", ""), ("k", "vw")]);
    let entries: Vec<_> = both.entries().collect();
    let expected = [("a", "1"), ("", ""), ("k", "vw")];
    assert_eq!(entries, expected.map(|(key, value)| super::Entry::new(key.as_bytes(), value.as_bytes())));
    let keys = both.iter().map(|(key, _)| key.as_ptr());
    assert!(keys.eq(entries.iter().map(|entry| entry.key().as_ptr())));
    assert_eq!(Epoch::default().entries().count(), 0);
}

#[test]
fn the_last_of_several_entries_wins() {
    let entries = epoch(&[("a", "1"), ("b", "1"), ("a", "2")]);
    assert_eq!(entries.iter().collect::<Vec<_>>(), [(&b"a"[..], &b"2"[..]), (b"b", b"1")]);
}

#[test]
fn an_entry_that_exceeds_the_format_is_left_out() {
    let long = vec![b'k'; 65_536];
    let entries = Epoch::from_entries([(&long[..], &b"v"[..]), (&long[1..], b"w")]);
    assert_eq!(entries.iter().collect::<Vec<_>>(), [(&long[1..], &b"w"[..])]);
}

#[test]
fn the_bytes_are_as_documented() {
    let one = epoch(&[("k", "vw")]);
    // One entry needs two slots: with one slot there would be no free one.
    assert_eq!(one.bytes()[..16], *b"SEP1\x01\0\0\0\x02\0\0\0\x09\0\0\0");
    assert_eq!(one.bytes()[32..], *b"\x01\0\x02\0\0\0kvw");
    assert_eq!(one.bytes().len(), 41);
}

#[test]
fn errors_name_the_damage() {
    let good = epoch(&[("a", "1"), ("b", "2")]).bytes().to_vec();
    let check = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Epoch::from_bytes(bytes.into()).unwrap_err()
    };
    assert_eq!(check(&|bytes| bytes.truncate(3)), EpochError::Length);
    assert_eq!(check(&|bytes| bytes[3] = b'2'), EpochError::Magic);
    assert_eq!(check(&|bytes| bytes.push(0)), EpochError::Length);
    assert_eq!(check(&|bytes| bytes.truncate(20)), EpochError::Length);
    assert_eq!(check(&|bytes| bytes[8..12].fill(0xff)), EpochError::Length);
    assert_eq!(check(&|bytes| bytes[4] = 0), EpochError::Table);
    assert_eq!(check(&|bytes| bytes[4] = 1), EpochError::Table);
    // No slot is taken.
    assert_eq!(check(&|bytes| bytes[16..48].fill(0)), EpochError::Table);
    // A key whose hash differs from its slot's tag.
    assert_eq!(check(&|bytes| bytes[48 + 6] = b'x'), EpochError::Table);
    // A length beyond the bytes.
    assert_eq!(check(&|bytes| bytes[48 + 5] = 0x7f), EpochError::Entry(48));
}

#[test]
fn keys_with_the_same_hash_are_distinct() {
    let [one, other] = crate::board::colliding_keys();
    let mut puts = Puts::new();
    puts.push(Rank(0), &one, b"1");
    puts.push(Rank(1), &other, b"2");
    let merged = Epoch::merge(&puts).unwrap();
    assert_eq!(merged.get(&one), Some(&b"1"[..]));
    assert_eq!(merged.get(&other), Some(&b"2"[..]));
    assert_eq!(Epoch::from_bytes(merged.bytes().clone()), Ok(merged));
    let alone = Epoch::from_entries([(&one[..], &b"1"[..])]);
    assert_eq!(alone.get(&other), None);
}

#[test]
fn a_table_without_a_free_slot_is_refused() {
    // Valid otherwise: two entries in two slots, each where its hash leads.
    let (entries, offsets) = (b"\x01\0\0\0\0\0a\x01\0\0\0\0\0b", [32_u32, 39]);
    let mut slots = [(0, 0); 2];
    for (key, offset) in [b"a", b"b"].into_iter().zip(offsets) {
        let hash = hash(key);
        let first = hash as usize & 1;
        let slot = if slots[first].1 == 0 { first } else { 1 - first };
        slots[slot] = (tag_of(hash), offset);
    }
    let mut bytes = b"SEP1\x02\0\0\0\x02\0\0\0\x0e\0\0\0".to_vec();
    for (tag, offset) in slots {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
    }
    bytes.extend_from_slice(entries);
    assert_eq!(Epoch::from_bytes(bytes.into()), Err(EpochError::Table));
}

#[test]
fn an_epoch_from_a_peer_is_checked_by_serde_too() {
    let good = epoch(&[("a", "1")]);
    let bytes = rmp_serde::to_vec(&good).unwrap();
    assert_eq!(rmp_serde::from_slice::<Epoch>(&bytes).unwrap(), good);
    let bad = rmp_serde::to_vec(serde_bytes::Bytes::new(b"SEP1")).unwrap();
    let error = rmp_serde::from_slice::<Epoch>(&bad).unwrap_err().to_string();
    assert!(error.contains("epoch's length contradicts its header"), "{error}");
}

#[test]
fn merging_a_cut_batch_is_an_error() {
    let whole = rmp_serde::to_vec(&puts(&[(1, "a", "1")])).unwrap();
    let cut = rmp_serde::to_vec(serde_bytes::Bytes::new(&whole[2..whole.len() - 1])).unwrap();
    let cut: Puts = rmp_serde::from_slice(&cut).unwrap();
    assert_eq!(Epoch::merge(&cut), Err(PutsError::Truncated(0)));
}

mod properties {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    type Pair = (Vec<u8>, Vec<u8>);

    /// Some ranks' puts, few keys.
    fn ranks_puts() -> impl Strategy<Value = BTreeMap<u32, Vec<Pair>>> {
        btree_map(0_u32..6, vec((vec(0_u8..3, 0..3), vec(any::<u8>(), 0..4)), 0..8), 0..6)
    }

    proptest! {
        #[test]
        fn merging_does_not_depend_on_the_order_of_batches(
            ranks in ranks_puts(),
            order in vec(any::<u32>(), 6),
            turns in vec(0_usize..6, 0..48),
        ) {
            let mut sorted = Puts::new();
            let mut expected = BTreeMap::new();
            for (rank, puts) in &ranks {
                for (key, value) in puts {
                    sorted.push(Rank(*rank), key, value);
                    expected.insert(key.clone(), value.clone());
                }
            }
            let merged = Epoch::merge(&sorted).unwrap();
            let found: BTreeMap<_, _> =
                merged.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(merged.len(), expected.len());
            for (key, value) in &expected {
                prop_assert_eq!(merged.get(key), Some(value.as_slice()));
            }
            // Interleave the puts; each rank's own puts stay in order.
            let mut queues: Vec<_> = ranks.iter().map(|(rank, puts)| (*rank, puts.iter())).collect();
            queues.sort_by_key(|(rank, _)| order[*rank as usize]);
            let mut mixed = Puts::new();
            let turns = turns.into_iter().chain((0..6).flat_map(|queue| [queue; 8]));
            for turn in turns {
                if let Some((rank, queue)) = queues.get_mut(turn)
                    && let Some((key, value)) = queue.next() {
                        mixed.push(Rank(*rank), key, value);
                    }
            }
            let mixed = Epoch::merge(&mixed).unwrap();
            prop_assert_eq!(mixed.bytes(), merged.bytes());
            prop_assert_eq!(Epoch::from_bytes(merged.bytes().clone()), Ok(merged));
        }

        #[test]
        fn a_damaged_epoch_neither_panics_nor_runs_forever(
            entries in btree_map(vec(any::<u8>(), 0..4), vec(any::<u8>(), 0..4), 0..6),
            changes in vec((any::<prop::sample::Index>(), prop_oneof![0_u8..4, any::<u8>()]), 0..4),
            cut in 0_usize..8,
        ) {
            let pairs = entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
            let mut bytes = Epoch::from_entries(pairs).bytes().to_vec();
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            for (at, value) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            if let Ok(epoch) = Epoch::from_bytes(bytes.into()) {
                prop_assert_eq!(epoch.iter().count(), epoch.len());
                let entries: Vec<_> = epoch.entries().collect();
                let pairs: Vec<_> = entries.iter().map(|entry| (entry.key(), entry.value())).collect();
                prop_assert_eq!(pairs, epoch.iter().collect::<Vec<_>>());
                for (key, _) in epoch.iter() {
                    prop_assert!(epoch.get(key).is_some());
                }
                epoch.get(b"absent");
            }
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..80)) {
            let mut headed = b"SEP1".to_vec();
            headed.extend_from_slice(&bytes);
            let _ = Epoch::from_bytes(headed.into());
            let _ = Epoch::from_bytes(bytes.into());
        }
    }
}
