//! A runner process: starting it, asking it, hearing from it, reaping it.

use super::ProcessConfig;
use crate::clock;
use crate::control::{self, Ask, Say};
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

/// A started runner.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pidfd: Arc<OwnedFd>,
    control: OwnedFd,
    stderr: Option<ChildStderr>,
    tail: Vec<u8>,
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
    pub(super) fn spawn(config: &ProcessConfig) -> Result<Self, EngineError> {
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
        if let Some(bytes) = config.memory_limit {
            command.arg("--memory-limit").arg(bytes.0.to_string());
        }
        command.env_clear().envs(&config.environment);
        // Its own process group, so that Ctrl-C in a terminal reaches the server only, which then drains.
        command.process_group(0).stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(EngineError::system("start a runner process"))?;
        // The parent's copy of the runner's socket closes here, or its end would never be seen.
        drop(command);
        let stderr = child.stderr.take();
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        match pidfd {
            Ok(pidfd) => Ok(Self { child, pidfd: Arc::new(pidfd), control: ours, stderr, tail: Vec::new() }),
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

    pub(super) fn pidfd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.pidfd)
    }

    /// Waits until the library is loaded; its version.
    pub(super) fn hello(&mut self, limit: Duration) -> Result<String, EngineError> {
        let until = clock::now() + limit;
        match self.listen(None, Some(until)) {
            Heard::Said(Say::Hello { version }) => Ok(version),
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
        control::send(&self.control, ask, fds)
    }

    /// Waits for an answer, the end, a byte on `other`, or a moment, and keeps what the runner prints.
    pub(super) fn listen(&mut self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) -> Heard {
        loop {
            let wait = until.map(|until| timespec(until.saturating_duration_since(clock::now())));
            let mut fds =
                vec![PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
            let stderr_at = self.stderr.as_ref().map(|stderr| {
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
            if count == 0 {
                return Heard::Nothing;
            }
        }
    }

    /// Kills it if it lives, reaps it, and tells how it ended.
    pub(super) fn end(&mut self) -> String {
        let ended = self.child.try_wait().ok().flatten();
        let status = ended.map_or_else(
            || {
                // It may be on its way out by itself: what it says then is the better reason.
                let wait = timespec(Duration::from_millis(if self.closing() { 500 } else { 0 }));
                let _ = rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&wait));
                let _ = self.child.kill();
                self.child.wait()
            },
            Ok,
        );
        while self.stderr.is_some() && self.stderr_ready() {
            self.read_stderr();
        }
        let how = status.map_or_else(|error| format!("it cannot be reaped: {error}"), describe);
        let said = String::from_utf8_lossy(&self.tail);
        let said = said.trim();
        if said.is_empty() { how } else { format!("{how}; it said: {said}") }
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

    fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut bytes = [0; 1024];
        match stderr.read(&mut bytes) {
            Ok(0) | Err(_) => self.stderr = None,
            Ok(n) => {
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
