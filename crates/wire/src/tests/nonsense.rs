//! What no peer sends: each kind of it has a name, closes its own connection, and no other.

use super::{Kept, PATIENCE, Served, class, config, dial, query, raw};
use crate::codec::{self, Frame, Hello, Role};
use crate::config::limits;
use crate::frame::{HEADER, Header, Kind, VERSION};
use crate::sim::Rng;
use crate::{Address, Demand, Input, Nonsense, ToNode};
use bytes::Bytes as Buffer;
use modelless_decision::route::{Offer, Ready};
use modelless_decision::{Moments, RunModel};
use modelless_types::{BatchPoint, DeviceIx, PlanId, QueryKey, Time, VariantId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn header(kind: u8, stream: u16, head: u32, payload: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = VERSION;
    bytes[1] = kind;
    bytes[2..4].copy_from_slice(&stream.to_le_bytes());
    bytes[4..8].copy_from_slice(&head.to_le_bytes());
    bytes[8..12].copy_from_slice(&payload.to_le_bytes());
    bytes
}

fn bytes(encoded: Result<crate::frame::Encoded, crate::frame::TooLarge>) -> Vec<u8> {
    let encoded = encoded.expect("small enough");
    [encoded.head.as_slice(), &encoded.payload[0], &encoded.payload[1]].concat()
}

fn hello() -> Vec<u8> {
    bytes(codec::hello(&Hello::new("raw", Role::Gateway, &config())))
}

/// Reads frames until the goodbye, and gives its words.
async fn goodbye(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    // A reset after the last words is as good an end as any.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the connection ends");
    let mut rest = all.as_slice();
    while let Some(first) = rest.first_chunk::<HEADER>() {
        let header = Header::parse(first).expect("our own header");
        let (head, after) = rest[HEADER..].split_at(header.head);
        let frame = codec::decode(&header, head, Buffer::copy_from_slice(&after[..header.payload]));
        if let Frame::Goodbye(why) = frame.expect("our own frame") {
            return why;
        }
        rest = &after[header.payload..];
    }
    panic!("the connection ended without a word");
}

#[test]
fn every_bound_of_a_header_has_a_name() {
    let parse = |kind, stream, head, payload| Header::parse(&header(kind, stream, head, payload));
    let query = Kind::Query as u8;
    assert!(parse(query, 0, limits::HEAD, limits::PAYLOAD).is_ok());
    let mut other = header(query, 0, 0, 0);
    other[0] = b'G'; // an HTTP client
    assert_eq!(Header::parse(&other), Err(Nonsense::Version { found: b'G', ours: VERSION }));
    assert_eq!(parse(99, 0, 0, 0), Err(Nonsense::Kind(99)));
    assert!(parse(query, limits::STREAMS, 0, limits::PAYLOAD).is_ok());
    assert!(matches!(parse(query, 9, 0, 0), Err(Nonsense::Stream { stream: 9, .. })));
    assert!(matches!(parse(Kind::Cancel as u8, 1, 8, 0), Err(Nonsense::Stream { stream: 1, .. })));
    assert!(matches!(parse(Kind::Part as u8, 0, 0, 9), Err(Nonsense::Stream { stream: 0, .. })));
    assert!(matches!(parse(Kind::Part as u8, 1, 0, (64 << 10) + 1), Err(Nonsense::Payload { .. })));
    assert!(matches!(parse(query, 0, limits::HEAD + 1, 0), Err(Nonsense::Head { .. })));
    assert!(matches!(parse(query, 0, 0, limits::PAYLOAD + 1), Err(Nonsense::Payload { .. })));
    assert!(matches!(parse(Kind::Cancel as u8, 0, 8, 1), Err(Nonsense::Payload { limit: 0, .. })));
}

#[tokio::test]
async fn nonsense_is_answered_by_name_and_others_are_served_on() {
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), config()).await;
    let Address::Tcp(address) = served.address.clone() else { panic!("TCP was asked for") };
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;

    let ask = |key| bytes(codec::to_node(&ToNode::Query(Box::new(query(key, raw("x"))))));
    let waits = |task| {
        let demand = Demand { class: class(task), waiting: 1, first: None, among: 1 };
        bytes(codec::to_node(&ToNode::Demand(demand)))
    };
    let too_many: Vec<u8> =
        (0..=u32::try_from(limits::DEMAND_CLASSES).expect("a small number")).flat_map(waits).collect();
    let mut priority = ask(1);
    let level = HEADER + 8 + 4 + 4 + 3 * 8 + 9 + 1; // behind key, tenant, app, times, price ceiling and preference
    assert_eq!(priority[level], 2, "the priority's place in a query's head");
    priority[level] = 77;
    let trailing = {
        let mut frame = bytes(codec::to_node(&ToNode::Cancel { key: QueryKey(1) }));
        frame[4] += 1;
        frame.push(0);
        frame
    };
    let begun = header(16, 2, 3, 100);
    let part = |stream, bytes: u32| [header(8, stream, 0, bytes).to_vec(), vec![0; bytes as usize]].concat();
    let cases: [(&str, Vec<u8>); 13] = [
        ("starts with version 71", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        (
            "a Cancel frame came where a gateway's greeting",
            bytes(codec::to_node(&ToNode::Cancel { key: QueryKey(1) })),
        ),
        ("no frame of kind 200", [hello(), header(200, 0, 0, 0).to_vec()].concat()),
        ("stream 77, which it cannot", [hello(), header(16, 77, 0, 0).to_vec()].concat()),
        ("it was not begun", [hello(), part(2, 1)].concat()),
        ("it was begun twice", [hello(), begun.to_vec(), vec![0; 3], begun.to_vec(), vec![0; 3]].concat()),
        ("longer than it was said", [hello(), begun.to_vec(), vec![0; 3], part(2, 101)].concat()),
        ("a Query frame came where a greeting", begun.to_vec()),
        ("at most 65536 are accepted", [hello(), header(16, 0, 1 << 30, 0).to_vec()].concat()),
        ("cannot be read", [hello(), header(18, 0, 3, 0).to_vec(), vec![1, 2, 3]].concat()),
        ("cannot be read", [hello(), trailing].concat()),
        ("an unknown priority", [hello(), priority].concat()),
        ("more than 4096 classes that wait", [hello(), too_many].concat()),
    ];
    for (expected, sent) in cases {
        let mut stream = TcpStream::connect(&address).await.expect("a node");
        let _ = stream.write_all(&sent).await; // the node may have closed before all was written
        let why = goodbye(&mut stream).await;
        assert!(why.contains(expected), "{why:?} does not say {expected:?}");
    }
    // A key that would reach into the connection's part of the name.
    let mut stream = TcpStream::connect(&address).await.expect("a node");
    stream.write_all(&[hello(), ask(1 << 40)].concat()).await.expect("written");
    assert!(goodbye(&mut stream).await.contains("queries"));

    link.send(ToNode::Query(Box::new(query(1, raw("still here")))));
    let is = |frame: &ToNode| matches!(frame, ToNode::Query(query) if query.input == raw("still here"));
    served.node.told.wait_for_one("the other gateway's query", is).await;
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_peer_that_says_what_its_role_does_not_is_turned_away() {
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), config()).await;
    let Address::Tcp(address) = served.address.clone() else { panic!("TCP was asked for") };
    let frame = |frame: ToNode| bytes(codec::to_node(&frame));
    let demand = Demand { class: class(3), waiting: 1, first: None, among: 1 };
    let wake = ToNode::Wake { task: class(3).task, ordinal: 1 };
    let (gateway, scheduler) = ("where something that gateways say", "where something that schedulers say");
    for (role, sent, kind, expected) in [
        (Role::Gateway, ToNode::Pin { plan: PlanId(1), pins: Vec::new() }, "Pin", gateway),
        (Role::Scheduler, ToNode::Query(Box::new(query(1, raw("x")))), "Query", scheduler),
        (Role::Scheduler, ToNode::Demand(demand), "Demand", scheduler),
        (Role::Scheduler, ToNode::Cancel { key: QueryKey(1) }, "Cancel", scheduler),
        (Role::Scheduler, wake, "Wake", scheduler),
        (Role::Scheduler, ToNode::Unload { variant: VariantId(1) }, "Unload", scheduler),
    ] {
        let mut stream = TcpStream::connect(&address).await.expect("a node");
        let hello = bytes(codec::hello(&Hello::new("raw", role, &config())));
        stream.write_all(&[hello, frame(sent)].concat()).await.expect("written");
        let why = goodbye(&mut stream).await;
        assert!(why.contains(kind) && why.contains(expected), "{why:?} does not say {kind} {expected:?}");
    }
    assert!(served.node.told.all().is_empty(), "nothing of it was passed on");
    let kept = Kept::start(crate::Dial { queries: false, ..dial(&served.address) });
    let (_, link) = kept.connection(0).await;
    let pins = vec![(DeviceIx(1), VariantId(70_000))];
    link.send(ToNode::Pin { plan: PlanId(3), pins: pins.clone() });
    let is = |frame: &ToNode| matches!(frame, ToNode::Pin { plan: PlanId(3), pins: told } if *told == pins);
    served.node.told.wait_for_one("a scheduler's pins", is).await;
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn an_input_that_no_node_would_accept_is_refused_where_it_is_sent() {
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;
    kept.gateway.report_with(8).await;
    let huge = Buffer::from(vec![0; limits::PAYLOAD as usize + 1]);
    link.send(ToNode::Query(Box::new(query(9, Input::Raw(huge)))));
    let is = |(_, frame): &(_, crate::FromNode)| {
        let crate::Body::BadInput { key, fault, why } = &frame.body else { return false };
        key.0 == 9 && *fault == crate::InputFault::TooLarge && why.contains("268435")
    };
    kept.gateway.heard.wait_for_one("a refusal", is).await;
    link.send(ToNode::Query(Box::new(query(10, raw("small")))));
    assert_eq!(served.node.query(0).await.input, raw("small"));
    kept.stop().await;
    served.stop().await;
}

