//! Copies (cc, bcc, further `To`) that are not written to: asked after the claim and before the call, at every attempt
//! (S-147). A suppressed copy leaves the message; a suppressed `to` has ended the delivery before. And the suppressions that
//! refused copies lead to (S-149).

use std::collections::BTreeMap;

use tidings_core::address::EmailAddress;
use tidings_core::content::Content;
use tidings_core::delivery::Delivery;
use tidings_core::outcome::Report;
use tidings_core::store::{Asked, NewSuppression, StoreError};
use tidings_core::suppression::{Hit, SuppressionReason, is_suppressible, obeyed};
use tidings_core::words::Channel;

use crate::app::App;
use crate::sealed;

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

/// What the call says about the mailboxes of copies, ready to be written with its outcome.
pub fn suppressed_by(app: &App, delivery: &Delivery, report: &Report) -> Vec<NewSuppression> {
    let addresses = report.dead_copies.iter().filter_map(|raw| raw.parse::<EmailAddress>().ok()).filter(is_suppressible);
    addresses.map(|address| new_row(app, delivery, &address)).collect()
}

fn new_row(app: &App, delivery: &Delivery, address: &EmailAddress) -> NewSuppression {
    let (now, reason) = (app.now(), SuppressionReason::HardBounce);
    let id = uuid::Builder::from_unix_timestamp_millis(now.as_millis(), &rand::random()).into_uuid();
    NewSuppression {
        id,
        tenant: delivery.tenant,
        mode: delivery.mode,
        channel: Channel::Email,
        address_digest: app.keyring.address_digest(Channel::Email, &address.canonical()),
        address: sealed::seal_suppressed(&app.keyring, id, address),
        reason,
        scope: reason.usual_scope(),
        source: "provider".to_owned(),
        note: None,
        created_at: now,
        delivery: Some(delivery.id),
    }
}
