//! What is registered, as this node needs it: for every variant it could run, how inputs become its tensors.

use modelless_adapter::{Adapter, AdapterSpec, Preparation, PreparationId, Tokenizer};
use modelless_decision::query::Class;
use modelless_decision::worker::WorkerVariant;
use modelless_decision::{RunModel, parts};
use modelless_engine::{Io, Loaded};
use modelless_store::Catalog;
use modelless_types::{
    Bytes, Engine, Micros, ModelId, PricePerHour, Processor, Profile, SpaceId, Task, TaskId, TensorSpec,
    Variant, VariantId, VariantSettings,
};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// What cuts texts up, by the sha256 of its file.
pub(crate) type Tokenizers = BTreeMap<String, Arc<Tokenizer>>;

/// A variant that this node could run.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) model: ModelId,
    pub(crate) space: SpaceId,
    pub(crate) artefact: String,
    pub(crate) artefact_bytes: Bytes,
    pub(crate) settings: VariantSettings,
    pub(crate) task: Arc<Task>,
    pub(crate) ordinal: u8,
    /// A batch of one, by its profile.
    pub(crate) expected: Micros,
    /// What another part of a batch costs, in tokens: see [`modelless_decision::parts`].
    pub(crate) another_part: f64,
    /// What an hour of it costs, where that is not what a lane costs.
    pub(crate) price: Option<PricePerHour>,
    /// The most that its process held when it was measured, on one lane. Unknown where the largest batches were not run for want
    /// of time: a runner that may hold no more than smaller ones took would be killed by the first large one.
    pub(crate) peak: Option<Bytes>,
    pub(crate) preparation: Preparation,
    pub(crate) preparation_id: PreparationId,
    spec: AdapterSpec,
    /// Bound to the model's real tensors when it is first loaded. Shared with what takes this one's place: a load that is under way
    /// knows only the one that it began with.
    adapter: Arc<OnceLock<Adapter>>,
    /// What its first load showed: another one need not find it out again.
    shown: Arc<OnceLock<Shown>>,
}

/// What loading a variant showed of it.
#[derive(Clone, Debug)]
struct Shown {
    io: Io,
    memory: Bytes,
}

impl Known {
    /// Binds the adapter to what the engine found in the artefact.
    pub(crate) fn check(&self, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Result<(), String> {
        let preparation = self.preparation.clone();
        let adapter = Adapter::prepared(&self.spec, &self.task, preparation, inputs, outputs);
        let adapter = adapter.map_err(|err| err.to_string())?;
        // Set already when it was loaded before; the artefact is the same, and so is what it binds to.
        let _ = self.adapter.set(adapter);
        Ok(())
    }

    /// What an engine is told of the model's tensors: what an earlier load showed, or else what it cannot know.
    pub(crate) fn tensors(&self) -> Option<Io> {
        let shown = self.shown.get().map(|shown| shown.io.clone());
        let longest = self.spec.longest();
        shown.or_else(|| Io::needed(self.settings.engine, self.spec.tensors(&self.task), longest))
    }

    /// Whether an earlier load showed what [`Known::tensors`] says.
    pub(crate) fn was_loaded(&self) -> bool {
        self.shown.get().is_some()
    }

    /// It was loaded. What it takes: a load that did not run it first shows less than there will be.
    pub(crate) fn loaded(&self, loaded: &Loaded) -> Bytes {
        let io = || Io {
            inputs: loaded.inputs.clone(),
            outputs: loaded.outputs.clone(),
            longest: self.spec.longest(),
        };
        let shown = self.shown.get_or_init(|| Shown { io: io(), memory: loaded.memory });
        loaded.memory.max(shown.memory)
    }

    /// The adapter, once the variant was loaded.
    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.adapter.get()
    }
}

/// Everything this node could run, replaced whole when it changes.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) version: u64,
    variants: BTreeMap<VariantId, Arc<Known>>,
    /// How many variants lack their engine here.
    left_out: BTreeMap<Engine, usize>,
}

impl Catalogue {
    /// From what the store holds. What has no profile for this hardware cannot be run here yet and is left out, and so
    /// is what needs an engine that is lacking.
    pub(crate) fn new(
        catalog: &Catalog,
        device_class: &str,
        lacking: &[Engine],
        prices: &BTreeMap<VariantId, PricePerHour>,
        tokenizers: &Tokenizers,
        before: &Self,
    ) -> (Self, Vec<WorkerVariant>) {
        let tasks: BTreeMap<TaskId, Arc<Task>> =
            catalog.tasks.iter().map(|task| (task.id, Arc::new(task.clone()))).collect();
        let mut variants = BTreeMap::new();
        let mut runnable = Vec::new();
        let mut left_out = BTreeMap::new();
        for model in &catalog.models {
            let Some(task) = tasks.get(&model.task) else { continue };
            let spec = match AdapterSpec::parse(&model.adapter) {
                Ok(spec) => spec,
                Err(error) => {
                    tracing::warn!(model = model.name, %error, "a model's adapter cannot be read; it is left out");
                    continue;
                }
            };
            let tokenizer = spec.tokenizer().and_then(|digest| tokenizers.get(digest));
            let preparation = match spec.preparation(task, tokenizer) {
                Ok(preparation) => preparation,
                Err(error) => {
                    tracing::warn!(model = model.name, %error, "a model is left out for now");
                    continue;
                }
            };
            for variant in catalog.variants_of(model.id) {
                let engine = variant.settings.engine;
                if lacking.contains(&engine) {
                    *left_out.entry(engine).or_default() += 1;
                    continue;
                }
                let Some(mut worker) = worker_variant(catalog, task, variant, device_class) else { continue };
                let price = prices.get(&variant.id).copied();
                worker.run = worker.run.with_price(price);
                let expected = worker.run.estimate(1).mean();
                let another_part = another_part(&worker.run, variant, device_class, spec.longest());
                runnable.push(worker);
                let preparation = preparation.clone();
                let known = Known {
                    model: model.id,
                    space: model.space,
                    artefact: variant.artefact.clone(),
                    artefact_bytes: variant.artefact_bytes,
                    settings: variant.settings.clone(),
                    task: Arc::clone(task),
                    ordinal: variant.ordinal,
                    expected,
                    another_part,
                    price,
                    peak: variant
                        .profile_on(device_class)
                        .and_then(|profile| peak(profile, variant.settings.max_batch)),
                    preparation_id: preparation.id(),
                    preparation,
                    spec: spec.clone(),
                    adapter: Arc::default(),
                    shown: Arc::default(),
                };
                variants
                    .insert(variant.id, before.same(variant.id, &known).unwrap_or_else(|| Arc::new(known)));
            }
        }
        (Self { version: catalog.version, variants, left_out }, runnable)
    }

