//! Pages for people: plain HTML, no scripts, no request to anywhere else. Everything that comes from outside is escaped.

use actix_web::HttpResponse;
use actix_web::http::header;

const STYLE: &str = include_str!("pages/style.css");

/// Text that cannot be anything but text, in content and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// What a page may load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// Our style sheet.
    Plain,
    /// Also the styles and embedded images of a mail in a sandboxed frame.
    ShowsMail,
}

/// A whole page. `title` is escaped here, `head` and `body` are HTML.
pub(super) fn page(title: &str, head: &str, body: &str, policy: Policy) -> HttpResponse {
    let rules = match policy {
        Policy::Plain => "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        Policy::ShowsMail => {
            "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        }
    };
    let title = escape(title);
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/html; charset=utf-8"))
        .insert_header((header::CONTENT_SECURITY_POLICY, rules))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .body(format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} - Tidings</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"stylesheet\" href=\"/docs/style.css\">{head}</head>\n\
             <body>\n{body}\n</body></html>\n"
        ))
}

/// `GET /docs/style.css`
pub(super) async fn style() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/css; charset=utf-8"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(STYLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(escape("<b a=\"x\" b='y'>&é</b>"), "&lt;b a=&quot;x&quot; b=&#39;y&#39;&gt;&amp;é&lt;/b&gt;");
    }
}
