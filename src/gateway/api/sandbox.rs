//! `/v1/sandbox/messages`: what the sandbox took, for tests and tools. The page for people is `page`.
//! What goes to the sandbox is `intake`'s decision.

use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use tidings_core::address::EmailAddress;
use tidings_core::ids::TenantId;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::store::SandboxFilter;
use tidings_core::words::Mode;
use url::form_urlencoded;
use uuid::Uuid;

use super::auth::{self, Caller, Scope};
use super::list::{Cursors, Page, Part};
use super::message::{MessageId, Opened};
use super::problem::Problem;
use super::query::Query;
use super::{Api, hold, json};

/// Messages may be large: this many are held at a time.
const CHUNK: usize = 10;
/// A page ends early where it has become this large.
const PAGE_BYTES: usize = 8 << 20;

/// `GET /v1/sandbox/messages`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = caller(&api, &http).await?;
    let query = Query::read(&http, &["to", "channel", "notification_id", "idempotency_key", "limit", "after", "wait"])?;
    let patience = hold::patience(&query)?;
    let address: Option<EmailAddress> = query.parsed("to", "an email address")?;
    let part = Part::read(&query)?;
    let mut filter = SandboxFilter {
        to: address.map(|address| address.canonical()),
        channel: query.parsed("channel", "email, sms or push")?,
        notification: query.parsed("notification_id", "the id of a notification")?,
        idempotency_key: query.get("idempotency_key").map(str::to_owned),
        before: None,
        limit: 0,
    };
    let channel = filter.channel.map(|channel| channel.as_str());
    let notification = filter.notification.map(|id| id.to_string());
    let binding = (&filter.to, channel, notification, &filter.idempotency_key);
    let cursors = Cursors::new(&api.app.keyring, &caller, "sandbox", &binding);
    filter.before = part.after.map(|cursor| cursors.read(&cursor)).transpose()?;

    let as_json = |message: SandboxMessage| {
        let view = Opened::open(&api.app.keyring, message).map(|opened| opened.view()).ok()?;
        serde_json::value::to_raw_value(&view).ok()
    };
    let ask = async || newest(&api, caller.tenant, Some(caller.mode), filter.clone(), part.limit, as_json, |item| item.get().len()).await;
    let (items, last) = hold::until_there(&api, patience, |(items, _)| items.is_empty(), ask).await?;
    Ok(Page { items, next: last.map(|last| cursors.write(&last)) }.answer())
}

/// `GET /v1/sandbox/messages/{id}`
pub(super) async fn one(http: HttpRequest, id: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = caller(&api, &http).await?;
    Query::read(&http, &[])?;
    let view = find(&api, caller.tenant, Some(caller.mode), &id).await?.ok_or_else(Problem::not_found)?.view();
    Ok(json(HttpResponse::Ok(), serde_json::to_vec(&view).expect("texts and lists always have a JSON form")))
}

/// `GET /v1/sandbox/messages/{id}/attachments/{number}`
pub(super) async fn attachment(http: HttpRequest, path: web::Path<(String, usize)>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = caller(&api, &http).await?;
    let (id, number) = path.into_inner();
    let message = find(&api, caller.tenant, Some(caller.mode), &id).await?.ok_or_else(Problem::not_found)?;
    download(&message, number)
}

/// `DELETE /v1/sandbox/messages`
pub(super) async fn clear(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = caller(&api, &http).await?;
    Query::read(&http, &[])?;
    let (tenant, mode) = (caller.tenant, Some(caller.mode));
    let deleted = api.read(move |store| async move { store.clear_sandbox(tenant, mode).await }).await?;
    Ok(HttpResponse::Ok().json(serde_json::json!({ "deleted": deleted })))
}

/// The sandbox is nothing but addresses and content.
async fn caller(api: &Api, http: &HttpRequest) -> Result<Caller, Problem> {
    let caller = auth::caller(api, http).await?;
    caller.require(Scope::Pii)?;
    Ok(caller)
}

/// An attachment as a file to be saved, never to be shown by a browser.
pub(super) fn download(message: &Opened, number: usize) -> Result<HttpResponse, Problem> {
    let (filename, bytes) = message.attachment(number).ok_or_else(Problem::not_found)?;
    let encoded: String = form_urlencoded::byte_serialize(filename.as_bytes()).collect::<String>().replace('+', "%20");
    let disposition = HeaderValue::try_from(format!("attachment; filename*=UTF-8''{encoded}"));
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/octet-stream"))
        .insert_header((header::CONTENT_DISPOSITION, disposition.unwrap_or_else(|_| HeaderValue::from_static("attachment"))))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"))
        .body(bytes))
}

/// One message by its id.
pub(super) async fn find(api: &Api, tenant: TenantId, mode: Option<Mode>, id: &str) -> Result<Option<Opened>, Problem> {
    let Ok(MessageId(id)) = id.parse() else { return Ok(None) };
    let found = api.read(move |store| async move { store.sandbox_message(tenant, mode, id).await }).await?;
    let open = |message| Opened::open(&api.app.keyring, message).map_err(|err| Problem::internal(&err));
    found.map(open).transpose()
}

/// The newest messages in the form that `view` gives them, at most `limit`, and the id of the last one where there may
/// be more. What cannot be opened is left out.
pub(super) async fn newest<T>(
    api: &Api,
    tenant: TenantId,
    mode: Option<Mode>,
    mut filter: SandboxFilter,
    limit: usize,
    view: impl Fn(SandboxMessage) -> Option<T>,
    size: impl Fn(&T) -> usize,
) -> Result<(Vec<T>, Option<Uuid>), Problem> {
    let (mut items, mut seen, mut bytes) = (Vec::new(), 0, 0);
    loop {
        let wanted = CHUNK.min(limit - seen);
        filter.limit = i64::try_from(wanted).unwrap_or(i64::MAX);
        let asked = filter.clone();
        let chunk = api.read(move |store| async move { store.sandbox_messages(tenant, mode, &asked).await }).await?;
        let (taken, count) = (chunk.last().map(|message| message.id), chunk.len());
        seen += count;
        for message in chunk {
            let id = message.id;
            match view(message) {
                Some(item) => {
                    bytes += size(&item);
                    items.push(item);
                }
                None => tracing::warn!(message_id = %MessageId(id), "a message of the sandbox cannot be opened"),
            }
        }
        if count < wanted {
            return Ok((items, None));
        }
        filter.before = taken;
        if seen >= limit || bytes >= PAGE_BYTES {
            return Ok((items, taken));
        }
    }
}
