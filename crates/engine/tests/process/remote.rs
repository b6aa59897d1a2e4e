//! What can happen between here and another server.

use super::conformance::{Bench, at_peer, grpc_peer, peer};
use super::*;
use modelless_engine::BatchError;
use modelless_testkit::certificates::Authority;
use modelless_testkit::front;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Something between a test and the server that can be cut.
struct Line {
    address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
    up: Arc<Mutex<bool>>,
}

impl Line {
    fn to(peer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (scheme, server) = peer.split_once("://").unwrap();
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let server = server.to_owned();
        let line = Self { address, open: Arc::default(), up: Arc::new(Mutex::new(true)) };
        let (open, up) = (Arc::clone(&line.open), Arc::clone(&line.up));
        std::thread::spawn(move || {
            for near in listener.incoming().map(Result::unwrap) {
                if *up.lock().unwrap() {
                    let far = TcpStream::connect(&server).unwrap();
                    open.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                    pass(near.try_clone().unwrap(), far.try_clone().unwrap());
                    pass(far, near);
                }
            }
        });
        line
    }

    fn set(&self, up: bool) {
        *self.up.lock().unwrap() = up;
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

async fn echo(bench: &Bench) -> Result<(), BatchError> {
    let rows = bytes_f32([1.0, 2.5, -3.0, 4.0]);
    let outputs = bench.run(1, 1, &[&rows]).await?;
    assert_eq!(outputs.output(0), rows);
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_gone_is_named_and_used_again_when_it_is_back() {
    for peer in [peer(), grpc_peer()] {
        let bench = Bench::new(Kind::Remote);
        let line = Line::to(&peer);
        let spec = LoadSpec { artefact: at_peer(&line.address, "echo", ""), ..bench.spec(1, "echo") };
        bench.engine.load(spec).await.unwrap();
        let runner = bench.engine.runners()[0].pid;
        echo(&bench).await.unwrap();
        line.set(false);
        let gone = echo(&bench).await.unwrap_err();
        assert!(
            matches!(&gone, BatchError::Unreachable(why) if why.contains("cannot be reached") && why.contains(&line.address)),
            "{gone}"
        );
        let spec = LoadSpec { artefact: at_peer(&line.address, "echo", ""), ..bench.spec(2, "echo") };
        let why = bench.refused(spec).await;
        assert!(why.contains("cannot be reached"), "{why}");
        line.set(true);
        echo(&bench).await.unwrap();
        // Its connection was closed meanwhile, as servers do with idle ones: nobody notices.
        line.set(true);
        echo(&bench).await.unwrap();
        assert_eq!(bench.engine.runners()[0].pid, runner);
    }
}

#[tokio::test]
async fn a_server_that_takes_too_long_fails_the_batch_and_is_asked_again() {
    for peer in [peer(), grpc_peer()] {
        let bench = Bench::new(Kind::Remote);
        let artefact = at_peer(&peer, "slow", ", \"timeout_ms\": 500");
        bench.engine.load(LoadSpec { artefact, ..bench.spec(1, "slow") }).await.unwrap();
        let late = bench.run(1, 1, &[&bytes_i64([30_000_000])]).await.unwrap_err();
        assert!(
            matches!(&late, BatchError::Unreachable(why) if why.contains("did not answer within 500 ms")
                || why.contains("gRPC status 4")),
            "{late}"
        );
        let outputs = bench.run(1, 1, &[&bytes_i64([7])]).await.unwrap();
        assert_eq!(i64s(outputs.output(0)), [7]);
    }
}

#[tokio::test]
async fn a_server_behind_tls_answers_as_it_does_without() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path()).unwrap();
    authority.sign("127.0.0.1").unwrap();
    let ca = Some(folder.path().join("ca.pem"));
    for (peer, scheme, protocol) in [(peer(), "https", "http/1.1"), (grpc_peer(), "grpcs", "h2")] {
        let server = peer.split_once("://").unwrap().1.parse().unwrap();
        let front = front::before(server, &authority, "127.0.0.1", &[protocol]).unwrap().to_string();
        let files = ServerFiles { token: None, ca: ca.clone() };
        let bench = Bench::with(Kind::Remote, |config| config.servers = [(front.clone(), files)].into());
        let artefact = at_peer(&format!("{scheme}://{front}"), "echo", "");
        bench.engine.load(LoadSpec { artefact, ..bench.spec(1, "echo") }).await.unwrap();
        echo(&bench).await.unwrap();
        echo(&bench).await.unwrap();
    }
}

#[tokio::test]
async fn numbers_cross_as_json_where_there_is_no_binary_form() {
    let bench = Bench::new(Kind::Remote);
    let json = |n: u32, name: &str| LoadSpec {
        artefact: at_peer(&peer(), name, ", \"binary\": false"),
        ..bench.spec(n, name)
    };
    bench.engine.load(json(1, "echo")).await.unwrap();
    echo(&bench).await.unwrap();
    let not_finite = bench.run(1, 1, &[&bytes_f32([f32::NAN, 0.0, 0.0, 0.0])]).await.unwrap_err();
    assert!(matches!(&not_finite, BatchError::Model(why) if why.contains("not finite")), "{not_finite}");
    bench.engine.load(json(2, "slow")).await.unwrap();
    let outputs = bench.run(2, 2, &[&bytes_i64([3, -(1 << 60)])]).await.unwrap();
    assert_eq!(i64s(outputs.output(0)), [3, -(1 << 60)]);
    drop(outputs);
    let why = bench.refused(json(3, "types")).await;
    assert!(why.contains("FP16") && why.contains("binary"), "{why}");
    bench.engine.load(json(4, "strings")).await.unwrap();
    let mut slot = bench.engine.slot(VariantId(4), 0, 1).unwrap();
    slot.item_mut(0, 0)[..11].copy_from_slice(b"\x03\0\0\0\xc3\xbc!\0\0\0\0");
    let outputs = submit(&bench.engine, slot, LIMIT).await.unwrap().unwrap();
    assert_eq!(outputs.item(0, 0)[..11], b"\x03\0\0\0\xc3\xbc!\0\0\0\0"[..]);
    drop(outputs);
    let mut slot = bench.engine.slot(VariantId(4), 0, 1).unwrap();
    slot.item_mut(0, 0)[..9].copy_from_slice(b"\x01\0\0\0\xff\0\0\0\0");
    let no_text = submit(&bench.engine, slot, LIMIT).await.unwrap().unwrap_err();
    assert!(matches!(&no_text, BatchError::Model(why) if why.contains("UTF-8")), "{no_text}");
}

#[tokio::test]
async fn what_is_wrong_with_an_artefact_or_its_model_is_said() {
    let bench = Bench::new(Kind::Remote);
    // A model each: a runner that has not ended yet reaches the server that it was started for.
    let numbers = std::cell::Cell::new(0);
    let refuse = async |artefact| {
        numbers.set(numbers.get() + 1);
        bench.refused(LoadSpec { artefact, ..bench.spec(numbers.get(), "echo") }).await
    };
    let why = refuse(at_peer(&peer(), "nothing", "")).await;
    assert!(why.contains("`nothing` is not ready: status 404"), "{why}");
    let why = refuse(at_peer(&grpc_peer(), "nothing", "")).await;
    assert!(why.contains("`nothing` is not ready: gRPC status 5"), "{why}");
    let why = refuse(at_peer("ftp://h", "echo", "")).await;
    assert!(why.contains("it must begin with http://"), "{why}");
    // The one port for the other.
    let why = refuse(at_peer(&peer().replace("http:", "grpc:"), "echo", "")).await;
    assert!(why.contains("grpc://"), "{why}");
    let why = refuse(at_peer(&grpc_peer().replace("grpc:", "http:"), "echo", "")).await;
    assert!(why.contains("does not speak HTTP") || why.contains("cannot be reached"), "{why}");
    let why = refuse(at_peer(&peer(), "echo", ", \"colour\": 1")).await;
    assert!(why.contains("colour"), "{why}");
}
