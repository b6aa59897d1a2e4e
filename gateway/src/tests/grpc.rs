//! gRPC's messages and connections are bounded as HTTP's bodies and heads are.

use super::world::{Running, Setup, World};
use crate::Config;
use crate::core::Core;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::Request;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use modelless_oip::messages::{LogSettings, LogValue, SettingValue, Settings};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::ServiceExt as _;

pub(super) const LONG: Duration = Duration::from_secs(20);

async fn run(config: Config) -> (Running, Arc<Core>, Channel) {
    run_world(World::with(Setup { config: with_grpc(config), ..Setup::default() }).await).await
}

pub(super) fn with_grpc(config: Config) -> Config {
    Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..config }
}

pub(super) async fn run_world(world: World) -> (Running, Arc<Core>, Channel) {
    let core = world.service.core();
    let run = world.run().await;
    let address = format!("http://{}", run.addresses.grpc.unwrap());
    let channel = tonic::transport::Endpoint::try_from(address).unwrap().connect().await.unwrap();
    (run, core, channel)
}

/// A call whose message is what is sent; it ends when the sender does.
async fn call(channel: &Channel, name: &str, pieces: mpsc::Receiver<Bytes>) -> http::Response<Body> {
    call_with(channel, name, &[], pieces).await
}

pub(super) async fn call_with(
    channel: &Channel,
    name: &str,
    headers: &[(&str, &str)],
    pieces: mpsc::Receiver<Bytes>,
) -> http::Response<Body> {
    let body = unfold(pieces, async |mut pieces| {
        let piece = pieces.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(piece)), pieces))
    });
    let path = format!("/inference.GRPCInferenceService/{name}");
    let mut request = Request::post(format!("http://gateway{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::new(StreamBody::new(body))).unwrap();
    timeout(LONG, channel.clone().oneshot(request)).await.expect("in time").unwrap()
}

/// A message's head and so many bytes of it.
fn piece(says: u32, has: usize) -> Bytes {
    let mut piece = vec![0];
    piece.extend_from_slice(&says.to_be_bytes());
    piece.resize(5 + has, 0);
    piece.into()
}

/// A message with its head.
fn whole(message: &impl prost::Message) -> Bytes {
    framed(0, &message.encode_to_vec())
}

/// The bytes of a message, packed or not, with their head.
pub(super) fn framed(packed: u8, message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[packed], &length[..], message].concat().into()
}

fn told(answer: &http::Response<Body>) -> (i32, String) {
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    (header("grpc-status").parse().unwrap(), header("modelless-refusal"))
}

const TOO_LARGE: i32 = tonic::Code::ResourceExhausted as i32;

#[tokio::test]
async fn what_asks_for_no_inference_may_only_be_small_and_what_does_as_large_as_a_body() {
    let (run, _, channel) = run(Config { max_body_bytes: 1 << 20, ..Config::default() }).await;
    for (name, says) in [("ServerLive", 100 << 10), ("ModelMetadata", 100 << 10), ("ModelInfer", 3 << 20)] {
        // By its head, before any of it has come.
        let (sender, pieces) = mpsc::channel(1);
        sender.send(piece(says, 0)).await.unwrap();
        assert_eq!(told(&call(&channel, name, pieces).await), (TOO_LARGE, "too_large".to_owned()), "{name}");
    }
    let (sender, pieces) = mpsc::channel(1);
    sender.send(piece(0, 0)).await.unwrap();
    drop(sender);
    let live = call(&channel, "ServerLive", pieces).await;
    assert!(!live.headers().contains_key("grpc-status"), "{live:?}");
    drop(channel);
    run.stop().await;
}

#[tokio::test]
async fn settings_of_tracing_and_of_the_log_are_read_as_none_and_set_by_nobody() {
    let (run, _, channel) = run(Config::default()).await;
    let ask = async |name: &str, message: Bytes| {
        let (sender, pieces) = mpsc::channel(1);
        sender.send(message).await.unwrap();
        drop(sender);
        call(&channel, name, pieces).await
    };
    let of = |model: &str| Settings { model_name: model.to_owned(), ..Settings::default() };
    for model in ["", "fashion"] {
        let answer = ask("TraceSetting", whole(&of(model))).await;
        assert!(!answer.headers().contains_key("grpc-status"), "{model:?}: {answer:?}");
    }
    let refused = told(&ask("TraceSetting", whole(&of("none"))).await);
    assert_eq!(refused, (tonic::Code::NotFound as i32, "unknown_task".to_owned()));
    let set = |mut settings: Settings| {
        settings.settings.insert("trace_level".to_owned(), SettingValue { value: vec!["OFF".to_owned()] });
        settings
    };
    let not_here = (tonic::Code::Unimplemented as i32, "not_served_here".to_owned());
    assert_eq!(told(&ask("TraceSetting", whole(&set(of("fashion")))).await), not_here);
    let mut log = LogSettings::default();
    assert!(!ask("LogSettings", whole(&log)).await.headers().contains_key("grpc-status"));
    log.settings.insert("log_info".to_owned(), LogValue::default());
    assert_eq!(told(&ask("LogSettings", whole(&log)).await), not_here);
    drop(channel);
    run.stop().await;
}

