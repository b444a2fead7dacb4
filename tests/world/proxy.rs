//! A way to a server that can be closed or long, and on which a single request or answer can get lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::eventually;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Nothing gets through, and nobody is told: what was on its way arrives when the way is open again.
    Silent,
    /// Connections are ended, and new ones as soon as they come.
    Closed,
    /// Connections are ended, and new ones answered as a pooler at its limit does in PostgreSQL's name.
    Refused,
}

/// What gets lost, once; the way is closed with it.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Half of the answer that holds this.
    CutAnswer(&'static [u8]),
    /// The answer to such a request: the server has done what it was asked for.
    LoseAnswerTo(fn(&[u8]) -> bool),
    /// Such a request: the server never sees it.
    LoseRequest(fn(&[u8]) -> bool),
}

/// Whether `text` is somewhere in `bytes`.
pub fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|part| part == text)
}

/// <https://www.postgresql.org/docs/current/protocol-error-fields.html>
async fn refuse(mut client: TcpStream) {
    const FIELDS: &[u8] = b"SFATAL\0VFATAL\0CXX000\0Mno more connections allowed\0\0";
    // Asked for TLS first, it has none.
    const TLS: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 47];
    let mut request = [0; 1024];
    if client.read(&mut request).await.is_ok_and(|length| &request[..length] == TLS) {
        let _ = client.write_all(b"N").await;
        let _ = client.read(&mut request).await;
    }
    let mut answer = b"E".to_vec();
    answer.extend((FIELDS.len() as u32 + 4).to_be_bytes());
    answer.extend(FIELDS);
    let _ = client.write_all(&answer).await;
}

fn host_and_port(url: &str) -> String {
    url.split_once("://").unwrap().1.rsplit('@').next().unwrap().split('/').next().unwrap().to_owned()
}

/// A way to a server over loopback.
pub struct Proxy {
    address: String,
    /// Where new connections go.
    server: Mutex<String>,
    way: watch::Sender<Way>,
    fault: watch::Sender<Option<Fault>>,
    /// What every request and every answer is late by, in milliseconds.
    delay: AtomicU64,
}

impl Proxy {
    /// To the host and port of a URL such as `redis://host:port` or `postgres://user@host:port/db`.
    pub async fn to(url: &str) -> (Arc<Self>, String) {
        let server = host_and_port(url);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let proxied = url.replace(&server, &address);
        let (way, fault) = (watch::Sender::new(Way::Open), watch::Sender::new(None));
        let proxy = Arc::new(Self { address, server: Mutex::new(server), way, fault, delay: AtomicU64::new(0) });
        tokio::spawn(proxy.clone().listen(listener));
        (proxy, proxied)
    }

    async fn listen(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let way = *self.way.borrow();
            match way {
                Way::Open => {
                    // While a server starts there is nobody to connect to: the client is let go.
                    let server = self.server.lock().unwrap().clone();
                    if let Ok(upstream) = TcpStream::connect(server).await {
                        tokio::spawn(self.clone().carry(client, upstream));
                    }
                }
                Way::Silent => drop(tokio::spawn(self.clone().hold(client))),
                Way::Closed => {}
                Way::Refused => drop(tokio::spawn(refuse(client))),
            }
        }
    }

    async fn hold(self: Arc<Self>, client: TcpStream) {
        self.until_audible().await;
        drop(client);
    }

    async fn until_audible(&self) {
        let mut way = self.way.subscribe();
        // Only with the proxy itself does it end.
        let _ = way.wait_for(|way| *way != Way::Silent).await;
    }

    async fn carry(self: Arc<Self>, client: TcpStream, server: TcpStream) {
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let mut way = self.way.subscribe();
        let next_answer_is_lost = AtomicBool::new(false);
        // Whichever ends first, all halves are dropped and both connections closed.
        tokio::select! {
            _ = way.wait_for(|way| !matches!(way, Way::Open | Way::Silent)) => {}
            () = self.pump(from_client, to_server, |request| self.spoil_request(request, &next_answer_is_lost)) => {}
            () = self.pump(from_server, to_client, |answer| self.spoil_answer(answer, &next_answer_is_lost)) => {}
        }
    }

    /// `spoil` says how much still gets through, if this is what gets lost.
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, spoil: impl Fn(&[u8]) -> Option<usize>) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if let Some(length) = spoil(&buffer[..length]) {
                let _ = to.write_all(&buffer[..length]).await;
                self.fault.send_replace(None);
                self.set(Way::Closed);
                return;
            }
            self.travel().await;
            self.until_audible().await;
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }

    fn spoil_request(&self, request: &[u8], next_answer_is_lost: &AtomicBool) -> Option<usize> {
        match *self.fault.borrow() {
            Some(Fault::LoseRequest(is_meant)) => is_meant(request).then_some(0),
            Some(Fault::LoseAnswerTo(is_meant)) => {
                next_answer_is_lost.fetch_or(is_meant(request), Ordering::Relaxed);
                None
            }
            _ => None,
        }
    }

    fn spoil_answer(&self, answer: &[u8], is_lost: &AtomicBool) -> Option<usize> {
        match *self.fault.borrow() {
            Some(Fault::CutAnswer(text)) => holds(answer, text).then_some(answer.len() / 2),
            Some(Fault::LoseAnswerTo(_)) => is_lost.load(Ordering::Relaxed).then_some(0),
            _ => None,
        }
    }

    async fn travel(&self) {
        match self.delay.load(Ordering::Relaxed) {
            0 => {}
            delay => tokio::time::sleep(Duration::from_millis(delay)).await,
        }
    }

    /// From now on new connections lead to another server; those that are there stay.
    pub fn lead_to(&self, url: &str) {
        *self.server.lock().unwrap() = host_and_port(url);
    }

    /// From now on every request and every answer takes so much longer.
    pub fn delay(&self, by: Duration) {
        self.delay.store(by.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn set(&self, way: Way) {
        eprintln!("{}: {way:?}", self.address);
        self.way.send_replace(way);
    }

    pub fn once(&self, fault: Fault) {
        self.fault.send_replace(Some(fault));
    }

    pub async fn until(&self, wanted: Way) {
        eventually(&format!("the way is {wanted:?}"), async || *self.way.borrow() == wanted).await;
    }
}
