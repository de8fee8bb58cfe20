-- How many deliveries the notification of a row has; 0 where that was not written down, which is then found out.
ALTER TABLE queue ADD COLUMN siblings INTEGER NOT NULL DEFAULT 0;

-- Who leaves the queue finds the lane that it heads, if it heads one; and heads that are stuck are found by their age.
CREATE INDEX ordering_heads ON ordering_lanes (head) WHERE head IS NOT NULL;
CREATE INDEX ordering_ages ON ordering_lanes (head_since);

-- Up to where the events of a tenant and mode were purged: a reader that stands before it has missed some.
CREATE TABLE feed_floors (
    tenant_id INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    pos INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, mode)
) STRICT;
