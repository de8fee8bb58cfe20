//! Attachments of a request: name, media type, bytes, and what an inline image is called.

use base64::DecodeError;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine as _};

use crate::content::Attachment;
use crate::fault::{Fault, FaultCode, Faults};
use crate::json::Json;
use crate::pointer::Pointer;

use super::fields::{Fields, Shape, list};

const SHAPE: Shape = Shape { known: &["filename", "content_type", "content", "content_id"], later: &[] };

const MAX_ATTACHMENTS: usize = 50;
const MAX_FILENAME: usize = 255;
const MAX_CONTENT_TYPE: usize = 255;
const MAX_CONTENT_ID: usize = 128;

/// What a file is that does not say what it is.
pub(crate) const UNKNOWN_TYPE: &str = "application/octet-stream";

/// The standard alphabet, padded or not.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));

pub(super) fn attachments(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Vec<Attachment> {
    let items = list(value, at, faults);
    if items.len() > MAX_ATTACHMENTS {
        let detail = format!("at most {MAX_ATTACHMENTS} attachments");
        faults.push(Fault::new(at, FaultCode::InvalidContent, detail).over(MAX_ATTACHMENTS, items.len()));
        return Vec::new();
    }
    let mut attachments: Vec<Attachment> = Vec::with_capacity(items.len());
    for (position, item) in items.iter().enumerate() {
        let at = at.index(position);
        let Some(attachment) = attachment(item, &at, faults) else { continue };
        let is_repeated = |other: &Attachment| other.content_id.is_some() && other.content_id == attachment.content_id;
        if attachments.iter().any(is_repeated) {
            let detail = "an earlier attachment has the same content_id, so cid: in the html could mean either";
            faults.add(&at.name("content_id"), FaultCode::InvalidContent, detail);
        }
        attachments.push(attachment);
    }
    attachments
}

fn attachment(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Option<Attachment> {
    let fields = Fields::open(value, at, &SHAPE, faults)?;
    let filename =
        checked(&fields, "filename", faults, is_filename, "a name of 1 to 255 characters without path, / \\ or control characters");
    let content_type =
        checked(&fields, "content_type", faults, is_media_type, "a media type such as \"text/calendar; method=REQUEST\", not multipart");
    let content_id =
        checked(&fields, "content_id", faults, is_content_id, "1 to 128 characters of [A-Za-z0-9_.+@-], without angle brackets");
    for name in ["filename", "content"].into_iter().filter(|name| fields.get(name).is_none()) {
        faults.add(&fields.at(name), FaultCode::InvalidContent, format!("{name} is needed"));
    }
    let content = BASE64
        .decode(fields.text("content", faults)?)
        .map_err(|err| faults.add(&fields.at("content"), FaultCode::InvalidContent, where_not_base64(&err)))
        .ok();
    let content_type = content_type.unwrap_or(UNKNOWN_TYPE).to_owned();
    Some(Attachment { filename: filename?.to_owned(), content_type, content: content?, content_id: content_id.map(str::to_owned) })
}

/// The text of a field that must have a form.
fn checked<'j>(fields: &Fields<'j>, name: &'j str, faults: &mut Faults, is_right: fn(&str) -> bool, form: &str) -> Option<&'j str> {
    let text = fields.text(name, faults)?;
    if is_right(text) {
        return Some(text);
    }
    faults.add(&fields.at(name), FaultCode::InvalidContent, format!("expected {form}"));
    None
}

fn where_not_base64(err: &DecodeError) -> String {
    match err {
        DecodeError::InvalidByte(offset, _) => {
            format!("not base64 at offset {offset}: the standard alphabet (with + and /), without line breaks")
        }
        DecodeError::InvalidLastSymbol { offset, .. } => {
            format!("not base64 at offset {offset}: the last character is not one that an encoder writes")
        }
        DecodeError::InvalidLength(length) => format!("not base64: {length} characters cannot be whole bytes, so it may have been cut off"),
        DecodeError::InvalidPadding => "not base64: the padding is wrong".to_owned(),
    }
}

fn is_filename(text: &str) -> bool {
    // A path is refused, not cut: what the application meant is for the application to say.
    !text.trim().is_empty() && text.chars().count() <= MAX_FILENAME && !text.chars().any(|c| c.is_control() || matches!(c, '/' | '\\'))
}

fn is_content_id(text: &str) -> bool {
    (1..=MAX_CONTENT_ID).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'+' | b'@' | b'-'))
}

/// `type/subtype` with parameters (RFC 2045 section 5.1); not multipart, which needs parts.
fn is_media_type(text: &str) -> bool {
    let (kind, mut parameters) = text.split_at(text.find(';').unwrap_or(text.len()));
    let Some((top, sub)) = kind.trim_ascii_end().split_once('/') else { return false };
    if text.len() > MAX_CONTENT_TYPE || !is_token(top) || !is_token(sub) || top.eq_ignore_ascii_case("multipart") {
        return false;
    }
    while let Some(rest) = parameters.strip_prefix(';') {
        let Some((name, value)) = rest.split_once('=') else { return false };
        let end = match value.strip_prefix('"') {
            Some(quoted) => end_of_quotes(quoted).map(|end| end + 1),
            None => Some(value.find([';', ' ']).unwrap_or(value.len())).filter(|end| is_token(&value[..*end])),
        };
        let (true, Some(end)) = (is_token(name.trim_ascii()), end) else { return false };
        parameters = value[end..].trim_ascii_start();
    }
    parameters.is_empty()
}

/// The length of a quoted string after its opening quote, the closing one included.
fn end_of_quotes(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return Some(position + 1),
            b' '..=b'~' => escaped = byte == b'\\' && !escaped,
            _ => return None,
        }
    }
    None
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_keep_their_parameters_and_nothing_slips_in() {
        for right in [
            "text/plain",
            "text/calendar; method=REQUEST; charset=UTF-8",
            "text/plain;charset=utf-8",
            "application/vnd.api+json",
            "text/plain; name=\"a; b=\\\"c\\\".txt\"",
            "text/plain ; a=b",
        ] {
            assert!(is_media_type(right), "{right}");
        }
        for wrong in [
            "",
            "text",
            "text/",
            "/plain",
            "text/plain;",
            "text/plain; charset",
            "text/plain; charset=",
            "text/plain; a=\"b",
            "text/pl ain",
            "text/plain\r\nX-Evil: 1",
            "text/plain; a=\"b\r\nX: 1\"",
            "text/plain; a=b c",
            "text/plain; a=é",
            "multipart/mixed; boundary=x",
            "text/plain, text/html",
            " text/plain",
        ] {
            assert!(!is_media_type(wrong), "{wrong:?}");
        }
    }
}