#[tokio::test]
async fn a_message_counts_as_held_while_it_comes_and_does_not_come_for_ever() {
    let (run, core, channel) = run(Config { body_timeout_ms: 300, ..Config::default() }).await;
    let held = || core.held.load(Ordering::Relaxed);
    let (sender, pieces) = mpsc::channel(1);
    sender.send(piece(1 << 20, 200_000)).await.unwrap();
    let counted = async {
        while held() < 200_000 {
            tokio::task::yield_now().await;
        }
    };
    let counted = timeout(LONG, counted);
    let (answer, counted) = tokio::join!(call(&channel, "ModelInfer", pieces), counted);
    counted.expect("what has come counts");
    assert_eq!(told(&answer), (tonic::Code::DeadlineExceeded as i32, "too_slow".to_owned()));
    timeout(LONG, async {
        while held() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it is given back");
    drop((sender, channel));
    run.stop().await;
}

#[tokio::test]
async fn what_others_hold_leaves_no_room_for_a_message() {
    let (run, _, channel) = run(Config { max_held_bytes: 100_000, ..Config::default() }).await;
    let (sender, pieces) = mpsc::channel(1);
    sender.send(piece(1 << 20, 200_000)).await.unwrap();
    let answer = call(&channel, "ModelInfer", pieces).await;
    assert_eq!(told(&answer), (tonic::Code::Unavailable as i32, "bytes_full".to_owned()));
    drop((sender, channel));
    run.stop().await;
}

#[tokio::test]
async fn who_connects_and_says_nothing_does_not_keep_the_place() {
    let (run, _, channel) = run(Config { header_timeout_ms: 200, ..Config::default() }).await;
    let mut silent = TcpStream::connect(run.addresses.grpc.unwrap()).await.unwrap();
    let mut heard = Vec::new();
    // What it is told by then is of no interest, only that it ends.
    let _ = timeout(LONG, silent.read_to_end(&mut heard)).await.expect("it is closed");
    let (sender, pieces) = mpsc::channel(1);
    sender.send(piece(0, 0)).await.unwrap();
    drop(sender);
    let live = call(&channel, "ServerLive", pieces).await;
    assert!(!live.headers().contains_key("grpc-status"), "who has greeted stays: {live:?}");
    drop(channel);
    run.stop().await;
}

#[tokio::test]
async fn a_stream_may_go_on_for_longer_than_a_message_may_take() {
    let (run, core, channel) =
        run(Config { body_timeout_ms: 200, max_body_bytes: 60_000, ..Config::default() }).await;
    let (sender, pieces) = mpsc::channel(1);
    let ask = modelless_oip::messages::InferRequest { model_name: "fashion".into(), ..Default::default() };
    let message = whole(&ask);
    sender.send(message.clone()).await.unwrap();
    let answer = call(&channel, "ModelStreamInfer", pieces).await;
    let mut body = answer.into_body();
    let first = timeout(LONG, body.frame()).await.expect("in time").unwrap().unwrap();
    assert!(first.is_data(), "{first:?}");
    tokio::time::sleep(Duration::from_millis(400)).await; // twice what one message may take
    assert_eq!(core.held.load(Ordering::Relaxed), 0, "a message that is answered is held no more");
    sender.send(message).await.unwrap();
    let second = timeout(LONG, body.frame()).await.expect("in time").unwrap().unwrap();
    assert!(second.is_data(), "{second:?}");
    // Within a stream, too, what is too large is so by name.
    sender.send(piece(3 << 20, 0)).await.unwrap();
    let end = timeout(LONG, body.frame()).await.expect("in time").unwrap().unwrap();
    let end = end.trailers_ref().expect("its end");
    assert_eq!(end["modelless-refusal"], "too_large", "{end:?}");
    drop((sender, channel));
    run.stop().await;
}
