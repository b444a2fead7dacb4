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

use super::failure;
use super::tls::Connector;
use crate::failure::Class;

/// A client and its link, which ends with it.
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
    /// The place of the one to ask first: that took the last client, or comes after one that was silent.
    first: Arc<AtomicUsize>,
}

impl Hosts {
    pub(super) fn new(config: &Config, tls: Connector, patience: Duration) -> Self {
        // Of a name's addresses the first may be a silent one: there is time for another.
        let each = split(config, patience / 2).into();
        Self { all: config.clone(), each, tls, patience, first: Arc::default() }
    }

    /// A client of the first host that takes one. When all are silent it is the caller who gives up.
    pub(super) async fn connect(&self) -> Result<Connected, Error> {
        let count = self.each.len();
        let first = match self.all.get_load_balance_hosts() {
            LoadBalanceHosts::Random if count > 0 => fastrand::usize(..count),
            _ => self.first.load(Ordering::Relaxed),
        };
        let order: Vec<_> = self.each.iter().enumerate().cycle().skip(first).take(count).collect();
        let Some((&last, others)) = order.split_last() else { return self.client_of(&self.all).await };
        let mut said = None;
        for &host in others {
            match tokio::time::timeout(self.patience, self.ask(host)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => said = Some(more_telling(said, error)),
                Err(_) => tracing::debug!(host = ?host.1.get_hosts(), "no answer in time"),
            }
        }
        let Some(said) = said else { return self.ask(last).await };
        match tokio::time::timeout(self.patience, self.ask(last)).await {
            Ok(answer) => answer.map_err(|error| more_telling(Some(said), error)),
            Err(_) => Err(said),
        }
    }

    async fn ask(&self, (place, config): (usize, &Config)) -> Result<Connected, Error> {
        let mut asked = Asked { hosts: self, place, has_answered: false };
        let answer = self.client_of(config).await;
        asked.has_answered = true;
        if answer.is_ok() {
            self.first.store(place, Ordering::Relaxed);
        }
        answer
    }

    async fn client_of(&self, config: &Config) -> Result<Connected, Error> {
        let (client, link) = config.connect(self.tls.clone()).await?;
        let link = async {
            // Whoever waits for an answer learns only that there will be none.
            if let Err(error) = link.await {
                tracing::warn!(error = %failure(&error, "a connection has ended", Class::Transient));
            }
        };
        Ok((client, tokio::spawn(link)))
    }
}

/// While a host is asked. Whoever gives up before it has answered asks the next one next time.
struct Asked<'a> {
    hosts: &'a Hosts,
    place: usize,
    has_answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.has_answered {
            let next = (self.place + 1) % self.hosts.each.len().max(1);
            // If it was another's place by now, that one is better.
            let _ = self.hosts.first.compare_exchange(self.place, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What a server has said, rather than that there is none.
fn more_telling(earlier: Option<Error>, error: Error) -> Error {
    match earlier {
        Some(earlier) if earlier.as_db_error().is_some() || error.as_db_error().is_none() => earlier,
        _ => error,
    }
}

/// For the pool, whose own copy of the settings is the same.
impl Connect for Hosts {
    fn connect(&self, _: &Config) -> Pin<Box<dyn Future<Output = Result<Connected, Error>> + Send + '_>> {
        Box::pin(Self::connect(self))
    }
}

/// One for each host, with a bound for each of its addresses; none where there is but one, or where what is said of
/// them does not fit together, which the driver refuses.
fn split(all: &Config, of_address: Duration) -> Vec<Config> {
    let (hosts, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let fits = |count: usize| count == hosts.len();
    if hosts.len() < 2 || !(addresses.is_empty() || fits(addresses.len())) || !(ports.len() < 2 || fits(ports.len())) {
        return Vec::new();
    }
    let of = |(place, host): (usize, &Host)| {
        let mut one = without_hosts(all);
        one.connect_timeout(of_address);
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
                    application_name=n tcp_user_timeout=8 keepalives=0 keepalives_idle=9 \
                    keepalives_interval=10 keepalives_retries=11 sslmode=require sslnegotiation=direct \
                    target_session_attrs=read-write channel_binding=require load_balance_hosts=random";
        let each = split(&text.parse().unwrap(), Duration::from_secs(7));
        let text = format!("{text} connect_timeout=7");
        let first = text.replace("a,b", "a").replace("10.0.0.1,10.0.0.2", "10.0.0.1").replace("port=1,2", "port=1");
        let second = text.replace("a,b", "b").replace("10.0.0.1,10.0.0.2", "10.0.0.2").replace("port=1,2", "port=2");
        assert_eq!(each, [first, second].map(|text| text.parse::<Config>().unwrap()));
    }

    #[test]
    fn what_does_not_fit_together_is_left_to_the_driver() {
        for text in ["host=a", "host=a,b port=1,2,3", "host=a,b hostaddr=10.0.0.1"] {
            assert!(split(&text.parse().unwrap(), Duration::from_secs(7)).is_empty(), "{text}");
        }
        let shared: Vec<Config> = split(&"host=a,b port=7".parse().unwrap(), Duration::from_secs(7));
        assert!(shared.iter().all(|one| one.get_ports() == [7]), "{shared:?}");
    }
}
