//! Lists of suppressions in files: our own CSV, and what providers' APIs answer. Whether an entry is right is judged by the
//! server; here it only gets a place by which people find it again.

use std::path::Path;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::{Map, Value};

use super::csv;

/// The columns that are written, and read again.
pub(super) const COLUMNS: [&str; 5] = ["address", "channel", "reason", "scope", "note"];
/// Columns of lists that say nothing to us.
const PASSED_OVER: [&str; 6] = ["id", "source", "delivery_id", "created_at", "updated_at", "expires_at"];
/// A larger file is not a list of addresses.
const LARGEST: u64 = 256 << 20;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Format {
    /// CSV with a header line (address or email, and perhaps channel, reason, scope, note), or one address in each line
    Csv,
    /// JSON of GET /v3/suppression/bounces and its like; needs --reason
    Sendgrid,
    /// JSON of "aws sesv2 list-suppressed-destinations"
    Ses,
    /// JSON of GET /message-streams/STREAM/suppressions/dump
    Postmark,
    /// JSON of GET /v3/DOMAIN/bounces and its like; needs --reason
    Mailgun,
    /// JSON of GET /suppressions
    Resend,
    /// Opt-outs of text messages: not available in this version
    Twilio,
}

impl Format {
    /// What entries are counted in.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Csv => "line",
            Self::Sendgrid | Self::Ses | Self::Postmark | Self::Mailgun | Self::Resend | Self::Twilio => "entry",
        }
    }
}

/// One entry as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its line, or its number from 1.
    pub(super) place: usize,
    pub(super) item: Value,
}

/// What a file holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) entries: Vec<Entry>,
    /// What is no entry at all.
    pub(super) refused: Vec<(usize, String)>,
}

/// Reads a whole file.
///
/// # Errors
/// When it is not what the format says.
pub(super) fn read(path: &Path, format: Format, reason: Option<&str>) -> anyhow::Result<Read> {
    let size = std::fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?.len();
    if size > LARGEST {
        bail!("{} has more than {} MiB: split it", path.display(), LARGEST >> 20);
    }
    let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{} is not UTF-8", path.display()))?;
    read_text(&text, format, reason).with_context(|| path.display().to_string())
}

fn read_text(text: &str, format: Format, reason: Option<&str>) -> anyhow::Result<Read> {
    let needed = |what: &str| reason.with_context(|| format!("these files do not say why: add --reason ({what})"));
    match format {
        Format::Csv => csv_entries(text, reason),
        Format::Sendgrid => {
            let reason = needed(
                "hard_bounce for bounces, complaint for spam_reports, unsubscribe for unsubscribes; blocks are not about addresses",
            )?;
            json_entries(text, &["result"], "email", |_| Ok(reason.to_owned()))
        }
        Format::Mailgun => {
            let reason = needed("hard_bounce for bounces, complaint for complaints, unsubscribe for unsubscribes")?;
            json_entries(text, &["items"], "address", |_| Ok(reason.to_owned()))
        }
        Format::Ses => json_entries(text, &["SuppressedDestinationSummaries"], "EmailAddress", |entry| {
            of_words(entry, "Reason", &[("BOUNCE", "hard_bounce"), ("COMPLAINT", "complaint")])
        }),
        Format::Postmark => json_entries(text, &["Suppressions"], "EmailAddress", |entry| {
            let words = [("HardBounce", "hard_bounce"), ("SpamComplaint", "complaint"), ("ManualSuppression", "manual")];
            of_words(entry, "SuppressionReason", &words)
        }),
        Format::Resend => json_entries(text, &["data"], "email", |entry| {
            of_words(entry, "origin", &[("bounce", "hard_bounce"), ("complaint", "complaint"), ("manual", "manual")])
        }),
        Format::Twilio => bail!("opt-outs of text messages cannot be kept yet: SMS is not available in this version of Tidings"),
    }
}

