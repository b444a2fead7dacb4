//! Sorts by feature id, byte by byte as PostgreSQL's collation "C" does. Pure.
//!
//! Ids of one source mostly begin alike, and comparing two strings anywhere in memory is slow. So what all of
//! them begin with is left out, and the eight bytes after it are compared as one number first.

/// Sorts `items` by the id of each; those of one id stay in order.
pub(super) fn sort<'a, T: Copy + 'a>(items: &mut [T], id: impl Fn(&T) -> &'a str) {
    let shared = shared_prefix(items.iter().map(&id));
    let mut keyed: Vec<(u64, T)> = items.iter().map(|item| (leading(id(item), shared), *item)).collect();
    keyed.sort_by(|(left, a), (right, b)| left.cmp(right).then_with(|| id(a).cmp(id(b))));
    for (slot, (_, item)) in items.iter_mut().zip(keyed) {
        *slot = item;
    }
}

/// How many bytes all of them begin with alike.
fn shared_prefix<'a>(mut ids: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = ids.next() else { return 0 };
    ids.fold(first.len(), |shared, id| {
        let pairs = first.bytes().take(shared).zip(id.bytes());
        pairs.take_while(|(a, b)| a == b).count()
    })
}

/// Eight bytes from `from` on; where there are fewer, what is missing counts as NUL, which comes before all that
/// an id can hold.
fn leading(id: &str, from: usize) -> u64 {
    let mut eight = [0; 8];
    for (slot, byte) in eight.iter_mut().zip(id.bytes().skip(from)) {
        *slot = byte;
    }
    u64::from_be_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_as_strings_do_and_keeps_the_order_of_equals() {
        let ids = [
            "bus-10",
            "bus-1",
            "bus-",
            "bus-100000000",
            "bus-10000000",
            "bus-1000000000",
            "bus-10",
            "bus-é",
            "bus-z",
            "bus-\u{1}",
            "bus-10",
            "bus-100000001",
        ];
        for ids in [&ids[..], &ids[..2], &ids[..1], &[], &["", "b", "a", ""], &["same", "same"], &["ab", "aé", "a"]] {
            let mut places: Vec<usize> = (0..ids.len()).collect();
            let mut wanted = places.clone();
            wanted.sort_by_key(|&place| ids[place]);
            sort(&mut places, |&place| ids[place]);
            assert_eq!(places, wanted, "{ids:?}");
        }
    }
}
