//! The bytes of every kind of frame. If one of these tests fails, other versions no longer understand this one:
//! raise the version instead of changing the bytes.

use super::{answer, config, query, report, status};
use crate::codec::{self, Frame, Hello, Role};
use crate::frame::{Encoded, HEADER, Header, Kind};
use crate::out::Out;
use crate::{Body, Demand, FromNode, Input, InputFault, LoadTimes, NodeStatus, Piece, ReplicaStatus, ToNode};
use bytes::Bytes as Buffer;
use modelless_types::{
    Accuracy, Bytes, DeviceIx, Micros, NodeId, PlanId, QueryKey, Refusal, ReplicaState, TaskId, Time,
    VariantId,
};
use tokio::time::Instant;

fn say(body: Body) -> Encoded {
    codec::from_node(&FromNode { body, report: report(8) }).expect("small")
}

fn tell(frame: &ToNode) -> Encoded {
    codec::to_node(frame).expect("small")
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
    };
    NodeStatus { replicas: vec![replica], ..status() }
}

/// One of each kind, and of each form that a kind has.
pub(super) fn samples() -> Vec<(&'static str, Encoded)> {
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
        ("proof", codec::proof("02".into()).expect("small")),
        ("beat", codec::beat().expect("small")),
        ("goodbye", codec::goodbye("bye").expect("small")),
        ("query raw", ask(Input::Raw(Buffer::from_static(b"\xff\xd8")))),
        ("query json", ask(json(None))),
        ("query json with parameters", ask(json(Some(b"{}")))),
        ("demand", tell(&ToNode::Demand(Demand { class: super::class(3), waiting: 2, first: None }))),
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
        ("answer", say(Body::Answer { key, answer: Box::new(answer(Buffer::from_static(b"[]"))) })),
        (
            "refused",
            say(Body::Refused { key, refusal: Refusal::FloorUnreachable { best: Accuracy::from_ppm(9) } }),
        ),
        ("refused last", say(Body::Refused { key, refusal: Refusal::Cancelled })),
        ("bad input", say(Body::BadInput { key, fault: InputFault::TooLarge, why: "w".into() })),
        ("handed back", say(Body::HandedBack { key, why: Refusal::TooLate { waited: Micros(9) } })),
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

/// The layout by hand, so that the golden bytes are not only what the program once wrote.
#[test]
fn a_cancel_is_a_header_and_a_key() {
    let frame = tell(&ToNode::Cancel { key: QueryKey(0x0102_0304) });
    let by_hand = [
        [5, 18, 0, 0], // version, kind, stream
        [8, 0, 0, 0],  // head
        [0, 0, 0, 0],  // payload
        [0, 0, 0, 0],  // waited
        [4, 3, 2, 1],  // the key,
        [0, 0, 0, 0],  // little-endian
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
        &[5, 16, 1, 0], // version, kind, the first stream
        &length,
        &[2, 0, 1, 0], // payload: 65,538
        &[0, 0, 0, 0], // waited
        &head,
        &[5, 8, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], // a part of 65,536
        &vec![7; 64 << 10],
        &[5, 8, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], // a part of 2
        &[7, 7],
    ];
    assert!(bytes == by_hand.concat());
}
