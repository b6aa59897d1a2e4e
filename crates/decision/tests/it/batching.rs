//! The rule of each way of batching, in situations small enough to foresee.

use crate::common::{TASK, query, worker_variant};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Foresight, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    BatchPoint, Batching, Bytes, DeviceIx, Micros, PricePerHour, Priority, QueryKey, Refusal, Time,
    VariantSet,
};

struct World {
    worker: Worker,
    now: Time,
}

impl World {
    /// One lane with one variant, whose device times are given by batch size.
    fn new(batching: Batching, points: &[(u32, f64)]) -> Self {
        Self::looking(Foresight::default(), batching, points)
    }

    fn looking(foresight: Foresight, batching: Batching, points: &[(u32, f64)]) -> Self {
        Self::scattering(foresight, batching, points, 0.0, 1)
    }

    fn scattering(
        foresight: Foresight,
        batching: Batching,
        points: &[(u32, f64)],
        var_us2: f64,
        lanes: u16,
    ) -> Self {
        let device = DeviceConfig { lanes, width: 1, memory: Bytes(100), price: PricePerHour(1_000_000) };
        let devices = vec![device];
        let worker = Worker::new(WorkerConfig { devices, batching, foresight, ..WorkerConfig::default() });
        let point = |&(batch, mean_us): &(u32, f64)| BatchPoint {
            batch,
            mean_us,
            var_us2,
            p99_us: mean_us,
            samples: 1,
        };
        let points: Vec<BatchPoint> = points.iter().map(point).collect();
        let variant = WorkerVariant {
            max_batch: 8,
            ..worker_variant(0, RunModel::from_points(&points, Moments::ZERO).expect("points"))
        };
        let mut world = Self { worker, now: Time(1_000_000) };
        let (device, variant_id) = (DeviceIx(0), variant.id);
        world.feed(Event::Catalog(vec![variant]));
        world.feed(Event::Wake { task: TASK, ordinal: 0 });
        let (memory, took) = (Bytes(10), Micros(1_000));
        world.feed(Event::Loaded { device, variant: variant_id, memory, took });
        world
    }

    fn feed(&mut self, event: Event) -> Vec<Action> {
        self.worker.handle(self.now, event);
        std::iter::from_fn(|| self.worker.poll_action()).collect()
    }

    fn arrive(&mut self, key: u64, latency: Micros) -> Vec<Action> {
        let admits: VariantSet = [0].into_iter().collect();
        self.feed(Event::Arrive(query(key, self.now, admits, latency)))
    }

    /// Lets time pass, with the timers a shell would serve.
    fn pass(&mut self, time: Micros) -> Vec<Action> {
        let until = self.now + time;
        let mut actions = Vec::new();
        while let Some(wake) = self.worker.poll_timeout().filter(|wake| wake.at <= until) {
            self.now = wake.at.max(self.now);
            self.worker.handle_timeout(self.now);
            actions.extend(std::iter::from_fn(|| self.worker.poll_action()));
        }
        self.now = until;
        actions
    }

    /// Starts the batch that was bound.
    fn start(&mut self, actions: &[Action]) -> BatchId {
        let (batch, _) = bound(actions).expect("bound");
        let started = self.feed(Event::Prepared { batch, dropped: Vec::new() });
        assert!(started.contains(&Action::Start { batch }), "{started:?}");
        batch
    }

    fn ran(&mut self, batch: BatchId) -> Vec<Action> {
        self.feed(Event::Done { batch, outcome: Outcome::Ran })
    }
}

fn bound(actions: &[Action]) -> Option<(BatchId, Vec<u64>)> {
    actions.iter().find_map(|action| {
        let Action::Prepare { batch, queries, .. } = action else { return None };
        Some((*batch, queries.iter().map(|key| key.0).collect()))
    })
}

fn members(actions: &[Action]) -> Option<Vec<u64>> {
    bound(actions).map(|(_, members)| members)
}

fn refused(actions: &[Action]) -> Vec<u64> {
    let refused = actions.iter().filter_map(|action| {
        let Action::Refuse { key, refusal: Refusal::TooLate { .. } } = action else { return None };
        Some(key.0)
    });
    refused.collect()
}

