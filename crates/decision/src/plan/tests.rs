//! What is pinned where, and why.

use super::*;
use alloc::vec;
use modelless_types::Within;

fn variant(id: u32, task: u32, ppm: u32, us: u64, mib: u64) -> PlanVariant {
    PlanVariant {
        id: VariantId(id),
        task: TaskId(task),
        accuracy: Accuracy::from_ppm(ppm).expect("accuracy"),
        latency: Micros(us),
        cost: CostPer1k(us),
        work: us * 1_000,
        memory: Bytes::from_mib(mib),
        demand: 0,
        least: 0,
        candidate: false,
    }
}

fn device(mib: u64, variants: Vec<PlanVariant>) -> Input {
    let memory = Bytes::from_mib(mib);
    let (node, device) = (NodeId(1), DeviceIx(0));
    Input {
        devices: alloc::vec![PlanDevice { node, device, memory, discretionary_permille: 0, variants }],
        ..Input::default()
    }
}

fn pinned(plan: &Plan) -> Vec<u32> {
    plan.pins.iter().map(|pin| pin.variant.0).collect()
}

#[test]
fn the_fastest_and_the_most_accurate_of_every_task_come_first() {
    let ladder = |task, id| {
        [
            variant(id, task, 800_000, 10, 10),
            variant(id + 1, task, 900_000, 20, 10),
            variant(id + 2, task, 950_000, 30, 10),
        ]
    };
    let variants: Vec<_> = ladder(1, 1).into_iter().chain(ladder(2, 11)).collect();
    assert_eq!(pinned(&plan(&device(20, variants.clone()), &Plan::default())), [1, 11]);
    assert_eq!(pinned(&plan(&device(40, variants.clone()), &Plan::default())), [1, 3, 11, 13]);
    assert_eq!(pinned(&plan(&device(60, variants), &Plan::default())), [1, 2, 3, 11, 12, 13]);
}

#[test]
fn where_room_is_short_what_is_asked_for_comes_first_and_stays_while_demand_wavers() {
    let asked = |demand| PlanVariant { demand, ..variant(11, 2, 800_000, 10, 10) };
    let input = |demand| device(10, alloc::vec![variant(1, 1, 800_000, 10, 10), asked(demand)]);
    let idle = plan(&input(0), &Plan::default());
    assert_eq!(pinned(&idle), [1]);
    let busy = plan(&input(3), &idle);
    assert_eq!(pinned(&busy), [11]);
    assert_eq!(pinned(&plan(&input(0), &busy)), [11], "nobody asks for the other either");
}

#[test]
fn what_is_pinned_gives_way_only_to_what_is_asked_for_two_doublings_more() {
    let asked = |id, task, demand| PlanVariant { demand, ..variant(id, task, 800_000, 10, 10) };
    let input = |one, other| device(10, alloc::vec![asked(1, 1, one), asked(11, 2, other)]);
    for first in [1, 11] {
        let node = (NodeId(1), DeviceIx(0));
        let pin = Pin { node: node.0, device: node.1, variant: VariantId(first) };
        let before = Plan { pins: alloc::vec![pin], ..Plan::default() };
        for (one, other) in [(0, 0), (0, 1), (1, 0), (5, 5), (5, 6), (6, 5)] {
            assert_eq!(pinned(&plan(&input(one, other), &before)), [first], "{one} {other}");
        }
        assert_eq!(pinned(&plan(&input(5, 7), &before)), [11]);
        assert_eq!(pinned(&plan(&input(7, 5), &before)), [1]);
    }
}

#[test]
fn candidates_come_last_take_nobodys_place_and_are_there_when_there_is_room() {
    let new = |id, ppm, us| PlanVariant { candidate: true, demand: 9, ..variant(id, 1, ppm, us, 10) };
    // Better on every axis than what answers.
    let variants =
        alloc::vec![variant(1, 1, 800_000, 10, 10), variant(2, 1, 900_000, 20, 10), new(3, 950_000, 5)];
    assert_eq!(pinned(&plan(&device(20, variants.clone()), &Plan::default())), [1, 2]);
    let both = plan(&device(30, variants.clone()), &Plan::default());
    assert_eq!(pinned(&both), [1, 2, 3]);
    // Promoted, it is the one that answers, and the others give way where room is short.
    let promoted: Vec<_> =
        variants.into_iter().map(|v| PlanVariant { candidate: !v.candidate, demand: 0, ..v }).collect();
    assert_eq!(pinned(&plan(&device(10, promoted), &both)), [3]);
}

