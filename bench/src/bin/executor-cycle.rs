//! Loads in an executor in this process: how long each takes, and what it does to what is served beside it.
//!
//! `executor-cycle SPEC`, where SPEC is JSON: `{"library", "served", "loaded", "seed"}`. `loaded` is registered twice, and there
//! is memory for one of the two beside `served`, so that they drive each other out. Questions:
//!
//! * `{"do": "loads", "count", "gap_ms", "cold"}`: one load after the other, each followed by a query; `gap_ms` between them, so
//!   that a spare process can get ready. With `cold` the kernel has forgotten the file;
//! * `{"do": "serve", "per_second", "ms", "every_ms", "seed"}`: queries to `served` at random times, and a load every so often;
//!   none for 0. Tells apart those that came during a load. With `"bare": true` it is not the executor that loads but a process
//!   that does nothing else, and that gives way to everything from its first instruction on: the least that a load beside can
//!   do to what is served, on this machine. It ends when it has loaded. With `"burn": {"what", "ms"}` it is a process that for so
//!   long only reckons (`arithmetic`) or only moves memory about (`bandwidth`), and gives way as well: what anything at all
//!   that runs beside costs here, whether it loads or not. `cost` is what this process, which sends and answers, took of the machine;
//!   runners and what runs beside are not in it.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::process::{Command, ExitCode};
use std::sync::mpsc::{Sender as Orders, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use modelless_bench::node::{How, Node, Spec, runner_if_asked};
use modelless_bench::open::{self, Gaps};
use modelless_bench::sender::Sender;
use modelless_bench::timing::{nanos, percentiles, sleep_precisely};
use modelless_testkit::cost::Cost;
use modelless_testkit::turns;
use modelless_types::Bytes;
use ort::session::Session;
use serde_json::{Value, json};

/// For queries whose lateness does not matter.
const LONG: Duration = Duration::from_secs(30);
/// The two that drive each other out, by their places.
const TWINS: [usize; 2] = [1, 2];

fn main() -> ExitCode {
    if let Some(code) = runner_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.as_slice() {
        [word, library, model] if word == "bare" => bare_load(library, model),
        [word, what, ms] if word == "burn" => burn(what, ms),
        _ => run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("executor-cycle: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let spec: Value = serde_json::from_str(&std::env::args().nth(1).context("usage: executor-cycle SPEC")?)?;
    let text = |name: &str| spec[name].as_str().with_context(|| format!("`{name}`"));
    let seed = spec["seed"].as_u64().unwrap_or(1);
    let node = Node::start(&Spec {
        budget: None,
        library: text("library")?.into(),
        packages: vec![text("served")?.into(), text("loaded")?.into(), text("loaded")?.into()],
        max_batch: None,
        batching: None,
        lanes: 1,
        // What is really taken differs a little from what was measured; still less than for both.
        memory: Box::new(|of| Bytes(of[0].0 * 5 / 4 + of[1].0 * 3 / 2)),
        wait_inline: false,
    })?;
    node.pin(&[0, TWINS[0]])?;
    sleep_precisely()?;
    let mut resident = 0;
    turns::serve(|question| {
        let number = |name: &str| question[name].as_f64().with_context(|| format!("`{name}` in {question}"));
        let ms = |name: &str| Ok::<_, anyhow::Error>(Duration::from_secs_f64(number(name)? / 1e3));
        match question["do"].as_str() {
            Some("loads") => {
                let count = question["count"].as_u64().context("`count`")?;
                let cold = question["cold"].as_bool().unwrap_or(false);
                loads(&node, &mut resident, count, ms("gap_ms")?, cold, seed)
            }
            Some("serve") => {
                let gaps =
                    Gaps::new(number("per_second")?, 1.0, question["seed"].as_u64().context("`seed`")?);
                let own = |what: [&str; 3]| Bare::new(what.map(str::to_owned));
                let bare = match (question["bare"].as_bool(), question["burn"].as_object()) {
                    (Some(true), _) => {
                        let file = node.file(TWINS[0])?.display().to_string();
                        Some(own(["bare", text("library")?, &file])?)
                    }
                    (_, Some(burn)) => {
                        let what = burn["what"].as_str().context("`what` to burn")?;
                        Some(own(["burn", what, &burn["ms"].as_u64().context("`ms` to burn")?.to_string()])?)
                    }
                    (_, None) => None,
                };
                serve(&node, &mut resident, gaps, (ms("ms")?, ms("every_ms")?), bare, seed)
            }
            other => bail!("cannot do {other:?}"),
        }
    })?;
    node.stop()
}

fn loads(
    node: &Node,
    resident: &mut usize,
    count: u64,
    gap: Duration,
    cold: bool,
    seed: u64,
) -> Result<Value> {
    let (mut took, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        std::thread::sleep(gap);
        *resident = 1 - *resident;
        let model = TWINS[*resident];
        if cold {
            node.forget_file(model)?;
        }
        let before = node.loads(model)?.len();
        node.pin(&[0, model])?;
        let inputs = node.inputs(model, 1, seed)?;
        let mut sender = Sender::new(node, model, &inputs, LONG)?;
        let asked = Instant::now();
        sender.offer(asked);
        let mut ends = Vec::new();
        node.link.ends(&mut ends, asked + LONG);
        match ends.as_slice() {
            [end] if matches!(end.how, How::Answered { .. }) => answers.push(nanos(end.at - asked)),
            _ => bail!("the loaded model does not answer: {ends:?}"),
        }
        let until = Instant::now() + LONG;
        let load = loop {
            // The history is written a moment later, off the path.
            match node.loads(model)?.get(before) {
                Some(load) => break load.1,
                None if Instant::now() > until => bail!("the history has no word of a load"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        took.push(nanos(load));
    }
    Ok(json!({
        "load": percentiles(&took), "load_ns": took, "first_answer": percentiles(&answers),
    }))
}

/// Processes that give way to everything, one after the other: this program with these arguments.
struct Bare {
    orders: Orders<()>,
    worker: JoinHandle<Result<Vec<(Instant, Instant)>>>,
}

impl Bare {
    fn new(args: [String; 3]) -> Result<Self> {
        let program = std::env::current_exe()?;
        let (orders, received) = channel();
        let worker = std::thread::spawn(move || {
            let mut windows = Vec::new();
            while received.recv().is_ok() {
                let began = Instant::now();
                let mut command = Command::new("chrt");
                command.args(["--idle", "0"]).arg(&program).args(&args);
                let ended = command.status().context("starting chrt, which comes with util-linux")?;
                ensure!(ended.success(), "`{}` beside: {ended}", args.join(" "));
                windows.push((began, Instant::now()));
            }
            Ok(windows)
        });
        Ok(Self { orders, worker })
    }

    fn load(&self) {
        // Without a worker there are no windows either, which is an error in the end.
        let _ = self.orders.send(());
    }

    fn ended(self) -> Result<Vec<(Instant, Instant)>> {
        drop(self.orders);
        self.worker.join().ok().context("what ran beside panicked")?
    }
}

fn bare_load(library: &str, model: &str) -> Result<()> {
    let environment = ort::init_from(library)?.build()?;
    let failed = |error: ort::Error<_>| anyhow::anyhow!("{error}");
    let builder = Session::builder(&environment)?.with_intra_threads(1).map_err(failed)?;
    let mut builder = builder.with_inter_threads(1).map_err(failed)?;
    let session = builder.commit_from_file(model).with_context(|| format!("loading {model}"))?;
    drop(session);
    Ok(())
}

/// More than a core's own caches hold, and little enough to be there soon.
const MOVED: usize = 64 << 20;
/// Between two looks at the clock.
const STEPS: u64 = 100_000;

/// Keeps a core busy for a while, with hardly any memory or with hardly anything else.
fn burn(what: &str, ms: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(ms.parse().with_context(|| format!("{ms:?} ms"))?);
    match what {
        "arithmetic" => {
            let mut number = 1_u64;
            while Instant::now() < until {
                for step in 0..STEPS {
                    number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) ^ step);
                }
            }
        }
        "bandwidth" => {
            let mut from = vec![1_u8; MOVED / 2];
            let mut to = vec![2_u8; MOVED / 2];
            // In pieces, or a whole pass would overrun the time by far.
            let piece = 1 << 20;
            let mut at = 0;
            while Instant::now() < until {
                to[at..at + piece].copy_from_slice(std::hint::black_box(&from[at..at + piece]));
                at += piece;
                if at + piece > from.len() {
                    at = 0;
                    std::mem::swap(&mut from, &mut to);
                }
            }
        }
        other => bail!("cannot burn {other:?}; expected arithmetic or bandwidth"),
    }
    Ok(())
}

fn serve(
    node: &Node,
    resident: &mut usize,
    gaps: Gaps,
    (time, every): (Duration, Duration),
    mut bare: Option<Bare>,
    seed: u64,
) -> Result<Value> {
    let inputs = node.inputs(0, 32, seed)?;
    let (began, since) = (SystemTime::now(), Instant::now());
    let cost = Cost::start();
    let mut next = since + every;
    let seen = open::run(node, &inputs, gaps, time, LONG, |now| {
        if !every.is_zero() && now >= next {
            next += every;
            if let Some(bare) = &bare {
                return bare.load();
            }
            *resident = 1 - *resident;
            node.ask_for(&[0, TWINS[*resident]]);
        }
    })?;
    let cost = cost.json();
    // The last load may still be under way.
    node.pin(&[0, TWINS[*resident]])?;
    let mut windows = bare.take().map(Bare::ended).transpose()?.unwrap_or_default();
    for model in TWINS {
        let of = node.loads(model)?.into_iter().filter_map(|(at, took)| {
            let from = since + at.duration_since(began).ok()?;
            Some((from, from + took))
        });
        windows.extend(of);
    }
    let during = |due: Instant| windows.iter().any(|(from, to)| (*from..*to).contains(&due));
    let (inside, outside): (Vec<_>, Vec<_>) = seen.answered.iter().partition(|(due, _)| during(*due));
    let of = |some: &[&(Instant, Duration)]| {
        percentiles(&some.iter().map(|(_, took)| nanos(*took)).collect::<Vec<_>>())
    };
    let windows: Vec<u64> = windows.iter().map(|(from, to)| nanos(*to - *from)).collect();
    Ok(json!({
        "loads": windows.len(), "load": percentiles(&windows), "during": of(&inside), "otherwise": of(&outside),
        "seen": seen.json(), "cost": cost,
    }))
}
