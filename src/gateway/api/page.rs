//! `/sandbox`: what the sandbox took, for people with a browser. Mail is hostile here: subjects and texts are escaped,
//! HTML is shown in a frame without scripts, origin or network.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::IpAddr;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tidings_core::ids::TenantId;
use tidings_core::store::SandboxFilter;
use tidings_core::words::Mode;

use super::Api;
use super::auth::{self, Scope};
use super::html::{Policy, escape, page};
use super::message::{MessageView, Opened};
use super::problem::Problem;
use super::sandbox::{self, find, newest};

/// Messages on the page.
const SHOWN: usize = 100;
/// Seconds after which the list is loaded again.
const REFRESH: &str = "<meta http-equiv=\"refresh\" content=\"3\">";
/// Larger inline images and source texts are left to the download.
const LARGE: usize = 1 << 20;

/// `GET /sandbox`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let visitor = visitor(&api, &http).await?;
    let mut rows = Vec::new();
    for tenant in visitor.tenants {
        let view = |message| Opened::open(&api.app.keyring, message).map(|opened| opened.view()).map(Row::from).ok();
        rows.extend(newest(&api, tenant, visitor.mode, SandboxFilter::default(), SHOWN, view, |_| 0).await?.0);
    }
    rows.sort_by_key(|row: &Row| Reverse(row.received_at));
    rows.truncate(SHOWN);
    let mut body = String::from("<h1>Sandbox</h1>\n");
    if rows.is_empty() {
        body.push_str("<p>Nothing yet. Mail that goes to the sandbox shows up here by itself.</p>");
    } else {
        body.push_str("<table><tr><th>Received</th><th>From</th><th>To</th><th>Subject</th></tr>\n");
        rows.iter().for_each(|row| body.push_str(&row.html));
        body.push_str("</table>");
    }
    Ok(page("Sandbox", REFRESH, &body, Policy::Plain))
}

/// `GET /sandbox/{id}`
pub(super) async fn message(http: HttpRequest, id: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let message = visible(&api, &http, &id).await?;
    let view = message.view();
    let subject = view.subject.clone().unwrap_or_else(|| "(no subject)".to_owned());
    Ok(page(&subject, "", &shown(&message, &view), Policy::ShowsMail))
}

/// `GET /sandbox/{id}/attachments/{number}`
pub(super) async fn attachment(http: HttpRequest, path: web::Path<(String, usize)>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let (id, number) = path.into_inner();
    let message = visible(&api, &http, &id).await?;
    sandbox::download(&message, number)
}

async fn visible(api: &Api, http: &HttpRequest, id: &str) -> Result<Opened, Problem> {
    let visitor = visitor(api, http).await?;
    for tenant in visitor.tenants {
        if let Some(message) = find(api, tenant, visitor.mode, id).await? {
            return Ok(message);
        }
    }
    Err(Problem::not_found())
}

/// Whose messages are shown.
struct Visitor {
    tenants: Vec<TenantId>,
    mode: Option<Mode>,
}

/// On one's own machine nobody is asked; from anywhere else a key with scope `pii` is the password.
async fn visitor(api: &Api, http: &HttpRequest) -> Result<Visitor, Problem> {
    if api.app.setup().settings.server.bind.ip().is_loopback() && is_from_here(http) {
        let tenants = api.read(|store| async move { store.tenants().await }).await?;
        return Ok(Visitor { tenants: tenants.into_iter().map(|tenant| tenant.id).collect(), mode: None });
    }
    let Some(password) = password(http) else {
        return Err(Problem::unauthorized("log in with any name and an API key as password").asking_for_password());
    };
    let caller = auth::by_key(api, super::limits::peer(http), &password).await.map_err(Problem::asking_for_password)?;
    caller.require(Scope::Pii)?;
    Ok(Visitor { tenants: vec![caller.tenant], mode: Some(caller.mode) })
}

