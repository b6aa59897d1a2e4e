//! One lane's requests and replies, in one sealed page of shared memory.
//!
//! Two counters, one for each direction, are futexes: publishing is a store and a wake. On the machines where
//! this was tried a futex woke the other process 15 to 25 microseconds sooner than a message on a Unix socket.
//! A counter is all that tells of news, so a request or reply is never half seen; at most two are under way,
//! because a lane has two slots.
//!
//! The executor believes nothing the runner writes here: it copies a reply out and then checks the copy.

use crate::parts::{MAX_PARTS, Part, Parts};
use crate::shm::{self, Mapping};
use crate::slot::{MAX_AXES, MAX_TENSORS, Place, SLOTS_PER_LANE};
use modelless_types::DType;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of a lane's page.
pub(crate) const RING_BYTES: usize = REPLIES + SLOTS_PER_LANE * REPLY_BYTES;

const VERSION: u8 = 3;
/// Counters run modulo 2^31; the top bit of `DONE` says that the runner is gone and wakes the reader for it.
const COUNT: u32 = u32::MAX >> 1;
const GONE: u32 = !COUNT;

/// How long a runner that was told of a request to come stays awake for it. Reading a small query takes less.
const LINGER: Duration = Duration::from_micros(300);

const SENT: usize = 0;
const DONE: usize = 64;
/// Not zero while somebody on the executor's side watches `DONE` without sleeping, so that nobody need be woken.
const WATCHED: usize = 128;
const REQUESTS: usize = 192;
const REQUEST_BYTES: usize = 64;
/// Where in a request's entry it is said that nobody waits for it any longer.
const REVOKED: usize = 60;
const REPLIES: usize = 4096;
const REPLY_BYTES: usize = 4096;
const HEAD: usize = 16;
/// A request, which ends before [`REVOKED`].
const ASKED: usize = 12 + MAX_PARTS * PART;
const PART: usize = 8;
const _: () = assert!(ASKED <= REVOKED);
const MAX_BODY: usize = REPLY_BYTES - HEAD;

/// A batch to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) variant: u32,
    pub(crate) slot: u32,
    /// Its rows, those included that only fill up.
    pub(crate) parts: Parts,
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    pub(crate) run_us: u64,
    pub(crate) answer: Answer,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It was taken back before it began.
    Revoked,
    /// It ran; the shapes of the outputs with their batch axis, encoded by [`Shapes`].
    Ran(Shapes),
    /// The library refused it.
    Failed(String),
    /// An output does not fit where it should go.
    Misshapen(String),
    /// What it would have been computed on did not answer.
    Unreachable(String),
}

/// Either side's view of a lane.
#[derive(Debug)]
pub(crate) struct Ring(Mapping);

impl Ring {
    pub(crate) fn create() -> io::Result<(OwnedFd, Self)> {
        let (fd, mapping) = Mapping::create("modelless-lane", RING_BYTES)?;
        Ok((fd, Self(mapping)))
    }

    pub(crate) fn open(fd: impl AsFd) -> io::Result<Self> {
        Mapping::open(fd, RING_BYTES).map(Self)
    }

    /// Executor: publishes request number `n`, counted from 0. The caller makes sure of the order.
    pub(crate) fn send(&self, n: u32, request: Request) {
        let at = REQUESTS + entry(n) * REQUEST_BYTES;
        self.0.write(at, &encode_request(request));
        self.0.word(at + REVOKED).store(0, Ordering::Relaxed);
        publish(self.0.word(SENT), next(n));
    }

    /// Executor: nobody waits for request number `n` any longer. It must have been sent and not been replied to. Whether
    /// the runner sees it before it begins is up to the moment; either way it replies.
    pub(crate) fn revoke(&self, n: u32) {
        self.0.word(REQUESTS + entry(n) * REQUEST_BYTES + REVOKED).store(1, Ordering::Release);
    }

    /// Runner: whether request number `n`, which was received, need not be run any longer.
    pub(crate) fn is_revoked(&self, n: u32) -> bool {
        self.0.word(REQUESTS + entry(n) * REQUEST_BYTES + REVOKED).load(Ordering::Acquire) != 0
    }

    /// Executor: a request will come soon. Wakes the runner, which stays awake for a moment.
    pub(crate) fn prime(&self) {
        shm::wake(self.0.word(SENT));
    }

    /// Runner: waits for request number `n`. `None` if it is not one.
    pub(crate) fn receive(&self, n: u32) -> Option<Request> {
        shm::wait_while_lingering(self.0.word(SENT), n, LINGER);
        let mut bytes = [0; ASKED];
        self.0.read(REQUESTS + entry(n) * REQUEST_BYTES, &mut bytes);
        decode_request(&bytes)
    }

