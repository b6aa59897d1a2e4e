//! A batch from binding to its answers: prepared in its slot, run, made into answers, delivered.

mod answering;
pub(crate) mod parts;

use crate::catalogue::Known;
use crate::core::Handle;
use crate::intake::decode;
use crate::log::{About, keys};
use crate::telling::{Telling, is_telling};
use modelless_adapter::{Decoded, OutputParams, PrepareError, Scratch};
use modelless_decision::worker::{BatchId, Event, Failure, LaneIx, Outcome, Reason};
use modelless_decision::{Correction, Moments};
use modelless_engine::{BatchError, BatchResult, BatchSlot, EngineError, says_memory};
use modelless_types::{Engine as EngineKind, Micros, Processor, QueryKey, Refusal, Time, VariantId};
use modelless_wire::{Body, InputFault};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A slot is given back on another thread a moment before its lane is told; so many looks bridge that moment.
const SLOT_TRIES: u32 = 100;
/// Where that thread was put aside meanwhile the moment may be longer. A slot that is not back by then was lost.
const SLOT_WITHIN: Duration = Duration::from_secs(1);

/// Far more batches than are bound at any time.
const GIVEN_UP: usize = 4_096;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// A batch that is bound and not done.
pub(crate) struct Flight {
    variant: VariantId,
    lane: LaneIx,
    known: Arc<Known>,
    members: Vec<Member>,
    expected: Moments,
    bound: Time,
    prepare: Micros,
    started: Time,
    /// From preparing until it is handed over.
    slot: Option<BatchSlot>,
    /// What the engine knows it by from then on.
    ticket: Option<u64>,
    /// From its end until it is delivered.
    answers: Vec<(QueryKey, Body)>,
    /// When it ended, once it has.
    ended: Time,
}

struct Member {
    key: QueryKey,
    reason: Reason,
    params: OutputParams,
    came: Time,
    decode: Micros,
    /// `None` once it fell out; its row is left as zeros and nobody hears of it.
    input: Option<Arc<Decoded>>,
}

/// Why a query is not in its batch.
pub(crate) enum Unwritten {
    /// Nobody waits for it any longer.
    Gone,
    /// Its strings are longer than the variant takes.
    TooLarge(String),
    Failed(String),
}

impl From<PrepareError> for Unwritten {
    fn from(error: PrepareError) -> Self {
        let why = error.to_string();
        if matches!(error, PrepareError::TooLong { .. } | PrepareError::TooManyTokens { .. }) {
            Self::TooLarge(why)
        } else {
            Self::Failed(why)
        }
    }
}

impl Flight {
    pub(crate) fn engine(&self) -> EngineKind {
        self.known.settings.engine
    }

    pub(crate) fn variant(&self) -> VariantId {
        self.variant
    }

    /// What the log says of it.
    pub(crate) fn about(&self) -> About {
        let queries = self.members.iter().filter(|member| member.input.is_some()).map(|member| member.key);
        let (variant, model) = (self.variant, self.known.model);
        About { model, variant, ticket: self.ticket, queries: queries.collect() }
    }

    /// It is handed over now.
    pub(crate) fn starts(&mut self, now: Time) {
        self.started = now;
    }
}

/// What an engine's error says of a batch.
pub(crate) fn failure(error: &BatchError) -> Failure {
    match error {
        BatchError::Model(why) if says_memory(why) => Failure::Memory,
        BatchError::Model(_) | BatchError::Shape(_) => Failure::Model,
        BatchError::Crashed(_) | BatchError::Killed(_) => Failure::Process,
        BatchError::Hung(_) => Failure::Hung,
        BatchError::Unreachable(_) => Failure::Unreachable,
        BatchError::NotStarted(_) | BatchError::Revoked => Failure::NotStarted,
    }
}

impl Handle {
    pub(crate) fn prepare(
        &self,
        batch: BatchId,
        lane: LaneIx,
        variant: VariantId,
        members: Vec<(QueryKey, Reason)>,
        expected: Moments,
    ) {
        let size = u32::try_from(members.len()).unwrap_or(u32::MAX);
        match self.slot(variant, lane, size) {
            Ok(slot) => self.prepare_in(slot, batch, lane, variant, members, expected),
            Err(EngineError::NoSlot { .. }) => {
                let me = self.clone();
                self.spawn(async move {
                    match me.slot_patiently(variant, lane, size).await {
                        Ok(slot) => me.prepare_in(slot, batch, lane, variant, members, expected),
                        Err(error) => me.not_started(batch, &keys(&members), error.to_string()),
                    }
                });
            }
            Err(error) => self.not_started(batch, &keys(&members), error.to_string()),
        }
    }