/// Eight together take no longer than one alone.
const FREE: &[(u32, f64)] = &[(1, 10_000.0), (8, 10_000.0)];
/// Nothing is gained by going together.
const LINEAR: &[(u32, f64)] = &[(1, 10_000.0), (8, 80_000.0)];
const FAR: Micros = Micros::from_secs(10);

#[test]
fn off_gives_every_query_a_batch_of_its_own() {
    let mut world = World::new(Batching::Off, FREE);
    let batch = world.arrive(1, FAR);
    let batch = world.start(&batch);
    assert_eq!(members(&world.arrive(2, FAR)), Some(vec![2]), "bound at once");
    world.arrive(3, FAR);
    let second = BatchId(batch.0 + 1);
    world.feed(Event::Prepared { batch: second, dropped: Vec::new() });
    assert_eq!(members(&world.ran(batch)), Some(vec![3]));
}

#[test]
fn fixed_waits_for_its_size_or_for_its_time_whichever_comes_first() {
    let mode = Batching::Fixed { size: 3, wait: Micros(4_000) };
    let mut world = World::new(mode, FREE);
    assert_eq!(members(&world.arrive(1, FAR)), None);
    assert_eq!(members(&world.arrive(2, FAR)), None);
    assert_eq!(members(&world.arrive(3, FAR)), Some(vec![1, 2, 3]), "full");
    let mut world = World::new(mode, FREE);
    world.arrive(1, FAR);
    world.pass(Micros(3_000));
    assert_eq!(members(&world.arrive(2, FAR)), None);
    assert_eq!(members(&world.pass(Micros(999))), None);
    assert_eq!(members(&world.pass(Micros(1))), Some(vec![1, 2]), "the oldest has waited long enough");
}

#[test]
fn aimd_grows_until_a_batch_breaks_its_bound() {
    let mut world = World::new(Batching::Aimd, LINEAR);
    let mut key = 0;
    let mut fill = |world: &mut World, n: u64| {
        let mut actions = Vec::new();
        for _ in 0..n {
            key += 1;
            actions.extend(world.arrive(key, Micros(1_000_000)));
        }
        actions
    };
    // The first goes alone, and so does the second; each batch that kept its bound lets one more into the next.
    let first = fill(&mut world, 1);
    let mut batch = world.start(&first);
    let mut next = fill(&mut world, 30);
    let mut sizes = Vec::new();
    for took in [10_000, 10_000, 20_000, 20_000, 30_000] {
        let (following, members) = bound(&next).expect("bound");
        sizes.push(members.len());
        world.feed(Event::Prepared { batch: following, dropped: Vec::new() });
        world.now = world.now + Micros(took);
        next = world.ran(batch);
        batch = following;
    }
    assert_eq!(sizes, [1, 2, 2, 3, 3], "one more for each that filled its batch in time");
}

#[test]
fn what_gains_nothing_by_going_together_goes_alone() {
    let mut world = World::new(Batching::Deadline, LINEAR);
    let first = world.arrive(1, FAR);
    let first = world.start(&first);
    for key in 2..=5 {
        assert_eq!(members(&world.arrive(key, FAR)), None, "the lane is busy for a while");
    }
    let (_, next) = bound(&world.pass(Micros(9_000))).expect("bound before the lane is free");
    assert_eq!(next, [2]);
    world.ran(first);
    let mut world = World::new(Batching::Deadline, FREE);
    let first = world.arrive(1, FAR);
    world.start(&first);
    for key in 2..=5 {
        world.arrive(key, FAR);
    }
    assert_eq!(members(&world.pass(Micros(9_000))), Some(vec![2, 3, 4, 5]));
}

#[test]
fn a_batch_is_bound_just_before_its_lane_is_free_and_by_then_the_most_urgent_leads() {
    let mut world = World::new(Batching::Deadline, LINEAR);
    let first = world.arrive(1, FAR);
    world.start(&first);
    world.arrive(2, FAR);
    assert_eq!(members(&world.pass(Micros(8_000))), None);
    assert_eq!(members(&world.arrive(3, Micros(50_000))), None);
    assert_eq!(members(&world.pass(Micros(600))), Some(vec![3]), "1.5 ms before the end");
}

