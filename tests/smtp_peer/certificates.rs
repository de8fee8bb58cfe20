//! The certificates of the scripted server: one that its authority vouches for, one that nobody does.

use std::sync::{Arc, OnceLock};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// A server certificate with the authority that signed it.
pub(super) struct Identity {
    pub(super) ca_pem: String,
    pub(super) acceptor: TlsAcceptor,
}

pub(super) fn trusted() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(Identity::new)
}

/// Of an authority that `ca_pem` does not name.
pub(super) fn untrusted() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(Identity::new)
}

impl Identity {
    fn new() -> Self {
        let ca_key = KeyPair::generate().expect("a key can be made");
        let mut ca = CertificateParams::new(Vec::new()).expect("no names are valid names");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).expect("the authority can sign itself").pem();
        let issuer = Issuer::new(ca, ca_key);

        let key = KeyPair::generate().expect("a key can be made");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let leaf = CertificateParams::new(names).expect("the names are valid");
        let certificate = leaf.signed_by(&key, &issuer).expect("the authority can sign").der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider knows the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("certificate and key belong together");
        Self { ca_pem, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }
}
