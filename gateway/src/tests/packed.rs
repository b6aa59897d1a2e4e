//! gRPC's messages that are packed, or that nobody can read: they count as what HTTP brings does, and hold memory as it does.

use super::grpc::{LONG, call_with, framed, run_world, with_grpc};
use super::quotas::bounded;
use super::world::{Does, Setup, World, send};
use crate::Config;
use crate::access::Needs;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use modelless_live::{Member, Role};
use modelless_oip::messages::{InferRequest, StreamResponse, Tensor};
use modelless_store::Quota;
use prost::Message as _;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Code;
use tonic::body::Body;
use tonic::transport::Channel;

const MIB: usize = 1 << 20;
/// More than a message may have where a body may have one MiB.
const TOO_MUCH: usize = 2 * MIB + 1;

fn of_one_mebibyte() -> Config {
    with_grpc(Config { max_body_bytes: 1 << 20, ..Config::default() })
}

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(message).unwrap();
    packed.finish().unwrap()
}

fn deflate(message: &[u8]) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(message).unwrap();
    packed.finish().unwrap()
}

/// With all of these, and no more.
async fn ask(
    channel: &Channel,
    (name, headers): (&str, &[(&str, &str)]),
    messages: Bytes,
) -> http::Response<Body> {
    let (sender, pieces) = mpsc::channel(1);
    sender.send(messages).await.unwrap();
    drop(sender);
    call_with(channel, name, headers, pieces).await
}

/// What came before the end, and how it ended: in the head, where that is all.
async fn all(answer: http::Response<Body>) -> (Bytes, HeaderMap) {
    let (head, body) = answer.into_parts();
    let body = timeout(LONG, body.collect()).await.expect("in time").unwrap();
    let trailers = body.trailers().cloned();
    (body.to_bytes(), trailers.unwrap_or(head.headers))
}

/// The code of its end, and why it was refused.
fn refusal(end: &HeaderMap) -> (Code, &str) {
    let text = |name: &str| end.get(name).map_or("", |value| value.to_str().unwrap());
    (Code::from_bytes(text("grpc-status").as_bytes()), text("modelless-refusal"))
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_by_name_and_counts_as_a_query() {
    let zeros = vec![0; TOO_MUCH];
    let unreadable = framed(0, &[0xff; 9]);
    let (too_large, malformed) =
        ((Code::ResourceExhausted, "too_large"), (Code::InvalidArgument, "malformed"));
    for (name, encoding, messages, refused) in [
        ("ModelInfer", "gzip", framed(1, &gzip(&zeros)), too_large),
        ("ModelStreamInfer", "gzip", framed(1, &gzip(&zeros)), too_large),
        ("ModelMetadata", "deflate", framed(1, &deflate(&zeros)), too_large),
        ("ModelStreamInfer", "gzip", framed(0, &zeros), too_large),
        ("ModelInfer", "gzip", framed(1, b"no gzip at all"), malformed),
        ("ModelStreamInfer", "gzip", framed(1, &gzip(&[0xff; 9])), malformed),
        ("ModelInfer", "identity", framed(1, &gzip(b"")), malformed),
        ("ModelInfer", "identity", framed(2, b""), malformed),
        ("ModelInfer", "identity", unreadable.clone(), malformed),
        ("ModelStreamInfer", "identity", unreadable.clone(), malformed),
        ("ModelStreamInfer", "identity", framed(0, b"x").slice(..5), malformed),
        ("ModelInfer", "identity", framed(0, b"").slice(..3), malformed),
        ("ModelStreamInfer", "zstd", framed(1, b""), (Code::Unimplemented, "unsupported_media")),
    ] {
        let quota = Quota { requests_per_s: Some(1), burst: Some(120), ..Quota::default() };
        let setup = Setup { config: of_one_mebibyte(), ..Setup::default() };
        let (world, key) = bounded(quota, setup).await;
        // Two for each of them, and the next in a minute.
        let gateways = (0..60).map(|number| Member::new(Role::Gateway, &format!("g{number}"), 1));
        world.handle.set_members(gateways.collect());
        let (run, core, channel) = run_world(world).await;
        let headers = [("api-key", key.expose()), ("grpc-encoding", encoding)];
        let what = format!("{name}, {encoding}, {} bytes that begin with {}", messages.len(), messages[0]);
        for _ in 0..2 {
            let (_, end) = all(ask(&channel, (name, &headers), messages.clone()).await).await;
            assert_eq!(refusal(&end), refused, "{what}: {end:?}");
            let accepted = end.get("grpc-accept-encoding").map(HeaderValue::as_bytes);
            assert_eq!(accepted, (encoding == "zstd").then_some(&b"gzip,deflate,identity"[..]), "{what}");
        }
        let (_, end) = all(ask(&channel, (name, &headers[..1]), unreadable.clone()).await).await;
        assert_eq!(refusal(&end), (Code::ResourceExhausted, "over_quota"), "{what}: {end:?}");
        assert_eq!(core.held.load(Ordering::Relaxed), 0, "{what}");
        drop(channel);
        run.stop().await;
    }
}

#[tokio::test]
async fn a_call_of_one_message_takes_neither_none_nor_two() {
    let (run, _, channel) =
        run_world(World::with(Setup { config: of_one_mebibyte(), ..Setup::default() }).await).await;
    for messages in [Bytes::new(), [framed(0, b""), framed(0, b"")].concat().into()] {
        let (_, end) = all(ask(&channel, ("ServerLive", &[]), messages).await).await;
        assert_eq!(refusal(&end), (Code::InvalidArgument, "malformed"), "{end:?}");
    }
    drop(channel);
    run.stop().await;
}

/// One row for `arrays`, and as much as it takes that nobody knows: it is skipped, and came all the same.
fn row(beside: usize) -> Vec<u8> {
    let (name, datatype) = ("x".to_owned(), "FP32".to_owned());
    let input = Tensor { name, datatype, shape: vec![1, 4], ..Tensor::default() };
    let mut row = InferRequest {
        model_name: "arrays".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from_static(&[0; 16])],
        ..InferRequest::default()
    }
    .encode_to_vec();
    prost::encoding::bytes::encode(100, &vec![0; beside], &mut row);
    row
}

