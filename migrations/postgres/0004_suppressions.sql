-- A scope may name one author. A suppression that a refusal led to keeps the sealed address of its delivery, which opens
-- under that delivery's id.
ALTER TABLE suppressions DROP CONSTRAINT suppressions_scope_check;
ALTER TABLE suppressions ADD CONSTRAINT suppressions_scope_check CHECK (scope IN ('all', 'complaint', 'bulk') OR scope LIKE 'sender:_%');
ALTER TABLE suppressions ADD COLUMN delivery_id uuid;
CREATE INDEX suppressions_list ON suppressions (tenant_id, mode, id);
