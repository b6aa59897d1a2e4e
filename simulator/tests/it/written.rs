//! Scenarios as people write them.

use modelless_simulator::scenario::file::File;
use modelless_simulator::{Arrivals, Error, Gap, Scenario, Span, run, simulate};
use modelless_types::{Bytes, Micros, PricePerHour};
use std::path::{Path, PathBuf};

const SMALL: &str = r#"
name = "small"
duration_s = 2
warm_up_s = 1
[[pool]]
name = "big"
count = 2
class = "gpu"
memory_mib = 100
usd_per_hour = 3
[[pool]]
name = "far"
count = 1
class = "cpu"
lanes = 2
memory_mib = 50
usd_per_hour = 1
zone = "edge"
far_ms = 4
[[task]]
name = "t"
latency_ms = 100
[[task.variant]]
name = "good"
accuracy = 0.9
on.gpu = { batch_ms = [[1, 5], [8, 12]], memory_mib = 40, load_ms = 100 }
[[task.variant]]
name = "quick"
accuracy = 0.8
on.any = { batch_ms = [[1, 2], [8, 6]], memory_mib = 10, load_ms = 50 }
[[application]]
name = "a"
task = "t"
accuracy = 0.7
arrivals = { kind = "poisson", rate = 300 }
[[mix]]
name = "m"
floors = [{ accuracy = 0.85, share = 1 }, { accuracy = 0.7, share = 3 }]
bounds = [{ latency_ms = 50, share = 1 }, { latency_ms = 200, share = 1 }]
arrivals = { kind = "gamma", rate = 80, cv = 2 }
"#;

fn build(text: &str) -> Result<Scenario, Error> {
    File::parse(text)?.build(&|name| Err(format!("no file {name} here")))
}

fn scenarios() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    files
}

#[test]
fn a_scenario_says_what_its_world_is() {
    let world = build(SMALL).expect("a scenario");
    let [big, _, far] = &world.nodes[..] else { panic!("three nodes") };
    assert_eq!((big.class.as_str(), far.far, far.zone.as_str()), ("gpu", Micros::from_millis(4), "edge"));
    let devices = (&big.worker.devices[0], &far.worker.devices[0]);
    assert_eq!((devices.0.price, devices.1.price), (PricePerHour(3_000_000), PricePerHour(500_000)));
    assert_eq!((devices.0.lanes, devices.1.lanes), (1, 2));
    let [good, quick] = &world.tasks[0].variants[..] else { panic!("two variants") };
    assert_eq!(good.on.keys().collect::<Vec<_>>(), ["gpu"]);
    assert_eq!(quick.on.keys().collect::<Vec<_>>(), ["cpu", "gpu"]);
    assert_eq!((good.on["gpu"].memory, good.on["gpu"].max_batch), (Bytes::from_mib(40), 8));
    let gamma = |rate| Arrivals::Renewal { rate, cv: 2.0 };
    let arrivals: Vec<Arrivals> = world.streams[1..].iter().map(|s| s.arrivals.clone()).collect();
    assert_eq!(
        arrivals,
        [10.0, 10.0, 30.0, 30.0].map(gamma),
        "a quarter has the high floor, half of each the short bound"
    );
    assert!(world.planner.is_some(), "no pool says what it pins");
}

#[test]
fn a_scenario_runs_and_what_a_class_cannot_run_is_not_run_there() {
    let outcome = run(&build(SMALL).expect("a scenario"), 3).expect("runs");
    assert!(outcome.total.violations < 0.02, "{}", modelless_simulator::table(&outcome));
    let one = SMALL.replace("count = 2", "count = 0").replace("accuracy = 0.85", "accuracy = 0.75");
    let outcome = run(&build(&one).expect("a scenario"), 3).expect("runs");
    assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), ["quick"]);
}

#[test]
fn what_is_pinned_is_loaded_at_the_factor_that_is_asked_for() {
    let herd = |factor: &str| {
        let text = SMALL.replace("warm_up_s = 1", "warm_up_s = 0");
        let outcome = run(&build(&format!("{text}\n[loading]\nfactor = {factor}")).expect("a scenario"), 3);
        outcome.expect("runs").total.violations
    };
    assert!(herd("0") < 0.03 && herd("10") > herd("0") + 0.1, "{} {}", herd("0"), herd("10"));
}

