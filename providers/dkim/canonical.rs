//! The "relaxed" form of header fields and bodies (RFC 6376 sections 3.4.2 and 3.4.4), over bytes: what relays change on the
//! way disappears in it.

/// One header field as it stands, all its lines and the last CRLF included.
pub(super) struct Field<'m> {
    pub(super) name: &'m str,
    pub(super) raw: &'m [u8],
}

/// Header and body, without the empty line between them.
pub(super) fn split(message: &[u8]) -> (&[u8], &[u8]) {
    match message.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
        Some(at) => (&message[..at + 2], &message[at + 4..]),
        None => (message, &[]),
    }
}

/// The fields of a header; lines that begin none and continue none are skipped.
pub(super) fn fields(head: &[u8]) -> Vec<Field<'_>> {
    let mut fields: Vec<Field<'_>> = Vec::new();
    let mut start = 0;
    while start < head.len() {
        let mut end = line_end(head, start);
        while matches!(head.get(end), Some(b' ' | b'\t')) {
            end = line_end(head, end);
        }
        let raw = &head[start..end];
        let name = raw.iter().position(|byte| *byte == b':').and_then(|colon| std::str::from_utf8(&raw[..colon]).ok());
        fields.extend(name.map(|name| Field { name: name.trim_end(), raw }));
        start = end;
    }
    fields
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| from + at + 1)
}

/// A field: name in lower case, unfolded, blanks collapsed, ended by CRLF.
pub(super) fn field(raw: &[u8]) -> Vec<u8> {
    let colon = raw.iter().position(|byte| *byte == b':').unwrap_or(raw.len());
    let mut out = raw[..colon].to_ascii_lowercase();
    out.truncate(out.trim_ascii_end().len());
    out.push(b':');
    let value: Vec<u8> = raw[(colon + 1).min(raw.len())..].iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    collapse(trim(&value), &mut out);
    out.extend_from_slice(b"\r\n");
    out
}

/// A body: blanks collapsed, none at line ends, no empty lines at the end, the last line ended by CRLF.
pub(super) fn body(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + 2);
    let mut written = 0;
    let mut rest = raw;
    while !rest.is_empty() {
        let (line, after) = match rest.windows(2).position(|bytes| bytes == b"\r\n") {
            Some(at) => (&rest[..at], &rest[at + 2..]),
            None => (rest, &[][..]),
        };
        let start = out.len();
        collapse(trim_end(line), &mut out);
        let is_empty = out.len() == start;
        out.extend_from_slice(b"\r\n");
        if !is_empty {
            written = out.len();
        }
        rest = after;
    }
    out.truncate(written);
    out
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trim_end(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !is_blank(*byte)).map_or(0, |last| last + 1);
    &bytes[..end]
}

fn trim(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|byte| !is_blank(*byte)).unwrap_or(bytes.len());
    trim_end(&bytes[start..])
}

/// Every run of blanks as one space.
fn collapse(bytes: &[u8], out: &mut Vec<u8>) {
    let mut was_blank = false;
    for byte in bytes {
        match (is_blank(*byte), was_blank) {
            (true, true) => {}
            (true, false) => out.push(b' '),
            (false, _) => out.push(*byte),
        }
        was_blank = is_blank(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6376 section 3.4.5.
    const EXAMPLE: &[u8] = b"A: X\r\nB : Y\t\r\n\tZ  \r\n\r\n C \r\nD \t E\r\n\r\n\r\n";

    #[test]
    fn the_example_of_the_rfc() {
        let (head, rest) = split(EXAMPLE);
        let header: Vec<u8> = fields(head).iter().flat_map(|one| field(one.raw)).collect();
        assert_eq!(header, b"a:X\r\nb:Y Z\r\n");
        assert_eq!(body(rest), b" C\r\nD E\r\n");
    }

    #[test]
    fn a_body_of_nothing_is_nothing_and_the_last_line_gets_its_end() {
        assert_eq!(body(b""), b"");
        assert_eq!(body(b"\r\n \t\r\n\r\n"), b"");
        assert_eq!(body(b"a"), b"a\r\n");
        assert_eq!(body(b"a\r\n\r\n.\r\nb \r\n"), b"a\r\n\r\n.\r\nb\r\n");
    }
}