    /// The one known before if nothing of it changed, so that its bound adapter is kept. Where only what was measured did, what it costs, or
    /// what its task is asked with, what its loads showed or will show is taken over: it may be loaded or being loaded now, and nothing would bind it again.
    fn same(&self, id: VariantId, now: &Known) -> Option<Arc<Known>> {
        let before = self.variants.get(&id)?;
        let same = before.artefact == now.artefact
            && before.spec == now.spec
            && binds_alike(&before.task, &now.task);
        let also = (before.expected, before.peak, before.price) == (now.expected, now.peak, now.price)
            && before.another_part.to_bits() == now.another_part.to_bits()
            && before.task == now.task;
        match (same, also) {
            (false, _) => None,
            (true, true) => Some(Arc::clone(before)),
            (true, false) => {
                let (task, another_part) = (Arc::clone(&now.task), now.another_part);
                let (expected, peak, price) = (now.expected, now.peak, now.price);
                Some(Arc::new(Known { task, expected, another_part, price, peak, ..Known::clone(before) }))
            }
        }
    }

    /// How many variants are left out for want of an engine.
    pub(crate) fn left_out(&self, engine: Engine) -> usize {
        self.left_out.get(&engine).copied().unwrap_or(0)
    }

    pub(crate) fn variant(&self, id: VariantId) -> Option<Arc<Known>> {
        self.variants.get(&id).map(Arc::clone)
    }

    /// How inputs of a class have to be decoded: the preparation of the first variant in it that is known here.
    /// Classes whose variants differ in it are decoded again when such a variant is bound.
    pub(crate) fn preparation_of(&self, class: &Class) -> Option<(Preparation, PreparationId)> {
        let admits =
            |known: &&Arc<Known>| known.task.id == class.task && class.admits.contains(known.ordinal);
        self.variants.values().find(admits).map(|known| (known.preparation.clone(), known.preparation_id))
    }
}

/// In tokens, by what was timed: items as long as any may be where that is not known. A server elsewhere is asked once for a batch, so that
/// it has the time of one.
fn another_part(run: &RunModel, variant: &Variant, device_class: &str, longest: Option<u32>) -> f64 {
    if variant.settings.engine == Engine::Remote {
        return f64::INFINITY;
    }
    let timed = variant.profile_on(device_class).and_then(|profile| profile.detail.length);
    let length = timed.or(longest).map_or(f64::INFINITY, f64::from);
    parts::another(run, variant.settings.max_batch) * length
}

/// What a process held with every batch that it may be given.
fn peak(profile: &Profile, max_batch: u32) -> Option<Bytes> {
    let largest = profile.latency.last().map_or(0, |point| point.batch);
    let hurried = profile.detail.coarse && largest < profile.largest_batch(max_batch);
    profile.peak.filter(|_| !hurried)
}

/// Whether an adapter that was bound for one task does for the other: goals, rules and descriptions are not its matter.
fn binds_alike(before: &Task, now: &Task) -> bool {
    let of = |task: &Task| (task.id, task.kind, task.default_space);
    of(before) == of(now)
        && before.labels == now.labels
        && before.inputs == now.inputs
        && before.outputs == now.outputs
}

/// How long a load takes of which nothing is known on this node but the profile. Its file may have to come from the disk, and a bound that is
/// promised must hold; whether it does is asked when it is loaded, for what lies in memory now may not then. That load corrects this.
fn first_load(profile: &Profile) -> Micros {
    profile.detail.load_cold.map_or(profile.load_time, |cold| cold.max(profile.load_time))
}

fn worker_variant(
    catalog: &Catalog,
    task: &Task,
    variant: &Variant,
    device_class: &str,
) -> Option<WorkerVariant> {
    let profile = variant.profile_on(device_class)?;
    Some(WorkerVariant {
        id: variant.id,
        model: variant.model,
        engine: variant.settings.engine,
        task: task.id,
        ordinal: variant.ordinal,
        accuracy: catalog.floor_accuracy(task, variant.id, profile),
        max_batch: profile.largest_batch(variant.settings.max_batch),
        run: RunModel::from_profile(profile)?,
        memory: profile.memory,
        load_time: first_load(profile),
        threads: variant.settings.threads,
        batching: task.batching,
        gpu: variant.settings.processor != Processor::Cpu,
        keep: task.keep.time(),
    })
}
