//! `cargo xtask test`: everything, in stages, the cheap and general ones first.
//!
//! A failed stage does not stop the others, except those that need it; the table at the end shows all of them.

mod demos;
mod peer;
pub(crate) mod perf_analyzer;
mod python;
mod sdk;
mod stages;
mod system;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::{root, say};
use stages::{Context, STAGES, Stage};

pub(crate) use python::{
    ensure as client_environment, moto as moto_python, recipes, schemathesis as schemathesis_python,
};
pub(crate) use sdk::installed as sdk_installed;

pub(crate) enum Outcome {
    Passed,
    /// Not run, and why that is right.
    Skipped(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    quick: bool,
    only: BTreeSet<String>,
    /// What follows `--`: goes to nextest instead of the stage's own choice of crates.
    filter: Vec<String>,
}

pub(crate) fn run(args: &[&str]) -> Result<()> {
    let options = parse(args)?;
    let wanted = |stage: &&Stage| {
        if options.only.is_empty() {
            stage.quick || !options.quick
        } else {
            options.only.contains(stage.name)
        }
    };
    let mut context = Context::new(root()?, options.filter.clone())?;
    let mut table: Vec<(&str, Duration, Line)> = Vec::new();
    for stage in STAGES.iter().filter(wanted) {
        let failed_need = stage.needs.iter().find(|need| {
            table.iter().any(|(name, _, line)| name == *need && matches!(line, Line::Failed(_)))
        });
        say(format!("\n=== {} — {}", stage.name, stage.what));
        let started = Instant::now();
        let line = match failed_need {
            Some(need) => Line::Failed(format!("not run: it needs `{need}`, which failed")),
            None => match (stage.run)(&mut context) {
                Ok(Outcome::Passed) => Line::Passed,
                Ok(Outcome::Skipped(why)) => Line::Skipped(why),
                Err(error) => Line::Failed(format!("{error:#}")),
            },
        };
        match &line {
            Line::Failed(why) => eprintln!("{} failed: {why}", stage.name),
            Line::Skipped(why) => say(format!("skipped: {why}")),
            Line::Passed => {}
        }
        table.push((stage.name, started.elapsed(), line));
    }

    // Ends the database, before the verdict is written.
    let closing = context.finish();
    say("\nstage      seconds");
    for (name, time, line) in &table {
        let verdict = match line {
            Line::Passed => "passed".to_owned(),
            Line::Skipped(why) => format!("skipped: {why}"),
            Line::Failed(why) => format!("FAILED: {}", why.lines().next().unwrap_or_default()),
        };
        say(format!("{name:<9} {:>8.1}  {verdict}", time.as_secs_f64()));
    }
    let total: Duration = table.iter().map(|(_, time, _)| *time).sum();
    say(format!("{:<9} {:>8.1}", "total", total.as_secs_f64()));
    // Last of all: how many tests ran, and which of them failed.
    say("");
    for line in closing {
        say(line);
    }

    let failed: Vec<&str> = table
        .iter()
        .filter(|(_, _, line)| matches!(line, Line::Failed(_)))
        .map(|(name, _, _)| *name)
        .collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

enum Line {
    Passed,
    Skipped(String),
    Failed(String),
}

fn parse(args: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match arg {
            "--" => options.filter = args.by_ref().map(|&arg| arg.to_owned()).collect(),
            "--quick" => options.quick = true,
            "--only" => {
                let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
                match args.next() {
                    Some(name) if names.contains(name) => {
                        options.only.insert((*name).to_owned());
                    }
                    Some(_) | None => bail!("--only takes one of: {}", names.join(", ")),
                }
            }
            _ => bail!("`{arg}` is no option of `cargo xtask test`: it takes --quick and --only STAGE"),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_options() {
        let only = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(parse(&["--quick"]).unwrap(), Options { quick: true, ..Options::default() });
        assert_eq!(
            parse(&["--only", "fmt", "--only", "tidy"]).unwrap(),
            Options { only: only(&["fmt", "tidy"]), ..Options::default() }
        );
        let filter = parse(&["--only", "nextest", "--", "-p", "xtask"]).unwrap().filter;
        assert_eq!(filter, ["-p", "xtask"]);
        assert!(parse(&["--only", "everything"]).unwrap_err().to_string().contains("fmt, clippy"));
        assert!(parse(&["--fast"]).is_err());
    }

    #[test]
    fn a_stage_needs_only_what_comes_before_it() {
        for (at, stage) in STAGES.iter().enumerate() {
            for need in stage.needs {
                assert!(STAGES[..at].iter().any(|other| other.name == *need), "{} needs {need}", stage.name);
            }
        }
    }
}
