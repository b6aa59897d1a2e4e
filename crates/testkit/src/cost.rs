//! What a load generator itself takes of the machine that it shares with what it measures.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process;

/// CPU time from its start on: of this whole process, and of the thread that starts it and asks, which should be the one that sends.
#[derive(Debug)]
pub struct Cost {
    process: Duration,
    thread: Duration,
    since: Instant,
}

impl Cost {
    pub fn start() -> Self {
        let (process, thread) = (process::own_cpu_time(), process::thread_cpu_time());
        Self { process, thread, since: Instant::now() }
    }

    pub fn json(&self) -> Value {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        json!({
            "wall_ns": nanos(self.since.elapsed()),
            "process_cpu_ns": nanos(process::own_cpu_time().saturating_sub(self.process)),
            "sending_thread_cpu_ns": nanos(process::thread_cpu_time().saturating_sub(self.thread)),
        })
    }

    /// What of one core this process took, in per cent.
    pub fn percent(&self) -> f64 {
        let spent = process::own_cpu_time().saturating_sub(self.process).as_secs_f64();
        100.0 * spent / self.since.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_threads_take_is_the_processes_and_not_the_senders() {
        let cost = Cost::start();
        let busy = std::thread::spawn(|| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
        });
        busy.join().unwrap();
        let told = cost.json();
        let [wall, process, thread] = ["wall_ns", "process_cpu_ns", "sending_thread_cpu_ns"]
            .map(|name| told[name].as_u64().unwrap_or_default());
        assert!(wall >= 50_000_000 && process > thread && thread < wall, "{told}");
        assert!(cost.percent() > 0.0);
    }
}
