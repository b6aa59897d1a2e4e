//! A scenario out of a running system: its machines, what was measured of its models, and what is asked of it.
//!
//! What comes in is what the admin surface shows, as JSON, so that nothing of a server is linked here. What comes out is a scenario as
//! people write it, with the profiles beside it: to be run at once, or kept and changed. What a system does not tell is assumed, and said in
//! `about`: how long machines take to answer over the network, and, where demand was only counted, that queries come independently.

use super::file::{Application, Arrivals, File, Import, Loading, Network, Planner, Pool, Renting, Task};
use super::timed::Timed;
use super::times::Times;
use modelless_decision::route;
use modelless_types::{Accuracy, Prefer, VariantId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What was asked of a class.
#[derive(Clone, PartialEq, Debug)]
pub struct Asked {
    /// Of which task.
    pub task: String,
    /// Who may answer.
    pub variants: BTreeSet<String>,
    /// Without, the task's.
    pub latency_ms: Option<f64>,
    /// What idle capacity is spent on. Without, accuracy.
    pub prefer: Option<String>,
    /// 1 is the highest.
    pub priority: u8,
    /// How many a second on average, and when each came if that is known.
    pub rate: f64,
    /// Since the first of all.
    pub times_ms: Option<Vec<f64>>,
}

/// A running system.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Live {
    /// What `/v1/nodes` answers.
    pub nodes: Value,
    /// What `/v1/profiles` answers.
    pub profiles: Value,
    /// What `/v1/tasks` answers.
    pub tasks: Value,
    /// What `/v1/variants` answers.
    pub variants: Value,
    /// What `/v1/members` answers: what nodes have seen of their profiles lately.
    pub members: Value,
    /// What is asked.
    pub asked: Vec<Asked>,
    /// How long things took, where a node was recorded.
    pub timed: Option<Timed>,
    /// Whether it was named for that, and has to say something.
    pub timed_is_asked: bool,
    /// How that became known, for people.
    pub watched: String,
    /// For how long it was watched.
    pub seconds: f64,
}

/// What is to be otherwise than it is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Changes {
    /// Machines of each pool.
    pub pools: BTreeMap<String, u32>,
    /// What an hour of one of a pool's machines costs.
    pub usd_per_hour: BTreeMap<String, f64>,
    /// No query of a task has a lower floor.
    pub floors: BTreeMap<String, f64>,
    /// How long it is simulated. Without, a minute, or as long as a recording lasts.
    pub seconds: Option<f64>,
}

/// A scenario and the files that it names.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    /// The scenario.
    pub file: File,
    /// Text by name.
    pub beside: BTreeMap<String, String>,
}

impl Written {
    /// The world it describes, with its rates times `load`.
    pub fn build(&self, load: f64) -> Result<super::Scenario, crate::Error> {
        let file = File { load: self.file.load * load, ..self.file.clone() };
        file.build(&|name| self.beside.get(name).cloned().ok_or_else(|| format!("there is no file {name}")))
    }
}

/// Task, variants, bound in microseconds, priority and preference of queries that are alike.
type Alike = (String, BTreeSet<String>, u64, u8, String);

pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// What came of every class between two answers of `/v1/members`.
pub fn between(earlier: &Value, later: &Value, seconds: f64) -> Vec<Asked> {
    let key = |class: &Value| (text(class, "task").to_owned(), names(class, "variants"));
    let before: BTreeMap<_, u64> = list(earlier, "demand")
        .iter()
        .map(|class| (key(class), class["arrived"].as_u64().unwrap_or(0)))
        .collect();
    let asked = |class: &Value| {
        let (task, variants) = key(class);
        let arrived = class["arrived"].as_u64().unwrap_or(0);
        // A gateway that started anew counts from nothing.
        let came = arrived.checked_sub(before.get(&(task.clone(), variants.clone())).copied().unwrap_or(0));
        let rate = crate::outcome::ratio(came.unwrap_or(arrived), 1) / seconds.max(1e-3);
        let (latency_ms, prefer, times_ms) = (None, None, None);
        Asked { task, variants, latency_ms, prefer, priority: 0, rate, times_ms }
    };
    list(later, "demand").iter().map(asked).filter(|asked| asked.rate > 0.0).collect()
}