    /// Runner: publishes the reply to request number `n`.
    pub(crate) fn reply(&self, n: u32, reply: &Reply) {
        self.0.write(REPLIES + entry(n) * REPLY_BYTES, &encode_reply(reply));
        self.0.word(DONE).store(next(n), Ordering::SeqCst);
        // Whoever watches looks at `DONE` once more after it has said that it stops: one of the two sees the other.
        if self.0.word(WATCHED).load(Ordering::SeqCst) == 0 {
            shm::wake(self.0.word(DONE));
        }
    }

    /// Executor: says that `DONE` is being watched, or is no longer.
    pub(crate) fn watched(&self, watched: bool) {
        self.0.word(WATCHED).store(u32::from(watched), Ordering::SeqCst);
    }

    #[cfg(test)]
    pub(crate) fn is_watched(&self) -> bool {
        self.0.word(WATCHED).load(Ordering::SeqCst) != 0
    }

    /// Executor: waits for more than `n` replies. How many there are, and whether the runner is gone.
    pub(crate) fn wait(&self, n: u32) -> (u32, bool) {
        let value = shm::wait_while(self.0.word(DONE), n);
        ((value & COUNT).wrapping_sub(n) & COUNT, value & GONE != 0)
    }

    /// Executor: whether the reply to request number `n` is the next to come.
    pub(crate) fn awaits(&self, n: u32) -> bool {
        self.0.word(DONE).load(Ordering::SeqCst) & COUNT == n
    }

    /// Executor: whether the reply to request number `n`, which is not long past, is there.
    pub(crate) fn has(&self, n: u32) -> bool {
        let value = self.0.word(DONE).load(Ordering::SeqCst);
        (1..=entries()).contains(&((value & COUNT).wrapping_sub(n) & COUNT))
    }

    /// Executor: the reply to request number `n`, which [`Ring::wait`] counted. `None` if it is not one.
    pub(crate) fn take(&self, n: u32) -> Option<Reply> {
        let at = REPLIES + entry(n) * REPLY_BYTES;
        let mut head = [0; HEAD];
        self.0.read(at, &mut head);
        let body = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if body > MAX_BODY {
            return None;
        }
        let mut bytes = vec![0; HEAD + body];
        self.0.read(at, &mut bytes);
        bytes[..HEAD].copy_from_slice(&head);
        decode_reply(&bytes)
    }

    /// Executor: the runner has been reaped. Wakes the reader, which finds what had been published before.
    pub(crate) fn gone(&self) {
        let done = self.0.word(DONE);
        done.fetch_or(GONE, Ordering::AcqRel);
        shm::wake(done);
    }
}

/// The number after `n`.
pub(crate) fn next(n: u32) -> u32 {
    n.wrapping_add(1) & COUNT
}

fn entries() -> u32 {
    u32::try_from(SLOTS_PER_LANE).unwrap_or(u32::MAX)
}

fn entry(n: u32) -> usize {
    n as usize % SLOTS_PER_LANE
}

fn publish(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    shm::wake(word);
}

fn encode_request(request: Request) -> [u8; ASKED] {
    let mut bytes = [0; ASKED];
    bytes[0] = VERSION;
    bytes[1] = u8::try_from(request.parts.all().len()).unwrap_or(u8::MAX);
    let parts = request.parts.all().iter().flat_map(|part| [part.rows, part.length]);
    let words = [request.variant, request.slot].into_iter().chain(parts);
    for (into, word) in bytes[4..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *into = word.to_le_bytes();
    }
    bytes
}

fn decode_request(bytes: &[u8; ASKED]) -> Option<Request> {
    let (words, _) = bytes[4..].as_chunks::<4>();
    let word = |i: usize| u32::from_le_bytes(words[i]);
    let mut parts = [Part::default(); MAX_PARTS];
    for (at, part) in parts.iter_mut().enumerate() {
        *part = Part { rows: word(2 + 2 * at), length: word(3 + 2 * at) };
    }
    let parts = Parts::of(parts.get(..bytes[1].into())?)?;
    (bytes[0] == VERSION).then(|| Request { variant: word(0), slot: word(1), parts })
}

