//! The stages, as one table.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use modelless_testkit::kubernetes::{ApiServer, Programs};
use modelless_testkit::server::WHOLE_WORKSPACE;
use modelless_testkit::{Postgres, hypervisor, server};

use super::peer::Peer;
use super::{Outcome, demos, perf_analyzer, python, sdk, system};
use crate::command::{cargo, output, program, run, run_keeping_tail, succeeds, target_dir};
use crate::{measure, say, schemathesis, tidy};

pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Part of `--quick`.
    pub(super) quick: bool,
    pub(super) needs: &'static [&'static str],
    pub(super) run: fn(&mut Context) -> Result<Outcome>,
}

pub(super) const STAGES: &[Stage] = &[
    Stage { name: "fmt", what: "the code is formatted", quick: true, needs: &[], run: fmt },
    Stage { name: "clippy", what: "no warning in any target", quick: true, needs: &[], run: clippy },
    Stage {
        name: "tidy",
        what: "walls between crates, file sizes, documents",
        quick: true,
        needs: &[],
        run: tidy,
    },
    Stage { name: "deny", what: "licences, banned crates, sources", quick: false, needs: &[], run: deny },
    Stage {
        name: "doc",
        what: "the documentation builds without a warning",
        quick: false,
        needs: &[],
        run: doc,
    },
    Stage { name: "system", what: "the programs the tests start", quick: true, needs: &[], run: system },
    Stage {
        name: "engine",
        what: "the inference libraries: ONNX Runtime, OpenVINO",
        quick: true,
        needs: &["system"],
        run: engine,
    },
    Stage {
        name: "nextest",
        what: "unit tests, stores and engines with the real thing behind them",
        quick: true,
        needs: &["system", "engine"],
        run: nextest,
    },
    Stage {
        name: "torch",
        what: "libtorch, its runner, and the suite that every engine passes",
        quick: false,
        needs: &["system"],
        run: torch,
    },
    Stage {
        name: "generator",
        what: "the tool that makes variants, its own tests, and packages made with it",
        quick: false,
        needs: &["system", "engine"],
        run: generator,
    },
    Stage {
        name: "remote",
        what: "the suite that every engine passes, against a KServe server",
        quick: false,
        needs: &["system", "engine"],
        run: remote,
    },
    Stage {
        name: "moto",
        what: "machines of EC2, against moto's server",
        quick: false,
        needs: &["system", "engine"],
        run: moto,
    },
    Stage {
        name: "kubernetes",
        what: "machines that are pods, against what checks them by Kubernetes' schemas, and an API server where one is in PATH",
        quick: false,
        needs: &["system", "engine"],
        run: kubernetes,
    },
    Stage {
        name: "python",
        what: "our own package, and the clients for the end-to-end tests",
        quick: false,
        needs: &["system", "engine", "torch"],
        run: python,
    },
    Stage {
        name: "e2e",
        what: "a real `modelless up`, asked as users ask",
        quick: false,
        needs: &["system", "engine", "python"],
        run: e2e,
    },
    Stage {
        name: "openapi",
        what: "a real server does what its OpenAPI document says, asked by schemathesis",
        quick: false,
        needs: &["system", "engine"],
        run: openapi,
    },
    Stage {
        name: "demos",
        what: "demos that are made of packages, where those can be had",
        quick: false,
        needs: &["system", "engine"],
        run: demos,
    },
    Stage {
        name: "bench",
        what: "measurements in their short form, with loose bounds",
        quick: false,
        needs: &["engine"],
        run: bench,
    },
];

/// What stages of their own run, since it needs what they bring.
const ELSEWHERE: &str = "package(modelless-tests) & test(/^(demos|generating|kubernetes|moto|remote)::|torch/) + \
                         package(modelless-engine) & kind(test) & \
                         test(/^(conformance::(onnx_gpu|torch_gpu|remote)|gpu|remote)::|^agreement::a_remote|torch/) + \
                         package(modelless-fleet) & kind(test) & test(/kubernetes|moto/)";

