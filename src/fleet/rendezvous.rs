//! Which worker should own a shard: rendezvous hashing (Thaler and Ravishankar, 1998,
//! <https://doi.org/10.1109/90.663936>). Everybody who knows the live workers comes to the same
//! answer without asking, and a worker that joins or leaves moves only its own share.

use xxhash_rust::xxh3::xxh3_64;

/// The shards that `token` should own among `live`; none if it is not one of them.
pub fn share(token: &str, live: &[String], shards: u16) -> Vec<u16> {
    (0..shards).filter(|shard| winner(live, *shard) == Some(token)).collect()
}

/// The worker with the highest score for the shard; the greater token, should two be equal.
pub fn winner(live: &[String], shard: u16) -> Option<&str> {
    live.iter().max_by_key(|token| (score(token, shard), *token)).map(String::as_str)
}

fn score(token: &str, shard: u16) -> u64 {
    let mut text = Vec::with_capacity(token.len() + 2);
    text.extend_from_slice(&shard.to_be_bytes());
    text.extend_from_slice(token.as_bytes());
    xxh3_64(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("worker-{n}:abcd")).collect()
    }

    #[test]
    fn every_shard_has_one_owner_and_shares_are_even() {
        let live = workers(5);
        let shares: Vec<usize> = live.iter().map(|token| share(token, &live, 1000).len()).collect();
        assert_eq!(shares.iter().sum::<usize>(), 1000);
        assert!(shares.iter().all(|share| (140..=260).contains(share)), "{shares:?}");
    }

    #[test]
    fn one_that_joins_moves_only_its_own_share() {
        let (before, after) = (workers(4), workers(5));
        for shard in 0..1000 {
            let (was, is) = (winner(&before, shard), winner(&after, shard));
            assert!(was == is || is == Some("worker-4:abcd"));
        }
    }

    #[test]
    fn an_outsider_has_no_share() {
        assert!(share("somebody", &workers(3), 16).is_empty());
    }
}
