//! Who may use whom. The tables are the rule; ARCHITECTURE.md says why.

use super::Finding;
use super::graph::{Graph, Kind};

/// What runs or is linked into what runs, from the bottom. A crate uses only lower layers, so those of one layer
/// do not know each other.
const LAYERS: &[(u8, &[&str])] = &[
    (0, &["modelless-types"]),
    (1, &["modelless-decision", "modelless-adapter", "modelless-oip"]),
    (
        2,
        &[
            "modelless-store",
            "modelless-wire",
            "modelless-live",
            "modelless-engine",
            "modelless-fleet",
            "modelless-telemetry",
            "modelless-drive",
        ],
    ),
    (3, &["modelless-planning"]),
    (
        4,
        &[
            "modelless-gateway",
            "modelless-scheduler",
            "modelless-executor",
            "modelless-profiler",
            "modelless-simulator",
        ],
    ),
    (5, &["modelless"]),
];

/// Never linked into what runs. `testkit` may be a dev-dependency of anything.
const TOOLS: &[&str] = &[TESTKIT, "modelless-tests", "modelless-bench", "modelless-bench-pick", "xtask"];
const TESTKIT: &str = "modelless-testkit";

/// Crates of ours that use less than their layer would let them.
const NARROW: &[(&str, &[&str], &str)] = &[
    (
        "modelless-simulator",
        &["modelless-decision", "modelless-types"],
        "it is the noise-free test bed: what is not in `decision` cannot be simulated",
    ),
    (TESTKIT, &[], "it reaches modelless only as a user does"),
    ("xtask", &[TESTKIT], "it must build in seconds, also when modelless does not build"),
];

/// Libraries that exactly these crates know.
const FENCES: &[(&str, &[&str], &str)] = &[
    ("sqlx", &["modelless-store"], "only `store` knows SQL"),
    ("ort", &["modelless-engine", "modelless-bench"], "only `engine` knows a runtime"),
    ("tch", &["modelless-engine"], "only `engine` knows a runtime"),
    ("axum", &["modelless-gateway", "modelless"], "only the edges speak HTTP"),
    ("hyper", &["modelless-gateway", "modelless"], "only the edges speak HTTP"),
    ("hyper-util", &["modelless-gateway", "modelless"], "only the edges speak HTTP"),
    ("tonic", &["modelless-gateway", "modelless"], "only the edges speak gRPC"),
    (
        "h2",
        &["modelless-engine", "modelless-bench"],
        "only the edges speak gRPC, a runner to its remote server, and who attacks the edges",
    ),
    (
        "prost",
        &["modelless-gateway", "modelless", "modelless-engine", "modelless-oip"],
        "only the edges speak gRPC, and a runner to its remote server",
    ),
    ("redis", &["modelless-live"], "only `live` knows Redis"),
    ("kube", &["modelless-fleet"], "only `fleet` knows Kubernetes"),
    ("k8s-openapi", &["modelless-fleet"], "only `fleet` knows Kubernetes"),
    ("wincode", &["modelless-wire"], "only `wire` knows the wire"),
    ("criterion", &["modelless-bench-pick"], "benchmarks live in `bench`"),
    (
        "anyhow",
        &["modelless", TESTKIT, "modelless-tests", "modelless-bench", "modelless-bench-pick", "xtask"],
        "a library's errors are types; `anyhow` is for programs and tests",
    ),
];

/// Crates whose whole dependency closure is written down.
const CLOSED: &[(&str, &[&str])] = &[
    ("modelless-types", &["serde", "serde_core", "serde_derive", "thiserror", "thiserror-impl"]),
    (
        "modelless-decision",
        // The last three come with the map where others in the workspace ask for more of it: docs/adr/0229.
        &[
            "modelless-types",
            "libm",
            "serde",
            "serde_core",
            "serde_derive",
            "thiserror",
            "thiserror-impl",
            "hashbrown",
            "allocator-api2",
            "equivalent",
            "foldhash",
        ],
    ),
];

/// What must not even come in by a detour.
const SHUT_OUT: &[(&str, &[&str])] =
    &[("modelless-simulator", &["tokio", "mio", "hyper", "sqlx", "ort", "rustix", "getrandom"])];

pub(crate) fn check(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &graph.members {
        let mut add = |rule, what: String, mend: String| {
            findings.push(Finding { place: member.manifest.clone(), rule, what, mend });
        };
        let name = member.name.as_str();
        let layer = layer(name);
        if layer.is_none() && !TOOLS.contains(&name) {
            let what = format!("the crate {name} has no place among the others");
            add("layers", what, "add it to LAYERS or TOOLS in xtask/src/tidy/walls.rs".to_owned());
            continue;
        }
        for (used, kind) in &member.uses {
            if let Some((_, only, why)) = FENCES.iter().find(|(dep, _, _)| dep == used)
                && !only.contains(&name)
                && !(used == "anyhow" && *kind == Kind::Dev)
            {
                add(
                    "fences",
                    format!("{name} uses {used}"),
                    format!("{why}: ask {} for it", only.join(" or ")),
                );
            }
            if !graph.is_member(used) {
                continue;
            }
            if let Some((_, only, why)) = NARROW.iter().find(|(narrow, _, _)| *narrow == name) {
                let in_tests = *kind == Kind::Dev && used == TESTKIT;
                if !only.contains(&used.as_str()) && !in_tests {
                    add("narrow", format!("{name} uses {used}"), (*why).to_owned());
                }
                continue;
            }
            let Some(layer) = layer else { continue }; // a tool may use anything
            match (self::layer(used), kind) {
                (Some(below), _) if below < layer => {}
                (None, Kind::Dev) if used == TESTKIT => {}
                (Some(_), _) => add(
                    "layers",
                    format!("{name} uses {used}, which does not lie below it"),
                    "dependencies run downwards: move what both need below them".to_owned(),
                ),
                (None, _) => add(
                    "layers",
                    format!("{name} uses the tool {used}"),
                    "what is shipped uses no tool; tests may have `modelless-testkit`".to_owned(),
                ),
            }
        }
    }
    findings.extend(closures(graph));
    findings
}