#[test]
fn what_is_beaten_on_every_axis_is_not_pinned_and_the_report_says_so() {
    let variants = alloc::vec![variant(1, 1, 900_000, 10, 1), variant(2, 1, 800_000, 20, 1)];
    let made = plan(&device(100, variants), &Plan::default());
    assert_eq!(pinned(&made), [1]);
    assert!(made.report.iter().any(|step| step.variant == VariantId(2) && step.why.contains("every axis")));
}

#[test]
fn what_takes_the_least_memory_is_pinned_though_another_is_better_in_all_else() {
    let variants = alloc::vec![variant(1, 1, 900_000, 10, 30), variant(2, 1, 800_000, 20, 5)];
    assert_eq!(pinned(&plan(&device(100, variants.clone()), &Plan::default())), [1, 2]);
    assert_eq!(pinned(&plan(&device(10, variants), &Plan::default())), [2], "it is the only one with room");
}

#[test]
fn what_can_do_most_in_batches_comes_before_what_lies_between_though_alone_it_looks_beaten() {
    let variants = alloc::vec![
        variant(1, 1, 800_000, 10, 10),
        variant(2, 1, 850_000, 20, 10),
        variant(3, 1, 900_000, 30, 10),
        // Slower and less accurate than the first, but a batch takes half of the device that one of that takes.
        PlanVariant { work: 5_000, ..variant(4, 1, 780_000, 25, 10) },
    ];
    assert_eq!(pinned(&plan(&device(20, variants.clone()), &Plan::default())), [1, 3]);
    assert_eq!(pinned(&plan(&device(30, variants.clone()), &Plan::default())), [1, 3, 4]);
    assert_eq!(pinned(&plan(&device(40, variants), &Plan::default())), [1, 2, 3, 4]);
}

#[test]
fn a_step_tells_the_figures_that_decided_and_a_change_tells_its_step() {
    let of = |us| device(15, alloc::vec![variant(1, 1, 800_000, us, 10), variant(2, 1, 900_000, 3_000, 10)]);
    let told =
        |plan: &Plan, id| plan.report.iter().find(|step| step.variant == VariantId(id)).unwrap().why.clone();
    let first = plan(&of(1_000), &Plan::default());
    assert!(
        told(&first, 1).contains("fastest") && told(&first, 1).contains("1.00 ms"),
        "{}",
        told(&first, 1)
    );
    assert!(
        told(&first, 2).contains("5.0 MiB is left") && told(&first, 2).contains("10.0 MiB"),
        "{}",
        told(&first, 2)
    );
    let second = plan(&of(4_000), &first);
    assert!(
        told(&second, 1).contains("4.00 ms")
            && second.report.iter().any(|step| step.beaten_by == Some(VariantId(2)))
    );
    let changed = changes(&first, &second);
    let shown: Vec<(u32, bool)> = changed.iter().map(|change| (change.pin.variant.0, change.comes)).collect();
    assert_eq!(shown, [(2, true), (1, false)]);
    assert!(changed[1].why.contains("every axis") && changes(&second, &second).is_empty(), "{changed:?}");
    let nowhere = changes(&second, &Plan::default());
    assert!(nowhere[0].why.contains("gone"), "{nowhere:?}");
}

