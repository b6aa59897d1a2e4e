//! Children and what the kernel says about them.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

pub use rustix::process::Signal;

/// How long the kernel may take to stop every thread of a process, however busy the machine.
const FROZEN_WITHIN: Duration = Duration::from_secs(30);

/// Sends a signal to a child that has not been waited for, so the number cannot belong to somebody else.
pub fn signal(child: &Child, signal: Signal) -> Result<()> {
    kill_process(Pid::from_child(child), signal).with_context(|| format!("signalling process {}", child.id()))
}

/// Waits until the child ends, or gives `None` when it has not within the time.
pub fn wait(child: &mut Child, within: Duration) -> Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    let handle =
        pidfd_open(Pid::from_child(child), PidfdFlags::empty()).context("opening a process handle")?;
    let timeout = Timespec::try_from(within).context("a time the kernel can count")?;
    poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout))
        .context("waiting for a process to end")?;
    Ok(child.try_wait()?)
}

/// Asks with SIGINT, as Ctrl-C does; kills when that is not answered within the time.
pub fn stop(child: &mut Child, within: Duration) -> Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    signal(child, Signal::INT)?;
    if let Some(status) = wait(child, within)? {
        return Ok(status);
    }
    child.kill()?;
    let status = child.wait()?;
    anyhow::bail!("it did not end within {within:?} of SIGINT and was killed ({status})")
}

/// A process that is not our child, held so that its number cannot come to mean another.
#[derive(Debug)]
pub struct Other {
    pid: u32,
    handle: OwnedFd,
}

impl Other {
    pub fn open(pid: u32) -> Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process number")?;
        let handle =
            pidfd_open(raw, PidfdFlags::empty()).with_context(|| format!("opening process {pid}"))?;
        Ok(Self { pid, handle })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.handle, signal).with_context(|| format!("signalling process {}", self.pid))
    }

    /// Stops it and waits until it stands still: a signal is on its way before it has arrived, and until then any thread
    /// may still do what it was asked.
    #[expect(clippy::disallowed_methods, reason = "a real process is given real time")]
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let since = Instant::now();
        while !stands_still(self.pid)? {
            ensure!(since.elapsed() < FROZEN_WITHIN, "process {} runs on after SIGSTOP", self.pid);
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whether it ends within the time.
    pub fn ends_within(&self, within: Duration) -> Result<bool> {
        let timeout = Timespec::try_from(within).context("a time the kernel can count")?;
        let ended = poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&timeout))
            .context("waiting for a process to end")?;
        Ok(ended > 0)
    }
}

/// Whether every thread of a process is stopped.
fn stands_still(pid: u32) -> Result<bool> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.with_context(|| format!("process {pid} is not there any more"))? {
        // A thread may end while we look: then it does nothing any more either.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        if !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 'X', 'Z'])) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Resident memory of a process (`VmRSS`), without its children.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is not there any more"))?;
    kib_field(&status, "VmRSS:").context("no VmRSS line in /proc/PID/status")
}

/// A `Name:  123 kB` field of a `/proc` file, in bytes.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
}

/// The processes whose parent is `pid`, with their command names.
pub fn children(pid: u32) -> Result<Vec<(u32, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may end while we look; then it is no child any more.
        let Some((parent, name)) = parent_and_name(id) else { continue };
        if parent == pid {
            found.push((id, name));
        }
    }
    Ok(found)
}

/// Who started a process, or took it over; nothing of one that is gone.
pub fn parent(pid: u32) -> Option<u32> {
    parent_and_name(pid).map(|(parent, _)| parent)
}

fn parent_and_name(pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "PID (name) state parent ...": the name may hold spaces and brackets.
    let (head, tail) = stat.rsplit_once(") ")?;
    let name = head.split_once('(').map_or("", |(_, name)| name);
    Some((tail.split_whitespace().nth(1)?.parse().ok()?, name.to_owned()))
}

