//! `hexlane topology`: what everybody has agreed on.

use std::io::Write;

use crate::cli::ShowArgs;
use crate::stream::topology::Wanted;

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: ShowArgs) -> Result<(), String> {
    let stream = args.redis.stream().await?;
    let key = stream.keys().topology();
    let topology = stream.read_topology(Wanted::default()).await?;
    let (shards, shard_by) = (topology.shards, topology.shard_by.as_str());
    let resolution = u8::from(topology.h3_resolution);
    let text = if args.json {
        let json = serde_json::json!({
            "key": key, "shards": shards, "shard_by": shard_by, "h3_resolution": resolution,
        });
        format!("{json}\n")
    } else {
        format!(
            "key            {key}\nshards         {shards}\nshard_by       {shard_by}\nh3_resolution  {resolution}\n"
        )
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}