/// What stages leave for each other.
pub(super) struct Context {
    root: PathBuf,
    target: PathBuf,
    postgres: Option<Postgres>,
    python: Option<PathBuf>,
    /// Python with what the recipes of demos need.
    recipes: Option<PathBuf>,
    /// The program `perf_analyzer`, or `not run: ` and why it cannot be had.
    perf_analyzer: Option<String>,
    /// Where the server of others listens, while it runs.
    peers: Option<(String, String)>,
    /// Python with the server that answers as EC2 does.
    moto: Option<PathBuf>,
    /// Python with what stands for an API server of Kubernetes.
    kubernetes: Option<PathBuf>,
    /// How an API server is reached that is really one.
    kubeconfig: Option<PathBuf>,
    /// Torch's runner with a hostile model in it, once built.
    torch_probe: Option<PathBuf>,
    /// One build of the tested binary for all stages.
    binary: Option<PathBuf>,
    filter: Vec<String>,
    closing: Vec<String>,
}

impl Context {
    pub(super) fn new(root: PathBuf, filter: Vec<String>) -> Result<Self> {
        let target = target_dir(&root)?;
        Ok(Self {
            root,
            target,
            postgres: None,
            python: None,
            recipes: None,
            perf_analyzer: None,
            torch_probe: None,
            peers: None,
            moto: None,
            kubernetes: None,
            kubeconfig: None,
            binary: None,
            filter,
            closing: Vec::new(),
        })
    }

    /// Stops what was started and gives the closing lines of the test runs.
    pub(super) fn finish(mut self) -> Vec<String> {
        drop(self.postgres.take());
        self.closing
    }

    /// The database to test on: the one that was given, else one of our own.
    fn postgres_url(&mut self) -> Result<String> {
        if let Ok(given) = std::env::var("MODELLESS_TEST_POSTGRES") {
            return Ok(given);
        }
        if self.postgres.is_none() {
            self.postgres = Some(Postgres::start()?);
        }
        let server = self.postgres.as_ref().context("started above; this is a bug")?;
        Ok(server.url().to_owned())
    }

    /// The development build: nextest has compiled nearly all of it already, and it checks for overflow.
    fn binary(&mut self) -> Result<PathBuf> {
        if self.binary.is_none() {
            self.binary = Some(server::binary()?);
        }
        self.binary.clone().context("built above; this is a bug")
    }

    /// Tests that a filter names, of a build that all stages share.
    fn nextest(&mut self, tests: &str) -> Result<Outcome> {
        self.nextest_without(&[], tests)
    }

    /// The same without some variables of the environment.
    fn nextest_without(&mut self, variables: &[&str], tests: &str) -> Result<Outcome> {
        let url = self.postgres_url()?;
        let mut command = cargo(&self.root);
        for variable in variables {
            command.env_remove(variable);
        }
        command.args(["nextest", "run"]); // NEXTEST_PROFILE=ci is nextest's own
        match self.filter.first().map(String::as_str) {
            None => command.args(WHOLE_WORKSPACE).args(["--filterset", tests]),
            // Only which tests run, so the build stays the one of all stages.
            Some("-E" | "--filterset") => command.args(WHOLE_WORKSPACE).args(&self.filter),
            Some(_) => command.args(&self.filter),
        };
        command.env("MODELLESS_TEST_POSTGRES", url);
        if let Some(python) = &self.python {
            command.env("MODELLESS_PYTHON", python);
        }
        if let Some(program) = &self.perf_analyzer {
            command.env("MODELLESS_TEST_PERF_ANALYZER", program);
        }
        if let Some(python) = &self.recipes {
            command.env("MODELLESS_DEMO_PYTHON", python);
            command.env("MODELLESS_DEMO_MADE", self.target.join("demos-made"));
        }
        if let Some((peer, grpc)) = &self.peers {
            command.env("MODELLESS_TEST_PEER", peer).env("MODELLESS_TEST_PEER_GRPC", grpc);
        }
        if let Some(python) = &self.moto {
            command.env("MODELLESS_TEST_MOTO", python);
        }
        if let Some(python) = &self.kubernetes {
            command.env("MODELLESS_TEST_KUBERNETES", python);
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("MODELLESS_TEST_KUBECONFIG", kubeconfig);
        }
        if let Some(probe) = &self.torch_probe {
            command.env("MODELLESS_TEST_TORCH_PROBE", probe);
        }
        if let Some(binary) = &self.binary {
            command.env("MODELLESS_BIN", binary);
        }
        let is_summary = |line: &str| line.trim_start_matches(is_decoration).starts_with("Summary [");
        let (passed, closing) = run_keeping_tail(&mut command, is_summary)?;
        self.closing.extend(closing);
        ensure!(passed, "see the closing lines of nextest");
        Ok(Outcome::Passed)
    }
}