#[test]
fn a_free_lane_waits_for_more_only_if_it_could_not_keep_up_and_all_have_the_time() {
    // 2,000 a second, where one alone takes 10 ms: only batches keep up, and the next comes in 500 us.
    let come = |world: &mut World| {
        for key in 100..140 {
            let actions = world.arrive(key, FAR);
            world.feed(Event::Cancel { key: QueryKey(key) }); // they only show how queries come
            if let Some((batch, _)) = bound(&actions) {
                world.feed(Event::Prepared { batch, dropped: Vec::new() });
            }
            world.pass(Micros(500));
        }
    };
    let mut world = World::new(Batching::Deadline, FREE);
    come(&mut world);
    assert_eq!(members(&world.arrive(1, Micros(40_000))), None, "it waits for another");
    world.pass(Micros(400));
    assert_eq!(members(&world.arrive(2, Micros(40_000))), None);
    assert_eq!(members(&world.pass(Micros(1_300))), None);
    assert_eq!(members(&world.pass(Micros(400))), Some(vec![1, 2]), "three gaps without another");
    // Without the time for it, or without need, nobody waits.
    let mut world = World::new(Batching::Deadline, FREE);
    come(&mut world);
    assert_eq!(members(&world.arrive(1, Micros(11_000))), Some(vec![1]));
    let mut world = World::new(Batching::Deadline, LINEAR);
    come(&mut world);
    assert_eq!(members(&world.arrive(1, FAR)), Some(vec![1]));
}

#[test]
fn who_waits_behind_a_busy_device_is_refused_at_its_deadline_and_not_when_the_device_is_free() {
    for batching in [Batching::Deadline, Batching::Off] {
        let mut world = World::new(batching, LINEAR);
        let first = world.arrive(1, FAR);
        world.start(&first);
        // Profiled at 10 ms, the batch hangs; the second is bound behind it, the third is not bound at all.
        let mut told = world.arrive(2, Micros(25_000));
        told.extend(world.arrive(3, Micros(60_000)));
        told.extend(world.pass(Micros(9_000)));
        if let Some((batch, _)) = bound(&told) {
            world.feed(Event::Prepared { batch, dropped: Vec::new() });
        }
        assert_eq!(refused(&told), [0_u64; 0], "{batching}");
        assert_eq!(refused(&world.pass(Micros(15_999))), [0_u64; 0], "{batching}");
        assert_eq!(refused(&world.pass(Micros(1))), [2], "{batching}: at its deadline");
        assert_eq!(refused(&world.pass(Micros(40_000))), [3], "{batching}");
    }
}

#[test]
fn a_cancelled_query_never_runs() {
    let mut world = World::new(Batching::Off, LINEAR);
    let first = world.arrive(1, FAR);
    let (batch, _) = bound(&first).expect("bound");
    world.feed(Event::Cancel { key: QueryKey(1) });
    let actions = world.feed(Event::Prepared { batch, dropped: Vec::new() });
    assert!(actions.contains(&Action::Discard { batch }), "{actions:?}");
    assert!(!actions.contains(&Action::Start { batch }), "{actions:?}");
}

/// One alone takes 10 ms, each more 1 ms.
const SHARED: &[(u32, f64)] = &[(1, 10_000.0), (8, 17_000.0)];

/// Behind a batch that ends in 10 ms waits one that would have to go alone, and six that would then all be late.
fn pressed(foresight: Foresight, importance: &[(u64, u8)]) -> World {
    let mut world = World::looking(foresight, Batching::Deadline, SHARED);
    let first = world.arrive(1, FAR);
    world.start(&first);
    let admits: VariantSet = [0].into_iter().collect();
    for key in 2..=8 {
        let latency = Micros(if key == 2 { 20_500 } else { 26_000 });
        let level = importance.iter().find(|(of, _)| *of == key).map_or(0, |(_, level)| *level);
        let priority = Priority::new(level).expect("a level");
        world.feed(Event::Arrive(Query { priority, ..query(key, world.now, admits, latency) }));
    }
    world
}

