//! What is asked now, written down for later days, and what earlier days foretell.
//!
//! Every scheduler writes what it saw, each slot about once a minute and when it is over; in the store the greatest stands. What could not be
//! written is tried again. Nothing waits for it: planning goes on by what is known.

use crate::answered;
use modelless_decision::forecast::Forecast;
use modelless_live::Member;
use modelless_planning::{Bins, Foretold};
use modelless_store::Store;
use modelless_types::Time;
use std::mem;

#[derive(Debug, Default)]
pub(crate) struct Past {
    bins: Bins,
    foretold: Foretold,
    /// It could not be written down the last time.
    troubled: bool,
    /// Earlier days could not be read the last time.
    unread: bool,
}

impl Past {
    /// Takes in what is asked; nothing is known of it while the live state does not answer.
    pub(crate) async fn look(&mut self, store: &dyn Store, now: Time, members: Option<&[Member]>) {
        self.bins.look(now, members);
        while let Some(seen) = self.bins.due() {
            let troubled = match answered(store.history().put_slot(seen.clone())).await {
                Ok(()) => false,
                Err(error) => {
                    if !self.troubled {
                        tracing::warn!(%error, "what is asked is not written down for later days yet");
                    }
                    self.bins.not_told(seen);
                    true
                }
            };
            if mem::replace(&mut self.troubled, troubled) && !troubled {
                tracing::info!("what is asked is written down again");
            }
            if troubled {
                return;
            }
        }
    }

    /// What is expected; what was last known of it while the store does not tell.
    pub(crate) async fn forecast(&mut self, store: &dyn Store, now: Time) -> &Forecast {
        let read = answered(self.foretold.read(store, now)).await.map(|_| ());
        if let Err(error) = &read
            && !self.unread
        {
            tracing::warn!(%error, "earlier days cannot be read; what was known of them stands");
        }
        self.unread = read.is_err();
        self.foretold.last()
    }
}
