//! Who a message goes to: the envelope, taken from the request and never from finished headers.
//! What the headers show is `mime`'s business.

use std::collections::HashSet;

use tidings_core::adapter::Outgoing;
use tidings_core::address::EmailAddress;
use tidings_core::content::Content;
use tidings_core::ids::Handle;

/// Everybody in the envelope, `to` first, each mailbox once, without those left out.
pub fn recipients(outgoing: &Outgoing) -> Vec<&EmailAddress> {
    let Content::Email(email) = &*outgoing.content;
    let left_out = LeftOut::of(outgoing);
    let mut seen = HashSet::from([outgoing.to.email.canonical()]);
    let copies = email.also_to.iter().chain(&email.cc).chain(&email.bcc).map(|mailbox| &mailbox.email);
    let copies = copies.filter(|address| !left_out.has(address) && seen.insert(address.canonical()));
    std::iter::once(&outgoing.to.email).chain(copies).collect()
}

/// The envelope sender of this send: `bounce@mail.example.com` becomes `bounce+<handle>@mail.example.com` (VERP).
pub fn return_path(base: &EmailAddress, handle: &Handle) -> String {
    format!("{}+{handle}@{}", base.local_part(), base.domain())
}

/// Copies that this call must not reach, matched by canonical address.
pub(crate) struct LeftOut(HashSet<String>);

impl LeftOut {
    pub(crate) fn of(outgoing: &Outgoing) -> Self {
        let canonical = |raw: &String| raw.parse::<EmailAddress>().map_or_else(|_| raw.to_lowercase(), |address| address.canonical());
        Self(outgoing.left_out.iter().map(canonical).collect())
    }

    pub(crate) fn has(&self, address: &EmailAddress) -> bool {
        !self.0.is_empty() && self.0.contains(&address.canonical())
    }
}
