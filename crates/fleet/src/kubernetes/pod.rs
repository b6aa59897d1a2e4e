//! A machine as a pod: made from the pool's template, and read again. Pure.

use super::config::KubernetesPool;
use crate::{Instance, Wanted};
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const CLUSTER: &str = "modelless/cluster";
const POOL: &str = "modelless/pool";
const MACHINE: &str = "modelless/machine";
/// What a pod's own address is in its environment.
const ADDRESS: &str = "POD_IP";
/// What a label may say.
const LABEL: usize = 63;

/// Whose pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whose<'a> {
    /// The cluster, by a name that no other one in this Kubernetes has.
    pub(super) cluster: &'a str,
    pub(super) pool: &'a str,
}

impl Whose<'_> {
    /// What pods of ours are found by.
    pub(super) fn selector(&self) -> String {
        format!("{CLUSTER}={},{POOL}={}", label(self.cluster), label(self.pool))
    }

    /// The name of a machine's pod: always the same, so that asking twice makes one, and none that another cluster's machine has.
    pub(super) fn pod_name(&self, machine: &str) -> String {
        format!("{machine}-{}", short(self.cluster, 8))
    }

    /// Whether a pod of this name is that machine.
    pub(super) fn has(&self, pod: &Pod, machine: &str) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let says = |name: &str, value: String| labels.and_then(|all| all.get(name)) == Some(&value);
        says(CLUSTER, label(self.cluster)) && says(POOL, label(self.pool)) && says(MACHINE, label(machine))
    }
}

