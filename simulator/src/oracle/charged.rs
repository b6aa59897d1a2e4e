//! Which machines can be there when, for whoever rents them by what came.
//!
//! The fluid bound has all machines all the time. A machine that is started when a crowd is there comes after the crowd did, and what nobody could have
//! known is nobody's fault: so here a machine that comes and goes is there from its start on, or from when its start and one load have passed since the first second that it was
//! needed in. Needed are as many as would serve all of a second's queries alone, with half of their bounds left for waiting, and be no busier than the scenario wants lanes to be; what
//! was needed once stays. Of machines of a kind those come first that start soonest.
//!
//! Who asks for more machines than that, because of a trend, a margin or a guess, may be better than this. It is what to expect of renting as it is needed, and no bound for all
//! who rent.

use super::{Group, Lanes, float};
use crate::known::Catalog;
use crate::scenario::Scenario;
use modelless_types::Micros;

/// What is needed is told by the second.
const SECOND: u64 = 1_000_000;
/// What the first of these ask for was known before, as ours and others have seen a sample.
const SAMPLE: usize = 10;

/// How many lanes of each kind can be there.
pub(super) struct Presence {
    /// By kind: since when how many more.
    steps: Vec<Vec<(u64, f64)>>,
}

impl Presence {
    /// Of all machines all the time.
    pub(super) fn always(lanes: &[Lanes]) -> Self {
        Self { steps: lanes.iter().map(|kind| vec![(0, kind.count)]).collect() }
    }

    /// `counts` tells how many of each group came between two moments.
    pub(super) fn charged(
        scenario: &Scenario,
        known: &Catalog<'_>,
        (lanes, groups): (&[Lanes], &[Group]),
        counts: impl Fn(u64, u64) -> Vec<f64>,
    ) -> Self {
        let seconds: Vec<Vec<f64>> = (0..scenario.duration.0.div_ceil(SECOND))
            .map(|second| counts(second * SECOND, (second + 1) * SECOND))
            .collect();
        let of = |(kind, lanes): (usize, &Lanes)| {
            let mut there = 0.0;
            let mut away: Vec<(f64, u64)> = Vec::new();
            for (node, count) in &lanes.nodes {
                let spec = &scenario.nodes[*node];
                match spec.rented.filter(|rented| !rented.at_start) {
                    None => there += count,
                    Some(rented) => {
                        let load = known.all_on(*node).map(|v| v.load_time).min().unwrap_or(Micros::ZERO);
                        away.push((*count, (rented.start_up + load).0));
                    }
                }
            }
            let busy = |came: &[f64]| -> f64 {
                let each = groups.iter().zip(came).filter(|(group, _)| group.careful[kind] > 0.0);
                each.map(|(group, came)| came / group.careful[kind]).sum()
            };
            let needed = |came: &[f64]| busy(came) / scenario.busy.max(f64::MIN_POSITIVE);
            away.sort_by_key(|(_, lead)| *lead);
            let mut steps = vec![(0, there)];
            let mut away = away.into_iter().peekable();
            let sample = seconds.iter().take(SAMPLE).map(|came| needed(came)).fold(0.0, f64::max);
            while there < sample
                && let Some((count, _)) = away.next()
            {
                there += count;
                steps.push((0, count));
            }
            for (second, came) in (0..).zip(&seconds) {
                while there < needed(came)
                    && let Some((count, lead)) = away.next()
                {
                    there += count;
                    steps.push((second * SECOND + lead, count));
                }
            }
            steps
        };
        Self { steps: lanes.iter().enumerate().map(of).collect() }
    }

    /// Seconds of all lanes of each kind between two moments.
    pub(super) fn lane_seconds(&self, from: u64, to: u64) -> Vec<f64> {
        let of = |steps: &Vec<(u64, f64)>| {
            let each = |(since, lanes): &(u64, f64)| lanes * float(to.saturating_sub(from.max(*since))) / 1e6;
            steps.iter().map(each).sum()
        };
        self.steps.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fluid, tests::world};
    use crate::scenario::Rented;
    use modelless_types::Micros;

    /// One lane that stays and one that comes 10 s after it is needed, 1,000 a second each; whatever is asked within 10 ms.
    fn rented(arrivals: Vec<Micros>) -> crate::Scenario {
        let mut world = world(arrivals, 10);
        world.nodes[0].worker.devices[0].lanes = 1;
        let mut second = world.nodes[0].clone();
        let start_up = Micros::from_secs(10);
        second.rented = Some(Rented { at_start: false, start_up, scatter: 0.0 });
        world.nodes.push(second);
        for task in &mut world.tasks {
            task.variants.iter_mut().for_each(|variant| variant.load_time = Micros::ZERO);
        }
        world.duration = Micros::from_secs(40);
        world
    }

    /// So many a second, evenly, from one second to another.
    fn evenly(per_second: u64, from: u64, to: u64) -> impl Iterator<Item = Micros> {
        (from * per_second..to * per_second).map(move |n| Micros(n * 1_000_000 / per_second))
    }

    #[test]
    fn a_crowd_waits_for_the_machine_that_it_needs_and_a_load_that_was_there_before_does_not() {
        // 500 a second, and 1,500 from the 12th to the 32nd: 500 a second are too many for ten seconds of it, of 40,000 altogether.
        let usual = evenly(500, 0, 12).chain(evenly(1_500, 12, 32)).chain(evenly(500, 32, 40));
        let crowd = fluid(&rented(usual.collect()), 1).expect("runs");
        assert!(crowd.violations < 1e-9, "{crowd:?}");
        let lost = 10.0 * 500.0 / 40_000.0;
        // Stretches in which it begins or ends hide a little of it.
        assert!(crowd.charged <= lost && crowd.charged > 0.9 * lost, "{crowd:?}, not {lost}");
        // The first seconds need both already, as a sample said.
        let steady = fluid(&rented(evenly(1_500, 0, 40).collect()), 1).expect("runs");
        assert!(steady.charged < 1e-9, "{steady:?}");
    }

    #[test]
    fn where_nothing_is_rented_nothing_is_charged() {
        let herd = fluid(&world(vec![Micros::ZERO; 100], 10), 1).expect("runs");
        assert!((herd.charged - herd.violations).abs() < 1e-12 && herd.charged > 0.3, "{herd:?}");
    }
}
