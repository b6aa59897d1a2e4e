//! Machines that are pods: a real scheduler against what stands for Kubernetes, and a kubelet that really runs each pod's executor.

use crate::cluster::{Load, loaded};
use crate::database::{Database, sql};
use crate::demo::Place;
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::kubernetes::StandIn;
use modelless_testkit::process::{Signal, signal};
use modelless_testkit::{Connection, Request, server, wait};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "models";
const PODS: &str = "/api/v1/namespaces/models/pods";

/// Runs pods as processes of this machine, each with an address of its own.
struct Kubelet {
    stop: Arc<AtomicBool>,
    troubles: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

/// What it knows besides what Kubernetes does.
struct Node {
    api: Arc<StandIn>,
    program: PathBuf,
    /// Stands for the secret that the template names.
    environment: [(&'static str, String); 2],
    logs: PathBuf,
    running: BTreeMap<String, Child>,
    /// No pod runs twice.
    ran: BTreeSet<String>,
    /// Told to end, once.
    told: BTreeSet<String>,
}

impl Kubelet {
    fn start(mut node: Node) -> Self {
        let (stop, troubles) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (until, told) = (Arc::clone(&stop), Arc::clone(&troubles));
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                if let Err(error) = node.look() {
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
                }
                pause();
            }
            for (_, mut process) in node.running {
                let _ = (process.kill(), process.wait());
            }
        });
        Self { stop, troubles, thread: Some(thread) }
    }

    fn troubles(&self) -> String {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }
}

#[expect(clippy::disallowed_methods, reason = "it watches real processes in real time")]
fn pause() {
    thread::sleep(Duration::from_millis(50));
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

impl Node {
    fn look(&mut self) -> Result<()> {
        let pods = self.api.pods(NAMESPACE)?;
        for pod in pods.iter().filter(|pod| !ended(pod)) {
            let (name, goes) = (name(pod), !pod["metadata"]["deletionTimestamp"].is_null());
            if let Some(process) = self.running.get_mut(&name) {
                if let Some(status) = process.try_wait()? {
                    self.running.remove(&name);
                    self.says(
                        &name,
                        &json!({"phase": if status.success() { "Succeeded" } else { "Failed" }}),
                    )?;
                    if goes {
                        self.api.ask(
                            "DELETE",
                            &format!("{PODS}/{name}"),
                            Some(&json!({"gracePeriodSeconds": 0})),
                        )?;
                    }
                } else if goes && self.told.insert(name) {
                    signal(process, Signal::TERM)?;
                }
            } else if !goes && self.ran.insert(name.clone()) {
                self.run(&name, pod)?;
            }
        }
        Ok(())
    }

    fn says(&self, pod: &str, status: &Value) -> Result<()> {
        self.api.ask("PATCH", &format!("{PODS}/{pod}/status"), Some(&json!({"status": status}))).map(drop)
    }

    fn run(&mut self, name: &str, pod: &Value) -> Result<()> {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "here"}});
        self.api.ask("POST", &format!("{PODS}/{name}/binding"), Some(&binding))?;
        let address = format!("127.77.0.{}", self.ran.len());
        let container = &pod["spec"]["containers"][0];
        ensure!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP", "{container}");
        let arguments = container["args"].as_array().context("it has arguments")?;
        let arguments = arguments.iter().filter_map(Value::as_str).map(|argument| {
            let argument = argument.replace("$(POD_IP)", &address).replace("$$", "$");
            // All pods have the ports of this machine, so each keeps to its own address.
            argument.replace("listen=0.0.0.0", &format!("listen={address}"))
        });
        let log = fs::File::create(self.logs.join(format!("{name}.log")))?;
        let process = Command::new(&self.program)
            .args(arguments)
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.running.insert(name.to_owned(), process);
        self.says(name, &json!({"phase": "Running", "podIP": address}))
    }
}

struct Bed {
    // In this order they end.
    cluster: Cluster,
    kubelet: Kubelet,
    api: Arc<StandIn>,
    place: Place,
    settings: Vec<String>,
}

