//! How a process is asked to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The first signal drains, inside; the second one ends everything at once.
pub(crate) async fn until_second_signal(up: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    tokio::select! {
        result = up => result,
        () = async { signals.next().await; signals.next().await } => anyhow::bail!("stopped at once by a second signal"),
    }
}

/// What asks a process to end.
pub(crate) struct Signals(Signal, Signal);

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}
