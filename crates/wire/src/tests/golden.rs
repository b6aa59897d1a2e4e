//! The bytes of every kind of frame. If one of these tests fails, other versions no longer understand this one:
//! raise the version instead of changing the bytes.

use super::{NODE, answer, config, query, report, status};
use crate::codec::{self, Frame, Hello, Role};
use crate::frame::{Encoded, HEADER, Header, Kind};
use crate::out::Out;
use crate::{
    Announcement, Body, Demand, EngineStatus, FromNode, Gpu, Hardware, Input, InputFault, LoadTimes,
    NodeLoad, NodeStatus, Piece, PriceOrigin, ReplicaStatus, ToNode,
};
use bytes::Bytes as Buffer;
use modelless_decision::route::{Later, NodeInfo, NodeReport, Offer, Ready, Step};
use modelless_decision::{Correction, Coverage, Moments, RunModel};
use modelless_types::{
    Accuracy, AppId, BatchPoint, Bytes, CostPer1k, DeviceIx, Engine, Micros, Nearest, NodeId, PlanId, Prefer,
    PricePerHour, Priority, QueryKey, Refusal, ReplicaState, TaskId, TenantId, Time, VariantId,
};
use tokio::time::Instant;

fn say(body: Body) -> Encoded {
    codec::from_node(&FromNode { body, report: report(8) }).expect("small")
}

fn tell(frame: &ToNode) -> Encoded {
    codec::to_node(frame).expect("small")
}

fn announcement() -> Announcement {
    Announcement {
        key: QueryKey(0x0102_0304),
        tenant: TenantId(2),
        app: AppId(3),
        class: super::class(3),
        deadline_in: Micros(5),
        expires_in: Micros(6),
        spent: Micros(7),
        max_cost: Some(CostPer1k(8)),
        prefer: Prefer::Cost,
        priority: Priority::from_level(2).expect("a level"),
        best_effort: true,
        decoded: Bytes(9),
        part_ppm: 250_000,
        quickest: Micros(11),
    }
}

fn with_a_replica() -> NodeStatus {
    let replica = ReplicaStatus {
        device: DeviceIx(1),
        variant: VariantId(2),
        state: ReplicaState::Active,
        memory: Bytes(3),
        slowdown: Some(1.5),
        cause: "c".into(),
        loads: LoadTimes { count: 4, cold: Some(Micros(5)), warm: None },
        signs: None,
    };
    NodeStatus { replicas: vec![replica], ..status() }
}

/// Says something in every field, and has every form that routing tells apart: a status is JSON of types that are not the wire's own, and a
/// name that changes there changes here.
fn full() -> NodeStatus {
    let (time, price) = (|mean| Moments { mean, var: 2.5 }, PricePerHour(7));
    let point =
        |batch, mean_us| BatchPoint { batch, mean_us, var_us2: 4.0, p99_us: mean_us + 9.0, samples: 3 };
    let run = RunModel::from_points(&[point(1, 10.0), point(8, 40.0)], time(1.0)).expect("two points");
    let mut corrected = run.clone().with_decode(time(2.0)).with_price(Some(price));
    corrected.correction = Correction { ratio: 1.5, spread: 0.25, samples: 9 };
    corrected.coverage = Coverage { batches: 5, above: 1 };
    let offer = |ordinal, ready, run| Offer { task: TaskId(3), ordinal, ready, run, width: 2 };
    let offers = vec![
        offer(0, Ready::Resident, run.clone()),
        offer(1, Ready::Loading { at: Time(11) }, corrected),
        offer(2, Ready::Cold { load: Micros(12) }, run),
    ];
    let info = NodeInfo { id: NODE, rtt: Moments::ZERO, price, offers };
    let engine = |engine, version: Option<&str>, unavailable: Option<&str>| EngineStatus {
        engine,
        version: version.map(Into::into),
        unavailable: unavailable.map(Into::into),
    };
    let gpu = |memory| Gpu { name: "g".into(), memory };
    let states = [
        ReplicaState::Inactive,
        ReplicaState::Loading,
        ReplicaState::Active,
        ReplicaState::Overloaded,
        ReplicaState::Interfered,
        ReplicaState::Draining,
        ReplicaState::Failed,
    ];
    let replica = with_a_replica().replicas.remove(0);
    NodeStatus {
        hardware: Hardware {
            cpu: "c".into(),
            arch: "a".into(),
            isa: vec!["i".into()],
            cores: 2,
            memory: Bytes(3),
            gpus: vec![gpu(Some(Bytes(4))), gpu(None)],
        },
        price_origin: PriceOrigin::Listed { source: "s".into() },
        load: NodeLoad {
            lanes_busy: 1,
            queued: 2,
            running: 3,
            batches: 4,
            queries: 5,
            crashes: 6,
            restarts: 7,
            handed_back: 8,
            loads: 9,
            load_time: Micros(10),
            evictions: 11,
        },
        draining: true,
        replicas: states.into_iter().map(|state| ReplicaStatus { state, ..replica.clone() }).collect(),
        warnings: vec!["w".into()],
        engines: vec![
            engine(Engine::Onnx, Some("1"), None),
            engine(Engine::Openvino, None, Some("u")),
            engine(Engine::Torch, None, None),
            engine(Engine::Remote, None, None),
        ],
        ..NodeStatus::idle(info, "n", "cpu:test:1")
    }
}

