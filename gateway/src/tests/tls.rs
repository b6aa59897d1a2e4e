//! Clients that speak TLS: real greetings with certificates of authorities made here.

use super::world::{PNG, Running, Setup, World};
use crate::{Config, TlsFiles};
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use modelless_oip::messages::{ModelMetadata, ModelName};
use modelless_testkit::certificates;
use modelless_testkit::{TempDir, temp_dir};
use modelless_wire::tls_files;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

const SOON: Duration = Duration::from_secs(30);
const HOST: &str = "127.0.0.1";

/// A folder with an authority, a certificate for this host, and one for a client.
fn made() -> TempDir {
    let folder = temp_dir("tls").unwrap();
    certificates::write(folder.path(), &[HOST, "a-client"]).unwrap();
    folder
}

fn files(folder: &Path) -> TlsFiles {
    let file = |name: &str| Some(folder.join(name));
    TlsFiles { cert: file("127.0.0.1.pem"), key: file("127.0.0.1.key"), client_ca: None }
}

async fn running(config: Config) -> Running {
    let config = Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..config };
    World::with(Setup { config, ..Setup::default() }).await.run().await
}

/// Believes the authority in `trusted`, and shows what it is given: a folder and a name.
fn client(trusted: &Path, shows: Option<(&Path, &str)>, protocols: &[&[u8]]) -> TlsConnector {
    let roots = tls_files::authorities("ca", &trusted.join("ca.pem")).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some((folder, name)) => {
            let chain = tls_files::certificates("cert", &folder.join(format!("{name}.pem"))).unwrap();
            let key = tls_files::private_key("key", &folder.join(format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn greet(address: SocketAddr, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    client.connect(ServerName::try_from(HOST).unwrap(), stream).await
}

fn query() -> Request<Body> {
    let request = Request::post("/v1/tasks/fashion").header("host", HOST).header("content-type", "image/png");
    request.body(Body::from(PNG)).unwrap()
}

/// Asks once by HTTP/1.1. With TLS 1.3 a certificate that is not accepted shows only when something is read.
async fn ask(stream: TlsStream<TcpStream>) -> hyper::Result<StatusCode> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let asked = async {
        let answer = sender.send_request(query()).await?;
        let status = answer.status();
        answer.into_body().collect().await?;
        drop(sender);
        Ok(status)
    };
    let (asked, _) = tokio::join!(asked, connection);
    asked
}

/// A channel for gRPC.
async fn channel(address: SocketAddr, client: TlsConnector) -> Result<Channel, tonic::transport::Error> {
    let connect = tower::service_fn(move |_| {
        let client = client.clone();
        async move { greet(address, &client).await.map(TokioIo::new) }
    });
    // The connector encrypts by itself; the scheme here only says what the URI looks like.
    let endpoint = tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap();
    endpoint.connect_with_connector(connect).await
}

async fn metadata(channel: Channel) -> Result<String, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let request = tonic::Request::new(ModelName { name: "fashion".to_owned(), ..Default::default() });
    let path = http::uri::PathAndQuery::from_static("/inference.GRPCInferenceService/ModelMetadata");
    let answer: tonic::Response<ModelMetadata> = grpc.unary(request, path, ProstCodec::default()).await?;
    Ok(answer.into_inner().name)
}

#[tokio::test]
async fn http1_http2_and_grpc_are_served_to_whoever_believes_the_certificate() {
    let folder = made();
    let run = running(Config { tls: files(folder.path()), ..Config::default() }).await;
    assert_eq!(run.addresses.url(), format!("https://{}", run.addresses.http));
    let (http1, http2): (&[u8], &[u8]) = (b"http/1.1", b"h2");
    for offered in [vec![], vec![http1], vec![http2]] {
        let stream = greet(run.addresses.http, &client(folder.path(), None, &offered)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), offered.first().copied());
        if offered != [http2] {
            assert_eq!(ask(stream).await.unwrap(), StatusCode::OK);
            continue;
        }
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { connection.await.unwrap() });
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let mut sender = sender.clone();
            all.spawn(async move {
                sender.ready().await.unwrap();
                let request = Request::post(format!("https://{HOST}/v1/tasks/fashion"));
                let request = request.header("content-type", "image/png").body(Body::from(PNG)).unwrap();
                let answer = sender.send_request(request).await.unwrap();
                (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
            });
        }
        for (status, body) in all.join_all().await {
            assert_eq!(status, StatusCode::OK, "{body:?}");
        }
        drop(sender);
        tasks.join_next().await.unwrap().unwrap();
    }
    let grpc = client(folder.path(), None, &[b"h2"]);
    let channel = channel(run.addresses.grpc.unwrap(), grpc).await.unwrap();
    assert_eq!(metadata(channel).await.unwrap(), "fashion");
    run.stop().await;
}

