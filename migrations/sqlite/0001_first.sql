-- Instants are microseconds since 1970. Open work stands in `queue`; a row is there exactly while its `state` in
-- `deliveries`, the record, is NULL. No index predicate names a state: nullable columns are the predicates.
-- Sealed blobs begin with their format; they and addresses live in rowid tables.

CREATE TABLE tenants (
    id INTEGER PRIMARY KEY,
    public_id BLOB NOT NULL UNIQUE CHECK (length(public_id) = 16),
    name TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'disabled')),
    settings TEXT NOT NULL DEFAULT '{}'
) STRICT;

CREATE TABLE api_keys (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    tenant_id INTEGER NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    key_hash BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('live', 'test', 'team')),
    scopes TEXT NOT NULL DEFAULT '[]',
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;

CREATE TABLE settings (
    key TEXT PRIMARY KEY NOT NULL,
    value BLOB NOT NULL
) STRICT;

CREATE TABLE instances (
    id INTEGER PRIMARY KEY,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    config_digest BLOB NOT NULL
) STRICT;

-- The number outlives the configuration.
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'active',
    paused_until INTEGER
) STRICT;

CREATE TABLE lanes (
    id INTEGER PRIMARY KEY,
    channel TEXT NOT NULL CHECK (channel IN ('email', 'sms', 'push')),
    class TEXT NOT NULL CHECK (class IN ('critical', 'transactional', 'bulk')),
    route TEXT NOT NULL,
    UNIQUE (channel, class, route)
) STRICT;

CREATE TABLE switches (
    scope TEXT PRIMARY KEY NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    until INTEGER,
    reason TEXT,
    actor TEXT,
    version INTEGER NOT NULL DEFAULT 1
) STRICT;

-- Never updated, but for erasure. The key is unique here, as long as the notification is kept.
CREATE TABLE notifications (
    tenant_id INTEGER NOT NULL,
    id BLOB NOT NULL CHECK (length(id) = 16),
    mode INTEGER NOT NULL CHECK (mode IN (0, 1)),
    idempotency_key TEXT NOT NULL CHECK (idempotency_key <> ''),
    fingerprint BLOB NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    category TEXT NOT NULL,
    class TEXT NOT NULL CHECK (class IN ('critical', 'transactional', 'bulk')),
    ref_digest BLOB,
    tags TEXT NOT NULL DEFAULT '[]',
    metadata BLOB,
    trace_context TEXT,
    send_at INTEGER,
    expires_at INTEGER NOT NULL,
    strategy INTEGER NOT NULL DEFAULT 0,
    delivery_count INTEGER NOT NULL CHECK (delivery_count > 0),
    body BLOB,
    PRIMARY KEY (tenant_id, id)
) STRICT;
CREATE UNIQUE INDEX notifications_by_key ON notifications (tenant_id, mode, idempotency_key);

CREATE TABLE deliveries (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL CHECK (mode IN (0, 1)),
    channel TEXT NOT NULL CHECK (channel IN ('email', 'sms', 'push')),
    class TEXT NOT NULL CHECK (class IN ('critical', 'transactional', 'bulk')),
    lane INTEGER NOT NULL,
    hop INTEGER NOT NULL DEFAULT 0,
    state TEXT CHECK (state IN ('accepted', 'delivered', 'bounced', 'failed', 'suppressed', 'cancelled', 'expired', 'superseded', 'dead', 'unknown')),
    reason TEXT,
    version INTEGER NOT NULL DEFAULT 1,
    generation INTEGER NOT NULL DEFAULT 1,
    attempt_number INTEGER NOT NULL DEFAULT 0,
    attempt_count INTEGER NOT NULL DEFAULT 0,
    unresolved INTEGER NOT NULL DEFAULT 0 CHECK (unresolved >= 0),
    flags INTEGER NOT NULL DEFAULT 0,
    receipt_rank INTEGER,
    receipt_at INTEGER,
    receipt_key BLOB,
    account_id INTEGER,
    address_digest BLOB NOT NULL,
    ref BLOB,
    message_id TEXT,
    suppression_id BLOB,
    send_at INTEGER,
    expires_at INTEGER NOT NULL,
    attention INTEGER CHECK (attention = 1),
    updated_at INTEGER NOT NULL,
    settled_at INTEGER,
    address BLOB,
    copies BLOB,
    -- Over exactly when there is an end to settle on.
    CHECK ((state IS NULL) = (settled_at IS NULL)),
    CHECK (attention IS NULL OR (state IS NOT NULL AND state IN ('dead', 'unknown')))
) STRICT;
CREATE INDEX deliveries_dead ON deliveries (tenant_id, id) WHERE attention IS NOT NULL;

