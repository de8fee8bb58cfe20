//! Copies (cc, bcc, further `To`) that are not written to: asked after the claim and before the call, at every attempt
//! (S-147). A suppressed copy leaves the message; a suppressed `to` has ended the delivery before.

use std::collections::BTreeMap;

use tidings_core::content::Content;
use tidings_core::delivery::Delivery;
use tidings_core::store::{Asked, StoreError};
use tidings_core::suppression::{Hit, obeyed};
use tidings_core::words::Channel;

use crate::app::App;

/// The canonical addresses of copies that this message must not reach.
///
/// # Errors
/// When it cannot be found out: then nobody is called.
pub async fn suppressed(app: &App, delivery: &Delivery, content: &Content) -> Result<Vec<String>, StoreError> {
    let Content::Email(email) = content;
    let copies = email.also_to.iter().chain(&email.cc).chain(&email.bcc);
    let by_digest: BTreeMap<Vec<u8>, String> = copies
        .map(|mailbox| mailbox.email.canonical())
        .map(|address| (app.keyring.address_digest(Channel::Email, &address), address))
        .collect();
    if by_digest.is_empty() {
        return Ok(Vec::new());
    }
    let digests = by_digest.keys().cloned().collect();
    let asked = Asked { tenant: delivery.tenant, mode: delivery.mode, channel: Channel::Email, digests };
    let mut hits: BTreeMap<Vec<u8>, Vec<Hit>> = BTreeMap::new();
    for (digest, hit) in app.store.suppressions().hits(&asked, app.now()).await? {
        hits.entry(digest).or_default().push(hit);
    }
    let author = email.from.email.canonical();
    let is_stopped = |digest: &Vec<u8>| hits.get(digest).is_some_and(|hits| obeyed(hits, delivery.class, Some(&author)).is_some());
    Ok(by_digest.into_iter().filter(|(digest, _)| is_stopped(digest)).map(|(_, address)| address).collect())
}