#[tokio::test]
async fn who_believes_another_authority_or_speaks_no_tls_gets_no_answer() {
    let (folder, other) = (made(), made());
    let run = running(Config { tls: files(folder.path()), ..Config::default() }).await;
    let doubts = client(other.path(), None, &[]);
    for address in [run.addresses.http, run.addresses.grpc.unwrap()] {
        let error = greet(address, &doubts).await.unwrap_err();
        // Both authorities have one name, so it is the signature that gives the other away.
        assert!(error.to_string().contains("BadSignature"), "{error}");
    }
    let plain = run.addresses.http;
    let asked = move || {
        let request = modelless_testkit::Request::get("/v2/health/live");
        modelless_testkit::Connection::open(plain).unwrap().exchange(&request)
    };
    assert!(tokio::task::spawn_blocking(asked).await.unwrap().is_err(), "nothing is told in the clear");
    assert_eq!(ask(greet(plain, &client(folder.path(), None, &[])).await.unwrap()).await.unwrap(), 200);
    run.stop().await;
}

#[tokio::test]
async fn where_clients_must_show_a_certificate_only_those_of_the_authority_get_in() {
    let (folder, clients) = (made(), made());
    let tls = TlsFiles { client_ca: Some(clients.path().join("ca.pem")), ..files(folder.path()) };
    let run = running(Config { tls, ..Config::default() }).await;
    let (http, grpc) = (run.addresses.http, run.addresses.grpc.unwrap());
    for (shows, gets_in) in [
        (Some((clients.path(), "a-client")), true),
        (Some((folder.path(), "a-client")), false),
        (None, false),
    ] {
        let asked = match greet(http, &client(folder.path(), shows, &[])).await {
            Ok(stream) => ask(stream).await.is_ok_and(|status| status == 200),
            Err(_) => false,
        };
        assert_eq!(asked, gets_in, "{shows:?}");
        let told = match channel(grpc, client(folder.path(), shows, &[b"h2"])).await {
            Ok(channel) => metadata(channel).await.is_ok(),
            Err(_) => false,
        };
        assert_eq!(told, gets_in, "gRPC {shows:?}");
    }
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_swapped_under_load_and_a_broken_one_is_not_taken() {
    let folder = made();
    let run = running(Config { tls: files(folder.path()), ..Config::default() }).await;
    let address = run.addresses.http;
    // Both authorities are believed for as long as both may be shown.
    let next = made();
    let mut both = fs::read_to_string(folder.path().join("ca.pem")).unwrap();
    both.push_str(&fs::read_to_string(next.path().join("ca.pem")).unwrap());
    let believed = temp_dir("both").unwrap();
    fs::write(believed.path().join("ca.pem"), both).unwrap();
    let believes = client(believed.path(), None, &[]);

    let (ended, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(watch::Sender::new(0)));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (believes, ended, answered) = (believes.clone(), Arc::clone(&ended), Arc::clone(&answered));
        load.spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let stream = greet(address, &believes).await.unwrap();
                assert_eq!(ask(stream).await.unwrap(), StatusCode::OK);
                answered.send_modify(|count| *count += 1);
            }
        });
    }
    let shown = async || {
        let stream = greet(address, &believes).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let of = |folder: &TempDir| {
        tls_files::certificates("", &folder.path().join("127.0.0.1.pem")).unwrap()[0].to_vec()
    };
    let more = async || {
        let mut count = answered.subscribe();
        let enough = *count.borrow() + 8;
        let more = tokio::time::timeout(SOON, count.wait_for(|count| *count >= enough)).await;
        assert!(more.is_ok(), "the load goes on");
    };
    more().await;
    let before = of(&folder);
    assert_eq!(shown().await, before);
    fs::write(folder.path().join("127.0.0.1.pem"), "no certificate").unwrap();
    assert_eq!(shown().await, before, "what cannot be used leaves what was");
    // One after the other, as tools write them: in between certificate and key do not belong together.
    for name in ["127.0.0.1.key", "127.0.0.1.pem"] {
        fs::copy(next.path().join(name), folder.path().join(name)).unwrap();
        more().await;
    }
    assert_eq!(shown().await, of(&next));
    assert_ne!(of(&next), before);
    more().await;
    ended.store(true, Ordering::Relaxed);
    load.join_all().await; // which panics if a request failed
    run.stop().await;
}

