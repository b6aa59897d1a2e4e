//! How many inputs of a task are at nodes: [`Pace`] decides, this counts.

use modelless_decision::pace::Pace;
use modelless_types::{Micros, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    pace: Pace,
    out: u32,
}

/// Of one task, for all its jobs at this gateway.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    state: Mutex<State>,
    freed: Notify,
}

/// Leave for one input; whoever has it says what came of it, or nothing.
#[derive(Debug)]
pub(super) struct Pass {
    of: Arc<Pacer>,
    sent: Time,
}

impl Pacer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave for one more; else when to ask again, if that is not when one comes back.
    pub(super) fn enter(self: &Arc<Self>, now: Time) -> Result<Pass, Option<Time>> {
        let mut state = self.state();
        match state.pace.room(now, state.out) {
            Err(until) => Err(Some(until)),
            Ok(0) => Err(None),
            Ok(_) => {
                state.out += 1;
                Ok(Pass { of: Arc::clone(self), sent: now })
            }
        }
    }

    /// How many may be out.
    pub(super) fn window(&self) -> u32 {
        self.state().pace.window()
    }

    /// One came back.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Pass {
    pub(super) fn answered(&self, now: Time, waited: Micros) {
        self.of.state().pace.answered(now, self.sent, waited);
    }

    pub(super) fn refused(&self, now: Time) {
        self.of.state().pace.refused(now, self.sent);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.of.state().out -= 1;
        // Several jobs of a task wait here.
        self.of.freed.notify_waiters();
        self.of.freed.notify_one();
    }
}