/// Every "no", in the order of their numbers.
fn refusals() -> Vec<(&'static str, Refusal)> {
    let why = || "w".to_owned();
    let nearest = Nearest {
        accuracy: Some(Accuracy::from_ppm(1).expect("below 1")),
        latency: Some(Micros(2)),
        max_cost: Some(CostPer1k(3)),
    };
    vec![
        ("refused floor", Refusal::FloorUnreachable { best: None }),
        ("refused latency", Refusal::LatencyUnreachable { nearest }),
        ("refused cost", Refusal::CostUnreachable { nearest: Nearest::default() }),
        ("refused pin", Refusal::PinUnusable { why: why() }),
        ("refused nothing runnable", Refusal::NothingRunnable { why: why() }),
        ("refused too late", Refusal::TooLate { waited: Micros(4) }),
        ("refused queue full", Refusal::QueueFull { limit: 5 }),
        ("refused bytes full", Refusal::BytesFull { limit: Bytes(6) }),
        ("refused over quota", Refusal::OverQuota),
        ("refused loading", Refusal::Loading { ready_in: Micros(7), bound: Micros(17) }),
        ("refused variant failed", Refusal::VariantFailed { why: why() }),
        ("refused input crashed", Refusal::InputCrashed { why: why() }),
        ("refused model error", Refusal::ModelError { why: why() }),
        ("refused out of memory", Refusal::OutOfMemory { needs: Bytes(8), budget: Bytes(9) }),
        ("refused draining", Refusal::Draining),
        ("refused node lost", Refusal::NodeLost),
        ("refused cancelled", Refusal::Cancelled),
    ]
}

/// One of each kind, and of each form that a kind has.
pub(crate) fn samples() -> Vec<(&'static str, Encoded)> {
    let refused = refusals().into_iter().map(|(name, refusal)| {
        let key = QueryKey(0x0102_0304);
        (name, say(Body::Refused { key, refusal }))
    });
    plain_samples().into_iter().chain(refused).collect()
}

