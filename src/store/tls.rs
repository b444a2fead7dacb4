//! TLS to PostgreSQL: how far the server's certificate is checked, as libpq's `sslmode` says.
//!
//! See <https://www.postgresql.org/docs/current/libpq-ssl.html>.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::Socket;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::authorities;

/// How far a certificate is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Checks {
    /// Whoever it is: encrypted against those who only listen.
    #[default]
    Nothing,
    /// Signed by an authority that is trusted.
    Chain,
    /// And made out to the host's name.
    ChainAndName,
}

/// What the connection string says about TLS.
#[derive(Debug, Default)]
pub(super) struct Tls {
    pub(super) checks: Checks,
    /// Authorities to trust, PEM; without it those of the system.
    pub(super) root: Option<PathBuf>,
    /// Our own certificate and its key, PEM.
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub(super) async fn connector(&self) -> Result<Connector, String> {
        let provider = Arc::new(ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let checked = match self.checks {
            Checks::Nothing => {
                let verifier = Lenient { chain: None, algorithms };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            Checks::Chain => {
                let chain = WebPkiServerVerifier::builder_with_provider(self.roots().await?.into(), provider)
                    .build()
                    .map_err(|error| error.to_string())?;
                let verifier = Lenient { chain: Some(chain), algorithms };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            Checks::ChainAndName => builder.with_root_certificates(self.roots().await?),
        };
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let unreadable = |path: &Path, error| format!("{}: {error}", path.display());
                let chain = certificates(certificate, &read(certificate).await?)?;
                let secret =
                    PrivateKeyDer::from_pem_slice(&read(key).await?).map_err(|error| unreadable(key, error))?;
                checked
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| format!("{} and {}: {error}", certificate.display(), key.display()))?
            }
            _ => checked.with_no_client_auth(),
        };
        Ok(Connector(MakeRustlsConnect::new(config)))
    }

    async fn roots(&self) -> Result<RootCertStore, String> {
        let mut store = RootCertStore::empty();
        match &self.root {
            Some(path) if path.as_os_str() != "system" => {
                for certificate in certificates(path, &read(path).await?)? {
                    store.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
                }
            }
            _ => {
                let refuse = |text: &str| format!("{text}; name a file with sslrootcert, or install ca-certificates");
                let known = authorities::of_system().await.map_err(|text| refuse(&text))?;
                if let (0, _) = store.add_parsable_certificates(known) {
                    return Err(refuse("no authority is trusted: none of the system's certificates can be read"));
                }
            }
        }
        Ok(store)
    }
}

/// The driver asks for a connector before it knows whether it will be used; of a Unix socket, which is never
/// encrypted, it has no host name to ask with.
#[derive(Clone)]
pub(super) struct Connector(MakeRustlsConnect);

impl MakeTlsConnect<Socket> for Connector {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        let host = if host.is_empty() { "localhost" } else { host };
        MakeTlsConnect::<Socket>::make_tls_connect(&mut self.0, host)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(format!("{}: no certificate in it", path.display())),
        all => all.map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// Checks less than the protocol would: never the name, and the chain where there is something to check it by.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // Asked last, when everything else was right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
