//! How log lines look and which of them are written: text for people on a terminal, else one JSON object for each line, always
//! on stdout. What is logged is decided where it happens.

use std::fmt;
use std::io::IsTerminal as _;
use std::sync::OnceLock;

use anyhow::Context as _;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Log, LogLevel};

/// The crates whose lines `level` is about.
const OWN_CRATES: [&str; 5] = ["tidings_gateway", "tidings_core", "tidings_providers", "tidings_store_sqlite", "tidings_store_postgres"];

/// From here on, everything that is logged in this process is written.
///
/// # Errors
/// When logging was started before, or the filter cannot be read.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(directives(log)).context("log.filter cannot be used")?;
    let is_terminal = std::io::stdout().is_terminal();
    let (started, filter): (_, Filter) = if log.is_text(is_terminal) {
        let lines = tracing_subscriber::fmt().with_target(false).with_ansi(is_terminal);
        let lines = lines.with_env_filter(filter).with_filter_reloading();
        let handle = lines.reload_handle();
        (lines.try_init(), Box::new(move |filter| handle.reload(filter).is_ok()))
    } else {
        let lines = tracing_subscriber::fmt().event_format(JsonLines).with_env_filter(filter).with_filter_reloading();
        let handle = lines.reload_handle();
        (lines.try_init(), Box::new(move |filter| handle.reload(filter).is_ok()))
    };
    started.map_err(|err| anyhow::anyhow!(err)).context("logging was started before")?;
    // Whoever could not start it does not come here, so that it is set once.
    let _ = FILTER.set(filter);
    Ok(())
}

type Filter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;
static FILTER: OnceLock<Filter> = OnceLock::new();

/// Writes by this level and filter from now on, where logging was started; in which form is fixed.
pub fn change(log: &Log) {
    let (Some(put), Ok(filter)) = (FILTER.get(), EnvFilter::try_new(directives(log))) else { return };
    if !put(filter) {
        tracing::error!("the log's filter could not be changed");
    }
}

/// `level` is about this program; of the libraries below it only warnings are written, whatever they would say more.
fn directives(log: &Log) -> String {
    let level = match log.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let libraries = if log.level == LogLevel::Error { "error" } else { "warn" };
    let own = OWN_CRATES.map(|name| format!("{name}={level}")).join(",");
    log.filter.clone().unwrap_or_else(|| format!("{libraries},{own}"))
}

/// `{"ts": .., "level": .., "msg": .., ..}` with the fields of the event after these.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        // Written piece by piece: a map would sort the fixed fields in among the others.
        let ts = format!("{:.3}", jiff::Timestamp::now());
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let message = fields.message.unwrap_or_default();
        write!(writer, "{{\"ts\":{},\"level\":{},\"msg\":{}", Value::from(ts), Value::from(level), Value::from(message))?;
        for (name, value) in fields.others {
            write!(writer, ",{}:{value}", Value::from(name))?;
        }
        writeln!(writer, "}}")
    }
}

#[derive(Default)]
struct Fields {
    message: Option<String>,
    others: Map<String, Value>,
}

impl Fields {
    fn keep(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.message = Some(text) } else { self.keep(field, text.into()) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" { self.message = Some(value.to_owned()) } else { self.keep(field, value.into()) }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_json_object_that_begins_with_the_fixed_fields() {
        let lines = Lines::default();
        let sink = Lines(lines.0.clone());
        let subscriber = tracing_subscriber::fmt().event_format(JsonLines).with_writer(move || sink.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(delivery_id = "dlv_1", attempts = 3, error.code = %"421 \"busy\"", "a {} line\nbroken", "long");
        });
        let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(written.matches('\n').count(), 1, "{written}");
        assert!(written.starts_with("{\"ts\":\"20"), "{written}");
        let line: Value = serde_json::from_str(&written).unwrap();
        assert_eq!((&line["level"], &line["msg"]), (&"warn".into(), &"a long line\nbroken".into()));
        assert_eq!((&line["delivery_id"], &line["attempts"], &line["error.code"]), (&"dlv_1".into(), &3.into(), &"421 \"busy\"".into()));
    }
}
