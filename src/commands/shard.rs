//! `hexlane shard`: shows where events go, for producers that want to compare.

use std::io::{self, BufWriter, Write};

use super::{LINE_FEED, Line, read_line};
use crate::cli::ShardArgs;
use crate::shard::{Keys, Topology, route};
use crate::shown::is_hidden;
use crate::stream::Stream;

/// As long as a Redis string can be: <https://redis.io/docs/latest/develop/data-types/strings/>.
const LONGEST: usize = 512 << 20;

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: ShardArgs) -> Result<(), String> {
    let keys = Keys::new(&args.namespace);
    let wanted = args.topology.wanted();
    let topology = if args.redis.is_given() {
        Stream::new(args.redis.server().await?, keys.clone(), "", "").read_topology(wanted).await?
    } else {
        wanted.or_default()
    };
    let work = tokio::task::spawn_blocking(move || show(&keys, &topology)).await;
    work.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn show(keys: &Keys, topology: &Topology) -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut out = BufWriter::new(io::stdout().lock());
    while let Some(line) = read_line(&mut input, LONGEST, LINE_FEED)? {
        if line.is_blank() {
            continue;
        }
        let Line::Text(text) = line else { continue };
        let route = route(&text, topology);
        // A tab or a line's end inside an id would make two columns or lines of it.
        let feature_id: String = route.feature_id.as_deref().unwrap_or("-").chars().flat_map(shown).collect();
        let cell = route.cell.map_or_else(|| "-".to_owned(), |cell| cell.to_string());
        writeln!(out, "{feature_id}\t{cell}\t{}\t{}", route.shard, keys.events(route.shard))?;
    }
    out.flush()
}

fn shown(c: char) -> Vec<char> {
    if is_hidden(c) { c.escape_default().collect() } else { vec![c] }
}