CREATE TABLE queue (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL CHECK (mode IN (0, 1)),
    lane INTEGER NOT NULL,
    category TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('scheduled', 'queued', 'retry_wait', 'deferred', 'dispatching', 'ambiguous')),
    available_at INTEGER, -- 9223372036854775807 while it waits behind the head of its ordering key
    lease_expires_at INTEGER,
    lease_owner INTEGER,
    account_id INTEGER,
    attempt_number INTEGER NOT NULL DEFAULT 0, -- also the lease's epoch
    attempt_started_at INTEGER,
    generation INTEGER NOT NULL DEFAULT 1,
    attempt_count INTEGER NOT NULL DEFAULT 0,
    attempts_used INTEGER NOT NULL DEFAULT 0,
    attempt_limit INTEGER NOT NULL CHECK (attempt_limit > 0),
    lost_count INTEGER NOT NULL DEFAULT 0,
    build_failures INTEGER NOT NULL DEFAULT 0,
    unresolved INTEGER NOT NULL DEFAULT 0 CHECK (unresolved >= 0),
    no_resend TEXT, -- why no resend by policy may happen any more
    flags INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 1,
    ambiguous_since INTEGER,
    check_at INTEGER,
    rung INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL,
    address_digest BLOB NOT NULL,
    old_digest BLOB,
    sender TEXT,
    ordering_key TEXT,
    ordering_seq INTEGER,
    collapse_key TEXT,
    schema_version INTEGER NOT NULL,
    CHECK ((state IN ('scheduled', 'queued', 'retry_wait', 'deferred')) = (available_at IS NOT NULL)),
    CHECK ((state = 'dispatching') = (lease_expires_at IS NOT NULL)),
    CHECK ((state = 'ambiguous') = (check_at IS NOT NULL)),
    CHECK ((lease_expires_at IS NULL) = (lease_owner IS NULL))
) STRICT;
CREATE INDEX queue_claim ON queue (lane, tenant_id, available_at) WHERE available_at IS NOT NULL;
CREATE INDEX queue_lease ON queue (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_checks ON queue (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX queue_expiry ON queue (expires_at) WHERE available_at IS NOT NULL;
CREATE INDEX queue_collapse ON queue (tenant_id, collapse_key, id) WHERE collapse_key IS NOT NULL;
CREATE INDEX queue_ordering ON queue (tenant_id, ordering_key, ordering_seq) WHERE ordering_key IS NOT NULL;

CREATE TABLE chains (
    notification_id BLOB PRIMARY KEY NOT NULL CHECK (length(notification_id) = 16),
    next_hop INTEGER NOT NULL,
    until INTEGER NOT NULL,
    due_at INTEGER NOT NULL
) STRICT;
CREATE INDEX chains_due ON chains (due_at);

CREATE TABLE ordering_lanes (
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    channel TEXT NOT NULL,
    ordering_key TEXT NOT NULL,
    next_seq INTEGER NOT NULL,
    head BLOB,
    head_since INTEGER,
    PRIMARY KEY (tenant_id, mode, channel, ordering_key)
) STRICT;

CREATE TABLE attempts (
    delivery_id BLOB NOT NULL CHECK (length(delivery_id) = 16),
    number INTEGER NOT NULL CHECK (number > 0),
    generation INTEGER NOT NULL,
    account_id INTEGER,
    started_at INTEGER NOT NULL,
    finished_at INTEGER,
    outcome TEXT NOT NULL,
    accepted_at INTEGER, -- the generation's first acceptance alone
    late INTEGER NOT NULL DEFAULT 0 CHECK (late IN (0, 1)),
    provider_code TEXT,
    provider_message_id TEXT,
    match_key TEXT,
    detail TEXT,
    PRIMARY KEY (delivery_id, number)
) STRICT;
CREATE UNIQUE INDEX one_acceptance ON attempts (delivery_id, generation) WHERE accepted_at IS NOT NULL;
CREATE INDEX attempts_by_provider_id ON attempts (account_id, match_key) WHERE match_key IS NOT NULL;

-- One writer commits in the order of `pos`: it is the feed's cursor.
CREATE TABLE events (
    pos INTEGER PRIMARY KEY AUTOINCREMENT,
    n INTEGER NOT NULL DEFAULT 0,
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    at INTEGER NOT NULL,
    delivery_id BLOB NOT NULL CHECK (length(delivery_id) = 16),
    version INTEGER NOT NULL,
    type TEXT NOT NULL,
    previous_state TEXT,
    state TEXT NOT NULL,
    reason TEXT,
    certainty TEXT NOT NULL,
    account_id INTEGER,
    generation INTEGER NOT NULL,
    attempt_count INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    bounce_class TEXT,
    smtp_code INTEGER,
    enhanced_code TEXT,
    occurred_at INTEGER NOT NULL
) STRICT;
CREATE INDEX events_feed ON events (tenant_id, mode, pos);

CREATE TABLE envelopes (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    account_id INTEGER NOT NULL,
    pending INTEGER CHECK (pending = 1),
    item_count INTEGER NOT NULL DEFAULT 0,
    headers TEXT,
    raw BLOB
) STRICT;
CREATE INDEX envelopes_pending ON envelopes (id) WHERE pending IS NOT NULL;

CREATE TABLE receipts (
    account_id INTEGER NOT NULL,
    event_key BLOB NOT NULL,
    tenant_id INTEGER,
    mode INTEGER,
    envelope_id BLOB,
    item INTEGER,
    delivery_id BLOB,
    provider_at INTEGER,
    type TEXT NOT NULL,
    state TEXT,
    unmatched INTEGER CHECK (unmatched = 1),
    match_key TEXT,
    address_digest BLOB,
    detail BLOB,
    PRIMARY KEY (account_id, event_key)
) STRICT;
CREATE INDEX receipts_unmatched ON receipts (account_id, match_key) WHERE unmatched IS NOT NULL;
CREATE INDEX receipts_of_delivery ON receipts (delivery_id) WHERE delivery_id IS NOT NULL;

CREATE TABLE suppressions (
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    channel TEXT NOT NULL,
    address_digest BLOB NOT NULL,
    reason TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('all', 'complaint', 'bulk')),
    source TEXT NOT NULL,
    note TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    address BLOB,
    PRIMARY KEY (tenant_id, mode, channel, address_digest, reason, scope)
) STRICT;

CREATE TABLE soft_bounces (
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    channel TEXT NOT NULL,
    address_digest BLOB NOT NULL,
    day INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, mode, channel, address_digest, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE rate_buckets (
    key TEXT PRIMARY KEY NOT NULL,
    tokens REAL NOT NULL,
    refilled_at INTEGER NOT NULL,
    rate REAL NOT NULL,
    burst REAL NOT NULL
) STRICT;

CREATE TABLE quota_pools (
    key TEXT NOT NULL,
    window_start INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0,
    quota INTEGER NOT NULL,
    PRIMARY KEY (key, window_start)
) STRICT;

CREATE TABLE sweep_runs (
    job TEXT NOT NULL,
    window_start INTEGER NOT NULL,
    instance_id INTEGER,
    started_at INTEGER NOT NULL,
    finished_at INTEGER,
    rows INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    PRIMARY KEY (job, window_start)
) STRICT;

CREATE TABLE audit_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    tenant_id INTEGER,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT,
    reason TEXT,
    detail TEXT
) STRICT;

CREATE TABLE sandbox_messages (
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    channel TEXT NOT NULL,
    notification_id BLOB NOT NULL CHECK (length(notification_id) = 16),
    handle TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    envelope_to TEXT NOT NULL DEFAULT '[]',
    body BLOB NOT NULL,
    PRIMARY KEY (tenant_id, mode, id)
) STRICT;

CREATE TABLE stats_deltas (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    minute INTEGER NOT NULL,
    instance_id INTEGER NOT NULL,
    tenant_id INTEGER,
    mode INTEGER NOT NULL,
    metric TEXT NOT NULL,
    labels TEXT NOT NULL DEFAULT '{}',
    value INTEGER NOT NULL
) STRICT;
