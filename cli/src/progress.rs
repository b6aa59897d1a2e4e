//! What is being done and how long it took: a moving line on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::Instant;

/// One thing that takes a while.
#[derive(Debug)]
pub(crate) struct Phase {
    bar: Option<ProgressBar>,
    what: String,
    since: Instant,
    told: String,
}

impl Phase {
    /// Starts now.
    pub(crate) fn start(what: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, what: what.to_owned(), since: Instant::now(), told: String::new() }
    }

    /// Where it is. `name` gets a line of its own where there is no terminal, `detail` does not.
    pub(crate) fn at(&mut self, name: &str, detail: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {name} {detail}", self.what)),
            None if self.told != name => {
                name.clone_into(&mut self.told);
                eprintln!("  {name}");
            }
            None => {}
        }
    }

    /// The same with how far all of it is: a bar on a terminal, and a few words beside the name.
    pub(crate) fn on_the_way(&mut self, way: (u64, u64), name: &str, detail: &str, words: &str) {
        self.share(way.0, way.1);
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {name} ({words}): {detail}", self.what)),
            None if self.told != name => {
                name.clone_into(&mut self.told);
                eprintln!("  {name} ({words})");
            }
            None => {}
        }
    }

    /// How far it is of what takes long: a bar on a terminal, and a line each time that `step` is another one elsewhere.
    pub(crate) fn far(&mut self, (done, of): (u64, u64), step: &str, words: &str) {
        self.share(done, of);
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {words}", self.what)),
            None if self.told != step => {
                step.clone_into(&mut self.told);
                eprintln!("  {words}");
            }
            None => {}
        }
    }

    /// A line that stays, beside what moves.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// How much of a known amount is done.
    pub(crate) fn bytes(&mut self, done: u64, of: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(of);
            if bar.position() == 0 {
                let style = "{spinner} {msg} {bar:30} {bytes}/{total_bytes}";
                bar.set_style(
                    ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
                );
            }
            bar.set_position(done);
        }
    }

    /// How much is about done.
    pub(crate) fn share(&mut self, done: u64, of: u64) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(of) {
                bar.set_length(of);
                let style = ProgressStyle::with_template("{spinner} {bar:20} {percent:>3} % {wide_msg}");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            }
            bar.set_position(done);
        }
    }

    /// It is done; one line stays.
    pub(crate) fn done(self, result: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("{result} in {}", short(self.since.elapsed()));
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A duration for people.
pub(crate) fn short(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// `1 model`, `2 models`.
pub(crate) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        assert_eq!(short(Duration::from_micros(12_900)), "12 ms");
        assert_eq!(short(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!((count(1, "model"), count(0, "model")), ("1 model".to_owned(), "0 models".to_owned()));
    }
}
