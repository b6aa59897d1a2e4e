//! Trials of new versions: adds up what gateways count, and ends a trial once that says enough or its time is over.
//!
//! What it says is decided in `decision::trial`. Several schedulers may do this at once: the store lets one end a trial. None is needed
//! for serving: without one the version goes on answering its share until somebody stops it.

use modelless_decision::trial::{Counts, Step, Terms, judge, keeps_floors};
use modelless_live::{Member, Role};
use modelless_store::{Catalog, EndTrial, Signed, Trial, TrialEnded, UnixMicros};
use modelless_types::{Micros, TrialId, TrialState};
use std::collections::BTreeMap;

/// Of one trial counts of so many gateways are added up; each restart of one makes another.
const GATEWAYS: usize = 4_096;
/// Trials that are ended in one round. The others are in the next.
const ENDS: usize = 16;

/// What each gateway, by name and instance, said last of a trial.
type Said = BTreeMap<(String, u64), Counts>;

/// What was counted of trials that run.
#[derive(Debug, Default)]
pub(crate) struct Trials(BTreeMap<TrialId, Said>);

impl Trials {
    /// Takes in what gateways say. What one said that is gone by now still counts.
    pub(crate) fn look(&mut self, members: &[Member], catalog: &Catalog) {
        self.0.retain(|id, _| catalog.trials.iter().any(|trial| trial.id == *id));
        for trial in &catalog.trials {
            let said = self.0.entry(trial.id).or_default();
            for member in members.iter().filter(|member| member.role == Role::Gateway) {
                let Some(tried) = member.trials.iter().find(|tried| tried.trial == trial.id) else {
                    continue;
                };
                let of = (member.name.clone(), member.instance);
                if said.len() < GATEWAYS || said.contains_key(&of) {
                    said.insert(of, tried.counts);
                }
            }
        }
    }

    /// How trials that are over end.
    pub(crate) fn ends(&self, catalog: &Catalog, who: &str, now: UnixMicros) -> Vec<EndTrial> {
        let of = |trial| self.end(trial, catalog, who, now);
        catalog.trials.iter().filter_map(of).take(ENDS).collect()
    }

    fn end(&self, trial: &Trial, catalog: &Catalog, who: &str, now: UnixMicros) -> Option<EndTrial> {
        let mut counts = Counts::default();
        self.0.get(&trial.id).into_iter().flat_map(BTreeMap::values).for_each(|said| counts.add(said));
        let terms = Terms { lasts: trial.lasts, promote_when_good: trial.promote_when_good };
        let ran = Micros(now.0.saturating_sub(trial.began.at.0));
        let floors = keeps_floors(catalog.floors_kept(trial.against), catalog.floors_kept(trial.candidate));
        let (state, cause) = match judge(&counts, ran, terms, floors) {
            Step::GoOn => return None,
            Step::RollBack(cause) => (TrialState::RolledBack, cause),
            Step::Promote(cause) => (TrialState::Promoted, cause),
            Step::Stop(cause) => (TrialState::Stopped, cause),
        };
        let figures = Some(serde_json::to_string(&counts).expect("counts are plain data; this is a bug"));
        let by = Signed { who: who.to_owned(), at: now };
        let ended = TrialEnded { cause, figures, by };
        Some(EndTrial { trial: trial.id, state, catalog: catalog.version, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::trial::Came;
    use modelless_live::Tried;
    use modelless_types::{ModelId, Share, TaskId};

    const NOW: UnixMicros = UnixMicros(100_000_000);

    fn catalog(promote_when_good: bool, lasts: Micros) -> Catalog {
        let trial = Trial {
            id: TrialId(3),
            task: TaskId(1),
            name: "m".to_owned(),
            candidate: ModelId(2),
            version: 2,
            against: ModelId(1),
            against_version: 1,
            share: Share::from_ppm(50_000).unwrap(),
            shadow: false,
            lasts,
            promote_when_good,
            forced: false,
            began: Signed { who: String::new(), at: UnixMicros(40_000_000) },
            state: TrialState::Running,
            ended: None,
        };
        Catalog { version: 7, trials: vec![trial], ..Catalog::default() }
    }

    /// A gateway that saw so many pairs come out so.
    fn gateway(name: &str, instance: u64, pairs: usize, candidate: Came) -> Member {
        let mut counts = Counts::default();
        for _ in 0..pairs {
            let good = Came::Answered { total: Micros(1_000), late: false };
            counts.candidate.count(candidate);
            counts.other.count(good);
            counts.pair(candidate, good);
        }
        let trials = [Tried { trial: TrialId(3), counts }].into();
        Member { trials, ..Member::new(Role::Gateway, name, instance) }
    }

    const GOOD: Came = Came::Answered { total: Micros(1_000), late: false };
    const HOUR: Micros = Micros::from_secs(3_600);

    #[test]
    fn what_gateways_count_is_added_up_also_what_one_said_that_is_gone() {
        let catalog = catalog(false, HOUR);
        let mut trials = Trials::default();
        // Each alone saw too few.
        for members in [vec![gateway("a", 1, 7, Came::Failed)], vec![gateway("a", 2, 5, Came::Failed)]] {
            trials.look(&members, &catalog);
            trials.look(&members, &catalog); // the same once more is nothing new
        }
        let end = trials.ends(&catalog, "scheduler s", NOW).remove(0);
        assert_eq!((end.trial, end.state, end.catalog), (TrialId(3), TrialState::RolledBack, 7));
        assert!(end.ended.cause.contains("of 12 pairs"), "{}", end.ended.cause);
        assert_eq!(end.ended.by.who, "scheduler s");
        let figures: Counts = serde_json::from_str(&end.ended.figures.unwrap()).unwrap();
        assert_eq!((figures.candidate.failed, figures.failures.worse), (12, 12));
        // It is over: what was said of it is forgotten.
        trials.look(&[], &Catalog::default());
        assert_eq!(trials.ends(&catalog, "s", NOW), []);
    }

    #[test]
    fn a_trial_goes_on_until_its_time_is_over_or_it_is_good() {
        let mut trials = Trials::default();
        let members = [gateway("a", 1, 200, GOOD), gateway("b", 1, 200, GOOD)];
        for (promote, lasts, expected) in [
            (false, HOUR, None),
            (true, HOUR, None),
            (false, Micros::from_secs(60), Some(TrialState::Stopped)),
            (true, Micros::from_secs(60), Some(TrialState::Promoted)),
        ] {
            let catalog = catalog(promote, lasts);
            trials.look(&members, &catalog);
            let ends = trials.ends(&catalog, "s", NOW);
            assert_eq!(ends.first().map(|end| end.state), expected, "{promote} {lasts:?}");
        }
    }
}
