//! Where the tensors of a batch lie, and who may touch them when.
//!
//! A lane has two slots. A slot is with the caller (filling it), with the runner (running it) or with the caller
//! again (reading it); it becomes free when the caller drops it, so it is never reused before its runner
//! acknowledged it or was reaped.

use crate::parts::{Part, Parts};
use crate::seam::EngineError;
use crate::shm::Mapping;
use modelless_types::tensor::strings;
use modelless_types::{Bytes, DType, TensorSpec, VariantId};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokio::sync::Notify;

/// One that runs and one prepared ahead, for each lane of a model.
pub const SLOTS_PER_LANE: usize = SLOTS as usize;
const SLOTS: u8 = 2;

/// Inputs, and outputs, of one variant: at most this many each.
pub(crate) const MAX_TENSORS: usize = 64;
/// Axes of one item.
pub(crate) const MAX_AXES: usize = 8;
/// Vector units like aligned rows, and neighbours must not share a cache line.
const ALIGN: usize = 64;
const PAGE: usize = 4096;

/// One tensor in a slot: `rows` items one after another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Of a tensor that follows the length of a batch: what an item of the longest batch looks like.
    pub(crate) spec: TensorSpec,
    pub(crate) offset: usize,
    /// Of strings: the room for them, of which an item takes as much as it needs.
    pub(crate) item_bytes: usize,
    /// Its first axis is as long as the batch is: see [`Stretch`].
    pub(crate) follows: bool,
}

/// The variant takes items of any length up to one: the first axis of every item, the same for all items of a batch.
/// Which length it is, every batch says; shorter ones cost less.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stretch {
    /// The greatest length.
    pub(crate) longest: u32,
    /// For each output, whether its items are as long as the batch.
    pub(crate) outputs: Vec<bool>,
}

impl Place {
    /// Bytes of the first `rows` rows.
    fn bytes_before(&self, parts: &Parts, rows: u32) -> usize {
        let mut left = rows;
        let mut bytes = 0;
        for part in parts.all() {
            let here = left.min(part.rows);
            bytes += self.bytes(part.length) * here as usize;
            left -= here;
        }
        // Behind the batch, where an artefact takes more rows than it has.
        bytes + self.bytes(parts.last().length) * left as usize
    }

    /// Bytes of one item of a batch of this length; 0 for the longest.
    pub(crate) fn bytes(&self, length: u32) -> usize {
        match self.spec.shape.first() {
            Some(longest) if self.follows && length != 0 => {
                self.item_bytes / (*longest).max(1) as usize * length as usize
            }
            Some(_) | None => self.item_bytes,
        }
    }

    /// What an item looks like in a batch of this length; 0 for the longest.
    pub(crate) fn shape(&self, length: u32) -> impl Iterator<Item = u32> + Clone + '_ {
        let first = (self.follows && length != 0).then_some(length);
        first.into_iter().chain(self.spec.shape.iter().copied().skip(usize::from(first.is_some())))
    }

    /// The strings of one item, which lie at the beginning of its room. `None` where they do not fit into it.
    pub(crate) fn strings<'a>(&self, room: &'a [u8]) -> Option<&'a [u8]> {
        Some(strings::take(room, self.spec.elements()?)?.0)
    }
}

/// What a slot of a variant looks like. Both sides compute it from the same specs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) inputs: Vec<Place>,
    pub(crate) outputs: Vec<Place>,
    pub(crate) rows: u32,
    pub(crate) slot_bytes: usize,
    /// The greatest length of a batch, where that differs from batch to batch.
    pub(crate) longest: Option<u32>,
    /// Its batches are of exactly `rows` rows, so none is cut.
    pub(crate) exact: bool,
}