fn encode_reply(reply: &Reply) -> Vec<u8> {
    let (kind, body) = match &reply.answer {
        Answer::Ran(shapes) => (0, shapes.0.as_slice()),
        Answer::Failed(why) => (1, cut(why).as_bytes()),
        Answer::Misshapen(why) => (2, cut(why).as_bytes()),
        Answer::Revoked => (3, [].as_slice()),
        Answer::Unreachable(why) => (4, cut(why).as_bytes()),
    };
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend_from_slice(&[VERSION, kind]);
    bytes.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&reply.run_us.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn decode_reply(bytes: &[u8]) -> Option<Reply> {
    let (head, body) = bytes.split_first_chunk::<HEAD>()?;
    let (_, run_us) = head.split_last_chunk::<8>()?;
    let text = || String::from_utf8_lossy(body).into_owned();
    let answer = match head[1] {
        0 => Answer::Ran(Shapes(body.to_vec())),
        1 => Answer::Failed(text()),
        2 => Answer::Misshapen(text()),
        3 => Answer::Revoked,
        4 => Answer::Unreachable(text()),
        _ => return None,
    };
    (head[0] == VERSION).then(|| Reply { run_us: u64::from_le_bytes(*run_us), answer })
}

/// A text that fits into a reply, cut between characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_BODY)]
}

/// Element types and extents of a run's outputs: for each a type, a count of axes, and the axes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shapes(Vec<u8>);

// The largest one must fit into a reply.
const _: () = assert!(MAX_TENSORS * (2 + 4 * (MAX_AXES + 1)) <= MAX_BODY);

const CODES: [DType; 9] = [
    DType::Bool,
    DType::Uint8,
    DType::Int8,
    DType::Int32,
    DType::Int64,
    DType::Fp16,
    DType::Fp32,
    DType::Fp64,
    DType::Bytes,
];

impl Shapes {
    /// Adds the next output.
    pub(crate) fn push(&mut self, dtype: DType, axes: impl ExactSizeIterator<Item = u32>) {
        let code = CODES.iter().position(|known| *known == dtype).unwrap_or(CODES.len());
        self.0.push(u8::try_from(code).unwrap_or(u8::MAX));
        self.0.push(u8::try_from(axes.len()).unwrap_or(u8::MAX));
        for axis in axes {
            self.0.extend_from_slice(&axis.to_le_bytes());
        }
    }

    /// How many were added.
    pub(crate) fn count(&self) -> usize {
        let mut rest = self.0.as_slice();
        let mut count = 0;
        while let Some(([_, axes], after)) = rest.split_first_chunk() {
            rest = after.get(usize::from(*axes) * 4..).unwrap_or_default();
            count += 1;
        }
        count
    }

