//! Reading what the fuzzer writes while it runs.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Lines that are kept, for when the fuzzer itself fails.
const LAST: usize = 40;

/// What was read off.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) executions: u64,
    /// Edges of the program that some input passed.
    pub(super) coverage: u64,
    /// The same with how often, and what was compared.
    pub(super) features: u64,
    pub(super) memory_mb: u64,
    /// Where the input was written that broke the target.
    pub(super) artifact: Option<String>,
    pub(super) last: Vec<String>,
}

impl Seen {
    fn line(&mut self, line: &str) {
        if let Some(path) = line.split("Test unit written to ").nth(1) {
            self.artifact = Some(path.trim().to_owned());
        }
        let stat = |name| line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
        self.executions = stat("stat::number_of_executed_units:").unwrap_or(self.executions);
        self.memory_mb = stat("stat::peak_rss_mb:").unwrap_or(self.memory_mb);
        if line.starts_with('#') {
            let mut words = line.split_whitespace();
            let first = words.next().and_then(|word| word.trim_start_matches('#').parse().ok());
            self.executions = first.unwrap_or(self.executions);
            let words: Vec<&str> = words.collect();
            let after = |name| {
                words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1)?.parse().ok())
            };
            self.coverage = after("cov:").unwrap_or(self.coverage);
            self.features = after("ft:").unwrap_or(self.features);
        }
        if self.last.len() == LAST {
            self.last.remove(0);
        }
        self.last.push(line.to_owned());
    }

    fn told(&self) -> String {
        format!("{} executions, {} edges, {} features", self.executions, self.coverage, self.features)
    }
}

/// Reads to the end, and tells how far it is once in a while.
pub(super) fn follow(from: impl Read, every: Duration, mut tell: impl FnMut(String)) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut told = Instant::now();
    for line in BufReader::new(from).split(b'\n') {
        seen.line(&String::from_utf8_lossy(&line?));
        if told.elapsed() >= every {
            told = Instant::now();
            tell(seen.told());
        }
    }
    if seen.artifact.is_some() {
        seen.last.iter().for_each(|line| tell(line.clone()));
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Seed: 1
#2\tINITED cov: 10 ft: 12 corp: 1/2b exec/s: 0 rss: 40Mb
#900\tNEW    cov: 8003 ft: 17586 corp: 931/560Kb lim: 1012 exec/s: 576 rss: 475Mb L: 510/1012 MS: 1 EraseBytes-
#1024\tpulse  cov: 8003 ft: 17590 corp: 931/560Kb lim: 1012 exec/s: 576 rss: 475Mb
stat::number_of_executed_units: 1100
stat::peak_rss_mb:              481
";

    #[test]
    fn figures_are_read_off_what_the_fuzzer_says() {
        let seen = follow(LOG.as_bytes(), Duration::from_mins(1), |_| {}).unwrap();
        let figures = (seen.executions, seen.coverage, seen.features, seen.memory_mb);
        assert_eq!((figures, seen.artifact), ((1_100, 8_003, 17_590, 481), None));
    }

    #[test]
    fn a_finding_is_named_and_told_whole() {
        let log = format!("{LOG}panicked at x\nartifact_prefix='a/'; Test unit written to a/crash-0\n");
        let mut told = Vec::new();
        let seen = follow(log.as_bytes(), Duration::from_mins(1), |line| told.push(line)).unwrap();
        assert_eq!(seen.artifact.as_deref(), Some("a/crash-0"));
        assert!(told.iter().any(|line| line.contains("panicked at x")), "{told:?}");
    }
}
