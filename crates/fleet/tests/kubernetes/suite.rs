//! The provider `kubernetes`: against an API server where one is named, else against what stands for one, which checks all that it is
//! sent by the schemas that Kubernetes publishes. Nobody runs the pods, so a test is the kubelet.

use super::{Place, block, gone, holds, names, soon, wanted};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplate, ResourceQuota};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Client, Config, Resource};
use modelless_fleet::{Error, Fleet as _, Instance, Kubernetes, KubernetesConfig, KubernetesPool};
use modelless_testkit::Proxy;
use modelless_testkit::kubernetes::StandIn;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// What the provider leaves of pods that ended.
const LEFT: usize = 10;
/// The account of the manifests in `deploy/kubernetes`.
const ACCOUNT: &str = "modelless-scheduler";

/// A namespace of its own, and a way to its API server that can be cut.
struct Cloud {
    stand_in: Option<StandIn>,
    kubeconfig: Value,
    /// As whoever may do everything, not by that way.
    client: Client,
    proxy: Proxy,
    namespace: String,
    folder: TempDir,
}

fn manifests(file: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes").join(file);
    let text = fs::read_to_string(path).expect("a manifest");
    let parts = text.split("\n---\n");
    parts.map(|part| serde_saphyr::from_str(part).expect("YAML")).collect()
}

fn template() -> Value {
    manifests("executor.yaml").remove(0)
}

impl Cloud {
    /// A real one where `MODELLESS_TEST_KUBECONFIG` names one.
    fn new() -> Self {
        match std::env::var_os("MODELLESS_TEST_KUBECONFIG") {
            Some(path) => {
                let read = Kubeconfig::read_from(path).expect("a kubeconfig");
                Self::of(serde_json::to_value(read).expect("JSON"), None)
            }
            None => Self::stand_in(),
        }
    }

    fn stand_in() -> Self {
        let stand_in = StandIn::start().expect("what stands for Kubernetes");
        Self::of(stand_in.kubeconfig(), Some(stand_in))
    }

    fn of(kubeconfig: Value, stand_in: Option<StandIn>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("modelless-{}-{number}", std::process::id());
        let read: Kubeconfig = serde_json::from_value(kubeconfig.clone()).expect("a kubeconfig");
        let client = block(async {
            let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .expect("a kubeconfig");
            config.default_namespace.clone_from(&namespace);
            Client::try_from(config).expect("a client")
        });
        let proxy = Proxy::start().expect("a wire");
        let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str().expect("an address");
        let place = server.split_once("://").expect("an address").1;
        proxy.lead(place.parse::<SocketAddr>().expect("an address of this machine"));
        let folder = tempfile::tempdir().expect("a folder to write to");
        let cloud = Self { stand_in, kubeconfig, client, proxy, namespace, folder };
        let namespace = json!({"metadata": {"name": cloud.namespace}});
        let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
        block(Api::all(cloud.client.clone()).create(&PostParams::default(), &namespace)).expect("it is made");
        cloud.make::<PodTemplate>(&template());
        cloud
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::default_namespaced(self.client.clone())
    }

    fn make<K>(&self, object: &Value)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug
            + Serialize,
    {
        let object: K = serde_json::from_value(object.clone()).expect("an object of this kind");
        block(self.api::<K>().create(&PostParams::default(), &object)).expect("it is made");
    }

    /// A pool as its file says it, reached by the way that can be cut, as somebody else if that is asked for.
    fn pool(&self, cluster: &str, pool: &str, more: &Value, user: Option<&str>) -> Kubernetes {
        let mut kubeconfig = self.kubeconfig.clone();
        let address = self.proxy.address();
        let of = &mut kubeconfig["clusters"][0]["cluster"]["server"];
        let scheme = of.as_str().and_then(|of| of.split_once("://")).expect("an address").0.to_owned();
        *of = json!(format!("{scheme}://{address}"));
        if let Some(user) = user {
            kubeconfig["users"][0]["user"]["as"] = json!(user);
        }
        let path =
            self.folder.path().join(format!("{}.kubeconfig", user.unwrap_or("admin").replace(':', "-")));
        fs::write(&path, kubeconfig.to_string()).expect("a folder to write to");
        let mut of =
            json!({"template": "modelless-executor", "kubeconfig": path, "namespace": self.namespace});
        of.as_object_mut().expect("a table").extend(more.as_object().expect("a table").clone());
        let of: KubernetesPool = serde_json::from_value(of).expect("a pool");
        of.check(pool).expect("a pool that can be");
        let (cluster, named) = (cluster.to_owned(), "c".to_owned());
        Kubernetes::new(KubernetesConfig { cluster, pool: pool.to_owned(), of, named })
    }

