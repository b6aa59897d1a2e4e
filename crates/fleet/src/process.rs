//! Machines that are processes of this one: for development and tests, and for one large machine with several nodes.
//!
//! Each is an executor in a process group of its own, so that it outlives whoever started it. It has a tag in its environment, by
//! which it is found again, also by another process after a crash; its number and the time of its start together tell it from
//! any other process. Its output goes to a file. Of two that start one name at the same moment the node's own name decides:
//! the second executor ends.

use crate::{Error, Fleet, Instance, Wanted};
use async_trait::async_trait;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// In the environment of what is started: cluster, pool and name.
const TAG: &str = "FLEET_OF_MODELLESS";

/// Of so many machines the last output is kept, besides of those that are there.
const LOGS_KEPT: usize = 100;

/// What is started, and for whom.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The cluster, by a name that no other one on this machine has.
    pub cluster: String,
    /// The pool.
    pub pool: String,
    /// The program with its first arguments; settings follow as `--set NAME=VALUE`.
    pub command: Vec<String>,
    /// What is added to the environment, such as the database's address: everybody may read arguments.
    pub environment: Vec<(String, String)>,
    /// Where output goes, in a file for each.
    pub logs: PathBuf,
    /// One that does not end so long after it was asked to is killed.
    pub ends_within: Duration,
}

/// The provider.
pub struct Process {
    config: ProcessConfig,
    /// What was started here, to be waited for, and what was asked to end, since when.
    children: Mutex<BTreeMap<u32, Own>>,
    ending: Mutex<BTreeMap<String, Instant>>,
}

/// A process that was started here.
struct Own {
    child: Child,
    name: String,
    started: u64,
}

/// A process that is there.
struct Found {
    pid: u32,
    name: String,
    /// When it started, in ticks since boot.
    started: u64,
    parent: u32,
}

impl Found {
    fn id(&self) -> String {
        format!("{}@{}", self.pid, self.started)
    }
}

impl Process {
    /// Starts nothing yet.
    pub fn new(config: ProcessConfig) -> Self {
        Self { config, children: Mutex::default(), ending: Mutex::default() }
    }

    fn tag(&self, name: &str) -> String {
        format!("{TAG}={}/{}/{name}", self.config.cluster, self.config.pool)
    }

