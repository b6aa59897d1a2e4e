//! Looks for a placement that serves clearly more than the order of ranks does.
//!
//! From what that order pins, from what is quickest in it alone, and from everything everywhere, thinned until it fits, by moves (`neighbours`) that each serve more, and by two at once where no single one does.
//! What is found replaces what is pinned only if it serves so much more that moving pays.

use super::fluid::{Fluid, Group, Served};
use super::neighbours::{NOTHING, moved, moves};
use super::report::Draft;
use super::{Foreseen, Input, PASSES, Pin, Plan, classes};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// So much more must be served by another placement than that of ranks where nothing is pinned yet, or was pinned before it was known what is asked: for less it is not worth that there are fewer copies of
/// something, of which a fluid knows nothing.
const PAYS: f64 = 1.04;
/// And so much more for what is pinned to move, as by ranks: two schedulers that have counted over different times would pass it to and fro.
const MOVES: f64 = 4.0;
/// Cells of programmes that may be worked out for one search: some tens of milliseconds.
const EFFORT: u64 = 20_000_000;
/// And so many more to find what to begin with besides.
const THIN: u64 = EFFORT / 4;
/// What a move takes to think of, in cells, and what it takes to try it for each group of devices.
const THOUGHT: usize = 200;
const TRIED: usize = 32;
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
    if fluid.is_too_large(&fluid.groups(&draft.plan.pins)) {
        return draft;
    }
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
        (worth >= served.worth * (1.0 - NOTHING)).then_some((plain, worth))
    };
    if !plan.serves.is_empty()
        && enough(&Plan::default()).is_some()
        && let Some((plain, worth)) = enough(plan)
        // In a quiet hour anything serves all, and nothing need move for that.
        && (plain.plan.pins == plan.pins || worth >= served.worth * MOVES)
    {
        return Some(plain);
    }
    let now = served.worth;
    if fluid.at_best() <= now * pays {
        return None; // nothing can be found that pays
    }
    let everything = fluid.everything();
    if !fluid.is_too_large(&everything) {
        let most = fluid.served(&everything);
        if most.ended && most.worth <= now * pays {
            return None; // nor if all of it were in memory
        }
    }
    let mut climb = Climb { fluid, left: EFFORT };
    let bare = fluid.bare(&groups);
    let thinned = climb.thinned();
    let mut best = climb.up(groups, served);
    let other = fluid.served(&bare);
    for (groups, served) in [Some((bare, other)), thinned].into_iter().flatten() {
        let other = climb.up(groups, served);
        if other.1.worth > best.1.worth * (1.0 + NOTHING) {
            best = other;
        }
    }
    (best.1.worth > now * pays).then(|| settle(plan, fluid.pins(&best.0, &best.1)))
}

struct Climb<'a> {
    fluid: &'a Fluid<'a>,
    left: u64,
}

type State = (Vec<Group>, Served);

