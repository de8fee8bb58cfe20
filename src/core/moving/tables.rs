//! Every table and column that moves, in the order in which they can be written, and those that do not move.

use super::Kind::{Bytes, Day, Flag, Id, Instant, Int, Json, Text, Words};
use super::{Column, Table};

macro_rules! tables {
    ($($table:ident { $($column:ident: $kind:ident),+ $(,)? })+) => {
        /// What moves.
        pub static TABLES: &[Table] = &[$(Table {
            name: stringify!($table),
            columns: &[$(Column { name: stringify!($column), kind: $kind }),+],
        }),+];
    };
}

tables! {
    tenants { id: Int, public_id: Id, name: Text, state: Text, settings: Json }
    api_keys { id: Id, tenant_id: Int, name: Text, key_hash: Bytes, kind: Text, scopes: Words, expires_at: Instant, revoked_at: Instant }
    settings { key: Text, value: Bytes }
    accounts { id: Int, name: Text, kind: Text, state: Text, paused_until: Instant }
    lanes { id: Int, channel: Text, class: Text, route: Text }
    switches { scope: Text, paused: Flag, until: Instant, reason: Text, actor: Text, version: Int }
    notifications {
        tenant_id: Int, id: Id, mode: Int, idempotency_key: Text, fingerprint: Bytes, fingerprint_version: Int, schema_version: Int,
        category: Text, class: Text, ref_digest: Bytes, tags: Words, metadata: Bytes, trace_context: Text, send_at: Instant,
        expires_at: Instant, strategy: Int, delivery_count: Int, holds_key: Flag, body: Bytes,
    }
    deliveries {
        id: Id, tenant_id: Int, mode: Int, channel: Text, class: Text, lane: Int, hop: Int, state: Text, reason: Text, version: Int,
        generation: Int, attempt_number: Int, attempt_count: Int, unresolved: Int, flags: Int, receipt_rank: Int, receipt_at: Instant,
        receipt_key: Bytes, account_id: Int, address_digest: Bytes, address: Bytes, ref: Bytes, copies: Bytes, message_id: Text,
        suppression_id: Id, send_at: Instant, expires_at: Instant, attention: Flag, updated_at: Instant, settled_at: Instant,
        replays: Int, sender: Text,
    }
    queue {
        id: Id, tenant_id: Int, mode: Int, lane: Int, category: Text, state: Text, available_at: Instant, lease_expires_at: Instant,
        lease_owner: Int, account_id: Int, attempt_number: Int, attempt_started_at: Instant, generation: Int, attempt_count: Int,
        attempts_used: Int, attempt_limit: Int, lost_count: Int, build_failures: Int, unresolved: Int, flags: Int, no_resend: Text,
        version: Int, ambiguous_since: Instant, check_at: Instant, rung: Int, expires_at: Instant, address_digest: Bytes,
        old_digest: Bytes, sender: Text, ordering_key: Text, ordering_seq: Int, collapse_key: Text, schema_version: Int, siblings: Int,
    }
    chains { notification_id: Id, next_hop: Int, until: Instant, due_at: Instant }
    ordering_lanes {
        tenant_id: Int, mode: Int, channel: Text, ordering_key: Text, next_seq: Int, head: Id, head_since: Instant,
    }
    attempts {
        delivery_id: Id, number: Int, generation: Int, account_id: Int, started_at: Instant, finished_at: Instant, outcome: Text,
        accepted_at: Instant, late: Flag, provider_code: Text, provider_message_id: Text, match_key: Text, detail: Text,
    }
    events {
        tenant_id: Int, mode: Int, pos: Int, n: Int, at: Instant, delivery_id: Id, version: Int, type: Text, previous_state: Text,
        state: Text, reason: Text, certainty: Text, account_id: Int, generation: Int, attempt_count: Int, flags: Int,
        bounce_class: Text, smtp_code: Int, enhanced_code: Text, occurred_at: Instant, detail: Text,
    }
    feed_floors { tenant_id: Int, mode: Int, pos: Int, n: Int }
    envelopes { id: Id, account_id: Int, pending: Flag, item_count: Int, headers: Json, raw: Bytes }
    receipts {
        account_id: Int, event_key: Bytes, tenant_id: Int, mode: Int, envelope_id: Id, item: Int, delivery_id: Id,
        provider_at: Instant, type: Text, state: Text, unmatched: Flag, match_key: Text, address_digest: Bytes, detail: Bytes,
    }
    suppressions {
        id: Id, tenant_id: Int, mode: Int, channel: Text, address_digest: Bytes, reason: Text, scope: Text, address: Bytes,
        source: Text, note: Text, created_at: Instant, expires_at: Instant, delivery_id: Id,
    }
    soft_bounces { tenant_id: Int, mode: Int, channel: Text, address_digest: Bytes, day: Day, count: Int }
    quota_pools { key: Text, period_start: Instant, quota: Int, used: Int }
    audit_log { id: Int, at: Instant, tenant_id: Int, actor: Text, action: Text, subject: Text, detail: Json }
    sandbox_messages {
        id: Id, tenant_id: Int, mode: Int, received_at: Instant, channel: Text, notification_id: Id, handle: Text,
        idempotency_key: Text, envelope_to: Words, body: Bytes,
    }
}

/// Tables that do not move as such: they are about processes or about the present second, or travel with `notifications`.
pub const TABLES_LEFT: &[&str] =
    &["instances", "sweep_runs", "rate_buckets", "stats_deltas", "_sqlx_migrations", "idempotency", "contents"];

/// Columns that do not move under their own name: one database has them in another form, or nothing ever writes them.
pub const COLUMNS_LEFT: &[(&str, &str)] = &[
    ("notifications", "key_freed"),
    ("quota_pools", "window_start"),
    ("audit_log", "reason"),
    ("sandbox_messages", "delivery_id"),
    ("sandbox_messages", "generation"),
];