#[test]
fn wrong_scenarios_are_refused_in_words() {
    let wrong = |from: &str, to: &str| build(&SMALL.replace(from, to)).unwrap_err().to_string();
    for (from, to, said) in [
        ("lanes = 2", "lanez = 2", "unknown field `lanez`"),
        ("kind = \"poisson\"", "kind = \"poison\"", "unknown variant `poison`"),
        ("rate = 300", "rat = 300", "rat"),
        ("memory_mib = 40,", "memory_mib = 40, size = 3,", "unknown field `size`"),
        ("accuracy = 0.9", "accuracy = 1.9", "1.9 is no accuracy"),
        ("task = \"t\"", "task = \"u\"", "there is no task u; there is t"),
        ("rate = 300", "rate = -1", "rates from 0"),
        ("batch_ms = [[1, 5], [8, 12]]", "batch_ms = []", "no `batch_ms`"),
        ("usd_per_hour = 1", "usd_per_hour = -1", "0 or more"),
        ("duration_s = 2", "duration_s = -2", "no time"),
    ] {
        let text = wrong(from, to);
        assert!(text.contains(said), "{from} -> {to}: {text}");
    }
    let fault = format!("{SMALL}\n[[fault]]\nkind = \"drain\"\nnode = \"big/3\"\nat_s = 1");
    assert!(build(&fault).unwrap_err().to_string().contains("big/3"));
}

#[test]
fn the_same_scenario_and_seed_give_the_same_report_to_the_byte() {
    let world = build(SMALL).expect("a scenario");
    let report =
        |seed| serde_json::to_string(&simulate(&world, None, seed, 1.0).expect("runs")).expect("JSON");
    assert_eq!(report(7), report(7));
    assert_ne!(report(7), report(8));
}

#[test]
fn a_report_tells_everything_that_came_over_time_and_draws_it() {
    let report = simulate(&build(SMALL).expect("a scenario"), None, 7, 1.0).expect("runs");
    let (series, total) = (&report.outcome.series, &report.outcome.total);
    let sum = |of: &dyn Fn(&modelless_simulator::Bucket) -> u64| series.buckets.iter().map(of).sum::<u64>();
    assert_eq!(sum(&|b| b.offered), total.offered);
    assert_eq!((sum(&|b| b.in_time), sum(&|b| b.late)), (total.in_time(), total.late));
    assert_eq!(sum(&|b| b.refused), total.refusals() + total.lost);
    assert_eq!(sum(&|b| b.answers.iter().sum()), total.answered);
    assert!(series.buckets.iter().all(|b| b.machines == 3 && b.resident.iter().sum::<u32>() >= 3));
    let text = report.text();
    assert!(text.contains("decided by         modelless") && text.contains("USD for a million"), "{text}");
    let pictures = report.pictures();
    assert_eq!(pictures.len(), 6);
    assert!(pictures.iter().all(|(_, svg)| svg.contains("<polyline") && svg.ends_with("</svg>\n")));
}