impl Layout {
    /// Lays tensors out for batches of up to `rows`, in an arena of at most `max_arena` bytes. `room` is what one item's
    /// strings may take.
    pub(crate) fn new(
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
        rows: u32,
        room: Bytes,
        max_arena: u64,
    ) -> Result<Self, String> {
        if inputs.is_empty() || outputs.is_empty() {
            return Err("a variant needs at least one input and one output".to_owned());
        }
        if inputs.len() > MAX_TENSORS || outputs.len() > MAX_TENSORS {
            return Err(format!("a variant may have at most {MAX_TENSORS} inputs and as many outputs"));
        }
        let mut end = 0_usize;
        let mut place = |spec: &TensorSpec| -> Result<Place, String> {
            if spec.shape.len() > MAX_AXES {
                return Err(format!("`{}` has more than {MAX_AXES} axes", spec.name));
            }
            let some = spec.elements().is_some_and(|elements| elements > 0);
            let item_bytes = spec.room(room).filter(|_| some).ok_or_else(|| {
                if spec.dtype == DType::Bytes && some {
                    return format!(
                        "`{}` has strings of shape {:?}, and their lengths alone take more than the {room} that there are \
                         for one item; give the variant a larger `string_bytes`",
                        spec.name, spec.shape
                    );
                }
                format!("`{}` has no fixed size: {:?} {:?}", spec.name, spec.dtype, spec.shape)
            })?;
            let offset = end;
            end = usize::try_from(rows)
                .ok()
                .and_then(|rows| item_bytes.checked_mul(rows))
                .and_then(|bytes| bytes.checked_next_multiple_of(ALIGN))
                .and_then(|bytes| bytes.checked_add(offset))
                .ok_or_else(|| format!("`{}` is too large", spec.name))?;
            Ok(Place { spec: spec.clone(), offset, item_bytes, follows: false })
        };
        let inputs = inputs.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
        let outputs = outputs.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
        let slot_bytes = end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        match slot_bytes.checked_mul(SLOTS_PER_LANE) {
            Some(bytes) if bytes as u64 <= max_arena => {
                Ok(Self { inputs, outputs, rows, slot_bytes, longest: None, exact: false })
            }
            _ => Err(format!(
                "its slots for batches of {rows} need {slot_bytes} bytes each; {SLOTS_PER_LANE} of them may take \
                 at most {max_arena}"
            )),
        }
    }

    /// The same for batches of different lengths. What a runner says of that is not believed unless its tensors bear it
    /// out: what lies where depends on it.
    pub(crate) fn stretching(mut self, stretch: Option<&Stretch>) -> Result<Self, String> {
        let Some(Stretch { longest, outputs }) = stretch else { return Ok(self) };
        if *longest == 0 || outputs.len() != self.outputs.len() {
            return Err("its lengths make no sense".to_owned());
        }
        self.longest = Some(*longest);
        for place in &mut self.inputs {
            place.follows = true;
        }
        for (place, follows) in self.outputs.iter_mut().zip(outputs) {
            place.follows = *follows;
        }
        let following = self.inputs.iter().chain(&self.outputs).filter(|place| place.follows);
        for Place { spec, .. } in following {
            if spec.shape.first() != Some(longest) || spec.dtype == DType::Bytes {
                return Err(format!(
                    "`{}` is {} {:?}, which is not {longest} long at most",
                    spec.name,
                    spec.dtype.name(),
                    spec.shape
                ));
            }
        }
        Ok(self)
    }

    /// The same for an artefact that takes exactly `rows` rows.
    pub(crate) fn exactly(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    /// Bytes of all slots of one lane.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.slot_bytes * SLOTS_PER_LANE
    }

    /// Some rows of a tensor in slot `index`, in a batch of these parts.
    pub(crate) fn range(&self, place: &Place, index: usize, parts: &Parts, rows: Range<u32>) -> Range<usize> {
        assert!(
            index < SLOTS_PER_LANE && rows.start <= rows.end && rows.end <= self.rows && self.takes(parts),
            "a slot or batch that does not exist; this is a bug"
        );
        let start = index * self.slot_bytes + place.offset;
        start + place.bytes_before(parts, rows.start)..start + place.bytes_before(parts, rows.end)
    }

