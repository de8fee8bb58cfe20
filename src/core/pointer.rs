//! Where in a JSON document something stands (RFC 6901): kept on the stack while the document is walked,
//! written down only when there is a fault to report.

use std::fmt;

/// A place in a JSON document, linked to the place around it.
#[derive(Clone, Copy)]
pub struct Pointer<'a> {
    step: Option<(&'a Pointer<'a>, Step<'a>)>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> Pointer<'a> {
    /// The document as a whole.
    pub const ROOT: Pointer<'static> = Pointer { step: None };

    /// The member `name` of the object here, whether it is there or missing.
    pub const fn name(&'a self, name: &'a str) -> Pointer<'a> {
        Pointer { step: Some((self, Step::Name(name))) }
    }

    /// The element `index` of the list here.
    pub const fn index(&'a self, index: usize) -> Pointer<'a> {
        Pointer { step: Some((self, Step::Index(index))) }
    }

    /// Writes the steps; `false` once a name was left out, since nothing below it can be named either.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let Some((parent, step)) = &self.step else { return Ok(true) };
        if !parent.write(f)? {
            return Ok(false);
        }
        match step {
            Step::Index(index) => write!(f, "/{index}")?,
            Step::Name(name) if is_showable(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1"))?,
            Step::Name(_) => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether a name may be repeated in an answer. One that looks like an address or like content may not (S-213);
/// the pointer then ends at the object that holds it.
fn is_showable(name: &str) -> bool {
    name.len() <= 80 && !name.chars().any(|c| c.is_control() || c == '@')
}

impl fmt::Display for Pointer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_escaped_as_rfc_6901_says() {
        let (root, name) = (Pointer::ROOT, "a/b~c");
        assert_eq!(root.to_string(), "");
        assert_eq!(root.name("to").index(3).name(name).to_string(), "/to/3/a~1b~0c");
    }

    #[test]
    fn a_name_that_looks_like_an_address_ends_the_pointer() {
        for name in ["ada@example.com", "a\nb", &"x".repeat(81)] {
            assert_eq!(Pointer::ROOT.name("metadata").name(name).index(0).to_string(), "/metadata");
        }
    }
}
