//! `/docs` and `/openapi.json`: what this version serves, and what its words mean. Every problem's `type` opens here.

use std::fmt::Write as _;

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use tidings_core::state::{Certainty, State};
use tidings_core::status::Status;
use tidings_core::words::{AttemptOutcome, Reason, WaitReason};

use super::html::{Policy, page};
use super::problem::{Code, Problem};
use super::{meanings, reference};

const INDEX: &str = include_str!("pages/index.html");

/// `GET /openapi.json`
pub(super) async fn openapi() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(reference::OPENAPI)
}

/// `GET /docs`
pub(super) async fn index() -> HttpResponse {
    let mut codes = String::new();
    for code in Code::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(
            codes,
            "<tr><td><a href=\"/docs/errors/{word}\">{word}</a></td><td>{}</td><td>{}</td></tr>",
            code.status().as_u16(),
            code.title(),
            word = code.as_str()
        );
    }
    page("API", "", &INDEX.replace("{{codes}}", &codes).replace("{{reference}}", reference::html()), Policy::Plain)
}

/// `GET /docs/errors/{code}`
pub(super) async fn error(code: web::Path<String>) -> Result<HttpResponse, Problem> {
    let code = Code::ALL.iter().find(|known| known.as_str() == *code).ok_or_else(Problem::not_found)?;
    let again =
        if code.is_retryable() { "The same request under the same key may succeed." } else { "Repeating the same request does not help." };
    let body = format!(
        "<p><a href=\"/docs\">API</a></p>\n<h1>{}</h1>\n<p><code>{}</code>, HTTP status {}.</p>\n<p>{}</p>\n<p>{again}</p>",
        code.title(),
        code.as_str(),
        code.status().as_u16(),
        code.advice(),
    );
    Ok(page(code.title(), "", &body, Policy::Plain))
}

/// `GET /docs/reasons`
pub(super) async fn reasons() -> HttpResponse {
    let mut body = String::from(
        "<p><a href=\"/docs\">API</a></p>\n<h1>Words</h1>\n<p>These lists grow: a client must bear words it does not know.</p>\n",
    );
    table(&mut body, "status of a notification", Status::ALL.iter().map(|word| (word.as_str(), meanings::of_status(*word))));
    table(&mut body, "state of a delivery", State::ALL.iter().map(|word| (word.as_str(), meanings::of_state(*word))));
    table(&mut body, "certainty", Certainty::ALL.iter().map(|word| (word.as_str(), meanings::of_certainty(*word))));
    table(&mut body, "reason", Reason::ALL.iter().map(|word| (word.as_str(), meanings::of_reason(*word))));
    table(&mut body, "wait_reason", WaitReason::ALL.iter().map(|word| (word.as_str(), meanings::of_wait(*word))));
    table(&mut body, "outcome of an attempt", AttemptOutcome::ALL.iter().map(|word| (word.as_str(), meanings::of_outcome(*word))));
    page("Words", "", &body, Policy::Plain)
}

fn table(body: &mut String, title: &str, words: impl Iterator<Item = (&'static str, &'static str)>) {
    let _ = writeln!(body, "<h2>{title}</h2>\n<table>");
    for (word, meaning) in words {
        let _ = writeln!(body, "<tr><td><code>{word}</code></td><td>{meaning}</td></tr>");
    }
    body.push_str("</table>\n");
}
