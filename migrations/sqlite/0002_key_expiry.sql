-- A key whose time is over belongs to the next request that uses it; the old notification stays and can be read by id.
-- `key_freed` is the instant at which another one took the key over.
ALTER TABLE notifications ADD COLUMN key_freed INTEGER;
DROP INDEX notifications_by_key;
CREATE UNIQUE INDEX notifications_by_key ON notifications (tenant_id, mode, idempotency_key) WHERE key_freed IS NULL;
