//! Where this machine stands, as far as files tell it: what an orchestrator or the machine's own start wrote down.
//!
//! Clouds tell the zone over the network only, to whoever asks their metadata service; that is not asked here. Which cloud
//! it is, firmware says, so that where no zone is found at least the reason can be told.

use serde_json::Value;
use std::fs;
use std::path::Path;

/// The label that Kubernetes gives to nodes, and newer ones to their pods.
const LABEL: &str = "topology.kubernetes.io/zone";
/// Where its documents have a pod's labels put.
const LABELS: &str = "etc/podinfo/labels";
const CLOUD_INIT: &str = "run/cloud-init/instance-data.json";
/// Names of nodes, pools and zones are labels of metrics too.
const LONGEST: usize = 63;

/// A zone and who said so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Machines that fail together have the same.
    pub name: String,
    /// For people: the file that it stands in.
    pub source: String,
}

/// What the files of this machine say. Otherwise why nothing is known, where something of it is.
pub fn zone() -> Result<Zone, Option<String>> {
    zone_in(Path::new("/"))
}

fn zone_in(root: &Path) -> Result<Zone, Option<String>> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let found = [(LABELS, labelled(&read(LABELS))), (CLOUD_INIT, initial(&read(CLOUD_INIT)))];
    for (path, name) in found {
        if let Some(name) = name.filter(|name| is_name(name)) {
            return Ok(Zone { name, source: format!("/{path}") });
        }
    }
    let firmware = |name: &str| read(&format!("sys/class/dmi/id/{name}")).trim().to_owned();
    let cloud = cloud([firmware("sys_vendor"), firmware("product_name"), firmware("chassis_asset_tag")]);
    Err(cloud.map(|cloud| {
        format!(
            "this is a machine of {cloud}, which tells its zone over the network only; give it with --zone"
        )
    }))
}

/// `KEY="VALUE"` a line, as Kubernetes writes a pod's labels into a file.
fn labelled(labels: &str) -> Option<String> {
    let pairs = labels.lines().filter_map(|line| line.split_once('='));
    let mut values = pairs.filter(|(key, _)| key.trim() == LABEL).map(|(_, value)| value);
    Some(values.next()?.trim().trim_matches('"').to_owned())
}

/// What cloud-init found when the machine started.
fn initial(json: &str) -> Option<String> {
    let data: Value = serde_json::from_str(json).ok()?;
    let zone = ["availability_zone", "availability-zone"].iter().find_map(|key| data["v1"][key].as_str());
    zone.map(str::to_owned)
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= LONGEST && name.bytes().all(allowed)
}

/// By vendor, product and asset tag, as clouds set them for their machines.
fn cloud([vendor, product, tag]: [String; 3]) -> Option<&'static str> {
    const AZURE_TAG: &str = "7783-7084-3265-9085-8269-3286-77";
    if vendor.starts_with("Amazon EC2") || vendor == "Amazon" {
        Some("Amazon EC2")
    } else if product == "Google Compute Engine" {
        Some("Google Compute Engine")
    } else if vendor == "Microsoft Corporation" && tag == AZURE_TAG {
        Some("Microsoft Azure")
    } else if vendor == "DigitalOcean" {
        Some("DigitalOcean")
    } else if vendor == "Hetzner" {
        Some("Hetzner")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::put;
    use super::*;

    #[test]
    fn a_zone_is_what_the_orchestrator_says_or_else_what_the_machine_found_when_it_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert_eq!(zone_in(root), Err(None), "nothing is known");
        put(root, "sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
        let why = zone_in(root).expect_err("no zone").expect("a reason");
        assert!(why.contains("Amazon EC2") && why.contains("--zone"), "{why}");
        put(root, CLOUD_INIT, r#"{"v1": {"availability_zone": "eu-1a", "region": "eu-1"}}"#);
        let found = zone_in(root).expect("a zone");
        assert_eq!(
            (found.name.as_str(), found.source.as_str()),
            ("eu-1a", "/run/cloud-init/instance-data.json")
        );
        put(
            root,
            LABELS,
            "app=\"x\"\ntopology.kubernetes.io/region=\"eu\"\ntopology.kubernetes.io/zone=\"eu-2b\"\n",
        );
        assert_eq!(zone_in(root).expect("a zone").name, "eu-2b");
    }

    #[test]
    fn what_cannot_be_a_zone_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        for zone in ["", "a zone", "eu/1", &"z".repeat(64)] {
            put(folder.path(), LABELS, &format!("topology.kubernetes.io/zone=\"{zone}\"\n"));
            assert_eq!(zone_in(folder.path()), Err(None), "{zone:?}");
        }
        put(folder.path(), CLOUD_INIT, r#"{"v1": {"availability_zone": null}}"#);
        assert_eq!(zone_in(folder.path()), Err(None));
        put(folder.path(), CLOUD_INIT, "{");
        assert_eq!(zone_in(folder.path()), Err(None));
    }

    #[test]
    fn clouds_are_known_by_their_firmware() {
        let of = |vendor: &str, product: &str, tag: &str| cloud([vendor, product, tag].map(str::to_owned));
        assert_eq!(of("Google", "Google Compute Engine", ""), Some("Google Compute Engine"));
        let tag = "7783-7084-3265-9085-8269-3286-77";
        assert_eq!(of("Microsoft Corporation", "Virtual Machine", tag), Some("Microsoft Azure"));
        assert_eq!(of("Microsoft Corporation", "Virtual Machine", ""), None, "Hyper-V is no cloud");
        assert_eq!(of("LENOVO", "20XW", ""), None);
    }
}
