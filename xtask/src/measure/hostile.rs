//! A model that aborts, one that hangs and one that eats memory: the rest serve on.
//!
//! One model is asked all the time, while beside it one of the three gets eight harmless inputs and the one that it does not
//! bear, all at once. That input fails by name, once; the eight are answered; what it costs the model beside is the figure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Server};
use serde_json::{Map, Value, json};

use super::models::cnn_m;
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "hostile",
    what: "models that abort, hang or eat memory beside one that serves: what it loses, and what their other queries do",
    run: measure,
};

const LATENCY_MS: u32 = 60_000;
const HARMLESS: i64 = 8;
/// When the hostile input comes.
const AFTER: Duration = Duration::from_secs(1);

struct Kind {
    model: &'static str,
    /// The input that it does not bear.
    poison: i64,
    /// How long to serve beside it.
    ms: u64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, rate) = context.choose((2, 200.0), (1, 30.0));
    // A thousand queries at the least; and as long as what is attacked takes to be well again.
    let (short, long) = context.choose((5_000, 8_000), (2_000, 4_000));
    let kinds = [
        Kind { model: "aborts", poison: -2, ms: short },
        // Hung is what runs for 1 s, once in its batch and once alone.
        Kind { model: "hangs", poison: 1_000_000_000_000, ms: long },
        // In mebibytes.
        Kind { model: "eats", poison: context.choose(6_000, 1_000), ms: short },
    ];
    // With the lanes that it takes by itself. On a machine of two cores that is one, and what hangs holds it for a second.
    let server = Server::builder().binary(context.binary()?).start()?;
    let served = cnn_m(&context.root);
    demo::register(&server, &served.package)?;
    demo::register(&server, &context.root.join("bench/models/hostile"))?;
    let mut load = demo::load(context, &server, &[served.stream(LATENCY_MS)])?;
    load.ask(&json!({"do": "learn"}))?;

    let (mut rows, mut results, mut summary) = (Vec::new(), Vec::new(), Map::new());
    let (mut lost, mut wrong, mut harmless_lost, mut not_told) = (0, 0, 0, 0);
    for kind in &kinds {
        let mut ratios = Vec::new();
        let mut ends = Vec::new();
        for round in 0..rounds {
            let question =
                |ms| json!({"do": "paced", "per_second": [rate], "ms": ms, "seed": context.seed + round});
            let calm = load.ask(&question(short))?;
            let (beside, attack) = attacked(&mut load, &question(kind.ms), &server, kind)?;
            for seen in [&calm, &beside] {
                let stream = &seen["streams"][0];
                wrong += stream["wrong"].as_u64().context("how many wrong?")?;
                let reasons = stream["lost"].as_object().context("what was lost?")?;
                lost += reasons.values().filter_map(Value::as_u64).sum::<u64>();
            }
            ratios.push(p99(&beside)? / p99(&calm)?);
            harmless_lost += attack.lost;
            // An eater that is given what it wants is no offender.
            let served = kind.model == "eats" && attack.poison.0 == 200;
            not_told += u64::from(attack.poison.0 != 422 && !served);
            ends.push(attack.json());
            rows.push(json!({"kind": kind.model, "calm": demo::bare(calm), "beside": demo::bare(beside), "attack": attack.json()}));
        }
        let of = |percent| modelless_testkit::stats::percentile(&ratios, percent).context("no rounds");
        let (median, worst) = (of(50)?, of(100)?);
        results
            .push(format!("{}: p99 beside it {median:.2} times that before (worst {worst:.2})", kind.model));
        summary.insert(
            kind.model.to_owned(),
            json!({"p99_ratio_median": median, "p99_ratio_worst": worst, "attacks": ends}),
        );
    }
    drop(load);
    server.stop()?;
    let count = |of: u64| u32::try_from(of).map(f64::from);
    Ok(Outcome {
        seeds: (0..rounds).map(|round| context.seed + round).collect(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: format!(
            "{}; {lost} queries lost and {wrong} wrong beside them, {harmless_lost} of their own harmless ones lost",
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

/// What became of an attack.
struct Attack {
    /// Status, body and seconds of the hostile input.
    poison: (u16, String, f64),
    /// Harmless inputs of the same model that were not answered with themselves.
    lost: u64,
}

impl Attack {
    fn json(&self) -> Value {
        let (status, said, seconds) = &self.poison;
        json!({"status": status, "said": said, "seconds": seconds, "harmless_lost": self.lost})
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

fn attack(server: &Server, kind: &Kind) -> Result<Attack> {
    let target = format!("hostile?variant={}-int64&latency_ms={LATENCY_MS}", kind.model);
    let send = |x: i64| -> Result<(i64, Connection)> {
        let mut connection = server.connect()?;
        connection.send_raw(&demo::tensor_request(&target, x.to_le_bytes().to_vec()).to_bytes())?;
        Ok((x, connection))
    };
    // The model is in memory, and is asked while it runs something: what comes then shares the next batch.
    let mut before = send(0)?;
    before.1.receive(false)?.context("no answer to a harmless query before")?;
    let since = Instant::now();
    let mut sent = (1..=HARMLESS / 2).map(send).collect::<Result<Vec<_>>>()?;
    let mut poison = send(kind.poison)?.1;
    sent.extend((HARMLESS / 2 + 1..=HARMLESS).map(send).collect::<Result<Vec<_>>>()?);
    let mut lost = 0;
    for (x, connection) in &mut sent {
        let response = connection.receive(false)?.context("the server closed a connection")?;
        let right = demo::numbers(&response)
            .is_ok_and(|numbers| Some(&numbers[..]) == small(*x).as_ref().map(std::slice::from_ref));
        if !right {
            say(format!("{}: a harmless query: {response}", kind.model));
        }
        lost += u64::from(!right);
    }
    let response = poison.receive(false)?.context("the server closed a connection")?;
    let seconds = since.elapsed().as_secs_f64();
    // Afterwards it serves again.
    let mut after = send(0)?;
    let response_after = after.1.receive(false)?.context("no answer to a harmless query afterwards")?;
    lost += u64::from(response_after.status != 200);
    ensure!(response.status < 500 || response.status == 503, "{}: {response}", kind.model);
    Ok(Attack { poison: (response.status, response.text(), seconds), lost })
}

fn small(x: i64) -> Option<f64> {
    i32::try_from(x).ok().map(f64::from)
}

fn p99(load: &Value) -> Result<f64> {
    load["streams"][0]["latency"]["p99_us"].as_f64().context("nothing was answered")
}
