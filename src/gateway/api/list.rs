//! What all lists share: which part of a list is asked for, the cursor that leads to the next part, and how a page looks
//! (S-199). Which rows there are, and in which order, is each list's own business.

use actix_web::HttpResponse;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use tidings_core::request::{USUAL_ITEMS, page_limit};
use tidings_core::secrets::Keyring;
use tidings_core::time::Timestamp;
use uuid::Uuid;

use super::auth::Caller;
use super::json;
use super::problem::{Code, Problem};
use super::query::Query;

/// Half of the HMAC: forging one takes 2^128 tries, each of them a request.
const TAG: usize = 16;

/// Which part of a list is asked for: the parameters `after`, `limit`, `since` and `until`.
pub(super) struct Part {
    /// A cursor, not looked at yet.
    pub(super) after: Option<String>,
    /// How many items at most, from 1 to 200.
    pub(super) limit: usize,
    /// Created at this instant or later.
    pub(super) since: Option<Timestamp>,
    /// Created before this instant.
    pub(super) until: Option<Timestamp>,
}

impl Part {
    /// Reads the parameters of a list. Those that it does not have are not among the `known` ones of its query.
    ///
    /// # Errors
    /// `invalid_field`.
    pub(super) fn read(query: &Query<'_>) -> Result<Self, Problem> {
        let wrong = |why| Problem::new(Code::InvalidField, format!("the parameter limit: {why}"));
        Ok(Self {
            after: query.get("after").map(str::to_owned),
            limit: query.get("limit").map_or(Ok(USUAL_ITEMS), page_limit).map_err(wrong)?,
            since: instant(query, "since")?,
            until: instant(query, "until")?,
        })
    }
}

fn instant(query: &Query<'_>, name: &'static str) -> Result<Option<Timestamp>, Problem> {
    let wrong = |err| Problem::new(Code::InvalidField, format!("the parameter {name}: {err}"));
    query.get(name).map(|raw| raw.parse().map_err(wrong)).transpose()
}

/// Where a page ends: the place of its last row in the order of the list.
pub(super) trait Position: Sized {
    /// As bytes.
    fn to_bytes(&self) -> Vec<u8>;
    /// From the bytes that `to_bytes` made.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// For lists in the order of UUIDv7 ids.
impl Position for Uuid {
    fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_slice(bytes).ok()
    }
}

/// The cursors of one list as one caller filters it. A cursor of another list, tenant, mode or filter is not among them,
/// nor is one that this installation did not make.
pub(super) struct Cursors<'a> {
    keyring: &'a Keyring,
    binding: Vec<u8>,
}

impl<'a> Cursors<'a> {
    /// The cursors of the list with this name. `filter` is everything that decides which rows are in it.
    pub(super) fn new(keyring: &'a Keyring, caller: &Caller, list: &'static str, filter: &impl Serialize) -> Self {
        let binding = serde_json::to_vec(&(list, caller.tenant, caller.mode, filter));
        Self { keyring, binding: binding.expect("filters are texts, numbers and lists, which always have a JSON form") }
    }

