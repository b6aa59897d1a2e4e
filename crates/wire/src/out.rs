//! What waits to be written on one connection, and what goes next.
//!
//! Small frames go in their order. The payloads of large ones go in parts between them, each of those under way in its
//! turn; small frames go first, but not for ever. So a small query waits for one part at most, however much is under
//! way before it. Holds no socket and reads no clock.

use crate::codec;
use crate::config::limits;
use crate::frame::{Bound, Encoded, HEADER, Header, STREAM, WAITED};
use bytes::Bytes as Buffer;
use modelless_types::{Micros, QueryKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use tokio::time::Instant;

/// More waits than is kept for a slow peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overflow {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Out {
    small: VecDeque<Waiting>,
    /// Large frames whose turn has not come.
    large: VecDeque<Waiting>,
    /// Those that go in parts, the next one first.
    under_way: VecDeque<Cut>,
    /// Bytes of small frames since a part last went.
    ahead: usize,
    /// What waits of frames that are counted.
    frames: usize,
    bytes: usize,
    /// Bytes of answers that wait.
    answers: usize,
    /// What is to be said of large queries once they are written: before, the other side does not know them.
    behind: BTreeMap<QueryKey, Encoded>,
    /// What was announced, and of which the other side has heard nothing since: neither the query, nor that it is not to be had.
    announced: BTreeSet<QueryKey>,
}

#[derive(Debug)]
struct Waiting {
    frame: Encoded,
    since: Instant,
}

#[derive(Debug)]
struct Cut {
    stream: u16,
    bound: Bound,
    /// Header and head, until they are written.
    opening: Option<(Vec<u8>, Instant)>,
    payload: [Buffer; 2],
    given_up: bool,
}

/// Bytes that are written before any others.
#[derive(Debug)]
pub(crate) struct Unit {
    head: Vec<u8>,
    payload: [Buffer; 2],
    written: usize,
}

impl Unit {
    pub(crate) fn left(&self) -> usize {
        self.head.len() + self.payload.iter().map(Buffer::len).sum::<usize>() - self.written
    }

    pub(crate) fn parts(&self) -> [IoSlice<'_>; 3] {
        let mut skip = self.written;
        let [first, second] = &self.payload;
        [&self.head[..], first, second].map(|part| {
            let from = skip.min(part.len());
            skip -= from;
            IoSlice::new(&part[from..])
        })
    }

    pub(crate) fn wrote(&mut self, count: usize) {
        self.written += count;
    }
}