fn names(value: &Value, name: &str) -> BTreeSet<String> {
    list(value, name).iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// What came according to the recording of a router (`up --record`), with its bounds; and how long it lasted, in seconds.
pub fn recorded(lines: impl Iterator<Item = String>, variants: &Value) -> Result<(Vec<Asked>, f64), String> {
    let by_id: BTreeMap<u64, &Value> =
        list(variants, "variants").iter().filter_map(|v| Some((v["id"].as_u64()?, v))).collect();
    let mut table: BTreeMap<(u32, u8), VariantId> = BTreeMap::new();
    let mut all: BTreeMap<Alike, Vec<u64>> = BTreeMap::new();
    let mut lines = lines.enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let line: Value = match serde_json::from_str(&line) {
            Ok(line) => line,
            // Of a server that is still recording the last line may be half there.
            Err(_) if lines.peek().is_none() => break,
            Err(error) => return Err(format!("line {}: {error}", number + 1)),
        };
        let Ok(event) = serde_json::from_value::<route::Event>(line["event"].clone()) else { continue };
        if let route::Event::Table(told) = &event {
            for task in &told.tasks {
                table.extend(task.variants.iter().map(|v| ((task.id.0, v.ordinal), v.id)));
            }
        }
        let route::Event::Arrive(query) = event else { continue };
        let of = |ordinal: u8| table.get(&(query.class.task.0, ordinal));
        let known = query.class.admits.iter();
        let known: Vec<&Value> =
            known.filter_map(|ordinal| by_id.get(&u64::from(of(ordinal)?.0)).copied()).collect();
        let Some(task) = known.first().map(|v| text(v, "task").to_owned()) else { continue };
        let admits = known.iter().map(|v| text(v, "name").to_owned()).collect();
        let bound = (query.deadline - query.arrived).0;
        let prefer = if query.prefer == Prefer::Accuracy { String::new() } else { query.prefer.to_string() };
        let whose = (task, admits, bound, query.priority.level(), prefer);
        all.entry(whose).or_default().push(query.arrived.0);
    }
    let first = all.values().flatten().copied().min().ok_or("nothing was asked while it was recorded")?;
    let last = all.values().flatten().copied().max().unwrap_or(first);
    let ms = |us: u64| modelless_types::Micros(us).as_millis_f64();
    let seconds = (ms(last - first) / 1e3).max(1e-3);
    let asked = |((task, variants, bound, priority, prefer), came): (_, Vec<u64>)| Asked {
        task,
        variants,
        latency_ms: Some(ms(bound)),
        prefer: Some(prefer).filter(|text: &String| !text.is_empty()),
        priority,
        rate: crate::outcome::ratio(came.len() as u64, 1) / seconds,
        times_ms: Some(came.into_iter().map(|at| ms(at - first)).collect()),
    };
    Ok((all.into_iter().map(asked).collect(), seconds))
}