    fn usual(&self) -> Kubernetes {
        self.pool("c", "p", &json!({}), None)
    }

    /// All pods, whatever became of them.
    fn pods(&self) -> BTreeMap<String, Pod> {
        let mut all = BTreeMap::new();
        let mut asked = ListParams::default();
        loop {
            let page = block(self.api::<Pod>().list(&asked)).expect("it works");
            all.extend(page.items.into_iter().map(|pod| (pod.metadata.name.clone().expect("a name"), pod)));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => asked = asked.continue_token(&next),
                None => return all,
            }
        }
    }

    /// A kubelet takes a pod up.
    fn runs(&self, pod: &str) {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": "n"}});
        let pods = self.api::<Pod>();
        let bound: Result<Value, _> =
            block(pods.create_subresource("binding", pod, &PostParams::default(), &binding));
        bound.expect("it is bound");
        self.says(pod, "Running");
    }

    /// A kubelet says so of a pod.
    fn says(&self, pod: &str, phase: &str) {
        let status = json!({"status": {"phase": phase}});
        block(self.api::<Pod>().patch_status(pod, &PatchParams::default(), &Patch::Merge(&status)))
            .expect("it is said");
    }
}

impl Place for Cloud {
    type Of = Kubernetes;
    fn open(&self, cluster: &str, pool: &str) -> Kubernetes {
        self.pool(cluster, pool, &json!({}), None)
    }
}

fn start(fleet: &Kubernetes, name: &str) -> Result<Instance, Error> {
    block(fleet.start(&wanted(name)))
}

fn pod_of(instance: &Instance) -> &str {
    instance.id.split_once('/').expect("a name and a uid").0
}

#[test]
fn kubernetes_holds_what_every_provider_holds() {
    holds(&Cloud::new());
}

#[test]
fn kubernetes_makes_a_pod_of_the_template_with_the_machines_name_and_settings() {
    let cloud = Cloud::new();
    let made = start(&cloud.usual(), "p-1").expect("it starts");
    let pods = cloud.pods();
    let pod = serde_json::to_value(&pods[pod_of(&made)]).expect("JSON");
    let (labels, spec) = (&pod["metadata"]["labels"], &pod["spec"]);
    assert_eq!((&labels["modelless/machine"], &labels["app"]), (&json!("p-1"), &json!("modelless-executor")));
    let container = &spec["containers"][0];
    let arguments = json!([
        "executor",
        "--set",
        "key_file=/etc/modelless/key/cluster.key",
        "--set",
        "cluster=c",
        "--set",
        "listen=0.0.0.0:7400",
        "--set",
        "advertise=$(POD_IP):7400",
        "--set",
        "executor.name=p-1",
    ]);
    assert_eq!(container["args"], arguments);
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
    assert_eq!(
        (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"]),
        (&json!("Never"), &json!(90))
    );
}

#[test]
fn kubernetes_pods_that_ended_are_no_machines_and_the_last_ones_are_left() {
    let cloud = Cloud::new();
    let fleet = cloud.usual();
    let all: Vec<Instance> =
        (0..LEFT + 3).map(|n| start(&fleet, &format!("p-{n}")).expect("it starts")).collect();
    for (number, instance) in all.iter().enumerate() {
        cloud.runs(pod_of(instance));
        cloud.says(pod_of(instance), if number % 2 == 0 { "Succeeded" } else { "Failed" });
    }
    let stays = start(&fleet, "p-100").expect("it starts");
    assert_eq!(names(&fleet), ["p-100"]);
    soon("too many are left", || {
        assert_eq!(names(&fleet), ["p-100"]);
        cloud.pods().len() == LEFT + 1
    });
    assert!(cloud.pods().contains_key(pod_of(&stays)), "one that has not ended is left alone");
    let last = format!("p-{}", LEFT + 2);
    if cloud.pods().contains_key(pod_of(&all[LEFT + 2])) {
        let error = start(&fleet, &last).expect_err("its pod has ended");
        assert!(matches!(&error, Error::Refused(why) if why.contains("has ended already")), "{error}");
    }
}

#[test]
fn kubernetes_says_of_a_pod_that_is_evicted_that_it_is_ending_until_its_kubelet_is_done() {
    let cloud = Cloud::new();
    let fleet = cloud.usual();
    let one = start(&fleet, "p-1").expect("it starts");
    cloud.runs(pod_of(&one));
    block(cloud.api::<Pod>().delete(pod_of(&one), &DeleteParams::default())).expect("it is told to go");
    assert_eq!(block(fleet.list()).expect("it works"), [Instance { ending: true, ..one.clone() }]);
    assert!(start(&fleet, "p-1").expect("it is there").ending);
    block(fleet.stop(&one.id)).expect("asking again does no harm");
    block(cloud.api::<Pod>().delete(pod_of(&one), &DeleteParams::default().grace_period(0)))
        .expect("it is done");
    assert!(names(&fleet).is_empty());
}

#[test]
fn kubernetes_does_not_take_away_a_pod_that_has_the_name_of_another() {
    let cloud = Cloud::new();
    let fleet = cloud.usual();
    let one = start(&fleet, "p-1").expect("it starts");
    gone(&fleet, &one);
    let other = start(&fleet, "p-1").expect("it starts");
    assert_eq!((pod_of(&one), one.id == other.id), (pod_of(&other), false));
    block(fleet.stop(&one.id)).expect("it is gone already");
    assert_eq!(names(&fleet), ["p-1"]);
    let error = block(fleet.stop("p-1")).expect_err("it has no uid");
    assert!(matches!(&error, Error::Refused(why) if why.contains("uid")), "{error}");
    // A pod that somebody else made.
    block(cloud.api::<Pod>().delete(pod_of(&other), &DeleteParams::default())).expect("it is deleted");
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_of(&other)}});
    pod["spec"] = template()["template"]["spec"].clone();
    cloud.make::<Pod>(&pod);
    let error = start(&fleet, "p-1").expect_err("its name is taken");
    assert!(matches!(&error, Error::Refused(why) if why.contains("not this cluster's")), "{error}");
    assert!(names(&fleet).is_empty() && cloud.pods().len() == 1);
}

