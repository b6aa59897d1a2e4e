use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

const LOOK: Micros = Micros(500_000);

/// Two lanes of one core; others leave one, and what is asked keeps a third of one lane busy.
fn hogged() -> Scene {
    Scene {
        all: 2,
        width: 1,
        interfered: Some(Micros::from_secs(3)),
        asked: 0.33,
        takes: 0.6,
        left_milli: Some(1_000),
    }
}

fn calm() -> Scene {
    Scene { interfered: None, takes: 0.33, left_milli: Some(1_900), ..hogged() }
}

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000)
}

/// Every change that one scene brings about in so long, each with when it came.
fn changes(of: &mut Narrowing, (from, to): (u64, u64), scene: &Scene) -> Vec<(Time, u16)> {
    let mut now = at(from);
    let mut all = Vec::new();
    while now < at(to) {
        all.extend(of.judge(now, scene).map(|change| (now, change.lanes)));
        now = now + LOOK;
    }
    all
}

#[test]
fn fewer_lanes_run_while_others_take_a_core_and_all_again_when_they_have_gone() {
    let mut of = Narrowing::default();
    assert_eq!(of.open(2, 1), 2);
    let change = of.judge(at(100), &hogged()).expect("a change");
    assert_eq!((change.lanes, of.open(2, 1)), (1, 1));
    assert!(change.cause.contains("others leave 1.0 cores for 2 lanes"), "{}", change.cause);
    assert_eq!(of.told(2, 1).map(|told| (told.lanes, told.of)), Some((1, 2)));
    // It is not slow any more, for that is what it was done for; the core is still taken.
    assert_eq!(changes(&mut of, (101, 200), &Scene { interfered: None, ..hogged() }), []);
    let back = changes(&mut of, (200, 300), &calm());
    assert_eq!(back, [(at(205), 2)], "five seconds after it was free");
    assert_eq!((of.told(2, 1), of.is_narrowed()), (None, false));
}

#[test]
fn others_who_go_on_taking_what_would_close_no_lane_keep_none_closed() {
    let mut of = Narrowing::default();
    of.judge(at(100), &hogged()).expect("a change");
    let little = Scene { left_milli: Some(1_800), ..calm() };
    assert_eq!(changes(&mut of, (110, 300), &little), [(at(140), 2)], "it is tried after half a minute");
    // Not while something is slowed down.
    let mut of = Narrowing::default();
    of.judge(at(100), &hogged()).expect("a change");
    assert_eq!(changes(&mut of, (110, 300), &Scene { left_milli: Some(1_800), ..hogged() }), []);
}

#[test]
fn what_is_not_interfered_or_does_not_fit_or_shares_all_cores_is_left_alone() {
    for scene in [
        Scene { interfered: None, ..hogged() },
        Scene { interfered: Some(Micros(1_900_000)), ..hogged() },
        Scene { asked: 0.8, ..hogged() },
        Scene { asked: 0.01, ..hogged() },
        Scene { left_milli: Some(700), ..hogged() },
        Scene { left_milli: Some(1_800), ..hogged() },
        Scene { left_milli: None, ..hogged() },
        Scene { all: 1, ..hogged() },
    ] {
        assert_eq!(changes(&mut Narrowing::default(), (100, 300), &scene), [], "{scene:?}");
    }
}

#[test]
fn lanes_that_are_needed_come_back_at_once() {
    let mut of = Narrowing::default();
    of.judge(at(100), &hogged()).expect("a change");
    let busy = Scene { asked: 0.8, takes: 0.95, ..hogged() };
    assert_eq!(changes(&mut of, (100, 110), &busy), [(at(102), 2)]);
}

#[test]
fn what_is_no_quicker_for_it_gets_its_lanes_back() {
    let mut of = Narrowing::default();
    let saw = |of: &mut Narrowing, ratio: f64| (0..60).for_each(|_| of.saw(at(100), ratio, 0.5, 2));
    saw(&mut of, 2.0);
    of.judge(at(100), &hogged()).expect("a change");
    saw(&mut of, 1.9);
    let mut helped = of.clone();
    let change = (101..110).find_map(|second| of.judge(at(second), &hogged())).expect("a change");
    assert!(change.lanes == 2 && change.cause.contains("no quicker with 1 of 2"), "{}", change.cause);
    saw(&mut helped, 1.0);
    assert_eq!(changes(&mut helped, (101, 110), &hogged()), []);
}

