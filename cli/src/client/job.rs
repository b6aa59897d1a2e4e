//! `modelless job`: many inputs of one task, answered when nothing else has to be.
//!
//! The server keeps inputs and outputs, so a job goes on without whoever submitted it. What reads files and writes them is here.
//!
//! | file | tells |
//! |---|---|
//! | `inputs`, `walk`, `names` | which inputs there are, and where their outputs go |
//! | `submit`, `send`, `watch` | how they get to the server, and when they are done |
//! | `fetch`, `writing`, `folder` | how outputs are written, once |
//! | `patient` | what happens while the server is away |
//! | `bill` | what is said of it |

mod bill;
mod fetch;
mod folder;
mod inputs;
mod names;
mod patient;
mod send;
#[cfg(test)]
mod server;
mod submit;
#[cfg(test)]
mod tests;
mod walk;
mod watch;
mod writing;

use super::key::seconds;
use super::{Server, text};
use crate::out;
use crate::progress::Phase;
use clap::{Args, Subcommand};
use modelless_types::JobState;
use patient::Patient;
use serde_json::Value;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Submit inputs, wait, and write the outputs. The same command again goes on where it was interrupted.
    Submit(Box<submit::Options>),
    /// List jobs, newest first.
    List(Server),
    /// Show how far a job is, and what it costs.
    Show(Named),
    /// Wait until a job has ended.
    Wait(Waiting),
    /// Write the outputs of a job that ended.
    Fetch(fetch::Options),
    /// End a job. What is answered by then is kept.
    Cancel(Named),
    /// Remove a job that ended, with its outputs.
    Remove(Named),
}

#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The job's number.
    job: u64,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Waiting {
    /// The job's number.
    job: u64,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    server: Server,
}

/// How long a server may be away.
#[derive(Args, Debug)]
pub(crate) struct Patience {
    /// A server that stops answering is waited for so long.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    patience: String,
}

impl Patience {
    fn time(&self) -> anyhow::Result<Duration> {
        seconds(&self.patience).map(Duration::from_secs)
    }
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Submit(options) => submit::run(&options),
        Command::List(server) => {
            let answer = server.api()?.get("/v1/jobs")?.ok()?.json()?;
            if server.json { out::json(&answer) } else { out::line(bill::table(&answer)) }
        }
        Command::Show(Named { job, server }) => {
            let job = server.api()?.get(&format!("/v1/jobs/{job}"))?.ok()?.json()?;
            if server.json { out::json(&job) } else { out::line(bill::job(&job)) }
        }
        Command::Wait(options) => wait(&options),
        Command::Fetch(options) => fetch::run(&options),
        Command::Cancel(Named { job, server }) => {
            let path = format!("/v1/jobs/{job}/cancel");
            let job =
                server.api()?.send(http::Method::POST, &path, None, bytes::Bytes::new())?.ok()?.json()?;
            if server.json { out::json(&job) } else { out::line(bill::job(&job)) }
        }
        Command::Remove(Named { job, server }) => {
            server.api()?.delete(&format!("/v1/jobs/{job}"))?.ok()?;
            eprintln!("job {job} is removed");
            Ok(())
        }
    }
}

fn wait(options: &Waiting) -> anyhow::Result<()> {
    let patient = Patient::new(options.server.api()?, options.patience.time()?);
    let number = options.job;
    let mut phase = Phase::start(&format!("job {number}"));
    let job = watch::watch(&patient, &mut phase, number)?;
    phase.done(&format!("job {number} is {}", text(&job, "state")));
    fetch::told(&job, None, options.server.json)
}

/// How a job is.
fn at(patient: &Patient, phase: &Phase, number: u64) -> anyhow::Result<Value> {
    patient.get(&format!("/v1/jobs/{number}"), phase)?.ok()?.json()
}

/// There is nothing more to come.
fn is_over(job: &Value) -> bool {
    JobState::parse(text(job, "state")).is_some_and(JobState::ended)
}

fn figure(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}
