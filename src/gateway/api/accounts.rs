//! `/v1/accounts`: how the provider accounts are, and what operators do with one: pause, resume, test.

use std::sync::Arc;
use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};
use tidings_core::adapter::{Crossing, Outgoing};
use tidings_core::address::Mailbox;
use tidings_core::content::{Content, EmailContent};
use tidings_core::fault::{FaultCode, Faults};
use tidings_core::ids::{Handle, NotificationId};
use tidings_core::outcome::{Outcome, Report};
use tidings_core::pointer::Pointer;
use tidings_core::request::operating;
use tidings_core::store::{Asked, OpenCalls, SwitchedBy};
use tidings_core::suppression::obeyed;
use tidings_core::switches::Scope;
use tidings_core::words::{Channel, Class, Mode};

use super::auth::{self, Caller};
use super::problem::{Code, Problem};
use super::query::Query;
use super::switches::{self, LONGEST_BODY};
use super::{Api, body};
use crate::accounts::SANDBOX;
use crate::app::App;
use crate::routing::{Account, Owner};
use crate::slots::{Capped, Hindrance};

/// How long a test waits for the provider.
const TEST_PATIENCE: Duration = Duration::from_secs(30);

/// `GET /v1/accounts`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(auth::Scope::Ops)?;
    Query::read(&http, &[])?;
    let accounts = &caller.setup.routing.accounts;
    let counted = Counted::read(&api, accounts).await?;
    let items: Vec<Value> = accounts.iter().map(|account| shown(&api.app, &caller, account, &counted)).collect();
    Ok(HttpResponse::Ok().json(json!({ "items": items, "next": null })))
}

/// `POST /v1/accounts/{name}/pause`
pub(super) async fn pause(
    http: HttpRequest,
    name: web::Path<String>,
    payload: web::Payload,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let (caller, account) = operator(&api, &http, &name).await?;
    let (body, _room) = body::read(&api.room, &http, payload, LONGEST_BODY).await?;
    if !body.is_empty() {
        body::require_json(&http)?;
    }
    let asked = operating::parse_pause(&body, api.app.now())?;
    switches::set(&api, &caller, Scope::Account(account.name.clone()), asked).await?;
    one(&api, &caller, &account).await
}

/// `POST /v1/accounts/{name}/resume`
pub(super) async fn resume(http: HttpRequest, name: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let (caller, account) = operator(&api, &http, &name).await?;
    switches::clear(&api, &caller, Scope::Account(account.name.clone())).await?;
    one(&api, &caller, &account).await
}

/// `POST /v1/accounts/{name}/test`: one message by this account alone, past queue and routes. It tells what the provider says.
pub(super) async fn test(
    http: HttpRequest,
    name: web::Path<String>,
    payload: web::Payload,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let (caller, account) = operator(&api, &http, &name).await?;
    body::require_json(&http)?;
    let (body, _room) = body::read(&api.room, &http, payload, LONGEST_BODY).await?;
    let to = operating::parse_test(&body)?;
    let Some(from) = account.from.clone() else {
        return Err(Problem::new(Code::InvalidContent, "the account has no author: set its \"from\" in the configuration"));
    };
    may_be_tested_on(&api, &caller, &account, &from, &to).await?;
    let mut charge = api.app.slots.charge(account.id, Class::Transactional, &api.app.clock);
    if let Some(charge) = &mut charge
        && !charge.came().await
    {
        return Err(no_call_left(&api.app, &account));
    }
    let by = SwitchedBy { actor: caller.actor(), reason: None, at: api.app.now() };
    let subject = account.name.clone();
    api.read(move |store| async move { store.pauses().note_act("account.tested", &subject, &by).await }).await?;
    let outgoing = letter(&api.app, &caller, &account, from, to);
    let (adapter, crossing) = (account.adapter.clone(), outgoing.crossing.clone());
    if charge.as_mut().is_some_and(|charge| !charge.spend()) {
        return Err(no_call_left(&api.app, &account));
    }
    let call = api.runtime.spawn(async move { tokio::time::timeout(TEST_PATIENCE, adapter.send(&outgoing)).await });
    let report = match call.await {
        Ok(Ok(report)) => report,
        Ok(Err(_)) if crossing.is_passed() => Report::new(Outcome::Ambiguous).with_detail("the provider did not answer in time"),
        Ok(Err(_)) => Report::new(Outcome::NotStarted).with_detail("the provider did not answer in time"),
        Err(panic) => return Err(Problem::internal(&panic)),
    };
    if let Some(charge) = &mut charge {
        charge.settle(&report.outcome);
    }
    let message_id = match &report.outcome {
        Outcome::Accepted { message_id, .. } => message_id.clone(),
        _ => None,
    };
    Ok(HttpResponse::Ok().json(json!({
        "account": account.name,
        "outcome": report.outcome.word().as_str(),
        "code": report.code,
        "detail": report.detail,
        "provider_message_id": message_id,
    })))
}

/// A test counts towards the account's day like any other call.
fn no_call_left(app: &App, account: &Account) -> Problem {
    let now = app.now();
    match app.slots.used_up(account.id, Class::Transactional, now) {
        Some(next) => Problem::new(Code::QuotaExceeded, "the account's calls of the day are used up (daily_cap)").after(next.since(now)),
        None => Problem::new(Code::Overloaded, "the account's calls of the day cannot be drawn at the moment"),
    }
}

