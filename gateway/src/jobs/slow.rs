//! When a job whose inputs come to nothing tries again: after pauses that grow as long as nothing else happens. Its own, so that other
//! jobs of the task go on.

use std::time::Duration;
use tokio::time::Instant;

/// The first pause, and how often it is doubled.
const PAUSE: Duration = Duration::from_millis(100);
const DOUBLED: u32 = 6;
/// The first pause after an input that crashed its model, which has to be loaded again for everybody.
const CRASHED: Duration = Duration::from_secs(1);
/// So many in a row crash it: this is not about some of them.
pub(super) const CRASHES: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Slow {
    until: Option<Instant>,
    times: u32,
    crashes: u32,
}

impl Slow {
    /// When it may go on, if not now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// One was answered.
    pub(super) fn went_well(&mut self) {
        (self.times, self.crashes) = (0, 0);
    }

    /// One came to nothing. What was begun before a pause lengthens it no further.
    pub(super) fn came_to_nothing(&mut self, now: Instant) {
        self.pause(now, PAUSE);
    }

    /// One crashed its model. Whether that is enough.
    pub(super) fn crashed(&mut self, now: Instant) -> bool {
        self.crashes += 1;
        self.pause(now, CRASHED);
        // Also where it pauses for less.
        self.until = self.until.max(Some(now + CRASHED));
        self.crashes >= CRASHES
    }

    fn pause(&mut self, now: Instant, first: Duration) {
        if self.until(now).is_none() {
            self.until = Some(now + first * (1 << self.times.min(DOUBLED)));
            self.times += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_once_for_all_that_was_out_and_are_over_with_an_answer() {
        let mut slow = Slow::default();
        let mut now = Instant::now();
        for times in 0..10_u32 {
            for _ in 0..5 {
                slow.came_to_nothing(now);
            }
            let until = slow.until(now).expect("it pauses");
            assert_eq!(until - now, PAUSE * (1 << times.min(DOUBLED)));
            now = until;
            assert_eq!(slow.until(now), None);
        }
        slow.went_well();
        slow.came_to_nothing(now);
        assert_eq!(slow.until(now), Some(now + PAUSE));
    }

    #[test]
    fn crashes_come_a_second_apart_at_least_and_not_for_ever() {
        let mut slow = Slow::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            assert!(!slow.crashed(now), "others are answered in between");
            let until = slow.until(now).expect("it pauses");
            assert!(until >= now + CRASHED);
            now = until;
            slow.went_well();
        }
        assert_eq!((1..=CRASHES).find(|_| slow.crashed(now)), Some(CRASHES));
    }
}
