//! [`Pairs`]: the `name=value;` pairs of a payload.
//!
//! A value ends with a `;` that is not doubled. It may be empty and may contain anything else, also blanks and newlines.
//! MPICH 3.3 to 4.0 announces six bytes too many and sends uninitialised memory after the last `;`. MPICH >= 4.1 does not
//! double a `;` inside a value, so such a value is parsed wrong.

use std::borrow::Cow;

/// The bytes of junk that MPICH 3.3 to 4.0 sends after its last pair.
const JUNK_BYTES: usize = 6;

/// A payload, read pair by pair. Text that is not a pair is skipped.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Pairs<'a>(&'a [u8]);

impl<'a> Pairs<'a> {
    /// Reads the pairs of a frame's payload.
    pub fn of(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    /// Returns the value of the first pair of this name.
    pub fn get(self, name: &[u8]) -> Option<Cow<'a, [u8]>> {
        self.doubled().find(|pair| pair.0 == name).map(|(_, value)| undoubled(value))
    }

    /// Returns all pairs in order.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], Cow<'a, [u8]>)> {
        self.doubled().map(|(name, value)| (name, undoubled(value)))
    }

    /// Returns all pairs with each `;` still doubled.
    fn doubled(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            loop {
                let at = rest.iter().position(|&byte| byte == b'=' || byte == b';')?;
                let (name, value) = (&rest[..at], &rest[at + 1..]);
                if rest[at] == b';' {
                    rest = value;
                    continue;
                }
                if let Some(end) = end_of(value) {
                    rest = &value[end + 1..];
                    return Some((name, &value[..end]));
                }
                // Junk that begins with a `;` makes the `;` before it look doubled.
                rest = b"";
                let end = value.len().checked_sub(JUNK_BYTES + 1)?;
                return (end_of(&value[..=end]) == Some(end)).then(|| (name, &value[..end]));
            }
        })
    }
}

/// Returns the offset of the `;` that ends the value at the start of `value`.
fn end_of(value: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += value[at..].iter().position(|&byte| byte == b';')?;
        if value.get(at + 1) != Some(&b';') {
            return Some(at);
        }
        at += 2;
    }
}

fn undoubled(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.contains(&b';') {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.iter().position(|&byte| byte == b';') {
        out.extend_from_slice(&rest[..=at]);
        // `end_of` has checked that every `;` is doubled.
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// Appends a pair.
pub fn write(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
    let mut parts = value.split(|&byte| byte == b';');
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(b";;");
        out.extend_from_slice(part);
    }
    out.push(b';');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(payload: &str, expected: &[(&str, &str)]) {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pairs: Vec<_> = Pairs::of(payload.as_bytes()).iter().map(|pair| (shown(pair.0), shown(&pair.1))).collect();
        let expected: Vec<_> = expected.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(pairs, expected, "{payload:?}");
    }

    #[test]
    fn values_may_contain_anything() {
        check("cmd=kvs-put;key=msg;value=42\n;", &[("cmd", "kvs-put"), ("key", "msg"), ("value", "42\n")]);
        check("value=a;;b;;;;c;", &[("value", "a;b;;c")]);
        check("value=;;;", &[("value", ";")]);
        check("value=;x= a=b ;", &[("value", ""), ("x", " a=b ")]);
        check("value=\\n\\;", &[("value", "\\n\\")]);
        assert!(matches!(Pairs::of(b"a=b;").get(b"a"), Some(Cow::Borrowed(b"b"))));
    }

    #[test]
    fn the_first_pair_of_a_name_is_used() {
        assert_eq!(Pairs::of(b"a=1;b=2;a=3;").get(b"a").as_deref(), Some(&b"1"[..]));
        assert_eq!(Pairs::of(b"xa=1;a=2;").get(b"a").as_deref(), Some(&b"2"[..]));
        assert_eq!(Pairs::of(b"a=1;").get(b"b"), None);
    }

    #[test]
    fn text_that_is_not_a_pair_is_skipped() {
        check("", &[]);
        check("   ", &[]);
        check("cmd", &[]);
        check("cmd=x", &[]);
        check("word;cmd=x;;", &[]);
        check("word;;cmd=x;more", &[("cmd", "x")]);
        check("cmd=x;more;key=a;", &[("cmd", "x"), ("key", "a")]);
        check("=x;", &[("", "x")]);
    }

    #[test]
    fn six_bytes_of_junk_are_ignored() {
        for junk in ["\0\0\0\0\0\0", "abcdef", "a=b;cd", ";bcdef", ";value", "a;b;c;", ";;;;;;", "=====;", ";;bcd;"] {
            let payload = format!("cmd=kvs-put;key=k;value=a;;b;{junk}");
            let pairs = Pairs::of(payload.as_bytes());
            for (name, value) in [("cmd", "kvs-put"), ("key", "k"), ("value", "a;b")] {
                // Such junk cannot be told from a value.
                if name != "value" || !junk.starts_with(";") || !junk[1..].contains(';') {
                    let found = pairs.get(name.as_bytes());
                    assert_eq!(found.as_deref(), Some(value.as_bytes()), "{payload:?}");
                }
            }
        }
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        fn bytes() -> impl Strategy<Value = Vec<u8>> {
            vec(prop_oneof![Just(b';'), Just(b'='), any::<u8>()], 0..12)
        }

        proptest! {
            #[test]
            fn written_pairs_are_read(pairs in vec(("[a-z-]{1,6}", bytes()), 0..9)) {
                let mut payload = Vec::new();
                for (name, value) in &pairs {
                    write(name, value, &mut payload);
                }
                let found = Pairs::of(&payload).iter();
                let found: Vec<_> =
                    found.map(|(name, value)| (String::from_utf8(name.to_vec()).unwrap(), value.into_owned())).collect();
                prop_assert_eq!(found, pairs);
            }

            #[test]
            fn no_bytes_panic(payload in vec(prop_oneof![Just(b';'), Just(b'='), any::<u8>()], 0..60)) {
                for (name, value) in Pairs::of(&payload).iter() {
                    prop_assert!(!name.contains(&b';') && value.len() < payload.len());
                }
            }
        }
    }
}
