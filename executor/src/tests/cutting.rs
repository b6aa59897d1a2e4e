//! Lanes cut anew while real runners serve: no query is dropped, every answer is right, and other threads run.

use super::real::{DEVICE, Node, Served, engine, file};
use super::{LONG, profile};
use modelless_decision::worker::Event;
use modelless_engine::{Engine, LoadSpec, ProcessEngine};
use modelless_types::tensor::packed;
use modelless_types::{DType, Engine as Kind, ModelId, VariantId, VariantSettings};
use modelless_wire::Body;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::oneshot;

const PIXELS: usize = 28 * 28;
/// Inputs that differ.
const INPUTS: u64 = 16;
/// Queries on their way at any time: enough that both lanes run, have a batch bound behind, and leave some waiting.
const UNDER_WAY: usize = 20;
const MAX_BATCH: u32 = 2;
/// A thread that was just started goes to sleep once or twice before it has anything to do.
const SETTLING: u64 = 2;

fn model() -> PathBuf {
    file("examples/fashion/models/cnn_l.onnx")
}

fn settings(threads: u16) -> VariantSettings {
    VariantSettings { threads, ..VariantSettings::new(Kind::Onnx, "fp32", MAX_BATCH) }
}

/// Stripes, others for each key.
fn pixels(key: u64) -> Vec<u8> {
    let key = usize::try_from(key % INPUTS).expect("small");
    let pixel = |at: usize| if (at / (key + 1)).is_multiple_of(2) { 1.0_f32 } else { 0.0 };
    (0..PIXELS).flat_map(|at| pixel(at).to_le_bytes()).collect()
}

/// What the model says of each input, run alone on one thread.
async fn expected(engine: &ProcessEngine) -> Vec<Vec<f32>> {
    let (variant, model_id) = (VariantId(1_000), ModelId(1_000));
    let spec = LoadSpec {
        variant,
        model: model_id,
        artefact: File::open(model()).expect("a model of the examples"),
        settings: settings(1),
        lanes: 1,
        memory_limit: None,
        expect: None,
        shown: false,
    };
    engine.load(spec).await.expect("it loads");
    let mut all = Vec::new();
    for key in 0..INPUTS {
        let mut slot = engine.slot(variant, 0, 1).expect("a slot");
        slot.input_mut(0).copy_from_slice(&pixels(key));
        let (sender, ran) = oneshot::channel();
        engine.submit(slot, LONG, Box::new(move |result| drop(sender.send(result))));
        let outputs = ran.await.expect("told").expect("ran");
        all.push(outputs.output(0).as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect());
    }
    engine.unload(variant).await.expect("it unloads");
    all
}

fn alike(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3)
}

/// What each thread of a runner has done, by its name.
#[derive(Clone, Debug)]
struct Threads {
    /// How long each lane's has run.
    lanes: BTreeMap<String, Duration>,
    /// How often those of pools went to sleep. They do after each part of a run that they were woken for, while how
    /// long they run depends on what else the machine has to do.
    pool_sleeps: u64,
}

impl Threads {
    fn of(pid: u32) -> Self {
        let mut threads = Self { lanes: BTreeMap::new(), pool_sleeps: 0 };
        for task in fs::read_dir(format!("/proc/{pid}/task")).expect("the runner is there") {
            let folder = task.expect("a thread").path();
            // One that only warmed its lane up ends by itself.
            let read = |file| fs::read_to_string(folder.join(file)).ok();
            let (Some(name), Some(times), Some(status)) = (read("comm"), read("schedstat"), read("status"))
            else {
                continue;
            };
            if name.starts_with("lane-") {
                let nanos = times.split(' ').next().and_then(|time| time.parse().ok()).expect("a time");
                threads.lanes.insert(name.trim().to_owned(), Duration::from_nanos(nanos));
            } else if !folder.ends_with(pid.to_string()) {
                let mut lines = status.lines();
                let slept = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                threads.pool_sleeps += slept.and_then(|n| n.trim().parse::<u64>().ok()).expect("a count");
            }
        }
        threads
    }
}

struct Traffic {
    node: Node,
    expected: Vec<Vec<f32>>,
    next: u64,
    under_way: usize,
}

impl Traffic {
    fn send(&mut self) {
        self.node.ask(self.next, pixels(self.next));
        self.next += 1;
        self.under_way += 1;
    }

