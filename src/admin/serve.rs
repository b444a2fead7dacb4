//! Connections of the admin server, each with its bounds: whoever reaches the address can hold up nothing but that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// At once; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// How long a request's head may take, and with that an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest life of a connection; scrapers come again.
const LIFETIME: Duration = Duration::from_secs(600);
const MOST_HEADERS: usize = 64;
/// Request lines and headers; the answers are larger. A body is not read.
const MOST_BYTES: usize = 16 << 10;
const AFTER_AN_ERROR: Duration = Duration::from_millis(100);

/// Answers until the process ends.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // The semaphore is never closed.
    while let Ok(place) = room.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((connection, _)) => {
                let routes = routes.clone();
                tokio::spawn(async move {
                    let _place = place;
                    // Whoever asked knows that it failed.
                    let _ = tokio::time::timeout(LIFETIME, answer(connection, routes)).await;
                });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Mostly too many open files.
                tracing::warn!(%error, "the admin server cannot accept connections");
                tokio::time::sleep(AFTER_AN_ERROR).await;
            }
        }
    }
}

async fn answer(connection: TcpStream, routes: Router) -> Result<(), hyper::Error> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_BYTES)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes))
        .await
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
    )
}