    fn prepare_in(
        &self,
        slot: BatchSlot,
        batch: BatchId,
        lane: LaneIx,
        variant: VariantId,
        members: Vec<(QueryKey, Reason)>,
        expected: Moments,
    ) {
        let bound = self.now();
        let Some(known) = self.catalogue().variant(variant) else {
            let why = "its variant is not registered any longer".into();
            return self.not_started(batch, &keys(&members), why);
        };
        let inline = Moments::mean(expected) <= self.config().prepare_inline || !self.writes_slowly(&members);
        let members = self.members(members);
        let flight = Flight {
            variant,
            lane,
            known,
            members,
            expected,
            bound,
            prepare: Micros::ZERO,
            started: bound,
            slot: None,
            ticket: None,
            answers: Vec::new(),
            ended: bound,
        };
        if inline {
            return self.write(batch, flight, slot);
        }
        let (me, queries) = (self.clone(), flight.about().queries);
        self.spawn(async move {
            let written = tokio::task::spawn_blocking({
                let me = me.clone();
                move || me.write(batch, flight, slot)
            });
            if let Err(error) = written.await {
                tracing::error!(%error, "writing a batch panicked; this is a bug");
                me.not_started(batch, &queries, "its inputs could not be written".into());
            }
        });
    }

    /// A query that is rerun alone.
    pub(crate) fn alone(
        &self,
        key: QueryKey,
        variant: VariantId,
        known: Arc<Known>,
        expected: Moments,
    ) -> Flight {
        let bound = self.now();
        Flight {
            variant,
            lane: LaneIx(0),
            known,
            members: self.members(vec![(key, Reason::Rerun)]),
            expected,
            bound,
            prepare: Micros::ZERO,
            started: bound,
            slot: None,
            ticket: None,
            answers: Vec::new(),
            ended: bound,
        }
    }

    /// Writes the only member of such a flight.
    pub(crate) fn write_first(&self, flight: &mut Flight, slot: &mut BatchSlot) -> Result<(), Unwritten> {
        let member = flight.members.first_mut().ok_or(Unwritten::Gone)?;
        self.decode_again(&flight.known, member)?;
        self.shape(&flight.known, std::slice::from_mut(&mut *member), slot);
        write_row(&flight.known, member, 0, slot)?;
        flight.prepare = self.now() - flight.bound;
        Ok(())
    }

    /// Pictures that must be resized cost real time; what is copied does not.
    fn writes_slowly(&self, members: &[(QueryKey, Reason)]) -> bool {
        let queries = self.queries();
        let decoded = members.iter().filter_map(|(key, _)| queries.get(key)?.decoded.clone());
        decoded.map(|decoded| decoded.bytes()).sum::<usize>() > 64 << 10
    }

    fn slot(&self, variant: VariantId, lane: LaneIx, size: u32) -> Result<BatchSlot, EngineError> {
        let mut tries = 0;
        loop {
            match self.engine().slot(variant, lane.0, size) {
                Err(EngineError::NoSlot { .. }) if tries < SLOT_TRIES => {
                    tries += 1;
                    std::thread::yield_now();
                }
                other => return other,
            }
        }
    }

    async fn slot_patiently(
        &self,
        variant: VariantId,
        lane: LaneIx,
        size: u32,
    ) -> Result<BatchSlot, EngineError> {
        let take = || self.engine().slot(variant, lane.0, size);
        let Some(vacancy) = self.engine().vacancy(variant, lane.0) else { return take() };
        let taken = async {
            loop {
                match take() {
                    Err(EngineError::NoSlot { .. }) => vacancy.freed().await,
                    other => return other,
                }
            }
        };
        tokio::time::timeout(SLOT_WITHIN, taken).await.unwrap_or_else(|_| take())
    }

    fn members(&self, keys: Vec<(QueryKey, Reason)>) -> Vec<Member> {
        let queries = self.queries();
        let member = |(key, reason): (QueryKey, Reason)| match queries.get(&key) {
            Some(p) => Member {
                key,
                reason,
                params: p.params,
                came: p.came,
                decode: p.decode,
                input: p.decoded.clone(),
            },
            None => Member {
                key,
                reason,
                params: OutputParams::default(),
                came: Time::ZERO,
                decode: Micros::ZERO,
                input: None,
            },
        };
        keys.into_iter().map(member).collect()
    }

    /// Writes every member's row, then tells the machine. Who is refused meanwhile may bring another who is, whom the machine would bind
    /// next: see `telling`.
    fn write(&self, batch: BatchId, flight: Flight, slot: BatchSlot) {
        let telling = Telling::begin();
        self.write_rows(batch, flight, slot);
        telling.end();
    }