#[test]
fn nothing_of_a_task_that_sleeps_is_pinned_and_its_room_is_for_others() {
    let variants = alloc::vec![variant(1, 1, 800_000, 10, 10), variant(2, 2, 800_000, 20, 10)];
    let mut input = device(10, variants);
    let first = plan(&input, &Plan::default());
    assert_eq!(pinned(&first), [1]);
    let (keep, idle) = (Micros::from_secs(600), Some(Micros::from_secs(720)));
    input.tasks =
        alloc::vec![PlanTask { id: TaskId(1), keep: Some(keep), asked: idle, unasked: idle, ahead: None }];
    let second = plan(&input, &first);
    assert_eq!(pinned(&second), [2]);
    let why = &second.report.iter().find(|step| step.variant == VariantId(1)).unwrap().why;
    let told = "not pinned, as nobody asked for its task for 12 min, and it is kept for 10 min";
    assert!(why.starts_with(told), "{why}");
    assert_eq!(check(&input, &first, &second), []);
    assert!(plan(&input, &second).asks_the_same(&second));
    let kept = check(&input, &first, &Plan { pins: first.pins.clone(), ..second });
    assert!(matches!(kept[..], [Broken::Asleep(_)]), "{kept:?}");
}

#[test]
fn planning_again_changes_nothing_and_the_discretionary_share_stays_free() {
    let variants = (1..=9).map(|i| variant(i, i % 3, 800_000 + i * 1_000, u64::from(i) * 10, 10)).collect();
    let mut input = device(100, variants);
    input.devices[0].discretionary_permille = 500;
    let first = plan(&input, &Plan::default());
    assert_eq!(first.pins.len(), 5);
    assert_eq!(plan(&input, &first), first);
}

/// So many equal nodes.
fn nodes(many: u32, mib: u64, variants: &[PlanVariant]) -> Input {
    let of = device(mib, variants.to_vec()).devices;
    let devices =
        (1..=many).flat_map(|node| of.iter().map(move |of| PlanDevice { node: NodeId(node), ..of.clone() }));
    Input { devices: devices.collect(), ..Input::default() }
}

/// What is pinned on each node.
fn by_node(plan: &Plan, many: u32) -> Vec<Vec<u32>> {
    let on = |node| plan.pins.iter().filter(move |pin| pin.node == NodeId(node)).map(|pin| pin.variant.0);
    (1..=many).map(|node| on(node).collect()).collect()
}

#[test]
fn nodes_hold_together_what_none_of_them_could() {
    let variants: Vec<PlanVariant> = (1..=6).map(|id| variant(id, id, 800_000, 1_000, 10)).collect();
    let input = nodes(6, 20, &variants);
    let made = plan(&input, &Plan::default());
    assert_eq!(by_node(&made, 6), [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6], [5, 6]]);
    assert_eq!(plan(&input, &made), made);
    assert_eq!(check(&input, &Plan::default(), &made), []);
    let why = |node: u32, id: u32| {
        let step = |step: &&Step| step.node == NodeId(node) && step.variant == VariantId(id);
        made.report.iter().find(step).unwrap().why.clone()
    };
    assert!(
        why(3, 1).contains("0 B is left") && why(3, 1).contains("2 other devices have it"),
        "{}",
        why(3, 1)
    );
    // One leaves: what it had stands once now, and moves nowhere while the others have no room.
    let fewer = Input { devices: input.devices[1..].to_vec(), ..Input::default() };
    let next = plan(&fewer, &made);
    assert_eq!(by_node(&next, 6), [vec![], vec![1, 2], vec![3, 4], vec![3, 4], vec![5, 6], vec![5, 6]]);
    // With room for all on each, each has all.
    let all = plan(&nodes(3, 60, &variants), &Plan::default());
    assert_eq!(by_node(&all, 3), vec![vec![1, 2, 3, 4, 5, 6]; 3]);
}

#[test]
fn what_is_asked_for_little_has_one_node_before_what_is_asked_for_much_has_several() {
    // Room for two of three, and two nodes: by demand alone the third would stand nowhere.
    // What nobody asks for waits, though.
    let of = |id: u32, demand: u8| PlanVariant { demand, ..variant(id, id, 800_000, 1_000, 10) };
    for (third, stand) in [(3, [2, 1, 1]), (0, [2, 2, 0])] {
        let input = nodes(2, 20, &[of(1, 12), of(2, 12), of(3, third)]);
        let made = plan(&input, &Plan::default());
        let on = |id: u32| made.pins.iter().filter(|pin| pin.variant == VariantId(id)).count();
        assert_eq!([1, 2, 3].map(on), stand, "{:?}", by_node(&made, 2));
        assert_eq!(plan(&input, &made), made);
    }
}

