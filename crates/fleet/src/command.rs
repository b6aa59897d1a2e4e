//! Machines that the user's own script has: terraform, gcloud, a call to whoever rents them.
//!
//! The script is started with `start`, `list` or `stop` as its last argument, never through a shell. It reads one JSON object from
//! its standard input and writes one to its standard output, as `docs/machines.md` says. What it says on standard error goes
//! into the log. It has a time limit, after which it and what it started are killed.

use crate::{Error, Fleet, Instance, Wanted};
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command as Process};
use tokio::time::timeout;

/// What a script may say.
const ANSWER_BYTES: u64 = 4 << 20;
/// What is kept of what it complains about.
const COMPLAINT_BYTES: u64 = 64 << 10;

/// The script, and for whom it works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandConfig {
    /// The cluster, by a name that no other one has.
    pub cluster: String,
    /// The pool.
    pub pool: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long it may take each time.
    pub within: Duration,
}

/// The provider.
#[derive(Debug)]
pub struct Command {
    config: CommandConfig,
}

/// What a script answers.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Instance(Instance),
    Instances(Vec<Instance>),
    Stopped(serde::de::IgnoredAny),
    Error(Complaint),
}

#[derive(Deserialize)]
struct Complaint {
    kind: String,
    message: String,
}

impl From<Complaint> for Error {
    fn from(Complaint { kind, message }: Complaint) -> Self {
        match kind.as_str() {
            "capacity" => Self::Capacity(message),
            "quota" => Self::Quota(message),
            "refused" => Self::Refused(message),
            "throttled" => Self::Throttled(message),
            "away" => Self::Away(message),
            other => Self::Away(format!("{message} (of an unknown kind, {other:?})")),
        }
    }
}

impl Command {
    /// Calls nothing yet.
    pub fn new(config: CommandConfig) -> Self {
        Self { config }
    }

    async fn call(&self, what: &str, more: Value) -> Result<Answer, Error> {
        let [program, args @ ..] = &self.config.command[..] else {
            return Err(Error::Refused("there is no command to ask for machines".to_owned()));
        };
        let mut question = json!({"cluster": self.config.cluster, "pool": self.config.pool});
        if let (Value::Object(question), Value::Object(more)) = (&mut question, more) {
            question.extend(more);
        }
        let mut command = Process::new(program);
        command.args(args).arg(what).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).kill_on_drop(true).spawn();
        let mut child = child.map_err(|error| Error::Refused(format!("starting {program}: {error}")))?;
        let group = child.id();
        let answered = timeout(self.config.within, exchange(&mut child, question.to_string())).await;
        let ended = matches!(answered, Ok(Ok(_)));
        if !ended && let Some(group) = group.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL); // it was not waited for, so the number is its own
            let _ = child.wait().await;
        }
        let within = self.config.within.as_secs();
        let (text, complaint, success) = match answered {
            Ok(told) => told.map_err(|error| Error::Away(format!("{program} {what}: {error}")))?,
            Err(_) => return Err(Error::Away(format!("{program} {what} did not end within {within} s"))),
        };
        if !complaint.is_empty() {
            tracing::info!(program, what, complaint, "a script for machines says");
        }
        let answer = serde_json::from_slice(&text);
        match answer {
            Ok(Answer::Error(complaint)) => Err(complaint.into()),
            Ok(answer) if success => Ok(answer),
            Ok(_) => {
                Err(Error::Away(format!("{program} {what} answered and failed all the same: {complaint}")))
            }
            Err(error) => {
                let start = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
                let why =
                    format!("{program} {what} wrote {start:?}, which is no answer ({error}): {complaint}");
                Err(Error::Away(why))
            }
        }
    }
}

/// Writes the question, reads what comes, and waits for the end.
async fn exchange(child: &mut Child, question: String) -> std::io::Result<(Vec<u8>, String, bool)> {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(stdin) = &mut stdin {
            // One that does not read what it knows already is no failure.
            let _ = stdin.write_all(question.as_bytes()).await;
        }
        drop(stdin.take());
    };
    let (mut text, mut complaint) = (Vec::new(), Vec::new());
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(ANSWER_BYTES).read_to_end(&mut text).await.map(drop),
            None => Ok(()),
        }
    };
    let hear = async {
        match stderr {
            Some(stderr) => stderr.take(COMPLAINT_BYTES).read_to_end(&mut complaint).await.map(drop),
            None => Ok(()),
        }
    };
    let ((), read, heard) = tokio::join!(write, read, hear);
    read.and(heard)?;
    let status = child.wait().await?;
    Ok((text, String::from_utf8_lossy(&complaint).trim().to_owned(), status.success()))
}

fn unexpected(what: &str) -> Error {
    Error::Away(format!("the script answered `{what}` with something else"))
}

#[async_trait]
impl Fleet for Command {
    async fn start(&self, wanted: &Wanted) -> Result<Instance, Error> {
        let more = json!({"name": wanted.name, "settings": wanted.settings});
        match self.call("start", more).await? {
            Answer::Instance(instance) if instance.name == wanted.name => Ok(instance),
            Answer::Instance(_) | Answer::Instances(_) | Answer::Stopped(_) | Answer::Error(_) => {
                Err(unexpected("start"))
            }
        }
    }

    async fn list(&self) -> Result<Vec<Instance>, Error> {
        match self.call("list", json!({})).await? {
            Answer::Instances(all) => Ok(all),
            Answer::Instance(_) | Answer::Stopped(_) | Answer::Error(_) => Err(unexpected("list")),
        }
    }

    async fn stop(&self, id: &str) -> Result<(), Error> {
        match self.call("stop", json!({"id": id})).await? {
            Answer::Stopped(_) => Ok(()),
            Answer::Instance(_) | Answer::Instances(_) | Answer::Error(_) => Err(unexpected("stop")),
        }
    }
}
