//! `hexlane rewind`: sets the consumer group back, so that entries come again that were settled.

use std::io::Write;

use crate::cli::RewindArgs;
use crate::stream::rewind::Rewound;
use crate::stream::topology::Wanted;

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub async fn run(args: RewindArgs) -> Result<(), String> {
    let stream = args.redis.stream().await?;
    let topology = stream.read_topology(Wanted::default()).await?;
    let shards = if args.shard.is_empty() { (0..topology.shards).collect() } else { args.shard };
    let mut out = String::new();
    for shard in shards {
        let rewound = stream.rewind(shard, args.to).await?;
        let what = match rewound {
            Rewound::Back(Some(oldest)) if oldest > args.to => {
                format!("set back: everything comes again; the oldest entry that is still there is {oldest}")
            }
            Rewound::Back(_) => format!("set back: what entered from {} on comes again", args.to),
            Rewound::NotNeeded => "is not that far yet".into(),
            Rewound::NothingRead => "nobody has read it yet".into(),
        };
        out.push_str(&format!("shard {shard:03}: {what}\n"));
    }
    std::io::stdout().write_all(out.as_bytes()).map_err(|error| error.to_string())
}