#[test]
fn what_is_asked_for_most_stands_on_most_nodes_and_stays_there_while_demand_wavers() {
    // 10 ms each, and at this level no more than 190 a second: eight devices for the first.
    let with = |demand: u8| -> Vec<PlanVariant> {
        let of = |id: u32| PlanVariant {
            demand: if id == 1 { demand } else { 1 },
            ..variant(id, id, 800_000, 10_000, 10)
        };
        (1..=3).map(of).collect()
    };
    let on = |plan: &Plan, id: u32| plan.pins.iter().filter(|pin| pin.variant == VariantId(id)).count();
    let busy = plan(&nodes(12, 10, &with(13)), &Plan::default());
    assert_eq!([1, 2, 3].map(|id| on(&busy, id)), [8, 2, 2]);
    for wavers in [12, 11] {
        let next = plan(&nodes(12, 10, &with(wavers)), &busy);
        assert_eq!(next.pins, busy.pins, "{wavers}");
    }
    let quiet = plan(&nodes(12, 10, &with(4)), &busy);
    assert_eq!(quiet.pins, busy.pins, "nothing else wants the room");
}

proptest::proptest! {
    #[test]
    fn planning_again_moves_nothing_however_much_is_asked_and_wherever_it_stood(
        demands in proptest::collection::vec((0..22_u8, 0..22_u8, 1..200_u64), 8),
        rooms in proptest::collection::vec(5..60_u64, 1..9),
        before in proptest::collection::vec((0..9_u32, 1..9_u32), 0..20),
        steps in proptest::collection::vec(0..280_u16, 8),
        bounds in proptest::collection::vec(0..30_u64, 8),
        then in proptest::collection::vec(0..280_u16, 8),
        then_rooms in proptest::collection::vec(5..60_u64, 9),
    ) {
        let of = |(at, (demand, least, work)): (usize, &(u8, u8, u64))| {
            let id = u32::try_from(at).unwrap() + 1;
            let (ppm, us) = (700_000 + id * 10_000, u64::from(id) * 700);
            let (demand, least, work) = (*demand, *least.min(demand), work * 10_000);
            PlanVariant { work, demand, least, ..variant(id, id % 3, ppm, us, 5 + u64::from(id % 4) * 5) }
        };
        let variants: Vec<PlanVariant> = demands.iter().enumerate().map(of).collect();
        let mut input = nodes(u32::try_from(rooms.len()).unwrap(), 1, &variants);
        for (device, room) in input.devices.iter_mut().zip(rooms) {
            device.memory = Bytes::from_mib(room);
        }
        // Those who may be answered by a variant and all of its task that are more accurate.
        let class = |(at, steps): (usize, &u16)| {
            let floor = variants.get(at)?;
            let may = variants.iter().filter(|v| v.task == floor.task && v.accuracy >= floor.accuracy);
            let within = (bounds[at] > 9).then(|| Within::of(Micros(bounds[at] * 400)));
            (*steps > 0).then(|| PlanClass { task: floor.task, admits: may.map(|v| v.id).collect(), within, steps: *steps })
        };
        input.classes = steps.iter().enumerate().filter_map(class).collect();
        let pin = |(node, variant): (u32, u32)| {
            Pin { node: NodeId(node), device: DeviceIx(0), variant: VariantId(variant) }
        };
        let before = Plan { pins: before.into_iter().map(pin).collect(), ..Plan::default() };
        // After what stood somewhere, from nothing, and after a plan of another day and other rooms, of which some nodes are gone.
        let mut other = input.clone();
        other.classes.iter_mut().zip(&then).for_each(|(class, steps)| class.steps = *steps);
        for (device, room) in other.devices.iter_mut().zip(then_rooms) {
            device.memory = Bytes::from_mib(room);
        }
        let nothing = plan(&input, &Plan::default());
        let mut left = other.clone();
        left.devices.truncate(left.devices.len().div_ceil(2));
        for (before, input) in
            [(&before, &input), (&Plan::default(), &input), (&nothing, &other), (&nothing, &left)]
        {
            let first = plan(input, before);
            proptest::prop_assert_eq!(check(input, before, &first), vec![]);
            let second = plan(input, &first);
            proptest::prop_assert_eq!(&second.pins, &first.pins);
            proptest::prop_assert!(second.asks_the_same(&first), "{:?} {:?}", first.serves, second.serves);
        }
    }
}