#[tokio::test]
async fn a_slow_greeting_keeps_nobody_out_and_ends() {
    let folder = made();
    let config = Config { tls: files(folder.path()), header_timeout_ms: 300, ..Config::default() };
    let run = running(config).await;
    let believes = client(folder.path(), None, &[]);
    for (address, grpc) in [(run.addresses.http, false), (run.addresses.grpc.unwrap(), true)] {
        let mut slow = TcpStream::connect(address).await.unwrap();
        // Connections are taken in their order, so the slow one has begun its greeting before.
        if grpc {
            let channel = channel(address, client(folder.path(), None, &[b"h2"])).await.unwrap();
            assert_eq!(metadata(channel).await.unwrap(), "fashion");
        } else {
            assert_eq!(ask(greet(address, &believes).await.unwrap()).await.unwrap(), StatusCode::OK);
        }
        let closed = tokio::time::timeout(SOON, slow.read(&mut [0; 16])).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))), "it has so long and no longer");
    }
    run.stop().await;
}

#[tokio::test]
async fn one_of_four_places_is_for_greetings_and_who_finds_none_is_closed_at_once() {
    let folder = made();
    let config = Config {
        tls: files(folder.path()),
        max_connections: 8,
        header_timeout_ms: 600_000,
        ..Config::default()
    };
    let run = running(config).await;
    for address in [run.addresses.http, run.addresses.grpc.unwrap()] {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(TcpStream::connect(address).await.unwrap());
        }
        let third = tokio::time::timeout(SOON, all[2].read(&mut [0; 16])).await;
        assert!(matches!(third, Ok(Ok(0) | Err(_))));
        for waits in &all[..2] {
            let read = waits.try_read(&mut [0; 16]);
            assert!(read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
        }
    }
    run.stop().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_told_before_anything_is_served() {
    let folder = made();
    let good = files(folder.path());
    assert_eq!(good.check(), Ok(()));
    for (wrong, told) in [
        (TlsFiles { key: None, ..good.clone() }, "tls.key"),
        (TlsFiles { cert: None, ..good.clone() }, "tls.cert"),
        (TlsFiles { key: Some(folder.path().join("a-client.key")), ..good.clone() }, "not the key"),
        (TlsFiles { cert: Some(folder.path().join("nowhere.pem")), ..good.clone() }, "cannot read"),
        (TlsFiles { client_ca: Some(folder.path().join("a-client.key")), ..good }, "holds no certificate"),
    ] {
        let why = wrong.check().unwrap_err();
        assert!(why.contains(told), "{why}");
    }
    assert_eq!(TlsFiles::default().check(), Ok(()), "none is wanted");
}
