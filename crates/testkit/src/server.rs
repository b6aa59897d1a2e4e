//! A real `modelless up`, started and stopped as a user does it.
//!
//! The child stays in our process group: Ctrl-C reaches it, and a test runner that ends a hanging test ends the
//! server with it.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::http::{Connection, Request, Response};
use crate::lines::{Lines, Waited};
use crate::{TempDir, process};

/// What it says of itself stands together, so the rest of it is only on its way.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// First starts install a runtime and measure the demo's models; slow machines need minutes for that.
const READY_WITHIN: Duration = Duration::from_mins(10);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// How to start `modelless up`.
#[derive(Debug, Default)]
pub struct Builder {
    binary: Option<PathBuf>,
    data: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    http: Option<String>,
    ready_within: Option<Duration>,
}

impl Builder {
    /// Otherwise the one of [`binary`].
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Otherwise a fresh temporary folder that goes away with the server.
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Otherwise a free port of 127.0.0.1.
    pub fn http(mut self, address: &str) -> Self {
        self.http = Some(address.to_owned());
        self
    }

    pub fn ready_within(mut self, time: Duration) -> Self {
        self.ready_within = Some(time);
        self
    }

    /// Starts it and waits for its `ready` line.
    pub fn start(self) -> Result<Server> {
        let binary = self.binary.map_or_else(binary, Ok)?;
        let own_data = if self.data.is_none() { Some(crate::temp_dir("data")?) } else { None };
        let data = self.data.or_else(|| own_data.as_ref().map(|folder| folder.path().to_owned()));
        let data = data.context("one of the two is there; this is a bug")?;
        let started = Instant::now();
        // What is measured is what a test or a measurement goes by, however long it takes here, unless it says otherwise.
        let unhurried: &[&str] =
            if self.args.iter().any(|arg| arg == "--budget") { &[] } else { &["--budget", "none"] };
        let mut child = Command::new(&binary)
            .arg("up")
            .args(unhurried)
            .arg("--data")
            .arg(&data)
            .args(["--http", self.http.as_deref().unwrap_or("127.0.0.1:0")])
            .args(&self.args)
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let piped = "the child's output is piped; this is a bug";
        let stdout = Lines::follow(child.stdout.take().context(piped)?);
        let stderr = Lines::follow(child.stderr.take().context(piped)?);
        // From here on Drop ends the child, whatever comes.
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server {
            child,
            binary,
            data,
            address: unknown,
            encrypted: false,
            ready_after: Duration::ZERO,
            started,
            stdout,
            stderr,
            _own_data: own_data,
        };

        let within = self.ready_within.unwrap_or(READY_WITHIN);
        match server.stdout.wait_for(|line| ready_address(line).is_some(), within) {
            Waited::Line(line, at) => {
                (server.address, server.encrypted) =
                    ready_address(&line).context("checked above; this is a bug")?;
                server.ready_after = at.duration_since(started);
                Ok(server)
            }
            Waited::Closed => {
                let status = process::wait(&mut server.child, STOP_WITHIN)?;
                // Its last words may still be on their way; a surviving grandchild may hold the pipe open.
                server.stderr.wait_for(|_| false, Duration::from_secs(1));
                let status = status.map_or("still running".to_owned(), |status| status.to_string());
                bail!("`modelless up` ended before it was ready ({status})\n{}", server.output())
            }
            Waited::TimedOut => {
                bail!("`modelless up` was not ready within {within:?}\n{}", server.output())
            }
        }
    }
}

pub struct Server {
    child: Child,
    binary: PathBuf,
    data: PathBuf,
    address: SocketAddr,
    encrypted: bool,
    ready_after: Duration,
    started: Instant,
    stdout: Lines,
    stderr: Lines,
    _own_data: Option<TempDir>,
}

