//! Comma-separated values as RFC 4180 has them: quotes, doubled quotes, line ends inside quotes. What the columns mean is
//! decided elsewhere.

/// One record and the line that it begins in, from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) line: usize,
    pub(super) fields: Vec<String>,
}

/// The records of a text; empty lines are none.
///
/// # Errors
/// The line of a quote that nothing closes.
pub(super) fn records(text: &str) -> Result<Vec<Record>, usize> {
    let mut chars = text.strip_prefix('\u{feff}').unwrap_or(text).chars().peekable();
    let (mut records, mut fields, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut start, mut quoted_since) = (1, 1, None);
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match (c, quoted_since) {
            ('"', Some(_)) if chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            ('"', Some(_)) => quoted_since = None,
            (c, Some(_)) => field.push(c),
            ('"', None) if field.is_empty() => quoted_since = Some(line),
            (',', None) => fields.push(std::mem::take(&mut field)),
            ('\r', None) if chars.peek() == Some(&'\n') => {}
            ('\n', None) => {
                end(&mut records, &mut fields, &mut field, start);
                start = line;
            }
            (c, None) => field.push(c),
        }
    }
    if let Some(line) = quoted_since {
        return Err(line);
    }
    end(&mut records, &mut fields, &mut field, start);
    Ok(records)
}

fn end(records: &mut Vec<Record>, fields: &mut Vec<String>, field: &mut String, line: usize) {
    fields.push(std::mem::take(field));
    let fields = std::mem::take(fields);
    if fields.iter().any(|field| !field.trim().is_empty()) {
        records.push(Record { line, fields });
    }
}

/// Fields as one line without its end.
pub(super) fn line(fields: &[String]) -> String {
    let field = |field: &String| match field.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.clone(),
    };
    fields.iter().map(field).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(usize, Vec<String>)> {
        records(text).unwrap().into_iter().map(|record| (record.line, record.fields)).collect()
    }

    #[test]
    fn records_know_their_lines() {
        let fields = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect::<Vec<_>>();
        let text = "\u{feff}address,note\r\na@example.com,\"say \"\"hi\"\"\nand go\"\r\n\r\nb@example.com,\n";
        let expected =
            [(1, fields(&["address", "note"])), (2, fields(&["a@example.com", "say \"hi\"\nand go"])), (5, fields(&["b@example.com", ""]))];
        assert_eq!(read(text), expected);
        assert_eq!(records("a\nb,\"c\n"), Err(2));
        assert!(records("").unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(fields in proptest::collection::vec("[a\",\n\r é]{0,6}", 2..4)) {
            prop_assume!(fields.iter().any(|field| !field.trim().is_empty()));
            prop_assert_eq!(read(&line(&fields)), vec![(1, fields)]);
        }

        #[test]
        fn no_text_panics(text in "[a\",\n\r]{0,40}") {
            let _ = records(&text);
        }
    }
}
