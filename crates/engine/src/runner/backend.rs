//! What an inference library has to do to live in a runner process: be opened, load models, run batches.
//!
//! Everything else (the control socket, lanes, slots, rings, dying with the executor) is the same for all of them and
//! stands beside this file. A library that has to be linked gets a binary of its own, whose `main` calls
//! [`crate::runner_main`] with its backend.

use super::gentle::Threads;
use super::specs::{self, Declared};
use crate::clock;
use crate::control::Secret;
use crate::parts::{Part, Parts};
use crate::ring::{Answer, Reply, Shapes};
use crate::seam::Io;
use crate::shm::Mapping;
use crate::slot::{Layout, Place, Stretch};
use modelless_types::{Bytes, DType, TensorSpec, VariantSettings};
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// An inference library in this process.
///
/// Opening it (what is given to [`crate::runner_main`]) maps the library and everything that it would open later, and
/// starts nothing: what confines the process comes next, and does not reach threads that run already.
pub trait Backend: Send {
    /// What it needs once it is open, besides memory and threads. Whatever stands here, a model can do, too.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Starts what has to run beside the batches; the library's version.
    fn start(&mut self) -> Result<String, String>;

    /// Whether all threads that will run batches come from [`LoadRequest::pool`] or are the lanes' own. Then a load may
    /// give way to what is served; threads that a library starts by itself would go on giving way, unless they are
    /// started in its stead.
    fn gives_way(&self) -> bool {
        false
    }

    /// Makes a model runnable, once for each lane.
    fn load(&mut self, request: &LoadRequest<'_>) -> Result<Model, String>;
}

/// What a library cannot do without in a process that is confined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Files and folders it reads late, such as its own parts.
    pub read: Vec<PathBuf>,
    /// It makes code as it runs.
    pub code: bool,
    /// The one TCP port it connects to.
    pub connect: Option<u16>,
}

/// A model to be made runnable.
#[derive(Clone, Copy, Debug)]
pub struct LoadRequest<'a> {
    /// The file.
    pub artefact: &'a [u8],
    /// How it is to be run.
    pub settings: &'a VariantSettings,
    /// How many lanes will run it.
    pub lanes: u16,
    /// What is known of its tensors.
    pub expect: Option<&'a Io>,
    /// What a remote server is told of who asks.
    pub token: Option<&'a Secret>,
    /// From whom it is believed who a remote server is, in PEM; where that is asked for.
    pub roots: Option<&'a [u8]>,
    /// Starts threads that will run batches: this one may be giving way to others, which they would inherit.
    pub pool: &'a Threads,
}

/// A model that was made runnable.
pub struct Model {
    /// One for each lane.
    pub programs: Vec<Box<dyn Program>>,
    /// How many of them, the first ones, have to run once to be as quick as they will be: the others share what is made
    /// then.
    pub first_runs: usize,
    /// Its inputs, batch axis included, in the order in which programs number them.
    pub inputs: Vec<Declared>,
    /// Its outputs likewise; none where only a run tells.
    pub outputs: Option<Vec<Declared>>,
    /// Where it runs, such as `cpu`.
    pub device: String,
}

/// A model on one lane.
pub trait Program: Send {
    /// Runs one batch: reads `inputs` where they lie, and hands every output to `outputs` in the model's order. The
    /// text of an error is the library's own.
    fn run(&mut self, inputs: Inputs<'_>, outputs: &mut Results<'_>) -> Result<(), String>;
}

/// Where a run's tensors lie: some rows of a batch in a slot, all of one length.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    layout: &'a Layout,
    arena: &'a Mapping,
    slot: usize,
    parts: &'a Parts,
    first: u32,
    part: Part,
}

impl Run<'_> {
    fn range(&self, place: &Place) -> Range<usize> {
        self.layout.range(place, self.slot, self.parts, self.first..self.first + self.part.rows)
    }
}

/// The inputs of one run, in shared memory: a batch, or a part of one that was cut.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    run: Run<'a>,
    /// What the items look like, where their length differs.
    shaped: Option<&'a [TensorSpec]>,
}

impl<'a> Inputs<'a> {
    /// Items of the run, padding included.
    pub fn rows(&self) -> u32 {
        self.run.part.rows
    }

