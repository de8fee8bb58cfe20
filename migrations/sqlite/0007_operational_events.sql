-- What an event tells that is about no delivery, as JSON; `delivery_id` is then its own identity. Those of the whole
-- installation are kept under the tenant 0, which no tenant has as its number.
ALTER TABLE events ADD COLUMN detail TEXT;
