-- Suppressions that end are found by their end.
CREATE INDEX suppressions_expiry ON suppressions (expires_at) WHERE expires_at IS NOT NULL;
