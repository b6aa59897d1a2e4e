//! Which of several schedulers sees to machines: one at a time, the next one when it has said nothing for a while.
//!
//! It is held as a node's name is, by beats in the store, without comparing clocks. Two that both believe to lead for a moment do no
//! harm: what they write down is compared and counted in the store, and what they ask for has one name.

use modelless_store::{Holder, Result, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// No node has this name.
const NAME: &str = "(machines)";
/// So long the one that leads must have said nothing before another does.
const GONE_AFTER: Duration = Duration::from_secs(5);

pub(super) struct Lead {
    store: Arc<dyn Store>,
    instance: u64,
    place: String,
    /// Who led when it was last looked, and since when that one has said nothing.
    other: Option<(Holder, Instant)>,
}

impl Lead {
    /// `instance` has at most 63 bits; `place` tells people who this is.
    pub(super) fn new(store: Arc<dyn Store>, instance: u64, place: &str) -> Self {
        Self { store, instance, place: place.to_owned(), other: None }
    }

    /// Says that it is there, and whether it leads.
    pub(super) async fn look(&mut self) -> Result<bool> {
        let gone = self.other.as_ref().filter(|(_, since)| since.elapsed() >= GONE_AFTER);
        let gone = gone.map(|(holder, _)| holder.clone());
        let now = self.store.hold_node(NAME, self.instance, &self.place, gone.as_ref()).await?;
        if now.instance == self.instance {
            self.other = None;
            return Ok(true);
        }
        if self.other.as_ref().is_none_or(|(known, _)| *known != now) {
            self.other = Some((now, Instant::now()));
        }
        Ok(false)
    }

    /// Another may lead at once.
    pub(super) async fn leave(&self) {
        if let Err(error) = self.store.release_node(NAME, self.instance).await {
            tracing::debug!(%error, "others hear a little later that this scheduler leads no longer");
        }
    }
}
