//! The one clock of this crate: what it times are real processes, which no paused test clock would move.

use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "times real processes, partly inside of them")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Whole microseconds, as they are reported.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
