use super::*;
use crate::hire::{self, Asked, Counts, Expected, Kind};
use crate::plan::{Input, Plan, PlanDevice, PlanTask, PlanVariant, check, plan};
use crate::query::Class;
use alloc::string::ToString as _;
use alloc::vec;
use modelless_types::{Accuracy, Bytes, CostPer1k, DeviceIx, NodeId, VariantId};
use proptest::prelude::*;

const TASK: TaskId = TaskId(3);
const OTHER: TaskId = TaskId(4);
/// Nine o'clock on some day.
const NINE: Slot = Slot(20_000 * Slot::A_DAY + 9 * 12);
const MINUTE: Micros = Micros::from_secs(60);

fn bin(per_s: u64, queries: u64) -> Bin {
    Bin { peak_per_1000_s: per_s * 1_000, queries }
}

/// What a slot had on days before it, in queries a second for five minutes; nothing is known of days that are not told.
fn days(slot: Slot, told: &[(u32, u64)]) -> History {
    let mut history = History::default();
    for (before, per_s) in told {
        let then = slot.days_before(*before).unwrap();
        history.saw(then, 300);
        if *per_s > 0 {
            history.asked(TASK, then, bin(*per_s, per_s * 300));
        }
    }
    history
}

fn rate(told: &[(u32, u64)]) -> Option<u64> {
    days(NINE, told).expected(TASK, NINE).map(|peak| peak.peak_per_1000_s / 1_000)
}

#[test]
fn what_came_on_two_of_the_last_three_days_that_are_known_comes_again_as_it_did_on_both() {
    assert_eq!(rate(&[(1, 40), (2, 0), (3, 42)]), Some(40));
    assert_eq!(rate(&[(1, 10), (2, 12), (3, 900)]), Some(12), "an outlier raises nothing");
    assert_eq!(rate(&[(1, 40), (2, 0), (3, 0), (4, 40), (5, 40)]), None, "the last three count");
    assert_eq!(rate(&[(1, 40), (4, 40)]), Some(40), "a hole is no quiet day");
    assert_eq!(rate(&[(1, 40)]), None, "once is chance");
    assert_eq!(rate(&[]), None);
    let peak = days(NINE, &[(1, 40), (2, 0), (3, 42)]).expected(TASK, NINE).unwrap();
    assert_eq!(peak.words(), "asked 40/s at 09:00 UTC on 2 of the last 3 days");
    assert_eq!((peak.per_s().to_string(), peak.mean_per_s().to_string()), ("40".into(), "40".into()));
}

#[test]
fn this_weekday_counts_where_it_was_asked_twice_and_saturday_is_not_another_friday() {
    // Busy on five days of seven: `first` is how many days ago the last Saturday was, or today is one.
    let weeks = |first: u32, until: u32| {
        let day = |before: u32| (before, if (first + 14 - before) % 7 < 2 { 0 } else { 40 });
        (1..=until).map(day).collect::<Vec<_>>()
    };
    let expected = |first, until| rate(&weeks(first, until));
    // Saturday, Sunday and Monday, by how many days are known.
    assert_eq!([3, 8, 10, 14].map(|until| expected(0, until)), [Some(40), Some(40), None, None]);
    assert_eq!([3, 10, 14].map(|until| expected(1, until)), [Some(40), None, None]);
    assert_eq!([3, 10, 14].map(|until| expected(2, until)), [None, None, Some(40)]);
    let monday = days(NINE, &weeks(2, 14)).expected(TASK, NINE).unwrap();
    assert_eq!(monday.words(), "asked 40/s at 09:00 UTC on 2 of the last 2 same weekdays");
    // A day that was quiet once, a week ago.
    let after_a_holiday: Vec<_> = (1..=14).map(|before| (before, if before == 7 { 0 } else { 40 })).collect();
    assert_eq!(rate(&after_a_holiday), Some(40));
    // What began three days ago is not put off by the weeks before.
    let new: Vec<_> = (1..=14).map(|before| (before, if before <= 3 { 40 } else { 0 })).collect();
    assert_eq!(rate(&new), Some(40));
}

