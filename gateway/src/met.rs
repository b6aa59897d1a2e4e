//! Whether a gateway has met those that it was to meet at its start.
//!
//! Who says that it is ready is sent its whole share of the queries at once. While only one of many nodes stands in its table, that one would
//! get them all; while none does, there would be nowhere to run them. So the others are waited for, but not those that never come.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So long after the first, the others are not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Once it has met them, it stays so.
#[derive(Debug, Default)]
pub(crate) struct Met(Mutex<State>);

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Nobody,
    /// The first came then.
    Some(Instant),
    All,
}

impl Met {
    /// `count` gives how many queries can be sent to by now, and whether those are all that are known of. It is not asked once they were.
    pub(crate) fn look(&self, now: Instant, count: impl FnOnce() -> (usize, bool)) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::All) {
            return true;
        }
        let (here, all) = count();
        *state = match *state {
            _ if here == 0 => State::Nobody,
            _ if all => State::All,
            State::Some(first) if now.saturating_duration_since(first) >= PATIENCE => State::All,
            State::Some(first) => State::Some(first),
            State::Nobody | State::All => State::Some(now),
        };
        matches!(*state, State::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_known_of_are_waited_for_and_then_never_again() {
        let (met, now) = (Met::default(), Instant::now());
        assert!(!met.look(now, || (0, true)), "nobody to wait for, and nobody to send to");
        assert!(!met.look(now, || (1, false)));
        assert!(met.look(now, || (2, true)));
        assert!(met.look(now, || unreachable!("it has met them")));
    }

    #[test]
    fn who_does_not_come_is_waited_for_a_while_from_the_first_one_on() {
        let (met, start) = (Met::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert!(!met.look(start, || (0, false)));
        assert!(!met.look(after(5_000), || (1, false)), "the first has just come");
        assert!(!met.look(after(5_500), || (0, false)), "and gone again");
        assert!(!met.look(after(6_100), || (1, false)));
        assert!(!met.look(after(7_000), || (1, false)));
        assert!(met.look(after(7_100), || (1, false)));
    }
}
