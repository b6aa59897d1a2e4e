//! What live state promises, in one process and over a real Redis; and what is left when that is killed.

use modelless_decision::Correction;
use modelless_decision::query::Class;
use modelless_decision::trial::{ArmCounts, Counts, Pairs};
use modelless_live::{
    Asked, Corrected, Demand, Error, Known, Live, Load, MEMBER_BYTES, MEMBERS, MemLive, Member, Notice,
    RedisLive, Resident, Role, Tried, follow, keep_announced,
};
use modelless_testkit::Redis;
use modelless_types::{Bytes, DeviceIx, Micros, NodeId, ReplicaState, TaskId, TrialId, VariantId, Within};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_mins(1);

fn member(role: Role, name: &str, instance: u64) -> Member {
    let class = Class { task: TaskId(3), admits: [0, 7, 255].into_iter().collect() };
    Member {
        role,
        name: name.into(),
        instance,
        node: Some(NodeId(4)),
        address: Some("127.0.0.1:7400".into()),
        draining: false,
        load: Load {
            queries: 5,
            waiting: 2,
            busy_lanes: 1,
            lanes: 2,
            memory_used: Bytes(9),
            memory_budget: Bytes(10),
        },
        resident: [Resident { device: DeviceIx(0), variant: VariantId(6), state: ReplicaState::Active }]
            .into(),
        demand: [Demand {
            class,
            arrived: u64::MAX,
            in_time: 8,
            waiting: 1,
            within: vec![(Within::of(Micros(9_000)), u64::MAX)],
        }]
        .into(),
        device_class: "cpu:test:1".into(),
        corrections: [Corrected {
            task: TaskId(3),
            ordinal: 7,
            correction: Correction { ratio: 1.5, ..Correction::NONE },
        }]
        .into(),
        up: Some(Micros(12)),
        asked: [Asked { task: TaskId(3), at: Micros(11) }].into(),
        tells_all_asked: true,
        trials: [Tried {
            trial: TrialId(2),
            counts: Counts {
                latency: Pairs { worse: 1, even: u64::MAX, better: 3 },
                candidate: ArmCounts { answered: 7, ..ArmCounts::default() },
                ..Counts::default()
            },
        }]
        .into(),
        left_out: 2,
    }
}