#[test]
fn profiles_that_this_project_exports_become_variants() {
    let measured = r#"{"format": "modelless-profiles", "version": 1, "profiles": [{"task": "t", "model": "m",
        "variant": "m-fp32", "artefact_sha256": "ab", "profile": {"device_class": "cpu:x:2",
        "latency": [{"batch": 1, "mean_us": 900.0, "var_us2": 4.0, "p99_us": 950.0, "samples": 9},
                    {"batch": 4, "mean_us": 2000.0, "var_us2": 4.0, "p99_us": 2100.0, "samples": 9}],
        "latency_provenance": "measured", "decode": {"mean_us": 5.0, "var_us2": 1.0, "samples": 9},
        "prepare": {"mean_us": 2.0, "var_us2": 1.0, "samples": 9}, "memory": 3145728, "load_time": 40000,
        "accuracy": {"value": 910000, "low": 900000, "high": 920000, "samples": 100, "set": "s",
        "provenance": "measured", "device_class": "cpu:x:2", "command": "c"}, "also": []}}]}"#;
    let text = r#"
        name = "exported"
        duration_s = 1
        warm_up_s = 1
        pool = [{ name = "p", count = 1, class = "here", memory_mib = 100, usd_per_hour = 1 }]
        application = [{ name = "a", task = "t", latency_ms = 50, arrivals = { kind = "poisson", rate = 100 } }]
        [[task]]
        name = "t"
        profiles = [{ file = "m.json", classes = { "cpu:x:2" = "here" } }]
    "#;
    let world = File::parse(text).expect("parses").build(&|_| Ok(measured.into())).expect("a world");
    let variant = &world.tasks[0].variants[0];
    assert_eq!((variant.name.as_str(), variant.accuracy.ppm(), variant.max_batch), ("m-fp32", 910_000, 4));
    let here = &variant.on["here"];
    assert_eq!((here.memory, here.load_time), (Bytes::from_mib(3), Micros(40_000)));
    assert_eq!(here.latency[1].mean_us.to_bits(), 2_000.0_f64.to_bits());
    assert!(run(&world, 1).expect("runs").total.violations < 0.01);
}

#[test]
fn a_client_of_servegen_keeps_its_rates_windows_and_law() {
    let text = "window_start_s,client,rate_rps,cv,dist,p1,p2\n0,61,30,2,Gamma,0.25,0.1\n600,61,60,1,Weibull,0.9,0.1\n0,9,5,1,Gamma,1,0.2\n";
    let scenario = r#"
        name = "servegen"
        duration_s = 4
        load = 2
        pool = [{ name = "p", count = 1, memory_mib = 100, usd_per_hour = 1 }]
        [[task]]
        name = "t"
        variant = [{ name = "v", accuracy = 0.9, on.any = { batch_ms = [[1, 1]], memory_mib = 1, load_ms = 1 } }]
        [[application]]
        name = "a"
        task = "t"
        latency_ms = 100
        arrivals = { kind = "servegen", file = "f", client = 1, window_s = 2 }
    "#;
    let world = File::parse(scenario).expect("parses").build(&|_| Ok(text.into())).expect("a world");
    let spans = [
        Span { from: Micros::ZERO, rate: 60.0, gap: Gap::Gamma(2.0) },
        Span { from: Micros::from_secs(2), rate: 120.0, gap: Gap::Weibull(0.9) },
    ];
    assert_eq!(world.streams[0].arrivals, Arrivals::Modulated(spans.to_vec()));
}

#[test]
fn every_published_scenario_can_be_built_and_its_load_can_be_changed() {
    let files = scenarios();
    assert!(!files.is_empty());
    for path in files {
        let world = File::load(&path, 1.0).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(world.streams.len() >= 2 && world.duration >= Micros::from_secs(5), "{}", path.display());
        let capacity = |load| {
            let world = File::load(&path, load).expect("a scenario");
            modelless_simulator::oracle::fluid(&Scenario { duration: Micros::from_secs(2), ..world }, 1)
        };
        assert!(capacity(0.5).expect("runs").capacity > 0.0, "{}", path.display());
    }
}

#[test]
fn every_baseline_keeps_floors_loses_nobody_and_is_the_same_again() {
    let world = build(SMALL).expect("a scenario");
    for policy in modelless_simulator::baseline::BASELINES {
        let outcome = policy.run(&world, 5).unwrap_or_else(|error| panic!("{}: {error}", policy.name));
        let total = &outcome.total;
        assert_eq!(total.answered + total.refusals(), total.offered, "{}", policy.name);
        assert_eq!(outcome, policy.run(&world, 5).expect("runs"), "{}", policy.name);
        // The stream with the high floor is only ever answered by `good`.
        let high = outcome.streams.iter().find(|s| s.name == "m-1").expect("a stream");
        assert!(high.variants.keys().all(|name| name == "good"), "{}: {:?}", policy.name, high.variants);
        assert!(total.in_time() * 10 > total.offered, "{}: {:?}", policy.name, total);
        let ours = run(&world, 5).expect("runs");
        assert_eq!(ours.total.offered, total.offered, "{}: the same arrivals", policy.name);
    }
}

