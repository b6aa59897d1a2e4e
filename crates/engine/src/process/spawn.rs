//! A runner process: starting it, asking it, hearing from it, reaping it.

use super::ProcessConfig;
use super::bound::RESERVED;
use super::lane::Usage;
use crate::clock;
use crate::control::{self, Ask, Gently, Say};
use crate::heap::TUNED;
use crate::sandbox::{Confinement, LIBRARIES, Layer, State};
use crate::seam::EngineError;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is kept of what a runner printed.
const TAIL: usize = 4 << 10;
/// What is read of it in a second. One that prints more waits for us rather than we for it.
const PRINTED: usize = 256 << 10;

/// What is read at once, and what a pipe holds.
const CHUNK: usize = 1 << 10;
const PIPE: usize = 64 << 10;

/// ONNX Runtime reports on its use to its makers by itself: it writes to a database in the user's cache folder, and
/// from there to the network, on a thread that starts too early to be confined. Only the environment stops it.
const QUIET: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

/// A started runner.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pidfd: Arc<OwnedFd>,
    control: OwnedFd,
    stderr: Option<ChildStderr>,
    tail: Vec<u8>,
    /// It ended by a signal that nobody here sent.
    killed_by_others: bool,
    /// It can load without getting in the way of what is served.
    gives_way: bool,
    /// When the last second of listening to it began, and how much it printed since.
    printed: (Instant, usize),
}

/// What a runner did while it was listened to.
#[derive(Debug)]
pub(super) enum Heard {
    /// It answered.
    Said(Say),
    /// It is gone, or no longer makes sense and has to be killed.
    Ended,
    /// The other descriptor became readable.
    Called,
    /// Nothing in time.
    Nothing,
}