    /// Those that have ended are waited for, so that nothing is left of them.
    fn reap(&self) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|_, own| !matches!(own.child.try_wait(), Ok(Some(_)) | Err(_)));
    }

    /// What has a tag of this pool, without what that started itself.
    fn found(&self) -> Result<Vec<Found>, Error> {
        self.reap();
        let tag = self.tag("");
        let entries =
            fs::read_dir("/proc").map_err(|error| Error::Away(format!("reading /proc: {error}")))?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut found: Vec<Found> = pids.filter_map(|pid| look(pid, &tag)).collect();
        let mut all: BTreeSet<u32> = found.iter().map(|found| found.pid).collect();
        // While one turns into another program, its environment reads as empty.
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        for (pid, own) in children.iter().filter(|(pid, _)| !all.contains(pid)) {
            found.push(Found { pid: *pid, name: own.name.clone(), started: own.started, parent: 0 });
        }
        all.extend(children.keys());
        Ok(found.into_iter().filter(|found| !all.contains(&found.parent)).collect())
    }

    fn instances(&self) -> Result<Vec<Instance>, Error> {
        let found = self.found()?;
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let there: BTreeSet<String> = found.iter().map(Found::id).collect();
        ending.retain(|id, _| there.contains(id));
        let instance = |found: Found| {
            let id = found.id();
            let ending = ending.contains_key(&id);
            Instance { id, name: found.name, ending }
        };
        Ok(found.into_iter().map(instance).collect())
    }

    /// Names are never used again, so what is left of them would become more and more.
    fn clear_logs(&self) {
        let (Ok(found), Ok(entries)) = (self.found(), fs::read_dir(&self.config.logs)) else { return };
        let own = |path: &PathBuf| {
            let name =
                path.file_name().and_then(|name| name.to_str()?.strip_suffix(".log")).unwrap_or_default();
            let number = name.strip_prefix(&*self.config.pool).and_then(|rest| rest.strip_prefix('-'));
            let numbered = number
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
            numbered && found.iter().all(|found| found.name != name)
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(own);
        let mut logs: Vec<_> =
            paths.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).collect();
        logs.sort();
        for (_, path) in logs.iter().take(logs.len().saturating_sub(LOGS_KEPT)) {
            let _ = fs::remove_file(path); // tried again with the next machine
        }
    }

    fn spawn(&self, wanted: &Wanted) -> Result<Instance, Error> {
        let refused = |what: &str, error: std::io::Error| Error::Refused(format!("{what}: {error}"));
        let [program, args @ ..] = &self.config.command[..] else {
            return Err(Error::Refused("there is no command to start a machine with".to_owned()));
        };
        fs::create_dir_all(&self.config.logs).map_err(|error| refused("making a folder for logs", error))?;
        self.clear_logs();
        let path = self.config.logs.join(format!("{}.log", wanted.name));
        let log = fs::File::options().create(true).append(true).open(path);
        let log = log.map_err(|error| refused("opening a log", error))?;
        let again = log.try_clone().map_err(|error| refused("opening a log", error))?;
        let mut command = Command::new(program);
        command.args(args);
        for setting in &wanted.settings {
            command.args(["--set", setting]);
        }
        let tag = self.tag(&wanted.name);
        command.envs(self.config.environment.iter().cloned()).env(TAG, &tag[TAG.len() + 1..]);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::from(log)).stderr(Stdio::from(again));
        let child = command.spawn().map_err(|error| refused(&format!("starting {program}"), error))?;
        let pid = child.id();
        let started = started(pid).map(|(_, started)| started).unwrap_or_default();
        let found = Found { pid, name: wanted.name.clone(), started, parent: 0 };
        let own = Own { child, name: found.name.clone(), started };
        self.children.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, own);
        Ok(Instance { id: found.id(), name: found.name, ending: false })
    }
}

#[async_trait]
impl Fleet for Process {
    async fn start(&self, wanted: &Wanted) -> Result<Instance, Error> {
        if let Some(there) = self.instances()?.into_iter().find(|instance| instance.name == wanted.name) {
            return Ok(there);
        }
        self.spawn(wanted)
    }

    async fn list(&self) -> Result<Vec<Instance>, Error> {
        self.instances()
    }

    async fn stop(&self, id: &str) -> Result<(), Error> {
        let found = self.found()?.into_iter().find(|found| found.id() == id);
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = found else {
            ending.remove(id);
            return Ok(());
        };
        let now = Instant::now();
        let since = *ending.entry(id.to_owned()).or_insert(now);
        let signal = if now - since > self.config.ends_within { Signal::KILL } else { Signal::TERM };
        send(&found, signal)
    }
}

/// A signal to exactly this process, and none to another that has its number by now.
fn send(found: &Found, signal: Signal) -> Result<(), Error> {
    let Some(pid) = i32::try_from(found.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) }; // it ended
    if started(found.pid).map(|(_, started)| started) != Some(found.started) {
        return Ok(());
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::Refused(format!("signalling process {}: {error}", found.pid))),
    }
}

/// A process with a tag that begins so; none that has ended, whose environment is empty.
fn look(pid: u32, tag: &str) -> Option<Found> {
    let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let mut all = environment.split(|byte| *byte == 0);
    let name = all.find_map(|entry| entry.strip_prefix(tag.as_bytes()))?;
    let (parent, started) = started(pid)?;
    Some(Found { pid, name: String::from_utf8(name.to_vec()).ok()?, started, parent })
}

/// A process's parent and when it started; nothing of one that is only still to be waited for.
fn started(pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind its name, which may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let alive = !matches!(*fields.first()?, "Z" | "X");
    alive.then_some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}
