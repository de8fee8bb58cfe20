//! What the audit log says of an act that changed something: who, what, of which delivery, why, from where to where.
//! Identities and states alone; an address is not in reach here.

use serde::Serialize;

use super::{Act, Decision, Target};
use crate::ids::{DeliveryId, TenantId};
use crate::state::State;
use crate::words::Mode;

/// A row of the audit log, written in the transaction of what it tells (S-217).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Whose.
    pub tenant: Option<TenantId>,
    /// Who did it.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// To what.
    pub subject: String,
    /// A JSON object of further facts.
    pub detail: String,
}

#[derive(Serialize)]
struct Detail<'a> {
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    changed: Vec<Changed>,
}

#[derive(Serialize)]
struct Changed {
    delivery: DeliveryId,
    from: State,
    to: State,
    generation: u16,
    version: i32,
}

impl AuditEntry {
    /// What is told of an act; nothing where nothing changed.
    pub fn of(act: &Act, decision: &Decision) -> Option<Self> {
        if decision.changes.is_empty() {
            return None;
        }
        let changed = decision.changes.iter().map(|acting| &acting.change).map(|change| Changed {
            delivery: change.after.id,
            from: change.before.state,
            to: change.after.state,
            generation: change.after.generation,
            version: change.after.version,
        });
        let detail = Detail { mode: act.mode, reason: act.note.as_deref(), changed: changed.collect() };
        let (kind, subject) = match act.target {
            Target::Notification(id) => ("notification", id.to_string()),
            Target::Delivery(id) => ("delivery", id.to_string()),
        };
        Some(Self {
            tenant: Some(act.tenant),
            actor: act.actor.clone(),
            action: format!("{kind}.{}", act.verb.as_str()),
            subject,
            detail: serde_json::to_string(&detail).expect("texts and numbers always have a JSON form"),
        })
    }
}
