//! Where Redis is: always at one address, or where Sentinel says; and the connections to it.
//!
//! See <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use deadpool_redis::{Hook, HookError, Manager, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisError, TlsCertificates,
    TlsMode,
};
use tokio::sync::watch;

use super::failure;
use crate::authorities;
use crate::failure::{Class, Failure, Target};

/// A server that does not answer a plain command for this long is treated as lost.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For asking all sentinels, some of which may be away.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Plain commands are short; a few connections serve any number of lanes.
const POOL_SIZE: usize = 8;
/// In one turn of its loop Redis takes 16 KiB from each connection (`PROTO_IOBUF_LEN`) and answers
/// all the reads that have come: with hundreds of lanes on one link, acknowledgements would wait
/// for seconds.
const LANES_OF_ACK_LINK: u16 = 32;
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
    /// [`Class::Fatal`] if there are none.
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

/// A Redis primary, wherever it is at the moment.
#[derive(Clone)]
pub struct Server {
    place: Arc<Place>,
    current: Arc<Mutex<Option<Arc<Primary>>>>,
    /// What we show of ourselves, where it speaks TLS.
    tls: Option<Presented>,
    absence: Arc<Absence>,
}

/// Which signs of life the server does not take, and how often it has taken one again: for those who wait until
/// it does.
#[derive(Default)]
struct Absence {
    heartbeat: AtomicBool,
    renewal: AtomicBool,
    returns: watch::Sender<u64>,
}

/// What a worker says again and again.
#[derive(Clone, Copy)]
pub(super) enum Sign {
    Heartbeat,
    Renewal,
}

#[derive(Clone, Copy)]
enum Presented {
    Nothing,
    Certificate,
}

enum Place {
    Fixed(Client),
    Sentinel { client: tokio::sync::Mutex<SentinelClient>, shown: String },
}

/// Connections to one server, for as long as it is the primary.
pub(super) struct Primary {
    client: Client,
    pool: Pool,
    has_answered: AtomicBool,
    /// Taken out of the pool for acknowledgements, one for every [`LANES_OF_ACK_LINK`] lanes: they
    /// are many and small, and the pool asks whether a connection is alive each time it hands one out.
    ack_links: Mutex<HashMap<u16, MultiplexedConnection>>,
}

