//! How a setting is called: the keys on the way to it as TOML writes them, `dkim."shop.example.com".selectors`, so that a name
//! that holds dots can be told from a table in a table.

use std::borrow::Cow;

/// The full name of what is called `key` in a table; the document as a whole has no name.
pub(super) fn within(table: &str, key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let key = if is_bare { Cow::Borrowed(key) } else { format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")).into() };
    if table.is_empty() { key.into_owned() } else { format!("{table}.{key}") }
}

/// The same place as RFC 6901 writes it.
pub(super) fn pointer(name: &str) -> String {
    let mut pointer = String::new();
    if !name.is_empty() {
        pointer.push('/');
    }
    let (mut is_quoted, mut chars) = (false, name.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => pointer.push('/'),
            '\\' if is_quoted => chars.next().into_iter().for_each(|c| push(&mut pointer, c)),
            c => push(&mut pointer, c),
        }
    }
    pointer
}

fn push(pointer: &mut String, c: char) {
    match c {
        '~' => pointer.push_str("~0"),
        '/' => pointer.push_str("~1"),
        c => pointer.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_holds_dots_is_one_step_of_the_pointer() {
        for (keys, name, at) in [
            (&["server", "admin_bind"][..], "server.admin_bind", "/server/admin_bind"),
            (&["dkim", "shop.example.com", "selectors"], "dkim.\"shop.example.com\".selectors", "/dkim/shop.example.com/selectors"),
            (&["categories", "a/b~c.d"], "categories.\"a/b~c.d\"", "/categories/a~1b~0c.d"),
            (&["accounts", "a\"b\\.", "x"], "accounts.\"a\\\"b\\\\.\".x", "/accounts/a\"b\\./x"),
            (&["", "x"], "\"\".x", "//x"),
            (&[], "", ""),
        ] {
            assert_eq!(keys.iter().fold(String::new(), |table, key| within(&table, key)), name);
            assert_eq!(pointer(name), at, "{name}");
        }
    }
}