#[test]
fn a_status_whose_times_are_no_times_is_not_believed() {
    let point = BatchPoint { batch: 1, mean_us: 1e3, var_us2: 0.0, p99_us: 1e3, samples: 9 };
    let mut status = super::status();
    status.info.offers.push(Offer {
        task: class(3).task,
        ordinal: 1,
        ready: Ready::Resident,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a usable point"),
        width: 1,
    });
    let read = |text: &str| {
        let length = u32::try_from(text.len()).expect("small");
        let header = Header::parse(&header(Kind::Status as u8, 0, length, 0)).expect("a header");
        codec::decode(&header, text.as_bytes(), Buffer::new())
    };
    let encoded = codec::status(&status, Time(1)).expect("small");
    let text = String::from_utf8(encoded.head[HEADER..].to_vec()).expect("JSON");
    assert!(read(&text).is_ok());
    for (was, is) in
        [("[[1,{", "[[0,{"), ("\"mean\":1000.0", "\"mean\":-1.0"), ("\"ratio\":1.0", "\"ratio\":0.0")]
    {
        assert!(text.contains(was), "{text}");
        let refused = read(&text.replace(was, is));
        assert!(matches!(refused, Err(Nonsense::Unreadable { .. })), "{is}: {refused:?}");
    }
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let mut rng = Rng(7);
    let frames: Vec<Vec<u8>> = super::golden::samples()
        .into_iter()
        .map(|(_, frame)| bytes(Ok(frame)))
        .filter(|frame| frame.len() > HEADER)
        .collect();
    let mut read = 0;
    for _ in 0..20_000 {
        let mut frame = frames[usize::try_from(rng.below(frames.len() as u64)).expect("small")].clone();
        for _ in 0..=rng.below(3) {
            let at = usize::try_from(rng.below((frame.len() - HEADER) as u64)).expect("small") + HEADER;
            frame[at] = rng.below(256).to_le_bytes()[0];
        }
        let header = Header::parse(frame.first_chunk().expect("a header")).expect("an intact header");
        let (head, payload) = frame[HEADER..].split_at(header.head);
        read += u32::from(codec::decode(&header, head, Buffer::copy_from_slice(payload)).is_ok());
    }
    assert!(read > 0 && read < 20_000, "{read} of 20,000 damaged frames could be read");
}
