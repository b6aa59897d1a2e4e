//! A host that others use as well: processes that burn a core, a node's runners kept on that core, and a model that needs one for some
//! milliseconds.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{onnx, process};

/// The last core that this process may use.
pub(crate) fn some_core() -> Result<u32> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .context("no list of cores")?;
    let last = list.trim().rsplit(['-', ',']).next().unwrap_or_default();
    last.parse().with_context(|| format!("{list} is no list of cores"))
}

/// Keeps the processes that run a node's models on one core, so that it is theirs that burns.
pub(crate) fn keep_on(core: u32, node: u32) -> Result<()> {
    let runners = process::children(node)?;
    ensure!(!runners.is_empty(), "no process runs a model");
    for (pid, _) in runners {
        let mut taskset = Command::new("taskset");
        taskset.args(["--all-tasks", "--cpu-list", "--pid", &core.to_string(), &pid.to_string()]);
        let output = taskset.stdin(Stdio::null()).output().context("running taskset")?;
        ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// How many processes, and on which core.
#[derive(Clone, Copy)]
pub(crate) struct Burning {
    pub(crate) burners: usize,
    pub(crate) core: u32,
}

/// Processes that compute for ever, ended with this.
pub(crate) struct Burners(Vec<Child>);

impl Burners {
    pub(crate) fn start(burning: Burning) -> Result<Self> {
        let mut burners = Self(Vec::new());
        for _ in 0..burning.burners {
            let mut burn = Command::new("taskset");
            burn.args(["--cpu-list", &burning.core.to_string(), "sh", "-c", "while :; do :; done"]);
            let burn = burn.stdin(Stdio::null()).spawn();
            burners.0.push(burn.context("starting a process that burns a core")?);
        }
        Ok(burners)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A task with one model that takes some milliseconds.
pub(crate) fn package(folder: &Path) -> Result<()> {
    fs::create_dir(folder.join("models"))?;
    let tensor = |name: &str| format!("[{{ name = \"{name}\", dtype = \"FP32\", shape = [{WIDTH}] }}]");
    let task = format!(
        "name = \"{LONG}\"\nkind = \"tensor\"\ninputs = {}\noutputs = {}\n",
        tensor("x"),
        tensor("y")
    );
    fs::write(folder.join("task.toml"), task)?;
    // Declared, and nothing but a place in the list.
    let model = "name = \"long\"\naccuracy = 0.5\nadapter = { kind = \"tensor\" }\n\
                 variants = [{ precision = \"fp32\", file = \"long.onnx\", max_batch = 2 }]\n";
    fs::write(folder.join("models/long.toml"), model)?;
    Ok(fs::write(folder.join("models/long.onnx"), onnx::chain("Sin", WIDTH, 13, NODES))?)
}

/// That task, how many numbers it takes, and how many sines of each are taken.
pub(crate) const LONG: &str = "long";
pub(crate) const WIDTH: u64 = 784;
const NODES: u32 = 6_000;
