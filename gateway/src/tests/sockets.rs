use super::world::{Does, PNG, Setup, World};
use modelless_testkit::http::Answer;
use modelless_testkit::malformed::{Generator, Known, RawBody, Report, drive};
use modelless_testkit::{Connection, Request};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn query() -> Request {
    Request::post("/v1/tasks/fashion").header("content-type", "image/png").body(PNG)
}

#[tokio::test]
async fn head_and_body_of_an_answer_arrive_in_one_piece() {
    let run = World::new().await.run().await;
    let address = run.addresses.http;
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        for _ in 0..20 {
            stream.write_all(&query().to_bytes()).unwrap();
            let mut piece = [0; 8 << 10];
            let read = stream.read(&mut piece).unwrap();
            let text = String::from_utf8_lossy(&piece[..read]);
            assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("}]"), "{text}");
        }
    })
    .await
    .unwrap();
    run.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_query() {
    let mut run = World::new().await.run().await;
    *run.node.does.lock().unwrap() = Does::Keep;
    let mut stream = TcpStream::connect(run.addresses.http).unwrap();
    stream.write_all(&query().to_bytes()).unwrap();
    let sent = run.next_query().await;
    assert_eq!(run.handle.open_queries(), 1);
    drop(stream);
    assert_eq!(run.next_cancel().await, sent.key);
    assert_eq!(run.handle.open_queries(), 0);
    run.node.answer(&sent); // too late, and harmless
    assert!(
        run.metrics.encode().contains(r#"modelless_queries_total{task="fashion",outcome="cancelled"} 1"#)
    );
    run.stop().await;
}

#[tokio::test]
async fn too_large_is_told_before_the_body_is_read_or_as_soon_as_it_is_counted() {
    let mut setup = Setup::default();
    setup.config.max_body_bytes = 10_000;
    let run = World::with(setup).await.run().await;
    let told = run
        .with_connection(|mut connection| {
            // Nothing of the body is ever sent.
            let request = Request::post("/v1/tasks/fashion").header("content-length", "10001");
            connection.exchange(&request).unwrap()
        })
        .await;
    assert_eq!(told.status, 413, "{told}");
    let counted = run
        .with_connection(|mut connection| {
            let chunk = [b"7d0\r\n".to_vec(), vec![b'x'; 2_000], b"\r\n".to_vec()].concat();
            let request = Request::post("/v1/tasks/fashion").header("transfer-encoding", "chunked");
            connection.send_raw(&request.to_bytes()).unwrap();
            // Far more than the limit, and no end.
            for _ in 0..200 {
                connection.send_raw(&chunk).unwrap();
            }
            connection.answer().unwrap()
        })
        .await;
    let Answer::Response(counted) = counted else { panic!("the refusal was lost") };
    assert_eq!(counted.status, 413, "{counted}");
    assert_eq!(counted.json().unwrap()["reason"], "too_large");
    let fits = run
        .with_connection(|mut connection| {
            let body = [PNG, &[0; 5_000]].concat();
            let (a, b) = body.split_at(3_000);
            let chunk = |part: &[u8]| {
                [format!("{:x}\r\n", part.len()).into_bytes(), part.to_vec(), b"\r\n".to_vec()].concat()
            };
            let chunks = [chunk(a), chunk(b), b"0\r\n\r\n".to_vec()].concat();
            let request =
                Request::post("/v1/tasks/fashion").header("transfer-encoding", "chunked").body_as_is(chunks);
            connection.exchange(&request).unwrap()
        })
        .await;
    assert_eq!(fits.json().unwrap()[0]["score"], PNG.len() + 5_000);
    run.stop().await;
}

#[tokio::test]
async fn heads_are_bounded_in_size_and_in_number() {
    let run = World::new().await.run().await;
    for request in [
        Request::get("/v1/tasks").header("x-long", "a".repeat(17 << 10)),
        Request::get("/v1/tasks").header("x-longer", "a".repeat(900 << 10)),
        (0..150).fold(Request::get("/v1/tasks"), |request, at| request.header(&format!("x-{at}"), "1")),
        Request::get(&format!("/v1/tasks?{}", "q".repeat(20 << 10))),
    ] {
        let got = run.with_connection(move |mut connection| {
            connection.send_raw(&request.to_bytes()).unwrap();
            connection.answer().unwrap()
        });
        let Answer::Response(got) = got.await else { panic!("the refusal was lost") };
        assert!(matches!(got.status, 414 | 431), "{got}");
    }
    run.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_so() {
    let mut setup = Setup::default();
    setup.config.max_connections = 2;
    let run = World::with(setup).await.run().await;
    let address = run.addresses.http;
    tokio::task::spawn_blocking(move || {
        let live = Request::get("/v2/health/live");
        let mut held: Vec<Connection> = (0..2).map(|_| Connection::open(address).unwrap()).collect();
        for connection in &mut held {
            assert_eq!(connection.exchange(&live).unwrap().status, 200);
        }
        let Answer::Response(told) = Connection::open(address).unwrap().answer().unwrap() else {
            panic!("closed without a word")
        };
        assert_eq!(told.status, 503, "{told}");
        assert_eq!(told.json().unwrap()["reason"], "too_many_connections");
        held.pop();
        // The place comes free once the server has seen the end of the other.
        loop {
            let mut again = Connection::open(address).unwrap();
            again.send_raw(&live.to_bytes()).unwrap();
            if matches!(again.answer().unwrap(), Answer::Response(response) if response.status == 200) {
                break;
            }
        }
    })
    .await
    .unwrap();
    run.stop().await;
}

#[tokio::test]
async fn draining_finishes_what_runs_refuses_what_comes_and_tells_health() {
    let mut setup = Setup::default();
    setup.config.grpc = Some(([127, 0, 0, 1], 0).into());
    let mut run = World::with(setup).await.run().await;
    let grpc = format!("http://{}", run.addresses.grpc.unwrap());
    let channel = tonic::transport::Endpoint::from_shared(grpc).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);
    let asked = || HealthCheckRequest { service: String::new() };
    let checked = health.check(asked()).await.unwrap().into_inner();
    assert_eq!(checked.status(), ServingStatus::Serving);
    let mut watched = health.watch(asked()).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);

    *run.node.does.lock().unwrap() = Does::Keep;
    let address = run.addresses.http;
    let kept = std::thread::spawn(move || Connection::open(address).unwrap().exchange(&query()).unwrap());
    let frame = run.next_query().await;
    run.drain.cancel();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let (ready, live, refused) = run
        .with_connection(|mut connection| {
            let ready = connection.exchange(&Request::get("/v2/health/ready")).unwrap();
            let live = connection.exchange(&Request::get("/v2/health/live")).unwrap();
            (ready, live, connection.exchange(&query()).unwrap())
        })
        .await;
    assert_eq!((ready.status, live.status, refused.status), (503, 200, 503));
    assert_eq!(refused.json().unwrap()["reason"], "draining");
    assert!(refused.header("retry-after").is_some());
    run.node.answer(&frame);
    run.ended().await;
    assert_eq!(kept.join().unwrap().status, 200, "what ran was finished");
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
}