impl Out {
    pub(crate) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty() && self.under_way.is_empty()
    }

    /// Whether an answer of so many bytes may wait here.
    pub(crate) fn has_room_for_answer(&self, bytes: usize) -> bool {
        self.answers == 0 || self.answers + bytes <= limits::QUEUE_ANSWERS
    }

    pub(crate) fn push(&mut self, frame: Encoded, now: Instant) -> Result<(), Overflow> {
        // Of reports only the newest counts, and it comes after what was said before.
        let older = |waiting: &Waiting| waiting.frame.bound == Bound::Newest;
        if frame.bound == Bound::Newest
            && let Some(at) = self.small.iter().position(older)
            && let Some(old) = self.small.remove(at)
        {
            self.leaves(old.frame.bound, old.frame.len());
        }
        if let Bound::Announced(key) = frame.bound {
            self.announced.insert(key);
        }
        self.comes(frame.bound, frame.len());
        let queue = if frame.is_cut() { &mut self.large } else { &mut self.small };
        queue.push_back(Waiting { frame, since: now });
        self.check()
    }

    /// Says something of a query, which is not to overtake it.
    pub(crate) fn push_behind(
        &mut self,
        key: QueryKey,
        frame: Encoded,
        now: Instant,
    ) -> Result<(), Overflow> {
        let bound = Bound::Query(key);
        if self.large.iter().any(|waiting| waiting.frame.bound == bound)
            || self.under_way.iter().any(|cut| cut.bound == bound && !cut.given_up)
        {
            self.behind.insert(key, frame);
            return Ok(());
        }
        self.push(frame, now)
    }

    fn check(&self) -> Result<(), Overflow> {
        let Self { frames, bytes, .. } = *self;
        if frames > limits::QUEUE_FRAMES || (bytes > limits::QUEUE_BYTES && frames > 1) {
            return Err(Overflow { frames, bytes });
        }
        Ok(())
    }

    fn comes(&mut self, bound: Bound, bytes: usize) {
        match bound {
            Bound::Own | Bound::Newest => {
                self.frames += 1;
                self.bytes += bytes;
            }
            Bound::Outcome(_) => self.answers += bytes,
            Bound::Query(_) | Bound::Announced(_) => {}
        }
    }

    fn leaves(&mut self, bound: Bound, bytes: usize) {
        match bound {
            Bound::Own | Bound::Newest => {
                self.frames -= 1;
                self.bytes -= bytes;
            }
            Bound::Outcome(_) => self.answers -= bytes,
            Bound::Query(_) | Bound::Announced(_) => {}
        }
    }

    /// Nobody waits for a query any longer: it is not sent, or not to its end. False if it is not here (any more), or was announced, so
    /// that whoever has it, or has heard of it, must be told.
    pub(crate) fn take_back_query(&mut self, key: QueryKey) -> Result<bool, Overflow> {
        if self.announced.remove(&key) {
            let announced = Bound::Announced(key);
            let at = self.small.iter().position(|waiting| waiting.frame.bound == announced);
            let unsaid = at.and_then(|at| self.small.remove(at)).is_some();
            return self.take_back_query(key).map(|_| unsaid);
        }
        let is = |frame: &Encoded| frame.bound == Bound::Query(key);
        if let Some(waiting) = self.small.iter_mut().find(|waiting| is(&waiting.frame)) {
            // What it said of others is still news.
            let Some(rest) = codec::demand_instead(&waiting.frame) else { return Ok(false) };
            let (bound, bytes) = (rest.bound, rest.len());
            waiting.frame = rest;
            self.comes(bound, bytes);
            return self.check().map(|()| true);
        }
        Ok(self.take_back_large(Bound::Query(key)))
    }

    /// The other side will not claim a query.
    pub(crate) fn declined(&mut self, key: QueryKey) {
        self.announced.remove(&key);
    }

    /// A query was refused before all of it was sent.
    pub(crate) fn stop_query(&mut self, key: QueryKey) -> bool {
        self.take_back_large(Bound::Query(key))
    }

    /// Nobody waits for an answer any longer. A small one goes its way, since its report is news.
    pub(crate) fn take_back_answer(&mut self, key: QueryKey) {
        self.take_back_large(Bound::Outcome(key));
    }

    fn take_back_large(&mut self, bound: Bound) -> bool {
        if let Bound::Query(key) = bound {
            self.behind.remove(&key);
        }
        if let Some(at) = self.large.iter().position(|waiting| waiting.frame.bound == bound) {
            if let Some(taken) = self.large.remove(at) {
                self.leaves(bound, taken.frame.len());
            }
            return true;
        }
        let Some(at) = self.under_way.iter().position(|cut| cut.bound == bound && !cut.given_up) else {
            return false;
        };
        let cut = &mut self.under_way[at];
        let left: usize = cut.payload.iter().map(Buffer::len).sum();
        cut.payload = [Buffer::new(), Buffer::new()];
        let opening = cut.opening.take().map(|(opening, _)| opening.len());
        if opening.is_some() {
            self.under_way.remove(at); // the other side has not heard of it
        } else {
            cut.given_up = true;
        }
        self.leaves_bytes(bound, left + opening.unwrap_or(0));
        if opening.is_some() {
            self.leaves_frame(bound);
        }
        true
    }

    /// What is to be written next, if anything.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Unit> {
        let large = !self.large.is_empty() || !self.under_way.is_empty();
        if large && (self.small.is_empty() || self.ahead >= limits::AHEAD) {
            self.ahead = 0;
            return self.part(now);
        }
        let Waiting { frame, since } = self.small.pop_front()?;
        self.leaves(frame.bound, frame.len());
        self.is_heard(frame.bound);
        self.ahead = if large { self.ahead + frame.len() } else { 0 };
        let mut head = frame.head;
        stamp(&mut head, since, now);
        Some(Unit { head, payload: frame.payload, written: 0 })
    }

    fn part(&mut self, now: Instant) -> Option<Unit> {
        while self.under_way.len() < usize::from(limits::STREAMS)
            && let Some(Waiting { frame, since }) = self.large.pop_front()
        {
            let taken = |stream: u16| self.under_way.iter().any(|cut| cut.stream == stream);
            let stream = (1..=limits::STREAMS).find(|stream| !taken(*stream))?;
            let mut head = frame.head;
            head[STREAM].copy_from_slice(&stream.to_le_bytes());
            self.under_way.push_back(Cut {
                stream,
                bound: frame.bound,
                opening: Some((head, since)),
                payload: frame.payload,
                given_up: false,
            });
        }
        let mut cut = self.under_way.pop_front()?;
        let mut head = Vec::new();
        if let Some((opening, since)) = cut.opening.take() {
            head = opening;
            head.reserve_exact(HEADER);
            stamp(&mut head, since, now);
        }
        let opening = head.len();
        let first = cut.payload[0].len().min(limits::PART);
        let second = cut.payload[1].len().min(limits::PART - first);
        let payload = [cut.payload[0].split_to(first), cut.payload[1].split_to(second)];
        head.extend_from_slice(&Header::of_part(cut.stream, first + second));
        self.leaves_bytes(cut.bound, opening + first + second);
        if cut.payload.iter().all(Buffer::is_empty) {
            self.leaves_frame(cut.bound);
            if !cut.given_up {
                self.is_heard(cut.bound);
            }
            if let Bound::Query(key) = cut.bound
                && let Some(frame) = self.behind.remove(&key)
            {
                self.comes(frame.bound, frame.len());
                self.small.push_back(Waiting { frame, since: now });
            }
        } else {
            self.under_way.push_back(cut);
        }
        Some(Unit { head, payload, written: 0 })
    }

    /// All of a query is on its way: what was announced of it is over.
    fn is_heard(&mut self, bound: Bound) {
        if let Bound::Query(key) = bound {
            self.announced.remove(&key);
        }
    }

    fn leaves_bytes(&mut self, bound: Bound, bytes: usize) {
        match bound {
            Bound::Own | Bound::Newest => self.bytes -= bytes,
            Bound::Outcome(_) => self.answers -= bytes,
            Bound::Query(_) | Bound::Announced(_) => {}
        }
    }

    fn leaves_frame(&mut self, bound: Bound) {
        match bound {
            Bound::Own | Bound::Newest => self.frames -= 1,
            Bound::Outcome(_) | Bound::Query(_) | Bound::Announced(_) => {}
        }
    }
}

/// How long it waited until now.
fn stamp(head: &mut [u8], since: Instant, now: Instant) {
    let waited = Micros(u64::try_from(now.saturating_duration_since(since).as_micros()).unwrap_or(u64::MAX));
    let waited = u32::try_from(waited.0).unwrap_or(u32::MAX);
    head[WAITED].copy_from_slice(&waited.to_le_bytes());
}
