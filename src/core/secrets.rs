//! What is secret and how it is kept: redacted texts, keys derived from the master secret, sealed blobs, digests.
//! Where the master secret comes from is the gateway's business.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A text that never shows itself in a log (S-212, S-213).
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for the one place that uses it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A sealed blob that cannot be opened: damaged, moved to another row, or sealed under another master secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sealed value could not be opened")]
pub struct CannotOpen;

/// Blobs shorter than this are not worth compressing.
const COMPRESS_FROM: usize = 512;
/// No stored value is larger than this once unpacked (S-091).
const UNPACKED_LIMIT: usize = 64 * 1024 * 1024;
const SEALED: u8 = b'1';
const SEALED_ZSTD: u8 = b'2';
const KEY_ID: u8 = b'1';
const NONCE_LEN: usize = 12;
/// Format byte, key id and nonce.
const HEAD_LEN: usize = 2 + NONCE_LEN;

/// Keyed once; each use clones the keyed state.
type HmacSha256 = Hmac<Sha256>;

/// The keys derived from one master secret (HKDF-SHA256, RFC 5869, label `tidings/<use>/v1`).
pub struct Keyring {
    seal: LessSafeKey,
    digest: HmacSha256,
    fingerprint: HmacSha256,
    cursor: HmacSha256,
    check: [u8; 16],
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(..)")
    }
}

/// The version of the address digest, its first byte.
pub const DIGEST_VERSION: u8 = 1;
/// The length of a digest: its version and half of an HMAC-SHA256.
pub const DIGEST_LEN: usize = 17;
/// The version of the request fingerprint.
pub const FINGERPRINT_VERSION: i16 = 1;

impl Keyring {
    /// Derives every key from the 32 bytes of the master secret.
    pub fn derive(master: &[u8; 32]) -> Self {
        let hmac_key = |label: &str| HmacSha256::new_from_slice(&sub_key(master, label)).expect("HMAC takes keys of any length");
        let mut check_value = [0; 16];
        check_value.copy_from_slice(&tag(&hmac_key("check"), b"tidings")[..16]);
        Self {
            seal: LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, &sub_key(master, "seal")).expect("the key has the cipher's length")),
            digest: hmac_key("digest"),
            fingerprint: hmac_key("fingerprint"),
            cursor: hmac_key("cursor"),
            check: check_value,
        }
    }

    /// Tells a store's master secret from another without revealing it.
    pub const fn check_value(&self) -> [u8; 16] {
        self.check
    }

    /// Seals `plain` for the row and column that `context` names: format byte, key id, nonce, ciphertext with tag.
    /// `nonce` is fresh random for each blob. The first two bytes are ASCII.
    pub fn seal(&self, plain: &[u8], context: &[u8], nonce: [u8; NONCE_LEN]) -> Vec<u8> {
        let packed =
            (plain.len() >= COMPRESS_FROM).then(|| zstd::bulk::compress(plain, 1).ok()).flatten().filter(|p| p.len() < plain.len());
        let (format, body) = match &packed {
            Some(packed) => (SEALED_ZSTD, packed.as_slice()),
            None => (SEALED, plain),
        };
        let mut sealed = Vec::with_capacity(HEAD_LEN + body.len() + AES_256_GCM_SIV.tag_len());
        sealed.extend_from_slice(&[format, KEY_ID]);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(body);
        let tag = self
            .seal
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad(format, context)), &mut sealed[HEAD_LEN..])
            .expect("the text is far below the cipher's limit");
        sealed.extend_from_slice(tag.as_ref());
        sealed
    }

    /// Opens what `seal` made for the same context.
    ///
    /// # Errors
    /// When the blob is not of this key, this context, or whole.
    pub fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, CannotOpen> {
        let (&[format, KEY_ID], rest) = sealed.split_first_chunk().ok_or(CannotOpen)? else { return Err(CannotOpen) };
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>().ok_or(CannotOpen)?;
        let mut text = text.to_vec();
        let plain = self
            .seal
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(aad(format, context)), &mut text)
            .map_err(|_| CannotOpen)?;
        match format {
            SEALED => Ok(plain.to_vec()),
            SEALED_ZSTD => zstd::bulk::decompress(plain, UNPACKED_LIMIT).map_err(|_| CannotOpen),
            _ => Err(CannotOpen),
        }
    }

    /// What an address is matched and suppressed by: version byte and 16 bytes of HMAC over channel and canonical form.
    pub fn address_digest(&self, channel: crate::words::Channel, canonical: &str) -> Vec<u8> {
        self.digest_of(channel.as_str(), canonical)
    }

    /// What the caller's name for a person is found by. No channel is called `ref`.
    pub fn reference_digest(&self, reference: &str) -> Vec<u8> {
        self.digest_of("ref", reference)
    }

    fn digest_of(&self, kind: &str, canonical: &str) -> Vec<u8> {
        let mac: [u8; 32] = self.digest.clone().chain_update(kind).chain_update(":").chain_update(canonical).finalize().into_bytes().into();
        [&[DIGEST_VERSION], &mac[..DIGEST_LEN - 1]].concat()
    }

    /// The keyed digest of a canonical request (S-004).
    pub fn fingerprint(&self, canonical: &[u8]) -> [u8; 32] {
        tag(&self.fingerprint, canonical)
    }

    /// The tag that binds a cursor to what it was made for (S-199).
    pub fn cursor_tag(&self, position: &[u8]) -> [u8; 32] {
        tag(&self.cursor, position)
    }
}

fn tag(key: &HmacSha256, text: &[u8]) -> [u8; 32] {
    key.clone().chain_update(text).finalize().into_bytes().into()
}

fn aad(format: u8, context: &[u8]) -> Vec<u8> {
    [&[format], context].concat()
}

fn sub_key(master: &[u8; 32], label: &str) -> [u8; 32] {
    struct Len;
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            32
        }
    }
    let info = format!("tidings/{label}/v1");
    let mut key = [0; 32];
    hkdf::Salt::new(hkdf::HKDF_SHA256, &[])
        .extract(master)
        .expand(&[info.as_bytes()], Len)
        .and_then(|okm| okm.fill(&mut key))
        .expect("32 bytes are within what HKDF-SHA256 gives");
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_value_opens_only_in_its_place_and_whole() {
        let keys = Keyring::derive(&[7; 32]);
        for plain in [b"".as_slice(), b"ada@example.com", &b"long enough to be worth packing ".repeat(100)] {
            let sealed = keys.seal(plain, b"address:1", [9; 12]);
            assert_eq!(keys.open(&sealed, b"address:1").as_deref(), Ok(plain));
            assert_eq!(keys.open(&sealed, b"address:2"), Err(CannotOpen));
            assert_eq!(Keyring::derive(&[8; 32]).open(&sealed, b"address:1"), Err(CannotOpen));
            for cut in [0, 1, 13, sealed.len() - 1] {
                assert_eq!(keys.open(&sealed[..cut], b"address:1"), Err(CannotOpen));
            }
            for position in 0..sealed.len() {
                let mut bent = sealed.clone();
                bent[position] ^= 1;
                assert_eq!(keys.open(&bent, b"address:1"), Err(CannotOpen), "byte {position}");
            }
        }
    }

    #[test]
    fn secrets_do_not_show_themselves() {
        assert_eq!(format!("{:?} {:?}", Secret::new("hunter2"), Keyring::derive(&[1; 32])), "Secret(..) Keyring(..)");
    }
}