#[tokio::test]
async fn packed_messages_of_a_stream_count_unpacked_until_they_are_answered_and_never_take_more_than_there_is()
 {
    const LIMIT: u64 = 8 << 20;
    let config = Config { max_held_bytes: LIMIT, ..of_one_mebibyte() };
    let world = World::with(Setup { config, ..Setup::default() }).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    *world.node.credit.lock().unwrap() = 64;
    world.node.say(modelless_wire::Body::Report);
    let (mut run, core, channel) = run_world(world).await;
    let packed = framed(1, &gzip(&row(MIB)));
    let messages = vec![packed; 40].concat();
    assert!(messages.len() < MIB, "all of them fit into what may come at once");
    let headers = [("grpc-encoding", "gzip"), ("modelless-latency-ms", "60000")];
    let answer = ask(&channel, ("ModelStreamInfer", &headers), messages.into()).await;
    let held = || core.held.load(Ordering::Relaxed);
    // Seven are asked; the eighth grows until there is no room, and lets go of it.
    let (mut highest, mut open) = (0, Vec::new());
    timeout(LONG, async {
        while open.len() < 7 || held() >= highest {
            highest = highest.max(held());
            tokio::select! {
                frame = run.next_query() => open.push(frame),
                () = tokio::task::yield_now() => {}
            }
        }
    })
    .await
    .expect("what there is room for is asked, and no more");
    assert!((7 << 20..=LIMIT).contains(&highest), "{highest}");
    assert!(held() >= 7 << 20, "each counts until it is answered");
    for frame in &open {
        run.node.answer(frame);
    }
    let (mut answers, end) = all(answer).await;
    assert_eq!(refusal(&end), (Code::Unavailable, "bytes_full"), "{end:?}");
    let mut count = 0;
    while !answers.is_empty() {
        let length = usize::try_from(u32::from_be_bytes(answers[1..5].try_into().unwrap())).unwrap();
        let answer = StreamResponse::decode(answers.split_to(5 + length).slice(5..)).unwrap();
        assert_eq!(answer.error_message, "");
        count += 1;
    }
    assert_eq!(count, 7);
    assert_eq!(held(), 0, "all of it was given back");
    drop(channel);
    run.stop().await;
}

#[tokio::test]
async fn who_sent_what_was_too_large_has_what_is_large_unpacked_slowly() {
    let config = Config { body_timeout_ms: 1_000, ..of_one_mebibyte() };
    let config = Config { max_body_bytes: 3 << 20, ..config };
    let (world, key) = bounded(Quota::default(), Setup { config, ..Setup::default() }).await;
    let router = world.router();
    let (run, core, channel) = run_world(world).await;
    let spaces = Bytes::from(gzip(&vec![b' '; 3 * MIB]));
    let by_http = async || {
        let request = http::Request::post("/v2/models/arrays/infer").header("api-key", key.expose());
        let request = request.header("content-encoding", "gzip").body(spaces.clone().into()).unwrap();
        send(router.clone(), request).await.refusal()
    };
    assert_eq!(by_http().await, (400, "malformed".to_owned()));
    let headers = [("api-key", key.expose()), ("grpc-encoding", "gzip")];
    let packed = framed(1, &gzip(&row(3 * MIB)));
    let ask = async || all(ask(&channel, ("ModelInfer", &headers), packed.clone()).await).await;
    let (answer, end) = ask().await;
    assert_eq!(refusal(&end), (Code::Ok, ""), "{end:?}");
    assert!(!answer.is_empty());
    let known = HeaderMap::from_iter([(
        http::HeaderName::from_static("api-key"),
        HeaderValue::from_str(key.expose()).unwrap(),
    )]);
    let caller = core.gate.admit(&known, Needs::QUERY).unwrap();
    for _ in 0..5 {
        caller.oversized(core.driver.clock().now()); // down to one MiB a second
    }
    let (_, end) = ask().await;
    assert_eq!(refusal(&end), (Code::DeadlineExceeded, "too_slow"), "{end:?}");
    assert_eq!(by_http().await, (408, "too_slow".to_owned()));
    assert_eq!(core.held.load(Ordering::Relaxed), 0);
    drop(channel);
    run.stop().await;
}
