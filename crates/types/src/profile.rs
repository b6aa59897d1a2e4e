//! What was measured of a variant on a device class. Every figure says where it came from.

use crate::units::{Accuracy, Bytes, Micros};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Where a figure came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// Run and timed, or run and compared with labels, on this device class.
    Measured,
    /// Said by whoever registered the model.
    Declared,
    /// Worked out from other figures.
    Estimated,
    /// Seen in live traffic.
    Live,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Declared => "declared",
            Self::Estimated => "estimated",
            Self::Live => "live",
        })
    }
}

/// Time on the device of one batch size, from tensors ready to outputs ready.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchPoint {
    /// Items in the batch.
    pub batch: u32,
    /// Mean, in microseconds.
    pub mean_us: f64,
    /// Variance, in square microseconds.
    pub var_us2: f64,
    /// The 99th percentile, in microseconds. Where [`Detail::tail`] says so it is drawn from all batch sizes together and
    /// decisions keep to it; else it is the slowest hundredth of this point's few repetitions, for people.
    pub p99_us: f64,
    /// Repetitions behind it.
    pub samples: u32,
}

/// Time on the CPU that one item takes before the device sees it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StageTime {
    /// Mean, in microseconds.
    pub mean_us: f64,
    /// Variance, in square microseconds.
    pub var_us2: f64,
    /// Repetitions behind it; 0 when it was not measured.
    pub samples: u32,
}

/// An accuracy with what stands behind it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccuracyMeasure {
    /// The point value: what floors are compared with, unless the task asks for `low` ([`AccuracyRule`]).
    pub value: Accuracy,
    /// Lower end of the 95 % Wilson interval; equal to `value` when it was only declared.
    pub low: Accuracy,
    /// Upper end of it.
    pub high: Accuracy,
    /// Items of the labelled set; 0 when it was only declared.
    pub samples: u64,
    /// Name of the labelled set.
    pub set: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Which device class it was measured on.
    pub device_class: String,
    /// The command that makes the figure again.
    pub command: String,
}

/// Which figure of a measured accuracy a task's floors are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccuracyRule {
    /// The share of the labelled set that was right.
    #[default]
    Point,
    /// The lower end of its 95 % interval: a small set has to show more.
    LowerBound,
}

impl AccuracyMeasure {
    /// Whether somebody only said so.
    pub fn is_declared(&self) -> bool {
        self.provenance == Provenance::Declared
    }
}

impl AccuracyRule {
    /// With the names in texts.
    pub const NAMES: [(&'static str, Self); 2] = [("point", Self::Point), ("lower_bound", Self::LowerBound)];

    /// As in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Point => "point",
            Self::LowerBound => "lower_bound",
        }
    }

    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule)
    }

    /// The figure that a floor is compared with.
    pub const fn of(self, accuracy: &AccuracyMeasure) -> Accuracy {
        match self {
            Self::Point => accuracy.value,
            Self::LowerBound => accuracy.low,
        }
    }
}

/// What feedback on a task's answers is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveRule {
    /// It is shown, and what is less accurate than measured is flagged.
    #[default]
    Shown,
    /// Besides, what is flagged stops counting for floors that it no longer meets.
    Floors,
}

impl LiveRule {
    /// With the names in texts.
    pub const NAMES: [(&'static str, Self); 2] = [("shown", Self::Shown), ("floors", Self::Floors)];

    /// As in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shown => "shown",
            Self::Floors => "floors",
        }
    }

    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule)
    }
}

/// What accuracies are good for in a task that somebody declared and nobody measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeclaredRule {
    /// Floors are compared with them while nothing that answers in the task was measured. Beside what was, they count for no
    /// floor.
    #[default]
    UnlessMeasured,
    /// Floors are compared with them as with measured ones.
    Floors,
}

impl DeclaredRule {
    /// With the names in texts.
    pub const NAMES: [(&'static str, Self); 2] =
        [("unless_measured", Self::UnlessMeasured), ("floors", Self::Floors)];

    /// As in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnlessMeasured => "unless_measured",
            Self::Floors => "floors",
        }
    }

    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule)
    }
}