fn of_words(entry: &Value, field: &str, words: &[(&str, &str)]) -> Result<String, String> {
    let given = entry[field].as_str().unwrap_or_default();
    let known = words.iter().find(|(word, _)| *word == given).map(|(_, ours)| (*ours).to_owned());
    known.ok_or_else(|| format!("{field}: expected one of {}", words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ")))
}

/// Entries of one or more JSON documents, one page behind the other: a list itself, or one under a name.
fn json_entries(text: &str, lists: &[&str], address: &str, reason: impl Fn(&Value) -> Result<String, String>) -> anyhow::Result<Read> {
    let mut read = Read::default();
    let mut place = 0;
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let document = document.context("not JSON")?;
        let list = document.as_array().or_else(|| lists.iter().find_map(|name| document[*name].as_array()));
        let list = list.with_context(|| format!("expected a list, or an object with the list {:?}", lists.join(" or ")))?;
        for entry in list {
            place += 1;
            match (entry[address].as_str(), reason(entry)) {
                (Some(address), Ok(reason)) => {
                    let item = [("address", Value::from(address.trim())), ("reason", Value::from(reason))];
                    read.entries.push(Entry { place, item: item.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() });
                }
                (None, _) => read.refused.push((place, format!("{address} is missing"))),
                (_, Err(why)) => read.refused.push((place, why)),
            }
        }
    }
    Ok(read)
}

fn csv_entries(text: &str, reason: Option<&str>) -> anyhow::Result<Read> {
    let mut records = csv::records(text).map_err(|line| anyhow::anyhow!("line {line}: a quote is not closed"))?.into_iter().peekable();
    let Some(first) = records.peek() else { bail!("there is nothing in it") };
    let columns = match first.fields.as_slice() {
        // A plain list of addresses.
        [only] if only.contains('@') => vec![Some("address")],
        header => {
            let columns = header.iter().map(|name| column(name)).collect::<anyhow::Result<Vec<_>>>()?;
            records.next();
            columns
        }
    };
    if columns.iter().filter(|column| **column == Some("address")).count() != 1 {
        bail!("the first line must name the columns, one of them \"address\" or \"email\"");
    }
    let mut read = Read::default();
    for record in records {
        if record.fields.len() != columns.len() {
            let detail = format!("{} fields where the first line has {}", record.fields.len(), columns.len());
            read.refused.push((record.line, detail));
            continue;
        }
        let named = columns.iter().zip(&record.fields).filter_map(|(column, field)| Some(((*column)?.to_owned(), field.trim())));
        let mut item: Map<String, Value> = named.filter(|(_, field)| !field.is_empty()).map(|(name, field)| (name, field.into())).collect();
        if let Some(reason) = reason.filter(|_| !item.contains_key("reason")) {
            item.insert("reason".to_owned(), reason.into());
        }
        read.entries.push(Entry { place: record.line, item: Value::Object(item) });
    }
    Ok(read)
}

/// What a column is sent as; `None` for one that is passed over.
fn column(name: &str) -> anyhow::Result<Option<&'static str>> {
    let name = name.trim().to_ascii_lowercase();
    match name.as_str() {
        "email" => Ok(Some("address")),
        known if COLUMNS.contains(&known) => Ok(COLUMNS.iter().copied().find(|column| *column == known)),
        known if PASSED_OVER.contains(&known) => Ok(None),
        _ => bail!("the column {name:?} is not known: there are {}", COLUMNS.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn items(text: &str, format: Format, reason: Option<&str>) -> Vec<Value> {
        read_text(text, format, reason).unwrap().entries.into_iter().map(|entry| entry.item).collect()
    }

    #[test]
    fn what_providers_answer_is_read_page_behind_page() {
        let bounced = json!({"address": "a@example.com", "reason": "hard_bounce"});
        let complained = json!({"address": "b@example.com", "reason": "complaint"});
        let ses = r#"{"SuppressedDestinationSummaries": [{"EmailAddress": "a@example.com", "Reason": "BOUNCE", "LastUpdateTime": "2026-03-02T10:15:30Z"}], "NextToken": "x"}
            {"SuppressedDestinationSummaries": [{"EmailAddress": "b@example.com", "Reason": "COMPLAINT", "LastUpdateTime": 1772446530.1}]}"#;
        assert_eq!(items(ses, Format::Ses, None), [bounced.clone(), complained.clone()]);
        let postmark = r#"{"Suppressions": [{"EmailAddress": "a@example.com", "SuppressionReason": "HardBounce", "Origin": "Recipient",
            "CreatedAt": "2019-12-17T08:58:33-05:00"}, {"EmailAddress": "b@example.com", "SuppressionReason": "SpamComplaint"}]}"#;
        assert_eq!(items(postmark, Format::Postmark, None), [bounced.clone(), complained.clone()]);
        let resend = r#"{"object": "list", "has_more": false, "data": [{"object": "suppression", "email": "a@example.com", "origin": "bounce"},
            {"email": "b@example.com", "origin": "complaint"}]}"#;
        assert_eq!(items(resend, Format::Resend, None), [bounced.clone(), complained]);
        let sendgrid = r#"[{"created": 1443651125, "email": "a@example.com", "reason": "550 5.1.1 The email account does not exist", "status": "5.1.1"}]"#;
        assert_eq!(items(sendgrid, Format::Sendgrid, Some("hard_bounce")), std::slice::from_ref(&bounced));
        let mailgun = r#"{"items": [{"address": "a@example.com", "code": "550", "error": "No such mailbox", "created_at": "Thu, 11 Dec 2025 01:49:40 UTC"}]}"#;
        assert_eq!(items(mailgun, Format::Mailgun, Some("hard_bounce")), [bounced]);
    }

    #[test]
    fn what_a_file_does_not_say_is_not_guessed() {
        for format in [Format::Sendgrid, Format::Mailgun] {
            assert!(read_text("[]", format, None).unwrap_err().to_string().contains("--reason"));
        }
        assert!(read_text("", Format::Twilio, None).unwrap_err().to_string().contains("SMS"));
        let odd = r#"{"data": [{"email": "a@example.com", "origin": "mood"}, {"origin": "bounce"}, {"email": "b@example.com", "origin": "manual"}]}"#;
        let read = read_text(odd, Format::Resend, None).unwrap();
        let places: Vec<usize> = read.refused.iter().map(|(place, _)| *place).collect();
        assert_eq!((places, read.entries[0].place), (vec![1, 2], 3));
        assert!(read_text("{\"else\": []}", Format::Ses, None).is_err() && read_text("[", Format::Ses, None).is_err());
    }

    #[test]
    fn lines_of_csv_keep_their_numbers() {
        let read = read_text(
            "Email,Reason,created_at\na@example.com,complaint,x\nb@example.com\n\nc@example.com,,\n",
            Format::Csv,
            Some("manual"),
        );
        let read = read.unwrap();
        assert_eq!(read.entries[0], Entry { place: 2, item: json!({"address": "a@example.com", "reason": "complaint"}) });
        assert_eq!(read.entries[1], Entry { place: 5, item: json!({"address": "c@example.com", "reason": "manual"}) });
        assert_eq!(read.refused, [(3, "1 fields where the first line has 3".to_owned())]);
        assert_eq!(
            items("a@example.com\nb@example.com", Format::Csv, None),
            [json!({"address": "a@example.com"}), json!({"address": "b@example.com"})]
        );
        for wrong in ["", "reason\nx", "address,mood\na,b", "address,email\na,b", "address\n\"a"] {
            assert!(read_text(wrong, Format::Csv, None).is_err(), "{wrong}");
        }
    }
}
