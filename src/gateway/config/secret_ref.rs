//! Texts that stand elsewhere: `{ env = ".." }`, `{ file = ".." }`, `{ credential = ".." }`, and how each is fetched.
//! Whether a missing one is a fault is decided in `value`.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use super::Sources;
use super::layers::{Node, Value, read_bounded};

/// The forms, for the words of a fault.
pub(super) const FORMS: &str = "{ env = \"..\" }, { file = \"..\" } or { credential = \"..\" }";
/// Where systemd puts the credentials of a unit.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// The largest secret known, a chain of certificates with its key, is far below.
const LARGEST_SECRET: u64 = 64 << 10;

/// Where a text stands.
pub(super) enum Reference {
    Env(String),
    File(String),
    Credential(String),
}

/// Why it cannot be had. Never repeats it.
pub(super) enum Trouble {
    /// It is not there, as on the machine of somebody who only looks at the file.
    Missing(String),
    /// It is there and no good.
    Unusable(String),
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the variable {name}"),
            Self::File(path) => write!(f, "the file {path}"),
            Self::Credential(name) => write!(f, "the credential {name}"),
        }
    }
}

impl Reference {
    /// The reference that a table is, if it is one.
    pub(super) fn of(node: &Node) -> Option<Self> {
        let (key, inner) = match &node.value {
            Value::Table(entries) => entries.first().filter(|_| entries.len() == 1).map(|(key, inner)| (key, inner))?,
            Value::Within(key, inner) => (key, inner),
            _ => return None,
        };
        let (Value::Text(target) | Value::Spelled(target)) = &inner.value else { return None };
        match key.as_str() {
            "env" => Some(Self::Env(target.clone())),
            "file" => Some(Self::File(target.clone())),
            "credential" => Some(Self::Credential(target.clone())),
            _ => None,
        }
    }

    /// The text, byte for byte, less one newline at the end of a file. Relative paths are relative to `base`.
    pub(super) fn fetch(&self, sources: &Sources, base: &Path) -> Result<String, Trouble> {
        let text = match self {
            Self::Env(name) => {
                let value = sources.variables.get(OsStr::new(name)).ok_or_else(|| Trouble::Missing(format!("{self} is not set")))?;
                value.to_str().ok_or_else(|| Trouble::Unusable(format!("{self} is not UTF-8")))?.to_owned()
            }
            Self::File(path) => self.content(&base.join(path))?,
            Self::Credential(name) => {
                if name.is_empty() || name.contains('/') || name.starts_with('.') {
                    return Err(Trouble::Unusable(format!("{self} is not a plain name")));
                }
                let directory = sources.variables.get(OsStr::new(CREDENTIALS_DIRECTORY));
                let directory =
                    directory.ok_or_else(|| Trouble::Missing(format!("{self} cannot be read: {CREDENTIALS_DIRECTORY} is not set")))?;
                self.content(&Path::new(directory).join(name))?
            }
        };
        if text.is_empty() { Err(Trouble::Unusable(format!("{self} is empty"))) } else { Ok(text) }
    }

    fn content(&self, path: &Path) -> Result<String, Trouble> {
        let bytes = read_bounded(path, LARGEST_SECRET).map_err(|err| Trouble::Missing(format!("{self} cannot be read: {err}")))?;
        let mut text = String::from_utf8(bytes).map_err(|_| Trouble::Unusable(format!("{self} is not UTF-8")))?;
        if text.ends_with('\n') {
            text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
        }
        Ok(text)
    }
}
