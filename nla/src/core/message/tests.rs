//! Tests of the parent module.

use super::*;
use crate::core::cause::Cause;
use crate::wire::encode;

#[test]
fn variants_with_new_names_keep_their_names_on_the_wire() {
    let check = |bytes: Vec<u8>, name: &str| {
        let found = bytes.windows(name.len()).any(|window| window == name.as_bytes());
        assert!(found, "{name}: {}", String::from_utf8_lossy(&bytes));
    };
    check(encode(&ReleaseContent::Update(Update::Overwritten(Keys::default()))), "News");
    check(encode(&RootRequest::GetFromJob { job: b"j".to_vec(), key: b"k".to_vec() }), "Elsewhere");
    check(encode(&Reply::GotFromJob(None)), "Elsewhere");
    check(encode(&Cause::ExitedEarly { in_fence: true }), "Left");
}

#[test]
fn values_and_keys_are_accepted_up_to_their_bounds() {
    let found = |bytes| Reply::GotFromJob(Some(vec![b'v'; bytes]));
    assert!(Reply::GotFromJob(None).is_from_agent() && found(VALUE_BYTES_MAX).is_from_agent());
    assert!(!found(VALUE_BYTES_MAX + 1).is_from_agent());
    let got = |bytes| {
        let result = LookUpResult::Entry(Entry::new(&vec![b'k'; bytes], b"v"));
        crate::wire::decode::<Down>(&encode(&Down::Got { namespace: NamespaceId::FIRST, result })).is_ok()
    };
    assert!(got(KEY_BYTES_MAX) && !got(KEY_BYTES_MAX + 1));
}
