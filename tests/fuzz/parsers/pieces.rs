//! A packed piece of an epoch, as bytes of an agent's parent.

use nla::core::{pack, unpack};

/// Checks the bytes after the announced length, a u16.
pub(super) fn check(data: &[u8]) {
    let Some((length, packed)) = data.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length));
    let mut all = b"before".to_vec();
    match unpack(packed, length, &mut all) {
        Some(()) => {
            let plain = all.strip_prefix(b"before").expect("bytes are appended");
            assert_eq!(plain.len(), length);
            check_packed(plain);
        }
        None => assert_eq!(all, b"before"),
    }
    check_packed(data);
}

/// Packed bytes are shorter than the original, and unpack to it.
fn check_packed(plain: &[u8]) {
    let Some(packed) = pack(plain) else { return };
    assert!(packed.len() < plain.len());
    let mut all = Vec::new();
    assert_eq!(unpack(&packed, plain.len(), &mut all), Some(()));
    assert_eq!(all, plain);
    assert_eq!(unpack(&packed, plain.len() + 1, &mut Vec::new()), None);
}