#[test]
fn kubernetes_says_that_a_quota_is_used_up_and_has_room_again_later() {
    let cloud = Cloud::new();
    let fleet = cloud.usual();
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}});
    cloud.make::<ResourceQuota>(&quota);
    // What counts it is a controller, which is not here.
    let status = |used: &str| json!({"status": {"hard": {"pods": "1"}, "used": {"pods": used}}});
    let count = |used: &str| {
        let quotas = cloud.api::<ResourceQuota>();
        block(quotas.patch_status("few", &PatchParams::default(), &Patch::Merge(&status(used))))
            .expect("it counts");
    };
    count("0");
    let one = start(&fleet, "p-1").expect("there is room");
    soon("the quota is not seen", || match start(&fleet, "p-2") {
        Err(Error::Quota(why)) => why.contains("limited: pods=1"),
        Ok(more) => {
            gone(&fleet, &more);
            count("1");
            false
        }
        Err(other) => panic!("{other}"),
    });
    assert_eq!(names(&fleet), ["p-1"]);
    gone(&fleet, &one);
    count("0");
    soon("there is no room again", || start(&fleet, "p-2").is_ok());
}

#[test]
fn kubernetes_refuses_by_name_what_it_will_not_do() {
    let cloud = Cloud::new();
    let refused = |more: Value| start(&cloud.pool("c", "p", &more, None), "p-1").expect_err("it is refused");
    let absent = refused(json!({"template": "another"}));
    assert!(matches!(&absent, Error::Refused(why) if why.contains("no PodTemplate `another`")), "{absent}");
    let container = refused(json!({"container": "other"}));
    assert!(matches!(&container, Error::Refused(why) if why.contains("no container `other`")), "{container}");
    let context = refused(json!({"context": "nowhere"}));
    assert!(matches!(&context, Error::Refused(why) if why.contains("kubeconfig")), "{context}");
    let missing = refused(json!({"kubeconfig": "/nowhere/kubeconfig"}));
    assert!(matches!(&missing, Error::Refused(why) if why.contains("/nowhere/kubeconfig")), "{missing}");
    let error = start(&cloud.usual(), &"p".repeat(260)).expect_err("no pod has such a name");
    assert!(matches!(&error, Error::Refused(why) if why.contains("422 Invalid")), "{error}");
    assert!(cloud.pods().is_empty());
}

#[test]
fn kubernetes_lets_a_scheduler_do_what_the_shipped_role_says_and_nothing_without_it() {
    let cloud = Cloud::new();
    let account = format!("system:serviceaccount:{}:{ACCOUNT}", cloud.namespace);
    let fleet = cloud.pool("c", "p", &json!({}), Some(&account));
    let error = block(fleet.list()).expect_err("it may not");
    assert!(
        matches!(&error, Error::Refused(why) if why.contains("cannot list resource \"pods\"")),
        "{error}"
    );
    for mut object in manifests("scheduler.yaml") {
        match object["kind"].as_str() {
            Some("Role") => cloud.make::<Role>(&object),
            Some("RoleBinding") => {
                object["subjects"][0]["namespace"] = json!(cloud.namespace);
                cloud.make::<RoleBinding>(&object);
            }
            _ => {}
        }
    }
    soon("it may not yet", || block(fleet.list()).is_ok());
    let one = start(&fleet, "p-1").expect("it may");
    assert_eq!(start(&fleet, "p-1").expect("it is there").id, one.id);
    gone(&fleet, &one);
}

