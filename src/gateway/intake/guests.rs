//! Whom a team key may write to: the guest list of its tenant, copies included.

use tidings_core::address::Mailbox;
use tidings_core::fault::{FaultCode, Faults};
use tidings_core::pointer::Pointer;
use tidings_core::request::Request;

use crate::api::auth::Caller;

/// Faults everybody who is not on the list. Keys of other kinds write to whom they want.
pub(super) fn guests(caller: &Caller, request: &Request, faults: &mut Faults) {
    if !caller.is_for_guests() {
        return;
    }
    let tenant = caller.setup.settings.tenants.get(caller.tenant_name());
    let is_guest = |mailbox: &Mailbox| tenant.is_some_and(|tenant| tenant.is_guest(&mailbox.email));
    let email = Pointer::ROOT.name("email");
    let lists: [(Pointer<'_>, Vec<&Mailbox>); 4] = [
        (Pointer::ROOT.name("to"), request.recipients.iter().map(|recipient| &recipient.mailbox).collect()),
        (email.name("cc"), request.email.cc.iter().collect()),
        (email.name("bcc"), request.email.bcc.iter().collect()),
        (email.name("also_to"), request.email.also_to.iter().collect()),
    ];
    for (at, list) in lists {
        for (position, _) in list.iter().enumerate().filter(|(_, mailbox)| !is_guest(mailbox)) {
            let detail = format!("a team key writes to the guest list alone (tenants.{}.guest_list)", caller.tenant_name());
            let element = at.index(position);
            // A single one may stand there without a list around it.
            faults.add(if list.len() > 1 { &element } else { &at }, FaultCode::RecipientNotAllowed, detail);
        }
    }
}
