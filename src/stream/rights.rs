//! Whether the user in `--redis-url` may do what a worker does: each command is tried in a form that changes nothing.
//!
//! See <https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/>.

use redis::{Cmd, Value};

use super::Stream;
use crate::failure::{Failure, Target};
use crate::shard::MOST_SHARDS;

/// No stream has this number.
const NOBODYS: u16 = MOST_SHARDS;

impl Stream {
    /// Commands of a worker that its user may not run, or not with the key they are for.
    ///
    /// # Errors
    /// As judged by [`Failure::redis`].
    pub async fn missing_rights(&self) -> Result<Vec<String>, Failure> {
        let probes = self.probes();
        let mut pipe = redis::pipe();
        for (_, probe) in &probes {
            pipe.add_command(probe.clone());
        }
        // One that is refused does not hide the others.
        let answers: Vec<Value> = self.send("asking for rights", pipe.ignore_errors(), || true).await?;
        let is_refused = |answer: &Value| match answer {
            Value::ServerError(error) => error.code() == "NOPERM",
            _ => false,
        };
        let refused = probes.into_iter().zip(answers).filter(|(_, answer)| is_refused(answer));
        Ok(refused.map(|((name, _), _)| name).collect())
    }

    /// Refuses to start without one of them.
    ///
    /// # Errors
    /// [`crate::failure::Class::Fatal`], naming them.
    pub async fn check_rights(&self) -> Result<(), Failure> {
        let missing = self.missing_rights().await?;
        if missing.is_empty() {
            return Ok(());
        }
        let text = format!("the user in --redis-url may not run {}", missing.join(", "));
        Err(Failure::fatal(Target::Redis, "NOPERM", text, "grant it; scripts/rights/redis.acl has all that is needed"))
    }

    /// Each with what it is called in a message.
    fn probes(&self) -> Vec<(String, Cmd)> {
        let keys = &self.keys;
        let (events, dead) = (keys.events(NOBODYS), keys.dead(NOBODYS));
        let (owner, workers, topology) = (keys.owner(NOBODYS), keys.workers(), keys.topology());
        let (group, id) = (&*self.group, "0-1");
        // Without PING and UNWATCH there is no connection to ask by.
        let of_server: [(&str, &[&str]); 4] =
            [("TIME", &[]), ("CLIENT ID", &[]), ("CLIENT UNBLOCK", &["0"]), ("INFO", &["server"])];
        let of_key: [(&str, &str, &[&str]); 30] = [
            ("EVAL", &events, &["return 1", "1", KEY]),
            ("EXISTS", &events, &[KEY]),
            ("XREADGROUP", &events, &["GROUP", group, "nobody", "COUNT", "1", "STREAMS", KEY, ">"]),
            ("XACK", &events, &[KEY, group, id]),
            ("XAUTOCLAIM", &events, &[KEY, group, "nobody", "0", id]),
            ("XPENDING", &events, &[KEY, group]),
            ("XCLAIM", &events, &[KEY, group, "nobody", "0", id]),
            ("XRANGE", &events, &[KEY, id, id]),
            ("XLEN", &events, &[KEY]),
            ("XTRIM", &events, &[KEY, "MINID", id]),
            ("XINFO STREAM", &events, &[KEY]),
            ("XINFO GROUPS", &events, &[KEY]),
            ("XINFO CONSUMERS", &events, &[KEY, group]),
            // Without MKSTREAM, of a stream that is not there.
            ("XGROUP CREATE", &events, &[KEY, group, "0"]),
            ("XGROUP SETID", &events, &[KEY, group, "0"]),
            ("XGROUP DELCONSUMER", &events, &[KEY, group, "nobody"]),
            ("MEMORY USAGE", &events, &[KEY]),
            ("XADD", &dead, &[KEY, "NOMKSTREAM", "*", "a", "b"]),
            ("XRANGE", &dead, &[KEY, id, id]),
            ("XLEN", &dead, &[KEY]),
            ("GET", &owner, &[KEY]),
            ("SET", &owner, &[KEY, "nobody", "XX"]),
            ("PEXPIRE", &owner, &[KEY, "1", "GT"]),
            ("DEL", &owner, &[KEY]),
            ("ZADD", &workers, &[KEY, "XX", "0", ""]),
            ("ZRANGE", &workers, &[KEY, "0", "0"]),
            ("ZRANGEBYSCORE", &workers, &[KEY, "1", "0"]),
            ("ZREM", &workers, &[KEY, ""]),
            ("ZREMRANGEBYSCORE", &workers, &[KEY, "1", "0"]),
            // HSETNX is left out, which has no form that changes nothing: the next step at a start runs it.
            ("HGET", &topology, &[KEY, "format"]),
        ];
        let shown = |key: &str| key.replace(&NOBODYS.to_string(), "*");
        let of_server = of_server.iter().map(|(name, words)| ((*name).to_owned(), command(name, words, "")));
        let of_key =
            of_key.iter().map(|(name, key, words)| (format!("{name} with {}", shown(key)), command(name, words, key)));
        of_server.chain(of_key).collect()
    }
}

/// Where the key stands among the words.
const KEY: &str = "\0";

fn command(name: &str, words: &[&str], key: &str) -> Cmd {
    let mut parts = name.split(' ');
    let mut command = redis::cmd(parts.next().unwrap_or_default());
    for word in parts.chain(words.iter().copied()) {
        command.arg(if word == KEY { key } else { word });
    }
    command
}
