//! How many shards there are and how events find theirs: agreed once, through Redis, by everybody.

use h3o::Resolution;

use super::{Stream, script};
use crate::failure::{Failure, Target};
use crate::shard::{MOST_SHARDS, ShardBy, Topology};

/// The version of the entry format.
const FORMAT: &str = "1";

/// What this process was told explicitly; the rest is taken from what is in force.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// `--shards`
    pub shards: Option<u16>,
    /// `--shard-by`
    pub shard_by: Option<ShardBy>,
    /// `--h3-resolution`
    pub h3_resolution: Option<Resolution>,
}

impl Wanted {
    /// Everything as it is in `topology`.
    pub fn exactly(topology: Topology) -> Self {
        let Topology { shards, shard_by, h3_resolution } = topology;
        Self { shards: Some(shards), shard_by: Some(shard_by), h3_resolution: Some(h3_resolution) }
    }

    /// The explicit settings over the defaults.
    pub fn or_default(self) -> Topology {
        let default = Topology::default();
        Topology {
            shards: self.shards.unwrap_or(default.shards),
            shard_by: self.shard_by.unwrap_or(default.shard_by),
            h3_resolution: self.h3_resolution.unwrap_or(default.h3_resolution),
        }
    }
}

impl Stream {
    /// Sets the topology if nobody has, and answers the one in force.
    ///
    /// # Errors
    /// [`crate::failure::Class::Fatal`] if an explicit setting differs from what is in force.
    pub async fn settle_topology(&self, wanted: Wanted) -> Result<Topology, Failure> {
        let ours = wanted.or_default();
        let mut command = script(include_str!("lua/settle_topology.lua"), &[self.keys.topology()]);
        command.arg(&["shards", &ours.shards.to_string(), "shard_by", ours.shard_by.as_str()]).arg(&[
            "h3_resolution",
            &ours.h3_resolution.to_string(),
            "format",
            FORMAT,
        ]);
        let in_force: Vec<String> = self.ask("agreeing on the topology", &command).await?;
        read(&in_force, wanted, &self.keys.topology())
    }

    /// The topology in force, without setting it; the defaults where nobody has set it.
    ///
    /// # Errors
    /// As [`Self::settle_topology`].
    pub async fn read_topology(&self, wanted: Wanted) -> Result<Topology, Failure> {
        // With no more rights than a worker has.
        let commands = ["shards", "shard_by", "h3_resolution", "format"].iter().map(|field| {
            let mut command = redis::cmd("HGET");
            command.arg(self.keys.topology()).arg(*field);
            command
        });
        let in_force: Vec<Option<String>> = self.ask_all("reading the topology", commands).await?;
        match in_force.into_iter().collect::<Option<Vec<_>>>() {
            Some(in_force) => read(&in_force, wanted, &self.keys.topology()),
            None => Ok(wanted.or_default()),
        }
    }

    /// Refuses to go on while a stream beyond the topology still holds work that no lane would see.
    ///
    /// # Errors
    /// [`crate::failure::Class::Fatal`], naming the stream.
    pub async fn refuse_stranded(&self, topology: Topology) -> Result<(), Failure> {
        let doing = "looking for streams beyond the topology";
        let beyond: Vec<u16> = (topology.shards..MOST_SHARDS).collect();
        let exists = |shard: &u16| {
            let mut command = redis::cmd("EXISTS");
            command.arg(self.keys.events(*shard));
            command
        };
        let found: Vec<bool> = self.ask_all(doing, beyond.iter().map(exists)).await?;
        for shard in beyond.into_iter().zip(found).filter_map(|(shard, exists)| exists.then_some(shard)) {
            let state = self.shard_state(shard).await?;
            let open = state.pending > 0 || state.unread.is_none_or(|unread| unread > 0);
            if open && state.length > 0 {
                let text = format!(
                    "{} holds unread or pending entries, but the topology has {} shards only",
                    self.keys.events(shard),
                    topology.shards
                );
                let remedy = "run workers with the former number of shards until that stream is drained, or delete it";
                return Err(Failure::fatal(Target::Redis, "topology", text, remedy));
            }
        }
        Ok(())
    }
}

fn read(in_force: &[String], wanted: Wanted, key: &str) -> Result<Topology, Failure> {
    let remedy = "give every producer and worker the same settings, or leave them out to take those in force";
    let refuse = |text: String| Failure::fatal(Target::Redis, "topology", text, remedy);
    let [shards, shard_by, resolution, format] = in_force else {
        return Err(refuse(format!("{key} is incomplete")));
    };
    let unreadable = |name: &str, value: &str| refuse(format!("{key} holds {name} {value:?}, which cannot be read"));
    if format != FORMAT {
        return Err(refuse(format!("{key} holds format {format:?}, and this hexlane knows {FORMAT:?} only")));
    }
    let topology = Topology {
        shards: shards.parse().map_err(|_| unreadable("shards", shards))?,
        shard_by: shard_by.parse().map_err(|_| unreadable("shard_by", shard_by))?,
        h3_resolution: resolution
            .parse::<u8>()
            .ok()
            .and_then(|level| Resolution::try_from(level).ok())
            .ok_or_else(|| unreadable("h3_resolution", resolution))?,
    };
    let differs =
        |name: &str, own: String, theirs: String| refuse(format!("--{name} is {own} here, but {key} says {theirs}"));
    match wanted {
        Wanted { shards: Some(own), .. } if own != topology.shards => {
            Err(differs("shards", own.to_string(), topology.shards.to_string()))
        }
        Wanted { shard_by: Some(own), .. } if own != topology.shard_by => {
            Err(differs("shard-by", own.to_string(), topology.shard_by.to_string()))
        }
        Wanted { h3_resolution: Some(own), .. } if own != topology.h3_resolution => {
            Err(differs("h3-resolution", own.to_string(), topology.h3_resolution.to_string()))
        }
        _ if topology.shards == 0 => Err(unreadable("shards", "0")),
        _ => Ok(topology),
    }
}