/// Whether the browser asked for this very machine: a name that somebody made point here is not enough, nor is a proxy
/// on this machine that passes on what comes from elsewhere.
fn is_from_here(http: &HttpRequest) -> bool {
    let headers = http.headers();
    if ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"].iter().any(|name| headers.contains_key(*name)) {
        return false;
    }
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).is_some_and(is_loopback)
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn password(http: &HttpRequest) -> Option<String> {
    let (scheme, credentials) = http.headers().get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

/// One line of the list.
struct Row {
    received_at: tidings_core::time::Timestamp,
    html: String,
}

impl From<MessageView> for Row {
    fn from(view: MessageView) -> Self {
        let received_at = view.received_at.0;
        let subject = view.subject.filter(|subject| !subject.is_empty()).unwrap_or_else(|| "(no subject)".to_owned());
        let html = format!(
            "<tr><td class=\"quiet\">{received_at}</td><td>{}</td><td>{}</td><td><a href=\"/sandbox/{}\">{}</a></td></tr>\n",
            escape(&view.from),
            escape(&view.envelope_to.join(", ")),
            view.id,
            escape(&subject),
        );
        Self { received_at, html }
    }
}

fn shown(message: &Opened, view: &MessageView) -> String {
    let mut body = String::from("<p><a href=\"/sandbox\">All messages</a></p>\n");
    let subject = view.subject.as_deref().unwrap_or("(no subject)");
    // Writing to a String cannot fail.
    let _ = write!(body, "<h1>{}</h1>\n<table>", escape(subject));
    for (name, value) in [
        ("Received", view.received_at.0.to_string()),
        ("From", view.from.clone()),
        ("To", view.to.clone()),
        ("Envelope sender", view.envelope_from.clone()),
        ("Envelope recipients", view.envelope_to.join(", ")),
        ("Notification", view.notification_id.to_string()),
        ("Delivery", view.delivery_id.to_string()),
        ("Idempotency-Key", view.idempotency_key.clone()),
        ("Codes", view.codes.join(", ")),
    ] {
        let _ = writeln!(body, "<tr><th>{name}</th><td>{}</td></tr>", escape(&value));
    }
    body.push_str("</table>\n");
    if let Some(text) = &view.text {
        let _ = writeln!(body, "<h2>Text</h2>\n<pre>{}</pre>", escape(text));
    }
    if let Some(html) = &view.html {
        let _ = writeln!(body, "<h2>HTML</h2>\n{}", framed(html, message));
    }
    links(&mut body, view);
    attachments(&mut body, view);
    body.push_str("<h2>Headers</h2>\n<table>");
    for (name, value) in &view.headers {
        let _ = writeln!(body, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    body.push_str("</table>\n<h2>Source</h2>\n");
    let source = &message.raw[..message.raw.len().min(LARGE)];
    let _ = writeln!(
        body,
        "<details><summary>{} bytes</summary><pre>{}</pre></details>",
        message.raw.len(),
        escape(&String::from_utf8_lossy(source))
    );
    body
}

/// The mail's own HTML in a frame that can do nothing, with its inline images put in.
fn framed(html: &str, message: &Opened) -> String {
    let mut html = html.to_owned();
    for (id, image) in message.inline_images(LARGE) {
        html = html.replace(&format!("cid:{id}"), &image);
    }
    format!("<iframe sandbox=\"\" referrerpolicy=\"no-referrer\" title=\"The HTML of the message\" srcdoc=\"{}\"></iframe>", escape(&html))
}

fn links(body: &mut String, view: &MessageView) {
    if view.links.is_empty() {
        return;
    }
    body.push_str("<h2>Links</h2>\n<ul>");
    for link in &view.links {
        let link = escape(link);
        let _ = writeln!(body, "<li><a href=\"{link}\" rel=\"noreferrer noopener\">{link}</a></li>");
    }
    body.push_str("</ul>\n");
}

fn attachments(body: &mut String, view: &MessageView) {
    if view.attachments.is_empty() {
        return;
    }
    body.push_str("<h2>Attachments</h2>\n<ul>");
    for (number, attachment) in view.attachments.iter().enumerate() {
        let (name, kind, size) = (escape(&attachment.filename), escape(&attachment.content_type), attachment.size);
        let _ = writeln!(body, "<li><a href=\"/sandbox/{}/attachments/{number}\">{name}</a> ({kind}, {size} bytes)</li>", view.id);
    }
    body.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.9.9.9:1", "[::1]", "[::1]:8080"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "localhost.evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "::1]"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_proxy_on_this_machine_does_not_open_the_page() {
        let plain = TestRequest::default().insert_header((header::HOST, "127.0.0.1:8080"));
        assert!(is_from_here(&plain.to_http_request()));
        let proxied =
            TestRequest::default().insert_header((header::HOST, "127.0.0.1:8080")).insert_header(("x-forwarded-for", "203.0.113.9"));
        assert!(!is_from_here(&proxied.to_http_request()));
        assert!(!is_from_here(&TestRequest::default().insert_header((header::HOST, "rebound.example")).to_http_request()));
    }
}
