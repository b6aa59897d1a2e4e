//! How long things are taken to take where a running system is simulated: as a recording has them, or as nodes have corrected their profiles.

use super::live::{Live, list, text};
use super::timed::Beside;
use modelless_types::Micros;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of times besides profiles.
pub(super) enum Times<'a> {
    /// What a recorded node took, and which numbers variants of tasks have there.
    Timed {
        beside: Beside<'a>,
        ids: BTreeMap<(&'a str, &'a str), u64>,
    },
    Slowdowns(Slowdowns<'a>),
}

impl<'a> Times<'a> {
    /// A recording does not tell its node's class of devices, so it counts where there is one class only. Whoever named one that does not count is told.
    pub(super) fn of(live: &'a Live, classes: &BTreeSet<&str>) -> Result<Self, String> {
        let Some(timed) = live.timed.as_ref() else { return Ok(Self::Slowdowns(Slowdowns::of(live))) };
        let ids: BTreeMap<_, u64> = list(&live.variants, "variants")
            .iter()
            .filter_map(|v| Some(((text(v, "task"), text(v, "name")), v["id"].as_u64()?)))
            .collect();
        let profiles = list(&live.profiles, "profiles").iter().filter_map(|entry| {
            let here = classes.contains(text(&entry["profile"], "device_class"));
            let id = ids.get(&(text(entry, "task"), text(entry, "variant")))?;
            here.then_some((*id, &entry["profile"]))
        });
        let beside = timed.beside(profiles);
        let why = if classes.len() > 1 {
            let all: Vec<&str> = classes.iter().copied().collect();
            format!(
                "a recording does not tell of which class of devices it is, and there are several: {}",
                all.join(", ")
            )
        } else if beside.together().is_none() {
            "it has no batch that ended of any variant of this server".to_owned()
        } else {
            return Ok(Self::Timed { beside, ids });
        };
        if live.timed_is_asked {
            return Err(format!("the recording says nothing of how long things take here: {why}"));
        }
        Ok(Self::Slowdowns(Slowdowns::of(live)))
    }

    /// Puts beside a profile, or into it, what was seen of times. `way` is simulated besides.
    pub(super) fn correct(&self, entry: &mut Value, way: Micros) {
        match self {
            Self::Timed { beside, ids } => {
                let id = ids.get(&(text(entry, "task"), text(entry, "variant")));
                if let Some(seen) = id.and_then(|id| beside.seen(*id, &entry["profile"], way)) {
                    // The profile stays what whoever decides begins with, as live.
                    entry["seen"] = json!(seen);
                }
            }
            Self::Slowdowns(seen) => seen.correct(entry),
        }
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Timed { beside, .. } => {
                let (batches, ratio) = beside.together().unwrap_or((0.0, 1.0));
                format!(
                    "{batches:.0} recorded batches and their inputs took them (batches {ratio:.2} times what profiles say)"
                )
            }
            Self::Slowdowns(seen) => format!("nodes have corrected them{}", seen.told()),
        }
    }
}

/// So many corrections are named.
const TOLD: usize = 12;

/// How much longer nodes take batches to last than their profiles say, of each class of devices, task and variant: the mean over its nodes. It is what they
/// decide by, so those count too of which little was seen: nodes weigh that themselves, and lend to others what was seen of some.
pub(super) struct Slowdowns<'a>(BTreeMap<(&'a str, &'a str, &'a str), f64>);

impl<'a> Slowdowns<'a> {
    fn of(live: &'a Live) -> Self {
        let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for member in list(&live.members, "members") {
            for known in list(member, "corrections") {
                let slowdown = &known["slowdown"];
                let seen = slowdown["samples"].as_u64().is_some_and(|samples| samples > 0);
                if let Some(ratio) = slowdown["ratio"].as_f64().filter(|ratio| seen && *ratio > 0.0) {
                    let of = (text(member, "device_class"), text(known, "task"), text(known, "variant"));
                    all.entry(of).or_default().push(ratio);
                }
            }
        }
        let mean = |ratios: Vec<f64>| {
            ratios.iter().sum::<f64>() / f64::from(u32::try_from(ratios.len()).unwrap_or(u32::MAX))
        };
        Self(all.into_iter().map(|(of, ratios)| (of, mean(ratios))).collect())
    }

    /// The furthest from what was measured, for people.
    fn told(&self) -> String {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by(|a, b| b.1.ln().abs().total_cmp(&a.1.ln().abs()));
        let one = |((class, task, variant), ratio): &(&(&str, &str, &str), &f64)| {
            format!("{task}/{variant} {ratio:.2} on {class}")
        };
        let told: Vec<String> = all.iter().take(TOLD).map(one).collect();
        match (told.is_empty(), all.len().saturating_sub(TOLD)) {
            (true, _) => ", of which they have none".to_owned(),
            (false, 0) => format!(" ({})", told.join(", ")),
            (false, more) => format!(" ({}, and {more} more)", told.join(", ")),
        }
    }

    /// The times of a profile as they were seen.
    fn correct(&self, entry: &mut Value) {
        let of = (text(&entry["profile"], "device_class"), text(entry, "task"), text(entry, "variant"));
        let Some(ratio) = self.0.get(&of).copied() else { return };
        for point in entry["profile"]["latency"].as_array_mut().into_iter().flatten() {
            for (figure, times) in [("mean_us", ratio), ("p99_us", ratio), ("var_us2", ratio * ratio)] {
                if let Some(known) = point[figure].as_f64() {
                    point[figure] = json!(known * times);
                }
            }
        }
    }
}
