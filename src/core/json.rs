//! JSON as the API takes it, read in one pass into a tree that borrows from the body: UTF-8, no duplicate names, no NUL,
//! bounded depth and number of values, nothing after the document (S-014). What a document must contain is decided by its readers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::fault::{Fault, FaultCode, Faults};
use crate::pointer::Pointer;

#[cfg(test)]
mod tests;

/// How deep lists and objects may stand in each other. The deepest request known (a vendor's own push fields in a batch) needs 10.
pub const MAX_DEPTH: usize = 16;
/// How many values a document may hold: a full batch of ordinary requests needs a tenth, and a tree of this size stays below 10 MiB.
pub const MAX_VALUES: usize = 100_000;
/// Objects of up to this many names are compared pair by pair.
const FEW_NAMES: usize = 16;

/// A JSON value. Names and texts without escapes are borrowed from the body; the order of names is kept.
#[derive(Clone, PartialEq, Eq)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number; its value where it is a whole one that is not negative, the only kind that any request has.
    Number(Option<u64>),
    /// A string without NUL.
    Text(Cow<'a, str>),
    /// A list.
    List(Vec<Json<'a>>),
    /// An object; every name occurs once.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl Json<'_> {
    /// What kind of value it is, for the words of a fault.
    pub const fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::Text(_) => "a string",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

// Content never reaches a log (S-213).
impl fmt::Debug for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

/// Reads a whole body.
///
/// # Errors
/// `invalid_json`: one fault with line and column where the syntax is wrong or a bound is broken; otherwise every
/// duplicate name and every NUL with its pointer.
pub fn parse(body: &[u8]) -> Result<Json<'_>, Faults> {
    let text = std::str::from_utf8(body).map_err(|err| not_utf8(body, err.valid_up_to()))?;
    let mut walk = Walk { values: 0, faults: Faults::new(), stopped: None };
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Node { walk: &mut walk, at: &Pointer::ROOT, depth: 0 }.deserialize(&mut reader).and_then(|json| reader.end().map(|()| json));
    match read {
        Ok(json) if walk.faults.is_empty() => Ok(json),
        Ok(_) => Err(walk.faults),
        Err(err) => Err(walk.stopped.unwrap_or_else(|| syntax(&err)).into()),
    }
}

fn invalid(at: &Pointer<'_>, detail: impl Into<String>) -> Fault {
    Fault::new(at, FaultCode::InvalidJson, detail)
}

fn syntax(err: &serde_json::Error) -> Fault {
    // The reader's own words name what was expected, never what stands there.
    invalid(&Pointer::ROOT, format!("not JSON: {err}"))
}

fn not_utf8(body: &[u8], valid_up_to: usize) -> Faults {
    let before = &body[..valid_up_to];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    invalid(&Pointer::ROOT, format!("not UTF-8 at line {line} column {column}")).into()
}

/// What is known of the document so far.
struct Walk {
    values: usize,
    faults: Faults,
    /// A bound was broken: reading ends here.
    stopped: Option<Fault>,
}

impl Walk {
    fn stop<E: de::Error>(&mut self, fault: Fault) -> E {
        self.stopped = Some(fault);
        E::custom("a bound is broken")
    }

    fn refuse_nul(&mut self, text: &str, at: &Pointer<'_>) {
        if text.contains('\0') {
            self.faults.push(invalid(at, "a string holds U+0000, which is not allowed anywhere"));
        }
    }

    fn refuse_duplicates(&mut self, members: &[(Cow<'_, str>, Json<'_>)], at: &Pointer<'_>) {
        let mut seen = BTreeSet::new();
        for (position, (name, _)) in members.iter().enumerate() {
            let repeated = match members.len() {
                ..=FEW_NAMES => members[..position].iter().any(|(earlier, _)| earlier == name),
                _ => !seen.insert(name),
            };
            if repeated {
                self.faults.push(invalid(&at.name(name), "the name occurs twice in its object"));
            }
        }
    }
}

/// One value on its way in.
struct Node<'w, 'p> {
    walk: &'w mut Walk,
    at: &'p Pointer<'p>,
    /// How many lists and objects stand around it.
    depth: usize,
}

impl Node<'_, '_> {
    fn go_deeper<E: de::Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth <= MAX_DEPTH {
            return Ok(());
        }
        let fault = invalid(self.at, format!("lists and objects stand more than {MAX_DEPTH} deep"));
        Err(self.walk.stop(fault.over(MAX_DEPTH, self.depth)))
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = Json<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        self.walk.values += 1;
        if self.walk.values > MAX_VALUES {
            let fault = invalid(&Pointer::ROOT, format!("the document holds more than {MAX_VALUES} values"));
            return Err(self.walk.stop(fault));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(u64::try_from(number).ok()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(Some(number)))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Json<'de>, E> {
        Ok(Json::Number(None))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Json<'de>, E> {
        self.walk.refuse_nul(text, self.at);
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Json<'de>, E> {
        self.walk.refuse_nul(text, self.at);
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Json<'de>, A::Error> {
        self.go_deeper()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Node { walk: self.walk, at: &self.at.index(items.len()), depth: self.depth })? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Json<'de>, A::Error> {
        self.go_deeper()?;
        let mut members = Vec::new();
        while let Some(Name(name)) = map.next_key()? {
            self.walk.refuse_nul(&name, self.at);
            let value = map.next_value_seed(Node { walk: self.walk, at: &self.at.name(&name), depth: self.depth })?;
            members.push((name, value));
        }
        self.walk.refuse_duplicates(&members, self.at);
        Ok(Json::Object(members))
    }
}

/// A name in an object, borrowed where it can be; serde's own `Cow` always copies.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}
