//! `/v1/deliveries/{id}`: the whole timeline of one delivery, and what was said in it while that is kept.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tidings_core::address::Mailbox;
use tidings_core::content::{Attachment, Content, EmailContent};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::secrets::CannotOpen;
use tidings_core::store::StoredNotification;
use tidings_core::words::Channel;

use super::auth::{self, Caller, Scope};
use super::problem::{Code, Problem};
use super::query::Query;
use super::view::{Opened, Pairs, to_json};
use super::{Api, json, notifications};
use crate::sealed;

/// `GET /v1/deliveries/{id}`
pub(super) async fn by_id(http: HttpRequest, id: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    Query::read(&http, &[])?;
    let stored = find(&api, &caller, &id).await?;
    let former_accounts = notifications::former_accounts(&api, &caller, &stored.deliveries).await?;
    let body = notifications::reader(&api, &caller, &former_accounts).render_delivery(&stored).map_err(|err| Problem::internal(&err))?;
    let version = stored.deliveries.first().map_or(0, |stored| stored.delivery.version);
    let mut answer = HttpResponse::Ok();
    answer.insert_header((header::ETAG, format!("\"{version}\"")));
    Ok(json(answer, body))
}

/// `GET /v1/deliveries/{id}/content`
pub(super) async fn content(http: HttpRequest, id: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    caller.require(Scope::Pii)?;
    Query::read(&http, &[])?;
    let stored = find(&api, &caller, &id).await?;
    let (tenant, mode, id) = (caller.tenant, caller.mode, stored.id);
    let content = api.read(move |store| async move { store.listing().content(tenant, mode, id).await }).await?;
    let body = content.and_then(|content| content.body).ok_or_else(erased)?;
    let answer = shown(&api, &stored, &body).map_err(|err| Problem::internal(&err))?.ok_or_else(erased)?;
    Ok(json(HttpResponse::Ok(), answer))
}

fn erased() -> Problem {
    Problem::new(Code::ContentErased, "the content of this delivery is no longer kept")
}

/// A notification with the one delivery that is asked for.
async fn find(api: &Api, caller: &Caller, id: &str) -> Result<StoredNotification, Problem> {
    let id: DeliveryId = id.parse().map_err(|_| Problem::not_found())?;
    let (tenant, mode) = (caller.tenant, caller.mode);
    let found = api.read(move |store| async move { store.listing().delivery(tenant, mode, id).await }).await?;
    found.ok_or_else(Problem::not_found)
}

/// The content as the caller gave it. `None` where the address was erased: it was part of what was said.
fn shown(api: &Api, stored: &StoredNotification, body: &[u8]) -> Result<Option<Vec<u8>>, CannotOpen> {
    let keyring = &api.app.keyring;
    let Some(delivery) = stored.deliveries.first() else { return Ok(None) };
    let opened = Opened::open(keyring, delivery)?;
    let Some(address) = &opened.address else { return Ok(None) };
    let Content::Email(email) = sealed::open_content(keyring, stored.id, body)?;
    let view = ContentView {
        id: delivery.delivery.id,
        notification_id: stored.id,
        channel: delivery.delivery.channel,
        to: &address.written,
        email: EmailView::of(&email),
    };
    Ok(Some(to_json(&view)))
}

#[derive(Serialize)]
struct ContentView<'a> {
    id: DeliveryId,
    notification_id: NotificationId,
    channel: Channel,
    to: &'a str,
    email: EmailView<'a>,
}

/// The fields of `email` in a request; `from` is the author that was found where the request named none.
#[derive(Serialize)]
struct EmailView<'a> {
    from: &'a Mailbox,
    subject: &'a str,
    text: Option<&'a str>,
    html: Option<&'a str>,
    reply_to: &'a [Mailbox],
    cc: &'a [Mailbox],
    bcc: &'a [Mailbox],
    also_to: &'a [Mailbox],
    headers: Pairs<'a>,
    attachments: Vec<AttachmentView<'a>>,
}

#[derive(Serialize)]
struct AttachmentView<'a> {
    filename: &'a str,
    content_type: &'a str,
    content: String,
    content_id: Option<&'a str>,
}

impl<'a> EmailView<'a> {
    fn of(email: &'a EmailContent) -> Self {
        Self {
            from: &email.from,
            subject: &email.subject,
            text: email.text.as_deref(),
            html: email.html.as_deref(),
            reply_to: &email.reply_to,
            cc: &email.cc,
            bcc: &email.bcc,
            also_to: &email.also_to,
            headers: Pairs(&email.headers),
            attachments: email.attachments.iter().map(attachment).collect(),
        }
    }
}

fn attachment(attachment: &Attachment) -> AttachmentView<'_> {
    AttachmentView {
        filename: &attachment.filename,
        content_type: &attachment.content_type,
        content: STANDARD.encode(&attachment.content),
        content_id: attachment.content_id.as_deref(),
    }
}