    /// How many inputs there are.
    pub fn len(&self) -> usize {
        self.run.layout.inputs.len()
    }

    /// Whether there is none. Never so.
    pub fn is_empty(&self) -> bool {
        self.run.layout.inputs.is_empty()
    }

    /// One input: what an item looks like, and where `rows` of them lie, one after another, aligned to 64 bytes (behind
    /// the first part of a batch to an element, and to as much as its length allows). The memory stays there until the run is over. Values that a type does not have (a bool of 7) are possible. Strings lie
    /// apart: see [`Inputs::strings`].
    pub fn get(&self, ix: usize) -> (&'a TensorSpec, NonNull<u8>) {
        let place = &self.run.layout.inputs[ix];
        let spec = self.shaped.map_or(&place.spec, |shaped| &shaped[ix]);
        (spec, self.run.arena.pointer(&self.run.range(place)))
    }

    /// An input of strings, all rows one after another, as the Open Inference Protocol lays them out. A copy: rows lie
    /// apart, and nobody else can change it.
    pub fn strings(&self, ix: usize) -> Result<Vec<u8>, String> {
        let place = &self.run.layout.inputs[ix];
        let mut packed = Vec::new();
        for room in self.bytes(ix).chunks_exact(place.item_bytes) {
            let before = packed.len();
            packed.extend_from_slice(place.strings(room).unwrap_or_default());
            // Looked at again, for what is shared may have changed while it was copied.
            if place.strings(&packed[before..]).is_none_or(|found| found.len() != packed.len() - before) {
                return Err(format!("the strings of `{}` do not end where they should", place.spec.name));
            }
        }
        Ok(packed)
    }

    /// Bytes of an input; of strings, their rooms. They are somebody else's to change only if the executor breaks the protocol.
    #[expect(unsafe_code, reason = "a view of shared memory that is the runner's for the time of a run")]
    pub fn bytes(&self, ix: usize) -> &'a [u8] {
        let range = self.run.range(&self.run.layout.inputs[ix]);
        let pointer = self.run.arena.pointer(&range);
        // SAFETY: in the mapping, which outlives the run, and bytes have no invalid values.
        unsafe { std::slice::from_raw_parts(pointer.as_ptr(), range.len()) }
    }
}

/// Takes the outputs of one run.
pub struct Results<'a> {
    /// Where they go; nowhere when only their shapes are wanted.
    into: Option<Run<'a>>,
    seen: Vec<Seen>,
    shapes: Shapes,
    begun: Instant,
    run_us: Option<u64>,
    wrong: Option<String>,
    unreachable: bool,
}

/// What an output turned out to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) name: Option<String>,
    pub(super) dtype: DType,
    pub(super) axes: Vec<u32>,
}

impl<'a> Results<'a> {
    fn new(into: Option<Run<'a>>) -> Self {
        Self {
            into,
            seen: Vec::new(),
            shapes: Shapes::default(),
            begun: clock::now(),
            run_us: None,
            wrong: None,
            unreachable: false,
        }
    }

    /// The inputs are in place: the model runs now.
    pub fn begin(&mut self) {
        self.begun = clock::now();
    }

    /// The model has run; what follows is handing over.
    pub fn end(&mut self) {
        self.run_us = Some(clock::micros(self.begun.elapsed()));
    }

    /// The next output. Strings come one after another, a length of four bytes before each.
    pub fn push(&mut self, dtype: DType, axes: impl ExactSizeIterator<Item = u32> + Clone, bytes: &[u8]) {
        self.push_named(None, dtype, axes, bytes);
    }

