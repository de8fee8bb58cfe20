//! The layers of a configuration and where each value came from: which file is read, which variables count, and in what order.
//! What a value must be is decided by its reader in `value`.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, Fault, Sources};

/// Every setting that has a default, with one sentence about it.
pub(super) const DEFAULTS: &str = include_str!("../../../config/tidings.toml");
const PREFIX: &str = "TIDINGS__";
const CONFIG_VARIABLE: &str = "TIDINGS_CONFIG";
const USUAL_FILE: &str = "tidings.toml";
/// A larger file is not a configuration.
const LARGEST_FILE: u64 = 1 << 20;

/// One value and where it came from.
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

/// Where a value came from.
#[derive(Clone)]
pub(super) enum Origin {
    Defaults,
    File { path: Rc<Path>, line: usize },
    Variable(Rc<str>),
}

impl Origin {
    /// What a relative path from here is relative to: the configuration file, or the working directory.
    pub(super) fn base<'a>(&'a self, working_directory: &'a Path) -> &'a Path {
        match self {
            Self::File { path, .. } => path.parent().unwrap_or(working_directory),
            Self::Defaults | Self::Variable(_) => working_directory,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("the built-in defaults"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

/// What stands there.
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Bool(bool),
    List(Vec<Rc<Node>>),
    /// In the order of the file.
    Table(Vec<(String, Rc<Node>)>),
    /// A number with a fraction, a date, a number beyond 64 bits: no setting is one.
    Other,
    /// The text of a variable: the type of the setting decides how it is read.
    Spelled(String),
    /// What a variable's name says: the value lies in a table, under a name in which `_` stands for `-`, `.` or `_`.
    Within(String, Rc<Node>),
}

/// All layers, the lowest first. Each variable is one of its own, in the order of their names.
pub(super) fn read(sources: &Sources) -> Result<Vec<Rc<Node>>, ConfigError> {
    let mut faults = Vec::new();
    let mut layers = Vec::new();
    match parse(DEFAULTS, |_| Origin::Defaults) {
        Ok(node) => layers.push(node),
        Err(err) => faults.push(Fault { setting: String::new(), source: Some(Origin::Defaults.to_string()), text: err.text }),
    }
    match file(sources) {
        Ok(node) => layers.extend(node),
        Err(fault) => faults.push(fault),
    }
    for (name, value) in &sources.variables {
        let Some(path) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        match value.to_str() {
            Some(value) => layers.push(variable(path, value)),
            None => {
                faults.push(Fault { setting: String::new(), source: Some(format!("variable {path}")), text: "is not UTF-8".to_owned() })
            }
        }
    }
    if faults.is_empty() { Ok(layers) } else { Err(ConfigError { faults }) }
}

/// `--config`, else `TIDINGS_CONFIG`, else `tidings.toml`: only the last may be absent.
fn file(sources: &Sources) -> Result<Option<Rc<Node>>, Fault> {
    let named = sources.config.clone().or_else(|| {
        let variable = sources.variables.get(std::ffi::OsStr::new(CONFIG_VARIABLE));
        variable.filter(|path| !path.is_empty()).map(PathBuf::from)
    });
    let may_be_absent = named.is_none();
    let path: Rc<Path> = sources.directory.join(named.unwrap_or_else(|| USUAL_FILE.into())).into();
    let fault = |text: String| Fault { setting: String::new(), source: Some(path.display().to_string()), text };

    let text = match read_bounded(&path, LARGEST_FILE) {
        Err(err) if may_be_absent && err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(fault(format!("the configuration file cannot be read: {err}"))),
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| fault("the configuration file is not UTF-8".to_owned()))?,
    };
    let origin = |line| Origin::File { path: path.clone(), line };
    parse(&text, origin).map(Some).map_err(|err| Fault { source: Some(origin(err.line).to_string()), ..fault(err.text) })
}

/// The content of a file that has no business to be larger than `limit`.
pub(super) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "the file is too large"));
    }
    Ok(content)
}

fn variable(name: &str, value: &str) -> Rc<Node> {
    let origin = Origin::Variable(name.into());
    let leaf = Rc::new(Node { origin: origin.clone(), value: Value::Spelled(value.to_owned()) });
    name[PREFIX.len()..]
        .rsplit("__")
        .fold(leaf, |inner, segment| Rc::new(Node { origin: origin.clone(), value: Value::Within(segment.to_lowercase(), inner) }))
}

/// Text that is not TOML, and where it stops being so.
struct NotToml {
    line: usize,
    text: String,
}

fn parse(text: &str, origin: impl Fn(usize) -> Origin) -> Result<Rc<Node>, NotToml> {
    let line_ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| line_ends.partition_point(|end| *end < at) + 1;
    let root = DeTable::parse(text).map_err(|err| {
        // `message` alone: the whole error shows the line, and with it what may be a secret.
        NotToml { line: err.span().map_or(1, |span| line(span.start)), text: err.message().to_owned() }
    })?;
    let value = table(root.get_ref(), &|at| origin(line(at)));
    Ok(Rc::new(Node { origin: origin(1), value }))
}

/// What the text of a variable says where its setting is not a text; `None` where it is not a TOML value.
pub(super) fn parse_value(text: &str, origin: &Origin) -> Option<Rc<Node>> {
    let parsed = DeValue::parse(text.trim()).ok()?;
    Some(node(&parsed, &|_| origin.clone(), origin.clone()))
}

fn table(table: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) -> Value {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        (key.get_ref().clone().into_owned(), node(value, origin, origin(key.span().start)))
    };
    Value::Table(entries.into_iter().map(entry).collect())
}

fn node(value: &Spanned<DeValue<'_>>, origin: &dyn Fn(usize) -> Origin, here: Origin) -> Rc<Node> {
    let value = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).map_or(Value::Other, Value::Integer),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Array(items) => Value::List(items.iter().map(|item| node(item, origin, origin(item.span().start))).collect()),
        DeValue::Table(inner) => table(inner, origin),
        DeValue::Float(_) | DeValue::Datetime(_) => Value::Other,
    };
    Rc::new(Node { origin: here, value })
}