    /// Whether a batch may be like this.
    pub(crate) fn takes(&self, parts: &Parts) -> bool {
        parts.rows() <= self.rows && parts.longest() <= self.longest.unwrap_or(0)
    }
}

/// The two slots of one lane: which of them are taken.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    taken: AtomicU8,
    freed: Notify,
}

impl Gate {
    /// Takes a free slot.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Token> {
        for index in 0..SLOTS {
            let bit = 1 << index;
            if self.taken.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                return Some(Token { gate: Arc::clone(self), index });
            }
        }
        None
    }
}

/// Tells when a slot of a lane is given back.
#[derive(Clone, Debug)]
pub struct Vacancy(pub(crate) Arc<Gate>);

impl Vacancy {
    /// Until a slot has been given back. It may have been before this was asked for, and somebody else may have taken it.
    pub async fn freed(&self) {
        self.0.freed.notified().await;
    }
}

/// Ownership of one slot of a lane; free again on drop.
#[derive(Debug)]
pub(crate) struct Token {
    gate: Arc<Gate>,
    index: u8,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.gate.taken.fetch_and(!(1 << self.index), Ordering::AcqRel);
        // One atomic operation where nobody waits, which is nearly always.
        self.gate.freed.notify_one();
    }
}

/// The inputs of one batch, to be filled and submitted.
#[derive(Debug)]
pub struct BatchSlot {
    pub(crate) variant: VariantId,
    /// Which load of the variant this belongs to; the memory of an earlier one means nothing to a later one.
    pub(crate) load: u64,
    /// Which of several engines it came from; see [`crate::EngineSet`].
    pub(crate) engine: u8,
    pub(crate) lane: u16,
    pub(crate) batch: u32,
    pub(crate) layout: Arc<Layout>,
    arena: Arc<Mapping>,
    token: Token,
    ticket: u64,
    pub(crate) parts: Parts,
}

/// Numbers batches, whatever engine and lane they are of.
static TICKETS: AtomicU64 = AtomicU64::new(1);

impl BatchSlot {
    pub(crate) fn new(
        (variant, load): (VariantId, u64),
        lane: u16,
        batch: u32,
        layout: &Arc<Layout>,
        arena: &Arc<Mapping>,
        gate: &Arc<Gate>,
    ) -> Result<Self, EngineError> {
        if batch == 0 || batch > layout.rows {
            return Err(EngineError::range("the batch", batch, format!("between 1 and {}", layout.rows)));
        }
        let token = gate.take().ok_or(EngineError::NoSlot { variant, lane })?;
        let (layout, arena) = (Arc::clone(layout), Arc::clone(arena));
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        let parts = Parts::one(batch, 0);
        Ok(Self { variant, load, engine: 0, lane, batch, layout, arena, token, ticket, parts })
    }

    /// Names the batch once it was submitted: see [`crate::Engine::revoke`].
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// The variant it is for.
    pub fn variant(&self) -> VariantId {
        self.variant
    }

    /// The lane it is for.
    pub fn lane(&self) -> u16 {
        self.lane
    }

    /// How many items it holds.
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// Makes it a batch of items of this length, or of the longest that the variant takes; nothing where its items have
    /// one length only. Before anything is written: what lies where depends on it.
    pub fn stretch(&mut self, length: u32) {
        let length = self.layout.longest.map_or(0, |longest| length.clamp(1, longest));
        self.parts = Parts::one(self.batch, length);
    }

    /// Whether it may be cut into parts of different lengths: see [`BatchSlot::cut`].
    pub fn may_be_cut(&self) -> bool {
        self.layout.longest.is_some() && !self.layout.exact
    }

