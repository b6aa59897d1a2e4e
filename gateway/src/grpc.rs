//! gRPC: health only, so far. It follows whether the gateway is ready, for probes and load balancers.

use crate::errors::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;

/// Serves `grpc.health.v1.Health` until stopped.
pub(crate) async fn serve(
    listener: TcpListener,
    mut ready: watch::Receiver<bool>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let follow = async {
        loop {
            let serving =
                if *ready.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
            // The empty name is the server as a whole.
            reporter.set_service_status("", serving).await;
            if ready.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served =
        Server::builder().add_service(health).serve_with_incoming_shutdown(incoming, stop.cancelled());
    tokio::select! {
        () = follow => Ok(()),
        // Watchers hold their streams open for ever: they are cut off, not waited for.
        () = async { stop.cancelled().await; tokio::time::sleep(std::time::Duration::from_millis(200)).await } => Ok(()),
        served = served => served.map_err(Error::Grpc),
    }
}
