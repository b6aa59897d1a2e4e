//! Following a child's output: wait for a line, and keep the last ones for the error message.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is kept for messages; a chatty server must not fill the memory of its test.
const KEPT_LINES: usize = 400;

/// The lines of one pipe, read by a thread of its own so that the child never blocks on a full pipe.
#[derive(Clone)]
pub struct Lines(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    grew: Condvar,
}

#[derive(Default)]
struct State {
    kept: VecDeque<(Instant, String)>,
    dropped: usize,
    /// Lines that tell of a panic, whether still kept or not.
    panics: usize,
    closed: bool,
}

/// What came of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    /// The line, and when it was read.
    Line(String, Instant),
    /// The child closed its end without ever writing such a line.
    Closed,
    TimedOut,
}

impl Lines {
    pub fn follow(pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), grew: Condvar::new() });
        let writer = Arc::clone(&shared);
        // Ends by itself when the child closes the pipe.
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut raw = Vec::new();
            while pipe.read_until(b'\n', &mut raw).is_ok_and(|read| read > 0) {
                let line = String::from_utf8_lossy(&raw).trim_end().to_owned();
                raw.clear();
                let mut state = writer.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.panics += usize::from(line.contains("panicked"));
                state.kept.push_back((Instant::now(), line));
                if state.kept.len() > KEPT_LINES {
                    state.kept.pop_front();
                    state.dropped += 1;
                }
                writer.grew.notify_all();
            }
            writer.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
            writer.grew.notify_all();
        });
        Self(shared)
    }

    /// The first line, past or future, that `wanted` accepts.
    pub fn wait_for(&self, wanted: impl Fn(&str) -> bool, within: Duration) -> Waited {
        let deadline = Instant::now() + within;
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = 0;
        loop {
            let from = usize::saturating_sub(seen, state.dropped);
            if let Some((at, line)) = state.kept.iter().skip(from).find(|(_, line)| wanted(line)) {
                return Waited::Line(line.clone(), *at);
            }
            seen = state.dropped + state.kept.len();
            if state.closed {
                return Waited::Closed;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::TimedOut;
            }
            state = self.0.grew.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was written last, for a message.
    pub fn tail(&self) -> String {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = state.kept.iter().map(|(_, line)| line.as_str()).collect();
        match state.dropped {
            0 => lines.join("\n"),
            dropped => format!("({dropped} earlier lines left out)\n{}", lines.join("\n")),
        }
    }

    /// How many lines of all that were ever written tell of a panic.
    pub fn panics(&self) -> usize {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).panics
    }

    /// Every kept line and when it was read.
    pub fn timed(&self) -> Vec<(Instant, String)> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).kept.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_line_and_keeps_the_rest_for_the_message() {
        let lines = Lines::follow(&b"first\nready http://127.0.0.1:1\nlast\n"[..]);
        let found = lines.wait_for(|line| line.starts_with("ready"), Duration::from_secs(5));
        assert!(matches!(found, Waited::Line(line, _) if line == "ready http://127.0.0.1:1"));
        assert_eq!(lines.wait_for(|line| line == "never", Duration::from_secs(5)), Waited::Closed);
        assert_eq!(lines.tail(), "first\nready http://127.0.0.1:1\nlast");
    }

    #[test]
    fn counts_panics_in_lines_that_are_long_gone() {
        let text = format!("thread 'x' panicked at a.rs:1\n{}", "fine\n".repeat(KEPT_LINES + 1));
        let lines = Lines::follow(std::io::Cursor::new(text));
        assert_eq!(lines.wait_for(|_| false, Duration::from_secs(5)), Waited::Closed);
        assert_eq!(lines.panics(), 1);
        assert!(!lines.tail().contains("panicked"));
    }

    #[test]
    fn keeps_only_the_last_lines() {
        let text = (0..1_000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let lines = Lines::follow(std::io::Cursor::new(text));
        assert_eq!(lines.wait_for(|_| false, Duration::from_secs(5)), Waited::Closed);
        assert!(lines.tail().starts_with("(600 earlier lines left out)\n600\n"));
    }
}
