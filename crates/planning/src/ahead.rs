//! What is to be expected, out of what the store has of earlier days: for tasks that sleep and room that is short, and for machines.

use crate::asked::LATENCY;
use modelless_decision::fleet::{Pool, StartUp};
use modelless_decision::forecast::{self, AGAIN, Ahead, BAND, Forecast, History, Peak, lead};
use modelless_decision::hire::{Asked, Expected};
use modelless_decision::query::Class;
use modelless_store::{BINS_A_SLOT, Catalog, Result, SlotSeen, Store};
use modelless_types::{Micros, Slot, Task, TaskId, Time, VariantSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What is expected, by task.
pub type Aheads = BTreeMap<TaskId, Ahead>;

/// Tasks that are named where more of them have machines come.
const NAMED: usize = 3;

/// What the store tells of earlier days.
pub fn history(slots: &[SlotSeen]) -> History {
    let mut history = History::default();
    for SlotSeen { slot, seen_s, bins } in slots {
        // Where as many tasks are told of as there may be, of the others nothing is known.
        if bins.len() < BINS_A_SLOT {
            history.saw(*slot, *seen_s);
        }
        for (task, bin) in bins {
            history.asked(*task, *slot, *bin);
        }
    }
    history
}

/// What is expected for as long as anything looks ahead from now, read from the store when another slot begins. What it comes from is a day
/// old, so all who read it at about the same time know the same.
#[derive(Clone, Debug, Default)]
pub struct Foretold {
    slots: Option<Range<Slot>>,
    forecast: Forecast,
}

impl Foretold {
    /// As of now.
    pub async fn read(&mut self, store: &dyn Store, now: Time) -> Result<&Forecast> {
        let slots = forecast::reached(now);
        if self.slots.as_ref() != Some(&slots) {
            let seen = store.history().slots(&forecast::compared(&slots), None).await?;
            self.forecast = history(&seen).forecast(slots.clone());
            self.slots = Some(slots);
        }
        Ok(&self.forecast)
    }

    /// As it was last known.
    pub fn last(&self) -> &Forecast {
        &self.forecast
    }
}

/// How long the loads of a task take, one after the other, where that is longest: the same whichever nodes somebody reaches.
pub fn loads(catalog: &Catalog, task: TaskId) -> Micros {
    let defaults = catalog.defaults();
    loads_of(catalog, &defaults, task)
}

fn loads_of(catalog: &Catalog, defaults: &BTreeSet<modelless_types::ModelId>, task: TaskId) -> Micros {
    let mut by_class: BTreeMap<&str, u64> = BTreeMap::new();
    let models = catalog.models.iter().filter(|model| model.task == task && defaults.contains(&model.id));
    for profile in
        models.flat_map(|model| catalog.variants_of(model.id)).flat_map(|variant| &variant.profiles)
    {
        let all = by_class.entry(&profile.device_class).or_default();
        *all = all.saturating_add(profile.load_time.0);
    }
    Micros(by_class.into_values().max().unwrap_or(0))
}

/// Tasks of which something is expected, and that are made ready for it, with how long their loads take.
fn foretold<'a>(forecast: &Forecast, catalog: &'a Catalog) -> Vec<(&'a Task, Micros)> {
    let defaults = catalog.defaults();
    let task = |id: TaskId| catalog.tasks.iter().find(|task| task.id == id);
    let on = forecast.tasks().filter_map(task).filter(|task| task.ahead == modelless_types::Ahead::On);
    on.map(|task| (task, loads_of(catalog, &defaults, task.id))).collect()
}

/// What is expected of tasks now.
pub fn aheads(forecast: &Forecast, catalog: &Catalog, now: Time) -> Aheads {
    let of = |(task, loads): (&Task, Micros)| (task.id, forecast.ahead(task.id, now, loads));
    let all = foretold(forecast, catalog).into_iter().map(of);
    all.filter(|(_, ahead)| ahead.held.is_some()).collect()
}