    /// Cuts it into parts that have a length each, and are run one after another. Before anything is written, like
    /// [`BatchSlot::stretch`]; what is no such batch is left as long as its longest part.
    pub fn cut(&mut self, parts: &[Part]) {
        let sound = |cut: &Parts| self.may_be_cut() && cut.rows() == self.batch && self.layout.takes(cut);
        match Parts::of(parts).filter(sound) {
            Some(cut) => self.parts = cut,
            None => self.stretch(parts.iter().map(|part| part.length).max().unwrap_or(0)),
        }
    }

    /// What one item of each input looks like, in the longest batch.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &TensorSpec> {
        self.layout.inputs.iter().map(|place| &place.spec)
    }

    /// The rows of an input: item `i` begins at `i * item_bytes`, unless the batch was cut. They hold whatever an earlier batch of this
    /// variant left; all of them must be written. Panics if there is no such input.
    pub fn input_mut(&mut self, ix: usize) -> &mut [u8] {
        self.bytes_mut(self.span(&self.layout.inputs[ix], 0..self.batch))
    }

    /// One item of an input: of strings, the room for them. Panics if there is no such input or item.
    pub fn item_mut(&mut self, ix: usize, item: u32) -> &mut [u8] {
        assert!(item < self.batch, "item {item} of a batch of {}", self.batch);
        self.bytes_mut(self.span(&self.layout.inputs[ix], item..item + 1))
    }

    pub(crate) fn index(&self) -> u8 {
        self.token.index
    }

    /// Clears the rows behind the batch, for artefacts that take exactly `rows` items.
    pub(crate) fn pad(&mut self) {
        for ix in 0..self.layout.inputs.len() {
            let rest = self.batch..self.layout.rows;
            self.bytes_mut(self.span(&self.layout.inputs[ix], rest)).fill(0);
        }
    }

    /// Where some rows of a tensor lie in the arena.
    pub(crate) fn span(&self, place: &Place, rows: Range<u32>) -> Range<usize> {
        self.layout.range(place, self.token.index.into(), &self.parts, rows)
    }

    #[expect(unsafe_code, reason = "a view of shared memory that this slot owns")]
    pub(crate) fn bytes_mut(&mut self, span: Range<usize>) -> &mut [u8] {
        assert!(
            span.start / self.layout.slot_bytes == usize::from(self.token.index),
            "another slot's bytes; this is a bug"
        );
        let pointer = self.arena.pointer(&span);
        // SAFETY: in the mapping, which lives as long as `self`. The token makes this the only owner of the slot
        // in this process, `&mut self` the only view, and the runner touches a slot only between `submit` (which
        // takes the slot away from the caller) and its acknowledgement. Bytes have no invalid values.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), span.len()) }
    }

    #[expect(unsafe_code, reason = "a view of shared memory that this slot owns")]
    pub(crate) fn bytes(&self, span: Range<usize>) -> &[u8] {
        assert!(
            span.start / self.layout.slot_bytes == usize::from(self.token.index),
            "another slot's bytes; this is a bug"
        );
        let pointer = self.arena.pointer(&span);
        // SAFETY: as in `bytes_mut`. A runner that breaks the protocol can change these bytes while they are
        // read; then they are garbage of its own model's making, as wrong outputs would be.
        unsafe { std::slice::from_raw_parts(pointer.as_ptr(), span.len()) }
    }
}

/// The outputs of one batch, readable where the runner wrote them. Drop it soon: its slot is the lane's next.
#[derive(Debug)]
pub struct Outputs {
    slot: BatchSlot,
    /// Time of the run itself, measured in the runner.
    pub run_us: u64,
}

impl Outputs {
    pub(crate) fn new(slot: BatchSlot, run_us: u64) -> Self {
        Self { slot, run_us }
    }

    /// How many items there are.
    pub fn batch(&self) -> u32 {
        self.slot.batch
    }

    /// The variant that made them.
    pub fn variant(&self) -> VariantId {
        self.slot.variant
    }

    /// What one item of each output looks like.
    pub fn specs(&self) -> impl ExactSizeIterator<Item = &TensorSpec> {
        self.slot.layout.outputs.iter().map(|place| &place.spec)
    }

