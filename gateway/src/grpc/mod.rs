//! gRPC: health, which follows whether the gateway is ready, and the Open Inference Protocol with Triton's extensions.
//!
//! `tonic` carries it; the service is written by hand on the messages of `modelless-oip`, so that no build needs a compiler for
//! `.proto` files ([docs/adr/0122](../../../docs/adr/0122-grpc-server.md)).

mod coming;
mod connections;
mod infer;
mod service;

use crate::door::Door;
use crate::errors::Error;
use crate::routes::Shared;
use crate::tls::Tls;
use connections::Connections;
#[cfg(any(test, fuzzing))]
pub(crate) use infer::read;
use service::Inference;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::ServingStatus;

/// Calls that are open at one time on one connection.
const STREAMS: u32 = 128;
/// A connection that says nothing is asked whether it lives, and closed when it does not say so.
const PING_AFTER: Duration = Duration::from_mins(1);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// After the stop, calls at hand may end by themselves for so long. Those who watch hold their streams open for ever: they are cut off.
const LAST: Duration = Duration::from_millis(200);

/// Serves until stopped.
pub(crate) async fn serve(
    door: (Door, Option<Tls>),
    app: Shared,
    stop: CancellationToken,
) -> Result<(), Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    // A question is a name. Nobody needs a key to ask it.
    let health = health.max_decoding_message_size(service::LITTLE);
    let mut ready = app.core.ready.subscribe();
    let follow = async {
        loop {
            let serving =
                if *ready.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
            // The empty name is the server as a whole.
            for name in ["", service::NAME] {
                reporter.set_service_status(name, serving).await;
            }
            if ready.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let config = &app.core.config;
    let connections = Connections::new(
        door,
        (config.max_connections, config.max_connections_per_address),
        config.header_timeout(),
    );
    let served = Server::builder()
        .max_concurrent_streams(STREAMS)
        .http2_keepalive_interval(Some(PING_AFTER))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .add_service(health)
        .add_service(Inference::new(Arc::clone(&app)))
        .serve_with_incoming_shutdown(connections.stream(), stop.cancelled());
    tokio::select! {
        () = follow => Ok(()),
        () = async { stop.cancelled().await; tokio::time::sleep(LAST).await } => Ok(()),
        served = served => served.map_err(Error::Grpc),
    }
}
