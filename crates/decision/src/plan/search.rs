//! Looks for a placement that serves clearly more than the order of ranks does.
//!
//! From what that order pins, and from what is quickest in it alone, by moves (`neighbours`) that each serve more, and by two at once where no single one does.
//! What is found replaces what is pinned only if it serves so much more that moving pays.

use super::fluid::{Fluid, Group, Served};
use super::neighbours::{NOTHING, moved, moves};
use super::report::Draft;
use super::{Foreseen, Input, PASSES, Pin, Plan, classes};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// So much more must be served by another placement than that of ranks where nothing is pinned yet: for less it is not worth that there are fewer copies of
/// something, of which a fluid knows nothing.
const PAYS: f64 = 1.04;
/// And so much more for what is pinned to move, as by ranks: two schedulers that have counted over different times would pass it to and fro.
const MOVES: f64 = 4.0;
/// Cells of programmes that may be worked out for one search: some tens of milliseconds.
const EFFORT: u64 = 20_000_000;
/// Of so many moves that promise most the best is taken; of others the first that serves more.
const BEST_OF: usize = 48;
/// After so many first moves, none of which serves more by itself, a second is looked for.
const FIRST: usize = 24;

/// Searches from what was settled by rank, until nothing is found that pays.
/// Each step goes only by what the one before has pinned, so what it ends with is where the next plan ends too.
pub(super) fn search<'a>(
    input: &'a Input,
    expected: &Foreseen,
    mut draft: Draft<'a>,
    anew: bool,
    settle: Settle<'_, 'a>,
) -> Draft<'a> {
    let pays = if anew { PAYS } else { MOVES };
    let asked = classes::asked(input, expected, &draft.plan);
    if asked.is_empty() {
        return draft;
    }
    let fluid = Fluid::new(input, asked, &draft.plan);
    for _ in 0..PASSES {
        let Some(next) = step(&fluid, &draft.plan, pays, settle) else { break };
        draft = next;
    }
    draft
}

/// Fills devices by rank after a plan, with this before all ranks.
type Settle<'f, 'a> = &'f dyn Fn(&Plan, BTreeSet<Pin>) -> Draft<'a>;

fn step<'a>(fluid: &Fluid<'_>, plan: &Plan, pays: f64, settle: Settle<'_, 'a>) -> Option<Draft<'a>> {
    let groups = fluid.groups(&plan.pins);
    let served = fluid.served(&groups);
    // Ranks alone are simpler, and are gone by again as soon as they serve as much: from nothing, and then from what is pinned.
    let enough = |from: &Plan| {
        let plain = settle(from, BTreeSet::new());
        let worth = fluid.served(&fluid.groups(&plain.plan.pins)).worth;
        (worth >= served.worth * (1.0 - NOTHING)).then_some(plain)
    };
    if !plan.serves.is_empty()
        && enough(&Plan::default()).is_some()
        && let Some(plain) = enough(plan)
    {
        return Some(plain);
    }
    let now = served.worth;
    if fluid.at_best() <= now * pays {
        return None; // nothing can be found that pays
    }
    let mut climb = Climb { fluid, left: EFFORT };
    let bare = fluid.bare(&groups);
    let mut best = climb.up(groups, served);
    let other = fluid.served(&bare);
    let other = climb.up(bare, other);
    if other.1.worth > best.1.worth * (1.0 + NOTHING) {
        best = other;
    }
    (best.1.worth > now * pays).then(|| settle(plan, fluid.pins(&best.0, &best.1)))
}

struct Climb<'a> {
    fluid: &'a Fluid<'a>,
    left: u64,
}

type State = (Vec<Group>, Served);

