//! A server of others that speaks the Open Inference Protocol, for as long as a stage needs it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::python;
use crate::command::program;
use crate::say;

/// It imports half of Python's machine learning.
const WITHIN: Duration = Duration::from_mins(2);

/// A started KServe; ends when dropped.
pub(super) struct Peer {
    child: Child,
    pub(super) http: String,
    pub(super) grpc: String,
}

impl Peer {
    /// Starts it and waits until it is ready.
    #[expect(clippy::disallowed_methods, reason = "waits for a real process")]
    pub(super) fn start(root: &Path, target: &Path) -> Result<Self> {
        let python = python::peer(root, target)?;
        // Free a moment ago; KServe cannot be told to take any.
        let free = || TcpListener::bind("127.0.0.1:0");
        let (one, other) = (free()?, free()?);
        let (port, grpc) = (one.local_addr()?.port(), other.local_addr()?.port());
        drop((one, other));
        let log = target.join("python-peer/server.log");
        let file = File::create(&log)?;
        let child = program(root, python)
            .arg(root.join("crates/engine/tests/peer/serve.py"))
            .arg(port.to_string())
            .arg(grpc.to_string())
            .arg(root.join("examples/fashion/models"))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("starting KServe")?;
        let (at, grpc_at) = (format!("http://127.0.0.1:{port}"), format!("grpc://127.0.0.1:{grpc}"));
        let mut peer = Self { child, http: at, grpc: grpc_at };
        let until = Instant::now() + WITHIN;
        while !ready(port) || TcpStream::connect(("127.0.0.1", grpc)).is_err() {
            if let Some(status) = peer.child.try_wait()? {
                bail!("KServe ended with {status}; it said so in {}", log.display());
            }
            if Instant::now() > until {
                bail!("KServe is not ready after {} s; see {}", WITHIN.as_secs(), log.display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        say(format!("KServe serves at {} and {}", peer.http, peer.grpc));
        Ok(peer)
    }
}

fn ready(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said.starts_with("HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