/// Machines of 50 queries a second each: one that stays, five that come and go and take two seconds to start.
const RENTED: &str = r#"
name = "rented"
duration_s = 60
warm_up_s = 5
[[pool]]
name = "p"
count = 6
least = 1
start_up_s = 2
class = "gpu"
memory_mib = 100
usd_per_hour = 3.6
[[task]]
name = "t"
[[task.variant]]
name = "only"
accuracy = 0.9
on.any = { batch_ms = [[1, 20]], scatter = 0, memory_mib = 10, load_ms = 100 }
[[application]]
name = "a"
task = "t"
latency_ms = 200
arrivals = { kind = "steps", steps = [[0, 25], [20, 130], [30, 5]] }
"#;

#[test]
fn machines_come_with_the_load_and_go_after_it_and_are_paid_for_as_long() {
    let long = RENTED.replace("duration_s = 60", "duration_s = 140");
    let outcome = run(&build(&long).expect("a scenario"), 3).expect("runs");
    let at_s = |s: usize| outcome.series.buckets[s * outcome.series.buckets.len() / 140].machines;
    assert!(at_s(10) <= 2 && at_s(27) >= 3 && at_s(130) == 1, "{} {} {}", at_s(10), at_s(27), at_s(130));
    // A machine is a dollar in 1,000 s. They are paid from when they are asked for: two seconds more than they are seen.
    let seen: u32 = outcome.series.buckets.iter().map(|bucket| bucket.machines).sum();
    let seen_usd = f64::from(seen) * 140.0 / 120.0 / 1_000.0;
    let starts = f64::from(u32::try_from(outcome.machine_starts).expect("few"));
    let gap = outcome.served_usd - seen_usd;
    assert!(
        (0.001..0.005 * starts.max(1.0)).contains(&gap),
        "{} for {seen_usd}, {starts}",
        outcome.served_usd
    );
    let all = RENTED.replace("least = 1\n", "").replace("duration_s = 60", "duration_s = 140");
    let dear = run(&build(&all).expect("a scenario"), 3).expect("runs");
    assert!((dear.served_usd - 6.0 * 0.14).abs() < 0.01, "{}", dear.served_usd);
    assert!(outcome.served_usd < 0.6 * dear.served_usd && dear.total.violations < 0.001);
    assert!(outcome.total.violations < 0.12, "{}", outcome.total.violations);
}

#[test]
fn a_policy_that_starts_no_machines_has_and_pays_all_of_them() {
    let world = build(RENTED).expect("a scenario");
    let of = |name: &str| {
        let policy = modelless_simulator::baseline::baseline(name).expect("a policy");
        policy.run(&world, 3).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let fixed = of("static-cheapest");
    assert!(
        (fixed.served_usd - 6.0 * 0.06).abs() < 0.01 && fixed.machine_starts == 0,
        "{}",
        fixed.served_usd
    );
    for name in ["infaas-paper", "infaas-code", "inferline-like", "mark-like"] {
        let scaled = of(name);
        assert!(scaled.served_usd < fixed.served_usd, "{name}: {}", scaled.served_usd);
        let total = &scaled.total;
        assert_eq!(total.answered + total.refusals(), total.offered, "{name}");
    }
}

#[test]
fn start_up_times_are_free_at_the_factor_zero_and_impossible_pools_are_refused() {
    let late = |factor: &str| {
        let text =
            format!("{}\n[renting]\nfactor = {factor}", RENTED.replace("start_up_s = 2", "start_up_s = 8"));
        run(&build(&text).expect("a scenario"), 3).expect("runs").total.violations
    };
    assert!(late("0") + 0.02 < late("1"), "{} {}", late("0"), late("1"));
    let wrong = |from: &str, to: &str| build(&RENTED.replace(from, to)).unwrap_err().to_string();
    assert!(wrong("least = 1", "least = 7").contains("`least` <= `at_start`"));
    assert!(wrong("least = 1", "least = 0").contains("at_start = 1"));
    let fault = "\n[[fault]]\nkind = \"node_down\"\nnode = \"p/3\"\nat_s = 1\n";
    assert!(build(&format!("{RENTED}{fault}")).unwrap_err().to_string().contains("comes and goes"));
}
