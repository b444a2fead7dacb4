//! What a worker says of itself at /metrics.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Fails where nobody listens.
pub async fn metrics(admin: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(admin).await?;
    // In 1.0 the body comes in one piece.
    connection.write_all(format!("GET /metrics HTTP/1.0\r\nhost: {admin}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    assert!(answer.split(' ').nth(1) == Some("200"), "{answer}");
    Ok(answer)
}

/// For each bucket its upper bound, and how many observations are not above it; the last bound is infinite.
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    pub fn find(metrics: &str, name: &str) -> Self {
        let start = format!("{name}_bucket{{le=\"");
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(&start)?.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.parse().ok()?))
        };
        Self(metrics.lines().filter_map(bucket).collect())
    }

    /// What has come since.
    pub fn since(&self, before: &Self) -> Self {
        let difference = |(&(bound, now), &(_, then)): (&(f64, f64), &(f64, f64))| (bound, now - then);
        Self(self.0.iter().zip(&before.0).map(difference).collect())
    }

    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// As Prometheus does it: on a straight line through the bucket, and of the last one its lower bound.
    /// See <https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile>.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = self.count() * share;
        let bucket = self.0.partition_point(|(_, count)| *count < rank);
        let (lower, below) = bucket.checked_sub(1).map_or((0.0, 0.0), |before| self.0[before]);
        match self.0[bucket] {
            (upper, _) if upper.is_infinite() => lower,
            (upper, count) => lower + (upper - lower) * (rank - below) / (count - below),
        }
    }

    /// Of all observations, those that are not above the bound of a bucket.
    pub fn share_within(&self, bound: f64) -> f64 {
        let bucket = self.0.iter().find(|(upper, _)| *upper == bound);
        bucket.expect("a bucket has this bound").1 / self.count()
    }
}