impl Climb<'_> {
    /// From everything in memory everywhere, what serves least for the memory that it takes goes until the rest fits. Not where a task has to keep
    /// something quick.
    fn thinned(&self) -> Option<State> {
        let kinds = &self.fluid.kinds;
        if kinds.iter().flat_map(|kind| &kind.servers).any(|server| server.quick) {
            return None;
        }
        let (mut groups, mut left) = (self.fluid.everything(), THIN);
        if self.fluid.is_too_large(&groups) {
            return None;
        }
        loop {
            let served = self.fluid.served(&groups);
            left = left.checked_sub(served.effort)?;
            let mut fits = true;
            for (group, by) in groups.iter_mut().zip(&served.by) {
                let kind = &kinds[group.kind];
                group.pinned.retain(|pin| by.contains_key(pin));
                let memory = |pin: &usize| kind.servers[*pin].memory;
                if group.pinned.iter().map(memory).sum::<u64>() <= kind.room {
                    continue;
                }
                fits = false;
                let worth = |pin: &usize| by.get(pin).copied().unwrap_or(0.0) / bytes(memory(pin));
                let least = group.pinned.iter().copied().min_by(|a, b| worth(a).total_cmp(&worth(b)));
                least.map(|least| group.pinned.remove(&least));
            }
            if fits {
                return Some((groups, served));
            }
        }
    }

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
            others.truncate(FIRST);
            let least = state.1.worth;
            let Some(next) = others.iter().find_map(|first| self.round(first, least, None)) else { break };
            state = next;
        }
        state
    }

    fn took(&mut self, cells: usize) {
        self.left = self.left.saturating_sub(u64::try_from(cells).unwrap_or(u64::MAX));
    }

    /// The best of the moves that promise most, or else the first that serves more than this.
    fn round(&mut self, from: &State, least: f64, mut others: Option<&mut Vec<State>>) -> Option<State> {
        let mut best: Option<State> = None;
        let mut least = least * (1.0 + NOTHING);
        if self.left == 0 {
            return None;
        }
        let moves = moves(self.fluid, &from.0, &from.1);
        self.took((moves.len() + from.0.len()).saturating_mul(THOUGHT));
        for (at, to) in moves.into_iter().enumerate() {
            if self.left == 0 || (best.is_some() && at >= BEST_OF) {
                break;
            }
            if others.is_none() && from.1.worth + to.at_most <= least {
                continue;
            }
            let groups = moved(&from.0, &to);
            self.took(groups.len().saturating_mul(TRIED));
            if self.fluid.is_too_large(&groups) {
                continue;
            }
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

#[expect(clippy::cast_precision_loss, reason = "a size")]
fn bytes(bytes: u64) -> f64 {
    bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use crate::demand::level_of;
    use crate::plan::{Input, Pin, Plan, PlanClass, PlanDevice, PlanVariant, check, plan};
    use alloc::vec;
    use alloc::vec::Vec;
    use modelless_types::{Accuracy, Bytes, CostPer1k, DeviceIx, Micros, NodeId, TaskId, VariantId, Within};

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
                None => classes.push(PlanClass {
                    task: variant.task,
                    admits: vec![variant.id],
                    within: None,
                    steps: 194,
                }),
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
        Plan { pins: ids.iter().map(pin).collect(), informed: true, ..Plan::default() }
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

    /// Of one task a quick one, one that is better and one that is best, of which two have room; and how much is asked.
    fn two_of_three(steps: u16) -> Input {
        let of = |id, ppm, us| variant(id, 1, ppm, us, 10);
        let mut input = input(20, &[of(1, 700_000, 1_000), of(2, 800_000, 2_000), of(3, 900_000, 10_000)]);
        input.classes[0].steps = steps;
        input
    }

    #[test]
    fn a_quiet_hour_moves_nothing_and_what_served_most_is_there_after_it() {
        let (busy, quiet) = (two_of_three(226), two_of_three(158));
        let made = plan(&busy, &Plan::default());
        assert_eq!((pinned(&made), made.serves.len()), (vec![2, 3], 2));
        assert_eq!(pinned(&plan(&quiet, &Plan::default())), [1, 3], "ranks do as well");
        let after = plan(&quiet, &made);
        assert_eq!(pinned(&after), [2, 3]);
        assert_eq!(pinned(&plan(&busy, &after)), [2, 3]);
    }

    #[test]
    fn what_was_pinned_before_anybody_knew_what_is_asked_moves_once_for_little() {
        let unknown = Input { classes: Vec::new(), ..crowded() };
        let guessed = plan(&unknown, &Plan::default());
        assert_eq!((pinned(&guessed), guessed.informed), (vec![1], false));
        let known = plan(&crowded(), &guessed);
        assert_eq!((pinned(&known), known.informed), (vec![2, 3], true));
        assert!(plan(&unknown, &known).informed, "what is forgotten again is no reason to move");
    }

    #[test]
    fn a_task_that_nobody_asks_keeps_something_quick() {
        let first = [variant(1, 1, 700_000, 1_000, 10), variant(2, 1, 750_000, 2_000, 20)];
        let mut both = input(20, &[&first[..], &[variant(3, 2, 800_000, 1_000, 10)]].concat());
        assert_eq!(both.classes.pop().map(|class| class.task), Some(TaskId(2)));
        assert_eq!(pinned(&plan(&both, &Plan::default())), [1, 3]);
        both.classes[0].steps = 0;
        assert_eq!(pinned(&plan(&both, &Plan::default())), [1, 3], "an input may say so");
    }

    #[test]
    fn what_serves_most_and_has_no_room_any_more_leaves_a_plan_that_stays() {
        let mut three = input(
            25,
            &[
                variant(1, 1, 700_000, 1_000, 20),
                variant(2, 2, 700_000, 1_000, 10),
                variant(3, 2, 750_000, 2_000, 5),
                variant(4, 2, 800_000, 20_000, 5),
            ],
        );
        three.classes.clear();
        let pins = |ids: &[u32]| with(ids).pins.into_iter().collect();
        let before = Plan { serves: pins(&[1, 2]), ..with(&[1, 2]) };
        let made = plan(&three, &before);
        assert_eq!(plan(&three, &made), made);
    }

    #[test]
    fn machines_that_differ_by_some_pages_are_alike_and_a_cluster_of_too_many_kinds_is_left_to_ranks() {
        let cluster = |apart: u64| {
            let mut input = crowded();
            let first = input.devices[0].clone();
            let device = |node: u32| PlanDevice {
                node: NodeId(node),
                memory: Bytes(first.memory.0 + u64::from(node) * apart),
                ..first.clone()
            };
            input.devices = (1..=1_000).map(device).collect();
            input.classes.iter_mut().for_each(|class| class.steps += 120);
            input
        };
        let of_first = |plan: &Plan| plan.pins.iter().filter(|pin| pin.variant == VariantId(1)).count();
        let pages = plan(&cluster(16), &Plan::default());
        assert_eq!(of_first(&pages), of_first(&plan(&cluster(0), &Plan::default())));
        assert!(!pages.serves.is_empty());
        // Half as many are weighed, in a bounded time, and find more than ranks do.
        let of_kinds = |kinds: usize| {
            let mut input = cluster(1 << 15);
            input.devices.truncate(kinds);
            let in_time = |class: &PlanClass| PlanClass {
                within: Some(Within::of(Micros::from_millis(10))),
                ..class.clone()
            };
            let also: Vec<PlanClass> = input.classes.iter().map(in_time).collect();
            input.classes.extend(also);
            input
        };
        assert!(!plan(&of_kinds(300), &Plan::default()).serves.is_empty());
        let many = of_kinds(600);
        let ranked = plan(&many, &Plan::default());
        assert!(ranked.serves.is_empty(), "a programme of 600 different rooms is not weighed");
        assert_eq!(check(&many, &Plan::default(), &ranked), []);
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
    fn a_task_keeps_something_about_as_quick_as_its_quickest_or_as_is_asked_where_that_is_told() {
        let slow = |us| input(10, &[variant(1, 1, 700_000, 500, 10), variant(2, 1, 900_000, us, 10)]);
        assert_eq!(pinned(&plan(&slow(2_000), &Plan::default())), [2]);
        assert_eq!(pinned(&plan(&slow(3_000), &Plan::default())), [1]);
        let within = |us, ms| {
            let mut input = slow(us);
            input.classes[0].within = Some(Within::of(Micros::from_millis(ms)));
            pinned(&plan(&input, &Plan::default()))
        };
        assert_eq!(within(3_000, 10), [2]);
        assert_eq!(within(3_000, 2), [1]);
        assert_eq!(within(2_000, 1), [1]);
    }
}