    fn write_rows(&self, batch: BatchId, mut flight: Flight, mut slot: BatchSlot) {
        let mut dropped = Vec::new();
        // As the variant wants them first: how long the batch is depends on all of them.
        let Flight { known, members, .. } = &mut flight;
        let undecoded = |member: &mut Member| Some((member.key, self.decode_again(known, member).err()?));
        let mut undecoded: BTreeMap<_, _> = members.iter_mut().filter_map(undecoded).collect();
        self.shape(known, members, &mut slot);
        for row in 0..flight.members.len() {
            let member = &flight.members[row];
            let ready = undecoded.remove(&member.key).map_or(Ok(()), Err);
            let key = member.key;
            let row = u32::try_from(row).unwrap_or(u32::MAX);
            match ready.and_then(|()| write_row(&flight.known, member, row, &mut slot)) {
                Ok(()) => {}
                Err(why) => {
                    let inputs = slot.inputs().len();
                    for input in 0..inputs {
                        slot.item_mut(input, row).fill(0);
                    }
                    flight.members[row as usize].input = None;
                    dropped.push(key);
                    match why {
                        Unwritten::Gone => {}
                        Unwritten::Failed(why) => {
                            self.tell_failed(key, flight.variant, &why);
                            self.refuse(key, Refusal::ModelError { why });
                        }
                        Unwritten::TooLarge(why) => {
                            if self.queries().remove(&key).is_some() {
                                self.refuse_input(key, InputFault::TooLarge, why);
                            }
                        }
                    }
                }
            }
        }
        flight.prepare = self.now() - flight.bound;
        flight.slot = Some(slot);
        {
            let mut batches = self.batches();
            if self.given_up().remove(&batch) {
                return;
            }
            batches.insert(batch, flight);
        }
        self.feed(Event::Prepared { batch, dropped });
    }

    /// For a variant whose preparation is not the one that the query was decoded for.
    fn decode_again(&self, known: &Known, member: &mut Member) -> Result<(), Unwritten> {
        let input = match self.queries().get(&member.key) {
            Some(pending) if pending.preparation != known.preparation_id => Arc::clone(&pending.input),
            Some(_) | None => return Ok(()),
        };
        // Where it cannot be, nothing is left that could be taken for it.
        member.input = None;
        let decoded = decode(&known.preparation, &input);
        member.input = Some(Arc::new(decoded.map_err(|error| Unwritten::Failed(error.to_string()))?));
        Ok(())
    }

    /// Drops a batch that will not be started. Whoever still prepares it, or is yet to begin, finds out when it is done:
    /// what two threads are told by the machine they do in any order.
    pub(crate) fn discard(&self, batch: BatchId) {
        self.tell_given_up(batch);
        let mut batches = self.batches();
        if batches.remove(&batch).is_none() {
            let mut given_up = self.given_up();
            given_up.insert(batch);
            // One that could not be prepared may be given up after all was said of it.
            if given_up.len() > GIVEN_UP {
                given_up.pop_first();
            }
        }
    }

    pub(crate) fn start(&self, batch: BatchId) {
        let taken = self.batches().get_mut(&batch).and_then(|flight| {
            flight.started = self.now();
            self.mark_ran(&flight.members);
            let place = (flight.variant, flight.lane);
            let limit = self.config().hung_limit(flight.expected.p99(), flight.engine());
            flight.ticket = flight.slot.as_ref().map(BatchSlot::ticket);
            flight.slot.take().map(|slot| (slot, limit, place, flight.members.len()))
        });
        let Some((slot, limit, place, members)) = taken else {
            let queries = self.about(batch).map(|about| about.queries).unwrap_or_default();
            return self.not_started(batch, &queries, "its slot is gone; this is a bug".into());
        };
        self.tally().started(members);
        *self.core().last.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        let me = self.clone();
        self.engine().submit(slot, limit, Box::new(move |result| me.ended(batch, result)));
    }

    /// Nobody waits for a batch any longer that was handed over.
    pub(crate) fn revoke(&self, batch: BatchId) {
        let place = self.batches().get(&batch).and_then(|f| Some((f.variant, f.lane, f.ticket?)));
        // It may have ended this moment.
        if let Some((variant, lane, ticket)) = place {
            self.engine().revoke(variant, lane.0, ticket);
        }
    }

    /// A batch runs far longer than it should: it stands back behind everything else from now on.
    pub(crate) fn suspect(&self, batch: BatchId) {
        let place = self
            .batches()
            .get(&batch)
            .and_then(|f| Some((f.variant, f.lane, f.ticket?, f.expected, f.about())));
        if let Some((variant, lane, ticket, expected, about)) = place {
            self.tell_suspected(&about, expected.p99());
            self.engine().stand_back(variant, lane.0, ticket);
        }
    }

