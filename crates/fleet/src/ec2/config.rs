//! What is set for a pool whose machines are EC2's.

use super::http::Server;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Types and subnets that are tried, one after the other.
const TRIED: usize = 40;

/// A pool of EC2's machines, as its file says it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ec2Pool {
    /// Such as `eu-central-1`.
    pub region: String,
    /// Where EC2 of this region is asked, where it is not the usual place.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Certificates of the authorities that this endpoint's may come from, in PEM; those that this machine believes otherwise.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Types of machines, the best first: where one is not to be had, the next is asked for.
    pub types: Vec<String>,
    /// The image, where no template says it.
    #[serde(default)]
    pub image: Option<String>,
    /// A launch template: its id (`lt-...`) or its name.
    #[serde(default)]
    pub template: Option<String>,
    /// Its version, where it is not its default one.
    #[serde(default)]
    pub template_version: Option<String>,
    /// Where machines may be, the best first.
    #[serde(default)]
    pub subnets: Vec<String>,
    /// By their ids.
    #[serde(default)]
    pub security_groups: Vec<String>,
    /// The name of a pair of keys, for whoever wants to log in.
    #[serde(default)]
    pub key: Option<String>,
    /// The name or ARN of the instance profile, for what machines may do themselves.
    #[serde(default)]
    pub instance_profile: Option<String>,
    /// Whether machines may be such as EC2 takes back when it needs them.
    #[serde(default)]
    pub spot: Spot,
    /// More tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// A file with keys as AWS's own tools have it. Otherwise the environment's are taken, else those that EC2 gives the machine that
    /// this runs on.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Which of the file's keys.
    #[serde(default = "usual_profile")]
    pub profile: String,
    /// Where this machine asks for what it is, where it is not the usual place.
    #[serde(default = "usual_metadata")]
    pub metadata: String,
    /// How often EC2 is asked what there is.
    #[serde(default = "list_every")]
    pub list_every_s: f64,
    /// What a machine does when it has started.
    #[serde(default)]
    pub join: Join,
}

/// Machines that EC2 takes back when it needs them, for less.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spot {
    /// None.
    #[default]
    Never,
    /// Such first; where there are none, others.
    First,
    /// No others.
    Only,
}

/// How a machine becomes a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Join {
    /// Where `modelless` is on the machine.
    pub program: String,
    /// Where the machine fetches it, if the image has it not.
    pub fetch: Option<String>,
    /// What has to be fetched, by its SHA-256.
    pub fetch_sha256: Option<String>,
    /// A shell script on the scheduler's machine, which each new machine runs first.
    pub setup: Option<PathBuf>,
    /// Where gateways connect.
    pub port: u16,
    /// The cluster's key, a file on the machine.
    pub key_file: String,
    /// Addresses of database and Redis, a file on the machine with lines such as `MODELLESS_DATABASE='postgres://...'`.
    pub environment_file: String,
    /// Where these two files come from.
    pub secrets: Secrets,
    /// Where machines ask for what they are and whether they have to go.
    pub metadata: String,
}

/// Where a machine's secrets come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Secrets {
    /// The image has them, or `setup` fetches them.
    #[default]
    Machine,
    /// The user data has them: whoever may read that, reads them.
    UserData,
}

impl Default for Join {
    fn default() -> Self {
        Self {
            program: "/usr/local/bin/modelless".to_owned(),
            fetch: None,
            fetch_sha256: None,
            setup: None,
            port: 7400,
            key_file: "/etc/modelless/cluster.key".to_owned(),
            environment_file: "/etc/modelless/environment".to_owned(),
            secrets: Secrets::Machine,
            metadata: usual_metadata(),
        }
    }
}

fn usual_profile() -> String {
    "default".to_owned()
}
fn usual_metadata() -> String {
    "http://169.254.169.254".to_owned()
}
fn list_every() -> f64 {
    5.0
}

impl Ec2Pool {
    /// Refuses what cannot be done.
    pub fn check(&self) -> Result<(), String> {
        let plain = |text: &String| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
        if self.region.is_empty() || !plain(&self.region) {
            return Err(format!("`region` is {:?}; expected something like eu-central-1", self.region));
        }
        if self.types.is_empty() || !self.types.iter().all(|kind| !kind.is_empty() && plain(kind)) {
            return Err(
                "`types` names no types of machines; expected something like [\"c6i.large\"]".to_owned()
            );
        }
        if self.attempts().count() > TRIED {
            return Err(format!(
                "`types` and `subnets` make more than {TRIED} tries for one machine; name fewer"
            ));
        }
        if self.image.is_none() && self.template.is_none() {
            return Err("say what machines start from, in `image` (ami-...) or `template`".to_owned());
        }
        if self.template_version.is_some() && self.template.is_none() {
            return Err("`template-version` is given without a `template`".to_owned());
        }
        if let Some(tag) = self.tags.keys().find(|tag| tag.starts_with(super::TAGS) || *tag == "Name") {
            return Err(format!("the tag `{tag}` is set by modelless itself; take another name"));
        }
        if !(self.list_every_s >= 0.0 && self.list_every_s <= 3_600.0) {
            return Err(format!(
                "`list-every-s` is {}; expected seconds, an hour at most",
                self.list_every_s
            ));
        }
        self.join.check()?;
        Server::parse(&self.metadata).map_err(|why| format!("`metadata`: {why}"))?;
        self.server().map(drop)
    }

