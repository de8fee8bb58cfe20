-- What an event tells that is about no delivery, as JSON; `delivery_id` is then its own identity. Those of the whole
-- installation are kept under the tenant 0, which no tenant has as its number.
ALTER TABLE events ADD COLUMN detail text;

-- As before; floors are noted for the events of the installation too.
CREATE OR REPLACE FUNCTION purge_events(told_before timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
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
        EXECUTE format(
            'INSERT INTO feed_floors AS f (tenant_id, mode, pos, n)
             SELECT t.id, m.mode, e.pos, e.n FROM (SELECT id FROM tenants UNION ALL SELECT 0) t (id)
             CROSS JOIN (VALUES (0::smallint), (1::smallint)) AS m (mode)
             CROSS JOIN LATERAL (SELECT pos, n FROM %I WHERE tenant_id = t.id AND mode = m.mode ORDER BY pos DESC, n DESC LIMIT 1) e
             ON CONFLICT (tenant_id, mode) DO UPDATE SET pos = excluded.pos, n = excluded.n
             WHERE (f.pos, f.n) < (excluded.pos, excluded.n)', part);
        PERFORM set_config('lock_timeout', '30ms', true);
        EXECUTE 'LOCK TABLE ONLY events IN ACCESS EXCLUSIVE MODE';
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
