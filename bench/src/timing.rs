//! What the load generators here count alike.

use std::path::Path;
use std::time::Duration;

use modelless_testkit::stats;
use serde_json::{Value, json};

/// Lets the calling thread's sleeps end when they should: by default the kernel may make each 50 us longer, and let whoever runs
/// have their turn first.
pub fn sleep_precisely() -> anyhow::Result<()> {
    modelless_engine::take_short_turns();
    Ok(rustix::thread::set_current_timer_slack(std::num::NonZero::new(1))?)
}

/// Has the kernel forget what it keeps of a file. Works for files that nobody has mapped.
pub fn forget(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?; // what is not written yet cannot be forgotten
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Nanoseconds, as all raw figures are kept.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Percentiles of latencies in nanoseconds, told in microseconds.
pub fn percentiles(nanos: &[u64]) -> Value {
    let us = |percent| stats::percentile(nanos, percent).map(to_us);
    json!({"count": nanos.len(), "p50_us": us(50), "p95_us": us(95), "p99_us": us(99), "max_us": us(100)})
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 ns")]
fn to_us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}
