//! The last words of a remote shell.

use nla::bootstrap::fuzzing::judge_shell;
use nla::core::limits::TEXT_BYTES_MAX;

/// Checks the bytes as what a remote shell wrote to standard error, with several exit codes.
pub(super) fn check(data: &[u8]) {
    let said = String::from_utf8_lossy(data);
    for code in [None, Some(0), Some(127), Some(255)] {
        let failure = judge_shell(code, &said);
        assert!(!failure.words.is_empty() || !said.trim().is_empty());
        assert!(failure.words.len() <= TEXT_BYTES_MAX);
        assert!(!failure.words.contains('\n'), "more than one line: {failure:?}");
    }
}