/// Blanks and the bytes of a colour code, which may stand before a word.
fn is_decoration(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1b}' | '[' | ';' | 'm') || c.is_ascii_digit()
}

fn fmt(context: &mut Context) -> Result<Outcome> {
    run(cargo(&context.root).args(["fmt", "--all", "--check", "--", "-l"]))
        .context("`cargo fmt --all` mends it")?;
    Ok(Outcome::Passed)
}

fn clippy(context: &mut Context) -> Result<Outcome> {
    run(cargo(&context.root)
        .args(["clippy", "--all-targets", "--locked"])
        .args(WHOLE_WORKSPACE)
        .args(["--", "-D", "warnings"]))?;
    Ok(Outcome::Passed)
}

fn tidy(_: &mut Context) -> Result<Outcome> {
    tidy::run()?;
    Ok(Outcome::Passed)
}

fn deny(context: &mut Context) -> Result<Outcome> {
    if !succeeds(cargo(&context.root).args(["deny", "--version"])) {
        return Ok(Outcome::Skipped(
            "cargo-deny is not installed (`cargo install --locked cargo-deny`)".to_owned(),
        ));
    }
    // No advisories: their database is fetched from the network at every run.
    run(cargo(&context.root).args([
        "deny",
        "--offline",
        "--locked",
        "check",
        "licenses",
        "bans",
        "sources",
    ]))?;
    Ok(Outcome::Passed)
}

fn doc(context: &mut Context) -> Result<Outcome> {
    let mut command = cargo(&context.root);
    command.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(Outcome::Passed)
}

fn system(context: &mut Context) -> Result<Outcome> {
    system::ensure(&context.root)?;
    Ok(Outcome::Passed)
}

fn engine(context: &mut Context) -> Result<Outcome> {
    let binary = context.binary()?;
    for engine in ["onnx", "openvino"] {
        run(program(&context.root, binary.clone()).args(["engine", "install", engine]))?;
    }
    Ok(Outcome::Passed)
}

fn nextest(context: &mut Context) -> Result<Outcome> {
    context.nextest(&format!("not package(modelless-tests) - ({ELSEWHERE})"))
}

/// Library and build are kept in the folder of engines, so only the first run takes its minutes.
fn torch(context: &mut Context) -> Result<Outcome> {
    let binary = context.binary()?;
    run(program(&context.root, binary.clone()).args(["engine", "install", "torch"]))?;
    let manifest = "runners/torch/Cargo.toml";
    context.torch_probe = Some(torch_probe(&context.root, binary, manifest)?);
    run(cargo(&context.root).args(["fmt", "--check", "--manifest-path", manifest, "--", "-l"]))?;
    // What needs a GPU is built, so that it does not rot, and runs where there is one.
    context.nextest("(package(modelless-engine) + package(modelless-tests)) & test(torch) - test(gpu)")
}