/// A test is a send like any other for whom it reaches: a test key reaches the sandbox alone, a team key its guests, and
/// nobody reaches who is suppressed (S-147).
async fn may_be_tested_on(api: &Api, caller: &Caller, account: &Account, from: &Mailbox, to: &Mailbox) -> Result<(), Problem> {
    let refused = |detail: &str| {
        let mut faults = Faults::new();
        faults.add(&Pointer::ROOT.name("to"), FaultCode::RecipientNotAllowed, detail);
        Err(Problem::from(faults))
    };
    if caller.mode == Mode::Test && account.kind != SANDBOX {
        return refused("a test key reaches the sandbox alone");
    }
    let tenant = caller.setup.settings.tenants.get(caller.tenant_name());
    if caller.is_for_guests() && !tenant.is_some_and(|tenant| tenant.is_guest(&to.email)) {
        return refused("a team key reaches its tenant's guest list alone");
    }
    let digest = api.app.keyring.address_digest(Channel::Email, &to.email.canonical());
    let asked = Asked { tenant: caller.tenant, mode: caller.mode, channel: Channel::Email, digests: vec![digest] };
    let now = api.app.now();
    let found = api.read(move |store| async move { store.suppressions().hits(&asked, now).await }).await?;
    let hits: Vec<_> = found.into_iter().map(|(_, hit)| hit).collect();
    if obeyed(&hits, Class::Transactional, Some(&from.email.canonical())).is_some() {
        return refused("the address is suppressed");
    }
    Ok(())
}

/// Who may, and the account that is meant.
async fn operator(api: &Api, http: &HttpRequest, name: &str) -> Result<(Caller, Arc<Account>), Problem> {
    let caller = auth::caller(api, http).await?;
    caller.require(auth::Scope::Ops)?;
    Query::read(http, &[])?;
    let account = caller.setup.routing.accounts.iter().find(|account| account.name == name).cloned();
    let unknown = || Problem::new(Code::NotFound, "no account of this name is configured");
    Ok((caller, account.ok_or_else(unknown)?))
}

async fn one(api: &Api, caller: &Caller, account: &Arc<Account>) -> Result<HttpResponse, Problem> {
    let counted = Counted::read(api, std::slice::from_ref(account)).await?;
    Ok(HttpResponse::Ok().json(shown(&api.app, caller, account, &counted)))
}

/// What the store says of accounts.
struct Counted {
    open: Vec<OpenCalls>,
    capped: Vec<Capped>,
}

impl Counted {
    async fn read(api: &Api, accounts: &[Arc<Account>]) -> Result<Self, Problem> {
        let capped = api.app.slots.capped(accounts.iter(), api.app.now());
        api.read(|store| async move {
            let open = store.pauses().open_calls().await?;
            Ok(Self { open, capped: Capped::counted(capped, store.as_ref()).await? })
        })
        .await
    }
}

/// An account as answers show it: whether it takes messages, and what keeps it from that in this process.
fn shown(app: &App, caller: &Caller, account: &Account, counted: &Counted) -> Value {
    let now = app.now();
    let switch = app.pauses.of_account(&account.name, now);
    let (why, until) = match (&switch, app.slots.hindrance(account.id, now)) {
        _ if !account.is_on => (Some("off"), None),
        (Some(switch), _) => (Some("paused"), switch.until),
        (None, Some(Hindrance::Parked(until))) => (Some("credential"), Some(until)),
        (None, Some(Hindrance::Paused(until))) => (Some("throttled"), Some(until)),
        (None, Some(Hindrance::Capped(until))) => (Some("daily_cap"), Some(until)),
        (None, None) => (None, None),
    };
    let calls = counted.open.iter().find(|calls| calls.account == account.id);
    let (in_flight, ambiguous) = calls.map_or((0, 0), |calls| (calls.in_flight, calls.ambiguous));
    let capped = counted.capped.iter().find(|capped| capped.account == account.id);
    let daily_cap = capped.map(|capped| json!({ "cap": capped.cap, "used": capped.used, "resets_at": capped.day.end.to_string() }));
    let configured = caller.setup.settings.accounts.iter().find(|own| own.name == account.name);
    json!({
        "name": account.name,
        "kind": account.kind,
        "tenant": account.owner.as_ref().map(Owner::name),
        "channel": account.adapter.abilities().channel.as_str(),
        "state": configured.map_or("on", |own| own.state.as_str()),
        "takes_messages": why.is_none(),
        "why": why,
        "until": until.map(|until| until.to_string()),
        "reason": switch.and_then(|switch| switch.reason),
        "open": in_flight + ambiguous,
        "in_flight": in_flight,
        "ambiguous": ambiguous,
        "concurrency": account.concurrency,
        "daily_cap": daily_cap,
    })
}

fn letter(app: &App, caller: &Caller, account: &Account, from: Mailbox, to: Mailbox) -> Outgoing {
    let now = app.now();
    let delivery = NotificationId::new(now, rand::random()).delivery(1);
    let email = EmailContent {
        subject: "A test of Tidings".to_owned(),
        text: Some(format!("This message was sent by an operator to see whether the account \"{}\" works.\n", account.name)),
        html: None,
        reply_to: Vec::new(),
        cc: Vec::new(),
        bcc: Vec::new(),
        also_to: Vec::new(),
        headers: Vec::new(),
        attachments: Vec::new(),
        from,
    };
    Outgoing {
        handle: Handle { delivery, generation: 1 },
        tenant: caller.tenant,
        mode: caller.mode,
        notification: delivery.notification(),
        idempotency_key: delivery.to_string(),
        class: Class::Transactional,
        message_id: format!("{delivery}@{}", email.from.email.domain()),
        content: Arc::new(Content::Email(email)),
        to,
        date: now,
        left_out: Vec::new(),
        expires_at: now.plus(TEST_PATIENCE),
        patience: TEST_PATIENCE,
        start_before: now.plus(TEST_PATIENCE),
        crossing: Crossing::default(),
    }
}
