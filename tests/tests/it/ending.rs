//! How a server ends, and how a query does that nobody waits for: by signals, under load, with runners that hang.

use crate::demo::{Demo, ask, reason};
use anyhow::{Context, Result, ensure};
use modelless_testkit::http::Answer;
use modelless_testkit::process::{Other, Signal};
use modelless_testkit::{Connection, Request, Server};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Looks at something until it is so; each look is a request, so this waits for the server and not for luck.
const LOOKS: u32 = 20_000;
/// Answers that each asker has had before the end is asked for.
const WARM: u32 = 10;
/// As long as anything here may take on a busy machine.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn sigterm_under_load_answers_or_refuses_every_query_and_leaves_no_runner() -> Result<()> {
    let mut demo = Demo::start(&[])?;
    let (address, runners) = (demo.server.address(), demo.server.runners()?);
    ensure!(!runners.is_empty(), "nothing was loaded");
    let (status, took, outcomes) = thread::scope(|scope| {
        let (warm, warmed) = mpsc::sync_channel(16);
        let askers: Vec<_> = (0..8)
            .map(|number| {
                let warm = warm.clone();
                scope.spawn(move || {
                    // Two models take turns on the lane, so some wait and some run.
                    let goals = if number % 2 == 0 { "?model=cnn_l" } else { "?model=cnn_s" };
                    let result = Connection::open(address)
                        .and_then(|mut connection| ask_until_closed(&mut connection, goals, &warm));
                    // One that failed is waited for no longer; its result says why.
                    let _ = warm.send(());
                    result
                })
            })
            .collect();
        drop(warm);
        warmed.iter().take(8).for_each(drop);
        demo.server.signal(Signal::TERM)?;
        let asked = now();
        let status = demo.server.ends_within(LONG)?;
        let took = asked.elapsed();
        let outcomes = askers.into_iter().map(|asker| asker.join().expect("an asker does not panic"));
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        anyhow::Ok((status, took, outcomes))
    })
    .with_context(|| demo.server.output())?;
    ensure!(status.is_some_and(|status| status.code() == Some(0)), "{status:?}\n{}", demo.server.output());
    ensure!(took < Duration::from_secs(10), "what was at hand takes milliseconds, but the end took {took:?}");
    ensure!(outcomes.iter().all(|answered| *answered >= WARM), "{outcomes:?}");
    all_gone(&runners, Duration::ZERO)
}

/// Asks without a pause until the server closes the connection, which it does between two answers and never within
/// one. How many were answered; anything but an answer and being told of the end, with when to come again, is an
/// error.
fn ask_until_closed(connection: &mut Connection, goals: &str, warm: &mpsc::SyncSender<()>) -> Result<u32> {
    let request = ask("boot.png", goals).to_bytes();
    let mut answered = 0;
    loop {
        connection.send_raw(&request)?;
        match connection.answer()? {
            Answer::Closed => return Ok(answered),
            Answer::Response(response) if response.status == 200 => {
                answered += 1;
                if answered == WARM {
                    let _ = warm.send(());
                }
            }
            Answer::Response(response) => {
                let named = response.status == 503 && reason(&response)? == "draining";
                ensure!(named && response.header("retry-after").is_some(), "after {answered}: {response}");
            }
        }
    }
}

#[test]
fn what_hangs_holds_the_end_up_no_longer_than_was_set_and_is_refused_by_name() -> Result<()> {
    let mut demo = Demo::start(&["--drain", "1"])?;
    let runners = stopped_runners(&demo.server)?;
    let mut waiting = send(&demo.server, 5, "?model=cnn_l&latency_ms=60000")?;
    see(&demo.server, "modelless_queries_open", |open| open >= 5.0)?;
    demo.server.signal(Signal::TERM)?;
    let asked = now();
    // Whoever comes now is told at once, while the others still have their time.
    let mut late = demo.server.connect()?;
    let told = (0..LOOKS).find_map(|_| match late.exchange(&Request::get("/v2/health/ready")) {
        Ok(response) if response.status == 200 => None,
        other => Some(other),
    });
    told.context("it never said that it drains")??;
    let refused = late.exchange(&ask("boot.png", ""))?;
    ensure!(refused.status == 503 && reason(&refused)? == "draining", "a late one: {refused}");
    ensure!(refused.header("retry-after").is_some(), "{refused}");
    for connection in &mut waiting {
        let Answer::Response(response) = connection.answer()? else {
            anyhow::bail!("a query that was taken in was never answered")
        };
        ensure!(
            response.status == 503 && reason(&response)? == "draining",
            "one that waited: {response}\n{:?}",
            response.header("modelless-variant")
        );
    }
    let status = demo.server.ends_within(LONG)?;
    ensure!(status.is_some_and(|status| status.code() == Some(0)), "{status:?}\n{}", demo.server.output());
    ensure!(asked.elapsed() < Duration::from_secs(12), "{:?}", asked.elapsed());
    all_gone(&runners, Duration::ZERO)
}

