//! Where `now` comes from in a live process.

use modelless_types::Time;
use tokio::time::Instant;

/// Microseconds since the process set its origin. Cheap to copy; all parts of a process share one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts now. The origin lies a second back, so that no moment of interest is zero.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { origin: now.checked_sub(std::time::Duration::from_secs(1)).unwrap_or(now) }
    }

    /// This moment.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The same moment as tokio's timers count.
    pub(crate) fn instant(&self, at: Time) -> Instant {
        // Far deadlines overflow an Instant; a day is as good as never for a timer that is set again on every wake.
        let day = std::time::Duration::from_hours(24);
        let ahead = std::time::Duration::from_micros((at - self.now()).0).min(day);
        Instant::now() + ahead
    }
}
