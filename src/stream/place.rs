//! Where Redis is, as the URL says it: one server, or what sentinels are asked for; and what is shown to them by TLS.
//!
//! See <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use base64::Engine;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisError, TlsCertificates, TlsMode};

use crate::authorities;
use crate::failure::{Failure, Target};

/// <https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/>
const SENTINEL_PORT: u16 = 26379;
const FORM: &str = "write --redis-url as redis[s]://[user:password@]host:port[/database], or \
                    redis[s]+sentinel://[user:password@]host:port,host:port/service[/database]";

/// PEM texts for TLS.
#[derive(Clone, Default)]
pub struct Certificates {
    /// Authorities to trust.
    pub authority: Option<Vec<u8>>,
    /// Our own certificate and its key.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// The authorities that the system trusts, read once: the driver would do it for every connection, on the
    /// thread of whoever connects.
    ///
    /// # Errors
    /// [`crate::failure::Class::Fatal`] if there are none.
    pub async fn trust_system(&mut self) -> Result<(), Failure> {
        let remedy = "name a file with --redis-ca, or install ca-certificates";
        let refuse = |text| Failure::fatal(Target::Redis, "tls", text, remedy);
        let certificates = authorities::of_system().await.map_err(refuse)?;
        let pem = |der: &[u8]| {
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let all: String = certificates.iter().map(|certificate| pem(certificate)).collect();
        self.authority = Some(all.into_bytes());
        Ok(())
    }

    fn given(&self) -> Option<TlsCertificates> {
        if self.authority.is_none() && self.own.is_none() {
            return None;
        }
        let own = self.own.clone();
        let client_tls = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Some(TlsCertificates { client_tls, root_cert: self.authority.clone() })
    }
}

/// Where the URL says that it is.
pub(super) enum Place {
    Fixed(Client),
    Sentinel { client: tokio::sync::Mutex<SentinelClient>, shown: String },
}

impl Place {
    /// # Errors
    /// [`crate::failure::Class::Fatal`] if `url` is no Redis URL, or a certificate cannot be read.
    pub(super) fn read(url: &str, password: Option<&str>, certificates: &Certificates) -> Result<Self, Failure> {
        let refuse = |text: &str, remedy| Err(Failure::fatal(Target::Redis, "url", text.into(), remedy));
        let given = certificates.given();
        if given.is_some() && !url.starts_with("rediss") {
            return refuse("certificates are given, and --redis-url does not ask for TLS", "write it as rediss://");
        }
        match url.split_once("+sentinel://") {
            Some((scheme @ ("redis" | "rediss"), rest)) => sentinel(rest, password, scheme == "rediss", given),
            _ => {
                let info = url.into_connection_info().map_err(bad_url)?;
                // Nobody needs to know the driver's name, and a right less is needed.
                let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
                if let Some(password) = password {
                    if settings.password().is_some() {
                        return Err(two_passwords());
                    }
                    settings = settings.set_password(password);
                }
                let info = info.set_redis_settings(settings);
                Ok(Self::Fixed(match given {
                    Some(given) => Client::build_with_tls(info, given).map_err(bad_certificate)?,
                    None => Client::open(info).map_err(bad_url)?,
                }))
            }
        }
    }

    /// Host and port, for logs.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Fixed(client) => client.get_connection_info().addr().to_string(),
            Self::Sentinel { shown, .. } => shown.clone(),
        }
    }
}

fn two_passwords() -> Failure {
    let remedy = "take one out of --redis-url or --redis-password-file";
    Failure::fatal(Target::Redis, "url", "there are two passwords".into(), remedy)
}

/// The error may quote the URL, and with it the password.
pub(super) fn bad_url(_: RedisError) -> Failure {
    Failure::fatal(Target::Redis, "url", "the URL cannot be read".into(), FORM)
}

fn bad_certificate(error: RedisError) -> Failure {
    let remedy = "name PEM files with --redis-ca, --redis-cert and --redis-key";
    match error.kind() {
        redis::ErrorKind::Io => Failure::fatal(Target::Redis, "tls", error.to_string(), remedy),
        _ => bad_url(error),
    }
}

/// `[user:password@]host:port,host:port/service[/database]`: user and password are for the primary, and as
/// `?sentinel-user=…&sentinel-password=…` for the sentinels.
fn sentinel(rest: &str, password: Option<&str>, tls: bool, given: Option<TlsCertificates>) -> Result<Place, Failure> {
    let malformed = || Failure::fatal(Target::Redis, "url", "the URL cannot be read".into(), FORM);
    // Everything but the hosts is as in the URL of one server, which the driver reads.
    let (authority, path) = rest.split_once('/').ok_or_else(malformed)?;
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
    let (service, database) = path.split_once('/').unwrap_or((path, "0"));
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let of_primary = format!("redis://{user}host/{database}").into_connection_info().map_err(bad_url)?;
    let addresses =
        hosts.split(',').map(|host| address(host, tls)).collect::<Option<Vec<_>>>().ok_or_else(malformed)?;
    if service.is_empty() {
        return Err(malformed());
    }
    let shown = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if password.is_some() && of_primary.redis_settings().password().is_some() {
        return Err(two_passwords());
    }
    let mut builder = SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)
        .map_err(bad_url)?
        .set_client_to_redis_db(of_primary.redis_settings().db());
    if let Some(name) = of_primary.redis_settings().username() {
        builder = builder.set_client_to_redis_username(name);
    }
    if let Some(password) = password.or(of_primary.redis_settings().password()) {
        builder = builder.set_client_to_redis_password(password);
    }
    for (name, value) in query.split('&').filter_map(|part| part.split_once('=')) {
        let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        builder = match name {
            "sentinel-user" => builder.set_client_to_sentinel_username(value),
            "sentinel-password" => builder.set_client_to_sentinel_password(value),
            _ => return Err(malformed()),
        };
    }
    if tls {
        builder =
            builder.set_client_to_redis_tls_mode(TlsMode::Secure).set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    if let Some(given) = given {
        builder = builder.set_client_to_redis_certificates(given.clone()).set_client_to_sentinel_certificates(given);
    }
    let client = tokio::sync::Mutex::new(builder.build().map_err(bad_certificate)?);
    Ok(Place::Sentinel { client, shown: format!("{service} of {shown}") })
}

fn address(text: &str, tls: bool) -> Option<ConnectionAddr> {
    // An IPv6 address stands in brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, SENTINEL_PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return None;
    }
    Some(if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn urls_of_sentinels_are_read_and_wrong_ones_refused_without_the_password() {
        let open = |url: &str| Place::read(url, None, &Certificates::default());
        for (url, shown) in [
            ("redis+sentinel://a:1,b/events", "events of a:1,b:26379"),
            ("redis+sentinel://u:p%40@[::1]:5,b/events/3?sentinel-password=x", "events of ::1:5,b:26379"),
            ("rediss+sentinel://a/events", "events of a:26379"),
        ] {
            assert_eq!(open(url).unwrap().shown(), shown, "{url}");
        }
        for url in [
            "redis+sentinel://u:secret@a:1",
            "redis+sentinel://u:secret@/events",
            "redis+sentinel://u:secret@a:x/events",
            "redis+sentinel://u:secret@a/events?secret=1",
            "secret",
        ] {
            let failure = open(url).err().unwrap();
            assert!(failure.is_fatal() && !failure.to_string().contains("secret"), "{url}: {failure}");
        }
    }
}
