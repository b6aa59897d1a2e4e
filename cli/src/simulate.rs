//! `modelless simulate`: a cluster in virtual time, with the decisions of the live one.

mod live;

use crate::exit::usage;
use crate::out;
use crate::roles::settings::nearest;
use crate::table::Table;
use anyhow::Context;
use clap::Args;
use modelless_simulator::baseline::{BASELINES, baseline};
use modelless_simulator::scenario::file::File;
use modelless_simulator::scoreboard::OURS;
use modelless_simulator::{Error, simulate};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// What is simulated: see docs/simulator.md.
    #[arg(value_name = "SCENARIO.toml", required_unless_present_any = ["from_live", "policy"])]
    scenario: Option<PathBuf>,
    #[command(flatten)]
    live: live::Running,
    /// Of everything random. The same scenario, seed and version give the same report.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Every rate of the scenario times this.
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    /// Let a policy of others decide; `list` tells which there are.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// The report as JSON on standard output.
    #[arg(long)]
    json: bool,
    /// A folder for the report and for pictures over time.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if !(options.load.is_finite() && options.load > 0.0) {
        return Err(usage(format!("--load is {}, but it must be above 0", options.load)));
    }
    let policy = match options.policy.as_deref() {
        Some("list") => return list(),
        None | Some(OURS) => None,
        Some(name) => Some(baseline(name).ok_or_else(|| {
            let known: Vec<&str> = BASELINES.iter().map(|policy| policy.name).collect();
            usage(format!("there is no policy {name}; there is {OURS}, {}", known.join(", ")))
        })?),
    };
    if options.live.plays_as_it_came() && options.load.to_bits() != 1.0_f64.to_bits() {
        let why =
            "--load makes rates higher or lower, and a recording has no rates: each query comes when it came";
        return Err(usage(why.to_owned()));
    }
    let scenario = match (&options.scenario, &options.live.from_live) {
        (_, Some(server)) => options.live.written(server)?.build(options.load)?,
        (Some(path), None) => File::load(path, options.load).map_err(|error| wrong(path, &error))?,
        (None, None) => return Err(usage("name a scenario, or --from-live".to_owned())),
    };
    let report = simulate(&scenario, policy, options.seed, options.load)?;
    if let Some(folder) = &options.out {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut files = report.pictures();
        files.push(("report.json", serde_json::to_string_pretty(&report)? + "\n"));
        files.push(("report.txt", report.text()));
        for (name, text) in &files {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        eprintln!("{} files written to {}", files.len(), folder.display());
    }
    if options.json { out::json(&report) } else { out::line(report.text().trim_end()) }
}

fn list() -> anyhow::Result<()> {
    let mut table = Table::new(&["policy", "what it is"]);
    table.row([OURS, "the decisions of the live system"]);
    for policy in BASELINES {
        table.row([policy.name, policy.what]);
    }
    out::line(table.to_string())
}

/// What is wrong with a scenario is the user's to mend.
fn wrong(path: &Path, error: &Error) -> anyhow::Error {
    let Error::UnknownKey { text, key, known } = error else {
        return usage(format!("{}: {error}", path.display()));
    };
    let meant = nearest(key, known.iter().map(String::as_str));
    let hint = meant.map_or(String::new(), |meant| format!("\ndid you mean `{meant}`?"));
    usage(format!("{}: {text}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_does_not_exist_is_refused_with_the_one_that_was_meant() {
        let folder = modelless_testkit::temp_dir("scenario").unwrap();
        let path = folder.path().join("a.toml");
        fs::write(&path, "name = 'a'\nduration_s = 1\n[[pool]]\nnaem = 'p'\n").unwrap();
        let error = wrong(&path, &File::load(&path, 1.0).unwrap_err());
        let text = format!("{error:#}");
        assert!(text.contains("did you mean `name`?") && text.contains("a.toml"), "{text}");
        assert!(error.root_cause().is::<crate::exit::Usage>(), "{text}");
    }
}
