//! `[accounts.NAME]`: what every account has, and the settings of its kind in the form that the adapter takes.
//! Which account carries a message is decided by the routes.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};
use tidings_core::adapter::Adapter;
use tidings_core::address::{EmailAddress, Mailbox};
use tidings_core::daily::DailyCap;
use tidings_core::nearest::nearest;
use tidings_providers::{AccountError, Context};

use super::kinds::{Form, KINDS, KindSetting, settings_of};
use super::table::Table;
use super::tenants::is_name as is_tenant;
use super::value::Setting;
use super::{Fault, names};

/// The account that needs no configuration.
const SANDBOX: &str = "sandbox";
/// What stands in for a secret that is not there, where nothing is sent.
const STAND_IN: &str = "unresolved";

/// One configured provider account.
#[derive(Clone)]
pub struct Account {
    /// 1 to 40 characters of `[a-z0-9-]`.
    pub name: String,
    /// The adapter's kind, such as `smtp`.
    pub kind: String,
    /// Whether it takes new messages, only finishes old ones, or does nothing.
    pub state: AccountState,
    /// The only tenant whose messages it carries; `None`: it is for all.
    pub tenant: Option<String>,
    /// The author of messages that name none.
    pub from: Option<Mailbox>,
    /// Domains and canonical addresses that it may send as; empty means all.
    pub sends_as: Vec<String>,
    /// Calls at a time.
    pub concurrency: Option<u16>,
    /// Calls in a second, at most; never 0.
    pub rate: Option<u32>,
    /// Calls in a day of its provider, at most.
    pub daily_cap: Option<DailyCap>,
    /// The settings of its kind as its adapter takes them, an object. Some of them are secret.
    pub settings: Value,
    /// Digests of what the files hold that its settings name: its adapter reads them.
    pub material: Vec<[u8; 32]>,
    /// A setting that is not a secret stands elsewhere and is not there: what the adapter would say is unknown.
    pub(super) is_incomplete: bool,
}

/// Whether an account takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountState {
    /// It sends.
    On,
    /// It takes no new messages, finishes what is open and keeps receiving.
    ReceiveOnly,
    /// It does nothing.
    Off,
}

impl AccountState {
    /// The word in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::ReceiveOnly => "receive_only",
            Self::Off => "off",
        }
    }
}

// Secrets never reach a log (S-212).
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, state, tenant, from, sends_as, concurrency, rate, daily_cap, settings, material, is_incomplete: _ } = self;
        let daily_cap = daily_cap.as_ref().map(|cap| (cap.calls, cap.zone.iana_name()));
        let shown = |(setting, form): &(&'static str, Form)| match form {
            Form::Secret => None,
            Form::Text | Form::Number | Form::Path | Form::Table(_) => Some((*setting, settings.get(setting)?)),
        };
        let settings: Vec<_> = settings_of(kind).unwrap_or_default().iter().filter_map(shown).collect();
        let mut account = f.debug_struct("Account");
        account.field("name", name).field("kind", kind).field("state", state).field("tenant", tenant).field("from", from);
        account.field("sends_as", sends_as).field("concurrency", concurrency).field("rate", rate).field("daily_cap", &daily_cap);
        account.field("settings", &settings).field("material", material).finish()
    }
}

impl Account {
    /// Whether it takes new messages.
    pub const fn is_on(&self) -> bool {
        matches!(self.state, AccountState::On)
    }

    /// The adapter that this account's messages go through.
    ///
    /// # Errors
    /// What is wrong with the settings of its kind, with the full name of the setting where the adapter names one.
    pub fn adapter(&self, context: &Context) -> Result<Arc<dyn Adapter>, Fault> {
        let built = tidings_providers::build(&self.kind, self.settings.clone(), context);
        built.map_err(|err| self.fault(&err))
    }

    fn fault(&self, err: &AccountError) -> Fault {
        let message = err.to_string();
        let account = names::within("accounts", &self.name);
        let Some(unknown) = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) else {
            return Fault { setting: account, source: None, text: message };
        };
        // serde's list of the known ones: every second piece between backticks.
        let known = message.split('`').skip(3).step_by(2);
        let text = nearest(unknown, known).map(|meant| format!("unknown setting; did you mean {account}.{meant}?"));
        Fault { setting: format!("{account}.{unknown}"), source: None, text: text.unwrap_or_else(|| "unknown setting".to_owned()) }
    }
}

pub(super) fn read(accounts: &Table<'_>) -> Vec<Account> {
    accounts.names().into_iter().filter_map(|name| accounts.table(&name, |table| account(&name, table))).collect()
}