#[test]
fn who_is_due_first_gives_way_if_more_of_the_others_are_then_in_time() {
    let mut world = pressed(Foresight::default(), &[]);
    let told = world.pass(Micros(9_000));
    assert_eq!(refused(&told), [2]);
    assert_eq!(members(&told), Some(vec![3, 4, 5, 6, 7, 8]));
    // Where that is switched off it goes, alone.
    let mut world = pressed(Foresight { gives_way: false, ..Foresight::default() }, &[]);
    let told = world.pass(Micros(9_000));
    assert_eq!((refused(&told), members(&told)), (vec![], Some(vec![2])));
}

#[test]
fn nobody_leaves_a_free_lane_to_those_who_wait_at_gateways() {
    // They are due before all who are here, and they are too many.
    for waiting in [0, 200] {
        let mut world = World::new(Batching::Deadline, SHARED);
        let class = query(0, world.now, [0].into_iter().collect(), FAR).class;
        world.feed(Event::Demand { class, waiting, first: Some(world.now + Micros(12_000)), among: 1 });
        let mut told = Vec::new();
        for key in 1..=8 {
            told.extend(world.arrive(key, Micros(200_000)));
        }
        told.extend(world.pass(Micros(1_000)));
        assert_eq!(refused(&told), [0; 0], "{waiting}: {told:?}");
        assert!(members(&told).is_some(), "{waiting}: {told:?}");
    }
}

#[test]
fn who_is_due_first_here_gives_way_however_hopeless_others_wait_at_gateways() {
    let mut world = pressed(Foresight::default(), &[]);
    let class = query(0, world.now, [0].into_iter().collect(), FAR).class;
    world.feed(Event::Demand { class, waiting: 3, first: Some(world.now + Micros(12_000)), among: 1 });
    let told = world.pass(Micros(9_000));
    assert_eq!(refused(&told), [2], "{told:?}");
}

#[test]
fn nobody_more_important_gives_way() {
    let mut world = pressed(Foresight::default(), &[(2, 1)]);
    let told = world.pass(Micros(9_000));
    assert_eq!(members(&told), Some(vec![2]));
    assert!(!refused(&told).contains(&2), "{told:?}");
}

#[test]
fn nobody_gives_way_where_all_are_in_time() {
    let mut world = World::new(Batching::Deadline, SHARED);
    let first = world.arrive(1, FAR);
    world.start(&first);
    world.arrive(2, Micros(20_500));
    for key in 3..=8 {
        world.arrive(key, Micros(40_000));
    }
    let told = world.pass(Micros(9_000));
    assert_eq!((refused(&told), members(&told)), (vec![], Some(vec![2])));
}

#[test]
fn where_those_who_come_save_more_than_a_late_timer_loses_a_batch_is_bound_later() {
    let bound_at = |points| {
        let mut world = World::new(Batching::Deadline, points);
        let first = world.arrive(1, FAR);
        world.start(&first);
        for key in 100..120 {
            world.arrive(key, FAR);
            world.feed(Event::Cancel { key: QueryKey(key) }); // they only show that one comes every 400 us
            world.pass(Micros(400));
        }
        world.arrive(2, FAR);
        (0..40).find(|_| members(&world.pass(Micros(50))).is_some())
    };
    // 2 ms are left by then.
    assert_eq!(bound_at(LINEAR), Some(9), "1.5 ms before the end");
    assert_eq!(bound_at(FREE), Some(34), "a quarter of a millisecond before the end");
}

#[test]
fn a_batch_that_gains_nothing_by_its_size_is_smaller_where_somebody_would_be_missed() {
    let drawn = |points, tight| {
        let mut world = World::new(Batching::Deadline, points);
        let first = world.arrive(100, FAR);
        let first = world.start(&first);
        for key in 1..=8 {
            world.arrive(key, FAR);
        }
        // These go away at once: they only show that such as they come.
        for key in 200..212 {
            world.arrive(key, tight);
            world.feed(Event::Cancel { key: QueryKey(key) });
            world.pass(Micros(40));
        }
        let mut told = world.pass(Micros(3_500));
        told.extend(world.ran(first));
        members(&told).expect("bound").len()
    };
    let nearly = &[(1, 4_000.0), (8, 31_600.0)];
    let soon = Micros(12_000);
    let smaller = drawn(nearly, soon);
    assert!(smaller < 8, "who comes soon would wait for 32 ms: {smaller}");
    assert_eq!(drawn(nearly, FAR), 8, "nobody is in a hurry");
    assert_eq!(drawn(&[(1, 4_000.0), (8, 24_000.0)], soon), 8, "never at the cost of throughput");
}

