//! `GET /metrics`: asks the store what is not counted in the process, at most every few seconds, and writes everything down.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use tidings_core::state::State;
use tidings_core::store::Depth;

use super::Api;
use crate::app::App;
use crate::metrics::{LaneState, OfAccount, Sample};
use crate::slots::Capped;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What was measured is good for this long, however often somebody asks.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// What the store said last.
#[derive(Default)]
pub(super) struct Measurements(Mutex<Option<(Instant, Stored)>>);

#[derive(Clone, Default)]
struct Stored {
    depths: Vec<Depth>,
    horizon: Duration,
    capped: Vec<Capped>,
    is_measured: bool,
}

/// Everything that is counted and measured. It needs no key: there is nothing of a tenant in it.
pub(super) async fn show(api: web::Data<Api>) -> HttpResponse {
    let stored = stored(&api).await;
    let text = api.app.metrics.render(&sample(&api.app, stored));
    HttpResponse::Ok().insert_header((header::CONTENT_TYPE, CONTENT_TYPE)).body(text)
}

async fn stored(api: &Api) -> Stored {
    let known = api.measurements.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some((_, stored)) = known.filter(|(at, _)| at.elapsed() < GOOD_FOR) {
        return stored;
    }
    let now = api.app.now();
    let capped = api.app.slots.capped(api.app.setup().routing.accounts.iter(), now);
    let asked = api
        .read(move |store| async move {
            let gauges = store.gauges();
            Ok((gauges.depths(now).await?, gauges.horizon_age().await?, Capped::counted(capped, store.as_ref()).await?))
        })
        .await;
    // A store that does not answer is said so, and is asked again at the next scrape.
    let Ok((depths, horizon, capped)) = asked else { return Stored::default() };
    let stored = Stored { depths, horizon, capped, is_measured: true };
    *api.measurements.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), stored.clone()));
    stored
}

fn sample(app: &App, stored: Stored) -> Sample {
    let now = app.now();
    let setup = app.setup();
    let mut sample = Sample {
        config_digest: setup.digest.clone(),
        events_horizon: stored.horizon,
        is_measured: stored.is_measured,
        faults: app.readiness.faults(),
        uptime: app.started.elapsed(),
        ..Sample::default()
    };
    let daily = |capped: &Capped| {
        let account = setup.routing.account(capped.account)?.name.clone();
        Some((OfAccount { account }, capped.cap, capped.used))
    };
    sample.daily = stored.capped.iter().filter_map(daily).collect();
    let of_lane = |lane| stored.depths.iter().filter(move |depth| depth.lane == lane);
    sample.ambiguous_open = stored.depths.iter().filter(|depth| depth.state == State::Ambiguous).map(|depth| depth.rows).sum();
    let former = setup.routing.former.iter().filter(|route| of_lane(route.lane).next().is_some());
    for route in setup.routing.routes.iter().chain(former).filter(|_| stored.is_measured) {
        let (channel, class) = (route.channel.as_str(), route.class.as_str());
        let since = of_lane(route.lane).filter_map(|depth| depth.ready_since).min();
        let age = since.map_or(Duration::ZERO, |since| now.since(since));
        sample.oldest_ready.push((route.labels(), age));
        for depth in of_lane(route.lane) {
            sample.depth.push((LaneState { channel, class, route: route.name.clone(), state: depth.state.as_str() }, depth.rows));
        }
    }
    sample
}
