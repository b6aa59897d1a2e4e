//! Copies of queries, answered by a version on trial in time that nothing else needs, and thrown away once they are compared.
//!
//! A copy is made when its original has ended, and goes the way of an offline job's input: at the lowest priority, beside the queue.
//! Nobody waits for it, nobody is charged for it, and what there is no room for is not copied.

use crate::core::Core;
use crate::pending::{Outcome, Reply};
use crate::told::best_label;
use crate::trials::{Running, unanswered};
use crate::view::TaskView;
use bytes::Bytes as Buffer;
use modelless_decision::Query;
use modelless_decision::query::Class;
use modelless_decision::route::Event;
use modelless_decision::trial::Came;
use modelless_oip::elements;
use modelless_types::tensor::packed;
use modelless_types::{AppId, Bytes, DType, Micros, Prefer, Priority, QueryKey, TaskKind, TenantId};
use modelless_wire::{Answer, Input};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Copies that may wait to be asked, with what they were asked; others are not made.
const WAITING: usize = 32;
/// Copies that may be under way.
const UNDER_WAY: usize = 16;
/// What all copies hold, bodies and answers of their originals; what would be more is not copied.
const BYTES: u64 = 16 << 20;
/// A copy for which there is no spare time for so long is given up.
const WITHIN: Micros = Micros::from_secs(10);
/// Vectors agree that point as much the same way.
const ALIKE: f64 = 0.99;

/// What is to be asked again of the version on trial.
pub(crate) struct Copied {
    pub(crate) of: Arc<Running>,
    pub(crate) class: Class,
    pub(crate) input: Input,
    pub(crate) decoded: Bytes,
    pub(crate) held: Held,
    pub(crate) tenant: TenantId,
    pub(crate) app: AppId,
    /// Its original is the first of its time, so that the two make a pair.
    pub(crate) compared: bool,
    pub(crate) form: Form,
}

/// In which form answers come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Label,
    Vector,
    /// Of the first output.
    Numbers(DType),
}

/// How a query ended, to be compared.
struct Ended {
    came: Came,
    body: Option<Buffer>,
    /// How many were run with it, where it was run.
    batch: Option<u32>,
}

/// A part of [`BYTES`], until it is dropped.
pub(crate) struct Held {
    of: Arc<AtomicU64>,
    bytes: u64,
}

impl Held {
    fn of(of: &Arc<AtomicU64>, bytes: usize) -> Option<Self> {
        let mut held = Self { of: Arc::clone(of), bytes: 0 };
        held.more(bytes).then_some(held)
    }

    /// So many more; false, and none of them, where there is no room.
    fn more(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let room = |held: u64| held.checked_add(bytes).filter(|all| *all <= BYTES);
        let had = self.of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        self.bytes += if had { bytes } else { 0 };
        had
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A copy and how its original ended.
pub(crate) struct Wanted {
    copied: Copied,
    original: Ended,
}

/// Where copies are wanted, and where they come from.
pub(crate) struct Shadows {
    wanted: mpsc::Sender<Wanted>,
    /// Taken by whoever asks them.
    asked: Mutex<Option<mpsc::Receiver<Wanted>>>,
    held: Arc<AtomicU64>,
}

impl Default for Shadows {
    fn default() -> Self {
        let (wanted, asked) = mpsc::channel(WAITING);
        Self { wanted, asked: Mutex::new(Some(asked)), held: Arc::default() }
    }
}

impl Form {
    pub(crate) fn of(task: &TaskView) -> Option<Self> {
        match task.task.kind {
            TaskKind::ImageClassification | TaskKind::TextClassification => Some(Self::Label),
            TaskKind::FeatureExtraction => Some(Self::Vector),
            TaskKind::Tensor => task.signature.outputs.first().map(|port| Self::Numbers(port.dtype)),
        }
    }

    /// Whether two answers say the same; `None` where one cannot be read.
    fn agree(self, one: &[u8], other: &[u8]) -> Option<bool> {
        match self {
            Self::Label => Some(best_label(one)? == best_label(other)?),
            Self::Vector => {
                let vector = |body: &[u8]| serde_json::from_slice::<Vec<f64>>(body).ok();
                Some(cosine(&vector(one)?, &vector(other)?)? >= ALIKE)
            }
            Self::Numbers(dtype) => {
                let largest = |body: &[u8]| {
                    let all = packed::all(body)?;
                    let numbers = elements::floats(dtype, all.first()?.data);
                    let place = numbers.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
                    place.map(|(at, _)| at)
                };
                Some(largest(one)? == largest(other)?)
            }
        }
    }
}

fn cosine(one: &[f64], other: &[f64]) -> Option<f64> {
    if one.len() != other.len() {
        return None;
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let long = (dot(one, one) * dot(other, other)).sqrt();
    (long > 0.0).then(|| dot(one, other) / long)
}

/// Its part of its batch: how long it waited for spare time says nothing of a version.
fn took(answer: &Answer) -> Micros {
    Micros(answer.run.0 / u64::from(answer.batch.max(1)))
}

/// Whether how long they took can be compared: a part of a large batch is shorter than a small one, whoever ran it.
fn alike(copy: &Ended, original: &Ended) -> bool {
    copy.batch.is_some() && copy.batch == original.batch
}

/// What there is to compare of an outcome.
fn ended(outcome: &Outcome) -> Option<Ended> {
    match outcome {
        Outcome::Answered(answer) => {
            let came = Came::Answered { total: took(answer), late: false };
            Some(Ended { came, body: Some(answer.body.clone()), batch: Some(answer.batch) })
        }
        // That a copy is late is because nothing was to spare.
        Outcome::Refused(_) | Outcome::BadInput(..) => {
            let failed = unanswered(outcome, true).filter(|came| *came == Came::Failed)?;
            Some(Ended { came: failed, body: None, batch: None })
        }
    }
}

impl Shadows {
    /// Room for a copy of this input; nothing where there is none.
    pub(crate) fn hold(&self, input: &Input) -> Option<Held> {
        Held::of(
            &self.held,
            match input {
                Input::Raw(body) => body.len(),
                Input::Json { inputs, parameters } => {
                    inputs.len() + parameters.as_ref().map_or(0, Buffer::len)
                }
            },
        )
    }

    /// An original ended: a copy of it is asked when there is time, if there is room for one more.
    pub(crate) fn want(&self, mut copied: Copied, outcome: &Outcome) {
        if let Some(original) = ended(outcome)
            && copied.held.more(original.body.as_ref().map_or(0, Buffer::len))
        {
            let _there_is_no_room = self.wanted.try_send(Wanted { copied, original });
        }
    }

    /// Asks copies until `stop`.
    pub(crate) async fn run(&self, core: Arc<Core>, stop: CancellationToken) {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut asked) = asked else { return };
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = under_way.join_next() => {}
                Some(wanted) = asked.recv(), if under_way.len() < UNDER_WAY => {
                    under_way.spawn(ask(Arc::clone(&core), wanted));
                }
            }
        }
        under_way.shutdown().await;
    }
}