    /// The next output of a model that names its outputs only when it runs.
    pub fn push_named(
        &mut self,
        name: Option<&str>,
        dtype: DType,
        axes: impl ExactSizeIterator<Item = u32> + Clone,
        bytes: &[u8],
    ) {
        let Some(run) = self.into else {
            self.seen.push(Seen { name: name.map(str::to_owned), dtype, axes: axes.collect() });
            return;
        };
        let ix = self.seen_so_far();
        if let Some(place) = run.layout.outputs.get(ix)
            && fits(place, dtype, axes.clone(), run.part)
        {
            let range = run.range(place);
            if dtype == DType::Bytes {
                if let Err(why) = spread(place, bytes, run.part.rows, |row, strings| {
                    run.arena.write(range.start + row * place.item_bytes, strings);
                }) {
                    self.wrong(format!("output `{}`: {why}", place.spec.name));
                }
            } else if bytes.len() == range.len() {
                run.arena.write(range.start, bytes);
            } else {
                self.wrong(format!(
                    "output {ix} has {} bytes, but {} belong there",
                    bytes.len(),
                    range.len()
                ));
            }
        }
        self.shapes.push(dtype, axes);
    }

    /// An output is nothing that can be handed over.
    pub fn wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    /// The run fails because what it would be computed on does not answer: that says nothing of these inputs.
    pub fn unreachable(&mut self) {
        self.unreachable = true;
    }

    fn seen_so_far(&self) -> usize {
        self.shapes.count()
    }
}

/// Hands each item's strings to `write`, if all of them fit into their rooms. None may be missing: what an earlier batch
/// left would stand in its place.
fn spread(
    place: &Place,
    packed: &[u8],
    rows: u32,
    mut write: impl FnMut(usize, &[u8]),
) -> Result<(), String> {
    let mut rest = packed;
    for row in 0..rows as usize {
        let cut_off = "its strings do not end where they should";
        let strings = place.strings(rest).ok_or(cut_off)?;
        let after = &rest[strings.len()..];
        if row + 1 == rows as usize && !after.is_empty() {
            return Err(cut_off.to_owned());
        }
        if strings.len() > place.item_bytes {
            return Err(format!(
                "the strings of one item take {} bytes, lengths included, and there is room for {}; give the variant a \
                 larger `string_bytes`",
                strings.len(),
                place.item_bytes
            ));
        }
        write(row, strings);
        rest = after;
    }
    Ok(())
}

fn fits(place: &Place, dtype: DType, axes: impl Iterator<Item = u32>, Part { rows, length }: Part) -> bool {
    place.spec.dtype == dtype && axes.eq(std::iter::once(rows).chain(place.shape(length)))
}

/// Runs a batch that lies in a slot, one part after another, until one fails. What is said of its outputs is said of the last
/// part: the others were looked at in the same way.
pub(super) fn run(
    program: &mut dyn Program,
    layout: &Layout,
    arena: &Mapping,
    slot: usize,
    parts: &Parts,
) -> Reply {
    let (mut first, mut run_us) = (0, 0_u64);
    let mut answer = Answer::Failed("a batch without rows".to_owned());
    for part in parts.all() {
        let reply = run_part(program, Run { layout, arena, slot, parts, first, part: *part });
        (first, run_us) = (first + part.rows, run_us.saturating_add(reply.run_us));
        answer = reply.answer;
        if !matches!(answer, Answer::Ran(_)) {
            break;
        }
    }
    Reply { run_us, answer }
}

fn run_part(program: &mut dyn Program, run: Run<'_>) -> Reply {
    let Run { layout, part, .. } = run;
    let shaped = (part.length != 0).then(|| {
        let shape = |place: &Place| place.shape(part.length).collect();
        let shaped = |place: &Place| TensorSpec { shape: shape(place), ..place.spec.clone() };
        layout.inputs.iter().map(shaped).collect::<Vec<_>>()
    });
    let mut results = Results::new(Some(run));
    let ran = program.run(Inputs { run, shaped: shaped.as_deref() }, &mut results);
    let Results { shapes, run_us, wrong, begun, unreachable, .. } = results;
    let run_us = run_us.unwrap_or_else(|| clock::micros(begun.elapsed()));
    let answer = match (ran, wrong) {
        (Err(why), _) if unreachable => Answer::Unreachable(why),
        (Err(why), _) => Answer::Failed(why),
        (Ok(()), Some(why)) => Answer::Misshapen(why),
        (Ok(()), None) => match shapes.check(&layout.outputs, part) {
            Ok(()) => Answer::Ran(shapes),
            Err(why) => Answer::Misshapen(why),
        },
    };
    Reply { run_us, answer }
}