#[test]
fn a_few_queries_are_none_and_what_was_seen_in_part_is_known_only_where_it_is_something() {
    let mut history = History::default();
    let then = [1, 2, 3].map(|before| NINE.days_before(before).unwrap());
    history.asked(TASK, then[0], bin(1, LEAST));
    history.asked(TASK, then[1], bin(1, LEAST - 1));
    assert_eq!(history.expected(TASK, NINE), None, "nobody knows of the second, that was seen in part");
    history.asked(TASK, then[2], bin(1, 900));
    let peak = history.expected(TASK, NINE).unwrap();
    assert_eq!((peak.on, peak.of, peak.queries), (2, 2, LEAST));
    history.saw(then[1], 239);
    assert_eq!(history.expected(TASK, NINE).unwrap().of, 2);
    history.saw(then[1], 240);
    assert_eq!(history.expected(TASK, NINE).unwrap().of, 3);
    assert_eq!(history.expected(OTHER, NINE), None);
}

#[test]
fn what_is_begun_is_begun_in_time_and_held_a_little_longer() {
    let forecast = days(NINE, &[(1, 40), (2, 40)]).forecast(Slot(NINE.0 - 30)..Slot(NINE.0 + 30));
    let at = |minutes: i64| Time(NINE.starts().0.saturating_add_signed(minutes * 60_000_000));
    let loads = Micros::from_secs(4);
    assert_eq!(lead(loads), Micros::from_secs(66));
    let ahead = |minutes| forecast.ahead(TASK, at(minutes), loads);
    let seen = |minutes| (ahead(minutes).soon.is_some(), ahead(minutes).held.is_some());
    assert_eq!([-8, -6, -2].map(seen), [(false, false), (false, true), (false, true)]);
    assert_eq!([-1, 0, 4].map(seen), [(true, true); 3]);
    assert_eq!([5, 9, 10, 11].map(seen), [(false, true), (false, true), (false, false), (false, false)]);
    let words = ahead(0).words().unwrap();
    assert_eq!(
        words,
        "its task was asked 40/s at 09:00 UTC on 2 of the last 2 days, and its loads take 4.0 s"
    );
    assert_eq!(lead(Micros(u64::MAX)), FURTHEST);
}

#[test]
fn what_is_read_for_a_forecast_is_what_it_is_made_from() {
    let now = Time(NINE.starts().0 + 1);
    let slots = reached(now);
    let late = Slot::of(now + FURTHEST + BAND);
    assert!(slots.contains(&Slot(NINE.0 - 1)) && slots.contains(&late) && slots.end.0 - slots.start.0 < 32);
    let read = compared(&slots);
    for before in 1..=14 {
        for slot in [slots.start, late] {
            let then = slot.days_before(before).unwrap();
            assert!(read.iter().any(|range| range.contains(&then)), "{before}");
        }
    }
    assert!(compared(&(Slot(3)..Slot(9))).is_empty(), "there was nothing before 1970");
}

fn task(keep: Micros, unasked: Option<Micros>, ahead: Ahead) -> PlanTask {
    PlanTask { id: TASK, keep: Some(keep), asked: None, unasked, ahead: Some(ahead) }
}

/// Plans as a scheduler does whose clock is a little off, and which takes a task that another has woken as asked for at that moment.
struct Scheduler {
    off: u64,
    woken: u32,
    asked: Option<Time>,
}

impl Scheduler {
    fn new(off: u64) -> Self {
        Self { off, woken: 0, asked: None }
    }

