//! `tidings keys` and `tidings tenants`: who may call. They open the store themselves, so that they work before anybody can
//! call; with SQLite that is while no server runs. The same acts over HTTP are the API's business.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use tidings_core::ids::TenantId;
use tidings_core::nearest::nearest;
use tidings_core::request::{KINDS, SCOPES};
use tidings_core::store::{ApiKey, Deed, KeyFilter, Store, Tenant};
use tidings_core::time::{Clock as _, Timestamp, parse_duration};

use super::http::show;
use super::{STORE_PATIENCE, open_store};
use crate::api::keys::KeyId;
use crate::clock::StoreClock;
use crate::config::Settings;
use crate::config::tenants::{NAME_RULE, is_name};
use crate::{freeze, keys, store};

/// Who acts, in the audit.
const ACTOR: &str = "cli";
/// Longer than this is no rotation.
const LONGEST_OVERLAP: Duration = Duration::from_secs(30 * 86_400);
/// Keys of one look at the store.
const PAGE: i64 = 500;

#[derive(Subcommand)]
pub(super) enum Keys {
    /// Make a key and print it, the only time that it is shown
    Create {
        /// What the key is for, such as the name of an application
        name: String,
        /// Whose messages it sends and sees
        #[arg(long, value_name = "TENANT", default_value = keys::DEFAULT_TENANT)]
        tenant: String,
        /// Whether its messages leave, go to the sandbox, or leave for the guest list alone
        #[arg(long, value_enum, default_value_t = Kind::Live)]
        kind: Kind,
        /// What it may do
        #[arg(long, value_delimiter = ',', default_value = "send,read", value_parser = PossibleValuesParser::new(SCOPES))]
        scopes: Vec<String>,
        /// After how long it opens nothing any more, such as 90d; left out, never
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<Duration>,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Show all keys, without the keys themselves
    List {
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Make a key that follows another and print it; the old one stays for a while
    Rotate {
        /// Which key, such as key_0199...
        id: String,
        /// How long the old one stays, such as 24h or 0s
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
        overlap: Duration,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Let a key open nothing any more; within two seconds everywhere
    Revoke {
        /// Which key, such as key_0199...
        id: String,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
pub(super) enum Tenants {
    /// Make a tenant
    Create {
        /// 1 to 40 characters of [a-z0-9-]
        name: String,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Show all tenants
    List {
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Refuse its keys and let its messages wait
    Disable {
        /// Which tenant
        name: String,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Let it send again
    Enable {
        /// Which tenant
        name: String,
        /// Print the answer as JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Kind {
    Live,
    Test,
    Team,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Test => "test",
            Self::Team => "team",
        }
    }
}

fn duration(raw: &str) -> Result<Duration, String> {
    parse_duration(raw).map_err(|err| err.to_string())
}

/// Does what the command says to the store of this configuration.
///
/// # Errors
/// Why it could not be done, for people.
pub(super) async fn keys(command: Keys, settings: &Settings) -> anyhow::Result<()> {
    let (store, now) = open(settings, "ask it for keys over HTTP (/v1/keys, with a key of scope admin), or stop it first").await?;
    let done = act_on_keys(command, store.as_ref(), now).await;
    store.close().await;
    done
}

/// Does what the command says to the store of this configuration.
///
/// # Errors
/// Why it could not be done, for people.
pub(super) async fn tenants(command: Tenants, settings: &Settings) -> anyhow::Result<()> {
    let (store, now) = open(settings, "stop it first; tenants are not managed over HTTP").await?;
    let done = act_on_tenants(command, store.as_ref(), now).await;
    store.close().await;
    done
}

async fn open(settings: &Settings, instead: &str) -> anyhow::Result<(Arc<dyn Store>, Timestamp)> {
    let clock = StoreClock::start();
    let store = open_store(settings, instead).await?;
    store::ready(store.as_ref(), settings, STORE_PATIENCE).await?;
    if let Some(database) = store.time().await? {
        clock.anchor(database);
    }
    if freeze::since(store.as_ref()).await?.is_some() {
        eprintln!("the store is frozen: what is changed here does not come along to the new installation");
    }
    store.ensure_tenant(keys::DEFAULT_TENANT).await?;
    Ok((store, clock.now()))
}

async fn act_on_keys(command: Keys, store: &dyn Store, now: Timestamp) -> anyhow::Result<()> {
    match command {
        Keys::Create { name, tenant, kind, scopes, expires, json } => {
            let tenant = tenant_named(store, &tenant).await?;
            let expires_at = expires.map(|after| now.plus(after));
            let (row, key) = keys::new(tenant.id, &name, kind.as_str(), &scopes, expires_at, now);
            store.access().issue(&row, None, &entry(now, Some(tenant.id), "key.created", row.id)).await?;
            tell_key(&row, &tenant.name, &key, json);
        }
        Keys::List { json } => {
            let tenants = store.tenants().await?;
            let answer =
                json!({ "items": all_keys(store).await?.iter().map(|key| view(key, name_of(&tenants, key.tenant))).collect::<Vec<_>>() });
            show(&answer, json, |answer| lines(answer, &["id", "tenant", "kind", "state", "scopes", "name"], now));
        }
        Keys::Rotate { id, overlap, json } => {
            if overlap > LONGEST_OVERLAP {
                bail!("the overlap may be 30d at most");
            }
            let old = key_of(store, &id).await?;
            if state(&old, now) != "active" {
                bail!("the key is {}: make a new one", state(&old, now));
            }
            let (row, key) = keys::new(old.tenant, &old.name, &old.kind, &old.scopes, old.expires_at, now);
            let reason = Some(format!("by {}", KeyId(row.id)));
            let entry = Deed { reason, ..entry(now, Some(old.tenant), "key.rotated", old.id) };
            store.access().issue(&row, Some((old.id, now.plus(overlap))), &entry).await?;
            tell_key(&row, name_of(&store.tenants().await?, row.tenant), &key, json);
        }
        Keys::Revoke { id, json } => {
            let key = key_of(store, &id).await?;
            let revoked = store.access().revoke(key.id, &entry(now, Some(key.tenant), "key.revoked", key.id)).await?;
            let answer = json!({ "id": KeyId(key.id).to_string(), "revoked": true });
            let told = if revoked { "revoked" } else { "was revoked before" };
            show(&answer, json, |_| format!("{} {told}", KeyId(key.id)));
        }
    }
    Ok(())
}

async fn act_on_tenants(command: Tenants, store: &dyn Store, now: Timestamp) -> anyhow::Result<()> {
    match command {
        Tenants::Create { name, json } => {
            if !is_name(&name) {
                bail!(NAME_RULE);
            }
            let entry = Deed { subject: name.clone(), ..entry(now, None, "tenant.created", uuid::Uuid::nil()) };
            let made = store.access().make_tenant(&name, &entry).await?;
            let told = if made.is_some() { "created" } else { "is there already" };
            let tenant = tenant_named(store, &name).await?;
            show(&json!({ "name": name, "state": state_of(&tenant) }), json, |_| format!("{name} {told}"));
        }
        Tenants::List { json } => {
            let tenant = |tenant: &Tenant| json!({ "name": tenant.name, "state": state_of(tenant) });
            let answer = json!({ "items": store.tenants().await?.iter().map(tenant).collect::<Vec<_>>() });
            show(&answer, json, |answer| lines(answer, &["name", "state"], now));
        }
        Tenants::Disable { name, json } => set_active(store, &name, false, now, json).await?,
        Tenants::Enable { name, json } => set_active(store, &name, true, now, json).await?,
    }
    Ok(())
}

async fn set_active(store: &dyn Store, name: &str, active: bool, now: Timestamp, json: bool) -> anyhow::Result<()> {
    tenant_named(store, name).await?;
    let action = if active { "tenant.enabled" } else { "tenant.disabled" };
    let entry = Deed { subject: name.to_owned(), ..entry(now, None, action, uuid::Uuid::nil()) };
    let changed = store.access().set_active(name, active, &entry).await?;
    let state = if active { "active" } else { "disabled" };
    let told = if changed { "is" } else { "was already" };
    show(&json!({ "name": name, "state": state }), json, |_| format!("{name} {told} {state}"));
    Ok(())
}

const fn state_of(tenant: &Tenant) -> &'static str {
    if tenant.active { "active" } else { "disabled" }
}

/// The tenant of this name: a mistyped one must not quietly become another.
async fn tenant_named(store: &dyn Store, name: &str) -> anyhow::Result<Tenant> {
    let tenants = store.tenants().await?;
    let found = tenants.iter().find(|tenant| tenant.name == name).cloned();
    found.with_context(|| match nearest(name, tenants.iter().map(|tenant| tenant.name.as_str())) {
        Some(meant) => format!("there is no tenant {name:?}; did you mean {meant:?}?"),
        None => format!("there is no tenant {name:?}: make it with \"tidings tenants create {name}\""),
    })
}

async fn key_of(store: &dyn Store, id: &str) -> anyhow::Result<ApiKey> {
    let KeyId(id) = id.parse().map_err(|()| anyhow::anyhow!("not the id of a key, such as \"tidings keys list\" shows"))?;
    store.access().key(id).await?.context("there is no such key")
}

async fn all_keys(store: &dyn Store) -> anyhow::Result<Vec<ApiKey>> {
    let mut all: Vec<ApiKey> = Vec::new();
    loop {
        let before = all.last().map(|key| key.id);
        let filter = KeyFilter { tenant: None, kinds: KINDS.map(str::to_owned).to_vec(), before, limit: PAGE };
        let page = store.access().page(&filter).await?;
        let is_last = page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

fn entry(at: Timestamp, tenant: Option<TenantId>, action: &'static str, key: uuid::Uuid) -> Deed {
    Deed { at, tenant, actor: ACTOR.to_owned(), action, subject: KeyId(key).to_string(), reason: None }
}

fn name_of(tenants: &[Tenant], id: TenantId) -> &str {
    tenants.iter().find(|tenant| tenant.id == id).map_or("", |tenant| &tenant.name)
}

fn state(key: &ApiKey, now: Timestamp) -> &'static str {
    if key.revoked_at.is_some_and(|at| at <= now) {
        "revoked"
    } else if key.expires_at.is_some_and(|at| at <= now) {
        "expired"
    } else {
        "active"
    }
}

fn view(key: &ApiKey, tenant: &str) -> Value {
    json!({
        "id": KeyId(key.id).to_string(), "tenant": tenant, "name": key.name, "kind": key.kind, "scopes": key.scopes,
        "expires_at": key.expires_at.map(|at| at.to_string()), "revoked_at": key.revoked_at.map(|at| at.to_string()),
    })
}

/// The key alone on its line, so that a script can take it.
fn tell_key(row: &ApiKey, tenant: &str, key: &str, json: bool) {
    let mut answer = view(row, tenant);
    answer["key"] = Value::from(key);
    show(&answer, json, |_| key.to_owned());
}

/// One line for each item.
fn lines(answer: &Value, columns: &[&str], now: Timestamp) -> String {
    let past = |item: &Value, name: &str| item[name].as_str().and_then(|at| at.parse::<Timestamp>().ok()).is_some_and(|at| at <= now);
    let cell = |item: &Value, column: &str| match (column, &item[column]) {
        ("state", Value::Null) if past(item, "revoked_at") => "revoked".to_owned(),
        ("state", Value::Null) if past(item, "expires_at") => "expired".to_owned(),
        ("state", Value::Null) => "active".to_owned(),
        (_, Value::Array(words)) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        (_, Value::String(text)) => text.clone(),
        (_, other) => other.to_string(),
    };
    let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |item: &Value| columns.iter().map(|column| cell(item, column)).collect::<Vec<_>>().join("  ");
    items.iter().map(line).collect::<Vec<_>>().join("\n")
}
