//! Waiting until the nodes of a cluster have measured what was registered, and saying how far they are.

use super::{Api, list, segment, text};
use crate::progress::Phase;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Between looks.
const LOOK: Duration = Duration::from_millis(500);
/// What failed so often is told as failed; nodes try it again all the same.
const GIVE_UP_AFTER: u64 = 3;
/// So long nobody may have taken it up.
const TAKEN_UP_WITHIN: Duration = Duration::from_mins(2);

/// Waits for all variants of a model that a server has just taken in.
pub(super) fn wait(api: &Api, phase: &mut Phase, task: &str, registered: &mut Value) -> anyhow::Result<()> {
    let name = text(registered, "name").to_owned();
    let name = name.as_str();
    let path = format!("/v1/models/{}/{}", segment(task), segment(name));
    let mut alone = Instant::now();
    loop {
        let answer = api.get_soon(&path)?.ok()?.json()?;
        let version = list(&answer, "versions").iter().find(|one| one["id"] == registered["id"]);
        let version = version.with_context(|| format!("model {name} is gone; somebody removed it"))?;
        match stands(version) {
            Stands::Measured => {
                measured(registered, version);
                return Ok(());
            }
            Stands::Failed(why) => bail!(why),
            Stands::Running { variant, how } => {
                alone = Instant::now();
                phase.at(&variant, &how);
            }
            Stands::Waiting { variant, why } => {
                if alone.elapsed() > TAKEN_UP_WITHIN {
                    bail!("{name} is registered, but nobody measures {variant}: {why}");
                }
                phase.at(&variant, "waiting for a node");
            }
        }
        api.pause(LOOK);
    }
}

/// What was answered before anything was measured, with what has come of it.
fn measured(registered: &mut Value, version: &Value) {
    for variant in registered["variants"].as_array_mut().into_iter().flatten() {
        let its = list(version, "variants").iter().filter(|known| known["id"] == variant["id"]);
        let profiles = its.flat_map(|known| list(known, "profiles"));
        let warnings: Vec<&Value> = profiles.flat_map(|profile| list(profile, "warnings")).collect();
        variant["warnings"] = json!(warnings);
        variant["measured"] = json!(true);
    }
}

#[derive(PartialEq, Eq, Debug)]
enum Stands {
    Measured,
    Running { variant: String, how: String },
    Waiting { variant: String, why: String },
    Failed(String),
}

/// How it stands with a model: what can be said of the first variant of which there is something to say.
fn stands(version: &Value) -> Stands {
    let estimated = |profile: &Value| profile["latency"]["provenance"] == "estimated";
    let left = list(version, "variants");
    let left = left.iter().filter(|variant| list(variant, "profiles").iter().all(estimated));
    let left: Vec<&Value> = left.collect();
    let Some(first) = left.first() else { return Stands::Measured };
    let all = || left.iter().flat_map(|of| list(of, "measuring").iter().map(move |one| (*of, one)));
    if let Some((of, one)) = all().find(|(_, one)| one["state"] == "running") {
        let how = format!("{} at node {}", text(one, "progress"), text(one, "node"));
        return Stands::Running { variant: text(of, "name").to_owned(), how };
    }
    let failed = |(_, one): &(&Value, &Value)| {
        one["state"] == "failed" && one["attempts"].as_u64().unwrap_or(0) >= GIVE_UP_AFTER
    };
    if let Some((of, one)) = all().find(failed) {
        return Stands::Failed(format!(
            "{} is registered but could not be measured at node {} ({}): {}. It is tried again now and then. Mend it and register it \
             again, or take it away with `modelless model remove`",
            text(of, "name"),
            text(one, "node"),
            text(one, "device_class"),
            text(one, "why"),
        ));
    }
    let unavailable = first["unavailable"].as_str().map(str::to_owned);
    let tried = all().find_map(|(_, one)| one["why"].as_str().map(str::to_owned));
    let why = unavailable.or(tried);
    let why = why.unwrap_or_else(|| "no executor that could has taken it up; is one running?".to_owned());
    Stands::Waiting { variant: text(first, "name").to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(measuring: &Value) -> Value {
        json!({"variants": [
            {"name": "done", "profiles": [{}], "measuring": []},
            {"name": "left", "profiles": [], "measuring": measuring, "unavailable": null},
        ]})
    }

    #[test]
    fn a_model_is_measured_when_every_variant_has_a_profile() {
        assert_eq!(stands(&json!({"variants": [{"name": "a", "profiles": [{}]}]})), Stands::Measured);
        let estimated = json!([{"latency": {"provenance": "estimated"}}]);
        assert!(matches!(
            stands(&json!({"variants": [{"name": "a", "profiles": estimated}]})),
            Stands::Waiting { .. }
        ));
        assert!(matches!(stands(&model(&json!([]))), Stands::Waiting { variant, .. } if variant == "left"));
    }

    #[test]
    fn whoever_is_at_it_is_named_and_a_failure_only_after_some_tries() {
        let running = json!({"state": "running", "node": "one", "progress": "timing batches of 4"});
        let Stands::Running { how, .. } = stands(&model(&json!([running]))) else { panic!("it runs") };
        assert_eq!(how, "timing batches of 4 at node one");
        let failed =
            |attempts| json!({"state": "failed", "node": "one", "why": "broken", "attempts": attempts});
        let Stands::Waiting { why, .. } = stands(&model(&json!([failed(1)]))) else { panic!("too early") };
        assert_eq!(why, "broken");
        let Stands::Failed(why) = stands(&model(&json!([failed(3)]))) else { panic!("it failed") };
        assert!(why.contains("left") && why.contains("node one") && why.contains("broken"), "{why}");
        // Another class is still at it.
        let both = json!([failed(9), {"state": "running", "node": "two", "progress": "loading"}]);
        assert!(matches!(stands(&model(&both)), Stands::Running { .. }));
    }

    #[test]
    fn what_looks_wrong_once_it_was_measured_is_told_with_what_was_registered() {
        let mut registered = json!({"variants": [{"id": 3, "measured": false, "warnings": []}]});
        let profiles = |why: &str| json!([{"warnings": []}, {"warnings": [why]}]);
        let version = json!({"variants": [
            {"id": 2, "profiles": profiles("of another")}, {"id": 3, "profiles": profiles("is it the right set?")},
        ]});
        measured(&mut registered, &version);
        let wanted = json!({"id": 3, "measured": true, "warnings": ["is it the right set?"]});
        assert_eq!(registered["variants"], json!([wanted]));
    }
}