/// Beside the runner that is installed, which it must not replace, and from the same build.
fn torch_probe(root: &Path, binary: PathBuf, manifest: &str) -> Result<PathBuf> {
    let listed = program(root, binary).args(["engine", "list", "--json"]).output()?;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).context("engine list --json")?;
    let rows = listed.as_array().into_iter().flatten();
    let runner = rows.filter(|row| row["engine"] == "torch").find_map(|row| row["library"].as_str());
    let runner = PathBuf::from(runner.context("the runner that was just installed is not listed")?);
    let installed = runner.parent().and_then(Path::parent).context("it lies in no folder")?;
    let target = installed.parent().context("it lies in no folder")?.join("build");
    let build = ["build", "--release", "--locked", "--features", "probe", "--bin", "modelless-probe-torch"];
    let mut cargo = cargo(root);
    cargo.args(build).args(["--manifest-path", manifest, "--target-dir"]).arg(&target);
    for name in ["LIBTORCH", "LIBTORCH_INCLUDE", "LIBTORCH_LIB"] {
        cargo.env(name, installed);
    }
    cargo.env("LIBTORCH_CXX11_ABI", "1").env("MODELLESS_LIBTORCH_RPATH", installed.join("lib"));
    run(&mut cargo)?;
    Ok(target.join("release/modelless-probe-torch"))
}

/// Its libraries are kept in the folder of engines, so only the first run fetches them.
fn generator(context: &mut Context) -> Result<Outcome> {
    let binary = context.binary()?;
    let tools = program(&context.root, binary).args(["variant", "tools", "--json"]).output()?;
    let said = String::from_utf8_lossy(&tools.stderr);
    if !tools.status.success() {
        ensure!(said.contains("pip could not fetch"), "{}", said.trim());
        let why = said.lines().next().unwrap_or_default();
        return unavailable(format!("what the tool needs cannot be had here: {why}"));
    }
    let tools: serde_json::Value = serde_json::from_slice(&tools.stdout).context("variant tools --json")?;
    let text = |name: &str| tools[name].as_str().with_context(|| format!("`variant tools` names no {name}"));
    let folder = context.root.join("profiler/generator");
    let path = std::env::join_paths([Path::new(text("libraries")?), &folder, &folder.join("tests")])?;
    let mut python = program(&folder, text("python")?);
    python.args(["-B", "-m", "unittest", "discover", "-s", "tests"]).env("PYTHONPATH", path);
    run(python.env("OMP_NUM_THREADS", "1"))?;
    context.nextest("package(modelless-tests) & test(generating::) - test(torch)")
}

fn remote(context: &mut Context) -> Result<Outcome> {
    context.binary()?;
    let peer = Peer::start(&context.root, &context.target)?;
    context.peers = Some((peer.http.clone(), peer.grpc.clone()));
    let mut outcome =
        context.nextest("(package(modelless-engine) + package(modelless-tests)) & test(remote)");
    if matches!(outcome, Ok(Outcome::Passed)) {
        // The suite that all engines pass once more, over the other protocol.
        context.peers = Some((peer.grpc.clone(), peer.grpc.clone()));
        outcome = context.nextest("package(modelless-engine) & test(conformance::remote)");
    }
    context.peers = None;
    outcome
}

fn moto(context: &mut Context) -> Result<Outcome> {
    context.binary()?;
    context.moto = Some(python::moto(&context.root, &context.target)?);
    let tests = if hypervisor::possible() {
        "test(moto)"
    } else {
        // Machines are rooms of this one, which only root makes.
        let why = "namespaces cannot be made here, so no machine is booted; root with `ip` and `unshare` can";
        ensure!(std::env::var_os("CI").is_none(), "{why}");
        say(why);
        "test(moto) - test(moto_boots)"
    };
    let outcome =
        context.nextest(&format!("(package(modelless-fleet) + package(modelless-tests)) & ({tests})"));
    context.moto = None;
    outcome
}