#[test]
fn a_batch_that_gains_nothing_by_its_size_is_smaller_too_where_as_many_are_missed_either_way() {
    let drawn = |points| {
        let mut world = World::new(Batching::Deadline, points);
        let first = world.arrive(100, FAR);
        let first = world.start(&first);
        for key in 1..=2 {
            world.arrive(key, Micros(200_000));
        }
        // Nobody can help those: one takes 4 ms, and they have one when the lane is free.
        let class = query(0, world.now, [0].into_iter().collect(), FAR).class;
        world.feed(Event::Demand { class, waiting: 3, first: Some(world.now + Micros(5_000)), among: 1 });
        let mut told = world.pass(Micros(3_900));
        told.extend(world.ran(first));
        members(&told).expect("bound").len()
    };
    assert_eq!(drawn(&[(1, 4_000.0), (8, 31_600.0)]), 1, "the first need not wait for the second");
    assert_eq!(drawn(&[(1, 4_000.0), (8, 24_000.0)]), 2, "together they take less");
}

/// Twice somebody had 4 % to spare behind another, and was held up for 5: 10 ms scatter by 1.
fn taught(chances: bool, lanes: u16) -> World {
    let foresight = Foresight { chances, caution: false, to_come: false, ..Foresight::default() };
    let mut world = World::scattering(foresight, Batching::Deadline, LINEAR, 1e6, lanes);
    for at in 0..2 {
        let first = world.arrive(2 * at, FAR);
        let first = world.start(&first);
        let filled = (1..lanes).map(|lane| world.arrive(100 * u64::from(lane) + at, FAR)).collect::<Vec<_>>();
        let filled: Vec<BatchId> = filled.iter().map(|told| world.start(told)).collect();
        world.arrive(2 * at + 1, Micros(20_400));
        let second = world.pass(Micros(10_000));
        let (second, _) = bound(&second).expect("a chance is taken");
        world.ran(first);
        for batch in filled {
            world.ran(batch);
        }
        world.feed(Event::Prepared { batch: second, dropped: Vec::new() });
        world.now = world.now + Micros(10_500);
        world.ran(second);
    }
    world
}

#[test]
fn where_nothing_is_sure_more_has_to_be_to_spare_the_more_of_such_answers_came_late() {
    // 3 % to spare, behind another and alone; and 60 %, which is sure.
    for (chances, behind, within, answered) in [
        (true, true, 20_300, false),
        (false, true, 20_300, true),
        (true, false, 10_300, true),
        (true, true, 26_000, true),
    ] {
        let mut world = taught(chances, 1);
        if behind {
            let running = world.arrive(998, FAR);
            world.start(&running);
        }
        let mut told = world.arrive(999, Micros(within));
        told.extend(world.pass(Micros(10_000)));
        assert_eq!(members(&told) == Some(vec![999]), answered, "{chances} {behind} {within}: {told:?}");
        assert_eq!(refused(&told) == [999], !answered, "{chances} {behind} {within}: {told:?}");
    }
}

#[test]
fn who_has_little_to_spare_is_not_refused_by_a_busy_lane_while_another_is_free() {
    let mut world = taught(true, 2);
    let running = world.arrive(998, FAR);
    world.start(&running);
    world.pass(Micros(9_500));
    // In time on the free lane as probably as before, behind the one that runs as well.
    let told = world.arrive(999, Micros(10_800));
    assert_eq!(members(&told), Some(vec![999]), "{told:?}");
}

#[test]
fn what_was_lost_is_forgotten_in_minutes() {
    let mut world = taught(true, 1);
    world.pass(Micros::from_secs(600));
    let running = world.arrive(998, FAR);
    world.start(&running);
    let mut told = world.arrive(999, Micros(20_300));
    told.extend(world.pass(Micros(10_000)));
    assert_eq!(members(&told), Some(vec![999]), "{told:?}");
}
