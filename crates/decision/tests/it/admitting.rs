//! From goals to who may answer.

use crate::common::{TASK, goals, table};
use modelless_decision::admission::{admit, wanted, with_defaults};
use modelless_decision::route::Snapshot;
use modelless_types::{Goals, Refusal, TaskId, VariantSet};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn who_is_admitted_keeps_the_floor_and_the_pins_in_one_space(table in table(), goals in goals()) {
        let snapshot = Snapshot::new(table);
        let Ok(admitted) = admit(&snapshot, TASK, &goals) else { return Ok(()) };
        let task = snapshot.task(TASK).expect("the one task");
        let all = with_defaults(&goals, &task.defaults);
        prop_assert!(!admitted.class.admits.is_empty());
        let members: Vec<_> =
            admitted.class.admits.iter().map(|o| task.variant(o).expect("a variant of the task")).collect();
        prop_assert!(members.iter().all(|v| v.space == members[0].space));
        prop_assert!(members.iter().all(|v| all.accuracy.is_none_or(|floor| v.accuracy >= floor)));
        prop_assert!(members.iter().all(|v| all.model.is_none_or(|model| v.model == model)));
        prop_assert!(members.iter().all(|v| all.variant.is_none_or(|id| v.id == id)));
        if all.model.is_none() && all.variant.is_none() {
            prop_assert_eq!(members[0].space, task.default_space);
            prop_assert!(members.iter().all(|v| !v.candidate), "a candidate answers where it is pinned");
        }
        // Exactly the admissible set: nobody is left out either.
        let as_good = task.variants.iter().filter(|v| {
            v.space == members[0].space
                && (!v.candidate || all.model.is_some() || all.variant.is_some())
                && all.accuracy.is_none_or(|floor| v.accuracy >= floor)
                && all.model.is_none_or(|model| v.model == model)
                && all.variant.is_none_or(|id| v.id == id)
        });
        prop_assert_eq!(as_good.count(), members.len());
    }

    #[test]
    fn without_nodes_the_same_variants_are_wanted(mut table in table(), goals in goals()) {
        let Ok(admitted) = admit(&Snapshot::new(table.clone()), TASK, &goals) else { return Ok(()) };
        table.nodes.clear();
        let nobody = Snapshot::new(table);
        let refusal = admit(&nobody, TASK, &goals);
        prop_assert!(matches!(refusal, Err(Refusal::NothingRunnable { .. })), "{refusal:?}");
        prop_assert_eq!(wanted(&nobody, TASK, &goals), Some(admitted.class));
    }

    #[test]
    fn what_may_not_be_used_is_as_if_it_were_not_there(table in table(), goals in goals(), seen in any::<u64>()) {
        let among = VariantSet::from_words([seen, 0, 0, 0]);
        let mut rest = table.clone();
        for task in &mut rest.tasks {
            task.variants.retain(|v| among.contains(v.ordinal));
        }
        let hidden = admit(&Snapshot::new(table), TASK, &Goals { among: Some(among), ..goals });
        prop_assert_eq!(hidden, admit(&Snapshot::new(rest), TASK, &goals));
    }

    #[test]
    fn the_nearest_goals_named_in_a_no_are_admitted_when_tried(table in table(), goals in goals()) {
        let snapshot = Snapshot::new(table);
        let Err(refusal) = admit(&snapshot, TASK, &goals) else { return Ok(()) };
        let Some(nearest) = refusal.nearest() else { return Ok(()) };
        let tries = [
            nearest.accuracy.map(|accuracy| Goals { accuracy: Some(accuracy), ..goals }),
            nearest.latency.map(|latency| Goals { latency: Some(latency), ..goals }),
            nearest.max_cost.map(|max_cost| Goals { max_cost: Some(max_cost), ..goals }),
        ];
        for tried in tries.into_iter().flatten() {
            let again = admit(&snapshot, TASK, &tried);
            prop_assert!(again.is_ok(), "{refusal:?} named {tried:?}, which got {again:?}");
        }
    }
}

#[test]
fn a_task_that_is_not_known_is_refused_by_name() {
    let refusal = admit(&Snapshot::default(), TaskId(1), &Goals::default()).expect_err("nothing is known");
    assert!(matches!(refusal, Refusal::NothingRunnable { .. }));
}
