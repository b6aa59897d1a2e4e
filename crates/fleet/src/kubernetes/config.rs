//! What is set for a pool whose machines are pods.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A pool of pods, as its file says it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesPool {
    /// The `PodTemplate` that its pods are made from, by its name.
    pub template: String,
    /// Which of the template's containers is the executor.
    #[serde(default = "container")]
    pub container: String,
    /// Where template and pods are, where it is not the namespace of the kubeconfig's context or of the scheduler's own pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A kubeconfig. Without one this is a pod of the same Kubernetes, and what its service account may do is what it may.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Which of its contexts, where it is not the current one.
    #[serde(default)]
    pub context: Option<String>,
    /// Where gateways connect to a pod.
    #[serde(default = "port")]
    pub port: u16,
    /// How often Kubernetes is asked what there is.
    #[serde(default = "list_every")]
    pub list_every_s: f64,
}

fn container() -> String {
    "executor".to_owned()
}
fn port() -> u16 {
    7400
}
fn list_every() -> f64 {
    5.0
}

/// A name of an object in Kubernetes: part of an address, so nothing else may pass.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 253 && text.chars().all(plain) && ends(text.chars().next()) && ends(text.chars().last())
}

impl KubernetesPool {
    /// Refuses what cannot be done for a pool of this name.
    pub fn check(&self, pool: &str) -> Result<(), String> {
        let names = [("template", Some(&self.template)), ("container", Some(&self.container))];
        let names = names.into_iter().chain([("namespace", self.namespace.as_ref())]);
        for (setting, name) in names {
            if let Some(wrong) = name.filter(|name| !is_name(name)) {
                return Err(format!(
                    "`{setting}` is {wrong:?}; expected a name of Kubernetes: lower-case letters, digits, `-` and `.`"
                ));
            }
        }
        // It stands in labels and in the names of pods.
        if !is_name(pool) {
            return Err("a pool of pods has a name that begins and ends with a letter or a digit".to_owned());
        }
        if self.context.is_some() && self.kubeconfig.is_none() {
            return Err("`context` is given without a `kubeconfig`".to_owned());
        }
        if self.port == 0 {
            return Err("`port` is 0; expected the port where gateways connect, such as 7400".to_owned());
        }
        if !(self.list_every_s >= 0.0 && self.list_every_s <= 3_600.0) {
            return Err(format!(
                "`list-every-s` is {}; expected seconds, an hour at most",
                self.list_every_s
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_is_refused_with_what_was_expected() {
        let usual: KubernetesPool = serde_json::from_str(r#"{"template": "executor"}"#).unwrap();
        assert_eq!((usual.check("cloud"), usual.port), (Ok(()), 7400));
        let name = "a name of Kubernetes";
        for (wrong, told) in [
            (KubernetesPool { template: "a/b".into(), ..usual.clone() }, name),
            (KubernetesPool { template: String::new(), ..usual.clone() }, name),
            (KubernetesPool { container: "A".into(), ..usual.clone() }, "`container` is \"A\""),
            (KubernetesPool { namespace: Some("..".into()), ..usual.clone() }, name),
            (KubernetesPool { context: Some("there".into()), ..usual.clone() }, "without a `kubeconfig`"),
            (KubernetesPool { port: 0, ..usual.clone() }, "`port` is 0"),
            (KubernetesPool { list_every_s: f64::NAN, ..usual.clone() }, "`list-every-s` is NaN"),
        ] {
            let why = wrong.check("cloud").unwrap_err();
            assert!(why.contains(told), "{why}");
        }
        assert!(usual.check("cloud-").unwrap_err().contains("begins and ends"));
    }
}
