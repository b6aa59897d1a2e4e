//! A server that answers as EC2 does: moto, with what tests order of it. `crates/fleet/tests/moto/serve.py` says what that is.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::lines::{Lines, Waited};
use crate::{Connection, Request};

/// It imports half of Python's AWS.
const START_WITHIN: Duration = Duration::from_mins(1);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fleet/tests/moto/serve.py");

/// A started server; it ends when dropped, or when whoever holds it does.
pub struct Moto {
    child: Child,
    address: SocketAddr,
    /// Keys that it knows, and an image.
    pub id: String,
    pub secret: String,
    pub image: String,
}

impl Moto {
    /// With the Python that `cargo xtask test --only moto` has made for it.
    pub fn start() -> Result<Self> {
        let python = std::env::var("MODELLESS_TEST_MOTO").context(
            "MODELLESS_TEST_MOTO names no Python that has moto: `cargo xtask test --only moto` makes one",
        )?;
        Self::of(Path::new(&python))
    }

    /// With a Python that has moto.
    pub fn of(python: &Path) -> Result<Self> {
        let mut child = Command::new(python)
            .args([Path::new("-B"), Path::new(SCRIPT)])
            .arg("0")
            .stdin(Stdio::piped()) // it ends with whoever holds the other end
            .stdout(Stdio::piped())
            .spawn()
            .context("starting moto")?;
        let lines = Lines::follow(child.stdout.take().context("its output is piped")?);
        let waited = lines.wait_for(|line| line.starts_with('{'), START_WITHIN);
        let Waited::Line(line, _) = waited else {
            let _ = (child.kill(), child.wait());
            anyhow::bail!("moto did not say that it is ready ({waited:?}): {}", lines.tail());
        };
        let told: Value = serde_json::from_str(&line)?;
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        let port = u16::try_from(told["port"].as_u64().context("it names its port")?)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self { child, address, id: text("id"), secret: text("secret"), image: text("image") })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As AWS's own tools have them in a file.
    pub fn credentials(&self) -> String {
        format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n", self.id, self.secret)
    }

    /// What goes wrong from now on.
    pub fn faults(&self, faults: &Value) -> Result<()> {
        self.put("/faults", &faults.to_string()).map(drop)
    }

    /// A second machine with the tags of the one of a name.
    pub fn second(&self, name: &str) -> Result<String> {
        self.put("/second", name)
    }

    /// How often something was really asked for since this was last asked.
    pub fn asked(&self, action: &str) -> Result<u64> {
        let told: Value = serde_json::from_str(&self.put("/asked", "")?)?;
        Ok(told[action].as_u64().unwrap_or_default())
    }

    /// Machines that run, with all that is known of them.
    pub fn running(&self) -> Result<Vec<Value>> {
        let told = Connection::open(self.address)?.exchange(&Request::get("/running"))?.json()?;
        Ok(told.as_array().cloned().unwrap_or_default())
    }

    /// How many machines there have been, how many of them ended, and how many ran at once at most.
    pub fn counted(&self) -> Result<Counted> {
        let told = Connection::open(self.address)?.exchange(&Request::get("/counted"))?.json()?;
        let number = |name: &str| told[name].as_u64().with_context(|| format!("no `{name}` in {told}"));
        Ok(Counted { started: number("started")?, ended: number("ended")?, most: number("most")? })
    }

    /// One ends, and nobody asked it to.
    pub fn end(&self, id: &str) -> Result<()> {
        self.put("/end", id).map(drop)
    }

    /// Nothing is answered any more, and what it had is lost.
    pub fn kill(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }

    fn put(&self, target: &str, body: &str) -> Result<String> {
        let asked = Request::new("PUT", target).body(body);
        let answer = Connection::open(self.address)?.exchange(&asked)?;
        ensure!(answer.status == 200, "{target}: {answer}");
        Ok(answer.text())
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What has become of all machines that were ever asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    pub started: u64,
    pub ended: u64,
    /// Counted whenever one came, so nothing is missed between two looks.
    pub most: u64,
}

/// Where a pool's file is told to find this server.
pub fn pool(moto: &Moto, endpoint: SocketAddr, credentials: &Path) -> Value {
    json!({
        "region": "us-east-1",
        "endpoint": format!("http://{endpoint}"),
        "image": moto.image,
        "types": ["c5.large", "m5.large"],
        "credentials-file": credentials,
    })
}

/// As much of TOML as a file of pools needs.
pub fn to_toml(table: &Value) -> String {
    part(table, "")
}

fn part(table: &Value, path: &str) -> String {
    let all = table.as_object().into_iter().flatten();
    let (tables, values): (Vec<_>, Vec<_>) = all.partition(|(_, value)| value.is_object());
    let mut text = String::new();
    for (name, value) in values {
        let _ = writeln!(text, "\"{name}\" = {value}");
    }
    for (name, value) in tables {
        let path = if path.is_empty() { format!("\"{name}\"") } else { format!("{path}.\"{name}\"") };
        let _ = write!(text, "[{path}]\n{}", part(value, &path));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_before_the_tables_beside_them() {
        let text = to_toml(&json!({"pools": {"a": {"ec2": {"types": ["x"]}, "most": 2}}, "budget": 1.5}));
        let expected = "\"budget\" = 1.5\n[\"pools\"]\n[\"pools\".\"a\"]\n\"most\" = 2\n\
                        [\"pools\".\"a\".\"ec2\"]\n\"types\" = [\"x\"]\n";
        assert_eq!(text, expected);
    }
}
