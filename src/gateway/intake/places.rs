//! Where the deliveries of a notification go, who it is from, and whether the accounts there may and can send it.

use std::sync::Arc;

use tidings_core::adapter::ContentFault;
use tidings_core::address::Mailbox;
use tidings_core::content::Content;
use tidings_core::fault::{Fault, FaultCode, Faults};
use tidings_core::ids::TenantId;
use tidings_core::nearest::nearest;
use tidings_core::pointer::Pointer;
use tidings_core::request::{Author, Recipient};
use tidings_core::words::{Channel, Class, Mode};

use crate::api::auth::Caller;
use crate::routing::{Account, Route, SANDBOX_DOMAIN, SANDBOX_ROUTE};
use crate::setup::Setup;

/// Where one recipient's delivery goes.
pub(super) struct Place<'a> {
    pub(super) route: &'a Route,
    tenant: TenantId,
}

impl Place<'_> {
    /// Accounts that take new messages of the tenant.
    fn accounts_on(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.route.accounts.iter().filter(|account| account.is_on && account.serves(self.tenant))
    }
}

/// The route of each recipient. To the sandbox goes what a test key sends, what is written to its own domain, and
/// everything where no account is configured and the sandbox stands in for all; nothing else ever does.
pub(super) fn places<'a>(
    caller: &'a Caller,
    category: &str,
    class: Class,
    recipients: &[Recipient],
    faults: &mut Faults,
) -> Vec<Place<'a>> {
    let (setup, mode, tenant): (&'a Setup, Mode, TenantId) = (&caller.setup, caller.mode, caller.tenant);
    // It may have been made a moment ago.
    setup.routing.learn(caller.tenant_name(), tenant);
    let via = setup.settings.via(caller.tenant_name(), category, class).to_string();
    let mut missing = false;
    let mut places = Vec::with_capacity(recipients.len());
    for recipient in recipients {
        let to_sandbox = mode == Mode::Test || recipient.mailbox.email.domain() == SANDBOX_DOMAIN;
        let name = if to_sandbox { SANDBOX_ROUTE } else { &via };
        match setup
            .routing
            .route(Channel::Email, class, name)
            .map(|route| Place { route, tenant })
            .filter(|place| place.accounts_on().next().is_some())
        {
            Some(place) => places.push(place),
            None => missing = true,
        }
    }
    if missing {
        let accounts = setup.routing.route(Channel::Email, class, &via).map(|route| route.accounts.as_slice()).unwrap_or_default();
        let detail = match (accounts.iter().any(|account| account.is_on), accounts.is_empty()) {
            (true, _) => "every account of the email route belongs to another tenant: configure one for this tenant or for all (accounts.NAME.tenant)".to_owned(),
            (false, false) => "no account of the email route is on: set accounts.NAME.state to \"on\"".to_owned(),
            (false, true) => format!("no account carries email of class {class}: configure one as accounts.NAME, or name one in routes.email"),
        };
        faults.add(&Pointer::ROOT.name("email"), FaultCode::NoRoute, detail);
    }
    places
}

/// The author: the request's own word, else the category's, else that of the first account that has one, those that
/// send before the tenant, and the sandbox last.
pub(super) fn author(
    caller: &Caller,
    category: &str,
    named: Option<&Author>,
    places: &[Place<'_>],
    faults: &mut Faults,
) -> Option<Mailbox> {
    let setup = &caller.setup;
    let email = Pointer::ROOT.name("email");
    let at = email.name("from");
    match named {
        Some(Author::Mailbox(mailbox)) => return Some(mailbox.clone()),
        Some(Author::Sender(name)) => {
            let sender = setup.settings.senders.get(name).cloned();
            if sender.is_none() {
                let detail = match nearest(name, setup.settings.senders.keys().map(String::as_str)) {
                    Some(meant) => format!("neither an address nor a declared sender; did you mean \"{meant}\"?"),
                    None => "neither an address nor the name of a declared sender (senders.NAME)".to_owned(),
                };
                faults.add(&at, FaultCode::InvalidContent, detail);
            }
            return sender;
        }
        None => {}
    }
    let of_accounts = || {
        let of_route = |is_sandbox: bool| {
            let mut places = places.iter().filter(move |place| (place.route.name == SANDBOX_ROUTE) == is_sandbox);
            places.find_map(|place| place.accounts_on().find_map(|account| account.from.clone()))
        };
        let of_tenant = || setup.settings.author_of_tenant(caller.tenant_name());
        of_route(false).or_else(of_tenant).or_else(|| of_route(true))
    };
    let found = setup.settings.author_of(category).or_else(of_accounts);
    if found.is_none() && faults.is_empty() {
        let detail = "an author is missing: give one here, or configure categories.NAME.from, accounts.NAME.from or tenants.NAME.from";
        faults.add(&at, FaultCode::InvalidContent, detail);
    }
    found
}

/// Whether the accounts of every route may and can send this.
pub(super) fn check(places: &[Place<'_>], from: &Mailbox, content: &Content, faults: &mut Faults) {
    let email = Pointer::ROOT.name("email");
    let mut seen = Vec::new();
    for place in places {
        if seen.contains(&place.route.lane) {
            continue;
        }
        seen.push(place.route.lane);
        let mut eligible = place.accounts_on().filter(|account| account.may_send_as(&from.email)).peekable();
        if eligible.peek().is_none() {
            let names: Vec<&str> = place.accounts_on().map(|account| account.name.as_str()).collect();
            let detail = format!("no account may send as this author: add its domain to sends_as of {}", names.join(" or "));
            faults.add(&email.name("from"), FaultCode::NoRoute, detail);
        }
        for account in eligible {
            for fault in account.adapter.check(content).err().into_iter().flatten() {
                let fault = in_request(fault);
                if !faults.as_slice().contains(&fault) {
                    faults.push(fault);
                }
            }
        }
    }
}

/// An adapter counts its pointers from the content.
fn in_request(fault: ContentFault) -> Fault {
    let (limit, actual) = fault.limit.unzip();
    Fault { pointer: format!("/email{}", fault.pointer), code: FaultCode::InvalidContent, detail: fault.detail, limit, actual }
}
