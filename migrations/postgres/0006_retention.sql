-- Suppressions that end are found by their end.
CREATE INDEX suppressions_expiry ON suppressions (expires_at) WHERE expires_at IS NOT NULL;

-- Drops the oldest partition of `parent` that ended before `before` and in which next to nothing is left: rows go a chunk at
-- a time, so that each goes at its own bound, and partitions when they are empty. What must stay longer (a dead letter that
-- nobody judged, a message that waits for its day) moves into the default partition. False when there is none to drop.
-- Everybody who uses the table waits while it is locked. The lock is waited for only briefly, and under it are a few rows and
-- the catalogue: files are removed after it is given back. Who does not get it tries again with the next run.
CREATE FUNCTION drop_past(parent text, before timestamptz) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
    few   CONSTANT int := 100;
    width CONSTANT interval := CASE parent WHEN 'contents' THEN '1 day' ELSE '7 days' END;
    place CONSTANT text := CASE parent WHEN 'notifications' THEN 'tenant_id, id' WHEN 'attempts' THEN 'delivery_id, number' ELSE 'id' END;
    part  text;
    found int;
BEGIN
    -- By the key: a heap that was emptied is long, its index is not.
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = parent::regclass AND c.relname ~ ('^' || parent || '_\d{8}$')
            AND (to_date(right(c.relname, 8), 'YYYYMMDD') + width) AT TIME ZONE 'UTC' <= before
        ORDER BY c.relname
    LOOP
        EXECUTE format('SELECT count(*) FROM (SELECT FROM %I ORDER BY %s LIMIT %s) x', part, place, few + 1) INTO found;
        CONTINUE WHEN found > few;
        PERFORM set_config('lock_timeout', '30ms', true);
        EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', parent);
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', part);
        EXECUTE format('CREATE TEMP TABLE survivors ON COMMIT DROP AS SELECT * FROM %I ORDER BY %s LIMIT %s', part, place, few + 1);
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found > few THEN
            RAISE EXCEPTION 'rows came into %', part USING ERRCODE = 'serialization_failure';
        END IF;
        EXECUTE format('DROP TABLE %I', part);
        EXECUTE format('INSERT INTO %I SELECT * FROM survivors', parent);
        RETURN true;
    END LOOP;
    RETURN false;
END
$$;

-- As before, but the floors are noted before the lock is asked for (nothing is told into a week that is long over), and the
-- lock is waited for no longer than whoever stands behind it can bear.
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
             SELECT t.id, m.mode, e.pos, e.n FROM tenants t CROSS JOIN (VALUES (0::smallint), (1::smallint)) AS m (mode)
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
