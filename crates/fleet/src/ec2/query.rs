//! What EC2 is asked, as parameters, and what of its answers is of use. Pure.

use super::config::{Attempt, Ec2Pool};
use super::sign::hex;
use super::xml::Element;
use super::{CLUSTER, MACHINE, POOL};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// The form of requests and answers.
const VERSION: &str = "2016-11-15";
/// In one part of a list.
const PAGE: &str = "500";
/// All but `terminated`.
const STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

pub(super) type Parameters = Vec<(String, String)>;

/// Whose machines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whose<'a> {
    pub(super) cluster: &'a str,
    pub(super) pool: &'a str,
}

/// A machine as EC2 tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) id: String,
    /// The name that it was started by; none for one that was not started here.
    pub(super) name: Option<String>,
    pub(super) state: String,
    pub(super) launched: String,
}

impl Found {
    /// On its way out, or standing still, which no machine of a pool should.
    pub(super) fn ending(&self) -> bool {
        !matches!(self.state.as_str(), "pending" | "running")
    }
}

fn begin(action: &str) -> Parameters {
    vec![("Action".to_owned(), action.to_owned()), ("Version".to_owned(), VERSION.to_owned())]
}

/// Starts one machine. A repeated request is the same machine, by its token.
pub(super) fn run(
    of: &Ec2Pool,
    whose: Whose<'_>,
    name: &str,
    attempt: Attempt<'_>,
    user_data: &str,
) -> Parameters {
    let mut all = begin("RunInstances");
    let mut add = |name: &str, value: &str| all.push((name.to_owned(), value.to_owned()));
    add("MinCount", "1");
    add("MaxCount", "1");
    add("ClientToken", &token(whose, name, attempt));
    add("InstanceType", attempt.kind);
    if let Some(image) = &of.image {
        add("ImageId", image);
    }
    if let Some(template) = &of.template {
        let by = if template.starts_with("lt-") { "Id" } else { "Name" };
        add(&format!("LaunchTemplate.LaunchTemplate{by}"), template);
        add("LaunchTemplate.Version", of.template_version.as_deref().unwrap_or("$Default"));
    }
    if let Some(subnet) = attempt.subnet {
        add("SubnetId", subnet);
    }
    for (at, group) in of.security_groups.iter().enumerate() {
        add(&format!("SecurityGroupId.{}", at + 1), group);
    }
    if let Some(key) = &of.key {
        add("KeyName", key);
    }
    if let Some(profile) = &of.instance_profile {
        let by = if profile.starts_with("arn:") { "Arn" } else { "Name" };
        add(&format!("IamInstanceProfile.{by}"), profile);
    }
    if attempt.spot {
        add("InstanceMarketOptions.MarketType", "spot");
        add("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time");
        add("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate");
    }
    // A machine whose node has ended shuts itself down, and costs nothing from then on.
    add("InstanceInitiatedShutdownBehavior", "terminate");
    add("MetadataOptions.HttpTokens", "required");
    add("UserData", &STANDARD.encode(user_data));
    let own = [("Name", name), (CLUSTER, whose.cluster), (POOL, whose.pool), (MACHINE, name)];
    let tags = own.into_iter().chain(of.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let tags: Vec<_> = tags.collect();
    for (at, kind) in ["instance", "volume"].iter().enumerate() {
        let of = format!("TagSpecification.{}", at + 1);
        add(&format!("{of}.ResourceType"), kind);
        for (at, (key, value)) in tags.iter().enumerate() {
            add(&format!("{of}.Tag.{}.Key", at + 1), key);
            add(&format!("{of}.Tag.{}.Value", at + 1), value);
        }
    }
    all
}

/// The same for the same machine, type, place and market. At most 64 characters.
fn token(whose: Whose<'_>, name: &str, attempt: Attempt<'_>) -> String {
    let mut hash = Sha256::new();
    let spot = if attempt.spot { "spot" } else { "" };
    for part in [whose.cluster, whose.pool, name, attempt.kind, attempt.subnet.unwrap_or_default(), spot] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hex(&hash.finalize())
}

/// All machines of a pool that have not ended, or those of one name; from a part of the list on.
pub(super) fn describe(whose: Whose<'_>, name: Option<&str>, from: Option<&str>) -> Parameters {
    let mut all = begin("DescribeInstances");
    let mut filters = vec![
        (format!("tag:{CLUSTER}"), vec![whose.cluster]),
        (format!("tag:{POOL}"), vec![whose.pool]),
        ("instance-state-name".to_owned(), STATES.to_vec()),
    ];
    filters.extend(name.map(|name| (format!("tag:{MACHINE}"), vec![name])));
    for (at, (name, values)) in filters.into_iter().enumerate() {
        all.push((format!("Filter.{}.Name", at + 1), name));
        for (of, value) in values.into_iter().enumerate() {
            all.push((format!("Filter.{}.Value.{}", at + 1, of + 1), value.to_owned()));
        }
    }
    all.push(("MaxResults".to_owned(), PAGE.to_owned()));
    all.extend(from.map(|from| ("NextToken".to_owned(), from.to_owned())));
    all
}

/// Takes one away.
pub(super) fn terminate(id: &str) -> Parameters {
    let mut all = begin("TerminateInstances");
    all.push(("InstanceId.1".to_owned(), id.to_owned()));
    all
}

/// A part of a list, and where the next begins.
pub(super) fn described(answer: &Element) -> (Vec<Found>, Option<String>) {
    let all = answer.items(&["reservationSet"]).flat_map(started).collect();
    (all, answer.text_at(&["nextToken"]).map(ToOwned::to_owned))
}

/// What a reservation, or the answer to a start, has.
pub(super) fn started(answer: &Element) -> Vec<Found> {
    answer.items(&["instancesSet"]).filter_map(found).collect()
}

fn found(item: &Element) -> Option<Found> {
    let of_name = |tag: &&Element| tag.text_at(&["key"]) == Some(MACHINE);
    let name = item.items(&["tagSet"]).find(of_name).and_then(|tag| tag.text_at(&["value"]));
    Some(Found {
        id: item.text_at(&["instanceId"])?.to_owned(),
        name: name.map(ToOwned::to_owned),
        state: item.text_at(&["instanceState", "name"]).unwrap_or("pending").to_owned(),
        launched: item.text_at(&["launchTime"]).unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::{Join, Spot};
    use super::super::xml;
    use super::*;
    use std::collections::BTreeMap;

    const WHOSE: Whose<'_> = Whose { cluster: "c-1", pool: "p" };

    fn pool() -> Ec2Pool {
        let pool = serde_json::json!({"region": "eu-central-1", "types": ["c6i.large", "m6i.large"], "image": "ami-1"});
        serde_json::from_value(pool).unwrap()
    }

    fn of(pool: &Ec2Pool, at: usize) -> BTreeMap<String, String> {
        let attempt = pool.attempts().nth(at).unwrap();
        run(pool, WHOSE, "p-1", attempt, "#!/bin/sh\n").into_iter().collect()
    }

    #[test]
    fn a_machine_is_asked_for_once_by_its_name_with_its_tags_and_its_user_data() {
        let asked = of(&pool(), 0);
        for (name, value) in [
            ("Action", "RunInstances"),
            ("MaxCount", "1"),
            ("ImageId", "ami-1"),
            ("InstanceType", "c6i.large"),
            ("UserData", "IyEvYmluL3NoCg=="),
            ("TagSpecification.1.ResourceType", "instance"),
            ("TagSpecification.1.Tag.2.Key", "modelless:cluster"),
            ("TagSpecification.1.Tag.2.Value", "c-1"),
            ("TagSpecification.2.Tag.4.Key", "modelless:machine"),
            ("TagSpecification.2.Tag.4.Value", "p-1"),
            ("InstanceInitiatedShutdownBehavior", "terminate"),
        ] {
            assert_eq!(asked.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(asked["ClientToken"].len() == 64 && asked["ClientToken"] == of(&pool(), 0)["ClientToken"]);
        assert_ne!(asked["ClientToken"], of(&pool(), 1)["ClientToken"], "another type is another request");
        assert!(!asked.contains_key("SubnetId") && !asked.contains_key("InstanceMarketOptions.MarketType"));
    }

    #[test]
    fn what_is_set_of_a_pool_is_asked_for() {
        let pool = Ec2Pool {
            image: None,
            template: Some("lt-1".into()),
            subnets: vec!["subnet-1".into()],
            security_groups: vec!["sg-1".into(), "sg-2".into()],
            key: Some("ops".into()),
            instance_profile: Some("arn:aws:iam::1:instance-profile/x".into()),
            spot: Spot::First,
            tags: BTreeMap::from([("team".into(), "a b".into())]),
            join: Join::default(),
            ..pool()
        };
        let asked = of(&pool, 0);
        for (name, value) in [
            ("LaunchTemplate.LaunchTemplateId", "lt-1"),
            ("LaunchTemplate.Version", "$Default"),
            ("SubnetId", "subnet-1"),
            ("SecurityGroupId.2", "sg-2"),
            ("KeyName", "ops"),
            ("IamInstanceProfile.Arn", "arn:aws:iam::1:instance-profile/x"),
            ("InstanceMarketOptions.MarketType", "spot"),
            ("TagSpecification.1.Tag.5.Value", "a b"),
        ] {
            assert_eq!(asked.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!asked.contains_key("ImageId"));
        let named = Ec2Pool { template: Some("nodes".into()), template_version: Some("3".into()), ..pool };
        let asked = of(&named, 2);
        assert_eq!(
            (asked["LaunchTemplate.LaunchTemplateName"].as_str(), asked["LaunchTemplate.Version"].as_str()),
            ("nodes", "3")
        );
        assert!(!asked.contains_key("InstanceMarketOptions.MarketType"), "spot first, then others");
    }

    #[test]
    fn machines_are_read_with_their_names_from_every_reservation() {
        let item = |id: &str, state: &str, tags: &str| {
            format!(
                "<item><instancesSet><item><instanceId>{id}</instanceId><instanceState><code>0</code><name>{state}</name></instanceState>\
                 <launchTime>2026-01-01T00:00:00.000Z</launchTime><tagSet>{tags}</tagSet></item></instancesSet></item>"
            )
        };
        let tag = "<item><key>Name</key><value>x</value></item><item><key>modelless:machine</key><value>p-1</value></item>";
        let text = format!(
            "<DescribeInstancesResponse><reservationSet>{}{}{}</reservationSet><nextToken>more</nextToken></DescribeInstancesResponse>",
            item("i-1", "running", tag),
            item("i-2", "shutting-down", tag),
            item("i-3", "stopped", "")
        );
        let (all, next) = described(&xml::read(&text).unwrap());
        let told: Vec<_> = all.iter().map(|of| (of.id.as_str(), of.name.as_deref(), of.ending())).collect();
        assert_eq!(told, [("i-1", Some("p-1"), false), ("i-2", Some("p-1"), true), ("i-3", None, true)]);
        assert_eq!(next.as_deref(), Some("more"));
        let asked: BTreeMap<_, _> = describe(WHOSE, Some("p-1"), next.as_deref()).into_iter().collect();
        assert_eq!(
            (asked["Filter.4.Name"].as_str(), asked["Filter.4.Value.1"].as_str()),
            ("tag:modelless:machine", "p-1")
        );
        assert_eq!((asked["Filter.3.Value.5"].as_str(), asked["NextToken"].as_str()), ("stopped", "more"));
    }
}