/// So many hexadecimal digits that follow from a text.
fn short(text: &str, digits: usize) -> String {
    let mut hex = String::new();
    for byte in Sha256::digest(text.as_bytes()).iter().take(digits.div_ceil(2)) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// A text as a label may say it: itself, or what stands for it where Kubernetes would refuse it.
fn label(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = text.len() <= LABEL && text.chars().all(plain);
    if fits && ends(text.chars().next()) && ends(text.chars().last()) {
        text.to_owned()
    } else {
        short(text, 32)
    }
}

/// The pod of a machine. What the template says stays, but for what makes the pod this machine: its name, labels, that it ends when the
/// executor does, and more arguments of the executor. `cluster` is the cluster's name as its executors have it set.
pub(super) fn pod(
    of: &KubernetesPool,
    whose: Whose<'_>,
    cluster: &str,
    wanted: &Wanted,
    template: PodTemplate,
) -> Result<Pod, String> {
    let named = &of.template;
    let no_spec = || format!("the PodTemplate `{named}` says nothing of a pod: it has no `template.spec`");
    let template = template.template.ok_or_else(no_spec)?;
    let mut spec = template.spec.ok_or_else(no_spec)?;
    let mut containers = spec.containers.iter_mut();
    let container = containers.find(|container| container.name == of.container).ok_or_else(|| {
        format!(
            "the PodTemplate `{named}` has no container `{}`; name the executor's with `container`",
            of.container
        )
    })?;
    be_machine(container, of, cluster, wanted);
    // A machine that ended has ended: whether there is to be another is for the scheduler to say.
    spec.restart_policy = Some("Never".to_owned());
    let meta = template.metadata.unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    for (name, value) in [(CLUSTER, whose.cluster), (POOL, whose.pool), (MACHINE, &wanted.name)] {
        labels.insert(name.to_owned(), label(value));
    }
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(MACHINE.to_owned(), wanted.name.clone());
    let metadata = ObjectMeta {
        name: Some(whose.pod_name(&wanted.name)),
        labels: Some(labels),
        annotations: Some(annotations),
        finalizers: meta.finalizers,
        ..ObjectMeta::default()
    };
    Ok(Pod { metadata, spec: Some(spec), status: None })
}

fn be_machine(container: &mut Container, of: &KubernetesPool, cluster: &str, wanted: &Wanted) {
    let environment = container.env.get_or_insert_with(Vec::new);
    if !environment.iter().any(|variable| variable.name == ADDRESS) {
        let field =
            ObjectFieldSelector { field_path: "status.podIP".to_owned(), ..ObjectFieldSelector::default() };
        let from = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
        let address = EnvVar { name: ADDRESS.to_owned(), value: None, value_from: Some(from) };
        // Kubernetes puts into arguments only what it knows before: first of all.
        environment.insert(0, address);
    }
    let arguments = container.args.get_or_insert_with(Vec::new);
    if arguments.is_empty() {
        arguments.push("executor".to_owned());
    }
    let port = of.port;
    let own = [
        format!("cluster={}", literal(cluster)),
        format!("listen=0.0.0.0:{port}"),
        format!("advertise=$({ADDRESS}):{port}"),
    ];
    for setting in own.into_iter().chain(wanted.settings.iter().map(|setting| literal(setting))) {
        arguments.extend(["--set".to_owned(), setting]);
    }
}

/// A text that Kubernetes leaves as it is: `$(NAME)` would be looked up in the environment.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// What a pod is as a machine; none where it has ended or is nobody's.
pub(super) fn instance(pod: &Pod) -> Option<Instance> {
    if ended(pod) {
        return None;
    }
    let said = |of: &Option<BTreeMap<String, String>>| of.as_ref()?.get(MACHINE).cloned();
    let name = said(&pod.metadata.annotations).or_else(|| said(&pod.metadata.labels))?;
    Some(Instance { id: id(pod)?, name, ending: pod.metadata.deletion_timestamp.is_some() })
}

/// Its containers ran and will not again.
pub(super) fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Its name, and what tells it from another one that may have this name later.
pub(super) fn id(pod: &Pod) -> Option<String> {
    Some(format!("{}/{}", pod.metadata.name.as_ref()?, pod.metadata.uid.as_ref()?))
}

/// What [`id`] made: name and uid.
pub(super) fn parts(id: &str) -> Option<(&str, &str)> {
    id.split_once('/').filter(|(name, uid)| !name.is_empty() && !uid.is_empty() && !uid.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const WHOSE: Whose<'static> = Whose { cluster: "blue-0123456789abcdef", pool: "cloud" };

    fn of() -> KubernetesPool {
        serde_json::from_value(json!({"template": "executor"})).unwrap()
    }

    fn template(template: &Value) -> PodTemplate {
        serde_json::from_value(json!({"metadata": {"name": "executor"}, "template": template})).unwrap()
    }

    fn wanted() -> Wanted {
        let settings = vec!["executor.name=cloud-7".to_owned(), "x=a$(b)$c".to_owned()];
        Wanted { name: "cloud-7".to_owned(), settings }
    }

    fn made(spec: &Value) -> Result<Value, String> {
        let made = pod(&of(), WHOSE, "bl$ue", &wanted(), template(spec))?;
        Ok(serde_json::to_value(made).unwrap())
    }

    #[test]
    fn a_pod_is_its_template_with_a_name_labels_and_arguments_of_its_own() {
        let made = made(&json!({
            "metadata": {"labels": {"app": "x", "modelless/pool": "stolen"}, "annotations": {"a": "b"}},
            "spec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 90, "containers": [
                {"name": "beside", "image": "y", "args": ["keep"]},
                {"name": "executor", "image": "x", "args": ["executor", "--config", "/c"], "env": [{"name": "A", "value": "1"}]},
            ]},
        }))
        .unwrap();
        let meta = &made["metadata"];
        let hash = short(WHOSE.cluster, 8);
        assert_eq!((meta["name"].as_str().unwrap(), hash.len()), (&*format!("cloud-7-{hash}"), 8));
        let labels = json!({"app": "x", "modelless/cluster": "blue-0123456789abcdef", "modelless/pool": "cloud",
                            "modelless/machine": "cloud-7"});
        assert_eq!((&meta["labels"], &meta["annotations"]["a"]), (&labels, &json!("b")));
        let spec = &made["spec"];
        assert_eq!(
            (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"]),
            (&json!("Never"), &json!(90))
        );
        assert_eq!(spec["containers"][0], json!({"name": "beside", "image": "y", "args": ["keep"]}));
        let container = &spec["containers"][1];
        let arguments = json!([
            "executor",
            "--config",
            "/c",
            "--set",
            "cluster=bl$$ue",
            "--set",
            "listen=0.0.0.0:7400",
            "--set",
            "advertise=$(POD_IP):7400",
            "--set",
            "executor.name=cloud-7",
            "--set",
            "x=a$$(b)$$c",
        ]);
        assert_eq!(container["args"], arguments);
        let address = json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
        assert_eq!(container["env"], json!([address, {"name": "A", "value": "1"}]));
    }

    #[test]
    fn a_template_that_says_nothing_of_the_executor_is_refused_by_name() {
        let why = made(&json!({"spec": {"containers": [{"name": "other"}]}})).unwrap_err();
        assert!(why.contains("`executor` has no container `executor`"), "{why}");
        assert!(made(&json!({})).unwrap_err().contains("no `template.spec`"));
        let made = made(&json!({"spec": {"containers": [{"name": "executor"}]}})).unwrap();
        assert_eq!(made["spec"]["containers"][0]["args"][0], "executor");
    }

    #[test]
    fn what_no_label_may_say_is_stood_for_by_what_one_may() {
        assert_eq!(label("blue-1.x_y"), "blue-1.x_y");
        for odd in ["", "a b", "-a", "a-", "\u{e4}", &"a".repeat(64)] {
            let stands = label(odd);
            assert!(stands.len() == 32 && stands == label(odd) && stands != label("b"), "{odd}");
        }
        let (one, other) = (WHOSE, Whose { cluster: "green", ..WHOSE });
        assert_ne!(one.pod_name("cloud-7"), other.pod_name("cloud-7"));
        assert_ne!(one.selector(), other.selector());
    }

    #[test]
    fn a_pod_that_ended_is_no_machine_and_one_that_is_deleted_is_ending() {
        let pod = |status: Value, more: Value| -> Pod {
            let mut meta =
                json!({"name": "cloud-7-abc", "uid": "u-1", "labels": {"modelless/machine": "cloud-7"}});
            meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
        };
        let running = pod(json!({"phase": "Running"}), json!({}));
        let known = instance(&running).unwrap();
        assert_eq!(
            (known.id.as_str(), known.name.as_str(), known.ending),
            ("cloud-7-abc/u-1", "cloud-7", false)
        );
        assert_eq!(parts(&known.id), Some(("cloud-7-abc", "u-1")));
        let going = pod(json!({}), json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert!(instance(&going).unwrap().ending);
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(instance(&pod(json!({"phase": phase}), json!({}))), None);
        }
        for odd in ["", "a", "a/", "/b", "a/b/c"] {
            assert_eq!(parts(odd), None, "{odd}");
        }
    }
}
