-- A key whose time is over belongs to the next request that uses it; the old notification stays and can be read by id.
-- `idempotency` names the holder, so that here the row alone changes hands and the schema stays as it is.
COMMENT ON TABLE idempotency IS 'Who holds a key now; replaced when its time is over.';
