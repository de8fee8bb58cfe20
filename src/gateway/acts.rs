//! Carries out acts and wakes the lanes in which they made something due. What they do is decided in core.

use tidings_core::acts::{Act, Verb};
use tidings_core::store::{Acted, StoreError};
use tidings_core::time::Clock as _;

use crate::app::App;
use crate::metrics::By;

/// Carries out acts, at most `MOST_ACTS`, in the order given.
pub async fn carry_out(app: &App, acts: &[Act]) -> Vec<Result<Acted, StoreError>> {
    let acted = app.store.acts().act(&app.setup().rules, acts, app.clock.now()).await;
    for delivery in acted.iter().flatten().flat_map(|acted| &acted.changed) {
        if let Some(at) = delivery.available_at.filter(|_| delivery.state.is_waiting() && !delivery.blocked) {
            app.wake.lane(delivery.lane, at);
        }
    }
    for (act, acted) in acts.iter().zip(&acted) {
        if let Ok(acted) = acted
            && !acted.changed.is_empty()
        {
            if matches!(act.verb, Verb::Resolve(_)) {
                app.metrics.ambiguous_resolved.get_or_create(&By { by: "operator" }).inc_by(acted.changed.len() as u64);
            }
            tracing::info!(act = act.verb.as_str(), notification_id = %act.target.notification(), actor = act.actor, changed = acted.changed.len(), "act carried out");
        }
    }
    acted
}
