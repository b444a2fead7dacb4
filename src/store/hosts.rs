//! A connection to whichever of several hosts takes one.
//!
//! As libpq does it, and the driver does not, each host has a bound for everything up to the first query: one
//! that accepts connections and then says nothing would otherwise hold up the others.
//! See <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-MULTIPLE-HOSTS>.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::Connect;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{Client, Config, Error};

use super::tls::Connector;

/// A client and its link, which ends with it: what goes wrong there reaches whoever waits for an answer.
type Connected = (Client, JoinHandle<()>);

/// Where clients are to be had.
#[derive(Clone)]
pub(super) struct Hosts {
    all: Config,
    /// Empty where there is but one.
    each: Arc<[Config]>,
    tls: Connector,
    /// How long one host may take, where there is another one.
    patience: Duration,
    /// The place of the one that took the last client, and is asked first for the next.
    taken_by: Arc<AtomicUsize>,
}

impl Hosts {
    pub(super) fn new(config: &Config, tls: Connector, patience: Duration) -> Self {
        let each: Arc<[Config]> = split(config).into();
        let first = match config.get_load_balance_hosts() {
            LoadBalanceHosts::Random if !each.is_empty() => fastrand::usize(..each.len()),
            _ => 0,
        };
        Self { all: config.clone(), each, tls, patience, taken_by: Arc::new(AtomicUsize::new(first)) }
    }

    /// A client of the first host that takes one. Waits for the last one as long as the caller does.
    pub(super) async fn connect(&self) -> Result<Connected, Error> {
        let first = self.taken_by.load(Ordering::Relaxed);
        let order: Vec<_> = self.each.iter().enumerate().cycle().skip(first).take(self.each.len()).collect();
        let Some((&(last, config), others)) = order.split_last() else { return self.client_of(&self.all).await };
        for &(place, config) in others {
            if let Ok(Ok(connected)) = tokio::time::timeout(self.patience, self.client_of(config)).await {
                self.taken_by.store(place, Ordering::Relaxed);
                return Ok(connected);
            }
        }
        let connected = self.client_of(config).await?;
        self.taken_by.store(last, Ordering::Relaxed);
        Ok(connected)
    }

    async fn client_of(&self, config: &Config) -> Result<Connected, Error> {
        let (client, link) = config.connect(self.tls.clone()).await?;
        Ok((client, tokio::spawn(async { drop(link.await) })))
    }
}

/// For the pool, whose own copy of the settings is the same.
impl Connect for Hosts {
    fn connect(&self, _: &Config) -> Pin<Box<dyn Future<Output = Result<Connected, Error>> + Send + '_>> {
        Box::pin(Self::connect(self))
    }
}

/// One for each host; none where there is but one, or where what is said of them does not fit together, which the
/// driver refuses.
fn split(all: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let fits = |count: usize| count == hosts.len();
    if hosts.len() < 2 || !(addresses.is_empty() || fits(addresses.len())) || !(ports.len() < 2 || fits(ports.len())) {
        return Vec::new();
    }
    let of = |(place, host): (usize, &Host)| {
        let mut one = without_hosts(all);
        match host {
            Host::Tcp(name) => one.host(name),
            #[cfg(unix)]
            Host::Unix(path) => one.host_path(path),
        };
        if let Some(&address) = addresses.get(place) {
            one.hostaddr(address);
        }
        if let Some(&port) = ports.get(place).or(ports.first()) {
            one.port(port);
        }
        one
    };
    hosts.iter().enumerate().map(of).collect()
}

fn without_hosts(all: &Config) -> Config {
    let mut one = Config::new();
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(database) = all.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(&timeout) = all.get_connect_timeout() {
        one.connect_timeout(timeout);
    }
    if let Some(&timeout) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(timeout);
    }
    if let Some(interval) = all.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = all.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding())
        .load_balance_hosts(all.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_host_has_its_own_port_and_all_the_other_settings() {
        let text = "host=a,b hostaddr=10.0.0.1,10.0.0.2 port=1,2 user=u password=p dbname=d options=o \
                    application_name=n connect_timeout=7 tcp_user_timeout=8 keepalives=0 keepalives_idle=9 \
                    keepalives_interval=10 keepalives_retries=11 sslmode=require sslnegotiation=direct \
                    target_session_attrs=read-write channel_binding=require load_balance_hosts=random";
        let each = split(&text.parse().unwrap());
        let first = text.replace("a,b", "a").replace("10.0.0.1,10.0.0.2", "10.0.0.1").replace("port=1,2", "port=1");
        let second = text.replace("a,b", "b").replace("10.0.0.1,10.0.0.2", "10.0.0.2").replace("port=1,2", "port=2");
        assert_eq!(each, [first, second].map(|text| text.parse::<Config>().unwrap()));
    }

    #[test]
    fn what_does_not_fit_together_is_left_to_the_driver() {
        for text in ["host=a", "host=a,b port=1,2,3", "host=a,b hostaddr=10.0.0.1"] {
            assert!(split(&text.parse().unwrap()).is_empty(), "{text}");
        }
        let shared: Vec<Config> = split(&"host=a,b port=7".parse().unwrap());
        assert!(shared.iter().all(|one| one.get_ports() == [7]), "{shared:?}");
    }
}