/// How well a batch size is known, for people and for whoever measures on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PointDetail {
    /// Items in the batch.
    pub batch: u32,
    /// Series of repetitions behind it, each at another time; the middle one counts.
    pub rounds: u32,
    /// Half of every repetition took at most this, in microseconds.
    pub median_us: f64,
    /// How far the series lie apart, from the quickest to the slowest, in microseconds.
    pub spread_us: f64,
    /// Repetitions so far from all others that they are the machine's doing.
    pub outliers: u32,
    /// The slowest of all, in microseconds.
    pub worst_us: f64,
    /// The most that its process had held when this size had first run, and none larger. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
}

/// Where larger batches could not be run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Largest {
    /// The largest that ran.
    pub batch: u32,
    /// What became of a larger one.
    pub why: String,
}

/// What shows that the machine was not steady while a variant was timed. Shares: 0.2 is a fifth.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unsteady {
    /// By how much the batch size in the middle took longer most of the time than at best.
    pub sizes: f64,
    /// By how much work that is always the same took longer than it does at best.
    pub same_work: f64,
    /// Of the processor time that was wanted, what others had.
    pub stolen: f64,
    /// How often it was measured, and never in a steady minute.
    pub tries: u32,
    /// How often it may still be measured again for that.
    pub left: u32,
}

/// What stands behind a profile's figures.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Detail {
    /// The time for measuring was over before everything was known as well as it should be: a first estimate.
    pub coarse: bool,
    /// The accuracy was measured on a part of the labelled set, so floors are compared with the lower end of its interval.
    pub part_of_set: bool,
    /// Why the accuracy looks as if it was measured with other labels than the model's, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// The 99th percentiles were drawn from all batch sizes together, so decisions may keep to them.
    pub tail: bool,
    /// Load time with nothing of the artefact in memory, where it could be put out of there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_cold: Option<Micros>,
    /// Where memory or patience ended before the variant's own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<Largest>,
    /// How long the items were that were timed, where items differ in length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
    /// By batch size, as in [`Profile::latency`].
    pub points: Vec<PointDetail>,
    /// Its times may be another minute's: the machine was not steady meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsteady: Option<Unsteady>,
}

/// A variant on a device class.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// Hardware that behaves alike, such as `cpu:amd-epyc:2`.
    pub device_class: String,
    /// Time by batch size, rising batches, at least one point.
    pub latency: Vec<BatchPoint>,
    /// Where `latency` comes from.
    pub latency_provenance: Provenance,
    /// Decoding one input.
    pub decode: StageTime,
    /// Writing one decoded input into a batch (resize, normalise, copy).
    pub prepare: StageTime,
    /// Memory of one replica once loaded.
    pub memory: Bytes,
    /// The most that its process held while all this was measured, on one lane: loading, every batch size, what it
    /// shares and the library included. `None`: not measured.
    #[serde(default)]
    pub peak: Option<Bytes>,
    /// From asking for it to ready.
    pub load_time: Micros,
    /// The accuracy that floors are compared with here.
    pub accuracy: AccuracyMeasure,
    /// Other accuracies known of it (a larger set, another device class), for people to compare.
    pub also: Vec<AccuracyMeasure>,
    /// What stands behind the figures. Profiles that were stored before there was such a thing have an empty one.
    #[serde(default)]
    pub detail: Detail,
}

impl Profile {
    /// Whether its times were worked out from another device class and wait to be measured.
    pub fn is_estimated(&self) -> bool {
        self.latency_provenance == Provenance::Estimated
    }

    /// Whether it was measured in too short a time, and is to be measured again when there is more.
    pub fn is_coarse(&self) -> bool {
        self.detail.coarse && !self.is_estimated()
    }

    /// Whether it is to be measured again, though nothing says that it is off: it is coarse, or was taken in an unsteady
    /// minute and may be measured again for that.
    pub fn is_provisional(&self) -> bool {
        let unsteady = self.detail.unsteady.is_some_and(|unsteady| unsteady.left > 0);
        !self.is_estimated() && (self.detail.coarse || unsteady)
    }

    /// What floors are compared with where a task has this rule. What a part of a set shows is less certain than what a task
    /// relies on, so of that its lower end counts in any case.
    pub fn floor(&self, rule: AccuracyRule) -> Accuracy {
        let rule = if self.detail.part_of_set { AccuracyRule::LowerBound } else { rule };
        rule.of(&self.accuracy)
    }

    /// The largest batch to be given to it here, of a variant that takes at most `max_batch`.
    pub fn largest_batch(&self, max_batch: u32) -> u32 {
        self.detail.largest.as_ref().map_or(max_batch, |largest| largest.batch.min(max_batch)).max(1)
    }
}