/// User and system time that a process and those of its children that still run have used so far.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let own = cpu_time_alone(pid)?;
    // One that ended meanwhile counts no longer.
    let below = children(pid)?.into_iter().filter_map(|(child, _)| cpu_time(child).ok());
    Ok(below.fold(own, |sum, child| sum + child))
}

/// The same without its children.
pub fn cpu_time_alone(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is not there any more"))?;
    let (_, tail) = stat.rsplit_once(") ").context("/proc/PID/stat has no name")?;
    let ticks = tail.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>().context("/proc/PID/stat tells no times")?;
    Ok(Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second()))
}

/// Time that the threads of a process which still run have had of processors so far, to the nanosecond: a tick is too long for what is brief.
pub fn threads_cpu_time(pid: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("process {pid} is not there any more"))?;
    let mut all = Duration::ZERO;
    for thread in threads {
        // One that ended meanwhile counts no longer.
        let Ok(told) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let nanos = told.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        all += Duration::from_nanos(nanos.context("/proc/PID/task/TID/schedstat tells no time")?);
    }
    Ok(all)
}

/// Executors that run as machines of a cluster, whoever started them; without what they start, which has their environment until it is
/// another program.
pub fn machines(cluster: &str) -> Vec<u32> {
    let tag = format!("FLEET_OF_MODELLESS={cluster}-");
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let tagged = |path: PathBuf| {
        let environment = fs::read(path.join("environ")).ok()?;
        let ours = environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(tag.as_bytes()));
        let pid: u32 = path.file_name()?.to_str()?.parse().ok().filter(|_| ours)?;
        Some((pid, parent(pid)?))
    };
    let found: Vec<(u32, u32)> = all.filter_map(|entry| tagged(entry.ok()?.path())).collect();
    let started_by_one = |parent: &u32| found.iter().any(|(pid, _)| pid == parent);
    found.iter().filter(|(_, parent)| !started_by_one(parent)).map(|(pid, _)| *pid).collect()
}

/// SIGKILL. Whether there was such a process. Only for one that was just seen to be a child of a process under test:
/// a number may be given to another once its process was waited for.
pub fn kill(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

/// User and system time this process has used so far.
pub fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The same of the calling thread alone.
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn time_of_threads_is_about_that_of_the_process() {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let (whole, threads) = (own_cpu_time(), threads_cpu_time(std::process::id()).unwrap());
        assert!(threads > Duration::ZERO && threads <= own_cpu_time(), "{threads:?} of {whole:?}");
    }

    #[test]
    fn sees_its_own_memory_and_its_children() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert!(children(std::process::id()).unwrap().iter().any(|(pid, _)| *pid == child.id()));
        assert!(cpu_time(std::process::id()).unwrap() <= own_cpu_time() + Duration::from_secs(1));
        assert!(wait(&mut child, Duration::ZERO).unwrap().is_none());
        drop(child.stdin.take());
        assert!(wait(&mut child, Duration::from_secs(10)).unwrap().unwrap().success());
    }

    #[test]
    fn a_process_that_is_held_can_be_signalled_and_its_end_seen() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let other = Other::open(child.id()).unwrap();
        assert!(!other.ends_within(Duration::ZERO).unwrap());
        other.signal(Signal::KILL).unwrap();
        assert!(other.ends_within(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn what_is_frozen_does_nothing_until_it_goes_on() {
        let mut child = Command::new("yes").stdout(Stdio::null()).spawn().unwrap();
        let other = Other::open(child.id()).unwrap();
        other.freeze().unwrap();
        assert!(stands_still(child.id()).unwrap());
        other.signal(Signal::CONT).unwrap();
        while stands_still(child.id()).unwrap() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_ignores_an_interrupt_is_killed_and_named() {
        let script = "trap '' INT; echo up; read -r _";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = crate::lines::Lines::follow(child.stdout.take().unwrap());
        assert!(matches!(
            lines.wait_for(|line| line == "up", Duration::from_secs(10)),
            crate::lines::Waited::Line(..)
        ));
        let error = stop(&mut child, Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("was killed"), "{error}");
    }
}