impl Bed {
    fn new() -> Result<Self> {
        let place = Place::new(Database::Postgres)?;
        let database = place.database_url()?.context("it is on Postgres")?;
        let cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
        let api = Arc::new(StandIn::start()?);
        fs::write(place.folder.path().join("kubeconfig"), api.kubeconfig().to_string())?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        api.ask("POST", "/api/v1/namespaces", Some(&namespace))?;
        let artefacts = format!("artefacts={}", place.folder.path().join("artefacts").display());
        let arguments = json!(["executor", "--set", artefacts]);
        let container = json!({"name": "executor", "image": "modelless:latest", "args": arguments});
        let template = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "executor"},
                              "template": {"spec": {"containers": [container]}}});
        api.ask("POST", &format!("/api/v1/namespaces/{NAMESPACE}/podtemplates"), Some(&template))?;
        let logs = place.folder.path().join("logs");
        fs::create_dir_all(&logs)?;
        let kubelet = Kubelet::start(Node {
            api: Arc::clone(&api),
            program: server::binary()?,
            environment: [("MODELLESS_DATABASE", database), ("MODELLESS_REDIS", cluster.redis.url())],
            logs,
            running: BTreeMap::new(),
            ran: BTreeSet::new(),
            told: BTreeSet::new(),
        });
        let settings = vec![format!("cluster=pods-{}", std::process::id())];
        Ok(Self { cluster, kubelet, api, place, settings })
    }

    fn scheduler(&mut self, name: &str, machines: u32) -> Result<()> {
        let folder = self.place.folder.path();
        let text = format!(
            "interval-ms = 100\nremembered-s = 10\n[pools.cloud]\nleast = {machines}\nmost = {machines}\nprice = 0.1\n\
             set = [\"executor.lanes=1\"]\n[pools.cloud.kubernetes]\ntemplate = \"executor\"\nnamespace = \"{NAMESPACE}\"\n\
             kubeconfig = \"{}\"\nlist-every-s = 0.2\n",
            folder.join("kubeconfig").display()
        );
        let path = folder.join(format!("{name}.toml"));
        fs::write(&path, text)?;
        let pools = format!("pools={}", path.display());
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).chain([pools.as_str()]).collect();
        self.cluster.scheduler(name, &settings)
    }

    /// What was written down of machines is lost, as when a database is put back to what it was.
    fn forget(&self) -> Result<()> {
        let database = self.place.database_url()?.context("it is on Postgres")?;
        sql(&database, "DELETE FROM machines; DELETE FROM machine_changes; DELETE FROM pools").map(drop)
    }

    /// Waits until Kubernetes has so many pods that have not ended, and all are written down and have joined; never more than may be.
    /// Their names, by their machines'.
    fn settles(&self, gateway: SocketAddr, many: usize, most: usize) -> Result<BTreeMap<String, String>> {
        wait::until(PATIENCE, || {
            let pods = self.api.pods(NAMESPACE)?;
            let there: Vec<&Value> = pods.iter().filter(|pod| !ended(pod)).collect();
            ensure!(there.len() <= most, "{} pods are there, and {most} may be", there.len());
            let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/machines"))?.json()?;
            let all = answer["machines"].as_array().map_or(&[][..], Vec::as_slice);
            let open: Vec<&Value> =
                all.iter().filter(|of| of["state"] != "gone" && of["state"] != "failed").collect();
            let id = |pod: &Value| {
                format!("{}/{}", name(pod), pod["metadata"]["uid"].as_str().unwrap_or_default())
            };
            let known =
                |pod: &&&Value| open.iter().any(|of| of["instance"] == id(pod) && of["state"] == "joined");
            let stay = there.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count();
            let so = (there.len(), open.len(), stay) == (many, many, many)
                && there.iter().filter(known).count() == many;
            let machine = |pod: &&Value| {
                pod["metadata"]["labels"]["modelless/machine"].as_str().unwrap_or_default().to_owned()
            };
            let names = there.iter().map(|pod| (machine(pod), name(pod))).collect();
            Ok(if so { Ok(names) } else { Err(format!("{there:?} {answer}")) })
        })
        .with_context(|| format!("{}\n{}", self.cluster.output(), self.kubelet.troubles()))
    }
}

#[test]
fn pods_become_nodes_are_found_again_and_go_without_a_query_that_notices() -> Result<()> {
    let mut bed = Bed::new()?;
    bed.scheduler("planner", 1)?;
    let settings = bed.settings.clone();
    let gateway = bed.cluster.gateway("left", &settings.iter().map(String::as_str).collect::<Vec<_>>())?;
    let first = bed.settles(gateway, 1, 1)?;
    let nodes =
        |of: &BTreeMap<String, String>| loaded(gateway, &of.keys().map(String::as_str).collect::<Vec<_>>());
    nodes(&first)?;
    let load = Load::default();
    thread::scope(|scope| {
        scope.spawn(|| load.follow(&[gateway], 0));
        let result = (|| {
            load.more(20)?;
            bed.cluster.kill("planner")?;
            bed.scheduler("follower", 2)?;
            let both = bed.settles(gateway, 2, 2)?;
            nodes(&both)?;
            load.none_wrong("while another pod came, its scheduler killed and followed")?;

            // What was written down is lost, and what Kubernetes has is not.
            bed.cluster.kill("follower")?;
            bed.forget()?;
            bed.scheduler("third", 2)?;
            ensure!(bed.settles(gateway, 2, 2)? == both, "the same pods");
            load.more(20)?;
            load.none_wrong("while pods were found again")?;

            // As `kubectl drain` does: it ends what it has, and another one comes.
            let evicted = first.values().next().context("a pod")?;
            bed.api.ask("DELETE", &format!("{PODS}/{evicted}"), Some(&json!({})))?;
            wait::until(PATIENCE, || {
                let gone = !bed.settles(gateway, 2, 2)?.values().any(|name| name == evicted);
                Ok(if gone { Ok(()) } else { Err("it is there still".to_owned()) })
            })?;
            load.more(20)?;
            load.none_wrong("while a pod was evicted")?;
            nodes(&bed.settles(gateway, 2, 2)?)?;

            bed.cluster.kill("third")?;
            bed.scheduler("fourth", 1)?;
            bed.settles(gateway, 1, 2)?;
            load.more(20)?;
            load.none_wrong("while a pod went")
        })();
        load.end();
        result
    })
    .with_context(|| format!("{}\n{}", bed.cluster.output(), bed.kubelet.troubles()))
}
