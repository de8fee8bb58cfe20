-- How many deliveries the notification of a row has; 0 where that was not written down, which is then found out.
ALTER TABLE queue ADD COLUMN siblings smallint NOT NULL DEFAULT 0;

-- Who leaves the queue finds the lane that it heads, if it heads one; and heads that are stuck are found by their age.
CREATE INDEX ordering_heads ON ordering_lanes (head) WHERE head IS NOT NULL;
CREATE INDEX ordering_ages ON ordering_lanes (head_since);

-- Up to where the events of a tenant and mode were purged: a reader that stands before it has missed some.
CREATE TABLE feed_floors (
    tenant_id int NOT NULL,
    mode      smallint NOT NULL,
    pos       bigint NOT NULL,
    n         int NOT NULL,
    PRIMARY KEY (tenant_id, mode)
);

-- Readers stop before this position: nothing below it can still be committed.
CREATE FUNCTION feed_horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT ('x' || encode(value, 'hex'))::bit(64)::bigint + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    FROM settings WHERE key = 'feed_base'
$$;

-- Drops the oldest weekly partition of `events` that ended before `told_before`, or else deletes a chunk of what lies in
-- the default partition; notes how far for each tenant and mode first. Returns 0 when nothing is left to do. The lock on
-- the table is waited for only briefly: whoever comes behind us would wait as well, and the next run tries again.
CREATE FUNCTION purge_events(told_before timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    part   text;
    purged bigint;
BEGIN
    SELECT c.relname INTO part
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'events'::regclass AND c.relname ~ '^events_\d{8}$'
        AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 7)::timestamp AT TIME ZONE 'UTC' <= told_before
    ORDER BY c.relname LIMIT 1;
    IF part IS NOT NULL THEN
        PERFORM set_config('lock_timeout', '300ms', true);
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', part);
        EXECUTE format(
            'INSERT INTO feed_floors AS f (tenant_id, mode, pos, n)
             SELECT t.id, m.mode, e.pos, e.n FROM tenants t CROSS JOIN (VALUES (0::smallint), (1::smallint)) AS m (mode)
             CROSS JOIN LATERAL (SELECT pos, n FROM %I WHERE tenant_id = t.id AND mode = m.mode ORDER BY pos DESC, n DESC LIMIT 1) e
             ON CONFLICT (tenant_id, mode) DO UPDATE SET pos = excluded.pos, n = excluded.n
             WHERE (f.pos, f.n) < (excluded.pos, excluded.n)', part);
        EXECUTE format('DROP TABLE %I', part);
        RETURN 1;
    END IF;
    WITH gone AS (
        DELETE FROM events_default WHERE (tenant_id, mode, pos, n, at) IN
            (SELECT tenant_id, mode, pos, n, at FROM events_default WHERE at < told_before LIMIT 100)
        RETURNING tenant_id, mode, pos, n),
    last AS (SELECT DISTINCT ON (tenant_id, mode) tenant_id, mode, pos, n FROM gone ORDER BY tenant_id, mode, pos DESC, n DESC),
    noted AS (
        INSERT INTO feed_floors AS f (tenant_id, mode, pos, n) SELECT tenant_id, mode, pos, n FROM last
        ON CONFLICT (tenant_id, mode) DO UPDATE SET pos = excluded.pos, n = excluded.n
        WHERE (f.pos, f.n) < (excluded.pos, excluded.n))
    SELECT count(*) INTO purged FROM gone;
    RETURN purged;
END
$$;
