//! What the baselines' authors published is found again, as far as it is.

use modelless_simulator::published::CLAIMS;
use std::path::Path;

fn look(policies: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("published");
    for claim in CLAIMS.iter().filter(|claim| policies.contains(&claim.policy)) {
        let found = claim.look(&folder, 1).unwrap_or_else(|error| panic!("{}: {error}", claim.policy));
        assert_ne!(found.verdict, "missed", "{found:?}");
    }
}

#[test]
fn infaas_chooses_and_saves_as_it_says() {
    look(&["infaas-code", "infaas-paper"]);
}

#[test]
fn batches_are_worth_what_clipper_nexus_and_symphony_say() {
    look(&["clipper", "nexus", "symphony-like"]);
}

#[test]
fn many_models_are_in_time_as_clockwork_says() {
    look(&["clockwork-like"]);
}

#[test]
fn accuracy_scales_as_its_authors_say() {
    look(&["model-switching", "slackfit", "proteus-like"]);
}

#[test]
fn machines_follow_the_load_as_inferline_and_mark_say() {
    look(&["inferline-like", "mark-like"]);
}

#[test]
fn every_baseline_that_others_published_has_something_that_is_looked_for() {
    for policy in modelless_simulator::baseline::BASELINES {
        let ours = policy.name.starts_with("static") || policy.name == "clipper-ht";
        assert!(ours || CLAIMS.iter().any(|claim| claim.policy == policy.name), "{}", policy.name);
    }
}
