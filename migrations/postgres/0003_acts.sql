-- How often a dead letter was replayed in bulk.
ALTER TABLE deliveries ADD COLUMN replays smallint NOT NULL DEFAULT 0;

-- The author of a delivery that has ended, as its queue row had it: a resend goes by an account that may send as it.
ALTER TABLE deliveries ADD COLUMN sender text;