fn account(name: &str, table: &Table<'_>) -> Option<Account> {
    if !(1..=40).contains(&name.len()) || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        table.fault("an account's name is 1 to 40 characters of [a-z0-9-]");
    } else if name == SANDBOX {
        table.fault("this name belongs to the built-in sandbox");
    }
    let states = [("on", AccountState::On), ("receive_only", AccountState::ReceiveOnly), ("off", AccountState::Off)];
    let from = table.get("from");
    let sends_as = table.get("sends_as");
    let kind = table.get("kind");
    let state = table.get("state").word(&states).unwrap_or(AccountState::On);
    let mut account = Account {
        name: name.to_owned(),
        kind: String::new(),
        state,
        tenant: table
            .get("tenant")
            .parsed("the name of a tenant: 1 to 40 characters of [a-z0-9-]", |text| is_tenant(text).then(|| text.to_owned())),
        from: from.parsed("a mailbox such as \"Shop <shop@example.com>\"", |text| text.parse().ok()),
        sends_as: senders(&sends_as),
        concurrency: table.get("concurrency").number(1..=1_000),
        rate: table.get("rate").parsed("a rate such as \"14/s\"", |text| text.strip_suffix("/s")?.parse().ok().filter(|rate| *rate > 0)),
        daily_cap: daily_cap(table),
        settings: Value::Null,
        material: Vec::new(),
        is_incomplete: false,
    };
    let author = account.from.as_ref().map(|from| &from.email);
    if author.is_some_and(|author| !account.sends_as.is_empty() && !may_send_as(&account.sends_as, author)) {
        from.fault(format!("the account may not send as its own author: {} names neither the address nor its domain", sends_as.name));
    }
    let Some(known) = known_settings(&kind, table) else {
        table.excuse_the_rest();
        return None;
    };
    account.kind = kind.text()?;
    account.settings = Value::Object(kind_settings(table, known, &mut account));
    Some(account)
}

/// How many calls a day has, and where it begins.
fn daily_cap(table: &Table<'_>) -> Option<DailyCap> {
    let (calls, zone) = (table.get("daily_cap"), table.get("daily_cap_zone"));
    if zone.is_set() && !calls.is_set() {
        zone.fault(format!("means nothing without {}", calls.name));
    }
    let known = zone.parsed("a time zone such as \"UTC\" or \"Europe/Berlin\"", |text| TimeZone::get(text).ok());
    let calls = calls.number(1..=1_000_000_000_u32).and_then(NonZeroU32::new)?;
    Some(DailyCap { calls, zone: known.unwrap_or(TimeZone::UTC) })
}

fn known_settings(kind: &Setting<'_>, table: &Table<'_>) -> Option<&'static [KindSetting]> {
    if !kind.is_set() {
        table.fault(format!("{} is missing", kind.name));
        return None;
    }
    let kinds: Vec<String> = KINDS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    kind.parsed(&format!("a kind of account: {}", kinds.join(" or ")), settings_of)
}

/// Whether `sends_as` names the address or its domain.
fn may_send_as(sends_as: &[String], author: &EmailAddress) -> bool {
    let canonical = author.canonical();
    sends_as.iter().any(|allowed| *allowed == canonical || allowed == author.domain())
}

fn senders(setting: &Setting<'_>) -> Vec<String> {
    let items = setting.items();
    if items.as_ref().is_some_and(Vec::is_empty) {
        setting.fault("an empty list allows nobody; leave the setting out to allow every author");
    }
    let sender = |item: Setting<'_>| {
        item.parsed("a domain such as \"shop.example.com\" or an email address", |text| {
            if text.contains('@') {
                return text.parse().ok().map(|address: EmailAddress| address.canonical());
            }
            // A domain is what may follow an @.
            format!("x@{text}").parse().ok().map(|address: EmailAddress| address.domain().to_owned())
        })
    };
    items.unwrap_or_default().into_iter().filter_map(sender).collect()
}

fn kind_settings(table: &Table<'_>, known: &[KindSetting], account: &mut Account) -> Map<String, Value> {
    let mut values = Map::new();
    for (name, form) in known {
        let setting = table.get(name);
        if !setting.is_set() {
            continue;
        }
        let value = match form {
            Form::Text => setting.text().map(Value::String),
            Form::Secret => setting.text().or_else(|| Some(STAND_IN.to_owned())).map(Value::String),
            Form::Number => setting.number(0..=i64::from(u32::MAX)).map(Value::from),
            Form::Path => setting.material().map(|(path, digest)| {
                account.material.push(digest);
                Value::String(path.to_string_lossy().into_owned())
            }),
            Form::Table(inner) => Some(Value::Object(table.table(name, |table| kind_settings(table, inner, account)))),
        };
        account.is_incomplete |= value.is_none();
        values.extend(value.map(|value| ((*name).to_owned(), value)));
    }
    values
}