    /// Whether these are the outputs that were declared, for a part of a batch; if not, what differs.
    pub(crate) fn check(&self, declared: &[Place], Part { rows, length }: Part) -> Result<(), String> {
        let mut rest = self.0.as_slice();
        for place in declared {
            let ([code, axes], after) = rest.split_first_chunk().ok_or("an output is missing")?;
            let dims = after.get(..usize::from(*axes) * 4).ok_or("an output is cut short")?;
            rest = &after[dims.len()..];
            let dtype = CODES.get(usize::from(*code));
            let given = || dims.as_chunks::<4>().0.iter().map(|axis| u32::from_le_bytes(*axis));
            let wanted = || std::iter::once(rows).chain(place.shape(length));
            if dtype != Some(&place.spec.dtype) || !given().eq(wanted()) {
                return Err(format!(
                    "`{}` is {} {:?}, but {} {:?} was declared",
                    place.spec.name,
                    dtype.map_or("of an unknown type", |dtype| dtype.name()),
                    given().collect::<Vec<_>>(),
                    place.spec.dtype.name(),
                    wanted().collect::<Vec<_>>(),
                ));
            }
        }
        if rest.is_empty() { Ok(()) } else { Err("there are more outputs than were declared".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Layout;
    use modelless_types::{Bytes, TensorSpec};

    fn outputs() -> Vec<Place> {
        let spec =
            |name: &str, dtype, shape: &[u32]| TensorSpec { name: name.into(), dtype, shape: shape.into() };
        let outputs = [spec("scores", DType::Fp32, &[10]), spec("best", DType::Int64, &[])];
        Layout::new(&[spec("in", DType::Fp32, &[1])], &outputs, 8, Bytes(0), 1 << 20).unwrap().outputs
    }

    fn shapes(rows: u32) -> Shapes {
        let mut shapes = Shapes::default();
        shapes.push(DType::Fp32, [rows, 10].into_iter());
        shapes.push(DType::Int64, [rows].into_iter());
        shapes
    }

    #[test]
    fn the_bytes_stay_what_they_are() {
        let request = Request { variant: 7, slot: 1, parts: Parts::one(0x0102, 9) };
        let mut bytes = [0; ASKED];
        bytes[..20].copy_from_slice(&[3, 1, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 9, 0, 0, 0]);
        assert_eq!(encode_request(request), bytes);
        let reply = Reply { run_us: 0x0304, answer: Answer::Failed("no".into()) };
        assert_eq!(encode_reply(&reply), [3, 1, 2, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, b'n', b'o']);
        let mut shapes = Shapes::default();
        shapes.push(DType::Fp32, [2, 10].into_iter());
        assert_eq!(shapes.0, [6, 2, 2, 0, 0, 0, 10, 0, 0, 0]);
    }

    #[test]
    fn what_was_sent_is_what_arrives() {
        let (fd, executor) = Ring::create().unwrap();
        let runner = Ring::open(fd).unwrap();
        // Past the wrap of the counters, too.
        for n in [0, 1, COUNT - 1] {
            let two = [Part { rows: 2, length: 8 }, Part { rows: 3, length: 16 }];
            let parts = if n == 1 { Parts::of(&two).unwrap() } else { Parts::one(5, n % 7) };
            let request = Request { variant: 3, slot: n % 2, parts };
            executor.send(n, request);
            assert_eq!(runner.receive(n), Some(request));
            for answer in [
                Answer::Ran(shapes(4)),
                Answer::Failed("index out of range".into()),
                Answer::Misshapen("ü".repeat(5_000)),
                Answer::Revoked,
            ] {
                let reply = Reply { run_us: 12, answer };
                runner.reply(n, &reply);
                assert_eq!(executor.wait(n), (1, false));
                let got = executor.take(n).unwrap();
                match (&got.answer, &reply.answer) {
                    (Answer::Misshapen(got), Answer::Misshapen(sent)) => assert!(sent.starts_with(got)),
                    (got, sent) => assert_eq!(got, sent),
                }
            }
        }
    }

    #[test]
    fn a_request_is_revoked_alone_and_not_the_next_one_in_its_place() {
        let (fd, executor) = Ring::create().unwrap();
        let runner = Ring::open(fd).unwrap();
        let request = |slot| Request { variant: 3, slot, parts: Parts::one(1, 0) };
        executor.send(0, request(0));
        executor.send(1, request(1));
        executor.revoke(1);
        assert!(!runner.is_revoked(0) && runner.is_revoked(1));
        runner.reply(0, &Reply { run_us: 0, answer: Answer::Ran(shapes(1)) });
        runner.reply(1, &Reply { run_us: 0, answer: Answer::Revoked });
        executor.send(2, request(0));
        executor.send(3, request(1));
        assert!(!runner.is_revoked(2) && !runner.is_revoked(3));
    }

    #[test]
    fn a_runner_that_is_gone_wakes_the_reader_and_keeps_what_it_published() {
        let (fd, executor) = Ring::create().unwrap();
        let runner = Ring::open(fd).unwrap();
        executor.gone();
        assert_eq!(executor.wait(0), (0, true));
        let (fd, executor) = Ring::create().unwrap();
        drop(runner);
        Ring::open(fd).unwrap().reply(0, &Reply { run_us: 1, answer: Answer::Ran(shapes(1)) });
        executor.gone();
        assert_eq!(executor.wait(0), (1, true));
    }

    #[test]
    fn garbage_is_no_reply() {
        let (_fd, executor) = Ring::create().unwrap();
        for head in [[9, 0, 0, 0], [VERSION, 9, 0, 0], [VERSION, 0, 0xff, 0xff]] {
            executor.0.write(REPLIES, &head);
            assert_eq!(executor.take(0), None, "{head:?}");
        }
    }

    #[test]
    fn garbage_is_no_request() {
        let parts = Parts::of(&[Part { rows: 2, length: 8 }, Part { rows: 3, length: 16 }]).unwrap();
        let whole = encode_request(Request { variant: 3, slot: 1, parts });
        assert_eq!(decode_request(&whole).map(|request| request.parts), Some(parts));
        // Another version; no part, more than there may be, and more than were written; one without rows.
        for (at, byte) in [(0, VERSION + 1), (1, 0), (1, 5), (1, 3), (12, 0)] {
            let mut bytes = whole;
            bytes[at] = byte;
            assert_eq!(decode_request(&bytes), None, "{byte} at {at}");
        }
    }

    #[test]
    fn only_the_declared_shapes_pass() {
        let declared = outputs();
        assert_eq!(shapes(3).check(&declared, Parts::one(3, 0).last()), Ok(()));
        for wrong in [
            shapes(2),
            Shapes(shapes(3).0[..9].to_vec()),
            Shapes([shapes(3).0, vec![0, 0]].concat()),
            Shapes::default(),
            Shapes(vec![99, 255]),
        ] {
            assert!(wrong.check(&declared, Parts::one(3, 0).last()).is_err(), "{wrong:?}");
        }
        let mut other = Shapes::default();
        other.push(DType::Fp64, [3, 10].into_iter());
        let said = other.check(&declared, Parts::one(3, 0).last()).unwrap_err();
        assert_eq!(said, "`scores` is FP64 [3, 10], but FP32 [3, 10] was declared");
    }
}
