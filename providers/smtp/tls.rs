//! Whom a relay's certificate is trusted by. When the handshake happens is decided in `connection`.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_rustls::TlsConnector;

use crate::AccountError;

/// What a handshake needs: the trust and the name to hold the certificate to.
#[derive(Clone)]
pub(super) struct Trust {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

impl Trust {
    /// Trusts the system's authorities, or only those of `ca_file`. TLS 1.2 at least.
    pub(super) fn of(host: &str, ca_file: Option<&Path>) -> Result<Self, AccountError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| AccountError::Settings("host is neither a host name nor an address".to_owned()))?;
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|err| AccountError::Trust("TLS cannot be set up", Some(Box::new(err))))?;
        let builder = match ca_file {
            Some(file) => builder.with_root_certificates(roots(file)?),
            None => builder
                .with_platform_verifier()
                .map_err(|err| AccountError::Trust("the system's certificates cannot be loaded: set ca_file", Some(Box::new(err))))?,
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(builder.with_no_client_auth())), name })
    }
}

fn roots(file: &Path) -> Result<RootCertStore, AccountError> {
    let unreadable = |err| AccountError::Trust("ca_file cannot be read as PEM", Some(Box::new(err)));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(unreadable)? {
        let certificate = certificate.map_err(unreadable)?;
        roots
            .add(certificate)
            .map_err(|err| AccountError::Trust("ca_file holds a certificate that cannot be used", Some(Box::new(err))))?;
    }
    if roots.is_empty() { Err(AccountError::Trust("ca_file holds no certificate", None)) } else { Ok(roots) }
}

/// Whether a handshake failed because the certificate was refused, and not for the network's sake.
pub(super) fn is_certificate_refused(err: &std::io::Error) -> bool {
    let tls = err.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(tls, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented))
}