/// The scenario.
pub fn written(live: &Live, changes: &Changes) -> Result<Written, String> {
    if live.asked.is_empty() {
        return Err(
            "nothing was asked: send the traffic that the answer is to be about, or watch for longer".into(),
        );
    }
    let pools = pools(live, changes)?;
    let classes: BTreeSet<&str> = pools.iter().map(|pool| pool.class.as_str()).collect();
    let accuracies: BTreeMap<(&str, &str), f64> = list(&live.variants, "variants")
        .iter()
        .filter_map(|v| Some(((text(v, "task"), text(v, "name")), v["accuracy"].as_f64()?)))
        .collect();
    let asked_tasks: BTreeSet<&str> = live.asked.iter().map(|asked| asked.task.as_str()).collect();
    if let Some(unknown) = changes.floors.keys().find(|task| !asked_tasks.contains(task.as_str())) {
        let known: Vec<&str> = asked_tasks.iter().copied().collect();
        return Err(format!("nothing is asked of a task {unknown}; it is of {}", known.join(", ")));
    }
    let seen = Times::of(live, &classes)?;
    let network = Network::default();
    let way = super::traffic::micros((network.one_way_ms + network.jitter_ms) / 1e3)?;
    let (mut task, mut beside) = (Vec::new(), BTreeMap::new());
    for name in &asked_tasks {
        let told = list(&live.tasks, "tasks").iter().find(|told| text(told, "name") == *name);
        let latency_ms = told.and_then(|told| told["defaults"]["latency_ms"].as_f64());
        let file = format!("profiles-{}.json", task.len() + 1);
        let entry = |entry: &Value| {
            let here =
                text(entry, "task") == *name && classes.contains(text(&entry["profile"], "device_class"));
            let mut entry = entry.clone();
            // What floors are compared with, the same on every class; of a task's own, so that names never meet.
            let accuracy = accuracies.get(&(*name, text(&entry, "variant")))?;
            entry["profile"]["accuracy"]["value"] = json!(Accuracy::floor_from_f64(*accuracy)?.ppm());
            seen.correct(&mut entry, way);
            for part in ["variant", "model"] {
                entry[part] = json!(format!("{name}/{}", text(&entry, part)));
            }
            here.then_some(entry)
        };
        let profiles: Vec<Value> = list(&live.profiles, "profiles").iter().filter_map(entry).collect();
        if profiles.is_empty() {
            return Err(format!("no variant of {name} was measured on a device class of these nodes"));
        }
        let text = json!({"format": "modelless-profiles", "version": 1, "profiles": profiles});
        beside.insert(file.clone(), serde_json::to_string_pretty(&text).map_err(|e| e.to_string())? + "\n");
        let classes = classes.iter().map(|class| ((*class).to_owned(), (*class).to_owned())).collect();
        task.push(Task {
            name: (*name).to_owned(),
            copies: 1,
            accuracy: None,
            latency_ms,
            batching: told.and_then(|told| told["batching"].as_str().map(str::to_owned)),
            variant: Vec::new(),
            profiles: vec![Import { file, classes, only: Vec::new(), assume: BTreeMap::new() }],
        });
    }
    let recorded = live.asked.iter().any(|asked| asked.times_ms.is_some());
    let duration_s = changes.seconds.unwrap_or(if recorded { live.seconds } else { 60.0 });
    let application = |(at, asked): (usize, &Asked)| {
        let of = |name: &String| accuracies.get(&(asked.task.as_str(), name.as_str())).copied();
        let floor = asked.variants.iter().filter_map(of).fold(1.0, f64::min);
        let raised = changes.floors.get(&asked.task).copied().unwrap_or(0.0);
        Application {
            name: format!("{}-{}", asked.task, at + 1),
            task: asked.task.clone(),
            accuracy: Some(floor.max(raised)),
            latency_ms: asked.latency_ms,
            usd_per_1000: None,
            prefer: asked.prefer.clone(),
            priority: asked.priority,
            gives_up: 0.0,
            kib: 150,
            arrivals: match &asked.times_ms {
                Some(times_ms) => Arrivals::At { times_ms: times_ms.clone() },
                None => Arrivals::Poisson { rate: asked.rate },
            },
        }
    };
    let file = File {
        name: "live".into(),
        about: format!(
            "{}. Accuracies, times, memory and load times as measured, times as {}; prices as nodes tell them. Assumed: the network's time, inputs of 150 KiB, and{}.",
            live.watched,
            seen.told(),
            if recorded {
                " nothing of when queries come"
            } else {
                " that queries come independently of each other, within each task's bound"
            },
        ),
        load: 1.0,
        duration_s,
        warm_up_s: 30.0,
        gateways: 1,
        announce: route::ANNOUNCE,
        network,
        loading: Loading::default(),
        renting: Renting::default(),
        planner: Planner::default(),
        pool: pools,
        task,
        application: live.asked.iter().enumerate().map(application).collect(),
        mix: Vec::new(),
        fault: Vec::new(),
    };
    Ok(Written { file, beside })
}

