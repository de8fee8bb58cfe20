//! What a process answers that does not have every role: what its own roles are about, and for the rest which role is missing.
//! Health, version, metrics and documentation are there in every process, and so are accounts and the reload of the
//! configuration: each process has those for itself.

use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{Error, web};

use super::Api;
use super::problem::{Code, Problem};
use crate::config::Role;

/// A load balancer may choose another process the next time.
const COME_AGAIN: Duration = Duration::from_secs(1);

/// Turns away what another process has to answer.
pub(super) async fn guard(request: ServiceRequest, next: Next<BoxBody>) -> Result<ServiceResponse<BoxBody>, Error> {
    // As the router reads it: `%76` is a `v`.
    let needed = needed(request.match_info().as_str());
    let lacks = |api: &web::Data<Api>, role: Role| !api.app.setup().settings.server.roles.has(role);
    if let Some(role) = needed.filter(|role| request.app_data::<web::Data<Api>>().is_some_and(|api| lacks(api, *role))) {
        let detail = format!("this process does not have the role \"{}\" (server.roles): ask one that has it", role.as_str());
        return Ok(request.error_response(Problem::new(Code::RoleMissing, detail).after(COME_AGAIN)));
    }
    next.call(request).await
}

/// The role without which a path is not answered.
fn needed(path: &str) -> Option<Role> {
    let is_within = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_within("/v1/accounts") {
        // It calls the provider.
        return path.ends_with("/test").then_some(Role::Workers);
    }
    (!is_within("/v1/config") && (is_within("/v1") || is_within("/sandbox"))).then_some(Role::Intake)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_needs_the_role_that_it_is_about() {
        for (path, role) in [
            ("/v1/notifications", Some(Role::Intake)),
            ("/v1/nothing", Some(Role::Intake)),
            ("/v1/switches/all", Some(Role::Intake)),
            ("/sandbox", Some(Role::Intake)),
            ("/sandbox/msg_1", Some(Role::Intake)),
            ("/v1/accounts", None),
            ("/v1/accounts/relay/pause", None),
            ("/v1/accounts/relay/test", Some(Role::Workers)),
            ("/v1/config/reload", None),
            ("/healthz", None),
            ("/metrics", None),
            ("/v1x", None),
            ("/sandboxes", None),
        ] {
            assert_eq!(needed(path), role, "{path}");
        }
    }
}
