//! Query parameters: what is known, once each. An unknown one is refused, never ignored.

use std::borrow::Cow;

use actix_web::HttpRequest;
use tidings_core::nearest::nearest;
use url::form_urlencoded;

use super::problem::{Code, Problem};

/// The parameters of one request.
pub(super) struct Query<'q> {
    pairs: Vec<(&'static str, Cow<'q, str>)>,
}

impl<'q> Query<'q> {
    /// Reads the parameters; only `known` ones may be there.
    ///
    /// # Errors
    /// `unknown_field`, or `invalid_field` for one that is given twice.
    pub(super) fn read(request: &'q HttpRequest, known: &'static [&'static str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(&'static str, Cow<'q, str>)> = Vec::new();
        for (name, value) in form_urlencoded::parse(request.query_string().as_bytes()) {
            let Some(name) = known.iter().find(|known| **known == name) else {
                return Err(Problem::new(Code::UnknownField, unknown(&name, known)));
            };
            if pairs.iter().any(|(other, _)| other == name) {
                return Err(Problem::new(Code::InvalidField, format!("the parameter {name} is given twice")));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// Whether one of these parameters is given.
    pub(super) fn names(request: &HttpRequest, names: &[&str]) -> bool {
        form_urlencoded::parse(request.query_string().as_bytes()).any(|(name, _)| names.contains(&&*name))
    }

    /// The value of a parameter that is there.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| &**value)
    }

    /// The value of a parameter in its own type.
    ///
    /// # Errors
    /// `invalid_field`.
    pub(super) fn parsed<T: std::str::FromStr>(&self, name: &'static str, what: &str) -> Result<Option<T>, Problem> {
        let wrong = |_| Problem::new(Code::InvalidField, format!("the parameter {name} must be {what}"));
        self.get(name).map(|value| value.parse().map_err(wrong)).transpose()
    }
}

/// The name itself is not repeated: anything may stand in a URL.
fn unknown(name: &str, known: &'static [&'static str]) -> String {
    match (nearest(name, known.iter().copied()), known) {
        (Some(meant), _) => format!("a query parameter is not known; did you mean \"{meant}\"?"),
        (None, []) => "there are no query parameters here".to_owned(),
        (None, known) => format!("a query parameter is not known; there are: {}", known.join(", ")),
    }
}
