//! Typed reading of one setting: the topmost layer counts, the type decides how a variable is read, and a fault says what was
//! expected and never what stands there. Which settings there are is said by the callers.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tidings_core::time::parse_duration;

use super::MissingSecrets;
use super::layers::{self, Node, Origin, Value};
use super::secret_ref::{FORMS, Reference, Trouble};
use super::table::{Reader, Table};

/// A bundle of certificates is far below.
const LARGEST_MATERIAL: u64 = 4 << 20;

/// One setting with all that the layers say about it.
pub(super) struct Setting<'r> {
    reader: &'r Reader<'r>,
    pub(super) name: String,
    /// The lowest first; empty where it is not set.
    layers: Vec<Rc<Node>>,
}

impl<'r> Setting<'r> {
    pub(super) const fn new(reader: &'r Reader<'r>, name: String, layers: Vec<Rc<Node>>) -> Self {
        Self { reader, name, layers }
    }

    /// Whether somebody said something about it, be it right or wrong.
    pub(super) fn is_set(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Whether nobody but the compiled-in file does.
    pub(super) fn is_default(&self) -> bool {
        self.layers.last().is_none_or(|node| matches!(node.origin, Origin::Defaults))
    }

    pub(super) fn fault(&self, text: impl Into<String>) {
        self.reader.fault(&self.name, self.layers.last().map(|node| &node.origin), text);
    }

    /// The fault that it is not what it must be. Never repeats what it is.
    fn expected<T>(&self, form: &str) -> Option<T> {
        self.fault(format!("expected {form}"));
        None
    }

    /// The topmost value, the text of a variable read as TOML.
    fn typed(&self, form: &str) -> Option<Rc<Node>> {
        let node = self.layers.last()?;
        let read = match &node.value {
            Value::Spelled(text) => layers::parse_value(text, &node.origin),
            _ => Some(node.clone()),
        };
        read.or_else(|| self.expected(form))
    }

    /// A text, byte for byte, wherever it stands.
    pub(super) fn text(&self) -> Option<String> {
        self.text_of(&format!("a text, or {FORMS}"))
    }

    fn text_of(&self, form: &str) -> Option<String> {
        let node = self.layers.last()?;
        let text = match &node.value {
            Value::Text(text) | Value::Spelled(text) => Some(text.clone()),
            Value::Table(_) | Value::Within(..) => match Reference::of(node) {
                Some(reference) => self.fetch(&reference, &node.origin),
                None => self.expected(form),
            },
            Value::Integer(_) | Value::Bool(_) | Value::List(_) | Value::Other => self.expected(form),
        }?;
        // As it is read, wherever it stands: the same text in another file is no difference.
        self.reader.note(&self.name, text.as_bytes());
        Some(text)
    }

    fn fetch(&self, reference: &Reference, origin: &Origin) -> Option<String> {
        let sources = self.reader.sources;
        match (reference.fetch(sources, origin.base(&sources.directory)), sources.missing_secrets) {
            (Ok(text), _) => Some(text),
            (Err(Trouble::Missing(why)), MissingSecrets::AreTolerated) => {
                self.reader.leave_unresolved(format!("{}: {why}", self.name));
                None
            }
            (Err(Trouble::Missing(why) | Trouble::Unusable(why)), _) => {
                self.fault(why);
                None
            }
        }
    }

    /// A text of a certain form.
    pub(super) fn parsed<T>(&self, form: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text_of(form)?;
        read(&text).or_else(|| self.expected(form))
    }

    /// One word of a closed list.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        self.parsed(&quoted.join(" or "), |text| words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning))
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        self.parsed("a duration such as \"500ms\", \"90s\", \"10m\", \"24h\" or \"7d\"", |text| parse_duration(text).ok())
    }

    /// A size in bytes.
    pub(super) fn size(&self) -> Option<u64> {
        self.parsed("a size such as \"500KiB\" or \"10MiB\"", |text| {
            let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
            let unit: u64 = match &text[unit_at..] {
                "KiB" => 1 << 10,
                "MiB" => 1 << 20,
                _ => return None,
            };
            text[..unit_at].parse::<u64>().ok()?.checked_mul(unit)
        })
    }

