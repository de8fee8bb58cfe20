//! Dumps that are whole, and all the ways in which they are not.

use super::*;

fn table(name: &str) -> &'static Table {
    TABLES.iter().find(|table| table.name == name).unwrap()
}

fn header() -> Header {
    let at = Timestamp::from_millis(1_800_000_000_000);
    let (version, source) = ("0.1.0".to_owned(), "SQLite".to_owned());
    Header { format: FORMAT, version, schema: 5, source, frozen_at: at, feed_end: 7, oldest: None, master_check: "AAAA".to_owned() }
}

fn rows() -> Vec<(&'static Table, Row)> {
    let text = |text: &str| Value::Text(text.to_owned());
    vec![
        (table("tenants"), vec![Value::Int(1), text("id"), text("grün \"\n"), text("active"), text("{}")]),
        (table("settings"), vec![text("a"), Value::Bytes(vec![0, 255, 10])]),
        (table("settings"), vec![text("b"), Value::Null]),
    ]
}

fn dump() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut writer = DumpWriter::begin(header(), &mut out);
    rows().iter().for_each(|(table, row)| writer.row(table, row, &mut out));
    assert_eq!(writer.end(&mut out)["settings"].rows, 2);
    out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Reads to the end: the rows, or the first fault.
fn read(lines: &[Vec<u8>]) -> Result<Vec<(&'static Table, Row)>, DumpFault> {
    let (mut reader, _) = DumpReader::begin(&lines[0])?;
    let mut rows = Vec::new();
    for line in &lines[1..] {
        match reader.line(line)? {
            Read::Row(table, row) => rows.push((table, row)),
            Read::End(_) => return Ok(rows),
        }
    }
    Err(reader.cut_short())
}

#[test]
fn a_dump_is_read_as_it_was_written() {
    assert_eq!(read(&dump()).unwrap(), rows());
    assert_eq!(DumpReader::begin(&dump()[0]).unwrap().1, header());
}

#[test]
fn a_dump_that_was_cut_or_altered_is_not_read_to_its_end() {
    let whole = dump();
    for length in 1..whole.len() {
        assert!(read(&whole[..length]).unwrap_err().what.contains("cut short"));
    }
    for line in 1..whole.len() - 1 {
        let mut without = whole.clone();
        without.remove(line);
        assert!(read(&without).is_err(), "line {line} is missing");
        let mut twice = whole.clone();
        twice.insert(line, whole[line].clone());
        assert!(read(&twice).is_err(), "line {line} stands twice");
    }
    for line in 0..whole.len() {
        for place in 0..whole[line].len() {
            let mut bent = whole.clone();
            bent[line][place] ^= 1;
            assert!(read(&bent).is_err(), "line {line}, byte {place}");
        }
    }
    let mut swapped = whole.clone();
    swapped.swap(2, 3);
    assert!(read(&swapped).is_err());
    let mut longer = whole;
    longer.push(longer[1].clone());
    let (mut reader, _) = DumpReader::begin(&longer[0]).unwrap();
    let read: Vec<_> = longer[1..].iter().map(|line| reader.line(line)).collect();
    let (last, before) = read.split_last().unwrap();
    assert!(before.iter().all(Result::is_ok));
    assert!(last.as_ref().unwrap_err().what.contains("behind the last line"));
}

#[test]
fn a_newer_form_is_refused_by_name() {
    let newer = Header { format: FORMAT + 1, version: "9.0.0".to_owned(), ..header() };
    let fault = DumpReader::begin(&line_of(&First { tidings_export: newer })).err().unwrap();
    assert!(fault.what.contains("format 2, of Tidings 9.0.0"), "{fault}");
    // Whatever else the header of a newer form holds.
    let strange = br#"{"tidings_export":{"format":7,"version":"9","shape":[]}}"#;
    assert!(DumpReader::begin(strange).err().unwrap().what.contains("format 7"));
    assert!(DumpReader::begin(b"hello").err().unwrap().what.contains("not what"));
}

#[test]
fn a_column_or_table_that_is_not_known_is_refused() {
    let mut lines = dump();
    lines[1] = br#"{"table":"tenants","row":{"id":1,"colour":"red"}}"#.to_vec();
    assert!(read(&lines).unwrap_err().what.contains("colour"));
    lines[1] = br#"{"table":"pigeons","row":{}}"#.to_vec();
    assert_eq!(read(&lines).unwrap_err().to_string(), "line 2 of the dump: there is no table \"pigeons\" here: use a newer binary");
}