    /// The cursor to what comes behind `position`.
    pub(super) fn write(&self, position: &impl Position) -> String {
        let mut bytes = position.to_bytes();
        bytes.extend(self.tag(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The position that a cursor stands for.
    ///
    /// # Errors
    /// `bad_cursor`.
    pub(super) fn read<P: Position>(&self, cursor: &str) -> Result<P, Problem> {
        self.position(cursor).ok_or_else(|| Problem::new(Code::BadCursor, "after is not a cursor of this list with this filter"))
    }

    fn position<P: Position>(&self, cursor: &str) -> Option<P> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (position, tag) = bytes.split_last_chunk::<TAG>()?;
        let is_ours = aws_lc_rs::constant_time::verify_slices_are_equal(&self.tag(position), tag).is_ok();
        is_ours.then(|| P::from_bytes(position)).flatten()
    }

    /// The binding is one JSON value, so that it always ends where the position begins.
    fn tag(&self, position: &[u8]) -> [u8; TAG] {
        let tag = self.keyring.cursor_tag(&[&self.binding, position].concat());
        *tag.first_chunk().expect("a tag has 32 bytes")
    }
}

/// The answer to a list.
#[derive(Serialize)]
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    /// Where it goes on; `None` at the end.
    pub(super) next: Option<String>,
}

impl<T: Serialize> Page<T> {
    /// The whole answer.
    pub(super) fn answer(&self) -> HttpResponse {
        json(HttpResponse::Ok(), serde_json::to_vec(self).expect("texts, numbers and lists always have a JSON form"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;
    use proptest::prelude::*;
    use tidings_core::words::Mode;

    fn part(query: &str) -> Result<Part, Code> {
        let request = TestRequest::with_uri(&format!("/list?{query}")).to_http_request();
        let query = Query::read(&request, &["after", "limit", "since", "until"]).map_err(|problem| problem.code())?;
        Part::read(&query).map_err(|problem| problem.code())
    }

    #[test]
    fn a_part_is_read_with_its_bounds() {
        let of = |query: &str| part(query).map(|part| (part.limit, part.since.is_some(), part.until.is_some()));
        assert_eq!(of(""), Ok((50, false, false)));
        assert_eq!(of("limit=1&since=2027-03-01T09:00:00%2B01:00"), Ok((1, true, false)));
        assert_eq!(of("limit=200&until=2027-03-01T09:00:00Z"), Ok((200, false, true)));
        for wrong in ["limit=0", "limit=201", "limit=", "limit=-1", "limit=%2B5", "limit=ten", "limit=99999999999999999999"] {
            assert_eq!(of(wrong), Err(Code::InvalidField), "{wrong}");
        }
        for wrong in ["since=2027-03-01T09:00:00", "until=yesterday", "since=", "limit=1&limit=2"] {
            assert_eq!(of(wrong), Err(Code::InvalidField), "{wrong}");
        }
    }

    #[test]
    fn a_time_without_offset_is_told_what_is_missing() {
        let request = TestRequest::with_uri("/list?since=2027-03-01T09:00:00").to_http_request();
        let query = Query::read(&request, &["since"]).ok().unwrap();
        let problem = Part::read(&query).err().unwrap();
        assert!(format!("{problem:?}").contains("the parameter since: a time needs an offset"), "{problem:?}");
    }

    /// Everything that a cursor is bound to.
    type Bound = (u8, bool, bool, Option<String>, Vec<String>);

    fn cursors(keyring: &Keyring, (tenant, test, other, state, tags): &Bound) -> Vec<u8> {
        let mut caller = Caller::for_tests(if *test { Mode::Test } else { Mode::Live }, &["read"]);
        caller.tenant = tidings_core::ids::TenantId(i32::from(*tenant));
        let list = if *other { "other" } else { "notifications" };
        Cursors::new(keyring, &caller, list, &(state, tags)).binding
    }

    fn bound() -> impl Strategy<Value = Bound> {
        (0_u8..3, any::<bool>(), any::<bool>(), proptest::option::of("[a,\"\\[]{0,3}"), proptest::collection::vec("[a,\"\\[]{0,3}", 0..3))
    }

    proptest! {
        #[test]
        fn a_cursor_leads_back_to_its_position_in_its_own_list_alone(
            position in any::<u128>(), own in bound(), foreign in bound()
        ) {
            let keyring = Keyring::derive(&[7; 32]);
            let mine = Cursors { keyring: &keyring, binding: cursors(&keyring, &own) };
            let theirs = Cursors { keyring: &keyring, binding: cursors(&keyring, &foreign) };
            let position = Uuid::from_u128(position);
            let cursor = mine.write(&position);
            prop_assert_eq!(mine.position(&cursor), Some(position));
            prop_assert_eq!(theirs.position::<Uuid>(&cursor).is_some(), own == foreign);
            let elsewhere = Keyring::derive(&[8; 32]);
            let other_installation = Cursors { keyring: &elsewhere, binding: mine.binding.clone() };
            prop_assert_eq!(other_installation.position::<Uuid>(&cursor), None);
        }

        #[test]
        fn a_cursor_that_was_tampered_with_is_refused(position in any::<u128>(), bit in 0_usize..256, cut in 0_usize..43) {
            let keyring = Keyring::derive(&[7; 32]);
            let cursors = Cursors { keyring: &keyring, binding: b"[]".to_vec() };
            let cursor = cursors.write(&Uuid::from_u128(position));
            let mut bytes = URL_SAFE_NO_PAD.decode(&cursor).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(cursors.position::<Uuid>(&URL_SAFE_NO_PAD.encode(&bytes)).is_none());
            prop_assert!(cursors.position::<Uuid>(&cursor[..cut]).is_none());
            let longer = format!("{cursor}A");
            prop_assert!(cursors.position::<Uuid>(&longer).is_none());
        }

        #[test]
        fn no_text_is_taken_for_a_cursor(text in ".{0,60}") {
            let keyring = Keyring::derive(&[7; 32]);
            let cursors = Cursors { keyring: &keyring, binding: b"[]".to_vec() };
            let refused = cursors.read::<Uuid>(&text).map_err(|problem| problem.code());
            prop_assert_eq!(refused, Err(Code::BadCursor));
        }
    }
}