#[test]
fn batches_that_slow_each_other_down_run_on_fewer_lanes_and_are_tried_side_by_side_again() {
    let alone = Scene { left_milli: None, ..hogged() };
    let saw = |of: &mut Narrowing, now: Time, crowded: f64, spared: f64| {
        for _ in 0..20 {
            of.saw(now, crowded, 0.9, 2);
            of.saw(now, spared, 0.1, 2);
        }
    };
    let mut of = Narrowing::default();
    saw(&mut of, at(100), 1.6, 1.4);
    assert_eq!(of.judge(at(100), &alone), None, "its profile is wrong, whoever runs beside it");
    let mut of = Narrowing::default();
    saw(&mut of, at(100), 1.6, 1.0);
    assert_eq!(of.clone().judge(at(131), &alone), None, "that was long ago");
    let change = of.judge(at(100), &alone).expect("a change");
    assert!(change.cause.contains("slow each other down: 1.60"), "{}", change.cause);
    assert_eq!(changes(&mut of, (101, 200), &Scene { interfered: None, ..alone }), [(at(130), 2)]);
    // It falls back, so the next time it is left alone for longer.
    saw(&mut of, at(136), 1.6, 1.0);
    assert_eq!(of.judge(at(136), &alone).map(|change| change.lanes), Some(1));
    assert_eq!(changes(&mut of, (137, 300), &Scene { interfered: None, ..alone }), [(at(196), 2)]);
}

#[test]
fn who_comes_and_goes_again_and_again_makes_it_change_more_and_more_seldom() {
    let mut of = Narrowing::default();
    let mut all = Vec::new();
    for round in 0..60 {
        let from = 100 + round * 12;
        all.extend(changes(&mut of, (from, from + 6), &hogged()));
        all.extend(changes(&mut of, (from + 6, from + 12), &calm()));
    }
    // 720 s of which each 12 s would have it there and back.
    assert!(all.len() <= 8, "{all:?}");
}

fn scene() -> impl Strategy<Value = Scene> {
    let interfered = proptest::option::of(0_u64..10_000_000);
    let left = proptest::option::of(0_u32..9_000);
    (interfered, 0.0_f64..6.0, 0.0_f64..9.0, left).prop_map(|(interfered, asked, takes, left_milli)| Scene {
        all: 0,
        width: 0,
        interfered: interfered.map(Micros),
        asked,
        takes,
        left_milli,
    })
}

proptest! {
    #[test]
    fn whatever_is_seen_there_is_a_lane_never_more_than_there_are_and_never_two_changes_in_two_seconds(
        all in 1_u16..9, width in 1_u16..5,
        steps in proptest::collection::vec((scene(), 1_u64..40, 0.5_f64..4.0, 0.0_f64..8.0), 1..80),
    ) {
        let (mut of, mut now, mut last) = (Narrowing::default(), at(100), None);
        for (scene, looks, ratio, others) in steps {
            let scene = Scene { all, width, ..scene };
            for _ in 0..looks {
                of.saw(now, ratio, others, of.open(all, width));
                let before = of.open(all, width);
                if let Some(change) = of.judge(now, &scene) {
                    prop_assert_eq!(change.lanes, of.open(all, width));
                    prop_assert!(change.lanes != before && !change.cause.is_empty());
                    prop_assert!(change.lanes > before || scene.interfered.is_some(), "only what is interfered is narrowed");
                    prop_assert!(last.is_none_or(|last| now - last >= DWELL), "{now:?} after {last:?}");
                    last = Some(now);
                }
                prop_assert!((1..=all).contains(&of.open(all, width)));
                prop_assert_eq!(of.is_narrowed(), of.open(all, width) < all);
                now = now + LOOK;
            }
        }
        // And whatever it was, it is over at last.
        let calm = Scene { all, width, interfered: None, asked: 0.1, takes: 0.1, left_milli: Some(1_000 * u32::from(all * width)) };
        let longest = Micros(TRY.0 << RELAPSES).0 / LOOK.0 + 10;
        for _ in 0..longest {
            of.judge(now, &calm);
            now = now + LOOK;
        }
        prop_assert_eq!(of.open(all, width), all);
    }
}