impl Server {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `modelless up` with these arguments more, in a fresh data folder on a free port.
    pub fn start<A: AsRef<OsStr>>(args: &[A]) -> Result<Self> {
        args.iter().fold(Self::builder(), |builder, arg| builder.arg(arg.as_ref())).start()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.encrypted { "https" } else { "http" }, self.address)
    }

    /// The rest of the line of its standard output that begins so, once it is written: lines come one by one.
    pub fn told(&self, begin: &str) -> Result<String> {
        match self.stdout.wait_for(|line| line.starts_with(begin), TOLD_WITHIN) {
            Waited::Line(line, _) => Ok(line[begin.len()..].trim().to_owned()),
            Waited::Closed | Waited::TimedOut => bail!("no line begins with {begin:?} in {}", self.output()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The `modelless` that it is.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// From spawning the process to reading its `ready` line.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Since it was spawned.
    pub fn up_for(&self) -> Duration {
        self.started.elapsed()
    }

    /// Resident memory of the server itself, its runners not counted.
    pub fn resident_bytes(&self) -> Result<u64> {
        process::resident_bytes(self.pid())
    }

    /// Every line it wrote that is still kept, with its time since the start, in that order.
    pub fn timeline(&self) -> Vec<(Duration, String)> {
        let since = |at: Instant| at.saturating_duration_since(self.started);
        let written = [self.stdout.timed(), self.stderr.timed()].concat();
        let mut lines: Vec<_> = written.into_iter().map(|(at, line)| (since(at), line)).collect();
        lines.sort_by_key(|(at, _)| *at);
        lines
    }

    /// Interrupts it and counts the lines of all it ever wrote that tell of a panic.
    pub fn stop_and_count_panics(mut self) -> Result<usize> {
        let status = self.interrupt()?;
        ensure!(status.success(), "`modelless up` ended with {status} after SIGINT\n{}", self.output());
        // Its last words may still be on their way.
        for lines in [&self.stdout, &self.stderr] {
            lines.wait_for(|_| false, Duration::from_secs(1));
        }
        Ok(self.stdout.panics() + self.stderr.panics())
    }

    /// What it wrote, for a failure's message.
    pub fn output(&self) -> String {
        format!("--- its stdout\n{}\n--- its stderr\n{}", self.stdout.tail(), self.stderr.tail())
    }

    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.address)
    }

    /// One request on a connection of its own.
    pub fn send(&self, request: &Request) -> Result<Response> {
        self.connect()?.exchange(request)
    }

    pub fn get(&self, path: &str) -> Result<Response> {
        self.send(&Request::get(path))
    }

    pub fn get_json(&self, path: &str) -> Result<Value> {
        let response = self.get(path)?;
        ensure!(response.status == 200, "GET {path}: {response}");
        response.json()
    }

    /// Runs another command of the same binary, e.g. `&["task", "list", "--json"]`.
    pub fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Output> {
        Ok(Command::new(&self.binary).args(args).stdin(Stdio::null()).output()?)
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// SIGINT, then waits for the drain. An error when it does not end by itself or not with success.
    pub fn stop(mut self) -> Result<()> {
        let status = self.interrupt()?;
        ensure!(status.success(), "`modelless up` ended with {status} after SIGINT\n{}", self.output());
        Ok(())
    }

    /// As [`Server::stop`], but the exit status is the caller's to judge.
    pub fn interrupt(&mut self) -> Result<ExitStatus> {
        process::stop(&mut self.child, STOP_WITHIN).with_context(|| self.output())
    }

    /// Its runners as they are now.
    pub fn runners(&self) -> Result<Vec<process::Other>> {
        process::children(self.pid())?.into_iter().map(|(pid, _)| process::Other::open(pid)).collect()
    }

    /// Sends a signal, and no more.
    pub fn signal(&self, signal: process::Signal) -> Result<()> {
        process::signal(&self.child, signal)
    }

    /// Its end, if it comes within the time.
    pub fn ends_within(&mut self, within: Duration) -> Result<Option<ExitStatus>> {
        process::wait(&mut self.child, within)
    }

    /// SIGKILL: as a crash, with no chance to clear up.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A drain ends the runners too, so it gets a moment before the kill.
        let _ = process::stop(&mut self.child, Duration::from_secs(5));
    }
}

