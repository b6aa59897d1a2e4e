//! `cargo xtask schemathesis`: a tool of others reads the OpenAPI document of a real server, asks everything it describes, rightly
//! and wrongly, and compares what comes with what is described. `tests/schemathesis` says what it is to look at, and why it is
//! not to look at something.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, server, temp_dir};

use crate::command::{output, program, run as run_command, target_dir};
use crate::test::schemathesis_python;
use crate::{root, say};

const CONFIG: &str = "tests/schemathesis/schemathesis.toml";
const HOOKS: &str = "schemathesis_hooks";
/// How many requests of each kind are made up for each operation, beside those that the document's bounds ask for.
const LONG: u32 = 200;
/// CI makes up few, and always the same: what is new to it is a change of the document or the server, not luck. By hand they are others each time.
const SHORT: u32 = 4;
const SHORT_SEED: &str = "20261128";

pub(crate) fn run(args: &[&str]) -> Result<()> {
    let examples = match args {
        [] => LONG,
        ["--examples", count] => count.parse().context("--examples takes a number")?,
        _ => anyhow::bail!("`cargo xtask schemathesis` takes --examples N and nothing else"),
    };
    let root = root()?;
    check(&root, &target_dir(&root)?, &server::binary()?, (examples, None))
}

/// As CI does it.
pub(crate) fn short(root: &Path, target: &Path, binary: &Path) -> Result<()> {
    check(root, target, binary, (SHORT, Some(SHORT_SEED)))
}

fn check(root: &Path, target: &Path, binary: &Path, (examples, seed): (u32, Option<&str>)) -> Result<()> {
    let python = schemathesis_python(root, target)?;
    let data = temp_dir("schemathesis")?;
    let folder = data.path().to_str().context("a path that is text")?;
    let scopes = "query,register,admin";
    let key =
        output(program(root, binary).args(["key", "create", "all", "--scopes", scopes, "--data", folder]))?;
    let server = Server::builder().binary(binary).data(data.path()).arg("--demo").start()?;
    // Whose quotas may be changed without this one's requests being refused for them.
    let tenant = ["tenant", "create", "other", "--server", &server.url()];
    output(program(root, binary).args(tenant).env("MODELLESS_KEY", key.trim()))?;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command
        .current_dir(data.path())
        .args(["--config-file".as_ref(), root.join(CONFIG).as_os_str()])
        .args(["run", &format!("{}/openapi.json", server.url()), "--max-examples", &examples.to_string()])
        .args(seed.iter().flat_map(|seed| ["--seed", *seed]))
        .env("MODELLESS_KEY", key.trim())
        .env("SCHEMATHESIS_HOOKS", HOOKS)
        .env("PYTHONPATH", root.join("tests/schemathesis"));
    let clean = run_command(&mut command);
    let panics = server.stop_and_count_panics()?;
    clean.context("the document and the server do not agree, see above: mend whichever is wrong")?;
    ensure!(panics == 0, "the server panicked {panics} times");
    say("the server does what its document says");
    Ok(())
}
