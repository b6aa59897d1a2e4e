//! `cargo xtask scoreboard`: every policy on every published scenario, written to `bench/scoreboard/`.
//!
//! `--published` looks for what the baselines' authors published (`bench/scoreboard/published.md`), `--tune` searches everybody's parameters
//! (`simulator/tuning`), `--ablate` switches off each of our ideas in turn (`bench/scoreboard/ablation.md`), `--starts` lets models load and machines start in less and
//! in more time than was assumed (`bench/scoreboard/starts.md`), `--bounds` works out the bounds of the rows that are there anew. The short form, for CI, runs a few virtual seconds of two scenarios and writes nothing: it shows that all of it still runs.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use modelless_testkit::server::{cargo_build, cargo_build_release};

use crate::command::{program, run as run_command};
use crate::root;

const SCENARIOS: &str = "simulator/scenarios";
/// What the short form runs.
const SHORT: [&str; 2] = ["bursts.toml", "mixed.toml"];

/// What each idea is worth is looked for on these, where queries are refused but not most of them.
const ABLATED: [&str; 8] = [
    "--loads",
    "0.6,0.9",
    "--seeds",
    "3",
    "simulator/scenarios/azure.toml",
    "simulator/scenarios/bursts.toml",
    "simulator/scenarios/servegen-small.toml",
    "simulator/scenarios/zipf-floors.toml",
];

/// Load times and start-ups are looked at in these, by those whom targets name.
const STARTS: [&str; 8] = [
    "--starts",
    "0.3,1,3",
    "--loads",
    "0.3,0.6,0.9,1.2",
    "--seeds",
    "1",
    "--policies",
    "modelless,infaas-paper,proteus-like,slackfit,clipper,nexus,inferline-like,mark-like",
];

/// What papers claim of the baselines, or the search of their parameters.
fn other(args: &[&str]) -> Result<()> {
    let built = cargo_build_release("modelless-simulator", "scoreboard")?;
    run_command(program(&root()?, &built).args(args))
}

/// All that are published, by name.
fn scenarios() -> Result<Vec<PathBuf>> {
    let folder = root()?.join(SCENARIOS);
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut scenarios: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    scenarios.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    scenarios.sort();
    ensure!(!scenarios.is_empty(), "there is no scenario in {SCENARIOS}");
    Ok(scenarios)
}

pub(crate) fn run(args: &[&str]) -> Result<()> {
    match args {
        ["--published"] => {
            return other(&["--published", "simulator/published", "--out", "bench/scoreboard"]);
        }
        ["--ablate"] => return other(&[&["--ablate", "--out", "bench/scoreboard"][..], &ABLATED].concat()),
        ["--starts"] => {
            let scenarios = scenarios()?;
            let scenarios: Vec<&str> = scenarios.iter().filter_map(|path| path.to_str()).collect();
            return other(&[&STARTS, &["--out", "bench/scoreboard"][..], &scenarios].concat());
        }
        ["--tune"] => return other(&["--tune", "simulator/tuning"]),
        _ => {}
    }
    let (short, rest) = match args {
        ["--short"] => (true, &[][..]),
        // The rest goes to the program: fewer seeds, other loads, and files of scenarios, which are run again beside what is there.
        rest => (false, rest),
    };
    let named = rest.iter().any(|arg| PathBuf::from(arg).extension().is_some_and(|end| end == "toml"));
    if rest.contains(&"--short") {
        bail!("--short stands alone");
    }
    let root = root()?;
    let mut scenarios = scenarios()?;
    if short {
        scenarios.retain(|path| SHORT.iter().any(|name| path.ends_with(name)));
    }
    let built = if short {
        cargo_build("scoreboard")?
    } else {
        cargo_build_release("modelless-simulator", "scoreboard")?
    };
    let mut command = program(&root, &built);
    if short {
        command.arg("--short");
    } else {
        command.args(["--out", "bench/scoreboard"]).args(rest);
    }
    if !named {
        command.args(&scenarios);
    }
    run_command(&mut command)
}
