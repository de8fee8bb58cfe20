//! In what a request differs from the one that has its key, as long as the content of that one is kept.
//! What counts as a difference is core's; this puts the earlier request together from what is stored.

use tidings_core::differs;
use tidings_core::request::{Recipient, Request};
use tidings_core::store::{StoredNotification, StoredOutgoing};

use super::Api;
use super::view::Opened;
use crate::intake::Intake;
use crate::sealed;

/// The places where they differ; empty where the content is gone, or cannot be read.
pub(super) async fn differs(api: &Api, stored: &StoredNotification, intake: &Intake) -> Vec<String> {
    let Some(first) = stored.deliveries.first().map(|stored| stored.delivery.id) else { return Vec::new() };
    let outgoing = api.read(move |store| async move { store.outgoing(&[first]).await }).await;
    let kept = outgoing.ok().and_then(|outgoing| outgoing.into_iter().next());
    let new = api.app.keyring.as_ref();
    let earlier = kept.and_then(|kept| restored(new, stored, &kept));
    let request = requested(new, intake);
    earlier.zip(request).map(|(earlier, request)| differs::differs(&earlier, &request)).unwrap_or_default()
}

/// The earlier request.
fn restored(keyring: &tidings_core::secrets::Keyring, stored: &StoredNotification, kept: &StoredOutgoing) -> Option<Request> {
    let (content, asked) = sealed::open_asked(keyring, stored.id, kept.body.as_deref()?).ok()?;
    let recipient = |delivery| {
        let Opened { address, reference } = Opened::open(keyring, delivery).ok()?;
        let sealed::Address { written, mailbox, metadata } = address?;
        Some(Recipient { mailbox, written, reference, metadata })
    };
    let recipients = stored.deliveries.iter().map(recipient).collect::<Option<Vec<_>>>()?;
    Some(asked.restore(&stored.category, stored.tags.clone(), recipients, content))
}

/// The request that was turned away, from what would have been stored of it: it is rarely asked for, and so kept nowhere.
fn requested(keyring: &tidings_core::secrets::Keyring, intake: &Intake) -> Option<Request> {
    let new = &intake.notification;
    let (content, asked) = sealed::open_asked(keyring, new.id, &new.body).ok()?;
    let recipient = |delivery: &tidings_core::store::NewDelivery| {
        let sealed::Address { written, mailbox, metadata } = sealed::open_address(keyring, delivery.id, &delivery.address).ok()?;
        let reference = match &delivery.reference {
            Some(sealed) => Some(sealed::open_reference(keyring, delivery.id, sealed).ok()?),
            None => None,
        };
        Some(Recipient { mailbox, written, reference, metadata })
    };
    let recipients = new.deliveries.iter().map(recipient).collect::<Option<Vec<_>>>()?;
    Some(asked.restore(&new.category, new.tags.clone(), recipients, content))
}
