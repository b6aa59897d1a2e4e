//! Kubernetes for tests: an API server that is really one, where its programs are, and what stands for one elsewhere. Neither runs a
//! pod: a test is the kubelet.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::lines::{Lines, Waited};
use crate::{Connection, Request, TempDir, free_port, temp_dir, wait};

const START_WITHIN: Duration = Duration::from_mins(2);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fleet/tests/kubernetes/serve.py");
const TOKEN: &str = "may-do-everything";

/// Runs both until the input ends, so whatever ends us ends them.
const KEEPER: &str = r#"
cd "$3" || exit 1
openssl genrsa -out key 2048 2>/dev/null
echo "$6,admin,1,system:masters" >tokens
"$1" --data-dir etcd --listen-client-urls "http://127.0.0.1:$4" --advertise-client-urls "http://127.0.0.1:$4" \
    --listen-peer-urls http://127.0.0.1:0 </dev/null >etcd.log 2>&1 &
etcd=$!
"$2" --etcd-servers "http://127.0.0.1:$4" --bind-address 127.0.0.1 --secure-port "$5" --cert-dir certs \
    --service-account-issuer https://kubernetes.default --service-account-signing-key-file key --service-account-key-file key \
    --token-auth-file tokens --authorization-mode RBAC --disable-admission-plugins ServiceAccount \
    --service-cluster-ip-range 10.0.0.0/24 </dev/null >server.log 2>&1 &
server=$!
cat >/dev/null
kill -KILL "$server" "$etcd" 2>/dev/null
wait
"#;

/// How whoever may do everything reaches an API server, as `kubectl` has it in a file. JSON is YAML as well.
pub fn kubeconfig(server: &str, ca: Option<&Path>, token: &str) -> Value {
    let mut cluster = json!({"server": server});
    if let Some(ca) = ca {
        cluster["certificate-authority"] = json!(ca);
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    })
}

/// The programs of a real one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Programs {
    pub etcd: PathBuf,
    pub server: PathBuf,
}

impl Programs {
    /// Those in PATH, if both are there.
    pub fn find() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let find = |name: &str| {
            std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
        };
        Some(Self { etcd: find("etcd")?, server: find("kube-apiserver")? })
    }
}

/// A real one; it ends when dropped.
pub struct ApiServer {
    keeper: Child,
    folder: TempDir,
}

impl ApiServer {
    pub fn start(programs: &Programs) -> Result<Self> {
        let folder = temp_dir("kubernetes")?;
        let (etcd, port) = (free_port()?, free_port()?);
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "kubernetes"])
            .args([&programs.etcd, &programs.server])
            .arg(folder.path())
            .args([etcd.to_string(), port.to_string(), TOKEN.to_owned()])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting etcd and an API server")?;
        let started = Self { keeper, folder };
        let ca = started.folder.path().join("certs/apiserver.crt");
        let server = format!("https://127.0.0.1:{port}");
        fs::write(started.kubeconfig(), kubeconfig(&server, Some(&ca), TOKEN).to_string())?;
        wait::until(START_WITHIN, || {
            let mut curl = Command::new("curl");
            let curl = curl.args(["--silent", "--fail", "--max-time", "5", "--cacert"]).arg(&ca);
            let curl = curl.arg("--header").arg(format!("authorization: Bearer {TOKEN}"));
            let ready = curl
                .arg(format!("{server}/readyz"))
                .stdout(Stdio::null())
                .status()
                .context("running curl")?;
            let log = |name: &str| fs::read_to_string(started.folder.path().join(name)).unwrap_or_default();
            let tail =
                |text: String| text.lines().rev().take(5).map(str::to_owned).collect::<Vec<_>>().join("\n");
            let said = || format!("{}\n{}", tail(log("etcd.log")), tail(log("server.log")));
            Ok(if ready.success() { Ok(()) } else { Err(said()) })
        })
        .context("waiting for an API server")?;
        Ok(started)
    }

    /// For `kubectl` and everybody else.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// What stands for one: `crates/fleet/tests/kubernetes/serve.py` says what it does. It ends when dropped.
pub struct StandIn {
    child: Child,
    address: SocketAddr,
    token: String,
}

impl StandIn {
    /// With the Python that `cargo xtask test --only kubernetes` has made for it.
    pub fn start() -> Result<Self> {
        let python = std::env::var("MODELLESS_TEST_KUBERNETES").context(
            "MODELLESS_TEST_KUBERNETES names no Python that has the schemas: `cargo xtask test --only kubernetes` makes one",
        )?;
        let mut child = Command::new(python)
            .args(["-B", SCRIPT, "0"])
            .stdin(Stdio::piped()) // it ends with whoever holds the other end
            .stdout(Stdio::piped())
            .spawn()
            .context("starting what stands for Kubernetes")?;
        let lines = Lines::follow(child.stdout.take().context("its output is piped")?);
        let waited = lines.wait_for(|line| line.starts_with('{'), START_WITHIN);
        let Waited::Line(line, _) = waited else {
            let _ = (child.kill(), child.wait());
            anyhow::bail!("it did not say that it is ready ({waited:?}): {}", lines.tail());
        };
        let told: Value = serde_json::from_str(&line)?;
        let port = u16::try_from(told["port"].as_u64().context("it names its port")?)?;
        let token = told["token"].as_str().context("it names a token")?.to_owned();
        Ok(Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)), token })
    }

    /// As `kubectl` has it in a file.
    pub fn kubeconfig(&self) -> Value {
        kubeconfig(&format!("http://{}", self.address), None, &self.token)
    }

    /// One call as whoever may do everything, which has to succeed.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut asked = Request::new(method, path).header("authorization", format!("Bearer {}", self.token));
        if let Some(body) = body {
            let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            asked = asked.header("content-type", kind).body(body.to_string());
        }
        let answer = Connection::open(self.address)?.exchange(&asked)?;
        ensure!(answer.status < 300, "{method} {path}: {answer}");
        answer.json()
    }

    /// All pods of a namespace, whatever became of them.
    pub fn pods(&self, namespace: &str) -> Result<Vec<Value>> {
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let page =
                self.ask("GET", &format!("/api/v1/namespaces/{namespace}/pods?continue={next}"), None)?;
            all.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["metadata"]["continue"].as_str() {
                Some(more) => more.clone_into(&mut next),
                None => return Ok(all),
            }
        }
    }

    /// What goes wrong from now on.
    pub fn faults(&self, faults: &Value) -> Result<()> {
        let asked = Request::new("PUT", "/faults").body(faults.to_string());
        let answer = Connection::open(self.address)?.exchange(&asked)?;
        ensure!(answer.status == 200, "{answer}");
        Ok(())
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}
