//! The dump as a stream of lines: written to standard output, read from a file or standard input. A chunk of rows is in
//! memory at a time, however many there are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use tidings_core::moving::{Chunk, Counted, DumpFault, DumpReader, DumpWriter, FORMAT, Header, Read, Row, Table};
use tidings_core::store::{BoxError, Origin, Sink, Source};
use tidings_core::time::Timestamp;

/// No row is longer than this: the largest body that is taken, sealed and in base64, is far below.
const LONGEST_LINE: u64 = 256 << 20;
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// How far it is, for a terminal.
struct Progress {
    is_shown: bool,
    rows: u64,
    last: Instant,
}

impl Progress {
    fn new(is_shown: bool) -> Self {
        Self { is_shown, rows: 0, last: Instant::now() }
    }

    fn count(&mut self, table: &str, rows: usize) {
        self.rows += rows as u64;
        if self.is_shown && self.last.elapsed() >= PROGRESS_EVERY {
            self.last = Instant::now();
            eprint!("\r\x1b[K{} rows, {table}", self.rows);
        }
    }

    fn end(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// The dump that is written.
pub(super) struct Sheet {
    out: BufWriter<io::Stdout>,
    writer: Option<DumpWriter>,
    frozen_at: Timestamp,
    master_check: String,
    progress: Progress,
}

impl Sheet {
    /// A dump on standard output.
    pub(super) fn to_stdout(frozen_at: Timestamp, master_check: String, shows_progress: bool) -> Self {
        Self { out: BufWriter::new(io::stdout()), writer: None, frozen_at, master_check, progress: Progress::new(shows_progress) }
    }

    /// Writes the last line; without it no import takes the dump.
    ///
    /// # Errors
    /// When it could not be written.
    pub(super) fn end(mut self) -> anyhow::Result<BTreeMap<String, Counted>> {
        self.progress.end();
        let mut line = Vec::new();
        let counted = self.writer.take().context("nothing was exported")?.end(&mut line);
        self.out.write_all(&line)?;
        self.out.flush()?;
        Ok(counted)
    }
}

#[async_trait]
impl Sink for Sheet {
    async fn begin(&mut self, origin: Origin) -> Result<(), BoxError> {
        let header = Header {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema: origin.schema,
            source: origin.kind.to_owned(),
            frozen_at: self.frozen_at,
            feed_end: origin.feed_end,
            oldest: origin.oldest,
            master_check: self.master_check.clone(),
        };
        let mut line = Vec::new();
        self.writer = Some(DumpWriter::begin(header, &mut line));
        Ok(self.out.write_all(&line)?)
    }

    async fn rows(&mut self, table: &'static Table, rows: Vec<Row>) -> Result<(), BoxError> {
        let Some(writer) = &mut self.writer else { return Err("rows came before the beginning".into()) };
        let mut lines = Vec::new();
        for row in &rows {
            writer.row(table, row, &mut lines);
        }
        self.out.write_all(&lines)?;
        self.progress.count(table.name, rows.len());
        Ok(())
    }
}

/// The dump that is read.
pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    reader: DumpReader,
    header: Header,
    /// The first row of the next chunk, where it was read to see that the last one is complete.
    ahead: Option<(&'static Table, Row)>,
    counted: Option<BTreeMap<String, Counted>>,
    progress: Progress,
}

impl Lines {
    /// Opens a file, or standard input, and reads the first line.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a dump that this binary can read.
    pub(super) fn open(path: Option<&Path>, shows_progress: bool) -> anyhow::Result<Self> {
        let mut input: Box<dyn BufRead + Send> = match path {
            Some(path) => Box::new(BufReader::new(File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?)),
            None => Box::new(BufReader::new(io::stdin())),
        };
        let Some(line) = line(&mut input).context("the dump cannot be read")? else { bail!("the dump is empty") };
        let (reader, header) = DumpReader::begin(&line)?;
        Ok(Self { input, reader, header, ahead: None, counted: None, progress: Progress::new(shows_progress) })
    }

    /// The first line.
    pub(super) const fn opened(&self) -> &Header {
        &self.header
    }

    /// What there was, once all of it was read.
    pub(super) fn counted(&mut self) -> BTreeMap<String, Counted> {
        self.counted.take().unwrap_or_default()
    }

    /// The next row; none when the dump is over and whole.
    fn row(&mut self) -> Result<Option<(&'static Table, Row)>, DumpFault> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        if self.counted.is_some() {
            return Ok(None);
        }
        let unreadable = |what: String| DumpFault { what, ..self.reader.cut_short() };
        let line = line(&mut self.input).map_err(|err| unreadable(format!("it cannot be read: {err}")))?;
        match self.reader.line(&line.ok_or_else(|| self.reader.cut_short())?)? {
            Read::Row(table, row) => Ok(Some((table, row))),
            Read::End(counted) => {
                if let Some(more) = line_after_end(&mut self.input)? {
                    return Err(self.reader.line(&more).err().unwrap_or_else(|| self.reader.cut_short()));
                }
                self.counted = Some(counted);
                Ok(None)
            }
        }
    }
}

fn line_after_end(input: &mut dyn BufRead) -> Result<Option<Vec<u8>>, DumpFault> {
    line(input).map_err(|err| DumpFault { line: 0, what: format!("its end cannot be read: {err}") })
}

/// A line without its end; none at the end of the input.
fn line(input: &mut dyn BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let length = io::Read::take(input, LONGEST_LINE).read_until(b'\n', &mut line)?;
    if length == 0 {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_none() && length as u64 == LONGEST_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
    }
    Ok(Some(line))
}

#[async_trait]
impl Source for Lines {
    fn header(&self) -> &Header {
        &self.header
    }

    async fn next(&mut self) -> Result<Option<(&'static Table, Vec<Row>)>, DumpFault> {
        let Some((table, first)) = self.row()? else {
            self.progress.end();
            return Ok(None);
        };
        let mut chunk = Chunk::default();
        chunk.add(first);
        while !chunk.is_full() {
            match self.row()? {
                Some((next, row)) if std::ptr::eq(next, table) => chunk.add(row),
                ahead => {
                    self.ahead = ahead;
                    break;
                }
            }
        }
        let rows = chunk.take();
        self.progress.count(table.name, rows.len());
        Ok(Some((table, rows)))
    }
}