impl Process {
    /// Starts a runner. It dies when the calling *thread* ends.
    pub(super) fn spawn(config: &ProcessConfig, gently: Gently) -> Result<Self, EngineError> {
        let mut command = if let Some((program, args)) = config.command.split_first() {
            let mut command = Command::new(program);
            command.args(args);
            command
        } else {
            // Not by its path: that may have been replaced by a newer version meanwhile.
            let mut command = Command::new("/proc/self/exe");
            command.arg0("modelless").args(["runner", config.engine.name()]);
            command
        };
        let (ours, theirs) = control::pair().map_err(EngineError::system("make a socket for a runner"))?;
        command.arg("--library").arg(&config.library);
        command.arg("--parent").arg(std::process::id().to_string());
        match gently {
            Gently::Not => {}
            Gently::Nice => drop(command.args(["--gently", "nice"])),
            Gently::Idle => drop(command.args(["--gently", "idle"])),
        }
        if let Some(bytes) = config.memory_limit {
            command.arg("--memory-limit").arg(bytes.0.saturating_add(RESERVED.0).to_string());
        }
        if config.gpu {
            command.args(["--gpu", "yes"]);
        }
        if !config.sandbox.without.is_empty() {
            let sandbox = serde_json::to_string(&config.sandbox).expect("it has no maps; this is a bug");
            command.arg("--sandbox").arg(sandbox);
        }
        command.env_clear().envs([QUIET, TUNED]);
        if config.gpu {
            // Where the libraries of CUDA are, which ONNX Runtime opens by name.
            command.envs(std::env::var_os(LIBRARIES).map(|folders| (LIBRARIES, folders)));
            // It has no folder to keep what it compiles in.
            command.env("CUDA_CACHE_DISABLE", "1");
            // Numbers as the driver's tools count, not by which is fastest: `cuda:0` is the card that the node shows first.
            command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
            // libtorch has no switch for it that can be reached from here: FP32 stays FP32, as on the CPU.
            command.env("NVIDIA_TF32_OVERRIDE", "0");
        }
        command.envs(&config.environment);
        // Its own process group, so that Ctrl-C in a terminal reaches the server only, which then drains.
        command.process_group(0).stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(EngineError::system("start a runner process"))?;
        // The parent's copy of the runner's socket closes here, or its end would never be seen.
        drop(command);
        if config.nice > 0 {
            // Its threads have it from its first one. If it cannot be, it only runs sooner than it need.
            let _ = rustix::process::setpriority_process(Some(Pid::from_child(&child)), config.nice.into());
        }
        let stderr = child.stderr.take();
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        match pidfd {
            Ok(pidfd) => Ok(Self {
                child,
                pidfd: Arc::new(pidfd),
                control: ours,
                stderr,
                tail: Vec::new(),
                killed_by_others: false,
                gives_way: false,
                printed: (clock::now(), 0),
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(EngineError::System { what: "watch a runner process", why: error.to_string() })
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn gives_way(&self) -> bool {
        self.gives_way
    }

    pub(super) fn pidfd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.pidfd)
    }

    /// Waits until the library is loaded; its version, and how the process is confined.
    pub(super) fn hello(&mut self, limit: Duration) -> Result<(String, Confinement), EngineError> {
        let until = clock::now() + limit;
        match self.listen(None, Some(until)) {
            Heard::Said(Say::Hello { version, mut confinement, gives_way }) => {
                self.gives_way = gives_way;
                if confinement.layers.get(&Layer::Limits) == Some(&State::On)
                    && Usage::of(self.pid()).is_none()
                {
                    let why = "what a runner takes cannot be read from /proc, so only the kernel's limit stands \
                               (mounted with hidepid?)";
                    confinement.layers.insert(Layer::Limits, State::Partly(why.to_owned()));
                }
                Ok((version, confinement))
            }
            Heard::Said(Say::Failed { why }) => Err(EngineError::Unavailable(why)),
            Heard::Said(Say::Done | Say::Loaded { .. }) => {
                Err(EngineError::Unavailable("the runner does not speak our language".to_owned()))
            }
            Heard::Ended | Heard::Called => {
                let cause = self.end();
                Err(EngineError::Unavailable(format!("the runner ended at once: {cause}")))
            }
            Heard::Nothing => Err(EngineError::Unavailable(format!(
                "the runner did not start within {} s",
                limit.as_secs()
            ))),
        }
    }

    /// Asks something of the runner. The answer comes by [`Process::listen`].
    pub(super) fn ask(&self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        control::send_now(&self.control, ask, fds)
    }

    /// Waits for an answer, the end, a byte on `other`, or a moment, and keeps what the runner prints.
    pub(super) fn listen(&mut self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) -> Heard {
        loop {
            let now = clock::now();
            let deaf = self.deaf_until(now);
            let wait = until.into_iter().chain(deaf).min();
            let wait = wait.map(|until| timespec(until.saturating_duration_since(now)));
            let mut fds =
                vec![PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
            let stderr_at = self.stderr.as_ref().filter(|_| deaf.is_none()).map(|stderr| {
                fds.push(PollFd::new(stderr, PollFlags::IN));
                fds.len() - 1
            });
            let other_at = other.map(|other| {
                fds.push(PollFd::from_borrowed_fd(other, PollFlags::IN));
                fds.len() - 1
            });
            let count = match rustix::event::poll(&mut fds, wait.as_ref()) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "cannot poll a runner");
                    return Heard::Ended;
                }
            };
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if stderr_at.is_some_and(|at| ready[at]) {
                self.read_stderr();
            }
            if ready[0] {
                return match control::receive::<Say>(&self.control) {
                    Ok(Some((say, _))) => Heard::Said(say),
                    Ok(None) => Heard::Ended,
                    Err(error) => {
                        tracing::error!(%error, pid = self.child.id(), "a runner sent nonsense");
                        Heard::Ended
                    }
                };
            }
            if ready[1] {
                return Heard::Ended;
            }
            if other_at.is_some_and(|at| ready[at]) {
                return Heard::Called;
            }
            // Whatever it prints meanwhile, it has not answered.
            if until.is_some_and(|until| clock::now() >= until) || (count == 0 && deaf.is_none()) {
                return Heard::Nothing;
            }
        }
    }