    pub(super) fn number<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let form = format!("a whole number from {} to {}", range.start(), range.end());
        let number = match self.typed(&form)?.value {
            Value::Integer(number) => {
                self.reader.note(&self.name, &number.to_be_bytes());
                T::try_from(number).ok().filter(|number| range.contains(number))
            }
            _ => None,
        };
        number.or_else(|| self.expected(&form))
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.typed("true or false")?.value {
            Value::Bool(flag) => {
                self.reader.note(&self.name, &[u8::from(flag)]);
                Some(flag)
            }
            _ => self.expected("true or false"),
        }
    }

    /// A path, relative to the file that names it.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let text = self.parsed("a path", |text| (!text.is_empty()).then(|| text.to_owned()))?;
        Some(self.base().join(text))
    }

    /// A path, and the digest of what it leads to: an unreadable file is for whoever needs it to complain about.
    pub(super) fn material(&self) -> Option<(PathBuf, [u8; 32])> {
        let path = self.path()?;
        let content = match layers::read_bounded(&path, LARGEST_MATERIAL) {
            Err(err) if err.kind() == std::io::ErrorKind::FileTooLarge => {
                self.fault("the file is larger than 4MiB");
                return None;
            }
            read => read.unwrap_or_default(),
        };
        self.reader.note(&self.name, &content);
        Some((path, Sha256::digest(content).into()))
    }

    /// What a relative path in this setting is relative to.
    pub(super) fn base(&self) -> &Path {
        let directory = &self.reader.sources.directory;
        self.layers.last().map_or(directory, |node| node.origin.base(directory))
    }

    /// The items of a list, each as a setting of its own.
    pub(super) fn items(&self) -> Option<Vec<Setting<'r>>> {
        self.list("a list of texts such as [\"a\", \"b\"]")
    }

    /// The items of a list of something else than texts, for their faults in the form that it should have.
    pub(super) fn items_of(&self, form: &str) -> Option<Vec<Setting<'r>>> {
        self.list(form)
    }

    /// Whether it is a table of its own, and none that says where a text stands.
    pub(super) fn is_table(&self) -> bool {
        self.layers.last().is_some_and(|node| matches!(node.value, Value::Table(_)) && Reference::of(node).is_none())
    }

    /// The items of a list of tables, for their faults in the form that it should have.
    pub(super) fn tables(&self, form: &str) -> Option<Vec<Table<'r>>> {
        Some(self.list(form)?.into_iter().map(Setting::into_table).collect())
    }

    fn list(&self, form: &str) -> Option<Vec<Setting<'r>>> {
        let node = self.typed(form)?;
        let Value::List(items) = &node.value else { return self.expected(form) };
        // What stands in it is noted as it is read.
        self.reader.note(&self.name, &items.len().to_be_bytes());
        let item = |item: &Rc<Node>| Setting { reader: self.reader, name: self.name.clone(), layers: vec![item.clone()] };
        Some(items.iter().map(item).collect())
    }

    /// The tables of all layers, one above the other. A layer that has something else there is a fault.
    pub(super) fn into_table(self) -> Table<'r> {
        let mut tables = Vec::new();
        for node in &self.layers {
            let read = match &node.value {
                Value::Spelled(text) => layers::parse_value(text, &node.origin),
                _ => Some(node.clone()),
            };
            match read.filter(|node| matches!(node.value, Value::Table(_) | Value::Within(..))) {
                Some(table) => tables.push(table),
                None => self.reader.fault(&self.name, Some(&node.origin), "expected a table"),
            }
        }
        Table::new(self.reader, self.name, tables)
    }

    /// For a setting that is a text or a table: the topmost text, and above it the tables that say otherwise for some names.
    pub(super) fn text_and_tables(&self) -> (Setting<'r>, Setting<'r>) {
        let is_table = |node: &Rc<Node>| match &node.value {
            Value::Table(_) | Value::Within(..) => true,
            Value::Spelled(text) => text.trim_start().starts_with('{'),
            _ => false,
        };
        let texts = self.layers.iter().rposition(|node| !is_table(node)).map_or(0, |last| last + 1);
        let part = |layers: &[Rc<Node>]| Setting { reader: self.reader, name: self.name.clone(), layers: layers.to_vec() };
        (part(&self.layers[..texts]), part(&self.layers[texts..]))
    }
}