    /// The next answer's variant. Anything but the right answer is a failure.
    async fn answer(&mut self) -> VariantId {
        let heard = self.node.hear().await;
        let Body::Answer { key, answer } = heard else { panic!("not an answer: {heard:?}") };
        let said = packed::all(&answer.body).expect("tensors");
        let data: Vec<f32> =
            said[0].data.as_chunks().0.iter().map(|cell| f32::from_le_bytes(*cell)).collect();
        let right = &self.expected[usize::try_from(key.0 % INPUTS).expect("small")];
        assert!(alike(&data, right), "{key} got {data:?} instead of {right:?}");
        self.under_way -= 1;
        answer.variant
    }

    /// Keeps queries coming for so many answers. How many each variant gave.
    async fn flow(&mut self, answers: usize) -> BTreeMap<VariantId, usize> {
        let mut by = BTreeMap::new();
        for _ in 0..answers {
            while self.under_way < UNDER_WAY {
                self.send();
            }
            *by.entry(self.answer().await).or_default() += 1;
        }
        by
    }

    /// Has queries answered until a variant has answered fifty, these lanes' threads have run and those of pools have
    /// gone to sleep so often: on a busy machine each may have to wait for long. What all had done before and have then.
    async fn flow_until(
        &mut self,
        variant: VariantId,
        pid: u32,
        lanes: &[&str],
        sleeps: u64,
    ) -> (Threads, Threads) {
        let before = Threads::of(pid);
        let mut answered: BTreeMap<VariantId, usize> = BTreeMap::new();
        for _ in 0..100 {
            for (by, count) in self.flow(50).await {
                *answered.entry(by).or_default() += count;
            }
            let now = Threads::of(pid);
            let ran = lanes.iter().all(|lane| now.lanes[*lane] > before.lanes[*lane])
                && now.pool_sleeps >= before.pool_sleeps + sleeps;
            if ran && answered.get(&variant).is_some_and(|count| *count >= 50) {
                return (before, now);
            }
        }
        panic!("{answered:?}, not all of {lanes:?} have run: {before:?} {:?}", Threads::of(pid))
    }

    fn lanes(&self) -> (u16, u16) {
        self.node.handle.core().driver.look(|worker, _| worker.lanes_of(DEVICE))
    }

    /// Cuts lanes anew among queries that run, are bound and wait, and lets more come until it is done.
    async fn cut(&mut self, width: u16, into: (u16, u16)) {
        while self.under_way < UNDER_WAY {
            self.send();
        }
        self.node.handle.feed(Event::Recut { device: DEVICE, width });
        while self.lanes() != into {
            self.flow(1).await;
        }
        // What was answered before, and is only heard now.
        self.flow(UNDER_WAY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_are_cut_anew_under_traffic_and_no_query_is_lost_or_wrong() {
    let expected = expected(&engine()).await;
    let first = &expected[0];
    assert!(expected[1..].iter().all(|other| !alike(first, other)), "the inputs cannot be told apart");
    // The wide one is preferred wherever it can run.
    let served = Served {
        model: model(),
        input: ("input", DType::Fp32, &[1, 28, 28]),
        output: ("logits", DType::Fp32, &[10]),
        variants: vec![(settings(1), profile(900_000, 1_000.0)), (settings(2), profile(910_000, 1_000.0))],
    };
    let node = Node::start(2, served).await;
    let (narrow, wide) = (node.variants[0], node.variants[1]);
    let pid = node.engine.runners()[0].pid.expect("a runner");
    let mut traffic = Traffic { node, expected, next: 0, under_way: 0 };
    for _ in 0..3 {
        assert_eq!(traffic.lanes(), (2, 1));
        let (before, now) = traffic.flow_until(narrow, pid, &["lane-0", "lane-1"], 0).await;
        let pool = now.pool_sleeps - before.pool_sleeps;
        assert!(pool <= SETTLING, "one thread for each batch: {before:?} {now:?}");

        traffic.cut(2, (1, 2)).await;
        // Two threads for each batch: the second is a pool's.
        let (before, now) = traffic.flow_until(wide, pid, &["lane-0"], 3 * SETTLING).await;
        assert_eq!(now.lanes["lane-1"], before.lanes["lane-1"], "one batch at a time: {before:?} {now:?}");

        traffic.cut(1, (2, 1)).await;
    }
    while traffic.under_way > 0 {
        let variant = traffic.answer().await;
        assert!(variant == narrow || variant == wide);
    }
    traffic.node.end().await;
}