#[tokio::test]
async fn who_leaves_answers_for_a_while_and_sends_its_clients_elsewhere() {
    let mut setup = Setup::default();
    setup.config.leave_ms = 60_000;
    let run = World::with(setup).await.run().await;
    let address = run.addresses.http;
    let (before, after, ready) = run
        .with_connection({
            let drain = run.drain.clone();
            let ready = run.handle.ready();
            move |mut kept| {
                let before = kept.exchange(&query()).unwrap();
                drain.cancel();
                while *ready.borrow() {
                    std::thread::yield_now();
                }
                let after = kept.exchange(&query()).unwrap();
                assert!(kept.exchange(&query()).is_err(), "the connection was closed after the answer");
                let ready = Connection::open(address).unwrap().exchange(&Request::get("/v2/health/ready"));
                (before, after, ready.unwrap())
            }
        })
        .await;
    assert_eq!((before.status, after.status, ready.status), (200, 200, 503));
    assert_eq!((before.header("connection"), after.header("connection")), (None, Some("close")));
}

#[tokio::test]
async fn a_drain_gives_up_what_does_not_finish() {
    let mut setup = Setup::default();
    setup.config.drain_timeout_ms = 50;
    let mut run = World::with(setup).await.run().await;
    *run.node.does.lock().unwrap() = Does::Keep;
    let address = run.addresses.http;
    let kept = std::thread::spawn(move || Connection::open(address).unwrap().exchange(&query()).unwrap());
    let sent = run.next_query().await;
    run.drain.cancel();
    assert_eq!(run.next_cancel().await, sent.key);
    run.ended().await;
    assert_eq!(run.handle.open_queries(), 0);
    let told = kept.join().unwrap();
    assert_eq!((told.status, told.json().unwrap()["reason"].as_str()), (503, Some("draining")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_are_refused_and_the_next_good_one_is_answered() {
    let run = World::new().await.run().await;
    let address = run.addresses.http;
    let report = tokio::task::spawn_blocking(move || {
        let document = Connection::open(address).unwrap().exchange(&Request::get("/openapi.json")).unwrap();
        let raw = RawBody {
            template: "/v1/tasks/{task}".to_owned(),
            path: "/v1/tasks/fashion".to_owned(),
            media: "image/png".to_owned(),
            bytes: PNG.to_vec(),
        };
        let path = BTreeMap::from([
            ("task".to_owned(), "fashion".to_owned()),
            ("model".to_owned(), "small".to_owned()),
        ]);
        let known = Known { path, raw: vec![raw] };
        let mut generator = Generator::new(&document.json().unwrap(), &known, 11).unwrap();
        let mut report = Report::default();
        drive(address, &mut generator, 1_500, &mut report).unwrap();
        let good = Connection::open(address).unwrap().exchange(&query()).unwrap();
        assert_eq!(good.status, 200, "{good}");
        report
    })
    .await
    .unwrap();
    assert!(report.wrong.is_empty(), "{:#?}\n{:?}", report.wrong, report.by_status);
    assert!(!report.by_status.contains_key(&500), "{:?}", report.by_status);
    run.stop().await;
}
