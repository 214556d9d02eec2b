//! The frames of PMI-2: a length in six decimal characters, then a payload of that length.
//!
//! MPICH <= 4.0 and Slurm pad the length with blanks on the right, MPICH >= 4.1 on the left. Both are accepted; frames
//! are written with padding on the right.

use thiserror::Error;

/// The length of the header before each payload.
pub const HEADER_BYTES: usize = 6;

/// The longest payload that six digits can announce.
pub const PAYLOAD_BYTES_MAX: usize = 999_999;

/// The six bytes of a header are not a length.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
#[error("sent a frame without a length")]
pub struct InvalidLength;

/// Returns the length of the payload that follows the first six of `bytes`, or `None` if there are fewer.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, InvalidLength> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let digits = super::fields::trim(header);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(InvalidLength);
    }
    Ok(Some(digits.iter().fold(0, |length, digit| 10 * length + usize::from(digit - b'0'))))
}

/// Whether a line of PMI-1 begins here, as sent by a library that is initialised again.
pub fn is_line(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'c') || bytes.first() == Some(&b'\n')
}

/// Begins a frame at the end of `out`, to be completed by [`end`]. Returns where its payload begins.
pub fn begin(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[b' '; HEADER_BYTES]);
    out.len()
}

/// Completes the frame whose payload goes from `start` to the end of `out`. Removes the frame and returns `false` if the
/// payload is longer than [`PAYLOAD_BYTES_MAX`].
#[must_use]
pub fn end(start: usize, out: &mut Vec<u8>) -> bool {
    let length = out.len() - start;
    if length > PAYLOAD_BYTES_MAX {
        out.truncate(start - HEADER_BYTES);
        return false;
    }
    let digits = length.to_string();
    out[start - HEADER_BYTES..][..digits.len()].copy_from_slice(digits.as_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_may_be_padded_on_either_side() {
        assert_eq!(length(b"13    cmd=finalize;"), Ok(Some(13)));
        assert_eq!(length(b"    13cmd=finalize;"), Ok(Some(13)));
        assert_eq!(length(b"999999"), Ok(Some(PAYLOAD_BYTES_MAX)));
        assert_eq!(length(b"0     "), Ok(Some(0)));
        assert_eq!(length(b"13   "), Ok(None));
        for wrong in ["      ", "1 3   ", "-1    ", "cmd=in", "12\t   "] {
            assert_eq!(length(wrong.as_bytes()), Err(InvalidLength), "{wrong:?}");
        }
    }

    #[test]
    fn a_written_frame_is_read_and_too_long_ones_are_removed() {
        let mut out = b"before".to_vec();
        let start = begin(&mut out);
        out.extend_from_slice(b"cmd=x;");
        assert!(end(start, &mut out));
        assert_eq!(out, b"before6     cmd=x;");
        let start = begin(&mut out);
        out.resize(start + PAYLOAD_BYTES_MAX + 1, b'x');
        assert!(!end(start, &mut out));
        assert_eq!(out, b"before6     cmd=x;");
    }
}