/// What machines are to be there for, beside what is asked now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Foreseen {
    /// By task.
    pub expected: Expected,
    /// The most that comes before a machine would be worth its start, with the name of its task and how long its loads take.
    pub peaks: Vec<(String, Peak, Micros)>,
}

/// A machine that is asked for now serves once it is there and has loaded. One that is there stays for what comes again within [`AGAIN`] of that, or
/// twice as long as another one takes to start.
pub fn foreseen(forecast: &Forecast, catalog: &Catalog, start_ups: &[StartUp], now: Time) -> Foreseen {
    let start = start_ups.iter().map(StartUp::nearly_always).max().unwrap_or(Micros::ZERO);
    let mut all = Foreseen::default();
    for (task, loads) in foretold(forecast, catalog) {
        let lead = lead(Micros(start.0.saturating_add(loads.0)));
        let again = lead + AGAIN.max(Micros(start.0.saturating_mul(2)));
        let early = Time(now.0.saturating_sub(BAND.0));
        let Some(held) = forecast.highest(task.id, early, now + again) else { continue };
        if let Some(soon) = forecast.highest(task.id, now, now + lead) {
            all.expected.soon.insert(task.id, soon.per_s());
        }
        all.expected.again.insert(task.id, held.per_s());
        if let Some(usual) = usual(catalog, task) {
            all.expected.usual.insert(task.id, usual);
        }
        all.peaks.push((task.name.clone(), held, loads));
    }
    all.peaks.sort_by(|a, b| b.1.peak_per_1000_s.cmp(&a.1.peak_per_1000_s).then_with(|| a.0.cmp(&b.0)));
    all
}

/// What who gives no goals asks of a task.
fn usual(catalog: &Catalog, task: &Task) -> Option<Asked> {
    let defaults = catalog.defaults();
    let models = catalog.models.iter().filter(|model| model.task == task.id && defaults.contains(&model.id));
    let keeps = |variant: &&modelless_types::Variant| {
        let floor = |profile| catalog.floor_accuracy(task, variant.id, profile);
        variant
            .profiles
            .iter()
            .any(|profile| task.defaults.accuracy.is_none_or(|least| floor(profile) >= least))
    };
    let may = models.flat_map(|model| catalog.variants_of(model.id)).filter(keeps);
    let admits: VariantSet = may.map(|variant| variant.ordinal).collect();
    let class = Class { task: task.id, admits };
    (!admits.is_empty()).then_some((class, task.defaults.latency.unwrap_or(LATENCY)))
}

impl Foreseen {
    /// Why a pool has more wanted than by what is asked now.
    pub fn why(&self, start_up: &StartUp, pool: &Pool) -> String {
        let seconds = |time: Micros| time.as_millis_f64() / 1e3;
        let named = self.peaks.iter().take(NAMED).map(|(task, peak, loads)| {
            format!("task {task} was {}, whose loads take {:.1} s", peak.words(), seconds(*loads))
        });
        let named: Vec<String> = named.collect();
        let more = match self.peaks.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more tasks recur"),
        };
        format!(
            "{}{more}; nineteen of twenty machines of {} start within {:.1} s",
            named.join(", "),
            pool.name,
            seconds(start_up.nearly_always())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Bin;

    #[test]
    fn of_a_slot_that_is_full_nothing_is_known_of_those_it_does_not_tell_of() {
        let bins = |many: u32| (1..=many).map(|task| (TaskId(task), Bin { peak_per_1000_s: 1, queries: 9 }));
        let most = u32::try_from(BINS_A_SLOT).unwrap();
        let of = |many: u32| {
            let seen = SlotSeen { slot: Slot(5_000), seen_s: 300, bins: bins(many).collect() };
            history(&[seen]).bin(TaskId(most + 1), Slot(5_000))
        };
        assert_eq!((of(most - 1), of(most)), (Some(Bin::default()), None));
    }
}
