//! `modelless job fetch`: the outputs of a job that ended, whoever submitted it, and how a command that has them ends.

use super::folder::{Folder, State};
use super::patient::Patient;
use super::writing::{self, Written};
use super::{at, bill, is_over};
use crate::client::{Server, text};
use crate::exit::usage;
use crate::out;
use crate::progress::Phase;
use clap::Args;
use serde_json::Value;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The job's number.
    job: u64,
    /// The folder that outputs are written to.
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// Outputs as lines of one file, with who answered and what it cost, in place of a file for each.
    #[arg(long)]
    lines: bool,
    #[command(flatten)]
    patience: super::Patience,
    #[command(flatten)]
    server: Server,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let patient = Patient::new(options.server.api()?, options.patience.time()?);
    let phase = Phase::start("looking at the job");
    let job = at(&patient, &phase, options.job)?;
    drop(phase);
    if !is_over(&job) {
        anyhow::bail!(
            "job {} is {}; wait for it first: `modelless job wait {0}`",
            options.job,
            text(&job, "state")
        );
    }
    let state = State::of(patient.server(), &job, options.lines)?;
    let mut folder = Folder::open(&options.output, false)?;
    match &folder.state {
        Some(there) => {
            let same = |state: &State| (state.server.clone(), state.job, state.made_unix_us);
            if same(there) != same(&state) || (options.lines && !there.lines) {
                return Err(usage(format!(
                    "{} has the outputs of job {} at {}{}; name another --output",
                    folder.path().display(),
                    there.job,
                    there.server,
                    if there.lines { " as lines" } else { " as files" }
                )));
            }
        }
        None => folder.keep(state)?,
    }
    finish(&patient, folder, &job, options.server.json)
}

/// The job that a folder tells of.
pub(super) fn of_folder(patient: &Patient, phase: &Phase, state: &State) -> anyhow::Result<Value> {
    let path = format!("/v1/jobs/{}", state.job);
    let reply = patient.get(&path, phase)?;
    let gone = reply.status == http::StatusCode::NOT_FOUND;
    let job = if gone { None } else { Some(reply.ok()?.json()?) };
    job.filter(|job| job["made_unix_us"] == state.made_unix_us).ok_or_else(|| {
        anyhow::anyhow!(
            "{} does not know job {} any more: jobs that ended are kept for 7 days, and others know only who may see them; make a \
             new one with --again",
            state.server,
            state.job
        )
    })
}

/// Writes what there is of a job that ended, and ends as it did.
pub(super) fn finish(patient: &Patient, mut folder: Folder, job: &Value, json: bool) -> anyhow::Result<()> {
    let mut phase = Phase::start("writing outputs");
    let written = writing::write(patient, &mut phase, (&folder, job))?;
    folder.complete(job)?;
    phase.done("outputs written");
    told(job, Some((&written, &folder)), json)
}

/// Tells what a job came to.
pub(super) fn told(job: &Value, written: Option<(&Written, &Folder)>, json: bool) -> anyhow::Result<()> {
    if json {
        out::json(job)?;
    } else {
        out::line(bill::job(job))?;
        if let Some((written, folder)) = written {
            out::line(bill::written(written, folder))?;
        }
    }
    bill::end(job)
}