fn layer(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(_, names)| names.contains(&name)).map(|(layer, _)| *layer)
}

fn closures(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &graph.members {
        let linked = graph.closure(&member.name);
        let mut add = |used: &str, mend: &str| {
            findings.push(Finding {
                place: member.manifest.clone(),
                rule: "closure",
                what: format!("{} links {used}", member.name),
                mend: mend.to_owned(),
            });
        };
        if let Some((_, allowed)) = CLOSED.iter().find(|(name, _)| *name == member.name) {
            for used in linked.iter().filter(|used| !allowed.contains(used)) {
                add(
                    used,
                    "its dependencies are an allow-list (CLOSED in xtask/src/tidy/walls.rs): find it without",
                );
            }
        }
        if let Some((_, shut_out)) = SHUT_OUT.iter().find(|(name, _)| *name == member.name) {
            for used in linked.iter().filter(|used| shut_out.contains(used)) {
                add(used, "no clock, socket or store may reach it (`cargo tree -i` says how this one does)");
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::graph::Member;
    use super::*;

    /// A workspace of these crates, where each uses what is said.
    fn graph(uses: &[(&str, &[(&str, Kind)])]) -> Graph {
        let mut graph = Graph::default();
        for (name, used) in uses {
            let uses = used.iter().map(|(used, kind)| ((*used).to_owned(), *kind)).collect();
            let manifest = format!("{name}/Cargo.toml");
            graph.members.push(Member { name: (*name).to_owned(), manifest, uses });
            let normal = used.iter().filter(|(_, kind)| *kind == Kind::Normal);
            let normal: BTreeSet<String> = normal.map(|(used, _)| (*used).to_owned()).collect();
            graph.normal.insert((*name).to_owned(), normal);
        }
        graph
    }

    fn rules(uses: &[(&str, &[(&str, Kind)])]) -> Vec<&'static str> {
        check(&graph(uses)).into_iter().map(|finding| finding.rule).collect()
    }

    const NOTHING: &[(&str, Kind)] = &[];

    #[test]
    fn downwards_is_right_and_sideways_or_upwards_is_not() {
        let types = ("modelless-types", NOTHING);
        assert!(rules(&[types, ("modelless-store", &[("modelless-types", Kind::Normal)])]).is_empty());
        let executor = ("modelless-executor", NOTHING);
        assert_eq!(
            rules(&[executor, ("modelless-gateway", &[("modelless-executor", Kind::Normal)])]),
            ["layers"]
        );
        assert_eq!(
            rules(&[executor, ("modelless-gateway", &[("modelless-executor", Kind::Dev)])]),
            ["layers"]
        );
        let upwards = ("modelless-types", [("modelless-store", Kind::Normal)].as_slice());
        assert_eq!(rules(&[("modelless-store", NOTHING), upwards]), ["layers", "closure"]);
    }

    #[test]
    fn a_new_crate_must_be_given_a_place() {
        assert_eq!(rules(&[("modelless-novel", NOTHING)]), ["layers"]);
    }

    #[test]
    fn tools_stay_out_of_what_is_shipped() {
        let kit = (TESTKIT, NOTHING);
        assert!(rules(&[kit, ("modelless-store", &[(TESTKIT, Kind::Dev)])]).is_empty());
        assert_eq!(rules(&[kit, ("modelless-store", &[(TESTKIT, Kind::Normal)])]), ["layers"]);
        let tests = ("modelless-tests", NOTHING);
        assert_eq!(rules(&[tests, ("modelless-store", &[("modelless-tests", Kind::Dev)])]), ["layers"]);
    }

    #[test]
    fn a_fenced_library_has_one_user() {
        assert!(rules(&[("modelless-store", &[("sqlx", Kind::Normal)])]).is_empty());
        assert_eq!(rules(&[("modelless-gateway", &[("sqlx", Kind::Normal)])]), ["fences"]);
        assert_eq!(rules(&[("modelless-gateway", &[("sqlx", Kind::Dev)])]), ["fences"]);
        assert_eq!(rules(&[("modelless-gateway", &[("anyhow", Kind::Normal)])]), ["fences"]);
        assert!(rules(&[("modelless-gateway", &[("anyhow", Kind::Dev)])]).is_empty(), "tests may");
    }

    #[test]
    fn the_simulator_knows_only_decisions() {
        let store = ("modelless-store", NOTHING);
        let simulator = ("modelless-simulator", [("modelless-store", Kind::Normal)].as_slice());
        assert_eq!(rules(&[store, simulator]), ["narrow"]);
        assert_eq!(rules(&[("modelless-simulator", &[("tokio", Kind::Normal)])]), ["closure"]);
    }

    #[test]
    fn a_closed_crate_links_only_what_is_listed_however_deep() {
        let mut graph = graph(&[("modelless-decision", &[("serde", Kind::Normal)])]);
        assert!(check(&graph).is_empty());
        graph.normal.insert("serde".to_owned(), BTreeSet::from(["rand".to_owned()]));
        let findings = check(&graph);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].what, "modelless-decision links rand");
    }
}