/// The address in `ready http://ADDRESS ...`, and whether it is `https` instead.
fn ready_address(line: &str) -> Option<(SocketAddr, bool)> {
    let url = line.strip_prefix("ready ")?.split_whitespace().next()?;
    let (scheme, address) = url.split_once("://")?;
    let encrypted = match scheme {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    Some((address.trim_end_matches('/').parse().ok()?, encrypted))
}

/// What every build for tests chooses: all packages with what their tests need, so that nothing is compiled once more because of another
/// choice of features. Which tests run is said by a filter.
pub const WHOLE_WORKSPACE: &[&str] = &[
    "--workspace",
    "--features",
    "modelless-engine/conformance-gpu,modelless-engine/conformance-remote,modelless-fleet/conformance-kubernetes,\
     modelless-fleet/conformance-moto,modelless-tests/demos,modelless-tests/generator,modelless-tests/kubernetes,\
     modelless-tests/moto,modelless-tests/remote,modelless-tests/torch",
];

/// Dependencies of tests count for a build's features only where a test is built, so a small one is.
const SOME_TEST: &str = "texts";

/// The `modelless` to test: `MODELLESS_BIN`, else what `cargo build` makes now.
pub fn binary() -> Result<PathBuf> {
    match std::env::var_os("MODELLESS_BIN") {
        Some(path) => {
            let path = PathBuf::from(path);
            ensure!(path.is_file(), "MODELLESS_BIN is {}, where there is no file", path.display());
            Ok(path)
        }
        None => cargo_build("modelless"),
    }
}

/// Makes a development build of one binary, by the same choices as the tests, and says where cargo put it.
pub fn cargo_build(binary: &str) -> Result<PathBuf> {
    built(binary, &[WHOLE_WORKSPACE, &["--bin", binary, "--test", SOME_TEST]].concat())
}

/// A release build of one binary of a package, beside `modelless` and the programs that measure it: what they share is built once.
pub fn cargo_build_release(package: &str, binary: &str) -> Result<PathBuf> {
    let packages = ["--package", "modelless", "--package", "modelless-bench", "--package", package];
    built(binary, &[&packages[..], &["--bin", binary, "--profile", "release"]].concat())
}

/// The `cargo` that runs us, so that `cargo +toolchain` stays in that toolchain.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Set for us by cargo or nextest. They make build scripts look changed, and with those whatever depends on them.
    let ours = |name: &str| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|begin| name.starts_with(begin));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command
}

fn built(binary: &str, args: &[&str]) -> Result<PathBuf> {
    let output = cargo()
        .args(["build", "--message-format", "json-render-diagnostics"])
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo build")?;
    ensure!(output.status.success(), "cargo build {} failed ({})", args.join(" "), output.status);
    let text = String::from_utf8(output.stdout).context("cargo's messages are UTF-8")?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == binary && message["target"]["kind"][0] == "bin")
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
        .with_context(|| format!("cargo build {} made no binary", args.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_in(script: &str) -> (TempDir, PathBuf) {
        use std::os::unix::fs::PermissionsExt;
        let folder = crate::temp_dir("stand-in").unwrap();
        let path = folder.path().join("modelless");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        (folder, path)
    }

    #[test]
    fn reads_the_address_of_the_ready_line() {
        assert_eq!(
            ready_address("ready http://127.0.0.1:8080 after 1.2 s"),
            Some((([127, 0, 0, 1], 8080).into(), false))
        );
        assert_eq!(ready_address("ready soon"), None);
        assert_eq!(ready_address("not ready http://127.0.0.1:1"), None);
    }

    #[test]
    fn waits_until_ready_and_stops_by_interrupt() {
        let (_folder, path) = stand_in("echo installing; echo ready http://127.0.0.1:9 now; exec sleep 60");
        let mut server = Server::builder().binary(path).start().unwrap();
        assert_eq!(server.address().port(), 9);
        assert!(server.timeline().iter().any(|(_, line)| line == "installing"));
        assert!(server.is_running().unwrap());
        assert!(!server.interrupt().unwrap().success(), "sleep dies of SIGINT");
    }

    #[test]
    fn a_failed_start_shows_what_was_written() {
        let (_folder, path) = stand_in("echo 'the port is taken' >&2; exit 3");
        let error = Server::builder().binary(path).start().err().unwrap().to_string();
        assert!(error.contains("exit status: 3") && error.contains("the port is taken"), "{error}");
    }

    #[test]
    fn a_start_that_hangs_is_given_up() {
        let (_folder, path) = stand_in("echo thinking; exec sleep 60");
        let builder = Server::builder().binary(path).ready_within(Duration::from_millis(300));
        let error = builder.start().err().unwrap().to_string();
        assert!(error.contains("was not ready") && error.contains("thinking"), "{error}");
    }
}
