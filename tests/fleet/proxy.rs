//! One worker's own way to a server is cut, while everybody else's is not.

use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{leases, name_of, named, settled, shares, tokens};
use crate::world::{World, eventually, point};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Connections are ended, and new ones as soon as they come.
    Closed,
}

/// A way to a server over loopback.
struct Proxy {
    address: String,
    way: watch::Sender<Way>,
    /// An answer that holds this is cut in its middle, and the way is closed.
    cut: watch::Sender<Option<&'static [u8]>>,
}

impl Proxy {
    /// To the host and port of a URL such as `redis://host:port` or `postgres://user@host:port/db`.
    async fn to(url: &str) -> (Arc<Self>, String) {
        let server = url.split_once("://").unwrap().1.rsplit('@').next().unwrap().split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let proxied = url.replace(&server, &address);
        let proxy = Arc::new(Self { address, way: watch::Sender::new(Way::Open), cut: watch::Sender::new(None) });
        tokio::spawn(proxy.clone().listen(listener, server));
        (proxy, proxied)
    }

    async fn listen(self: Arc<Self>, listener: TcpListener, server: String) {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            if *self.way.borrow() == Way::Open {
                // While a server starts there is nobody to connect to: the client is let go.
                if let Ok(upstream) = TcpStream::connect(&server).await {
                    tokio::spawn(self.clone().carry(client, upstream));
                }
            }
        }
    }

    async fn carry(self: Arc<Self>, client: TcpStream, server: TcpStream) {
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let mut way = self.way.subscribe();
        // Whichever ends first, all halves are dropped and both connections closed.
        tokio::select! {
            _ = way.wait_for(|way| *way == Way::Closed) => {}
            () = self.pump(from_client, to_server, false) => {}
            () = self.pump(from_server, to_client, true) => {}
        }
    }

    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_answer: bool) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let cut = *self.cut.borrow();
            if is_answer && cut.is_some_and(|text| buffer[..length].windows(text.len()).any(|part| part == text)) {
                let _ = to.write_all(&buffer[..length / 2]).await;
                self.cut.send_replace(None);
                self.set(Way::Closed);
                return;
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }

    fn set(&self, way: Way) {
        eprintln!("{}: {way:?}", self.address);
        self.way.send_replace(way);
    }

    fn cut_answers_with(&self, text: &'static [u8]) {
        self.cut.send_replace(Some(text));
    }

    async fn until(&self, wanted: Way) {
        eventually(&format!("the way is {wanted:?}"), async || *self.way.borrow() == wanted).await;
    }
}

/// The entries of the lost reply are handled before those that came after them.
#[tokio::test(flavor = "multi_thread")]
async fn entries_of_a_lost_reply_come_before_later_ones() {
    const FEATURES: usize = 50;
    let world = World::shared("lost_reply", 1).await;
    let (proxy, url) = Proxy::to(&world.redis_url).await;
    // Neither a new lease nor the time of the next look at the pending list may do what is under test.
    let command = named(&world, "cut").set("REDIS_URL", &url).set("REORDER_WINDOW", "0s");
    let worker = command.set("LEASE", "30s").set("RENEW", "10s").set("RETRY_CAP", "100ms").ready().await;
    settled(&world, &["cut"]).await;
    let versions = |version| -> Vec<_> { (0..FEATURES).map(|n| point(&format!("F{n}"), version, 4.3, 52.1)).collect() };
    for round in 0..4 {
        proxy.cut_answers_with(b"feature_id");
        world.add_together(0, &versions(2 * round + 1)).await;
        proxy.until(Way::Closed).await;
        assert_eq!(world.pending().await, FEATURES as u64, "delivered, and lost on the way");
        world.add_together(0, &versions(2 * round + 2)).await;
        let start = Instant::now();
        proxy.set(Way::Open);
        world.drained().await;
        eprintln!("lost reply, round {round}: all handled {:.2?} after the way was open", start.elapsed());
    }
    assert!(!worker.log().contains("lease has run out"), "{}", worker.log());
    let counts = worker.stop().await;
    counts.assert_balanced();
    assert_eq!((counts.read, counts.stale), (8 * FEATURES as u64, 0), "{counts:?}");
    assert_eq!(world.state("F7").await, Some((8, "update".into())));
}

/// Adds an event to each shard, of version `version`.
async fn one_each(world: &World, version: i64) {
    for shard in 0..world.shards {
        world.add(shard, &point(&format!("F{shard}"), version, 4.3, 52.1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_of_a_worker_without_a_database_move_on_and_come_back() {
    let world = World::shared("cut_off", 16).await;
    let names = ["w1", "w2", "w3"];
    let (mut ways, mut workers) = (Vec::new(), Vec::new());
    for name in names {
        let (proxy, url) = Proxy::to(&world.database_url).await;
        let command = named(&world, name).set("DATABASE_URL", &url).set("YIELD_AFTER", "1s");
        workers.push(command.ready().await);
        ways.push(proxy);
    }
    let owners = settled(&world, &names).await;
    let share = shares(&owners);
    let cut = (0..3).max_by_key(|place| share.get(names[*place])).unwrap();
    let others: Vec<&str> = names.iter().copied().filter(|name| *name != names[cut]).collect();

    ways[cut].set(Way::Closed);
    let start = Instant::now();
    one_each(&world, 1).await;
    let moved = settled(&world, &others).await;
    world.drained().await;
    eprintln!("cut off: {} shards moved on and drained after {:.2?}", share[names[cut]], start.elapsed());
    assert!(owners.iter().zip(&moved).all(|(was, is)| was == is || was == names[cut]), "{owners:?} {moved:?}");
    assert!(workers[cut].log().contains("giving every shard back"));

    ways[cut].set(Way::Open);
    let start = Instant::now();
    assert_eq!(settled(&world, &names).await, owners, "it comes back to what was its own");
    eprintln!("cut off: shards came back {:.2?} after the way was open", start.elapsed());
    one_each(&world, 2).await;
    world.drained().await;
    for shard in 0..world.shards {
        assert_eq!(world.state(&format!("F{shard}")).await, Some((2, "update".into())));
    }

    // When nobody can write, somebody stays: there is nobody to give the shards to.
    ways.iter().for_each(|way| way.set(Way::Closed));
    one_each(&world, 3).await;
    eventually("one is left, with every shard", async || {
        let (live, leases) = (tokens(&world).await, leases(&world).await);
        live.len() == 1 && leases.iter().all(|lease| *lease == live[0])
    })
    .await;
    let last = name_of(&tokens(&world).await[0]).to_owned();
    ways.iter().for_each(|way| way.set(Way::Open));
    world.drained().await;
    assert_eq!(settled(&world, &names).await, owners);
    eprintln!("everybody cut off: {last} stayed");
    assert_eq!(world.dead_letters().await.len(), 0);
    for worker in workers {
        worker.stop().await.assert_balanced();
    }
}