    /// Where EC2 is asked.
    pub(super) fn server(&self) -> Result<Server, String> {
        let domain = if self.region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let usual = || format!("https://ec2.{}.{domain}", self.region);
        let url = self.endpoint.clone().unwrap_or_else(usual);
        Server::parse(&url).map_err(|why| format!("`endpoint`: {why}"))
    }

    /// What is tried for one machine, in this order.
    pub(super) fn attempts(&self) -> impl Iterator<Item = Attempt<'_>> {
        let markets: &[bool] = match self.spot {
            Spot::Never => &[false],
            Spot::First => &[true, false],
            Spot::Only => &[true],
        };
        markets.iter().flat_map(move |spot| {
            self.types.iter().flat_map(move |kind| {
                let subnets = self.subnets.iter().map(|subnet| Some(subnet.as_str()));
                let none = self.subnets.is_empty().then_some(None);
                subnets.chain(none).map(move |subnet| Attempt { kind, subnet, spot: *spot })
            })
        })
    }
}

/// One type in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) kind: &'a str,
    pub(super) subnet: Option<&'a str>,
    pub(super) spot: bool,
}

impl std::fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind)?;
        if let Some(subnet) = self.subnet {
            write!(f, " in {subnet}")?;
        }
        if self.spot { f.write_str(" (spot)") } else { Ok(()) }
    }
}

impl Join {
    fn check(&self) -> Result<(), String> {
        for (name, path) in [
            ("program", &self.program),
            ("key-file", &self.key_file),
            ("environment-file", &self.environment_file),
        ] {
            if !path.starts_with('/') || path.chars().any(char::is_control) {
                return Err(format!("`join.{name}` is {path:?}; expected a whole path on the machine"));
            }
        }
        let hex = |text: &String| text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit());
        if self.fetch.is_some() != self.fetch_sha256.as_ref().is_some_and(hex) {
            return Err(
                "`join.fetch` and `join.fetch-sha256` go together: an address, and 64 hexadecimal digits"
                    .to_owned(),
            );
        }
        Server::parse(&self.metadata).map(drop).map_err(|why| format!("`join.metadata`: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(more: &serde_json::Value) -> Result<Ec2Pool, String> {
        let mut all = serde_json::json!({"region": "eu-central-1", "types": ["c6i.large"], "image": "ami-1"});
        let (Some(all_of), Some(more)) = (all.as_object_mut(), more.as_object()) else { unreachable!() };
        all_of.extend(more.clone());
        let pool: Ec2Pool = serde_json::from_value(all).map_err(|error| error.to_string())?;
        pool.check().map(|()| pool)
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_what_was_expected() {
        assert_eq!(
            pool(&serde_json::json!({})).unwrap().server().unwrap().named(),
            "ec2.eu-central-1.amazonaws.com"
        );
        let digits = "a".repeat(64);
        let fetched = serde_json::json!({"join": {"fetch": "https://a/b", "fetch-sha256": digits}});
        assert!(pool(&fetched).is_ok());
        for (wrong, told) in [
            (serde_json::json!({"region": "eu central"}), "`region`"),
            (serde_json::json!({"region": ""}), "`region`"),
            (serde_json::json!({"types": []}), "`types` names no types"),
            (serde_json::json!({"image": null}), "`image`"),
            (serde_json::json!({"template-version": "3"}), "without a `template`"),
            (serde_json::json!({"endpoint": "localhost:5000"}), "`endpoint`"),
            (serde_json::json!({"metadata": "nowhere"}), "`metadata`"),
            (serde_json::json!({"tags": {"modelless:pool": "x"}}), "set by modelless itself"),
            (serde_json::json!({"types": vec!["c6i.large"; 21], "spot": "first"}), "more than 40 tries"),
            (serde_json::json!({"spot": "sometimes"}), "sometimes"),
            (serde_json::json!({"list-every-s": -1.0}), "`list-every-s`"),
            (serde_json::json!({"join": {"program": "modelless"}}), "`join.program`"),
            (serde_json::json!({"join": {"fetch": "https://a/b"}}), "go together"),
            (serde_json::json!({"instance_type": "x"}), "unknown field"),
        ] {
            let why = pool(&wrong).unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn types_are_tried_in_their_order_in_every_subnet_and_spot_before_others() {
        let tried = |more: serde_json::Value| {
            pool(&more).unwrap().attempts().map(|attempt| attempt.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            tried(serde_json::json!({"types": ["a", "b"], "subnets": ["s", "t"]})),
            ["a in s", "a in t", "b in s", "b in t"]
        );
        assert_eq!(tried(serde_json::json!({"spot": "first"})), ["c6i.large (spot)", "c6i.large"]);
        assert_eq!(tried(serde_json::json!({"spot": "only"})), ["c6i.large (spot)"]);
    }
}