/// Takes the query back, unless it has ended.
struct Guard<'a>(&'a Core, QueryKey);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Self(core, key) = *self;
        if core.pending.abandon(core.driver.clock().now(), key, || None).is_some() {
            core.driver.feed(Event::Cancel { key }, core);
        }
    }
}

async fn ask(core: Arc<Core>, wanted: Wanted) {
    let core = &*core;
    let Wanted { copied, original } = wanted;
    let Copied { of, class, input, decoded, held: _held, tenant, app, compared, form } = copied;
    let key = core.next_key();
    let guard = Guard(core, key);
    let (reply, answer) = oneshot::channel();
    core.driver.feed_with(
        |_, now| {
            let query = Query {
                key,
                tenant,
                app,
                class,
                arrived: now,
                deadline: now + WITHIN,
                expires: now + WITHIN,
                max_cost: None,
                prefer: Prefer::default(),
                priority: Priority::SPARE,
                best_effort: false,
                bytes: decoded,
                returnable: false,
            };
            let room = core.pending.insert((now, false), query, input, reply).is_ok();
            room.then_some((Event::Arrive(query), ()))
        },
        core,
    );
    let Ok(Reply { outcome, .. }) = answer.await else { return };
    drop(guard);
    let Some(copy) = ended(&outcome) else { return };
    let bodies = copy.body.as_ref().zip(original.body.as_ref());
    let agreed = bodies.and_then(|(copy, original)| form.agree(copy, original));
    of.copied((copy.came, original.came, alike(&copy, &original)), compared, agreed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_hold_no_more_than_they_may_and_give_it_back() {
        let shadows = Shadows::default();
        let input = |bytes: usize| Input::Raw(Buffer::from(vec![0; bytes]));
        let most = usize::try_from(BYTES).unwrap();
        assert!(shadows.hold(&input(most + 1)).is_none());
        let mut first = shadows.hold(&input(most - 10)).unwrap();
        assert!(shadows.hold(&input(11)).is_none());
        let second = shadows.hold(&input(4)).unwrap();
        assert!(!first.more(7) && first.more(6));
        assert!(shadows.hold(&input(1)).is_none());
        drop((first, second));
        assert!(shadows.hold(&input(most)).is_some());
    }

    #[test]
    fn times_are_compared_only_of_batches_of_one_size() {
        let of = |batch| Ended { came: Came::Failed, body: None, batch };
        assert!(alike(&of(Some(3)), &of(Some(3))));
        assert!(!alike(&of(Some(1)), &of(Some(8))) && !alike(&of(None), &of(None)));
    }

    #[test]
    fn answers_agree_by_what_their_task_counts_as_right() {
        let label = |name: &str, score: f64| {
            format!(r#"[{{"label":"{name}","score":{score}}},{{"label":"x","score":0.0}}]"#)
        };
        let agree = |form: Form, one: &str, other: &str| form.agree(one.as_bytes(), other.as_bytes());
        assert_eq!(agree(Form::Label, &label("bag", 0.9), &label("bag", 0.5)), Some(true));
        assert_eq!(agree(Form::Label, &label("bag", 0.9), &label("coat", 0.9)), Some(false));
        assert_eq!(agree(Form::Label, "{}", &label("coat", 0.9)), None);
        assert_eq!(agree(Form::Vector, "[1.0, 0.0]", "[5.0, 0.1]"), Some(true));
        assert_eq!(agree(Form::Vector, "[1.0, 0.0]", "[0.0, 1.0]"), Some(false));
        assert_eq!(agree(Form::Vector, "[1.0, 0.0]", "[1.0]"), None);
        assert_eq!(agree(Form::Vector, "[0.0]", "[0.0]"), None, "they point nowhere");
        let numbers = |all: &[f32]| {
            let mut body = Vec::new();
            let bytes: Vec<u8> = all.iter().flat_map(|one| one.to_le_bytes()).collect();
            packed::push(&[u32::try_from(all.len()).unwrap()], &bytes, &mut body);
            body
        };
        let form = Form::Numbers(DType::Fp32);
        assert_eq!(form.agree(&numbers(&[0.1, 0.9]), &numbers(&[0.4, 0.6])), Some(true));
        assert_eq!(form.agree(&numbers(&[0.9, 0.1]), &numbers(&[0.4, 0.6])), Some(false));
        assert_eq!(form.agree(b"junk", &numbers(&[0.4])), None);
    }
}
