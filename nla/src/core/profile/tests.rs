//! Rows of example jobs, and damaged ones.

use proptest::prelude::*;

use super::*;

/// Appends a number as libscela-trace.so does.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns a piece with its length. An entry is (peer, fetched, bytes, messages).
fn piece(rank: u32, size: u32, left: u32, outside: (u64, u64), entries: &[(u32, bool, u64, u64)]) -> Vec<u8> {
    let mut body = Vec::new();
    for number in [rank, size, left, entries.len() as u32] {
        put(&mut body, number.into());
    }
    put(&mut body, outside.0);
    put(&mut body, outside.1);
    for (peer, fetched, bytes, messages) in entries {
        put(&mut body, u64::from(*peer) << 1 | u64::from(*fetched));
        put(&mut body, *bytes);
        put(&mut body, *messages);
    }
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// The entries, the last result and the ranks that are missing.
type Taken = (Vec<(u32, u32, u64, u64)>, Result<(), ProfileError>, String);

/// Takes messages one after another.
fn take(size: u32, messages: &[Vec<u8>]) -> Taken {
    let (mut rows, mut entries, mut last) = (ProfileRows::new(size), Vec::new(), Ok(()));
    for message in messages {
        let add = |entry: ProfileEntry| {
            entries.push((entry.from.0, entry.to.0, entry.traffic.bytes, entry.traffic.messages));
        };
        last = rows.take(message, add);
    }
    (entries, last, rows.missing().to_string())
}

#[test]
fn rows_of_all_ranks_are_put_together_in_any_order() {
    let message = [
        piece(2, 3, 1, (0, 0), &[(0, false, 300, 2)]),
        piece(2, 3, 0, (0, 0), &[(1, false, 0, 1)]),
        piece(0, 3, 0, (9, 1), &[(1, false, u64::MAX, 7), (2, true, 5, 1)]),
    ];
    let (entries, result, missing) = take(3, &[message.concat(), piece(1, 3, 0, (0, 0), &[])]);
    assert_eq!(entries, [(2, 0, 300, 2), (2, 1, 0, 1), (0, 1, u64::MAX, 7), (2, 0, 5, 1)]);
    assert_eq!((result, missing.as_str()), (Ok(()), ""));
}

#[test]
fn messages_to_others_are_summed() {
    let mut rows = ProfileRows::new(2);
    for rank in 0..2 {
        let message = [piece(rank, 2, 1, (4, 2), &[(0, false, 1, 1)]), piece(rank, 2, 0, (4, 2), &[(1, false, 1, 1)])];
        assert_eq!(rows.take(&message.concat(), |_| ()), Ok(()));
    }
    assert_eq!(rows.outside(), ProfileTraffic { bytes: 8, messages: 4 });
}

#[test]
fn ranks_without_whole_rows_are_missing() {
    let (entries, result, missing) =
        take(5, &[piece(3, 5, 2, (0, 0), &[(0, false, 1, 1)]), piece(1, 5, 0, (0, 0), &[])]);
    assert_eq!((entries, result), (vec![(3, 0, 1, 1)], Ok(())));
    assert_eq!(missing, "0,2-4");
}

#[test]
fn what_is_no_row_of_the_job_is_refused() {
    let good = piece(0, 2, 0, (0, 0), &[(1, false, 1, 1)]);
    let check = |messages: &[Vec<u8>], error| {
        let (_, result, _) = take(2, messages);
        assert_eq!(result, Err(error), "{messages:?}");
    };
    check(&[good.clone(), good.clone()], ProfileError::Order);
    check(&[piece(0, 3, 0, (0, 0), &[])], ProfileError::Order);
    check(&[piece(2, 2, 0, (0, 0), &[])], ProfileError::Damaged);
    check(&[piece(0, 2, 0, (0, 0), &[(2, false, 1, 1)])], ProfileError::Damaged);
    check(&[piece(0, 2, 7, (0, 0), &[])], ProfileError::Damaged);
    check(&[piece(0, 2, 4, (0, 0), &[(1, false, 1, 1)])], ProfileError::Order);
    check(&[piece(0, 2, 2, (0, 0), &[(1, false, 1, 1)]), good.clone()], ProfileError::Order);
    check(&[good[..good.len() - 1].to_vec()], ProfileError::Damaged);
    check(&[good[..3].to_vec()], ProfileError::Damaged);
    check(&[vec![255; 40]], ProfileError::Damaged);
    let mut longer = good;
    longer.push(0);
    longer[0] += 1;
    check(&[longer], ProfileError::Damaged);
}

#[test]
fn a_piece_is_bounded() {
    assert_eq!(check_length(PROFILE_PIECE_BYTES_MAX), Ok(()));
    let long = PROFILE_PIECE_BYTES_MAX + 1;
    assert_eq!(ProfilePiece::decode(&vec![0; long]), Err(ProfileError::TooLong(long)));
    // An entry count that the bytes cannot have reserves no memory.
    let mut claims = Vec::new();
    [0, 2, 0, u64::from(u32::MAX), 0, 0].into_iter().for_each(|number| put(&mut claims, number));
    assert_eq!(ProfilePiece::decode(&claims), Err(ProfileError::Damaged));
}

#[test]
fn pieces_of_a_row_follow_each_other() {
    let decoded = |bytes: Vec<u8>| ProfilePiece::decode(&bytes[PIECE_LENGTH_BYTES..]).unwrap();
    let mut order = RowOrder::default();
    let entry = (1, false, 1, 1);
    assert_eq!(order.take(&decoded(piece(0, 2, 2, (0, 0), &[entry]))), Ok(true));
    assert!(!order.is_between_rows());
    assert_eq!(order.take(&decoded(piece(1, 2, 1, (0, 0), &[entry]))), Err(ProfileError::Order));
    assert_eq!(order.take(&decoded(piece(0, 2, 0, (0, 0), &[entry]))), Err(ProfileError::Order));
    assert_eq!(order.take(&decoded(piece(0, 2, 0, (0, 0), &[entry, entry]))), Ok(false));
    assert!(order.is_between_rows());
}

/// The bench `profiles` measures how long it takes.
#[test]
fn four_thousand_rows_are_put_together() {
    const RANKS: u32 = 4096;
    let entries = |rank: u32| (1..=26).map(move |hop| ((rank + hop * hop) % RANKS, false, 1 << 20, 100));
    let row = |rank| piece(rank, RANKS, 0, (0, 0), &entries(rank).collect::<Vec<_>>());
    let messages: Vec<Vec<u8>> =
        (0..RANKS).step_by(64).map(|first| (first..first + 64).flat_map(row).collect()).collect();
    let (mut rows, mut sum) = (ProfileRows::new(RANKS), 0);
    for message in &messages {
        assert_eq!(rows.take(message, |entry| sum += entry.traffic.messages), Ok(()));
    }
    assert_eq!((sum, rows.missing().len()), (4096 * 26 * 100, 0));
}

proptest! {
    #[test]
    fn no_bytes_crash_the_root(size in 0_u32..9, messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..4)) {
        let _ = take(size, &messages);
    }

    #[test]
    fn rows_survive(rank in 0_u32..40, entries in prop::collection::vec((0_u32..40, any::<bool>(), any::<u64>(), any::<u64>()), 1..80)) {
        let expected: Vec<_> = entries
            .iter()
            .map(|&(peer, fetched, bytes, messages)| if fetched { (peer, rank, bytes, messages) } else { (rank, peer, bytes, messages) })
            .collect();
        let (found, result, _) = take(40, &[piece(rank, 40, 0, (0, 0), &entries)]);
        prop_assert_eq!((found, result), (expected, Ok(())));
    }
}
