//! A recurrent model on texts of many lengths: what sharing batches brings, and that it changes no answer.
//!
//! The small GRU of the task `ratings`, with queries in batches of one, with batches as they come and as long as their longest text, and
//! with those cut into parts of like length. Lengths are those of what it was trained on:
//! from a few words to a page. Every answer is compared with the one that the same text got alone.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Connection, Request, Rng, Server, packages, stats};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "recurrent",
    what: "a GRU on texts of many lengths: texts a second one by one, in shared batches and in those cut by length, and how far answers differ",
    run: measure,
};

/// As many as a request may have.
const TEXTS: usize = 64;
const CLIENTS: usize = 4;
/// Batches of one, batches as long as their longest text, and the default.
const WAYS: [&str; 3] = ["one by one", "whole", "cut"];
/// Rounding may differ with the size of a batch, nothing else may.
const APART: f64 = 1e-5;

/// What one client saw in one turn.
struct Turn {
    answered: f64,
    apart: f64,
    seconds: f64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let mut rng = Rng::new(context.seed);
    let texts: Vec<String> = (0..TEXTS).map(|_| text(&mut rng)).collect();
    let words = texts.iter().map(|text| text.split(' ').count()).collect::<Vec<_>>();
    let (turns, time) = (context.choose(5, 1), Duration::from_millis(context.choose(6_000, 1_000)));
    let (mut rates, mut rows, mut apart): (BTreeMap<&str, Vec<f64>>, Vec<Value>, f64) = Default::default();
    let mut batches: BTreeMap<&str, f64> = BTreeMap::new();
    let servers = WAYS.map(|way| start(context, way).map(|started| (way, started)));
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let (_, first) = &servers[0];
    let alone = texts.iter().map(|text| praise(first, text)).collect::<Result<Vec<_>>>()?;
    for turn in 0..turns {
        for (way, server) in &servers {
            let before = batch_sizes(server)?;
            let found = many(server, &texts, &alone, time)?;
            let after = batch_sizes(server)?;
            let size = (after.0 - before.0) / (after.1 - before.1).max(1.0);
            let rate: f64 = found.iter().map(|client| client.answered / client.seconds).sum();
            let farthest = found.iter().map(|client| client.apart).fold(0.0, f64::max);
            apart = apart.max(farthest);
            rates.entry(way).or_default().push(rate);
            batches.insert(way, size);
            rows.push(
                json!({"turn": turn, "way": way, "texts_per_s": rate, "texts_in_an_answers_batch": size,
                "apart": farthest}),
            );
        }
    }
    for (_, server) in servers {
        server.stop()?;
    }
    let median = |way: &str| rates.get(way).and_then(|rates| stats::median(rates)).unwrap_or(f64::NAN);
    let [single, whole, cut] = WAYS.map(median);
    let (shortest, longest) = (words.iter().min().unwrap_or(&0), words.iter().max().unwrap_or(&0));
    Ok(Outcome {
        seeds: vec![context.seed],
        summary: json!({"texts_per_s": {"one_by_one": single, "whole": whole, "cut": cut}, "words": words,
            "texts_in_an_answers_batch": batches, "apart": apart}),
        result: format!(
            "texts of {shortest} to {longest} words: {single:.0} a second one by one, {whole:.0} in shared batches ({:.2} times), \
             {cut:.0} where those are cut by length ({:.2} times; an answer's batch has {:.1}); answers differ by at most {apart:.1e}",
            whole / single,
            cut / single,
            batches.get("cut").unwrap_or(&f64::NAN)
        ),
        repetitions: Value::Array(rows),
        checks: vec![
            Check { what: "answers in a batch from those alone", value: apart, limit: APART, unit: "" },
            Check {
                what: "time of a text in shared batches",
                value: single / cut,
                limit: context.choose(1.0, 1.5),
                unit: "times that of one alone",
            },
            Check {
                what: "time of a text in batches that are cut",
                value: whole / cut,
                limit: context.choose(1.0, 1.5),
                unit: "times that in whole ones",
            },
        ],
    })
}

/// A server with this one model.
fn start(context: &Context, way: &str) -> Result<Server> {
    let folder = modelless_testkit::temp_dir("recurrent")?;
    packages::classes(&context.root, folder.path(), if way == WAYS[0] { "off" } else { "deadline" })?;
    let node = folder.path().join("node.toml");
    fs::write(&node, if way == WAYS[1] { "parts = 1\n" } else { "" })?;
    let server = Server::builder().binary(context.binary()?).arg("--node-file").arg(node).start()?;
    demo::register(&server, folder.path())?;
    Ok(server)
}

/// As long as what people write of films and goods: half below 20 words, a tenth above 36, few of a page.
fn text(rng: &mut Rng) -> String {
    const WORDS: [&str; 16] = [
        "the",
        "film",
        "is",
        "a",
        "wonderful",
        "dull",
        "phone",
        "battery",
        "moving",
        "awful",
        "story",
        "and",
        "works",
        "never",
        "superb",
        "waste",
    ];
    let length = match rng.below(20) {
        0 => 60 + rng.below(40),
        1..=3 => 30 + rng.below(20),
        _ => 3 + rng.below(24),
    };
    let word = |_| WORDS[rng.below(16)];
    (0..length).map(word).collect::<Vec<_>>().join(" ")
}

const TARGET: &str = "/v1/tasks/ratings?latency_ms=30000";

/// How much a text praises, asked alone.
fn praise(server: &Server, text: &str) -> Result<f64> {
    let answer = server
        .send(&Request::post(TARGET).header("content-type", "text/plain").body(text.as_bytes().to_vec()))?;
    ensure!(answer.status == 200, "{answer}");
    chance(&answer.json()?[0])
}

fn chance(labels: &Value) -> Result<f64> {
    let all = labels.as_array().context("no labels")?;
    let praise = all.iter().find(|label| label["label"] == "praise");
    praise.and_then(|label| label["score"].as_f64()).with_context(|| format!("no praise in {labels}"))
}

/// All clients for a while, each with the whole list in every request.
fn many(server: &Server, texts: &[String], alone: &[f64], time: Duration) -> Result<Vec<Turn>> {
    let request = Request::post(TARGET).json(&json!({"inputs": texts}));
    let client = || -> Result<Turn> {
        let mut connection = Connection::open(server.address())?;
        let (started, mut answered, mut apart) = (Instant::now(), 0.0, 0.0_f64);
        while started.elapsed() < time {
            let answer = connection.exchange(&request)?;
            ensure!(answer.status == 200, "{answer}");
            let lists = answer.json()?;
            for (labels, alone) in lists.as_array().context("no list")?.iter().zip(alone) {
                apart = apart.max((chance(labels)? - alone).abs());
                answered += 1.0;
            }
        }
        Ok(Turn { answered, apart, seconds: started.elapsed().as_secs_f64() })
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .map(|client| client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .collect()
    })
}

/// Sizes of answers' batches, summed up, and how many answers.
fn batch_sizes(server: &Server) -> Result<(f64, f64)> {
    let metrics = server.get("/metrics")?.text();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    let sum = value("modelless_batch_items_sum").context("no sizes of batches in the metrics")?;
    Ok((sum, value("modelless_batch_items_count").context("no count of answers in the metrics")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_many_lengths() {
        let mut rng = Rng::new(1);
        let mut words: Vec<usize> = (0..400).map(|_| text(&mut rng).split(' ').count()).collect();
        words.sort_unstable();
        assert!(words[0] < 6 && words[200] < 25 && words[399] > 60, "{words:?}");
    }
}
