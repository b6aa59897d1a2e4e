//! A whole cluster for one test: real processes on free ports, a real Redis, a database that the test brings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::lines::{Lines, Waited};
use crate::{Redis, process, server};

/// Slow machines load models slowly.
const READY_WITHIN: Duration = Duration::from_mins(2);
const STOP_WITHIN: Duration = Duration::from_secs(40);

pub struct Cluster {
    pub redis: Redis,
    binary: PathBuf,
    database: String,
    artefacts: PathBuf,
    members: BTreeMap<String, Member>,
}

struct Member {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    /// What stands behind `ready`.
    ready: String,
}

impl Cluster {
    /// An empty cluster on a database and a folder of artefacts.
    pub fn new(database: &str, artefacts: &Path) -> Result<Self> {
        Ok(Self {
            redis: Redis::start()?,
            binary: server::binary()?,
            database: database.to_owned(),
            artefacts: artefacts.to_owned(),
            members: BTreeMap::new(),
        })
    }

    /// Starts a node and waits until gateways can find it. `settings` as for `--set`.
    pub fn executor(&mut self, name: &str, settings: &[&str]) -> Result<()> {
        let artefacts = format!("artefacts={}", self.artefacts.display());
        let own = ["listen=127.0.0.1:0".to_owned(), format!("executor.name={name}"), artefacts];
        self.start("executor", name, &own, settings)
    }

    /// Starts a gateway and waits until it serves.
    pub fn gateway(&mut self, name: &str, settings: &[&str]) -> Result<SocketAddr> {
        let artefacts = format!("artefacts={}", self.artefacts.display());
        let own = ["gateway.http=127.0.0.1:0".to_owned(), format!("name={name}"), artefacts];
        self.start("gateway", name, &own, settings)?;
        let ready = &self.member(name)?.ready;
        let address = ready.strip_prefix("http://").and_then(|address| address.parse().ok());
        address.with_context(|| format!("gateway {name} is `ready {ready}`, which is no address"))
    }

    /// Starts a scheduler.
    pub fn scheduler(&mut self, name: &str, settings: &[&str]) -> Result<()> {
        self.start("scheduler", name, &[format!("name={name}")], settings)
    }

    fn start(&mut self, role: &str, name: &str, own: &[String], settings: &[&str]) -> Result<()> {
        ensure!(!self.members.contains_key(name), "{name} runs already");
        let mut command = Command::new(&self.binary);
        command.arg(role).args(["--database", &self.database, "--redis", &self.redis.url()]);
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            command.args(["--set", setting]);
        }
        let mut child = command
            .env("MODELLESS_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {role} {name}"))?;
        let piped = "the child's output is piped; this is a bug";
        let stdout = Lines::follow(child.stdout.take().context(piped)?);
        let stderr = Lines::follow(child.stderr.take().context(piped)?);
        // From here on Drop ends it.
        let member = Member { child, stdout, stderr, ready: String::new() };
        let member = self.members.entry(name.to_owned()).or_insert(member);
        match member.stdout.wait_for(|line| line.starts_with("ready "), READY_WITHIN) {
            Waited::Line(line, _) => {
                line["ready ".len()..].clone_into(&mut member.ready);
                Ok(())
            }
            Waited::Closed | Waited::TimedOut => {
                bail!("{role} {name} did not get ready\n{}", self.output())
            }
        }
    }

    fn member(&mut self, name: &str) -> Result<&mut Member> {
        self.members.get_mut(name).with_context(|| format!("{name} does not run"))
    }

    fn signal(&mut self, name: &str, signal: Signal) -> Result<()> {
        process::signal(&self.member(name)?.child, signal)
    }

    /// SIGKILL: as a crash.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        let mut member = self.members.remove(name).with_context(|| format!("{name} does not run"))?;
        member.child.kill()?;
        member.child.wait()?;
        Ok(())
    }

    /// SIGSTOP: it neither works nor hangs up.
    pub fn freeze(&mut self, name: &str) -> Result<()> {
        self.signal(name, Signal::STOP)
    }

    /// It goes on where it was.
    pub fn thaw(&mut self, name: &str) -> Result<()> {
        self.signal(name, Signal::CONT)
    }

    /// SIGTERM, then waits until it has finished what it had.
    pub fn drain(&mut self, name: &str) -> Result<ExitStatus> {
        self.signal(name, Signal::TERM)?;
        let ended = process::wait(&mut self.member(name)?.child, STOP_WITHIN)?;
        let Some(status) = ended else { bail!("{name} did not end after SIGTERM\n{}", self.output()) };
        self.members.remove(name);
        Ok(status)
    }

    /// Waits until a member writes such a line, past or future.
    pub fn wait_for(&mut self, name: &str, line: &str, within: Duration) -> Result<()> {
        match self.member(name)?.stderr.wait_for(|written| written.contains(line), within) {
            Waited::Line(..) => Ok(()),
            Waited::Closed | Waited::TimedOut => bail!("{name} never wrote `{line}`\n{}", self.output()),
        }
    }

    /// What all who still run wrote, for a failure's message.
    pub fn output(&self) -> String {
        let one = |(name, member): (&String, &Member)| {
            format!("--- {name}\n{}\n{}", member.stdout.tail(), member.stderr.tail())
        };
        self.members.iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in self.members.values_mut() {
            let _ = process::signal(&member.child, Signal::CONT);
            let _ = process::signal(&member.child, Signal::TERM);
        }
        for member in self.members.values_mut() {
            if !matches!(process::wait(&mut member.child, Duration::from_secs(5)), Ok(Some(_))) {
                let _ = member.child.kill();
                let _ = member.child.wait();
            }
        }
    }
}
