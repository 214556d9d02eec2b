//! The file of measured constants, `model.json`.

use launcher::forecast::model::{FANOUT_LEAST, FANOUT_MOST, recommend, store};

/// Constants that are read are within their bounds, the same when written and read again, and give a recommendation.
pub(super) fn check(data: &[u8]) {
    let constants = match store::decode(data) {
        Ok(constants) => constants,
        Err(error) => return super::check_shown(&error.to_string()),
    };
    assert!(constants.is_valid());
    assert_eq!(store::decode(&store::encode(&constants)).ok().as_ref(), Some(&constants));
    for (nodes, ppn) in [(0, 0), (1, 1), (100, 64), (u32::MAX, u32::MAX)] {
        let recommended = recommend(nodes, ppn, &constants);
        assert!((FANOUT_LEAST..=FANOUT_MOST).contains(&recommended.tree_fanout));
        assert!((1..=constants.shells_max).contains(&recommended.batch));
    }
}
