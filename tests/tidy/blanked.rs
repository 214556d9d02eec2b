//! Blanks out comments and strings, so that rules look at code only.

/// Replaces comments and the contents of quotes by blanks. The number of lines stays the same.
pub(crate) fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let blank =
        |out: &mut Vec<u8>, part: &[u8]| out.extend(part.iter().map(|&byte| if byte == b'\n' { byte } else { b' ' }));
    while at < bytes.len() {
        let rest = &bytes[at..];
        let after_name = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let length = if rest.starts_with(b"//") {
            rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"\"") {
            string_length(rest)
        } else if let Some(length) = raw_string_length(rest).filter(|_| !after_name || bytes[at - 1] == b'b') {
            length
        } else if let Some(length) = char_length(rest) {
            length
        } else {
            out.push(bytes[at]);
            at += 1;
            continue;
        };
        blank(&mut out, &rest[..length]);
        at += length;
    }
    String::from_utf8(out).unwrap_or_default()
}

fn string_length(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let hashes = rest.strip_prefix(b"r")?.iter().take_while(|&&byte| byte == b'#').count();
    (rest.get(1 + hashes) == Some(&b'"')).then(|| {
        let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
        let body = &rest[hashes + 2..];
        let found = body.windows(end.len()).position(|window| window == end);
        found.map_or(rest.len(), |found| hashes + 2 + found + end.len())
    })
}

/// Returns the length of a character literal, or `None` for a lifetime.
fn char_length(rest: &[u8]) -> Option<usize> {
    let body = rest.strip_prefix(b"'")?;
    if body.first() == Some(&b'\\') {
        return body.iter().skip(2).position(|&byte| byte == b'\'').map(|end| end + 4);
    }
    let text = std::str::from_utf8(&body[..body.len().min(4)]);
    let valid = match &text {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&body[..error.valid_up_to()]).ok()?,
    };
    let first = valid.chars().next()?.len_utf8();
    (body.get(first) == Some(&b'\'')).then_some(first + 2)
}