fn plain_samples() -> Vec<(&'static str, Encoded)> {
    let key = QueryKey(0x0102_0304);
    let json = |parameters: Option<&'static [u8]>| {
        let inputs = Buffer::from_static(b"[1]");
        Input::Json { inputs, parameters: parameters.map(Buffer::from_static) }
    };
    let ask = |input| tell(&ToNode::Query(Box::new(query(key.0, input))));
    let node = Role::Node { node: NodeId(7) };
    vec![
        ("hello gateway", codec::hello(&Hello::new("g", Role::Gateway, &config())).expect("small")),
        ("hello node", codec::hello(&Hello::new("n", node, &config())).expect("small")),
        ("status", codec::status(&status(), Time(9)).expect("small")),
        ("status with a replica", codec::status(&with_a_replica(), Time(9)).expect("small")),
        ("status with everything", codec::status(&full(), Time(9)).expect("small")),
        (
            "status with a price that was given",
            codec::status(&NodeStatus { price_origin: PriceOrigin::Declared, ..status() }, Time(9))
                .expect("small"),
        ),
        ("hello scheduler", codec::hello(&Hello::new("s", Role::Scheduler, &config())).expect("small")),
        (
            "hello with a proof",
            codec::hello(&Hello {
                nonce: Some("01".into()),
                proof: Some("02".into()),
                ..Hello::new("n", node, &config())
            })
            .expect("small"),
        ),
        ("ping", codec::ping(258, Micros(3)).expect("small")),
        ("pong", codec::pong(258).expect("small")),
        (
            "hello with a number",
            codec::hello(&Hello { nonce: Some("01".into()), ..Hello::new("g", Role::Gateway, &config()) })
                .expect("small"),
        ),
        (
            "hello with a store",
            codec::hello(&Hello { store: Some("ab".into()), ..Hello::new("g", Role::Gateway, &config()) })
                .expect("small"),
        ),
        (
            "hello of numbers",
            codec::hello(&Hello {
                numbers_from: Some(u64::MAX),
                ..Hello::new("g", Role::Gateway, &config())
            })
            .expect("small"),
        ),
        ("proof", codec::proof("02".into()).expect("small")),
        ("beat", codec::beat().expect("small")),
        ("goodbye", codec::goodbye("bye").expect("small")),
        ("query raw", ask(Input::Raw(Buffer::from_static(b"\xff\xd8")))),
        ("query json", ask(json(None))),
        ("query json with parameters", ask(json(Some(b"{}")))),
        (
            "demand",
            tell(&ToNode::Demand(Demand { class: super::class(3), waiting: 2, first: None, among: 1 })),
        ),
        ("announce", tell(&ToNode::Announce(Box::new(announcement())))),
        ("cancel", tell(&ToNode::Cancel { key })),
        ("pin", tell(&ToNode::Pin { plan: PlanId(9), pins: vec![(DeviceIx(1), VariantId(2))] })),
        (
            "piece",
            codec::piece(9, Some(Piece { total: 3, bytes: Buffer::from_static(b"abc") })).expect("small"),
        ),
        ("no piece", codec::piece(9, None).expect("small")),
        ("want", codec::want(9, "ab", 2).expect("small")),
        ("may return", tell(&ToNode::MayReturn { key })),
        ("wake", tell(&ToNode::Wake { task: TaskId(3), ordinal: 4 })),
        ("unload", tell(&ToNode::Unload { variant: VariantId(7) })),
        ("answer", say(Body::Answer { key, answer: Box::new(answer(Buffer::from_static(b"[]"))) })),
        (
            "refused",
            say(Body::Refused { key, refusal: Refusal::FloorUnreachable { best: Accuracy::from_ppm(9) } }),
        ),
        ("bad input", say(Body::BadInput { key, fault: InputFault::TooLarge, why: "w".into() })),
        ("handed back", say(Body::HandedBack { key, why: Refusal::TooLate { waited: Micros(9) } })),
        ("declined", say(Body::Declined { key, why: Refusal::TooLate { waited: Micros(9) } })),
        ("claim", say(Body::Claim { queries: vec![key, QueryKey(5)], lanes: 2 })),
        ("report", say(Body::Report)),
    ]
}

