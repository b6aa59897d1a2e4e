//! A whole cluster for one test: real processes on free ports, a real Redis, a database that the test brings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::lines::{Lines, Waited};
use crate::{Proxy, Redis, process, server};

/// Slow machines load models slowly.
const READY_WITHIN: Duration = Duration::from_mins(2);
const STOP_WITHIN: Duration = Duration::from_secs(40);

pub struct Cluster {
    pub redis: Redis,
    binary: PathBuf,
    database: String,
    artefacts: PathBuf,
    members: BTreeMap<String, Member>,
    /// How each was started that ever was.
    starts: BTreeMap<String, Start>,
    /// In front of nodes that can be cut off.
    proxies: BTreeMap<String, Proxy>,
}

struct Member {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    /// What stands behind `ready`.
    ready: String,
}

#[derive(Clone)]
struct Start {
    program: PathBuf,
    role: String,
    settings: Vec<String>,
}

impl Cluster {
    /// An empty cluster on a database and a folder of artefacts.
    pub fn new(database: &str, artefacts: &Path) -> Result<Self> {
        Self::of(&server::binary()?, database, artefacts)
    }

    /// The same with another `modelless`.
    pub fn of(binary: &Path, database: &str, artefacts: &Path) -> Result<Self> {
        Ok(Self {
            redis: Redis::start()?,
            binary: binary.to_owned(),
            database: database.to_owned(),
            artefacts: artefacts.to_owned(),
            members: BTreeMap::new(),
            starts: BTreeMap::new(),
            proxies: BTreeMap::new(),
        })
    }

    /// Starts a node and waits until gateways can find it. `settings` as for `--set`.
    pub fn executor(&mut self, name: &str, settings: &[&str]) -> Result<()> {
        let program = self.binary.clone();
        self.executor_of(&program, name, settings)
    }

    /// A node that is another program, with the arguments of `modelless`.
    pub fn executor_of(&mut self, program: &Path, name: &str, settings: &[&str]) -> Result<()> {
        let artefacts = format!("artefacts={}", self.artefacts.display());
        let own = ["listen=127.0.0.1:0".to_owned(), format!("executor.name={name}"), artefacts];
        self.start(program, "executor", name, &own, settings)
    }

    /// A node that others reach through a wire that can be [cut](Cluster::cut).
    pub fn executor_behind_a_wire(&mut self, name: &str, settings: &[&str]) -> Result<()> {
        let proxy = Proxy::start()?;
        let advertised = format!("advertise={}", proxy.address());
        let mut all = vec![advertised.as_str()];
        all.extend(settings);
        self.proxies.insert(name.to_owned(), proxy);
        self.executor(name, &all)
    }

    /// Nothing passes between a node behind a wire and the others any longer, though all of them run on.
    pub fn cut(&self, name: &str) -> Result<()> {
        self.proxy(name).map(Proxy::cut)
    }

    /// Its connections end and no new one stands.
    pub fn sever(&self, name: &str) -> Result<()> {
        self.proxy(name).map(Proxy::sever)
    }

    /// The wire is whole again.
    pub fn mend(&self, name: &str) -> Result<()> {
        self.proxy(name).map(Proxy::mend)
    }

    fn proxy(&self, name: &str) -> Result<&Proxy> {
        self.proxies.get(name).with_context(|| format!("{name} is behind no wire that could be cut"))
    }

    /// Starts a gateway and waits until it serves.
    pub fn gateway(&mut self, name: &str, settings: &[&str]) -> Result<SocketAddr> {
        let artefacts = format!("artefacts={}", self.artefacts.display());
        let own = ["gateway.http=127.0.0.1:0".to_owned(), format!("name={name}"), artefacts];
        let program = self.binary.clone();
        self.start(&program, "gateway", name, &own, settings)?;
        self.address(name)
    }

    fn address(&mut self, name: &str) -> Result<SocketAddr> {
        let ready = &self.member(name)?.ready;
        let address = ready.strip_prefix("http://").and_then(|address| address.parse().ok());
        let address =
            address.with_context(|| format!("gateway {name} is `ready {ready}`, which is no address"))?;
        // Where it comes back when it is started again.
        if let Some(start) = self.starts.get_mut(name) {
            start.settings.push(format!("gateway.http={address}"));
        }
        Ok(address)
    }

    /// Starts a scheduler.
    pub fn scheduler(&mut self, name: &str, settings: &[&str]) -> Result<()> {
        let program = self.binary.clone();
        self.start(&program, "scheduler", name, &[format!("name={name}")], settings)
    }

    /// Starts one that ended as it was started before; a gateway on its port.
    pub fn start_again(&mut self, name: &str) -> Result<()> {
        let start = self.starts.get(name).cloned().with_context(|| format!("{name} never ran"))?;
        self.launch(name, start)
    }

    fn start(
        &mut self,
        program: &Path,
        role: &str,
        name: &str,
        own: &[String],
        settings: &[&str],
    ) -> Result<()> {
        let given = settings.iter().map(|setting| (*setting).to_owned());
        let settings = own.iter().cloned().chain(given).collect();
        self.launch(name, Start { program: program.to_owned(), role: role.to_owned(), settings })
    }

    fn launch(&mut self, name: &str, start: Start) -> Result<()> {
        ensure!(!self.members.contains_key(name), "{name} runs already");
        let mut command = Command::new(&start.program);
        command.arg(&start.role).args(["--database", &self.database, "--redis", &self.redis.url()]);
        for setting in &start.settings {
            command.args(["--set", setting]);
        }
        let role = start.role.clone();
        self.starts.insert(name.to_owned(), start);
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
            Waited::Line(line, _) => line["ready ".len()..].clone_into(&mut member.ready),
            Waited::Closed | Waited::TimedOut => {
                bail!("{role} {name} did not get ready\n{}", self.output())
            }
        }
        self.lead(name)
    }

    /// The wire in front of a node leads to where that listens, which only the node knows: what it tells others is the wire.
    fn lead(&mut self, name: &str) -> Result<()> {
        if !self.proxies.contains_key(name) {
            return Ok(());
        }
        let told = |line: &str| line.contains("listening for gateways");
        let line = match self.member(name)?.stderr.wait_for(told, READY_WITHIN) {
            Waited::Line(line, _) => line,
            Waited::Closed | Waited::TimedOut => {
                bail!("{name} never told where it listens\n{}", self.output())
            }
        };
        let address = line.split_once("address=").and_then(|(_, rest)| rest.split_whitespace().next());
        let address = address.with_context(|| format!("no address in `{line}`"))?;
        self.proxy(name)?.lead(address.parse().with_context(|| format!("`{address}` of `{line}`"))?);
        Ok(())
    }

    /// Where a node that was started listens, as it told.
    pub fn node_address(&mut self, name: &str) -> Result<String> {
        let ready = &self.member(name)?.ready;
        let address =
            ready.strip_prefix("node ").with_context(|| format!("{name} is `ready {ready}`, no node"))?;
        Ok(address.to_owned())
    }

    /// The number of a member's process.
    pub fn pid(&mut self, name: &str) -> Result<u32> {
        Ok(self.member(name)?.child.id())
    }

    /// What a member wrote to its log, as far as it is kept.
    pub fn log(&mut self, name: &str) -> Result<String> {
        Ok(self.member(name)?.stderr.tail())
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

    /// Waits until a member has ended by itself.
    pub fn end(&mut self, name: &str) -> Result<ExitStatus> {
        let ended = process::wait(&mut self.member(name)?.child, STOP_WITHIN)?;
        let Some(status) = ended else { bail!("{name} did not end\n{}", self.output()) };
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
