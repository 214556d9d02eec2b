//! Finds `name=value` in a line of tokens separated by blanks.
//!
//! Only a blank separates tokens (clients do not accept a tab), and there is no quoting. A value may contain anything but
//! a newline, also `=` and blanks (Open MPI pads base64 with blanks). Where a value ends depends on the field, so each
//! caller chooses one of these functions. A name is found only at the start of a token. Nothing here allocates.

/// Returns the value of `name` up to the next blank.
pub fn word<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = rest(line, name)?;
    Some(&value[..blank(value).unwrap_or(value.len())])
}

/// Returns the value of `name` up to the end of the line, including blanks.
pub fn rest<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    split(line, name).map(|(_, value)| value)
}

/// Returns the value of `name` up to ` next=`, or to the end of the line if there is none.
pub fn until<'a>(line: &'a [u8], name: &[u8], next: &[u8]) -> Option<&'a [u8]> {
    let value = rest(line, name)?;
    // The text right after the `=` is not a token of its own.
    let Some(first_blank) = blank(value) else { return Some(value) };
    let Some((head, _)) = split(&value[first_blank + 1..], next) else { return Some(value) };
    // The head ends with the blank before `next`, unless `next` follows the first blank.
    let end = if head.is_empty() { first_blank } else { first_blank + head.len() };
    Some(&value[..end])
}

/// Returns the value of `name` with the words after it that contain no `=`, without trailing blanks.
///
/// For fields that must be one word, so that the caller notices a second word.
pub fn phrase<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = rest(line, name)?;
    let mut end = blank(value).unwrap_or(value.len());
    let mut at = end;
    while at < value.len() {
        let token = &value[at + 1..];
        let token = &token[..blank(token).unwrap_or(token.len())];
        if token.contains(&b'=') {
            break;
        }
        at += 1 + token.len();
        if !token.is_empty() {
            end = at;
        }
    }
    Some(&value[..end])
}

/// Returns the text before the token `name=...` and everything after its `=`.
pub fn split<'a>(line: &'a [u8], name: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut at = 0;
    loop {
        let token = &line[at..];
        if let Some(value) = token.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some((&line[..at], value));
        }
        at += blank(token)? + 1;
    }
}

/// Returns the decimal number that the bytes represent, if they do.
pub fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Appends a number in decimal.
///
/// Avoids std's formatting, which spreads over pages of code and allocates: each rank of a node sends a number when it
/// arrives at a fence, with cold caches.
pub fn write_number(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns the bytes without the blanks at both ends.
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = bytes {
        bytes = rest;
    }
    bytes
}

fn blank(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUT: &[u8] = b"cmd=put kvsname=k key=xkey value=a =b key=z ";

    #[track_caller]
    fn check(found: Option<&[u8]>, expected: Option<&str>) {
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(found.map(show), expected.map(str::to_owned));
    }

    #[test]
    fn a_name_is_found_only_at_the_start_of_a_token() {
        check(word(PUT, b"key"), Some("xkey"));
        check(word(PUT, b"name"), None);
        check(word(b"cmd=a  key=b", b"key"), Some("b"));
        check(word(b"cmd=a\tkey=b", b"key"), None);
        check(word(b"key", b"key"), None);
        check(word(b"", b"key"), None);
        check(word(b"key=", b"key"), Some(""));
    }

    #[test]
    fn a_rest_keeps_every_blank_and_equals_sign() {
        check(rest(PUT, b"value"), Some("a =b key=z "));
        check(rest(b"value= x", b"value"), Some(" x"));
    }

    #[test]
    fn until_stops_only_at_the_next_field() {
        let line = b"cmd=publish_name service=svc two words port=tag#0$ x";
        check(until(line, b"service", b"port"), Some("svc two words"));
        check(until(line, b"port", b"service"), Some("tag#0$ x"));
        check(until(b"service=port=x port=y", b"service", b"port"), Some("port=x"));
        check(until(b"service=a port=b", b"service", b"port"), Some("a"));
        check(until(b"service=a  port=b", b"service", b"port"), Some("a "));
        check(until(b"service= port=b", b"service", b"port"), Some(""));
        check(until(b"service=a b", b"service", b"port"), Some("a b"));
    }

    #[test]
    fn a_phrase_includes_bare_words() {
        check(phrase(b"key=a b c value=d", b"key"), Some("a b c"));
        check(phrase(b"key=a   ", b"key"), Some("a"));
        check(phrase(b"key=a b=c d", b"key"), Some("a"));
        check(phrase(b"key= x", b"key"), Some(" x"));
        check(phrase(b"key=", b"key"), Some(""));
    }

    #[test]
    fn numbers_beyond_their_type_are_refused() {
        assert_eq!(number::<u32>(b"4294967295"), Some(u32::MAX));
        assert_eq!(number::<u32>(b"4294967296"), None);
        assert_eq!(number::<i32>(b"-1"), Some(-1));
        assert_eq!(number::<i32>(b""), None);
        assert_eq!(number::<i32>(b"1x"), None);
        assert_eq!(number::<i32>(b"\xff"), None);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn never_panics(line in vec(prop_oneof![Just(b' '), Just(b'='), Just(b'k'), any::<u8>()], 0..40)) {
                word(&line, b"k");
                phrase(&line, b"k");
                until(&line, b"k", b"kk");
                trim(&line);
            }

            #[test]
            fn a_written_number_is_read(value in any::<usize>(), small in 0_usize..100) {
                for value in [value, small, usize::MAX] {
                    let mut text = Vec::new();
                    write_number(value, &mut text);
                    prop_assert_eq!(number::<usize>(&text), Some(value));
                    prop_assert_eq!(text, value.to_string().into_bytes());
                }
            }

            #[test]
            fn the_last_field_is_returned_whole(value in vec(any::<u8>(), 0..60)) {
                let mut line = b"cmd=x key=k value=".to_vec();
                line.extend_from_slice(&value);
                prop_assert_eq!(rest(&line, b"value"), Some(value.as_slice()));
            }
        }
    }
}
