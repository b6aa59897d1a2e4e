//! What is asked lately, class by class: what a plan goes by where room is short.
//!
//! What came so long ago as [`HALF_LIFE`] counts half. Nothing is told before demand was watched for as long: a scheduler
//! that knows little must not move what one that knew more has pinned.

use crate::query::Class;
use alloc::collections::BTreeMap;
use modelless_types::{Accuracy, Micros, TaskId, Within};

/// What came so long ago counts half.
pub const HALF_LIFE: Micros = Micros::from_secs(30);
/// Below this a class is forgotten.
const NOTHING: f64 = 0.1;

/// Who asks, and within what; `None` where nobody told that.
pub type Asked = (Class, Option<Within>);

/// Fading counts of queries.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Lately {
    asked: BTreeMap<Asked, f64>,
    /// For how long there was something to see.
    watched: Micros,
}

impl Lately {
    /// Time passed in which queries could be seen.
    pub fn pass(&mut self, time: Micros) {
        self.fade(time);
        self.watched = Micros(self.watched.0.saturating_add(time.0));
    }

    /// Time passed.
    pub fn fade(&mut self, time: Micros) {
        let fade = libm::exp2(-half_lives(time));
        self.asked.retain(|_, count| {
            *count *= fade;
            *count > NOTHING
        });
    }

    /// So many queries came just now.
    pub fn came(&mut self, asked: Asked, count: f64) {
        *self.asked.entry(asked).or_default() += count;
    }

    /// As if so much had been asked of a task all the time, in queries a second, instead of what was. Who is not said to ask within anything asks
    /// within what was asked before.
    pub fn suppose(&mut self, task: TaskId, rates: &[(Asked, f64)]) {
        let before: BTreeMap<Asked, f64> =
            self.asked.extract_if(.., |(class, _), _| class.task == task).collect();
        for ((class, within), rate) in rates {
            let known = before.iter().filter(|((known, _), _)| known == class && within.is_none());
            let all: f64 = known.clone().map(|(_, count)| count).sum();
            if all > 0.0 {
                for (asked, count) in known {
                    *self.asked.entry(*asked).or_default() += settled(*rate) * count / all;
                }
            } else {
                *self.asked.entry((*class, *within)).or_default() += settled(*rate);
            }
        }
        self.watched = self.watched.max(HALF_LIFE);
    }

    /// How much is asked of the classes that a variant may answer, in doublings: 0 is nothing, 1 one query, 4 eight.
    pub fn level(&self, task: TaskId, ordinal: u8) -> u8 {
        if self.watched < HALF_LIFE {
            return 0;
        }
        self.count(task, |class| class.admits.contains(ordinal))
    }

    /// The same of those classes only that nothing less accurate may answer.
    pub fn level_at_least(&self, task: TaskId, ordinal: u8, accuracy: impl Fn(u8) -> Option<Accuracy>) -> u8 {
        if self.watched < HALF_LIFE {
            return 0;
        }
        let least = |class: &Class| {
            let all = class.admits.iter().filter_map(|ordinal| Some((accuracy(ordinal)?, ordinal)));
            all.min().map(|(_, ordinal)| ordinal)
        };
        self.count(task, |class| class.admits.contains(ordinal) && least(class) == Some(ordinal))
    }

    /// How much is asked by each class within each bound, in steps of [`STEPS`] to a doubling. Nothing of what is asked less than once lately.
    pub fn asked(&self) -> impl Iterator<Item = (Asked, u16)> + '_ {
        let known = self.watched >= HALF_LIFE;
        self.asked
            .iter()
            .filter(move |_| known)
            .map(|(asked, count)| (*asked, steps(*count)))
            .filter(|(_, steps)| *steps > 0)
    }

    fn count(&self, task: TaskId, of: impl Fn(&Class) -> bool) -> u8 {
        let asked = self.asked.iter().filter(|((class, _), _)| class.task == task && of(class));
        doublings(asked.map(|(_, count)| count).sum())
    }
}

/// What comes evenly at such a level, in queries a second, at the most.
pub fn per_s_at_most(level: u8) -> f64 {
    if level == 0 { 0.0 } else { libm::exp2(f64::from(level)) / settled(1.0) }
}

/// So many steps are a doubling, where levels are too coarse and counts would never rest.
pub const STEPS: u8 = 16;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a logarithm of a count")]
fn steps(count: f64) -> u16 {
    if count < 1.0 { 0 } else { 1 + libm::floor(libm::log2(count) * f64::from(STEPS)) as u16 }
}

/// What comes evenly in such a step, in queries a second: in the middle of it.
pub fn per_s_in(steps: u16) -> f64 {
    if steps == 0 { 0.0 } else { libm::exp2((f64::from(steps) - 0.5) / f64::from(STEPS)) / settled(1.0) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a logarithm of a count")]
fn doublings(count: f64) -> u8 {
    if count < 1.0 { 0 } else { 1 + libm::floor(libm::log2(count)) as u8 }
}

/// What comes evenly and fades settles at what comes in a half-life, divided by the logarithm of two.
#[expect(clippy::cast_precision_loss, reason = "half a minute")]
fn settled(per_s: f64) -> f64 {
    per_s * (HALF_LIFE.0 as f64 / 1e6 / core::f64::consts::LN_2)
}

/// The level of what comes evenly, so many queries a second.
pub fn level_of(per_s: f64) -> u8 {
    doublings(settled(per_s))
}

#[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
fn half_lives(time: Micros) -> f64 {
    time.0 as f64 / HALF_LIFE.0 as f64
}

/// How much still counts of what came evenly over such a time.
pub fn left_of(time: Micros) -> f64 {
    let faded = half_lives(time) * core::f64::consts::LN_2;
    (1.0 - libm::exp(-faded)) / faded.max(f64::MIN_POSITIVE)
}