fn kubernetes(context: &mut Context) -> Result<Outcome> {
    context.binary()?;
    context.kubernetes = Some(python::kubernetes(&context.root, &context.target)?);
    let tests = "(package(modelless-fleet) + package(modelless-tests)) & test(kubernetes)";
    // Whoever names a cluster of his own has it tried in the second run, not here.
    let mut outcome = context.nextest_without(&["MODELLESS_TEST_KUBECONFIG"], tests);
    if matches!(outcome, Ok(Outcome::Passed)) {
        let given = std::env::var_os("MODELLESS_TEST_KUBECONFIG").map(PathBuf::from);
        let programs = Programs::find().filter(|_| given.is_none());
        let own = programs.map(|programs| ApiServer::start(&programs)).transpose()?;
        context.kubeconfig = given.or_else(|| own.as_ref().map(ApiServer::kubeconfig));
        if context.kubeconfig.is_some() {
            outcome = context.nextest("package(modelless-fleet) & test(kubernetes) - test(stand_in)");
        } else {
            say("no `etcd` and `kube-apiserver` in PATH: requests were checked by Kubernetes' schemas only");
        }
    }
    (context.kubernetes, context.kubeconfig) = (None, None);
    outcome
}

fn python(context: &mut Context) -> Result<Outcome> {
    let python = python::ensure(&context.root, &context.target)?;
    say(format!("using {}", python.display()));
    context.python = Some(python);
    let binary = context.binary()?;
    // With `--only python` the stage before has not run; else this finds it there.
    run(program(&context.root, binary.clone()).args(["engine", "install", "torch"]))?;
    sdk::test(&context.root, &context.target, &binary)?;
    Ok(Outcome::Passed)
}

fn e2e(context: &mut Context) -> Result<Outcome> {
    context.binary()?;
    if context.python.is_none() {
        // With `--only e2e` the stage before has not run.
        context.python = Some(python::ensure(&context.root, &context.target)?);
    }
    context.perf_analyzer = Some(match perf_analyzer::ensure(&context.root, &context.target)? {
        Ok(there) => there.program.display().to_string(),
        Err(why) => {
            unavailable(why.clone())?;
            say(format!("perf_analyzer is not run: {why}"));
            format!("not run: {why}")
        }
    });
    context.nextest(&format!("package(modelless-tests) - ({ELSEWHERE})"))
}

fn openapi(context: &mut Context) -> Result<Outcome> {
    let binary = context.binary()?;
    schemathesis::short(&context.root, &context.target, &binary)?;
    Ok(Outcome::Passed)
}

/// Without the packages nothing was tested. Whoever works offline goes on without; where the work is judged that is a failure.
fn unavailable(why: String) -> Result<Outcome> {
    ensure!(std::env::var_os("CI").is_none(), "{why}");
    Ok(Outcome::Skipped(why))
}

fn demos(context: &mut Context) -> Result<Outcome> {
    context.binary()?;
    match demos::ensure(&context.root, &context.target)? {
        Ok(python) => context.recipes = Some(python),
        Err(why) => return unavailable(why),
    }
    // The long form takes minutes: it measures ten variants with a development build.
    let all = std::env::var("MODELLESS_TEST_DEMOS").is_ok_and(|wanted| wanted == "all");
    let without = if all { "none()" } else { "test(the_whole_imagenet_demo)" };
    let outcome = context.nextest(&format!("package(modelless-tests) & test(demos::) - {without}"));
    context.recipes = None;
    outcome
}

fn bench(context: &mut Context) -> Result<Outcome> {
    let binary = context.binary()?;
    let commit = output(program(&context.root, "git").args(["rev-parse", "HEAD"])).unwrap_or_default();
    let turn = measure::Turn::of(std::env::var("XTASK_SHORT_FORMS").ok().as_deref(), commit.trim())?;
    let failed = measure::run_all_short(&context.root, &binary, turn);
    if !failed.is_empty() {
        bail!("missed even the loose bounds: {}", failed.join(" | "));
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_summary_line_with_and_without_colours() {
        for line in ["     Summary [   0.771s] 26 tests run", "\u{1b}[32;1m     Summary\u{1b}[0m [   0.771s]"]
        {
            assert!(line.trim_start_matches(is_decoration).starts_with("Summary"), "{line}");
        }
    }
}