impl Climb<'_> {
    /// As high as moves lead.
    fn up(&mut self, groups: Vec<Group>, served: Served) -> State {
        let mut state = (groups, served);
        while self.left > 0 {
            let mut others = Vec::new();
            if let Some(next) = self.round(&state, state.1.worth, Some(&mut others)) {
                state = next;
                continue;
            }
            others.sort_by(|a, b| b.1.worth.total_cmp(&a.1.worth));
            let least = state.1.worth;
            let mut second = others.into_iter().take(FIRST);
            let Some(next) = second.find_map(|first| self.round(&first, least, None)) else { break };
            state = next;
        }
        state
    }

    /// The best of the moves that promise most, or else the first that serves more than this.
    fn round(&mut self, from: &State, least: f64, mut others: Option<&mut Vec<State>>) -> Option<State> {
        let mut best: Option<State> = None;
        let mut least = least * (1.0 + NOTHING);
        for (at, to) in moves(self.fluid, &from.0, &from.1).into_iter().enumerate() {
            if self.left == 0 || (best.is_some() && at >= BEST_OF) {
                break;
            }
            if others.is_none() && from.1.worth + to.at_most <= least {
                continue;
            }
            let groups = moved(&from.0, &to);
            let served = self.fluid.served(&groups);
            self.left = self.left.saturating_sub(served.effort);
            if served.worth > least {
                least = served.worth;
                best = Some((groups, served));
            } else if let Some(others) = &mut others {
                others.push((groups, served));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use crate::demand::level_of;
    use crate::plan::{Input, Pin, Plan, PlanClass, PlanDevice, PlanVariant, check, plan};
    use alloc::vec;
    use alloc::vec::Vec;
    use modelless_types::{Accuracy, Bytes, CostPer1k, DeviceIx, Micros, NodeId, TaskId, VariantId};

    /// Of which about a hundred a second are asked.
    fn variant(id: u32, task: u32, ppm: u32, us: u64, mib: u64) -> PlanVariant {
        PlanVariant {
            id: VariantId(id),
            task: TaskId(task),
            accuracy: Accuracy::from_ppm(ppm).expect("an accuracy"),
            latency: Micros(us),
            cost: CostPer1k(us),
            work: us * 1_000,
            memory: Bytes::from_mib(mib),
            demand: level_of(100.0),
            least: 0,
            candidate: false,
        }
    }

    /// One device, and of each task a hundred a second that any variant may answer.
    fn input(mib: u64, variants: &[PlanVariant]) -> Input {
        let mut classes: Vec<PlanClass> = Vec::new();
        for variant in variants {
            match classes.iter_mut().find(|class| class.task == variant.task) {
                Some(class) => class.admits.push(variant.id),
                // 2^12.1 lately.
                None => classes.push(PlanClass { task: variant.task, admits: vec![variant.id], steps: 49 }),
            }
        }
        let device = PlanDevice {
            node: NodeId(1),
            device: DeviceIx(0),
            memory: Bytes::from_mib(mib),
            discretionary_permille: 0,
            variants: variants.to_vec(),
        };
        Input { devices: vec![device], classes, ..Input::default() }
    }

    fn pinned(plan: &Plan) -> Vec<u32> {
        plan.pins.iter().map(|pin| pin.variant.0).collect()
    }

    fn with(ids: &[u32]) -> Plan {
        let pin = |id: &u32| Pin { node: NodeId(1), device: DeviceIx(0), variant: VariantId(*id) };
        Plan { pins: ids.iter().map(pin).collect(), ..Plan::default() }
    }

    /// The quickest of the first task fills what could hold another of it and the second task's.
    fn crowded() -> Input {
        let first = [variant(1, 1, 700_000, 1_000, 20), variant(2, 1, 750_000, 3_000, 10)];
        input(20, &[&first[..], &[variant(3, 2, 800_000, 1_000, 10)]].concat())
    }

    #[test]
    fn what_is_large_gives_way_where_more_is_served_without_it_and_planning_again_moves_nothing() {
        let made = plan(&crowded(), &Plan::default());
        assert_eq!(pinned(&made), [2, 3]);
        assert!(made.report.iter().any(|step| step.why.starts_with("pinned as with it most is served")));
        assert_eq!(check(&crowded(), &Plan::default(), &made), []);
        assert_eq!(plan(&crowded(), &made), made);
        assert_eq!(pinned(&plan(&crowded(), &with(&[1]))), [1], "twice as much is not enough to move");
    }

    #[test]
    fn without_classes_a_plan_goes_by_rank_and_what_serves_most_stays_while_nothing_is_known() {
        let unknown = Input { classes: Vec::new(), ..crowded() };
        let ranked = plan(&unknown, &Plan::default());
        assert_eq!((pinned(&ranked), ranked.serves.len()), (vec![1], 0));
        let made = plan(&crowded(), &Plan::default());
        assert_eq!(plan(&unknown, &made), made);
    }

    #[test]
    fn once_there_is_room_for_all_ranks_are_enough() {
        let made = plan(&crowded(), &Plan::default());
        let roomy = plan(&input(40, &crowded().devices[0].variants), &made);
        assert_eq!((pinned(&roomy), roomy.serves.len()), (vec![1, 2, 3], 0));
    }

    #[test]
    fn ranks_stand_and_what_is_pinned_stays_where_little_more_would_be_served() {
        let two = input(10, &[variant(1, 1, 800_000, 1_000, 10), variant(2, 1, 830_000, 2_000, 10)]);
        assert_eq!(pinned(&plan(&two, &Plan::default())), [1]);
        assert_eq!(pinned(&plan(&two, &with(&[1]))), [1]);
        let more = input(10, &[variant(1, 1, 800_000, 1_000, 10), variant(2, 1, 840_000, 2_000, 10)]);
        assert_eq!(pinned(&plan(&more, &Plan::default())), [2]);
        assert_eq!(pinned(&plan(&more, &with(&[1]))), [1], "what is there moves for more only");
    }

    #[test]
    fn a_task_keeps_something_about_as_quick_as_its_quickest() {
        let slow = |us| input(10, &[variant(1, 1, 700_000, 500, 10), variant(2, 1, 900_000, us, 10)]);
        assert_eq!(pinned(&plan(&slow(2_000), &Plan::default())), [2]);
        assert_eq!(pinned(&plan(&slow(3_000), &Plan::default())), [1]);
    }
}
