//! On what a figure was made, without saying whose machine it is.

use std::fs;

use anyhow::{Context, Result};
use modelless_testkit::process::kib_field;
use serde_json::{Value, json};

/// Processor, cores, memory, kernel; no name, no address, no path.
pub(crate) fn facts() -> Result<Value> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let memory = kib_field(&fs::read_to_string("/proc/meminfo")?, "MemTotal:").context("no MemTotal")?;
    Ok(json!({
        "cpu": model.trim_start_matches([' ', '\t', ':']),
        "cores": std::thread::available_parallelism()?.get(),
        "memory_bytes": memory,
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
    }))
}

/// How busy the machine was, and how much of it others took.
pub(crate) struct Load {
    average: String,
    /// Clock ticks of all cores since boot.
    total: u64,
    steal: u64,
}

impl Load {
    pub(crate) fn read() -> Result<Self> {
        let average = fs::read_to_string("/proc/loadavg")?;
        let average = average.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        let (total, steal) =
            parse_stat(&fs::read_to_string("/proc/stat")?).context("no `cpu` line in /proc/stat")?;
        Ok(Self { average, total, steal })
    }

    /// Both looks, and the share of time that the host gave to others in between.
    pub(crate) fn between(&self, after: &Self) -> Value {
        let (total, steal) = (after.total.saturating_sub(self.total), after.steal.saturating_sub(self.steal));
        json!({
            "load_before": self.average,
            "load_after": after.average,
            "steal_ticks": steal,
            "steal_percent": percent(steal, total),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks of one run are far below 2^52")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 * 10_000.0 / whole as f64).round() / 100.0 }
}

/// `cpu user nice system idle iowait irq softirq steal guest ...`; guest time is already part of user time.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .take(8)
        .collect();
    Some((numbers.iter().sum(), *numbers.get(7)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_total_and_stolen_time() {
        assert_eq!(parse_stat("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n"), Some((36, 8)));
        assert_eq!(parse_stat("cpu 1 2"), None);
        assert!((percent(1, 3) - 33.33).abs() < 1e-9);
    }

    #[test]
    fn says_nothing_of_whose_machine_it_is() {
        let facts = facts().unwrap();
        let keys: Vec<&String> = facts.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["cores", "cpu", "kernel", "memory_bytes"]);
    }
}
