//! A throw-away Prometheus: really the server, with a configuration that is given, on a free loopback port, gone when the value is dropped.
//!
//! As with Redis a shell holds it and waits for the end of its input, so whatever ends us ends the server.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::lines::{Lines, Waited};
use crate::{Connection, Request, TempDir, free_port, temp_dir};

const START_WITHIN: Duration = Duration::from_secs(30);
const READY: &str = "Server is ready to receive web requests";

const KEEPER: &str = r#"
"$@" </dev/null 2>&1 &
server=$!
cat >/dev/null
kill -KILL "$server" 2>/dev/null
wait "$server" 2>/dev/null
"#;

pub struct Prometheus {
    keeper: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it on the text of a configuration file.
    pub fn start(configuration: &str) -> Result<Self> {
        let program = find_prometheus()
            .context("no `prometheus` in PATH: install it (Debian: `apt-get install prometheus`)")?;
        let folder = temp_dir("prometheus")?;
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, configuration)?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut keeper = Command::new("/bin/sh")
            .args(["-c", KEEPER, "prometheus-keeper"])
            .arg(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the Prometheus keeper")?;
        let log = Lines::follow(keeper.stdout.take().context("the keeper's stdout is piped; this is a bug")?);
        let server = Self { keeper, address, _folder: folder };
        match log.wait_for(|line| line.contains(READY), START_WITHIN) {
            Waited::Line(..) => Ok(server),
            Waited::Closed | Waited::TimedOut => bail!("Prometheus did not start; it wrote:\n{}", log.tail()),
        }
    }

    /// What an expression gives at this moment: a list of series, each with its value.
    pub fn ask(&self, expression: &str) -> Result<Vec<Value>> {
        let request =
            Request::post("/api/v1/query").header("content-type", "application/x-www-form-urlencoded");
        let got = Connection::open(self.address)?
            .exchange(&request.body(format!("query={}", encoded(expression))))?;
        let answer = got.json()?;
        ensure!(answer["status"] == "success", "Prometheus does not take `{expression}`: {answer}");
        Ok(answer["data"]["result"].as_array().context("a list of series")?.clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.keeper), Signal::KILL);
        let _ = self.keeper.wait();
    }
}

/// `prometheus` in PATH.
pub fn find_prometheus() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("prometheus")).find(|file| file.is_file())
}

/// As forms write it.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric().then(|| char::from(byte).to_string());
    text.bytes().map(|byte| plain(byte).unwrap_or_else(|| format!("%{byte:02X}"))).collect()
}