/// A variant that can run, with its tensors known.
pub(super) struct Loaded {
    pub(super) programs: Vec<Box<dyn Program>>,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) fixed_batch: Option<u32>,
    /// Its items are of any length.
    pub(super) stretch: Option<Stretch>,
    pub(super) device: String,
    /// What one item's strings may take.
    pub(super) strings: Bytes,
    /// How many programs are yet to run for the first time.
    pub(super) cold: usize,
}

/// When a model is run for the first time whose outputs are known without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FirstRun {
    /// Once it is attached to its slots, beside everything else.
    Later,
    /// As a part of the load, which gives way: later it would not.
    Now,
}

/// Finds out what one item looks like, and has the programs run once: the first run takes memory and time that later ones
/// do not, and shows the shapes that a model leaves open. Where an earlier run has shown them, nothing waits for this one.
pub(super) fn settle(
    model: Model,
    settings: &VariantSettings,
    expect: Option<&Io>,
    shown: Option<FirstRun>,
) -> Result<Loaded, String> {
    let Model { mut programs, first_runs, inputs: declared_inputs, outputs, device } = model;
    let (inputs, fixed_batch) = specs::inputs(&declared_inputs, expect)?;
    // Two items, where allowed, tell a batch axis from an axis of one.
    let (rows, strings) = (fixed_batch.unwrap_or(settings.max_batch.min(2)), settings.strings());
    if let Some(declared) = &outputs
        && let Some(first_run) = shown
        && let Ok(outputs) = specs::outputs(declared, &Err("it was not run".to_owned()), rows, expect)
    {
        let cold = match first_run {
            FirstRun::Later => first_runs,
            FirstRun::Now => {
                let one = fixed_batch.unwrap_or(1);
                for program in programs.iter_mut().take(first_runs.max(1)) {
                    warm(&mut **program, &inputs, one, strings);
                }
                0
            }
        };
        let stretch = specs::stretch((&declared_inputs, declared), &outputs, expect);
        return Ok(Loaded { programs, inputs, outputs, fixed_batch, stretch, device, strings, cold });
    }
    let layout = specs::inputs_only(&inputs, rows, strings)?;
    let arena = Arc::new(Mapping::private(layout.arena_bytes()).map_err(|error| error.to_string())?);
    let mut seen = Err("it was not run".to_owned());
    for program in programs.iter_mut().take(first_runs.max(1)) {
        seen = warm_up(&mut **program, &layout, &arena, rows);
    }
    let outputs = match outputs {
        Some(declared) => declared,
        None => {
            specs::from_run(seen.as_ref().map_err(|why| format!("its first run failed: {why}"))?, expect)?
        }
    };
    let seen = seen.map(|all| all.into_iter().map(|seen| seen.axes).collect());
    let declared_outputs = outputs;
    let outputs = specs::outputs(&declared_outputs, &seen, rows, expect)?;
    let stretch = specs::stretch((&declared_inputs, &declared_outputs), &outputs, expect);
    Ok(Loaded { programs, inputs, outputs, fixed_batch, stretch, device, strings, cold: 0 })
}

/// The first run of a program that has slots already: whoever wants it meanwhile waits for what its own first run would
/// have taken. An error will be met again by a batch, which is told.
pub(super) fn warm(program: &mut dyn Program, inputs: &[TensorSpec], rows: u32, strings: Bytes) {
    let ready = specs::inputs_only(inputs, rows, strings).and_then(|layout| {
        Ok((Mapping::private(layout.arena_bytes()).map_err(|error| error.to_string())?, layout))
    });
    if let Ok((arena, layout)) = ready {
        let _ = warm_up(program, &layout, &arena, rows);
    }
}

fn warm_up(
    program: &mut dyn Program,
    layout: &Layout,
    arena: &Mapping,
    rows: u32,
) -> Result<Vec<Seen>, String> {
    let mut results = Results::new(None);
    let parts = Parts::one(rows, 0);
    let run = Run { layout, arena, slot: 0, parts: &parts, first: 0, part: parts.last() };
    program.run(Inputs { run, shaped: None }, &mut results)?;
    match results.wrong {
        Some(why) => Err(why),
        None => Ok(results.seen),
    }
}
