//! How many inputs of offline jobs a gateway has at nodes: enough that spare time finds some, and no more than spare time is left for.
//!
//! Nodes take them only while nothing else is to be done, so how long they wait there tells how much spare time there is. The window grows
//! by one for each window of inputs that waited little, and is halved when they waited long or were refused, at most once for those that
//! were there then; after a refusal nothing is tried for a while.

use modelless_types::{Micros, Time};
use serde::{Deserialize, Serialize};

/// Inputs should wait no longer than this at a node.
const WAIT: Micros = Micros::from_millis(250);
/// After a refusal nothing is tried for so long, twice as long each time in a row.
const PAUSE: Micros = Micros::from_millis(100);
const DOUBLED: u32 = 6;
/// The most inputs at nodes at once.
const MOST: u32 = 1_024;

/// As many as a batch can use.
const BATCH: f64 = 128.0;

/// The window of one task.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pace {
    window: f64,
    /// Not halved again before this: what comes back until then was sent before.
    settled: Time,
    refused: u32,
    until: Time,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: 4.0, settled: Time::ZERO, refused: 0, until: Time::ZERO }
    }
}

impl Pace {
    /// How many more may be sent while so many are out; the moment before which nothing is to be tried, where there is one.
    pub fn room(&self, now: Time, out: u32) -> Result<u32, Time> {
        if self.until > now { Err(self.until) } else { Ok(self.window().saturating_sub(out)) }
    }

    /// How many may be out at once.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and a thousand")]
    pub fn window(&self) -> u32 {
        self.window as u32
    }

    /// One was answered, after so long at its node.
    pub fn answered(&mut self, now: Time, sent: Time, waited: Micros) {
        self.refused = 0;
        if waited <= WAIT {
            self.window = (self.window + 1.0 / self.window).min(f64::from(MOST));
        } else {
            self.halve(now, sent);
        }
    }

    /// One was refused for want of room or time.
    pub fn refused(&mut self, now: Time, sent: Time) {
        if self.halve(now, sent) {
            self.until = now + Micros(PAUSE.0 << self.refused.min(DOUBLED));
            self.refused += 1;
        }
    }

    /// So few at once cost more each than somebody pays. More of them may be let out, up to as many as the largest batches take.
    pub fn too_few(&mut self, now: Time, sent: Time) {
        if now - sent <= WAIT {
            return self.refused(now, sent); // more of them would be told so as quickly
        }
        if sent >= self.settled {
            self.window = self.window.max((self.window * 2.0).min(BATCH));
            self.settled = now;
        }
    }

    fn halve(&mut self, now: Time, sent: Time) -> bool {
        let anew = sent >= self.settled;
        if anew {
            self.window = (self.window / 2.0).max(1.0);
            self.settled = now;
        }
        anew
    }
}

/// Whether a job will not be done by its deadline on spare time alone, so that its inputs go as ordinary queries of the lowest level: what
/// is left at the pace so far takes longer than there is time, with some of it to spare.
pub fn is_pressed(now: u64, deadline: u64, started: u64, (ended, left): (u32, u32)) -> bool {
    /// So much of the time that is left is kept.
    const KEPT: f64 = 0.25;
    /// Before so much of its time is over the pace is not known.
    const EARLY: f64 = 0.05;
    let whole = float(deadline.saturating_sub(started));
    let gone = float(now.saturating_sub(started));
    let there = float(deadline.saturating_sub(now)) * (1.0 - KEPT);
    if left == 0 || gone < EARLY * whole {
        return false;
    }
    let each = gone / f64::from(ended.max(1));
    each * f64::from(left) > there
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a job's time")]
fn float(us: u64) -> f64 {
    us as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 1_000;

    #[test]
    fn a_window_grows_by_one_a_window_and_is_halved_once_for_what_was_out() {
        let mut pace = Pace::default();
        for at in 0..4 {
            pace.answered(Time(at), Time::ZERO, Micros(10));
        }
        assert_eq!(pace.window(), 4, "a window's worth makes it nearly one larger");
        pace.answered(Time(5), Time::ZERO, Micros(10));
        assert_eq!((pace.window(), pace.room(Time(5), 2)), (5, Ok(3)));
        for at in 10..14 {
            pace.answered(Time(at), Time(5), Micros(WAIT.0 + 1));
        }
        assert_eq!(pace.window(), 2, "all four had been sent before it was halved");
        pace.answered(Time(20), Time(15), Micros(WAIT.0 + 1));
        pace.answered(Time(30), Time(25), Micros(WAIT.0 + 1));
        assert_eq!((pace.window(), pace.room(Time(30), 1)), (1, Ok(0)), "one is always tried");
    }

    #[test]
    fn it_pauses_after_refusals_longer_each_time_and_no_longer_than_some_seconds() {
        let mut pace = Pace::default();
        let mut now = Time(1_000);
        for times in 0..10_u32 {
            pace.refused(now, now);
            let until = pace.room(now, 0).expect_err("it pauses");
            assert_eq!(until, now + Micros(PAUSE.0 << times.min(DOUBLED)));
            assert_eq!(pace.room(until, 0), Ok(pace.window()));
            now = until;
        }
        pace.answered(now, now, Micros(1));
        pace.refused(Time(now.0 + 1), Time(now.0 + 1));
        assert_eq!(pace.room(now, 0), Err(Time(now.0 + 1) + PAUSE), "an answer ends the row");
    }

    #[test]
    fn a_window_that_is_too_small_for_a_ceiling_doubles_once_for_what_was_out_and_no_further_than_a_batch() {
        let mut pace = Pace::default();
        let mut now = Time(1_000);
        let mut windows = Vec::new();
        for _ in 0..6 {
            let sent = now;
            now = now + Micros(30_000 * MS);
            for _ in 0..pace.window() {
                pace.too_few(now, sent);
            }
            windows.push(pace.window());
            assert_eq!(pace.room(now, 0), Ok(pace.window()), "no pause: there was room");
        }
        assert_eq!(windows, [8, 16, 32, 64, 128, 128]);
        for at in 0..2_000 {
            pace.answered(Time(now.0 + at), now, Micros(1));
        }
        let wide = pace.window();
        assert!(wide > 128, "{wide}");
        let sent = Time(now.0 + 5_000);
        pace.too_few(sent + Micros(30_000 * MS), sent);
        assert_eq!(pace.window(), wide, "nor is it made smaller");
        let mut pace = Pace::default();
        pace.too_few(Time(20), Time(10));
        assert_eq!(
            (pace.window(), pace.room(Time(20), 0)),
            (2, Err(Time(20) + PAUSE)),
            "at once: a refusal as any"
        );
    }

    #[test]
    fn a_job_is_pressed_when_its_pace_leaves_no_time() {
        let (started, deadline) = (0, 1_000 * MS);
        assert!(!is_pressed(10 * MS, deadline, started, (0, 1_000)), "too early to tell");
        assert!(
            !is_pressed(100 * MS, deadline, started, (500, 500)),
            "as much again takes a ninth of what is left"
        );
        assert!(
            is_pressed(500 * MS, deadline, started, (500, 500)),
            "it would be done just so, which is too tight"
        );
        assert!(is_pressed(100 * MS, deadline, started, (0, 500)), "nothing at all was done");
        assert!(is_pressed(2_000 * MS, deadline, started, (499, 1)), "it is late");
        assert!(!is_pressed(2_000 * MS, deadline, started, (500, 0)));
    }
}
