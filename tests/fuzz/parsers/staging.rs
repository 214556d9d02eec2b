//! Plans of staged and collected files, and the messages of the lane Stage: bytes of an agent's parent, or of an agent below.

use nla::core::limits::{STAGED_CHUNK_BYTES, STAGED_ENTRIES_MAX};
use nla::core::{
    ChunkSet, Chunks, CollectPattern, CollectPlan, Collected, StageDown, StagePlan, StageUp, TreeKind, is_like,
    is_relative, matching,
};

use super::messages::check_as;

/// Checks the bytes as each of them.
pub(super) fn check(data: &[u8]) {
    if let Some(plan) = check_as::<StagePlan>(data) {
        check_plan(&plan);
    }
    if let Some(plan) = check_as::<CollectPlan>(data) {
        for pattern in plan.patterns() {
            assert_eq!(
                CollectPattern::new(pattern.text().as_bytes()).is_ok(),
                std::str::from_utf8(pattern.text().as_bytes()).is_ok()
            );
            let components = pattern.components();
            assert!(components.iter().all(|component| !matches!(*component, b"" | b"." | b"..")));
            matching(&components, data);
        }
    }
    if let Some(StageDown::Hashes(hashes)) = StageDown::parse(data) {
        assert!(hashes.len().is_multiple_of(32));
    }
    if let Some(up) = StageUp::parse(data) {
        assert_eq!(up.message(), data);
        if let StageUp::Collected(_, Collected::File(file)) = up {
            assert!(is_relative(file.name) && !file.name.starts_with(b"/"));
        }
    }
    if let Some((count, bytes)) = data.split_first()
        && let Some(set) = ChunkSet::from_bytes(bytes, usize::from(*count))
    {
        assert_eq!((0..1000).filter(|chunk| set.contains(*chunk)).count(), set.len());
        assert!(!set.contains(usize::from(*count)));
    }
    let (pattern, name) = data.split_at(data.len() / 2);
    is_like(pattern, name);
}

/// No path leads out, and each byte is in one chunk.
fn check_plan(plan: &StagePlan) {
    let mut entries = 0;
    for tree in plan.trees() {
        for entry in &tree.entries {
            let path = tree.path(entry);
            let depth = path.iter().filter(|byte| **byte == b'/').count();
            assert!(
                path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b"..")) && !path.contains(&0)
            );
            if let TreeKind::Link { target } = &entry.kind {
                let ascends = target.split(|byte| *byte == b'/').filter(|part| *part == b"..").count();
                assert!(!target.starts_with(b"/") && ascends <= depth);
            }
            entries += 1;
        }
    }
    assert!(entries <= STAGED_ENTRIES_MAX);
    let all = plan.lengths().fold(0_u64, u64::saturating_add);
    if all < 1000 * STAGED_CHUNK_BYTES {
        let cut = Chunks::of(plan);
        assert_eq!(cut.chunks.iter().map(|chunk| chunk.bytes).sum::<u64>(), all);
        assert!(cut.chunks.iter().all(|chunk| (1..=STAGED_CHUNK_BYTES).contains(&chunk.bytes)));
    }
}