    /// Nobody asks. Whether the plan that holds is another one then.
    fn round(&mut self, now: Time, began: Time, keep: Micros, forecast: &Forecast, saved: &mut Plan) -> bool {
        let now = now + Micros(self.off);
        let woken = saved.rest.get(&TASK).map_or(0, |rest| rest.woken);
        if core::mem::replace(&mut self.woken, woken) != woken {
            self.asked = Some(now);
        }
        let unasked = now.since(self.asked.unwrap_or(began));
        let ahead = forecast.ahead(TASK, now, Micros::from_secs(4));
        let input = Input { tasks: vec![task(keep, Some(unasked), ahead)], ..Input::default() };
        let next = plan(&input, saved);
        assert_eq!(check(&input, saved, &next), []);
        let changed = next.rest != saved.rest;
        *saved = next;
        changed
    }
}

#[test]
fn a_task_that_sleeps_is_awake_before_its_peak_and_says_why() {
    let forecast = days(NINE, &[(1, 40), (3, 40)]).forecast(reached(NINE.starts()));
    let keep = Micros::from_secs(600);
    let at = |minutes: i64| Time(NINE.starts().0.saturating_add_signed(minutes * 60_000_000));
    let made = |minutes, before: &Plan| {
        let ahead = forecast.ahead(TASK, at(minutes), Micros::from_secs(4));
        let input =
            Input { tasks: vec![task(keep, Some(Micros::from_secs(36_000)), ahead)], ..Input::default() };
        plan(&input, before)
    };
    let asleep = made(-60, &Plan::default());
    assert!(asleep.sleeps(TASK) && asleep.tasks[0].why.starts_with("nobody asked"), "{:?}", asleep.tasks);
    assert!(made(-3, &asleep).sleeps(TASK), "too early");
    assert!(!made(-3, &Plan::default()).sleeps(TASK), "but who is awake stays so");
    let awake = made(-1, &asleep);
    assert!(!awake.sleeps(TASK) && awake.rest[&TASK].woken == 1);
    let why = &awake.tasks[0].why;
    assert_eq!(
        *why,
        "its task was asked 40/s at 09:00 UTC on 2 of the last 2 days, and its loads take 4.0 s"
    );
    assert!(made(60, &awake).sleeps(TASK));
}

fn variant(id: u32, task: TaskId, demand: u8) -> PlanVariant {
    PlanVariant {
        id: VariantId(id),
        task,
        accuracy: Accuracy::ZERO,
        latency: Micros(1),
        cost: CostPer1k(1),
        work: 1,
        memory: Bytes(10),
        demand,
        least: 0,
        candidate: false,
    }
}

/// Room for one of two tasks, of which one is asked for and the other one is expected to be.
fn short_of_room(demand: u8, ahead: Ahead) -> Input {
    let device = PlanDevice {
        node: NodeId(1),
        device: DeviceIx(0),
        memory: Bytes(10),
        discretionary_permille: 0,
        variants: vec![variant(1, TASK, 0), variant(2, OTHER, demand)],
    };
    let task = PlanTask { id: TASK, keep: None, asked: None, unasked: None, ahead: Some(ahead) };
    Input { devices: vec![device], tasks: vec![task], ..Input::default() }
}

#[test]
fn what_is_expected_comes_first_where_room_is_short_and_never_counts_for_less_than_what_is_asked() {
    let expected = days(NINE, &[(1, 40), (2, 40)]).forecast(reached(NINE.starts()));
    let made = |demand, at: Time, before: &Plan| {
        plan(&short_of_room(demand, expected.ahead(TASK, at, Micros::from_secs(4))), before)
    };
    let pinned = |plan: &Plan| plan.pins[0].variant.0;
    let long_before = made(4, Time(NINE.starts().0 - 20 * MINUTE.0), &Plan::default());
    let before = made(4, Time(NINE.starts().0 - MINUTE.0), &long_before);
    assert_eq!((pinned(&long_before), pinned(&before)), (2, 1));
    let why = &before.report.iter().find(|step| step.variant == VariantId(1)).unwrap().why;
    assert!(why.contains("its task was asked 40/s at 09:00 UTC on 2 of the last 2 days"), "{why}");
    assert_eq!(pinned(&made(4, NINE.starts() + Micros::from_secs(1_200), &before)), 2, "and then it is over");
    assert_eq!(pinned(&made(20, NINE.starts(), &long_before)), 2, "more is asked of the other");
}