fn hex(encoded: &Encoded) -> String {
    use std::fmt::Write as _;
    let parts = [&encoded.head[..], &encoded.payload[0], &encoded.payload[1]];
    let mut text = String::new();
    for byte in parts.concat() {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

/// Written once, by the version that they belong to.
const GOLDEN: &str = include_str!("golden.txt");

#[test]
fn every_frame_has_the_bytes_that_it_always_had() {
    let lines: Vec<String> =
        samples().iter().map(|(name, frame)| format!("{name}: {}", hex(frame))).collect();
    let told = lines.join("\n") + "\n";
    assert!(told == GOLDEN, "the bytes on the wire changed; they are now:\n{told}");
}

#[test]
fn every_kind_is_among_the_samples_and_is_read_back() {
    let mut left = Kind::ALL.to_vec();
    for (name, frame) in samples() {
        let header = Header::parse(frame.head.first_chunk::<HEADER>().expect("a header")).expect(name);
        left.retain(|kind| *kind != header.kind);
        let payload = Buffer::from([&frame.payload[0][..], &frame.payload[1]].concat());
        let read = codec::decode(&header, &frame.head[HEADER..], payload).expect(name);
        let again = match read {
            Frame::Hello(hello) => codec::hello(&hello),
            Frame::Status(head) => codec::status(&head.at(Time(9), Micros::ZERO), Time(9)),
            Frame::Ping { sent, rtt } => codec::ping(sent, rtt),
            Frame::Pong { sent } => codec::pong(sent),
            Frame::Goodbye(why) => codec::goodbye(&why),
            Frame::Beat => codec::beat(),
            Frame::Proof(proof) => codec::proof(proof),
            Frame::Want(want) => codec::want(want.id, &want.sha256, want.offset),
            Frame::Piece(id, piece) => codec::piece(id, piece),
            Frame::ToNode(frame) => codec::to_node(&frame),
            Frame::FromNode(frame) => codec::from_node(&frame),
        };
        assert_eq!(hex(&again.expect(name)), hex(&frame), "{name}");
    }
    assert_eq!(left, [Kind::Part], "no sample of these");
}

/// Else a form that is added has no bytes here. Its number stands behind the header and the key.
#[test]
fn every_refusal_that_can_be_said_is_among_the_samples() {
    let said: Vec<Vec<u8>> = refusals()
        .into_iter()
        .map(|(_, refusal)| say(Body::Refused { key: QueryKey(1), refusal }).head)
        .collect();
    let numbers: Vec<u32> = said
        .iter()
        .map(|head| u32::from_le_bytes(*head[HEADER + 8..].first_chunk().expect("a number")))
        .collect();
    let all: Vec<u32> = (0..).take(numbers.len()).collect();
    assert_eq!(numbers, all);
    // There is none behind the last one, which has no fields.
    let mut next = said.last().expect("some").clone();
    let header = Header::parse(next.first_chunk::<HEADER>().expect("a header")).expect("it is whole");
    codec::decode(&header, &next[HEADER..], Buffer::new()).expect("the last one is known");
    next[HEADER + 8..HEADER + 12].copy_from_slice(&u32::try_from(all.len()).expect("few").to_le_bytes());
    let error =
        codec::decode(&header, &next[HEADER..], Buffer::new()).expect_err("no such refusal").to_string();
    assert!(error.contains("tag"), "{error}");
}

/// The layout by hand, so that the golden bytes are not only what the program once wrote.
#[test]
fn a_cancel_is_a_header_and_a_key() {
    let frame = tell(&ToNode::Cancel { key: QueryKey(0x0102_0304) });
    let by_hand = [
        [10, 18, 0, 0], // version, kind, stream
        [8, 0, 0, 0],   // head
        [0, 0, 0, 0],   // payload
        [0, 0, 0, 0],   // waited
        [4, 3, 2, 1],   // the key,
        [0, 0, 0, 0],   // little-endian
    ];
    assert_eq!(frame.head, by_hand.concat());
}

/// What is large goes in parts: the frame's header with its stream and its head, then parts of 64 KiB with a header each.
#[test]
fn a_large_query_is_a_head_with_a_stream_and_parts_of_its_payload() {
    let input = Buffer::from(vec![7; (64 << 10) + 2]);
    let frame = tell(&ToNode::Query(Box::new(query(1, Input::Raw(input)))));
    let head = frame.head[HEADER..].to_vec();
    let (mut out, now) = (Out::default(), Instant::now());
    out.push(frame, now).expect("room");
    let mut bytes = Vec::new();
    while let Some(unit) = out.next(now) {
        unit.parts().iter().for_each(|part| bytes.extend_from_slice(part));
    }
    let length = u32::try_from(head.len()).expect("small").to_le_bytes();
    let by_hand: [&[u8]; 9] = [
        &[10, 16, 1, 0], // version, kind, the first stream
        &length,
        &[2, 0, 1, 0], // payload: 65,538
        &[0, 0, 0, 0], // waited
        &head,
        &[10, 8, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], // a part of 65,536
        &vec![7; 64 << 10],
        &[10, 8, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], // a part of 2
        &[7, 7],
    ];
    assert!(bytes == by_hand.concat());
}

/// Else a node with somebody who has more than an hour would lose its gateways.
#[test]
fn what_is_due_in_more_than_an_hour_is_told_as_due_after_all_others() {
    let step = |due: u64, takes| Step { due: Micros(due), takes: Micros(takes) };
    let far = u64::from(u32::MAX);
    let heard = |steps: &[Step]| {
        let report = NodeReport { later: Later::new(steps.iter().copied()), ..report(8) };
        let frame = codec::from_node(&FromNode { body: Body::Report, report }).expect("small");
        let header =
            Header::parse(frame.head.first_chunk::<HEADER>().expect("a header")).expect("it is whole");
        let read = codec::decode(&header, &frame.head[HEADER..], Buffer::new()).expect("it is read");
        let Frame::FromNode(frame) = read else { panic!("another frame: {read:?}") };
        frame.report.later.steps().collect::<Vec<_>>()
    };
    let near = [step(0, far + 9), step(5, 900)];
    assert_eq!(heard(&[near[0], near[1], step(far + 1, 800), step(far + 2, 0)]), [step(0, far), near[1]]);
    assert_eq!(heard(&[]), []);
}

#[test]
fn what_is_due_later_and_told_out_of_order_is_nonsense() {
    let told = report(8);
    let frame = codec::from_node(&FromNode { body: Body::Report, report: told }).expect("small");
    let header = Header::parse(frame.head.first_chunk::<HEADER>().expect("a header")).expect("it is whole");
    let mut head = frame.head[HEADER..].to_vec();
    // The second step's moment, 2,000 us, before the first's.
    let at = head.windows(4).rposition(|four| four == 2_000_u32.to_le_bytes()).expect("told");
    head[at..at + 4].copy_from_slice(&0_u32.to_le_bytes());
    let error = codec::decode(&header, &head, Buffer::new()).expect_err("refused").to_string();
    assert!(error.contains("in order"), "{error}");
}