/// Nodes that are alike are a pool; where a pool's nodes differ, each kind is one.
fn pools(live: &Live, changes: &Changes) -> Result<Vec<Pool>, String> {
    let mut pools: Vec<Pool> = Vec::new();
    for node in list(&live.nodes, "nodes").iter().filter(|node| node["connected"] == json!(true)) {
        let lanes = u16::try_from(node["lanes"].as_u64().unwrap_or(1)).unwrap_or(1).max(1);
        let (name, class) = (text(node, "pool"), text(node, "device_class"));
        let usd = node["price_usd_per_hour"].as_f64().unwrap_or(0.0) * f64::from(lanes);
        let memory_mib = node["memory"]["budget_bytes"].as_u64().unwrap_or(0) >> 20;
        let alike = |pool: &&mut Pool| {
            let start = pool.name == name || pool.name.starts_with(&format!("{name}#"));
            start && pool.class == class && pool.lanes == lanes && pool.memory_mib == memory_mib
        };
        if let Some(pool) = pools.iter_mut().find(alike) {
            pool.count += 1;
            continue;
        }
        let others =
            pools.iter().filter(|pool| pool.name == name || pool.name.starts_with(&format!("{name}#")));
        let others = others.count();
        pools.push(Pool {
            name: if others == 0 { name.to_owned() } else { format!("{name}#{}", others + 1) },
            count: 1,
            least: None,
            at_start: None,
            start_up_s: 0.0,
            class: class.to_owned(),
            lanes,
            memory_mib,
            usd_per_hour: usd,
            zone: text(node, "zone").to_owned(),
            far_ms: 0.0,
            pinned: None,
        });
    }
    if pools.is_empty() {
        return Err("no node is connected".into());
    }
    let known = || pools.iter().map(|pool| pool.name.clone()).collect::<Vec<_>>().join(", ");
    let named = changes.pools.keys().chain(changes.usd_per_hour.keys());
    if let Some(unknown) = named.into_iter().find(|name| !pools.iter().any(|pool| pool.name == **name)) {
        return Err(format!("there is no pool {unknown}; there is {}", known()));
    }
    for pool in &mut pools {
        pool.count = changes.pools.get(&pool.name).copied().unwrap_or(pool.count);
        pool.usd_per_hour = changes.usd_per_hour.get(&pool.name).copied().unwrap_or(pool.usd_per_hour);
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(asked: Vec<Asked>) -> Live {
        let profile = |class: &str| {
            json!({"device_class": class,
                "latency": [{"batch": 1, "mean_us": 10_000.0, "var_us2": 0.0, "p99_us": 10_000.0, "samples": 9}],
                "latency_provenance": "measured", "decode": {"mean_us": 5.0, "var_us2": 1.0, "samples": 9},
                "prepare": {"mean_us": 2.0, "var_us2": 1.0, "samples": 9}, "memory": 3_145_728, "load_time": 40_000,
                "accuracy": {"value": 1, "low": 1, "high": 1, "samples": 100, "set": "s",
                    "provenance": "measured", "device_class": class, "command": "c"}, "also": []})
        };
        let entry = |task: &str, variant: &str, class: &str| json!({"task": task, "model": "m", "variant": variant, "artefact_sha256": "ab", "profile": profile(class)});
        let node = |pool: &str, class: &str| {
            json!({"pool": pool, "zone": "z", "connected": true, "device_class": class, "lanes": 2,
                "price_usd_per_hour": 0.5, "memory": {"budget_bytes": 104_857_600}})
        };
        Live {
            nodes: json!({"nodes": [node("a", "cpu:x"), node("a", "cpu:x"), node("a", "cpu:y"), {"connected": false}]}),
            profiles: json!({"profiles": [entry("t", "good", "cpu:x"), entry("t", "good", "cpu:y"),
                entry("t", "quick", "cpu:x"), entry("u", "good", "cpu:x"), entry("t", "good", "cpu:away")]}),
            tasks: json!({"tasks": [{"name": "t", "defaults": {"latency_ms": 80.0}, "batching": null}]}),
            variants: json!({"variants": [
                {"task": "t", "name": "good", "id": 1, "accuracy": 0.9}, {"task": "t", "name": "quick", "id": 2, "accuracy": 0.8},
                {"task": "u", "name": "good", "id": 3, "accuracy": 0.7}]}),
            members: Value::Null,
            asked,
            timed: None,
            timed_is_asked: false,
            watched: "as told".into(),
            seconds: 10.0,
        }
    }

    fn asked(variants: &[&str], rate: f64) -> Asked {
        let variants = variants.iter().map(|name| (*name).to_owned()).collect();
        let (latency_ms, prefer, times_ms) = (None, None, None);
        Asked { task: "t".into(), variants, latency_ms, prefer, priority: 0, rate, times_ms }
    }

    #[test]
    fn nodes_profiles_and_demand_become_a_scenario_that_runs() {
        let live = live(vec![asked(&["good", "quick"], 100.0), asked(&["good"], 20.0)]);
        let written =
            written(&live, &Changes { seconds: Some(4.0), ..Changes::default() }).expect("a scenario");
        let pools: Vec<_> =
            written.file.pool.iter().map(|p| (p.name.as_str(), p.count, p.usd_per_hour)).collect();
        assert_eq!(pools, [("a", 2, 1.0), ("a#2", 1, 1.0)]);
        let floors: Vec<_> = written.file.application.iter().map(|a| a.accuracy).collect();
        assert_eq!(floors, [Some(0.8), Some(0.9)]);
        let world = written.build(1.0).expect("a world");
        assert_eq!(world.tasks[0].variants.len(), 2);
        let report = crate::simulate(&world, None, 1, 1.0).expect("runs");
        assert!(report.outcome.total.violations < 0.01, "{}", report.text());
        // What is kept can be read again.
        let text = toml::to_string(&written.file).expect("TOML");
        assert_eq!(File::parse(&text).expect("a scenario"), written.file);
    }

    #[test]
    fn fewer_machines_higher_floors_and_other_prices_are_what_they_say() {
        let live = live(vec![asked(&["good", "quick"], 300.0)]);
        let change = |changes: &Changes| {
            let changes = Changes { seconds: Some(4.0), ..changes.clone() };
            let world = written(&live, &changes).expect("a scenario").build(1.0).expect("a world");
            crate::simulate(&world, None, 1, 1.0).expect("runs")
        };
        let pools = |first: u32| BTreeMap::from([("a".into(), first), ("a#2".into(), 0)]);
        let enough = change(&Changes { pools: pools(3), ..Changes::default() });
        // A lane does 100 a second: two do not do 300.
        let few = change(&Changes { pools: pools(1), ..Changes::default() });
        assert!(enough.outcome.total.violations < 0.01 && few.outcome.total.violations > 0.2);
        let floors = BTreeMap::from([("t".into(), 0.85)]);
        let sharp = change(&Changes { pools: pools(3), floors, ..Changes::default() });
        assert_eq!(sharp.outcome.total.variants.keys().collect::<Vec<_>>(), ["t/good"]);
        let usd_per_hour = BTreeMap::from([("a".into(), 7.0)]);
        let dear = change(&Changes { pools: pools(3), usd_per_hour, ..Changes::default() });
        let ratio = dear.usd_per_million.expect("answers") / enough.usd_per_million.expect("answers");
        assert!((ratio - 7.0).abs() < 1e-6, "{ratio}");
        for (changes, said) in [
            (Changes { pools: BTreeMap::from([("b".into(), 1)]), ..Changes::default() }, "there is a, a#2"),
            (Changes { floors: BTreeMap::from([("u".into(), 0.5)]), ..Changes::default() }, "it is of t"),
        ] {
            assert!(written(&live, &changes).unwrap_err().contains(said));
        }
    }

    #[test]
    fn times_are_as_nodes_take_them_where_they_have_seen_any() {
        let mut live = live(vec![asked(&["good"], 10.0)]);
        let corrected = |ratio: f64, samples: u64, variant: &str| {
            json!({"device_class": "cpu:x", "corrections": [{"task": "t", "variant": variant,
                "slowdown": {"ratio": ratio, "samples": samples}}]})
        };
        let members = [corrected(1.5, 1, "good"), corrected(1.25, 30, "good"), corrected(9.0, 0, "quick")];
        live.members = json!({"members": members});
        let written = written(&live, &Changes::default()).expect("a scenario");
        let profiles: Value = serde_json::from_str(&written.beside["profiles-1.json"]).expect("JSON");
        let of = |variant: &str, class: &str| {
            let is = |one: &&Value| one["variant"] == variant && one["profile"]["device_class"] == class;
            let found = list(&profiles, "profiles").iter().find(is).expect("a profile");
            found["profile"]["latency"][0]["mean_us"].as_f64().expect("a mean")
        };
        let means = [of("t/good", "cpu:x"), of("t/good", "cpu:y"), of("t/quick", "cpu:x")];
        assert_eq!(means.map(|us| us.round().to_string()), ["13750", "10000", "10000"]);
        assert!(
            written.file.about.contains("corrected them (t/good 1.38 on cpu:x);"),
            "{}",
            written.file.about
        );
    }

    #[test]
    fn recorded_times_are_what_things_take_and_profiles_what_nodes_begin_with() {
        let mut live = live(vec![asked(&["good"], 10.0)]);
        live.nodes["nodes"].as_array_mut().expect("nodes").truncate(1);
        let prepare = json!({"Prepare": {"batch": 1, "device": 0, "lane": 0, "variant": 1, "queries": [1]}});
        let lines = [
            json!({"now": 0, "event": {"Catalog": [{"id": 1, "task": 1}]}, "actions": [prepare, {"Start": {"batch": 1}}]}),
            json!({"now": 1_100, "event": {"Arrive": {"key": 5, "class": {"task": 1}}}, "actions": []}),
            json!({"now": 2_100, "event": {"Arrive": {"key": 6, "class": {"task": 1}}}, "actions": []}),
            json!({"now": 90_000, "event": {"Done": {"batch": 1, "outcome": "Ran"}}, "actions": []}),
        ];
        let router = [json!({"now": 100, "actions": [{"Send": {"key": 5}}, {"Send": {"key": 6}}]})];
        let text = |lines: &[Value]| lines.iter().map(Value::to_string).collect::<Vec<_>>().into_iter();
        live.timed = Some(Timed::recorded(text(&router), text(&lines)).expect("a recording"));
        let written = written(&live, &Changes::default()).expect("a scenario");
        assert!(
            written
                .file
                .about
                .contains("times as 1 recorded batches and their inputs took them (batches 9.00 ")
        );
        let world = written.build(1.0).expect("a world");
        let good = world.tasks[0].variants.iter().find(|v| v.name == "t/good").expect("it is there");
        let told = world.catalog("cpu:x").into_iter().find(|v| v.id == good.id).expect("it runs there");
        assert_eq!(told.run.uncorrected(1).mean().0, 10_000);
        // One batch says a ninth of eight times more.
        let truth = good.truth("cpu:x").expect("it runs there").uncorrected(1).mean();
        assert!(truth.0.abs_diff(10_000 + 80_000 / 9) < 2, "{truth}");
        assert_eq!((good.decode.mean_us, told.run.service().mean().0), (1_440.0, 10_007));
        // Inputs are drawn from those that were seen.
        let mut rng = crate::rng::Rng::new(1, "drawn");
        let drawn: BTreeSet<u64> = (0..64).map(|_| good.decoding(&mut rng).0).collect();
        assert_eq!(drawn, BTreeSet::from([940, 1_940]));
        let known = crate::known::Catalog::new(&world);
        let known = known.on(0, good.id).expect("it runs there");
        assert!(known.run.uncorrected(1).mean() > known.told.uncorrected(1).mean());
        // What is kept is the same world when it is read again.
        let again: File = File::parse(&toml::to_string(&written.file).expect("TOML")).expect("a scenario");
        assert_eq!(Written { file: again, ..written }.build(1.0).expect("a world"), world);
        // Of two classes nobody knows which one was recorded.
        live.nodes["nodes"]
            .as_array_mut()
            .expect("nodes")
            .push(json!({"pool": "b", "connected": true, "device_class": "cpu:y", "lanes": 1}));
        let both = super::written(&live, &Changes::default()).expect("a scenario");
        live.timed_is_asked = true;
        let refused = super::written(&live, &Changes::default()).expect_err("it was named for that");
        assert!(refused.contains("there are several: cpu:x, cpu:y"), "{refused}");
        assert!(both.file.about.contains("corrected them, of which they have none"), "{}", both.file.about);
    }

    #[test]
    fn demand_is_what_came_between_two_looks() {
        let at = |quick: u64, good: u64| {
            json!({"demand": [{"task": "t", "variants": ["good", "quick"], "arrived": quick},
                {"task": "t", "variants": ["good"], "arrived": good}]})
        };
        let seen = between(&at(100, 7), &at(150, 7), 10.0);
        assert_eq!(seen, [asked(&["good", "quick"], 5.0)]);
        // A gateway that began anew.
        assert_eq!(between(&at(100, 7), &at(20, 7), 10.0)[0].rate.to_bits(), 2.0_f64.to_bits());
        assert!(written(&live(Vec::new()), &Changes::default()).unwrap_err().contains("nothing was asked"));
    }
}
