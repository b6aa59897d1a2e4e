//! `modelless profile`: what was measured of variants, and measuring it.

mod run;

use crate::client;
use clap::Subcommand;
use modelless_decision::search::Why;
use modelless_profiler::Progress;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Measure the models of a package on this machine, without a server.
    Run(Box<run::Options>),
    /// What a server has measured of a task's variants, or of one variant in full.
    Show(client::profile::Show),
    /// Write profiles of a server to a file: JSON, or CSV by its name.
    Export(client::profile::Export),
    /// Give a server profiles out of a file: JSON, or CSV by its name.
    Import(client::profile::Import),
    /// Draw accuracy against latency of a task's variants.
    Plot(client::profile::Plot),
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(options) => run::run(&options),
        Command::Show(options) => client::profile::show(&options),
        Command::Export(options) => client::profile::export(&options),
        Command::Import(options) => client::profile::import(&options),
        Command::Plot(options) => client::profile::plot(&options),
    }
}

/// Where a variant is, in a few words.
pub(crate) fn detail(progress: Progress) -> String {
    match progress {
        Progress::LoadingCold => "loading from the disk".to_owned(),
        Progress::Loading => "loading".to_owned(),
        Progress::Latency { batch, series, why } => {
            let why = match why {
                Why::Bracket => "where does throughput stop growing",
                Why::Again => "again, for a middle value",
                Why::Bend => "where does the curve bend",
                Why::Held => "is it predicted well",
                Why::Unsteady => "it is not steady yet",
                Why::Tail => "for the slowest in a hundred",
            };
            format!("timing batches of {batch}, series {series}: {why}")
        }
        Progress::Accuracy { done, of } => format!("{done} of {of} labelled items"),
        Progress::Paused => "paused: there are queries to answer".to_owned(),
    }
}

/// About how much of one variant is done, of a thousand. It never goes back for a while, but nobody knows beforehand what a
/// curve will take.
pub(crate) fn permille(progress: Progress, before: u64) -> u64 {
    let now = match progress {
        Progress::LoadingCold => 10,
        Progress::Loading => 40,
        Progress::Latency { .. } => before + (600_u64.saturating_sub(before)) / 12,
        Progress::Accuracy { done, of } => {
            let share = u64::try_from(done * 400 / of.max(1)).unwrap_or(400);
            600 + share
        }
        Progress::Paused => before,
    };
    now.max(before).min(1_000)
}

/// `60s`, `2m`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let why = || format!("{text:?} is no duration; write it as 60s, 2m or 500ms");
    let number: u64 = number.parse().map_err(|_| why())?;
    let time = match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    };
    time.filter(|time| !time.is_zero() && *time <= Duration::from_hours(24)).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("60s"), Ok(Duration::from_mins(1)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "60", "s", "-1s", "1.5s", "0s", "9999999999m", "60 s", "25h"] {
            assert!(duration(wrong).unwrap_err().contains("60s"), "{wrong}");
        }
    }

    #[test]
    fn progress_never_goes_back_and_ends_at_all_of_it() {
        let timing = Progress::Latency { batch: 1, series: 1, why: Why::Again };
        let mut at = 0;
        for progress in [Progress::Loading, timing, timing, Progress::Paused, timing] {
            let next = permille(progress, at);
            assert!(next >= at && next < 600);
            at = next;
        }
        assert_eq!(permille(Progress::Accuracy { done: 10, of: 10 }, at), 1_000);
        assert_eq!(permille(Progress::Accuracy { done: 0, of: 0 }, at), 600);
    }
}
