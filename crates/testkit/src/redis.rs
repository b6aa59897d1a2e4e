//! A throw-away Redis: really the server, on a free loopback port, gone when the value is dropped.
//!
//! As with Postgres a shell script in a process group of its own holds the server and waits for the end of its input, so
//! whatever ends us ends the server. It can be killed, stopped and started again on its port, which is what tests are for.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::lines::{Lines, Waited};
use crate::process;

const START_WITHIN: Duration = Duration::from_secs(20);
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Runs the server until the input ends, then ends it. It keeps nothing, so there is nothing to save.
const KEEPER: &str = r#"
"$1" --port "$2" --bind 127.0.0.1 --save "" --appendonly no --daemonize no </dev/null &
server=$!
echo "pid $server"
cat >/dev/null
kill -KILL "$server" 2>/dev/null
wait "$server" 2>/dev/null
"#;

pub struct Redis {
    program: PathBuf,
    port: u16,
    running: Option<Running>,
}

struct Running {
    keeper: Child,
    server: Pid,
}

impl Redis {
    /// Starts an empty server.
    pub fn start() -> Result<Self> {
        let program = find_server()
            .context("no `redis-server` in PATH: install it (Debian: `apt-get install redis-server`)")?;
        // Somebody may take the port between our look and the server's: then try another.
        let mut last = None;
        for _ in 0..3 {
            let mut server = Self { program: program.clone(), port: crate::free_port()?, running: None };
            match server.start_again() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made; this is a bug")?)
    }

    /// Starts it again on its port after [`Redis::kill`], as empty as a Redis that lost everything.
    pub fn start_again(&mut self) -> Result<()> {
        self.kill();
        let mut keeper = Command::new("/bin/sh")
            .args(["-c", KEEPER, "redis-keeper"])
            .arg(&self.program)
            .arg(self.port.to_string())
            .current_dir("/")
            .process_group(0) // Ctrl-C is for us; the keeper sees our end through its input
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the Redis keeper")?;
        let log = Lines::follow(keeper.stdout.take().context("the keeper's stdout is piped; this is a bug")?);
        let pid = match log.wait_for(|line| line.starts_with("pid "), START_WITHIN) {
            Waited::Line(line, _) => line["pid ".len()..].parse().ok().and_then(Pid::from_raw),
            Waited::Closed | Waited::TimedOut => None,
        };
        let Some(server) = pid else {
            end(&mut keeper);
            bail!("the Redis keeper did not start; it wrote:\n{}", log.tail());
        };
        self.running = Some(Running { keeper, server });
        match log.wait_for(|line| line.contains("Ready to accept connections"), START_WITHIN) {
            Waited::Line(..) => Ok(()),
            Waited::Closed | Waited::TimedOut => {
                self.kill();
                bail!("Redis did not start on port {}; it wrote:\n{}", self.port, log.tail())
            }
        }
    }

    /// `redis://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends it as a crash would, with all it knew.
    pub fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = kill_process(running.server, Signal::KILL);
            end(&mut running.keeper);
        }
    }

    /// It neither answers nor hangs up.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// It goes on where it was.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let running = self.running.as_ref().context("the server was killed")?;
        kill_process(running.server, signal).context("signalling Redis")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn end(keeper: &mut Child) {
    drop(keeper.stdin.take());
    if !matches!(process::wait(keeper, STOP_WITHIN), Ok(Some(_))) {
        let _ = rustix::process::kill_process_group(Pid::from_child(keeper), Signal::KILL);
        let _ = keeper.wait();
    }
}

/// `redis-server` in PATH.
pub fn find_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("redis-server")).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ping(port: u16) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    #[test]
    fn a_server_answers_and_is_gone_when_killed_and_comes_back() {
        let mut redis = Redis::start().unwrap();
        assert_eq!(ping(redis.port).unwrap(), "+PONG\r\n");
        redis.kill();
        assert!(ping(redis.port).is_err());
        redis.start_again().unwrap();
        assert_eq!(ping(redis.port).unwrap(), "+PONG\r\n");
        let port = redis.port;
        drop(redis);
        assert!(ping(port).is_err());
    }
}