impl Server {
    /// Reads the URL; the first connection is made when it is needed.
    ///
    /// # Errors
    /// [`Class::Fatal`] if `url` is no Redis URL, or a certificate cannot be read.
    pub fn open(url: &str, password: Option<&str>, certificates: &Certificates) -> Result<Self, Failure> {
        let refuse = |text: &str, remedy| Err(Failure::fatal(Target::Redis, "url", text.into(), remedy));
        let given = certificates.given();
        if given.is_some() && !url.starts_with("rediss") {
            return refuse("certificates are given, and --redis-url does not ask for TLS", "write it as rediss://");
        }
        let place = match url.split_once("+sentinel://") {
            Some((scheme @ ("redis" | "rediss"), rest)) => sentinel(rest, password, scheme == "rediss", given)?,
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
                Place::Fixed(match given {
                    Some(given) => Client::build_with_tls(info, given).map_err(bad_certificate)?,
                    None => Client::open(info).map_err(bad_url)?,
                })
            }
        };
        let presented = if certificates.own.is_none() { Presented::Nothing } else { Presented::Certificate };
        let tls = url.starts_with("rediss").then_some(presented);
        Ok(Self { place: Arc::new(place), current: Arc::default(), tls, absence: Arc::default() })
    }

    /// Host and port, for logs.
    pub(super) fn address(&self) -> String {
        match &*self.place {
            Place::Fixed(client) => client.get_connection_info().addr().to_string(),
            Place::Sentinel { shown, .. } => shown.clone(),
        }
    }

    /// The primary, asked for where it is not known.
    pub(super) async fn primary(&self) -> Result<Arc<Primary>, Failure> {
        if let Some(primary) = self.current().clone() {
            return Ok(primary);
        }
        let client = match &*self.place {
            Place::Fixed(client) => client.clone(),
            Place::Sentinel { client, .. } => {
                let doing = "asking Sentinel for the primary";
                let asked = async {
                    let mut sentinel = client.lock().await;
                    // Of those that wait here one asks, and the others find its answer.
                    if let Some(primary) = self.current().clone() {
                        return Ok(primary.client.clone());
                    }
                    sentinel.async_get_client().await
                };
                match tokio::time::timeout(RESOLVE_TIMEOUT, asked).await {
                    Ok(answer) => answer.map_err(|error| failure(&error, doing))?,
                    Err(_) => return Err(Failure::no_answer(Target::Redis, doing)),
                }
            }
        };
        let mut current = self.current();
        if let Some(primary) = &*current {
            return Ok(primary.clone());
        }
        let primary = Arc::new(Primary::new(client)?);
        if matches!(&*self.place, Place::Sentinel { .. }) {
            tracing::info!(redis = %primary.client.get_connection_info().addr(), "the primary, as Sentinel says");
        }
        *current = Some(primary.clone());
        Ok(primary)
    }

    /// After a failure that another server would not have answered with: its connections are not used again,
    /// and where the primary is, is asked anew.
    pub(super) fn distrust(&self, primary: &Arc<Primary>, mut failure: Failure) -> Failure {
        // Another server may have this one's address, or its place.
        let of_server = ["READONLY", "NOREPLICAS", "MASTERDOWN", "WRONGPASS", "NOAUTH", "NOPERM", "tls"];
        if !failure.is_silence() && !of_server.contains(&failure.code.as_str()) {
            return failure;
        }
        if failure.code == "io" && !failure.text.contains("refused") && !primary.has_answered.load(Ordering::Relaxed) {
            // Often its last word does not get through.
            failure.remedy = self.tls.map(|presented| match presented {
                Presented::Nothing => "if it asks who we are, name --redis-cert and --redis-key",
                Presented::Certificate => {
                    "if its log says that it refuses the certificate in --redis-cert, renew that, \
                                           or have it signed by an authority that it trusts"
                }
            });
        }
        let mut current = self.current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, primary)) {
            *current = None;
        }
        failure
    }

    /// Hears of every answer.
    pub(super) fn judge<T>(&self, primary: &Arc<Primary>, answer: Result<T, Failure>) -> Result<T, Failure> {
        if answer.is_ok() {
            primary.has_answered.store(true, Ordering::Relaxed);
        }
        answer.map_err(|failure| self.distrust(primary, failure))
    }

    /// Hears of every attempt to write down that we live. One sign says nothing of the other: where only one of
    /// them is refused, nobody has come back.
    pub(super) fn note<T>(&self, sign: Sign, attempt: Result<T, Failure>) -> Result<T, Failure> {
        let is_missed = match sign {
            Sign::Heartbeat => &self.absence.heartbeat,
            Sign::Renewal => &self.absence.renewal,
        };
        if attempt.is_err() {
            is_missed.store(true, Ordering::Relaxed);
        } else if is_missed.swap(false, Ordering::Relaxed) {
            self.absence.returns.send_modify(|returns| *returns += 1);
        }
        attempt
    }

    /// Changes when the server has come back.
    pub(super) fn returns(&self) -> watch::Receiver<u64> {
        self.absence.returns.subscribe()
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Primary>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Primary {
    fn new(client: Client) -> Result<Self, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ANSWER_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT));
        let manager = Manager::new_with_config(client.get_connection_info().clone(), config).map_err(bad_url)?;
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE)
            .post_create(Hook::async_fn(|link, _| Box::pin(try_recycling(link))))
            .build()
            .map_err(|error| Failure::fatal(Target::Redis, "pool", error.to_string(), "this is a bug: report it"))?;
        Ok(Self { client, pool, has_answered: AtomicBool::new(false), ack_links: Mutex::default() })
    }

    /// A connection of the caller's own, without a response timeout: the client's default of half a second
    /// would end every blocking read.
    pub(super) async fn reading_link(&self) -> Result<MultiplexedConnection, RedisError> {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(CONNECT_TIMEOUT));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A connection for plain commands.
    pub(super) async fn connection(&self, doing: &str) -> Result<deadpool_redis::Connection, Failure> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => failure(&error, doing),
            other => Failure::silence(Target::Redis, Class::Transient, "io", format!("{doing}: {other}")),
        })
    }

    /// The connection that the acknowledgements of neighbouring lanes share; their commands follow
    /// each other on it without waiting for answers.
    pub(super) async fn ack_link(&self, shard: u16, doing: &str) -> Result<MultiplexedConnection, Failure> {
        let number = shard / LANES_OF_ACK_LINK;
        let kept = self.ack_links().get(&number).cloned();
        if let Some(link) = kept {
            return Ok(link);
        }
        let link = deadpool_redis::Connection::take(self.connection(doing).await?);
        self.ack_links().insert(number, link.clone());
        Ok(link)
    }

    pub(super) fn drop_ack_link(&self, shard: u16) {
        self.ack_links().remove(&(shard / LANES_OF_ACK_LINK));
    }

    fn ack_links(&self) -> MutexGuard<'_, HashMap<u16, MultiplexedConnection>> {
        self.ack_links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the pool asks before it hands a connection out again. Where the user may not, it would say nothing
/// and make a new one each time. Any other answer, such as MISCONF, is for the command itself to get, or not to get.
async fn try_recycling(link: &mut MultiplexedConnection) -> Result<(), HookError> {
    let mut pipe = redis::pipe();
    pipe.cmd("UNWATCH").cmd("PING");
    pipe.exec_async(link).await.or_else(|error| {
        let failure = failure(&error, "trying a connection");
        if failure.is_silence() || failure.code == "NOPERM" { Err(HookError::Backend(error)) } else { Ok(()) }
    })
}

fn two_passwords() -> Failure {
    let remedy = "take one out of --redis-url or --redis-password-file";
    Failure::fatal(Target::Redis, "url", "there are two passwords".into(), remedy)
}

/// The error may quote the URL, and with it the password.
fn bad_url(_: RedisError) -> Failure {
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
        let open = |url: &str| Server::open(url, None, &Certificates::default());
        for (url, shown) in [
            ("redis+sentinel://a:1,b/events", "events of a:1,b:26379"),
            ("redis+sentinel://u:p%40@[::1]:5,b/events/3?sentinel-password=x", "events of ::1:5,b:26379"),
            ("rediss+sentinel://a/events", "events of a:26379"),
        ] {
            assert_eq!(open(url).unwrap().address(), shown, "{url}");
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

    #[test]
    fn a_server_is_back_when_an_attempt_succeeds_after_one_that_failed() {
        let server = Server::open("redis://127.0.0.1:1", None, &Certificates::default()).unwrap();
        let returns = server.returns();
        let failed = || Err::<(), _>(Failure::no_answer(Target::Redis, "a sign of life"));
        for (sign, attempt, is_back) in [
            (Sign::Heartbeat, Ok(()), false),
            (Sign::Heartbeat, failed(), false),
            (Sign::Heartbeat, failed(), false),
            (Sign::Renewal, Ok(()), false),
            (Sign::Heartbeat, Ok(()), true),
        ] {
            let _ = server.note(sign, attempt);
            assert_eq!(returns.has_changed().unwrap(), is_back);
        }
        assert!(!server.returns().has_changed().unwrap(), "for those who ask later it is there");
    }
}