    /// Kills it if it lives, reaps it, and tells how it ended.
    pub(super) fn end(&mut self) -> String {
        let ended = self.child.try_wait().ok().flatten();
        let mut by_itself = ended.is_some();
        let status = ended.map_or_else(
            || {
                // It may be on its way out by itself: what it says then is the better reason.
                let wait = timespec(Duration::from_millis(if self.closing() { 500 } else { 0 }));
                let ended = rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&wait));
                by_itself = ended.is_ok_and(|ended| ended > 0);
                let _ = self.child.kill();
                self.child.wait()
            },
            Ok,
        );
        let killed = status.as_ref().is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
        self.killed_by_others = by_itself && killed;
        // What is left in the pipe, and not what a process that it left behind goes on to print.
        for _ in 0..PIPE / CHUNK {
            if self.stderr.is_none() || !self.stderr_ready() {
                break;
            }
            self.read_stderr();
        }
        let how = status.map_or_else(|error| format!("it cannot be reaped: {error}"), describe);
        let said = String::from_utf8_lossy(&self.tail);
        let said = said.trim();
        if said.is_empty() { how } else { format!("{how}; it said: {said}") }
    }

    /// Once it has ended: whether somebody else killed it. Whoever asks knows whether they did.
    pub(super) const fn killed_by_others(&self) -> bool {
        self.killed_by_others
    }

    /// Lets it give way while it ends: giving back a large model's memory keeps a core busy for a while.
    pub(super) fn ease(&self) {
        ease(self.child.id());
    }

    /// It has hung up, so it is about to end.
    fn closing(&self) -> bool {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO)));
        fds[0].revents().contains(PollFlags::HUP)
    }

    fn stderr_ready(&self) -> bool {
        let Some(stderr) = &self.stderr else { return false };
        let mut fds = [PollFd::new(stderr, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|count| count > 0)
    }

    /// Until when what it prints is left in the pipe, because it printed too much.
    fn deaf_until(&mut self, now: Instant) -> Option<Instant> {
        let (since, bytes) = self.printed;
        let end = since + Duration::from_secs(1);
        if now >= end {
            self.printed = (now, 0);
            return None;
        }
        (bytes >= PRINTED).then_some(end)
    }

    fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut bytes = [0; CHUNK];
        match stderr.read(&mut bytes) {
            Ok(0) | Err(_) => self.stderr = None,
            Ok(n) => {
                self.printed.1 += n;
                self.tail.extend_from_slice(&bytes[..n]);
                let excess = self.tail.len().saturating_sub(TAIL);
                self.tail.drain(..excess);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A second time does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills a runner. Harmless when it has ended already: a pidfd never means another process.
pub(super) fn kill(pidfd: impl AsFd) {
    let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
}

/// How far what ends stands back: it gets about a tenth of a core that others want. At the lowest priority of all
/// (`SCHED_IDLE`) it would get a few thousandths, and keep its memory for a minute on a machine that is busy throughout.
const ENDS_AT_NICENESS: i32 = 10;

#[expect(unsafe_code, reason = "setting the priority of another process's threads")]
fn ease(process: u32) {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    for thread in threads.flatten() {
        let Some(id) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // SAFETY: it takes numbers only. The process is not reaped yet, so the number is still its.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, id, ENDS_AT_NICENESS) };
    }
}

fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with code {code}"),
        (None, Some(signal)) => match Signal::from_named_raw(signal) {
            Some(name) => format!("it was killed by signal {signal} ({name:?})"),
            None => format!("it was killed by signal {signal}"),
        },
        (None, None) => "it ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_stands_back_and_still_gets_its_share() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("it starts");
        ease(child.id());
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it lives");
        child.kill().expect("it ends");
        child.wait().expect("it is reaped");
        let fields: Vec<&str> = stat.rsplit(") ").next().expect("its numbers").split(' ').collect();
        // Of proc(5): field 19 is the niceness and 41 the policy; what follows the name begins with field 3.
        assert_eq!((fields[16], fields[38]), ("10", "0"), "{stat}");
    }
}
