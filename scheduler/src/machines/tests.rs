//! The loop over a store in memory and machines that are only names.

use super::keeper::ENDED;
use super::*;
use crate::Handle;
use modelless_decision::baseline::Rules;
use modelless_fleet::{Error, Fleet, MemMachines, Wanted};
use modelless_live::{Load, Member, Role};
use modelless_store::{MachineStep, MemStore, NewMachine, Signed, SlotSeen, Store, UnixMicros};
use modelless_types::{Bin, MachineState, PricePerHour, Slot, TaskId, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A pool of 1 to 3 machines, of which all are wanted as soon as anything is asked.
fn config(most: u32) -> Config {
    let pool = serde_json::json!({"least": 1, "most": most, "price": 0.1, "process": {}, "set": ["executor.lanes=1"]});
    let all = serde_json::json!({"pools": {"p": pool}, "interval-ms": 20, "remembered-s": 10});
    serde_json::from_value(all).unwrap()
}

struct Bed {
    store: Arc<dyn Store>,
    machines: MemMachines,
    handle: Handle,
    _answers: watch::Sender<bool>,
    running: Vec<(CancellationToken, JoinSet<()>)>,
    queries: u32,
    busy_lanes: u16,
    rules: Rules,
}

impl Bed {
    fn new() -> Self {
        let (sender, answers) = watch::channel(true);
        let handle = Handle::default();
        handle.set_live(answers);
        let store: Arc<dyn Store> = Arc::new(MemStore::new());
        let machines = MemMachines::default();
        Self {
            store,
            machines,
            handle,
            _answers: sender,
            running: Vec::new(),
            queries: 0,
            busy_lanes: 0,
            rules: Rules::default(),
        }
    }

    fn fleet(&self) -> Arc<dyn Fleet> {
        Arc::new(self.machines.of("c", "p"))
    }

    fn start(&mut self, most: u32) {
        let instance = self.running.len() as u64 + 1;
        let keeper = build(Machinery {
            config: config(most),
            fleets: BTreeMap::from([("p".to_owned(), self.fleet())]),
            store: Arc::clone(&self.store),
            rules: self.rules,
            handle: self.handle.clone(),
            name: format!("planner-{instance}"),
            instance,
        });
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(keeper.run(stop.clone()));
        self.running.push((stop, tasks));
    }

    /// As SIGKILL does: it releases nothing.
    async fn kill(&mut self) {
        for (_, tasks) in &mut self.running {
            tasks.shutdown().await;
        }
    }

    /// Machines that the provider has are there as nodes.
    async fn announce(&self) {
        let listed = self.fleet().list().await.unwrap_or_default();
        let node = |name: &str| {
            let load =
                Load { queries: self.queries, lanes: 1, busy_lanes: self.busy_lanes, ..Load::default() };
            Member { load, ..Member::new(Role::Node, name, 1) }
        };
        self.handle.set_members(listed.iter().map(|listed| node(&listed.name)).collect());
    }

    async fn states(&self) -> Vec<(String, MachineState)> {
        let all = self.store.rented().machines().await.unwrap();
        all.into_iter().map(|machine| (machine.name, machine.state)).collect()
    }

    async fn joined(&self) -> usize {
        self.states().await.iter().filter(|(_, state)| *state == MachineState::Joined).count()
    }

    /// Lets time pass until it is said of the pool.
    async fn says(&self, what: &str) {
        for _ in 0..500 {
            let pools = self.store.rented().pools().await.unwrap();
            if pools.iter().any(|pool| pool.json.contains(what)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{:?}", self.store.rented().pools().await.unwrap());
    }

    /// Lets time pass, with nodes announcing themselves, until that many have joined, its provider has them, and nothing else is
    /// there.
    async fn settles(&self, many: usize) {
        for _ in 0..2_000 {
            self.announce().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let states = self.states().await;
            let listed = self.fleet().list().await.unwrap_or_default();
            let real = states.iter().all(|(name, _)| listed.iter().any(|listed| listed.name == *name));
            if real && states.len() == many && self.joined().await == many {
                return;
            }
        }
        panic!("{:?}", self.states().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_minimum_is_started_joined_and_replaced_when_it_dies() {
    let mut bed = Bed::new();
    bed.start(3);
    bed.settles(1).await;
    assert_eq!(bed.machines.starts(), 1);
    bed.machines.end("p-1");
    bed.settles(1).await;
    assert_eq!((bed.machines.starts(), bed.states().await[0].0.as_str()), (2, "p-2"));
    let changes = bed.store.rented().machine_changes(None, 99).await.unwrap();
    let died = changes.iter().find(|change| change.to == MachineState::Failed).unwrap();
    assert!(died.why.contains("nobody asked it to") && died.who == "planner-1", "{died:?}");
    bed.says(r#""samples":2"#).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_is_lost_with_the_scheduler_makes_one_machine() {
    let mut bed = Bed::new();
    bed.machines.lose_answers(true);
    bed.start(3);
    while bed.machines.starts() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bed.kill().await;
    assert_eq!(bed.states().await, [("p-1".to_owned(), MachineState::Asked)], "it is written down as asked");
    bed.machines.lose_answers(false);
    bed.start(3);
    bed.settles(1).await;
    assert_eq!(bed.machines.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wrote_down_is_adopted_and_what_is_too_many_is_taken_away() {
    let mut bed = Bed::new();
    for name in ["p-901", "p-902", "p-903", "p-904", "p-905"] {
        bed.fleet().start(&Wanted { name: name.to_owned(), settings: Vec::new() }).await.unwrap();
    }
    bed.start(3);
    // Demand was not watched yet, so those within the maximum stay at first; none is asked for beside them.
    bed.settles(3).await;
    assert_eq!((bed.machines.starts(), bed.fleet().list().await.unwrap().len()), (5, 3));
}

#[tokio::test(start_paused = true)]
async fn one_that_ended_before_very_many_others_is_taken_away_and_not_taken_back() {
    let mut bed = Bed::new();
    let rented = bed.store.rented();
    let by = || Signed { who: "s".to_owned(), at: UnixMicros(5) };
    for n in 0..=ENDED {
        let found = (n == 0).then(|| ("p-901".to_owned(), "i-901".to_owned()));
        let (from, price) =
            (if n == 0 { MachineState::Starting } else { MachineState::Asked }, PricePerHour(1));
        let new = NewMachine {
            pool: "p".to_owned(),
            found,
            price,
            most: 1,
            budget: None,
            why: String::new(),
            by: by(),
        };
        let machine = rented.add_machine(new).await.unwrap().unwrap().id;
        let step = MachineStep {
            machine,
            from,
            to: MachineState::Gone,
            instance: None,
            why: String::new(),
            by: by(),
        };
        rented.move_machine(step).await.unwrap();
    }
    bed.fleet().start(&Wanted { name: "p-901".to_owned(), settings: Vec::new() }).await.unwrap();
    bed.start(1);
    bed.settles(1).await;
    let states = bed.states().await;
    assert_eq!(states.len(), 1);
    assert_ne!(states[0].0, "p-901");
}

#[tokio::test(start_paused = true)]
async fn machines_cost_what_their_pool_does_now() {
    let mut bed = Bed::new();
    bed.start(3);
    bed.settles(1).await;
    let machine = bed.store.rented().machines().await.unwrap().remove(0);
    bed.store.rented().price_machines("p", PricePerHour(1)).await.unwrap();
    for _ in 0..500 {
        if bed.store.rented().machines().await.unwrap() == [machine.clone()] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?}", bed.store.rented().machines().await);
}

#[tokio::test(start_paused = true)]
async fn of_two_schedulers_one_sees_to_machines_and_the_other_follows_it() {
    let mut bed = Bed::new();
    bed.start(3);
    bed.settles(1).await;
    bed.start(3);
    for _ in 0..50 {
        bed.settles(1).await;
    }
    assert_eq!(bed.machines.starts(), 1);
    let (_, first) = &mut bed.running[0];
    first.shutdown().await;
    bed.machines.end("p-1");
    bed.settles(1).await;
    let changes = bed.store.rented().machine_changes(None, 1).await.unwrap();
    assert_eq!((bed.machines.starts(), changes[0].who.as_str()), (2, "planner-2"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_refuses_rests_and_one_that_is_away_is_asked_again_for_the_same_machine() {
    let mut bed = Bed::new();
    bed.machines.fail(Some(Error::Away("no route".to_owned())));
    bed.start(3);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(bed.states().await.is_empty(), "nobody knows what it has, so nothing is asked for");
    bed.machines.fail(Some(Error::Capacity("none left".to_owned())));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let failed = bed.store.rented().ended_machines(9).await.unwrap();
    assert_eq!(failed.len(), 1, "then it rests");
    let changes = bed.store.rented().machine_changes(Some(failed[0].id), 1).await.unwrap();
    assert!(changes[0].why.contains("none left"), "{changes:?}");
    bed.machines.fail(None);
}

#[tokio::test(start_paused = true)]
async fn by_infaas_rules_busy_machines_have_one_more_come_at_a_time_and_one_drains_after_half_a_minute_idle()
{
    let mut bed = Bed::new();
    (bed.rules, bed.busy_lanes) = (Rules::Infaas, 1);
    let began = tokio::time::Instant::now();
    bed.start(3);
    bed.settles(3).await;
    let took = began.elapsed();
    // A look may be a quarter of a second early.
    assert!((Duration::from_millis(3_750)..Duration::from_secs(9)).contains(&took), "two looks: {took:?}");
    bed.says(r#""rules":"infaas""#).await;
    bed.busy_lanes = 0;
    let idle = tokio::time::Instant::now();
    while bed.states().await.iter().all(|(_, state)| *state == MachineState::Joined) {
        bed.announce().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(idle.elapsed() < Duration::from_secs(40), "{:?}", bed.states().await);
    }
    assert!(idle.elapsed() > Duration::from_secs(28), "fifteen looks: {:?}", idle.elapsed());
    assert_eq!(bed.joined().await, 2);
}

#[tokio::test(start_paused = true)]
async fn machines_are_there_before_what_was_asked_at_this_time_on_earlier_days() {
    let mut bed = Bed::new();
    let (store, _) = crate::tests::store_with_ladder().await;
    bed.store = Arc::clone(&store);
    let now = UnixMicros::of(std::time::SystemTime::now());
    let began = tokio::time::Instant::now();
    // Between five and ten minutes from now.
    let slot = Slot(Slot::of(Time(now.0)).0 + 2);
    for day in [1, 2] {
        // More than two machines can do of the fastest.
        let bin = Bin { peak_per_1000_s: 150_000_000, queries: 40_000_000 };
        let slot = slot.days_before(day).unwrap();
        let seen = SlotSeen { slot, seen_s: 300, bins: [(TaskId(1), bin)].into() };
        store.history().put_slot(seen).await.unwrap();
    }
    bed.start(3);
    let until = Duration::from_micros(slot.starts().0 - now.0);
    while began.elapsed() + Duration::from_secs(80) < until {
        bed.settles(1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bed.settles(3).await;
    let left = until.saturating_sub(began.elapsed());
    assert!((Duration::from_secs(1)..Duration::from_secs(80)).contains(&left), "{left:?}");
    let changes = store.rented().machine_changes(None, 99).await.unwrap();
    let asked = changes
        .iter()
        .find(|change| change.to == MachineState::Asked && change.why.contains("by what is asked now"));
    let why = &asked.unwrap().why;
    assert!(
        why.contains("3 are wanted") && why.contains("1 by what is asked now, and task t was asked 150000/s"),
        "{why}"
    );
    bed.says(r#""more_least":2"#).await;
}
