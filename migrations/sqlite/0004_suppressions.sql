-- A scope may name one author. A suppression that a refusal led to keeps the sealed address of its delivery, which opens
-- under that delivery's id. A CHECK is widened by making the table anew.
CREATE TABLE suppressions_next (
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    channel TEXT NOT NULL,
    address_digest BLOB NOT NULL,
    reason TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('all', 'complaint', 'bulk') OR scope LIKE 'sender:_%'),
    source TEXT NOT NULL,
    note TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    delivery_id BLOB,
    address BLOB,
    PRIMARY KEY (tenant_id, mode, channel, address_digest, reason, scope)
) STRICT;
INSERT INTO suppressions_next (id, tenant_id, mode, channel, address_digest, reason, scope, source, note, created_at, expires_at, address)
SELECT id, tenant_id, mode, channel, address_digest, reason, scope, source, note, created_at, expires_at, address FROM suppressions;
DROP TABLE suppressions;
ALTER TABLE suppressions_next RENAME TO suppressions;
CREATE INDEX suppressions_list ON suppressions (tenant_id, mode, id);