async fn until<F: Future<Output = bool>>(what: &str, is: impl Fn() -> F) {
    let wait = async {
        while !is().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// A live state that runs, and whatever it stands on.
struct Rig {
    name: &'static str,
    live: Arc<dyn Live>,
    /// The same live state, as another process has it.
    other: Arc<dyn Live>,
    redis: Option<Redis>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Rig {
    async fn all() -> Vec<Self> {
        let mem: Arc<dyn Live> = Arc::new(MemLive::default());
        vec![Self::new("in process", Arc::clone(&mem), mem, None), Self::redis().await]
    }

    async fn redis() -> Self {
        let redis =
            tokio::task::spawn_blocking(Redis::start).await.expect("no panic").expect("a Redis server");
        let open = || Arc::new(RedisLive::new(&redis.url(), "suite").expect("an address")) as Arc<dyn Live>;
        let (live, other) = (open(), open());
        Self::new("redis", live, other, Some(redis))
    }

    fn new(name: &'static str, live: Arc<dyn Live>, other: Arc<dyn Live>, redis: Option<Redis>) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for live in [&live, &other] {
            let (live, stop) = (Arc::clone(live), stop.clone());
            tasks.spawn(async move { live.run(stop).await });
        }
        Self { name, live, other, redis, stop, tasks }
    }

    async fn names(&self) -> Vec<String> {
        let members = self.other.members().await.expect("it answers");
        members.into_iter().map(|member| format!("{} {}", member.role.name(), member.name)).collect()
    }

    async fn end(mut self) {
        self.stop.cancel();
        timeout(PATIENCE, async { while self.tasks.join_next().await.is_some() {} }).await.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_known_to_others_as_they_described_themselves() {
    for rig in Rig::all().await {
        assert_eq!(rig.names().await, Vec::<String>::new(), "{}", rig.name);
        let node = member(Role::Node, "b", 1);
        for one in [
            &member(Role::Scheduler, "s", 1),
            &node,
            &member(Role::Node, "a", 1),
            &member(Role::Gateway, "b", 1),
        ] {
            assert_eq!(rig.live.announce(one, LONG).await, Ok(None), "{}", rig.name);
        }
        assert_eq!(rig.names().await, ["gateway b", "node a", "node b", "scheduler s"], "{}", rig.name);
        assert_eq!(rig.other.members().await.expect("it answers")[2], node, "{}", rig.name);
        let changed = Member { draining: true, load: Load::default(), ..node };
        assert_eq!(rig.live.announce(&changed, LONG).await, Ok(None), "the same instance again");
        assert_eq!(rig.other.members().await.expect("it answers")[2], changed, "{}", rig.name);
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_falls_silent_is_forgotten_and_one_that_goes_on_is_not() {
    for rig in Rig::all().await {
        let short = Duration::from_millis(100);
        rig.live.announce(&member(Role::Node, "silent", 1), short).await.expect("it answers");
        rig.live.announce(&member(Role::Node, "steady", 1), LONG).await.expect("it answers");
        until("the silent one is gone", || async { rig.names().await == ["node steady"] }).await;
        // Back again as if nothing had been.
        rig.live.announce(&member(Role::Node, "silent", 1), LONG).await.expect("it answers");
        assert_eq!(rig.names().await, ["node silent", "node steady"], "{}", rig.name);
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_belongs_to_the_instance_that_announced_it_last() {
    for rig in Rig::all().await {
        rig.live.announce(&member(Role::Node, "n", 1), LONG).await.expect("it answers");
        let took = rig.other.announce(&member(Role::Node, "n", 2), LONG).await;
        assert_eq!(took, Ok(Some(1)), "{}: the one before is told", rig.name);
        // The one before speaks once more, and otherwise: as after a pause, while it drains.
        let late = Member { resident: [].into(), ..member(Role::Node, "n", 1) };
        assert_eq!(rig.live.announce(&late, LONG).await, Ok(Some(2)), "{}", rig.name);
        let again = rig.other.announce(&member(Role::Node, "n", 2), LONG).await;
        assert_eq!(again, Ok(Some(1)), "{}", rig.name);
        let seen = rig.other.members().await.expect("it answers");
        assert_eq!(seen, [member(Role::Node, "n", 2)], "{}: whole, and nothing of the other", rig.name);
        rig.live.withdraw(Role::Node, "n", 1).await.expect("it answers");
        assert_eq!(rig.names().await, ["node n"], "{}: the old one cannot take the new one back", rig.name);
        rig.live.withdraw(Role::Node, "n", 2).await.expect("it answers");
        rig.live.withdraw(Role::Node, "never there", 2).await.expect("it answers");
        assert_eq!(rig.names().await, Vec::<String>::new(), "{}", rig.name);
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_to_be_remembered_is_known_to_others_until_its_time_is_over() {
    for rig in Rig::all().await {
        let name = rig.name;
        assert_eq!(rig.other.recall("a").await, Ok(None), "{name}");
        let value = [0, 255, 10, 13]; // any bytes
        rig.live.remember("a", &value, LONG).await.expect("it answers");
        assert_eq!(rig.other.recall("a").await, Ok(Some(value.to_vec())), "{name}");
        rig.other.remember("a", b"later", Duration::from_millis(50)).await.expect("it answers");
        assert_eq!(
            rig.live.recall("a").await.map(|found| found.is_none_or(|found| found == b"later")),
            Ok(true)
        );
        until("it was forgotten", || async { rig.live.recall("a").await == Ok(None) }).await;
        assert_eq!(rig.live.recall("b").await, Ok(None), "{name}");
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_says_too_much_is_refused_by_name() {
    for rig in Rig::all().await {
        let mut large = member(Role::Node, "large", 1);
        large.address = Some("x".repeat(MEMBER_BYTES));
        let refused = rig.live.announce(&large, LONG).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. })), "{}: {refused:?}", rig.name);
        rig.end().await;
    }
}

async fn hear(notices: &mut broadcast::Receiver<Notice>) -> Notice {
    timeout(PATIENCE, notices.recv()).await.expect("a notice").expect("not too slow")
}

/// Published until it is heard: a listener may not have connected yet.
async fn heard_at_last(rig: &Rig, notices: &mut broadcast::Receiver<Notice>, wanted: Notice) {
    let publish = async {
        loop {
            let _ = rig.live.publish(wanted).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = publish => {}
        () = async { while hear(notices).await != wanted {} } => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notices_reach_all_who_listen_in_order() {
    for rig in Rig::all().await {
        let (mut one, mut two) = (rig.live.notices(), rig.other.notices());
        let ready = Notice::Catalog { version: 1 };
        heard_at_last(&rig, &mut one, ready).await;
        heard_at_last(&rig, &mut two, ready).await;
        for id in 0..50 {
            rig.live.publish(Notice::Plan { id }).await.expect("it answers");
        }
        for notices in [&mut one, &mut two] {
            let mut ids = Vec::new();
            while ids.len() < 50 {
                if let Notice::Plan { id } = hear(notices).await {
                    ids.push(id);
                }
            }
            assert!(ids.into_iter().eq(0..50), "{}", rig.name);
        }
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_costs_freshness_and_its_return_repairs_itself() {
    let mut rig = Rig::redis().await;
    let beat = Duration::from_millis(50);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    for name in ["a", "b"] {
        let describe = move || member(Role::Node, name, 1);
        tasks.spawn(keep_announced(Arc::clone(&rig.live), describe, beat, stop.clone()));
    }
    let (sender, mut known) = watch::channel(Vec::new());
    let (answering, mut answers) = watch::channel(false);
    tasks.spawn(follow(Arc::clone(&rig.other), beat, sender, answering, stop.clone()));
    timeout(PATIENCE, known.wait_for(|members| members.len() == 2))
        .await
        .expect("in time")
        .expect("followed");
    let mut notices = rig.other.notices();
    heard_at_last(&rig, &mut notices, Notice::Plan { id: 1 }).await;

    let mut redis = rig.redis.take().expect("a server");
    redis.kill();
    until("it is found to be away", || async { rig.other.members().await.is_err() }).await;
    timeout(PATIENCE, answers.wait_for(|answers| !answers)).await.expect("in time").expect("followed");
    let error = rig.live.publish(Notice::Plan { id: 2 }).await.expect_err("nobody is there");
    assert!(matches!(error, Error::Away { .. }), "{error}");
    // Many times as long as a silent member is kept: nobody leaves.
    sleep(beat * 20).await;
    assert_eq!(known.borrow().len(), 2, "who was there is there as long as nobody says otherwise");
    assert!(!known.has_changed().expect("followed"), "and nothing changed meanwhile");

    // It comes back and knows nothing.
    let redis = tokio::task::spawn_blocking(move || redis.start_again().map(|()| redis));
    rig.redis = Some(redis.await.expect("no panic").expect("the server again"));
    until("both have announced themselves again", || async {
        rig.other.members().await.is_ok_and(|members| members.len() == 2)
    })
    .await;
    while notices.try_recv().is_ok() {} // what was heard before
    heard_at_last(&rig, &mut notices, Notice::Plan { id: 3 }).await;
    assert_eq!(known.borrow().len(), 2, "nobody was lost over it");

    stop.cancel();
    while tasks.join_next().await.is_some() {}
    assert_eq!(rig.names().await, Vec::<String>::new(), "those who leave say so");
    rig.end().await;
}

/// One that says a lot.
fn talkative(load: u32, ratio: f64) -> Member {
    let seen = |at: u32| Corrected {
        task: TaskId(at),
        ordinal: 7,
        correction: Correction { ratio, spread: 0.0, samples: 20 },
    };
    let load = Load { queries: load, ..Load::default() };
    Member { load, corrections: (0..1_000).map(seen).collect(), ..member(Role::Node, "n", 1) }
}

/// A figure of a Redis server's own.
async fn figure(redis: &Redis, name: &str) -> u64 {
    let client = redis::Client::open(redis.url()).expect("an address");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it answers");
    let all: String = redis::cmd("INFO").arg("stats").query_async(&mut connection).await.expect("it tells");
    let line = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("there is such a figure").trim().parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_change_is_neither_written_nor_read_again() {
    let rig = Rig::redis().await;
    let redis = rig.redis.as_ref().expect("a server");
    let beat = async |load: u32, ratio: f64| {
        let told = talkative(load, ratio);
        rig.live.announce(&told, LONG).await.expect("it answers");
        assert!(rig.other.members().await.expect("it answers") == [told], "all of it is seen at once");
    };
    let both = async || {
        (figure(redis, "total_net_input_bytes").await, figure(redis, "total_net_output_bytes").await)
    };
    beat(0, 1.5).await;
    let (written, read) = both().await;
    for load in 1..=20 {
        beat(load, 1.5).await;
    }
    let (after_written, after_read) = both().await;
    let each = ((after_written - written) / 20, (after_read - read) / 20);
    assert!(each.0 < 2_000 && each.1 < 3_000, "{each:?} bytes written and read with each heartbeat");
    beat(21, 2.5).await; // and what does change is seen at once, which `beat` looks at
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_everything_and_goes_on_is_told_everything_again() {
    let rig = Rig::redis().await;
    let beat = Duration::from_millis(50);
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(keep_announced(Arc::clone(&rig.live), || talkative(1, 1.5), beat, stop.clone()));
    let (sender, mut known) = watch::channel(Vec::new());
    let (answering, answers) = watch::channel(false);
    tasks.spawn(follow(Arc::clone(&rig.other), beat, sender, answering, stop.clone()));
    let whole = [talkative(1, 1.5)];
    timeout(PATIENCE, known.wait_for(|members| *members == whole)).await.expect("in time").expect("followed");
    let mut notices = rig.other.notices();
    heard_at_last(&rig, &mut notices, Notice::Plan { id: 1 }).await;

    let client = redis::Client::open(rig.redis.as_ref().expect("a server").url()).expect("an address");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it answers");
    let flush = || redis::cmd("FLUSHALL");
    for _ in 0..3 {
        flush().query_async::<()>(&mut connection).await.expect("it forgets");
        // Who reads now and knew nothing before, reads all of it.
        let new = RedisLive::new(&rig.redis.as_ref().expect("a server").url(), "suite").expect("an address");
        until("it is whole again", || async { new.members().await.is_ok_and(|members| members == whole) })
            .await;
        assert!(*known.borrow() == whole, "nobody was let go of meanwhile, nor what they said");
    }
    assert!(*answers.borrow(), "it was never away");
    heard_at_last(&rig, &mut notices, Notice::Plan { id: 2 }).await;
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_is_told_that_notices_may_have_been_missed() {
    let mut rig = Rig::redis().await;
    let mut notices = rig.live.notices();
    heard_at_last(&rig, &mut notices, Notice::Plan { id: 1 }).await;
    let mut redis = rig.redis.take().expect("a server");
    let redis = tokio::task::spawn_blocking(move || {
        redis.kill();
        redis.start_again().map(|()| redis)
    });
    rig.redis = Some(redis.await.expect("no panic").expect("the server again"));
    while hear(&mut notices).await != Notice::Missed {}
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_left_over_keep_nobody_out_however_many_they_are() {
    let rig = Rig::redis().await;
    assert_eq!(rig.live.announce(&member(Role::Node, "there", 1), LONG).await, Ok(None));
    let address = rig.redis.as_ref().expect("it is a Redis").url();
    let address = address.trim_start_matches("redis://").trim_end_matches('/');
    let mut redis = TcpStream::connect(address).await.expect("a Redis");
    let gone = (0..=MEMBERS).map(|at| format!("modelless:suite:member:node:gone-{at}"));
    let words: Vec<String> =
        ["SADD", "modelless:suite:members"].into_iter().map(str::to_owned).chain(gone).collect();
    let mut command = format!("*{}\r\n", words.len());
    command.extend(words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())));
    redis.write_all(command.as_bytes()).await.expect("written");
    let mut answer = vec![0; 64];
    let count = redis.read(&mut answer).await.expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer[..count]).trim(), format!(":{}", MEMBERS + 1));
    assert_eq!(rig.names().await, ["node there"]);
    rig.end().await;
}

/// In front of a Redis. After so many commands of a name it passes nothing on, on that connection; the next one is as good as new.
async fn holds_back(
    listener: TcpListener,
    redis: Redis,
    command: &'static str,
    after: usize,
    seen: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    let mut passes = Some(after);
    while let Ok((mut near, _)) = listener.accept().await {
        let mut far = TcpStream::connect(redis.url().trim_start_matches("redis://").trim_end_matches('/'))
            .await
            .expect("a Redis");
        let (passes, seen) = (passes.take(), Arc::clone(&seen));
        connections.spawn(async move {
            let ((mut asked, mut answered), (mut answers, mut asks)) = (near.split(), far.split());
            let up = async {
                let (mut buffer, mut commands) = (vec![0; 1 << 16], 0);
                while let Ok(count @ 1..) = asked.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..count]);
                    commands += text.matches(command).count();
                    seen.fetch_add(text.matches(":said").count(), Ordering::AcqRel);
                    if passes.is_some_and(|passes| commands > passes) {
                        std::future::pending::<()>().await;
                    }
                    if asks.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                () = up => {}
                _ = tokio::io::copy(&mut answers, &mut answered) => {}
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_of_members_is_kept_when_the_rest_does_not_come_and_only_that_is_asked_for_again() {
    const ALL: usize = 40;
    let mut rig = Rig::redis().await;
    for at in 0..ALL {
        let one = member(Role::Node, &format!("node {at:02}"), 1);
        assert_eq!(rig.live.announce(&one, LONG).await, Ok(None));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (redis, seen) = (rig.redis.take().expect("it is a Redis"), Arc::<AtomicUsize>::default());
    // Heads, the first lists, and then nothing.
    rig.tasks.spawn(holds_back(listener, redis, "MGET", 2, Arc::clone(&seen)));
    let live = RedisLive::new(&format!("redis://{address}"), "suite").expect("an address");
    let first = live.members().await.expect("what was read");
    let asked = seen.swap(0, Ordering::AcqRel);
    assert!(!first.is_empty() && first.len() < ALL && asked == ALL, "{} of {asked}", first.len());
    assert!(first.iter().all(|member| member.resident.len() == 1), "with all that they have");
    let whole = live.members().await.expect("it answers again");
    assert_eq!((whole.len(), seen.load(Ordering::Acquire)), (ALL, ALL - first.len()));
    rig.tasks.abort_all();
    while rig.tasks.join_next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_neither_answers_nor_hangs_up_is_away_after_a_second() {
    let mut rig = Rig::redis().await;
    rig.live.announce(&member(Role::Node, "n", 1), LONG).await.expect("it answers");
    let mut notices = rig.live.notices();
    heard_at_last(&rig, &mut notices, Notice::Plan { id: 1 }).await;
    let redis = rig.redis.take().expect("a server");
    redis.freeze().expect("stopped");
    let began = Instant::now();
    let asked = rig.live.members().await;
    assert!(matches!(asked, Err(Error::Away { .. })), "{asked:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Long enough for the listener to notice as well.
    until("the listener gave up", || async { began.elapsed() > Duration::from_secs(4) }).await;
    redis.thaw().expect("going on");
    while hear(&mut notices).await != Notice::Missed {}
    until("it answers again", || async { rig.live.members().await.is_ok_and(|members| members.len() == 1) })
        .await;
    rig.redis = Some(redis);
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_who_is_silent_while_others_are_heard_leaves_after_the_grace() {
    let grace = Duration::from_secs(4);
    let mut known = Known::new(grace);
    let (a, b) = (member(Role::Node, "a", 1), member(Role::Node, "b", 1));
    let start = Instant::now();
    known.read(start, vec![a.clone(), b.clone()]);
    known.read(start + grace, vec![a.clone()]);
    assert_eq!(known.members(), [a.clone(), b.clone()], "not yet");
    known.away(start + grace * 10);
    known.read(start + grace * 11, vec![a.clone()]);
    assert_eq!(known.members(), [a.clone(), b], "its time stood still");
    known.read(start + grace * 11 + Duration::from_millis(1), vec![a.clone()]);
    assert_eq!(known.members(), [a]);
}
