//! How many inputs of a task are at nodes: [`Pace`] decides, this counts, and lets the jobs of a task have their turns.

use modelless_decision::pace::Pace;
use modelless_types::{Micros, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

#[derive(Debug, Default)]
struct State {
    pace: Pace,
    out: u32,
    /// Jobs that found no place, in the order in which they did: the next place is the first one's.
    line: VecDeque<u64>,
    named: u64,
}

/// Of one task, for all its jobs at this gateway.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    state: Mutex<State>,
    freed: Notify,
}

/// One job's way to places.
#[derive(Debug)]
pub(super) struct Turn {
    of: Arc<Pacer>,
    name: u64,
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

    /// One more job asks for places.
    pub(super) fn join(self: &Arc<Self>) -> Turn {
        let mut state = self.state();
        state.named += 1;
        Turn { of: Arc::clone(self), name: state.named }
    }

    /// One came back, or a job stepped out of the line.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    fn tell(&self) {
        self.freed.notify_waiters();
        self.freed.notify_one();
    }
}

impl Turn {
    /// Leave for one more; else when to ask again, if that is not when one comes back. Who was refused before others is let in before
    /// them, so that of several jobs none has all the places.
    pub(super) fn enter(&self, now: Time) -> Result<Pass, Option<Time>> {
        let mut state = self.of.state();
        let free = match state.pace.room(now, state.out) {
            Err(until) => return Err(Some(until)),
            Ok(free) => usize::try_from(free).unwrap_or(usize::MAX),
        };
        let place = state.line.iter().position(|name| *name == self.name);
        let before = place.unwrap_or(state.line.len());
        if free <= before {
            if place.is_none() {
                state.line.push_back(self.name);
            }
            return Err(None);
        }
        if let Some(place) = place {
            state.line.remove(place);
        }
        state.out += 1;
        Ok(Pass { of: Arc::clone(&self.of), sent: now })
    }

    /// How many may be out.
    pub(super) fn window(&self) -> u32 {
        self.of.state().pace.window()
    }

    /// It wants none at the moment: others need not wait for it.
    pub(super) fn pause(&self) {
        let mut state = self.of.state();
        let before = state.line.len();
        state.line.retain(|name| *name != self.name);
        if state.line.len() < before {
            drop(state);
            self.of.tell();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pause();
    }
}

impl Pass {
    pub(super) fn answered(&self, now: Time, waited: Micros) {
        self.of.state().pace.answered(now, self.sent, waited);
    }

    pub(super) fn refused(&self, now: Time) {
        self.of.state().pace.refused(now, self.sent);
    }

    /// It would have been answered in a larger batch.
    pub(super) fn too_few(&self, now: Time) {
        self.of.state().pace.too_few(now, self.sent);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.of.state().out -= 1;
        // Several jobs of a task wait here.
        self.of.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_free_again_is_for_the_job_that_waited_for_it_first() {
        let pacer = Arc::new(Pacer::default());
        let (greedy, second, third) = (pacer.join(), pacer.join(), pacer.join());
        let mut out: Vec<Pass> = std::iter::from_fn(|| greedy.enter(Time(1)).ok()).collect();
        assert_eq!(out.len(), greedy.window() as usize, "alone it has all places");
        assert!(second.enter(Time(1)).is_err() && third.enter(Time(1)).is_err());
        out.pop();
        assert!(second.enter(Time(1)).is_err(), "the first one had asked for one more before");
        out.extend(greedy.enter(Time(1)).ok());
        assert!(greedy.enter(Time(1)).is_err(), "now it stands behind the others");
        out.pop();
        assert!(greedy.enter(Time(1)).is_err() && third.enter(Time(1)).is_err());
        out.push(second.enter(Time(1)).expect("its turn"));
        out.pop();
        third.pause();
        out.push(greedy.enter(Time(1)).expect("who wants none at the moment stands in nobody's way"));
        assert!(third.enter(Time(1)).is_err() && second.enter(Time(1)).is_err());
        out.pop();
        drop(third);
        assert!(second.enter(Time(1)).is_ok(), "and neither does who is gone");
    }

    #[test]
    fn jobs_take_turns_one_input_each() {
        let pacer = Arc::new(Pacer::default());
        let turns = [pacer.join(), pacer.join()];
        let mut out: VecDeque<(usize, Pass)> = VecDeque::new();
        let mut begun = [0_u32, 0];
        for _ in 0..100 {
            for (of, turn) in turns.iter().enumerate() {
                while let Ok(pass) = turn.enter(Time(1)) {
                    out.push_back((of, pass));
                    begun[of] += 1;
                }
            }
            out.pop_front();
        }
        assert!(begun[0].abs_diff(begun[1]) <= 5, "{begun:?}");
    }
}