/// Machines that do 100 queries a second each and take two minutes to come, of which one stays.
struct Machines {
    there: usize,
    coming: Vec<Time>,
}

const KIND: Kind = Kind { most: 9, stay: 1, lanes: 1.0, usd_per_hour: 1.0, lead_s: 120.0 };

impl Machines {
    /// Of so many queries those that nobody could take, in a second.
    fn second(&mut self, now: Time, queries: u64, (least, most): (usize, usize)) -> u64 {
        let came = self.coming.iter().filter(|at| **at <= now).count();
        self.coming.retain(|at| *at > now);
        self.there = (self.there + came).min(most.max(1));
        while self.there + self.coming.len() < least {
            self.coming.push(now + Micros::from_secs(120));
        }
        queries.saturating_sub(self.there as u64 * 100)
    }
}

/// Days from half past eight to ten, with twenty times as much from nine to half past: late queries of each day, and seconds of machines in all.
fn three_days(foretold: bool) -> (Vec<u64>, u64) {
    let asked: Asked = (Class { task: TASK, admits: [0].into_iter().collect() }, Micros::from_millis(100));
    let mut history = History::default();
    let (mut late, mut paid) = (vec![0; 3], 0);
    for (day, late) in late.iter_mut().enumerate() {
        let nine = Slot(NINE.0 + u32::try_from(day).unwrap() * Slot::A_DAY);
        let forecast = history.forecast(Slot(nine.0 - 12)..Slot(nine.0 + 40));
        let (mut counts, mut machines) = (Counts::default(), Machines { there: 1, coming: Vec::new() });
        for second in 0..5_400 {
            let now = Time(nine.starts().0 - 1_800_000_000) + Micros::from_secs(second);
            let queries = if (1_800..3_600).contains(&second) { 300 } else { 15 };
            let soon = forecast.highest(TASK, now, now + lead(Micros::from_secs(120)));
            let again = forecast.highest(TASK, now, now + lead(Micros::from_secs(120)) + AGAIN);
            let rates =
                |peak: Option<Peak>| peak.filter(|_| foretold).map(|peak| (TASK, peak.per_s())).into_iter();
            let expected = Expected {
                soon: rates(soon).collect(),
                again: rates(again).collect(),
                usual: [(TASK, asked)].into(),
            };
            let wanted = hire::wanted(
                (&counts, &expected),
                hire::Room { kinds: &[KIND], busy: 0.7, budget_usd: f64::INFINITY },
                &|_, _| Some(0.01),
            )[0];
            *late += machines.second(now, queries, wanted);
            paid += (machines.there + machines.coming.len()) as u64;
            counts.came(asked, queries);
            counts.pass();
            let slot = Slot::of(now);
            history.saw(slot, 300);
            let before = history.bin(TASK, slot).unwrap_or_default().queries;
            history.asked(TASK, slot, bin(queries, before + queries));
        }
    }
    (late, paid)
}

#[test]
fn with_a_forecast_the_rise_of_a_daily_peak_finds_its_machines_there() {
    let ((live, paid), (foretold, paid_foretold)) = (three_days(false), three_days(true));
    // Two minutes of 200 a second that nobody could take, each day.
    assert!(live.iter().all(|late| (20_000..28_000).contains(late)), "{live:?}");
    assert_eq!(live[..2], foretold[..2], "nobody knows what came once");
    assert_eq!(foretold[2], 0, "of {}", live[2]);
    // Five machines, from nine minutes before to a quarter of an hour after.
    assert!(paid_foretold - paid < 5 * 1_500, "{paid_foretold} instead of {paid}");
}

