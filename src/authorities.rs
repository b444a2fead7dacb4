//! The certificate authorities that this machine trusts.

use rustls::pki_types::CertificateDer;

/// All of them, at least one.
///
/// # Errors
/// A sentence, if there are none.
pub(crate) async fn of_system() -> Result<Vec<CertificateDer<'static>>, String> {
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
    let loaded = loaded.map_err(|error| error.to_string())?;
    if loaded.certs.is_empty() {
        let cause = loaded.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("no authority is trusted{cause}"));
    }
    Ok(loaded.certs)
}
