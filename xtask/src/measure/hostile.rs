//! A model that aborts, one that hangs, one that eats memory at once and one that takes more and more: the rest serve on.
//!
//! Three models are asked all the time (the short form: one), while beside them one of these gets eight harmless inputs and the one that it
//! does not bear, all at once. That input fails by name, once; the eight are answered; what it costs each model beside is the figure.
//!
//! What wants all memory at once does most harm in a process that is new, so that is tried again on servers with nothing else, of one lane
//! and of four.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Server, stats};
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m, made};
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "hostile",
    what: "models that abort, hang, eat memory or take more and more of it beside one that serves: what it loses, and what their other queries do",
    run: measure,
};

const LATENCY_MS: u32 = 60_000;
/// How many queries a second come to cnn_m, EfficientNet-Lite0 and MiniLM-L6.
const RATES: [f64; 3] = [200.0, 10.0, 20.0];
const HARMLESS: i64 = 8;
/// When the hostile input comes.
const AFTER: Duration = Duration::from_secs(1);

/// Servers that are new, and how often each is attacked.
const NEW: (u64, u64) = (8, 3);

struct Kind {
    model: &'static str,
    /// The input that it does not bear.
    poison: i64,
    /// How long to serve beside it.
    ms: u64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, rates) = context.choose((2, &RATES[..]), (1, &[30.0]));
    // A thousand queries of the quickest at the least; and as long as what is attacked takes to be well again.
    let (short, long) = context.choose((5_000, 8_000), (2_000, 4_000));
    let kinds = [
        Kind { model: "aborts", poison: -2, ms: short },
        // Hung is what runs for 1 s, once in its batch and once alone.
        Kind { model: "hangs", poison: 1_000_000_000_000, ms: long },
        // In mebibytes.
        Kind { model: "eats", poison: context.choose(6_000, 1_000), ms: short },
        // One by one, until it is stopped.
        Kind { model: "grows", poison: 1_000_000, ms: long },
    ];
    // With the lanes that it takes by itself. On a machine of two cores that is one, and what hangs holds it for a second.
    let server = Server::builder().binary(context.binary()?).start()?;
    let mut served = vec![cnn_m(&context.root)];
    if !context.short {
        served.extend([made(&context.root, "efficientnet_lite0")?, made(&context.root, "minilm_l6")?]);
    }
    for model in &served {
        demo::register(&server, &model.package)?;
    }
    demo::register(&server, &context.root.join("bench/models/hostile"))?;
    let streams = served
        .iter()
        .map(|model| model.checked_stream(context, LATENCY_MS))
        .collect::<Result<Vec<Value>>>()?;
    let mut load = demo::load(context, &server, &streams)?;
    load.ask(&json!({"do": "learn"}))?;

    let (mut rows, mut results, mut summary) = (Vec::new(), Vec::new(), Map::new());
    let (mut lost, mut wrong, mut harmless_lost, mut not_told) = (0, 0, 0, 0);
    let mut costs = Vec::new();
    for kind in &kinds {
        // Of each model, a round each.
        let mut ratios: Vec<Vec<f64>> = served.iter().map(|_| Vec::new()).collect();
        let mut ends = Vec::new();
        for round in 0..rounds {
            let question =
                |ms| json!({"do": "paced", "per_second": rates, "ms": ms, "seed": context.seed + round});
            let calm = load.ask(&question(short))?;
            let (beside, attack) = attacked(&mut load, &question(kind.ms), &server, kind)?;
            for (seen, ms) in [(&calm, short), (&beside, kind.ms)] {
                costs.push(demo::percent_of_a_core(seen, ms));
                for stream in seen["streams"].as_array().context("no streams")? {
                    wrong += stream["wrong"].as_u64().context("how many wrong?")?;
                    let reasons = stream["lost"].as_object().context("what was lost?")?;
                    lost += reasons.values().filter_map(Value::as_u64).sum::<u64>();
                }
            }
            for (number, ratios) in ratios.iter_mut().enumerate() {
                ratios.push(p99(&beside, number)? / p99(&calm, number)?);
            }
            harmless_lost += attack.lost;
            // An eater that is given what it wants is no offender.
            let served = kind.model == "eats" && attack.poison.0 == 200;
            not_told += u64::from(attack.poison.0 != 422 && !served);
            ends.push(attack.json());
            rows.push(json!({"kind": kind.model, "calm": demo::bare(calm), "beside": demo::bare(beside), "attack": attack.json()}));
        }
        let (told, of_models) = felt(&served, &ratios)?;
        results.push(format!("{}: {told}", kind.model));
        summary.insert(kind.model.to_owned(), json!({"models": of_models, "attacks": ends}));
    }
    let generator = stats::median(&costs).context("no rounds")?;
    summary.insert("generator_percent_median".into(), json!(generator));
    drop(load);
    server.stop()?;
    let fresh = on_new_servers(context, &kinds[2])?;
    harmless_lost += fresh.iter().map(|attack| attack.lost).sum::<u64>();
    let fresh: Vec<Value> = fresh.iter().map(Attack::json).collect();
    results.push(format!("{} more attacks of eats on new servers", fresh.len()));
    rows.push(json!({"kind": "eats, on new servers of one and of four lanes", "attacks": fresh}));
    let count = |of: u64| u32::try_from(of).map(f64::from);
    Ok(Outcome {
        seeds: (0..rounds).map(|round| context.seed + round).collect(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: format!(
            "p99 beside it over that before; {}; {lost} queries lost and {wrong} wrong beside them, {harmless_lost} of their own harmless \
             ones lost; the generator took {generator:.1} % of a core",
            results.join("; ")
        ),
        checks: vec![
            Check { what: "queries lost beside", value: count(lost)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers beside", value: count(wrong)?, limit: 0.0, unit: "" },
            Check { what: "harmless queries lost", value: count(harmless_lost)?, limit: 0.0, unit: "" },
            Check {
                what: "hostile inputs not refused by name",
                value: count(not_told)?,
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

/// How much longer each model's p99 was, in words and as figures.
fn felt(served: &[Model], ratios: &[Vec<f64>]) -> Result<(String, Value)> {
    let (mut told, mut figures) = (Vec::new(), Map::new());
    for (model, ratios) in served.iter().zip(ratios) {
        let of = |percent| stats::percentile(ratios, percent).context("no rounds");
        let (median, worst) = (of(50)?, of(100)?);
        told.push(format!("{} {median:.2} (worst {worst:.2})", model.name));
        figures.insert(model.name.into(), json!({"p99_ratio_median": median, "p99_ratio_worst": worst}));
    }
    Ok((told.join(", "), Value::Object(figures)))
}

/// What became of an attack.
struct Attack {
    /// Status, body and seconds of the hostile input.
    poison: (u16, String, f64),
    /// Harmless inputs of the same model that were not answered with themselves.
    lost: u64,
    /// What they were told.
    told: Vec<String>,
    /// Why each of the others was answered as it was.
    reasons: Vec<String>,
}

impl Attack {
    fn json(&self) -> Value {
        let (status, said, seconds) = &self.poison;
        json!({
            "status": status, "said": said, "seconds": seconds, "harmless_lost": self.lost, "harmless_told": self.told,
            "reasons": self.reasons,
        })
    }
}

/// Serves, and a second later attacks.
fn attacked(load: &mut Side, question: &Value, server: &Server, kind: &Kind) -> Result<(Value, Attack)> {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| load.ask(question));
        std::thread::sleep(AFTER);
        let attack = attack(server, kind);
        let answer = asked.join().map_err(|_| anyhow::anyhow!("the load generator's thread panicked"))??;
        Ok((answer, attack?))
    })
}

/// Every second one has four lanes.
fn on_new_servers(context: &Context, kind: &Kind) -> Result<Vec<Attack>> {
    let (servers, times) = context.choose(NEW, (1, 1));
    let mut attacks = Vec::new();
    for number in 0..servers {
        let lanes = if number % 2 == 0 { "1" } else { "4" };
        let server = Server::builder().binary(context.binary()?).arg("--lanes").arg(lanes).start()?;
        demo::register_with(&server, &context.root.join("bench/models/hostile"), &["--budget", "3s"])?;
        for _ in 0..times {
            attacks.push(attack(&server, kind)?);
        }
        server.stop()?;
    }
    Ok(attacks)
}

fn attack(server: &Server, kind: &Kind) -> Result<Attack> {
    let target = format!("hostile?variant={}-int64&latency_ms={LATENCY_MS}", kind.model);
    let send = |x: i64| -> Result<(i64, Connection)> {
        let mut connection = server.connect()?;
        connection.send_raw(&demo::tensor_request(&target, x.to_le_bytes().to_vec()).to_bytes())?;
        Ok((x, connection))
    };
    // The model is in memory. What comes while it runs something shares the next batch; `reasons` tell who did.
    let mut before = send(0)?;
    before.1.receive(false)?.context("no answer to a harmless query before")?;
    let since = Instant::now();
    let mut sent = (1..=HARMLESS / 2).map(send).collect::<Result<Vec<_>>>()?;
    let mut poison = send(kind.poison)?.1;
    sent.extend((HARMLESS / 2 + 1..=HARMLESS).map(send).collect::<Result<Vec<_>>>()?);
    let (mut lost, mut told, mut reasons) = (0, Vec::new(), Vec::new());
    for (x, connection) in &mut sent {
        let response = connection.receive(false)?.context("the server closed a connection")?;
        let right = demo::numbers(&response)
            .is_ok_and(|numbers| Some(&numbers[..]) == small(*x).as_ref().map(std::slice::from_ref));
        if !right {
            say(format!("{}: a harmless query: {response}", kind.model));
            told.push(response.text());
        }
        reasons.extend(response.header("modelless-reason").map(str::to_owned));
        lost += u64::from(!right);
    }
    let response = poison.receive(false)?.context("the server closed a connection")?;
    let seconds = since.elapsed().as_secs_f64();
    // Afterwards it serves again.
    let mut after = send(0)?;
    let response_after = after.1.receive(false)?.context("no answer to a harmless query afterwards")?;
    lost += u64::from(response_after.status != 200);
    ensure!(response.status < 500 || response.status == 503, "{}: {response}", kind.model);
    Ok(Attack { poison: (response.status, response.text(), seconds), lost, told, reasons })
}

fn small(x: i64) -> Option<f64> {
    i32::try_from(x).ok().map(f64::from)
}

fn p99(load: &Value, stream: usize) -> Result<f64> {
    load["streams"][stream]["latency"]["p99_us"].as_f64().context("nothing was answered")
}
