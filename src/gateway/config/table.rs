//! Tables merged from every layer, and the faults of a whole reading: which names are known, what an unknown one was meant to be.
//! How a single value is read is decided in `value`.

use std::cell::RefCell;
use std::rc::Rc;

use tidings_core::nearest::nearest;

use super::inventory::Inventory;
use super::layers::{Node, Origin, Value};
use super::value::Setting;
use super::{ConfigError, Fault, Settings, Sources, names};

/// What reading one configuration has come to so far.
pub(super) struct Reader<'s> {
    pub(super) sources: &'s Sources,
    faults: RefCell<Vec<Fault>>,
    unresolved: RefCell<Vec<String>>,
    inventory: RefCell<Inventory>,
}

impl<'s> Reader<'s> {
    pub(super) fn new(sources: &'s Sources) -> Self {
        Self { sources, faults: RefCell::default(), unresolved: RefCell::default(), inventory: RefCell::default() }
    }

    /// The document as a whole.
    pub(super) fn root(&'s self, layers: Vec<Rc<Node>>) -> Table<'s> {
        Table::new(self, String::new(), layers)
    }

    /// The settings, unless something was wrong.
    pub(super) fn finish(&self, settings: Settings) -> Result<Settings, ConfigError> {
        let faults = self.faults.take();
        if !faults.is_empty() {
            return Err(ConfigError { faults });
        }
        Ok(Settings { unresolved: self.unresolved.take(), inventory: self.inventory.take(), ..settings })
    }

    pub(super) fn is_clean(&self) -> bool {
        self.faults.borrow().is_empty()
    }

    /// Notes what stands in a setting, for telling this reading from others.
    pub(super) fn note(&self, setting: &str, value: &[u8]) {
        self.inventory.borrow_mut().note(setting, value);
    }

    /// Notes a secret that is not there and does not have to be.
    pub(super) fn leave_unresolved(&self, entry: String) {
        self.unresolved.borrow_mut().push(entry);
    }

    fn note_table(&self, name: String) {
        self.inventory.borrow_mut().note_table(name);
    }

    pub(super) fn fault(&self, setting: &str, source: Option<&Origin>, text: impl Into<String>) {
        let source = source.map(ToString::to_string);
        self.faults.borrow_mut().push(Fault { setting: setting.to_owned(), source, text: text.into() });
    }
}

/// How a name looks in a variable.
fn folded(name: &str) -> String {
    name.to_lowercase().replace(['-', '.'], "_")
}

/// A table, merged from every layer that has one.
pub(super) struct Table<'r> {
    pub(super) reader: &'r Reader<'r>,
    name: String,
    /// Tables and names in variables, the lowest first.
    layers: Vec<Rc<Node>>,
    /// What was asked for: whatever else stands here is unknown.
    known: RefCell<Vec<String>>,
}

impl<'r> Table<'r> {
    pub(super) fn new(reader: &'r Reader<'r>, name: String, layers: Vec<Rc<Node>>) -> Self {
        Self { reader, name, layers, known: RefCell::default() }
    }

    /// One setting, present or not.
    pub(super) fn get(&self, key: &str) -> Setting<'r> {
        self.known.borrow_mut().push(key.to_owned());
        let layers = self.layers.iter().filter_map(|layer| match &layer.value {
            Value::Table(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node.clone()),
            Value::Within(name, node) => (folded(name) == folded(key)).then(|| node.clone()),
            _ => None,
        });
        Setting::new(self.reader, self.full(key), layers.collect())
    }

    /// Reads an inner table; what is left over in it is unknown.
    pub(super) fn table<T>(&self, key: &str, read: impl FnOnce(&Table<'r>) -> T) -> T {
        let table = self.get(key).into_table();
        let result = read(&table);
        table.refuse_the_rest();
        result
    }

    /// The names in a table whose names are the operator's own, in the order of the file. A variable means the name that it
    /// fits; where it fits none, it makes one in lower case with `-` for `_`.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for layer in &self.layers {
            match &layer.value {
                Value::Table(entries) => {
                    let new: Vec<_> = entries.iter().map(|(name, _)| name).filter(|name| !names.contains(name)).cloned().collect();
                    names.extend(new);
                }
                Value::Within(spelled, _) => {
                    let fitting: Vec<&str> = names.iter().map(String::as_str).filter(|name| folded(name) == folded(spelled)).collect();
                    if fitting.len() > 1 {
                        let text = format!("the variable fits {} alike; rename one or set it in the file", fitting.join(" and "));
                        self.reader.fault(&self.full(spelled), Some(&layer.origin), text);
                    } else if fitting.is_empty() {
                        names.push(spelled.replace('_', "-"));
                    }
                }
                _ => {}
            }
        }
        for name in &names {
            self.reader.note_table(self.full(name));
        }
        names
    }

    /// Says nothing about what else stands here, since what may stand here is itself in doubt.
    pub(super) fn excuse_the_rest(&self) {
        let names = self.names();
        self.known.borrow_mut().extend(names);
    }

    /// Faults whatever else stands here.
    pub(super) fn refuse_the_rest(&self) {
        let known = self.known.borrow();
        for layer in &self.layers {
            match &layer.value {
                Value::Table(entries) => {
                    for (name, node) in entries.iter().filter(|(name, _)| !known.contains(name)) {
                        self.refuse(name, &node.origin, &known);
                    }
                }
                Value::Within(name, _) if !known.iter().any(|known| folded(known) == folded(name)) => {
                    self.refuse(name, &layer.origin, &known);
                }
                _ => {}
            }
        }
    }

    fn refuse(&self, name: &str, origin: &Origin, known: &[String]) {
        let text = match nearest(name, known.iter().map(String::as_str)) {
            Some(meant) => format!("unknown setting; did you mean {}?", self.full(meant)),
            None => format!("unknown setting; known here: {}", known.join(", ")),
        };
        self.reader.fault(&self.full(name), Some(origin), text);
    }

    /// The full name of something in here.
    pub(super) fn full(&self, key: &str) -> String {
        names::within(&self.name, key)
    }

    /// A fault about the table as a whole, or about what is not in it.
    pub(super) fn fault(&self, text: impl Into<String>) {
        self.reader.fault(&self.name, self.layers.last().map(|layer| &layer.origin), text);
    }
}
