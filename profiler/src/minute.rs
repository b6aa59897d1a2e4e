//! What the machine did while a variant was timed: how long work took that is always the same, before, between and after, and
//! what the host gave to others meanwhile. Whether that is a minute to go by is decided in [`modelless_decision::steady`].

use crate::points::{self, All};
use modelless_decision::steady::{self, Minute};
use modelless_types::Unsteady;
use std::collections::VecDeque;
use std::fs;
use std::hint::black_box;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks, while batches are timed.
const EVERY: Duration = Duration::from_millis(500);
/// Looks that are remembered, of whichever variants.
const LATELY: usize = 64;
/// How often the work is done for one look; the middle one counts.
const TIMES: usize = 5;
/// Numbers that it goes through: a mebibyte, more than the caches next to a core have.
const NUMBERS: usize = 1 << 17;
/// And steps.
const STEPS: u64 = 60_000;
/// Of fewer ticks of the clock that counts it nobody can tell a share.
const TICKS: u64 = 30;

/// Processor time of a machine since it was started, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticks {
    /// What ran, or could have.
    pub wanted: u64,
    /// Of that, what others had.
    pub stolen: u64,
}

/// The machine, as far as it can be watched from outside of models.
#[derive(Clone)]
pub struct Host {
    same_work: Arc<dyn Fn() -> Duration + Send + Sync>,
    ticks: Arc<dyn Fn() -> Option<Ticks> + Send + Sync>,
    /// The last looks, whatever was measured.
    lately: Arc<Mutex<VecDeque<f64>>>,
}

impl Host {
    /// The one that this runs on. Every profiler of a process shares what was seen of it.
    pub fn of_this_machine() -> Self {
        static HERE: LazyLock<Host> = LazyLock::new(|| Host::new(same_work, ticks));
        HERE.clone()
    }

    /// One that says so itself.
    pub fn new(
        same_work: impl Fn() -> Duration + Send + Sync + 'static,
        ticks: impl Fn() -> Option<Ticks> + Send + Sync + 'static,
    ) -> Self {
        Self { same_work: Arc::new(same_work), ticks: Arc::new(ticks), lately: Arc::default() }
    }
}

/// What was seen so far, while one variant is timed.
#[derive(Default)]
pub(crate) struct Watched {
    before: Option<Ticks>,
    looked: Option<Instant>,
    same_work: Vec<f64>,
}

impl Watched {
    /// Looks at the machine, if that is due. `disturbed` tells afterwards whether somebody else was at work: then it says nothing.
    pub(crate) fn look(&mut self, host: &Host, disturbed: &dyn Fn() -> bool) {
        if self.before.is_none() {
            self.before = (host.ticks)();
        }
        if self.looked.is_none_or(|looked| looked.elapsed() >= EVERY) {
            self.look_now(host, disturbed);
        }
    }

    /// The same, due or not.
    pub(crate) fn look_now(&mut self, host: &Host, disturbed: &dyn Fn() -> bool) {
        let took = (host.same_work)().as_secs_f64() * 1e6;
        self.looked = Some(Instant::now());
        if took > 0.0 && !disturbed() {
            self.same_work.push(took);
        }
    }

    /// What speaks against the minute. What was seen is remembered for the next variants.
    pub(crate) fn judge(&self, host: &Host, all: &All) -> Option<Unsteady> {
        let stolen = self.before.zip((host.ticks)()).and_then(|(before, now)| {
            let wanted = now.wanted.saturating_sub(before.wanted);
            #[expect(clippy::cast_precision_loss, reason = "2^53 ticks are millions of years")]
            let share = now.stolen.saturating_sub(before.stolen) as f64 / wanted as f64;
            (wanted >= TICKS).then_some(share)
        });
        let mut lately = host.lately.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = Minute {
            sizes: &points::compared(all),
            same_work: &self.same_work,
            lately: lately.make_contiguous(),
            stolen,
        };
        let judged = steady::judge(&minute);
        lately.extend(&self.same_work);
        let over = lately.len().saturating_sub(LATELY);
        lately.drain(..over);
        judged
    }
}

/// How long a walk takes that is always the same: each step waits for a number from memory and computes where to go on. The
/// middle one of a few.
fn same_work() -> Duration {
    static NUMBER: LazyLock<Vec<u64>> = LazyLock::new(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
        .take(NUMBERS)
        .collect()
    });
    let numbers: &[u64] = &NUMBER;
    let mut took = [Duration::ZERO; TIMES];
    for took in &mut took {
        let start = Instant::now();
        let mut at = black_box(1_u64);
        for step in 0..STEPS {
            let place = usize::try_from(at % NUMBERS as u64).unwrap_or(0);
            at = numbers[place].wrapping_mul(at | 1).rotate_left(23) ^ step;
        }
        black_box(at);
        *took = start.elapsed();
    }
    took.sort_unstable();
    took[TIMES / 2]
}

fn ticks() -> Option<Ticks> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// `cpu user nice system idle iowait irq softirq steal guest ...`; guest time is part of user time already.
fn parse(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let figures: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let &[user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = figures.as_slice() else {
        return None;
    };
    let wanted = [user, nice, system, irq, softirq, stolen].into_iter().fold(0, u64::saturating_add);
    Some(Ticks { wanted, stolen })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn stolen_time_is_a_share_of_what_was_wanted_and_not_of_what_was_idle() {
        let text = "cpu  100 5 20 9000 40 1 2 30 7 0\ncpu0 1 2 3\n";
        assert_eq!(parse(text), Some(Ticks { wanted: 158, stolen: 30 }));
        for wrong in ["", "cpu", "cpu  1 2 3\n", "cpu  a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8\n"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn this_machine_can_be_watched() {
        assert!(same_work() > Duration::ZERO);
        let (host, mut watched) = (Host::of_this_machine(), Watched::default());
        watched.look(&host, &|| false);
        watched.look(&host, &|| false);
        assert_eq!(watched.same_work.len(), 1, "the second look was not due");
        watched.look_now(&host, &|| true);
        assert_eq!(watched.same_work.len(), 1, "while others are at work it says nothing");
    }

    #[test]
    fn a_machine_that_became_slower_for_the_second_variant_is_found_and_a_few_ticks_tell_no_share() {
        let us = Arc::new(AtomicU64::new(500));
        let slow = Arc::clone(&us);
        let work = move || Duration::from_micros(slow.load(Ordering::Relaxed));
        let ticks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ticks);
        let host = Host::new(work, move || {
            let wanted = counted.fetch_add(10, Ordering::Relaxed);
            Some(Ticks { wanted, stolen: wanted })
        });
        let watch = || {
            let mut watched = Watched::default();
            watched.look(&host, &|| false);
            watched.look_now(&host, &|| false);
            watched.judge(&host, &All::new())
        };
        assert_eq!(watch(), None);
        us.store(700, Ordering::Relaxed);
        let unsteady = watch().unwrap();
        assert!((unsteady.same_work - 0.4).abs() < 1e-9 && unsteady.stolen == 0.0, "{unsteady:?}");
        for _ in 0..LATELY {
            watch();
        }
        assert_eq!(host.lately.lock().unwrap().len(), LATELY);
        assert_eq!(watch(), None, "what lasts is how the machine is now");
    }
}