#[test]
fn kubernetes_that_cannot_be_reached_is_away_and_everything_is_found_again() {
    let cloud = Cloud::new();
    let fleet = cloud.usual();
    let one = start(&fleet, "p-1").expect("it starts");
    cloud.proxy.sever();
    for error in [
        block(fleet.list()).expect_err("it is away"),
        start(&fleet, "p-2").expect_err("it is away"),
        block(fleet.stop(&one.id)).expect_err("it is away"),
    ] {
        assert!(matches!(&error, Error::Away(why) if why.contains("asking Kubernetes")), "{error}");
    }
    cloud.proxy.mend();
    assert_eq!(block(fleet.list()).expect("it is back"), [one]);
}

#[test]
fn stand_in_for_kubernetes_has_troubles_that_pass_and_each_is_named() {
    let cloud = Cloud::stand_in();
    let fleet = cloud.usual();
    let faults = |of: Value| cloud.stand_in.as_ref().expect("one").faults(&of).expect("it is ordered");
    // Twice, as the template is read first.
    let trouble = |of: &str| {
        faults(json!({of: 1}));
        block(fleet.list()).expect_err("it is in trouble")
    };
    let throttled = trouble("throttle");
    assert!(matches!(&throttled, Error::Throttled(why) if why.contains("429")), "{throttled}");
    let conflict = trouble("conflict");
    assert!(matches!(&conflict, Error::Throttled(why) if why.contains("resourcequotas")), "{conflict}");
    let failing = trouble("fail");
    assert!(matches!(&failing, Error::Away(why) if why.contains("etcd is away")), "{failing}");
    let between = trouble("html");
    assert!(matches!(&between, Error::Away(why) if why.contains("502")), "{between}");
    assert!(names(&fleet).is_empty(), "it has passed");
    // Done, and nobody hears of it.
    faults(json!({"lose": 1}));
    let error = start(&fleet, "p-1").expect_err("no answer comes");
    assert!(matches!(error, Error::Away(_)), "{error}");
    assert_eq!(names(&fleet), ["p-1"]);
    let found = start(&fleet, "p-1").expect("it is there");
    assert_eq!(cloud.pods().len(), 1, "the same one, and no second: {found:?}");
}

#[test]
fn stand_in_for_kubernetes_refuses_what_the_schemas_do_not_know() {
    let cloud = Cloud::stand_in();
    let mut odd = template();
    odd["metadata"]["name"] = json!("odd");
    odd["template"]["spec"]["containers"][0]["arguments"] = json!([]);
    let bytes = serde_json::to_vec(&odd).expect("JSON");
    let url = format!("/api/v1/namespaces/{}/podtemplates", cloud.namespace);
    let request =
        http::Request::post(url).header("content-type", "application/json").body(bytes).expect("a request");
    let error = block(cloud.client.request::<Value>(request)).expect_err("it is refused");
    assert!(error.to_string().contains("arguments"), "{error}");
}

#[test]
fn stand_in_for_kubernetes_takes_every_manifest_that_is_shipped() {
    let stand_in = StandIn::start().expect("what stands for Kubernetes");
    let mut kinds = Vec::new();
    for file in ["executor.yaml", "gateway.yaml", "scheduler.yaml"] {
        for object in manifests(file) {
            let checked = stand_in.ask("PUT", "/check", Some(&object));
            assert_eq!(checked.expect(file)["checked"], "1.37", "{object}");
            kinds.push(object["kind"].as_str().expect("a kind").to_owned());
        }
    }
    kinds.sort_unstable();
    let all = [
        "ConfigMap",
        "Deployment",
        "Deployment",
        "PodTemplate",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ];
    assert_eq!(kinds, all);
    let odd = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"port": 80}});
    assert!(stand_in.ask("PUT", "/check", Some(&odd)).is_err());
    // The pools that are shipped can be.
    let pools =
        manifests("scheduler.yaml").into_iter().find(|object| object["kind"] == "ConfigMap").expect("one");
    let pools = pools["data"]["pools.toml"].as_str().expect("a file");
    assert!(pools.contains(&format!("template = {}", template()["metadata"]["name"])), "{pools}");
}
