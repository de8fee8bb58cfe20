//! Webhook dialects, one file per vendor and one line here to register it. None is built yet: SMTP relays call nobody
//! back, and the vendors that do have no send adapter so far.