#[test]
fn what_carries_most_comes_first_once_the_most_accurate_could_not_carry_it_and_stays_until_it_surely_could() {
    // The fastest alone, what takes least in batches, and the most accurate; room for two.
    let input = |demand: u8, least: u8| {
        let asked = |v: PlanVariant, least, work| PlanVariant { work, demand, least, ..v };
        let variants = alloc::vec![
            asked(variant(1, 1, 780_000, 3_000, 10), 0, 500_000),
            asked(variant(2, 1, 770_000, 18_000, 10), least, 300_000),
            asked(variant(3, 1, 830_000, 32_000, 10), 0, 1_250_000),
        ];
        device(20, variants)
    };
    let first = |plan: &Plan| plan.report.first().map(|step| step.variant.0);
    // 500 a second of 1.25 ms each would keep it busy for more than half of its time; 50 would not.
    let (much, little) = (crate::demand::level_of(500.0), crate::demand::level_of(50.0));
    let calm = plan(&input(little, little), &Plan::default());
    assert_eq!(pinned(&calm), [1, 3]);
    let busy = plan(&input(much, much), &calm);
    assert_eq!((pinned(&busy), first(&busy)), (alloc::vec![1, 2], Some(2)));
    assert!(
        busy.report[0].why.starts_with("pinned as what carries most of what is asked"),
        "{:?}",
        busy.report
    );
    // A quarter of it would not have moved it, and does not move it back.
    assert_eq!(pinned(&plan(&input(much - 2, much - 2), &calm)), [1, 3]);
    assert_eq!(pinned(&plan(&input(much - 2, much - 2), &busy)), [1, 2]);
    let again = plan(&input(little, little), &busy);
    assert_eq!((pinned(&again), again.carries.len()), (alloc::vec![1, 3], 0));
    // Nor does a scheduler that has just started and knows nothing yet: it read the plan.
    let unknown = plan(&input(0, 0), &busy);
    assert_eq!((pinned(&unknown), &unknown.carries), (alloc::vec![1, 2], &busy.carries));
}

#[test]
fn a_few_queries_under_a_floor_of_their_own_move_nothing() {
    let much = crate::demand::level_of(500.0);
    let input = |least: u8| {
        let asked = |v: PlanVariant, least, work| PlanVariant { work, demand: much, least, ..v };
        let variants = alloc::vec![
            asked(variant(1, 1, 780_000, 3_000, 10), 0, 500_000),
            asked(variant(2, 1, 770_000, 18_000, 10), much, 300_000),
            asked(variant(3, 1, 800_000, 27_000, 10), least, 1_250_000),
        ];
        device(20, variants)
    };
    let busy = plan(&input(0), &Plan::default());
    assert_eq!(pinned(&busy), [1, 2]);
    assert_eq!(pinned(&plan(&input(1), &busy)), [1, 2], "one query of many thousands");
    let asked = plan(&input(much - 2), &busy);
    assert_eq!(pinned(&asked), [2, 3]);
    assert_eq!(pinned(&plan(&input(1), &asked)), [2, 3], "while anybody asks it stays");
}

#[test]
fn each_floor_that_is_asked_under_has_what_carries_it() {
    // Half of what is asked may be answered by all three, the other half only by the last.
    let much = crate::demand::level_of(500.0);
    let asked = |v: PlanVariant, least, work| PlanVariant { work, demand: much, least, ..v };
    let variants = alloc::vec![
        asked(variant(1, 1, 780_000, 3_000, 10), 0, 500_000),
        asked(variant(2, 1, 770_000, 18_000, 10), much, 300_000),
        asked(variant(3, 1, 800_000, 27_000, 10), much, 650_000),
        asked(variant(4, 1, 830_000, 32_000, 10), 0, 1_250_000),
    ];
    assert_eq!(pinned(&plan(&device(20, variants), &Plan::default())), [2, 3]);
}