    /// Wakes the runner that most likely answers the query that is being read, if nothing else is going on.
    pub(crate) fn prime(&self) {
        let idle = self.config().wait_inline > Micros::ZERO && self.queries().is_empty();
        let last = *self.core().last.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some((variant, lane))) = (idle, last) {
            self.engine().prime(variant, lane.0);
        }
    }

    /// Waits on this thread for the one batch that runs, if it is the only one, holds a single query and is short. The
    /// caller has nothing better to do: its client waits for just this answer. Who tells an answer has.
    pub(crate) fn wait_if_alone(&self) {
        if is_telling() {
            return;
        }
        let most = self.config().wait_inline;
        let alone = {
            let batches = self.batches();
            let mut all = batches.values();
            match (all.next(), all.next()) {
                (Some(only), None) if only.slot.is_none() && only.members.len() == 1 => {
                    let short = only.expected.mean() <= most;
                    short.then_some((only.variant, only.lane))
                }
                _ => None,
            }
        };
        if let Some((variant, lane)) = alone
            && self.queries().len() == 1
        {
            self.engine().help(variant, lane.0, Duration::from_micros(most.0));
        }
    }

    fn not_started(&self, batch: BatchId, queries: &[QueryKey], why: String) {
        self.tell_not_started(queries, &why);
        self.given_up().remove(&batch);
        self.fell_through(batch, Outcome::Failed { failure: Failure::NotStarted, why });
    }

    /// On the engine's thread: answers are made from the slot, which is free again before the machine hears of it.
    fn ended(&self, batch: BatchId, result: BatchResult) {
        let mut variant = None;
        if let Err(error) = &result {
            self.tell_ended(batch, error);
        }
        let outcome = match result {
            Ok(outputs) => {
                let flight = self.batches().remove(&batch);
                if let Some(mut flight) = flight {
                    variant = Some(flight.variant);
                    flight.answers = self.answers(&flight, &outputs);
                    flight.ended = self.now();
                    self.batches().insert(batch, flight);
                }
                drop(outputs);
                Outcome::Ran
            }
            Err(BatchError::Revoked) => Outcome::Revoked,
            Err(error) => {
                let outcome = Outcome::Failed { failure: failure(&error), why: error.to_string() };
                if !matches!(failure(&error), Failure::Model | Failure::Memory | Failure::Unreachable) {
                    return self.fell_through(batch, outcome);
                }
                outcome
            }
        };
        self.feed(Event::Done { batch, outcome });
        if let Some(variant) = variant {
            self.tell_leap(variant);
        }
    }

    /// Has the status made known now, instead of within a second, if the variant became so much slower or quicker.
    fn tell_leap(&self, variant: VariantId) {
        let core = self.core();
        let now = core.driver.look(|worker, _| worker.correction(variant));
        let told = core.told.lock().unwrap_or_else(PoisonError::into_inner);
        if now.leapt_from(told.get(&variant).unwrap_or(&Correction::NONE)) {
            core.changed.notify_one();
        }
    }

    fn mark_ran(&self, members: &[Member]) {
        let mut queries = self.queries();
        for member in members {
            if let Some(pending) = queries.get_mut(&member.key) {
                pending.ran = true;
            }
        }
    }

    /// Queries whose batch was handed over but stands behind another of its lane and its runner, so that nothing of it ran yet.
    pub(crate) fn behind(&self) -> BTreeSet<QueryKey> {
        let batches = self.batches();
        let place = |flight: &Flight| {
            let settings = &flight.known.settings;
            (flight.lane, flight.known.model, settings.engine, settings.processor != Processor::Cpu)
        };
        let mut first = BTreeMap::new();
        for flight in batches.values().filter(|flight| flight.ticket.is_some()) {
            let started = first.entry(place(flight)).or_insert(flight.started);
            *started = flight.started.min(*started);
        }
        let later = |flight: &&Flight| first.get(&place(flight)).is_some_and(|first| flight.started > *first);
        let members = batches.values().filter(later).flat_map(|flight| &flight.members);
        members.filter(|member| member.reason != Reason::Rerun).map(|member| member.key).collect()
    }
}

fn write_row(known: &Known, member: &Member, row: u32, slot: &mut BatchSlot) -> Result<(), Unwritten> {
    let Some(decoded) = &member.input else { return Err(Unwritten::Gone) };
    let adapter = known
        .adapter()
        .ok_or_else(|| Unwritten::Failed("its adapter was never bound; this is a bug".into()))?;
    let inputs = slot.inputs().len();
    SCRATCH.with_borrow_mut(|scratch| {
        (0..inputs).try_for_each(|input| {
            let into = slot.item_mut(input, row);
            adapter.prepare(decoded, input, into, scratch).map_err(Unwritten::from)
        })
    })
}