proptest! {
    #[test]
    fn what_recurs_is_foretold_before_it_comes(
        (minute, rate, loads_s) in (0_u32..288, 1_u64..2_000, 0_u64..600),
        which in prop::sample::subsequence(vec![1_u32, 2, 3], 2..=3),
        noise in prop::collection::vec((1_u32..15, 0_u32..288, 1_u64..LEAST), 0..200),
        early_s in 0_u64..60,
    ) {
        let slot = Slot(20_000 * Slot::A_DAY + minute);
        let told: Vec<(u32, u64)> = (1..=3).map(|day| (day, if which.contains(&day) { rate } else { 0 })).collect();
        let mut history = days(slot, &told);
        for (day, minute, queries) in noise {
            let then = Slot(20_000 * Slot::A_DAY + minute).days_before(day).unwrap();
            history.saw(then, 300);
            history.asked(TASK, then, bin(1, queries));
        }
        let loads = Micros::from_secs(loads_s);
        let start = slot.starts();
        let at = |before: u64| Time(start.0 - before);
        let forecast = history.forecast(reached(at(lead(loads).0)));
        let soon = |now| forecast.ahead(TASK, now, loads).soon;
        let peak = soon(at(lead(loads).0 - early_s * 1_000_000)).unwrap();
        prop_assert!(peak.slot == slot && peak.peak_per_1000_s >= rate * 1_000);
        prop_assert!(usize::from(peak.on) == which.len());
        prop_assert_eq!(soon(at(lead(loads).0 + 1)), None, "no earlier than it has to be");
    }

    #[test]
    fn whatever_is_missing_nothing_fails_and_what_is_wide_holds_what_is_narrow(
        bins in prop::collection::vec((0_u32..20, 0_u32..30, 0_u16..=300, any::<u64>(), any::<u64>()), 0..300),
        (now, off) in (0_u64..30 * 300_000_000, 0_u64..BAND.0),
        loads in any::<u64>(),
    ) {
        let first = Slot(20_000 * Slot::A_DAY);
        let mut history = History::default();
        for (day, slot, seen_s, peak_per_1000_s, queries) in bins {
            let then = Slot(first.0 + slot).days_before(day).unwrap();
            history.saw(then, seen_s);
            history.asked(TASK, then, Bin { peak_per_1000_s, queries });
        }
        let forecast = history.forecast(first..Slot(first.0 + 60));
        let now = first.starts() + Micros(now);
        let one = forecast.ahead(TASK, now, Micros(loads));
        for other in [now + Micros(off), Time(now.0 - off)] {
            let other = forecast.ahead(TASK, other, Micros(loads));
            prop_assert!(one.soon.map(|peak| peak.queries) <= other.held.map(|peak| peak.queries));
        }
        for peak in forecast.of(TASK) {
            prop_assert!(peak.queries >= LEAST && peak.on >= 2 && peak.on <= peak.of && !peak.words().is_empty());
        }
        history.expected(TASK, Slot(0));
        history.forecast(Slot(0)..Slot(3));
    }

    /// However it is asked now and then at night: chance recurs, and keeps nobody awake for long.
    #[test]
    fn white_noise_at_night_does_not_keep_a_task_awake(
        asked in prop::collection::vec(prop::bool::weighted(0.1), 14 * 96),
        queries in LEAST..500,
        keep_s in 5_u64..900,
    ) {
        let evening = Slot(20_000 * Slot::A_DAY + 22 * 12);
        let mut history = History::default();
        for (at, asked) in asked.iter().enumerate() {
            let (day, slot) = (u32::try_from(at / 96).unwrap() + 1, u32::try_from(at % 96).unwrap());
            let then = Slot(evening.0 + slot).days_before(day).unwrap();
            history.saw(then, 300);
            if *asked {
                history.asked(TASK, then, bin(1, queries));
            }
        }
        let forecast = history.forecast(Slot(evening.0 - 3)..Slot(evening.0 + 130));
        let (mut saved, mut scheduler, mut asleep) = (Plan::default(), Scheduler::new(0), 0);
        for minute in 0..480 {
            let now = evening.starts() + Micros::from_secs(minute * 60);
            scheduler.round(now, evening.starts(), Micros::from_secs(keep_s), &forecast, &mut saved);
            asleep += u32::from(saved.sleeps(TASK));
        }
        prop_assert!(asleep > 240, "{asleep} of 480 minutes");
    }

    /// In whatever order they plan, by clocks that are apart: nobody asks, so each stretch that is expected wakes the task once and it falls
    /// asleep once after that. And it is awake while it is expected to be asked.
    #[test]
    fn two_schedulers_whose_clocks_are_apart_never_take_turns_at_what_is_expected(
        expected in prop::collection::btree_set(2_u32..40, 0..6),
        keep_s in 5_u64..1_800,
        offs in (0_u64..4_000_000, 0_u64..4_000_000),
        order in prop::collection::vec((any::<bool>(), 1_u64..30), 300..800),
    ) {
        let mut history = History::default();
        for (slot, day) in expected.iter().flat_map(|slot| [(slot, 1), (slot, 2)]) {
            history.asked(TASK, Slot(NINE.0 + slot).days_before(day).unwrap(), bin(40, 12_000));
        }
        let forecast = history.forecast(NINE..Slot(NINE.0 + 100));
        let (mut first, mut second) = (Scheduler::new(offs.0), Scheduler::new(offs.1));
        let (mut saved, mut now, mut changes) = (Plan::default(), NINE.starts(), 0);
        for (which, step_s) in order {
            now = now + Micros::from_secs(step_s);
            let scheduler = if which { &mut first } else { &mut second };
            let changed = scheduler.round(now, NINE.starts(), Micros::from_secs(keep_s), &forecast, &mut saved);
            changes += usize::from(changed);
            let there = expected.contains(&(Slot::of(now).0 - NINE.0));
            prop_assert!(!(there && saved.sleeps(TASK)), "asleep at {}", Slot::of(now));
        }
        prop_assert!(changes <= 2 * expected.len() + 1, "{changes} changes for {expected:?}");
    }

    /// The same for room: it is given to what is expected once, and back once.
    #[test]
    fn two_schedulers_whose_clocks_are_apart_never_take_turns_at_what_is_pinned(
        expected in prop::collection::btree_map(2_u32..40, 30_u64..2_000, 0..6),
        levels in (3_u8..=4, 3_u8..=4),
        off in 0_u64..BAND.0,
        order in prop::collection::vec((any::<bool>(), 1_u64..30), 300..800),
    ) {
        let mut history = History::default();
        for ((slot, queries), day) in expected.iter().flat_map(|one| [(one, 1), (one, 2)]) {
            history.asked(TASK, Slot(NINE.0 + slot).days_before(day).unwrap(), bin(9_999 - queries, *queries));
        }
        let forecast = history.forecast(NINE..Slot(NINE.0 + 100));
        let (mut saved, mut now) = (Plan::default(), NINE.starts());
        let mut changes: Vec<BTreeSet<u32>> = Vec::new();
        for (which, step_s) in order {
            now = now + Micros::from_secs(step_s);
            let (now, level) = if which { (now, levels.0) } else { (now + Micros(off), levels.1) };
            let input = short_of_room(level, forecast.ahead(TASK, now, Micros::from_secs(4)));
            let next = plan(&input, &saved);
            if next.pins != saved.pins {
                changes.push(next.pins.iter().map(|pin| pin.variant.0).collect());
            }
            saved = next;
        }
        prop_assert!(changes.len() <= 2 * expected.len() + 1, "{changes:?} for {expected:?}");
    }
}
