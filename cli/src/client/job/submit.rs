//! `modelless job submit`: inputs go to the server, and outputs come back. Whatever it is interrupted by, the same command goes on.

use super::folder::{Folder, State, Submitted};
use super::inputs::Inputs;
use super::patient::Patient;
use super::{bill, fetch, send, watch};
use crate::client::key::seconds;
use crate::client::{JobGoalOptions, Server, text};
use crate::exit::usage;
use crate::out;
use crate::progress::{Phase, count};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The task.
    task: String,
    /// The inputs: a folder of files, a list of paths (one a line), or a .jsonl of queries' bodies.
    #[arg(long, value_name = "PATH")]
    input: PathBuf,
    /// The folder that outputs are written to.
    #[arg(long, value_name = "FOLDER", required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    #[command(flatten)]
    goals: JobGoalOptions,
    /// By when all should be answered, from now on, such as 2h. When that gets tight it is no longer put off for others.
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// End when all inputs are sent. The same command without this waits and writes the outputs.
    #[arg(long)]
    detach: bool,
    /// Only tell what it is expected to cost.
    #[arg(long, conflicts_with_all = ["detach", "again"])]
    dry_run: bool,
    /// Make a new job, although the folder of outputs has those of another; they are written over.
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    patience: super::Patience,
    #[command(flatten)]
    server: Server,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let deadline_s = options.deadline.as_deref().map(seconds).transpose()?;
    let patient = Patient::new(options.server.api()?, options.patience.time()?);
    let looking = Phase::start("looking at the inputs");
    let inputs = Inputs::find(&options.input, options.output.as_deref())?;
    let left_out = inputs.left_out.to_string();
    if !left_out.is_empty() {
        looking.say(&format!("left out: {left_out}"));
    }
    drop(looking);
    let submitted = Submitted {
        task: options.task.clone(),
        goals: options.goals.json(),
        deadline_s,
        inputs: inputs.digest.clone(),
    };
    Submission { options, patient, inputs, submitted }.run()
}

struct Submission<'a> {
    options: &'a Options,
    patient: Patient,
    inputs: Inputs,
    submitted: Submitted,
}

impl Submission<'_> {
    fn run(mut self) -> anyhow::Result<()> {
        let Options { output, again, dry_run, detach, server, .. } = self.options;
        if *dry_run {
            let answer = self.estimate()?;
            return if server.json {
                out::json(&answer)
            } else {
                out::line(bill::estimate(&answer, self.inputs.len()))
            };
        }
        let Some(output) = output else {
            return Err(usage("say where outputs are to be written: --output FOLDER"));
        };
        let known = if output.exists() { Some(Folder::open(output, *again)?) } else { None };
        let (folder, job) = match known {
            Some(folder) if folder.state.is_some() && !again => self.go_on(folder)?,
            known => self.make(output, known)?,
        };
        if folder.state.as_ref().is_some_and(|state| state.complete) {
            eprintln!("all of it is written to {} already; --again makes a new job", output.display());
            return fetch::told(&job, None, server.json);
        }
        let job = self.sent(job)?;
        if *detach {
            let number = &job["job"];
            eprintln!(
                "job {number} goes on by itself; the same command without --detach waits and writes the outputs"
            );
            return if server.json { out::json(&job) } else { out::line(bill::job(&job)) };
        }
        let number = job["job"].as_u64().unwrap_or_default();
        let mut phase = Phase::start(&format!("job {number}"));
        let job = watch::watch(&self.patient, &mut phase, number)?;
        phase.done(&format!("job {number} is {}", text(&job, "state")));
        fetch::finish(&self.patient, folder, &job, server.json)
    }

    fn asked(&self) -> Value {
        let Submitted { task, goals, deadline_s, .. } = &self.submitted;
        let mut asked = json!({"task": task, "inputs": self.inputs.len(), "goals": goals});
        if let Some(deadline) = deadline_s {
            asked["deadline_s"] = json!(deadline);
        }
        if let Some(name) = &self.options.name {
            asked["name"] = json!(name);
        }
        asked
    }

    fn estimate(&self) -> anyhow::Result<Value> {
        let phase = Phase::start("asking what it will cost");
        self.patient.post_json("/v1/jobs?dry_run=true", &self.asked(), &phase)?.ok()?.json()
    }

    /// A new one. What it will cost is said before.
    fn make(&self, output: &Path, folder: Option<Folder>) -> anyhow::Result<(Folder, Value)> {
        let estimate = self.estimate()?;
        eprintln!("{}", bill::estimate(&estimate, self.inputs.len()));
        let again = self.options.again;
        let mut folder = match folder {
            Some(folder) => folder,
            None => Folder::open(output, again)?,
        };
        let phase = Phase::start("making the job");
        let job = self.patient.post_json("/v1/jobs", &self.asked(), &phase)?.ok()?.json()?;
        drop(phase);
        if let Some(before) = folder.state.as_ref().filter(|before| !before.complete) {
            eprintln!("job {} is left to itself; `modelless job cancel {0}` ends it", before.job);
        }
        let mut state = State::of(self.patient.server(), &job, self.inputs.are_lines())?;
        (state.submitted, state.over) = (Some(self.submitted.clone()), again);
        folder.keep(state)?;
        Ok((folder, job))
    }

    /// One that was begun.
    fn go_on(&self, folder: Folder) -> anyhow::Result<(Folder, Value)> {
        let Some(state) = &folder.state else { anyhow::bail!("the folder has no job") };
        if let Some(why) = differs(state, self.patient.server(), &self.submitted) {
            return Err(usage(format!(
                "{} has the outputs of job {}, {why}; name another --output, or make a new job with --again, which writes over \
                 them",
                folder.path().display(),
                state.job
            )));
        }
        if state.complete {
            let job = folder.bill()?;
            return Ok((folder, job));
        }
        let phase = Phase::start("looking at the job");
        let job = fetch::of_folder(&self.patient, &phase, state)?;
        drop(phase);
        eprintln!("going on with job {}", state.job);
        Ok((folder, job))
    }

    /// All its inputs are there, and it runs.
    fn sent(&mut self, job: Value) -> anyhow::Result<Value> {
        if text(&job, "state") != "receiving" {
            return Ok(job);
        }
        let number = job["job"].as_u64().unwrap_or_default();
        let mut phase = Phase::start("sending inputs");
        send::send((&self.patient, &mut phase), number, &mut self.inputs)?;
        let job = self.patient.post(&format!("/v1/jobs/{number}/start"), &phase)?.ok()?.json()?;
        let inputs = usize::try_from(self.inputs.len()).unwrap_or(usize::MAX);
        phase.done(&format!("{} sent", count(inputs, "input")));
        Ok(job)
    }
}

/// Why a folder's job is not the one that is asked for.
fn differs(state: &State, server: &str, now: &Submitted) -> Option<String> {
    if state.server != server {
        return Some(format!("which is at {}", state.server));
    }
    let Some(before) = &state.submitted else {
        return Some("which was submitted in another way".to_owned());
    };
    let all = [
        (before.task != now.task, "which is of another task"),
        (before.goals != now.goals, "which has other goals"),
        (before.deadline_s != now.deadline_s, "which has another deadline"),
        (before.inputs != now.inputs, "and its inputs have changed since"),
    ];
    all.iter().find(|(differs, _)| *differs).map(|(_, why)| (*why).to_owned())
}