    /// The rows of an output: item `i` begins at `i * item_bytes`, unless the batch was cut. Panics if there is no such output.
    pub fn output(&self, ix: usize) -> &[u8] {
        self.slot.bytes(self.slot.span(&self.slot.layout.outputs[ix], 0..self.slot.batch))
    }

    /// One item of an output: of strings, the room that they lie in the beginning of. Panics if there is no such output
    /// or item.
    pub fn item(&self, ix: usize, item: u32) -> &[u8] {
        assert!(item < self.slot.batch, "item {item} of a batch of {}", self.slot.batch);
        self.slot.bytes(self.slot.span(&self.slot.layout.outputs[ix], item..item + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dtype: DType, shape: &[u32]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    fn lane(rows: u32) -> (Arc<Layout>, Arc<Mapping>, Arc<Gate>) {
        let inputs = [spec("a", DType::Fp32, &[3]), spec("b", DType::Bool, &[])];
        let output = [spec("c", DType::Int64, &[2])];
        let layout = Layout::new(&inputs, &output, rows, Bytes(0), 1 << 20).unwrap();
        let arena = Mapping::private(layout.arena_bytes()).unwrap();
        (Arc::new(layout), Arc::new(arena), Arc::new(Gate::default()))
    }

    #[test]
    fn a_lane_has_two_slots_and_gets_them_back() {
        let (layout, arena, gate) = lane(4);
        let take = || BatchSlot::new((VariantId(1), 1), 0, 4, &layout, &arena, &gate);
        let first = take().unwrap();
        let second = take().unwrap();
        assert_eq!(take().unwrap_err(), EngineError::NoSlot { variant: VariantId(1), lane: 0 });
        drop(first);
        let third = take().unwrap();
        assert_ne!(third.index(), second.index());
    }

    #[test]
    fn tensors_and_slots_do_not_overlap() {
        let (layout, arena, gate) = lane(4);
        let mut slots: Vec<_> = (0..2)
            .map(|_| BatchSlot::new((VariantId(1), 1), 0, 3, &layout, &arena, &gate).unwrap())
            .collect();
        for (i, slot) in (1_u8..).zip(&mut slots) {
            slot.input_mut(0).fill(i);
            slot.input_mut(1).fill(i + 10);
            slot.pad();
        }
        for (i, slot) in (1_u8..).zip(&mut slots) {
            assert_eq!((slot.input_mut(0).len(), slot.input_mut(1).len()), (36, 3));
            assert!(slot.input_mut(0).iter().all(|byte| *byte == i));
            assert!(slot.input_mut(1).iter().all(|byte| *byte == i + 10));
            assert_eq!(slot.item_mut(0, 2).len(), 12);
        }
    }

    #[test]
    fn a_batch_of_short_items_lies_as_close_as_its_tensors_do() {
        let inputs = [spec("ids", DType::Int64, &[16]), spec("mask", DType::Int64, &[16])];
        let outputs = [spec("all", DType::Fp32, &[16, 2]), spec("one", DType::Fp32, &[2])];
        let stretch = |longest, outputs: &[bool]| Stretch { longest, outputs: outputs.to_vec() };
        let layout = || Layout::new(&inputs, &outputs, 4, Bytes(0), 1 << 20).unwrap();
        let stretched = layout().stretching(Some(&stretch(16, &[true, false]))).unwrap();
        let arena = Arc::new(Mapping::private(stretched.arena_bytes()).unwrap());
        let gate = Arc::new(Gate::default());
        let stretched = Arc::new(stretched);
        let mut slot = BatchSlot::new((VariantId(1), 1), 0, 3, &stretched, &arena, &gate).unwrap();
        assert_eq!(slot.item_mut(0, 2).len(), 128);
        slot.stretch(5);
        assert_eq!((slot.input_mut(0).len(), slot.item_mut(1, 2).len()), (3 * 40, 40));
        for row in 0..3 {
            slot.item_mut(0, row).fill(u8::try_from(row).unwrap() + 1);
        }
        assert_eq!(slot.input_mut(0), [[1; 40], [2; 40], [3; 40]].concat());
        assert_eq!(slot.span(&stretched.outputs[0], 0..1).len(), 5 * 2 * 4);
        assert_eq!(slot.span(&stretched.outputs[1], 0..1).len(), 2 * 4);
        // Parts lie one behind the other, each as close as its own items are.
        slot.cut(&[Part { rows: 2, length: 2 }, Part { rows: 1, length: 16 }]);
        assert_eq!((slot.item_mut(0, 1).len(), slot.item_mut(0, 2).len()), (16, 128));
        for row in 0..3 {
            slot.item_mut(0, row).fill(u8::try_from(row).unwrap() + 1);
        }
        assert_eq!(slot.input_mut(0), [vec![1; 16], vec![2; 16], vec![3; 128]].concat());
        assert_eq!(slot.span(&stretched.outputs[0], 0..3).len(), (2 + 2 + 16) * 2 * 4);
        // What is no cut of this batch is as long as the longest of it.
        for wrong in [&[Part { rows: 4, length: 5 }][..], &[Part { rows: 2, length: 5 }; 2], &[]] {
            slot.cut(wrong);
            assert_eq!(slot.input_mut(0).len(), 3 * 8 * wrong.first().map_or(1, |_| 5), "{wrong:?}");
        }
        let exact = Arc::new(layout().stretching(Some(&stretch(16, &[true, false]))).unwrap().exactly(true));
        let exact = BatchSlot::new((VariantId(1), 1), 0, 3, &exact, &arena, &Arc::default()).unwrap();
        assert!(slot.may_be_cut() && !exact.may_be_cut());
        slot.stretch(99);
        assert_eq!(slot.item_mut(0, 0).len(), 128);
        // What a runner says is looked at.
        for wrong in
            [stretch(17, &[true, false]), stretch(16, &[true, true]), stretch(16, &[true]), stretch(0, &[])]
        {
            assert!(layout().stretching(Some(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let (layout, arena, gate) = lane(4);
        for batch in [0, 5] {
            assert!(BatchSlot::new((VariantId(1), 1), 0, batch, &layout, &arena, &gate).is_err());
        }
        let output = [spec("c", DType::Fp32, &[1])];
        for (input, rows) in [
            (spec("a", DType::Bytes, &[26]), 1),
            (spec("a", DType::Bytes, &[0]), 1),
            (spec("a", DType::Bytes, &[1]), 6_000),
            (spec("a", DType::Fp32, &[u32::MAX, u32::MAX, u32::MAX]), 1),
            (spec("a", DType::Fp32, &[1 << 20]), 1),
            (spec("a", DType::Fp32, &[0]), 1),
            (spec("a", DType::Fp32, &[1; 9]), 1),
            (spec("a", DType::Fp32, &[1]), u32::MAX),
        ] {
            let layout = Layout::new(std::slice::from_ref(&input), &output, rows, Bytes(100), 1 << 20);
            assert!(layout.is_err(), "{input:?}");
        }
    }

    #[test]
    fn strings_have_a_room_of_fixed_size_for_each_item() {
        let texts = [spec("a", DType::Bytes, &[2])];
        let layout = Layout::new(&texts, &texts, 3, Bytes(100), 1 << 20).unwrap();
        assert_eq!(layout.inputs[0].item_bytes, 100);
        assert_eq!(layout.outputs[0].offset, 320);
        let mut room = [0xee; 100];
        room[..9].copy_from_slice(&[1, 0, 0, 0, b'x', 0, 0, 0, 0]);
        assert_eq!(layout.inputs[0].strings(&room), Some(&room[..9]));
        room[0] = 99;
        assert_eq!(layout.inputs[0].strings(&room), None);
    }
}
