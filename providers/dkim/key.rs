//! Private keys for DKIM: read from PEM, told apart by algorithm, never shown.

use std::fmt;

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair as RsaKeyPair;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

/// How a key signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 6376: what every receiver knows.
    RsaSha256,
    /// RFC 8463: shorter; some receivers do not know it yet.
    Ed25519Sha256,
}

impl Algorithm {
    /// The word in `a=`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RsaSha256 => "rsa-sha256",
            Self::Ed25519Sha256 => "ed25519-sha256",
        }
    }

    /// The word in `k=` of the DNS record.
    pub const fn key_type(self) -> &'static str {
        match self {
            Self::RsaSha256 => "rsa",
            Self::Ed25519Sha256 => "ed25519",
        }
    }
}

/// Why a text is not a key. Never repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// Not PEM, or PEM of something else.
    #[error("expected an unencrypted private key in PEM, such as `openssl genrsa 2048` or `openssl genpkey -algorithm ed25519` prints")]
    NotPem,
    /// PKCS#1, and damaged, or too short.
    #[error("the RSA key cannot be used: it must have 2048 to 8192 bits")]
    Rsa,
    /// PKCS#8 of another algorithm, or damaged.
    #[error("the key is neither RSA with 2048 to 8192 bits nor Ed25519")]
    Neither,
    /// The public half cannot be had.
    #[error("the public half of the key cannot be computed")]
    NoPublicHalf,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
}

/// One private key.
pub struct Key {
    pair: Pair,
    public: Vec<u8>,
}

impl fmt::Debug for Key {
    /// What is public alone, so that configurations with different keys can be told apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.algorithm().name(), &Sha256::digest(&self.public)[..8])
    }
}

impl Key {
    /// Reads PEM: PKCS#1 or PKCS#8 of RSA, PKCS#8 of Ed25519.
    ///
    /// # Errors
    /// What it is instead.
    pub fn from_pem(pem: &str) -> Result<Self, KeyFault> {
        let pair = match PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| KeyFault::NotPem)? {
            PrivateKeyDer::Pkcs1(der) => Pair::Rsa(Box::new(RsaKeyPair::from_der(der.secret_pkcs1_der()).map_err(|_| KeyFault::Rsa)?)),
            PrivateKeyDer::Pkcs8(der) => {
                let der = der.secret_pkcs8_der();
                match Ed25519KeyPair::from_pkcs8(der) {
                    Ok(pair) => Pair::Ed25519(Box::new(pair)),
                    Err(_) => Pair::Rsa(Box::new(RsaKeyPair::from_pkcs8(der).map_err(|_| KeyFault::Neither)?)),
                }
            }
            _ => return Err(KeyFault::Neither),
        };
        let public = match &pair {
            Pair::Rsa(pair) => {
                let der: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(|_| KeyFault::NoPublicHalf)?;
                der.as_ref().to_vec()
            }
            Pair::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
        };
        Ok(Self { pair, public })
    }

    /// How it signs.
    pub const fn algorithm(&self) -> Algorithm {
        match self.pair {
            Pair::Rsa(_) => Algorithm::RsaSha256,
            Pair::Ed25519(_) => Algorithm::Ed25519Sha256,
        }
    }

    /// What `p=` of the DNS record holds.
    pub(super) fn public(&self) -> &[u8] {
        &self.public
    }

    /// The signature of `text`.
    pub(super) fn sign(&self, text: &[u8]) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                // It fails for a buffer of another length alone.
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text, &mut signature).expect("the buffer is as long as the modulus");
                signature
            }
            // What is signed is the hash, not the text (RFC 8463 section 3).
            Pair::Ed25519(pair) => pair.sign(&Sha256::digest(text)).as_ref().to_vec(),
        }
    }
}