#[test]
fn a_second_signal_ends_it_at_once_with_its_runners() -> Result<()> {
    let mut demo = Demo::start(&["--drain", "600"])?;
    let runners = stopped_runners(&demo.server)?;
    let waiting = send(&demo.server, 1, "?model=cnn_l&latency_ms=60000")?;
    see(&demo.server, "modelless_queries_open", |open| open >= 1.0)?;
    demo.server.signal(Signal::TERM)?;
    let mut late = demo.server.connect()?;
    for _ in 0..LOOKS {
        if late.exchange(&Request::get("/v2/health/ready"))?.status != 200 {
            break;
        }
    }
    demo.server.signal(Signal::TERM)?;
    let status = demo.server.ends_within(LONG)?.context("it did not end")?;
    ensure!(status.code() == Some(1), "cut short is not a success: {status}");
    drop(waiting);
    all_gone(&runners, LONG)
}

#[test]
fn a_killed_server_leaves_no_runner() -> Result<()> {
    let demo = Demo::start(&[])?;
    // Also those that could not hear anybody say goodbye.
    let runners = stopped_runners(&demo.server)?;
    demo.server.kill()?;
    all_gone(&runners, LONG)
}

#[test]
fn queries_whose_clients_hang_up_while_they_wait_are_never_run() -> Result<()> {
    const CLIENTS: u32 = 20;
    let demo = Demo::start(&["--lanes", "1"])?;
    demo.answer("boot.png", "?model=linear")?;
    let ran = |server: &Server| metric(server, r#"modelless_node_queries_total{node="local"}"#);
    see(&demo.server, r#"modelless_node_queries_total{node="local"}"#, |ran| ran >= 1.0)?;
    let before = ran(&demo.server)?;

    // One that keeps the only lane busy, and many of another model behind it.
    let runners = stopped_runners(&demo.server)?;
    let mut first = send(&demo.server, 1, "?model=cnn_l&latency_ms=60000")?;
    see(&demo.server, "modelless_queries_open", |open| open >= 1.0)?;
    let others = send(&demo.server, CLIENTS, "?model=linear&latency_ms=60000")?;
    see(&demo.server, "modelless_queries_open", |open| open >= f64::from(CLIENTS + 1))?;
    drop(others);
    let cancelled = r#"modelless_queries_total{task="fashion",outcome="cancelled"}"#;
    see(&demo.server, cancelled, |count| count >= f64::from(CLIENTS))?;
    see(&demo.server, "modelless_queries_open", |open| open <= 1.0)?;
    for runner in &runners {
        runner.signal(Signal::CONT)?;
    }
    let Answer::Response(response) = first[0].answer()? else {
        anyhow::bail!("the first was never answered")
    };
    ensure!(response.status == 200, "{response}");

    // One more query goes through after them all, and once it is counted so would they be.
    demo.answer("boot.png", "?model=linear")?;
    see(&demo.server, r#"modelless_node_queries_total{node="local"}"#, |ran| ran >= before + 2.0)?;
    // The first one again, should this have taken so long that its runner was taken for hung.
    let more = ran(&demo.server)? - before;
    ensure!((2.0..=3.0).contains(&more), "{more} queries were run, but only 2 were waited for");
    demo.server.stop()
}

/// Stops every runner, as a device that hangs would be; they end with the server all the same. Among them is the one
/// of `cnn_l`, which has just answered; others may still be on their way.
fn stopped_runners(server: &Server) -> Result<Vec<Other>> {
    let response = server.send(&ask("boot.png", "?model=cnn_l&latency_ms=20000"))?;
    ensure!(response.status == 200, "{response}");
    let runners = server.runners()?;
    ensure!(!runners.is_empty(), "nothing was loaded");
    for runner in &runners {
        runner.freeze()?;
    }
    Ok(runners)
}

/// Asks so many times, each on a connection of its own, without waiting for answers.
fn send(server: &Server, clients: u32, goals: &str) -> Result<Vec<Connection>> {
    let request = ask("boot.png", goals).to_bytes();
    let asked = (0..clients).map(|_| {
        let mut connection = server.connect()?;
        connection.send_raw(&request)?;
        Ok(connection)
    });
    asked.collect()
}

#[expect(clippy::disallowed_methods, reason = "the time of real processes is measured")]
fn now() -> Instant {
    Instant::now()
}

fn metric(server: &Server, name: &str) -> Result<f64> {
    let text = server.get("/metrics")?.text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{name} is {value:?}")))
}

fn see(server: &Server, name: &str, wanted: impl Fn(f64) -> bool) -> Result<()> {
    let mut last = 0.0;
    for _ in 0..LOOKS {
        last = metric(server, name)?;
        if wanted(last) {
            return Ok(());
        }
    }
    anyhow::bail!("{name} stays at {last}\n{}", server.output())
}

fn all_gone(runners: &[Other], within: Duration) -> Result<()> {
    for runner in runners {
        ensure!(runner.ends_within(within)?, "runner {} outlives its server", runner.pid());
    }
    Ok(())
}
