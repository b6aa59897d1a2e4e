//! Load on a server over HTTP: as much as some connections can ask, or at set times on several streams at once.
//!
//! `http-load ADDRESS[,ADDRESS...] STREAMS SEED`, where STREAMS is JSON: `[{"target": PATH, "inputs": [TENSOR]}]`, with `"exact": true`
//! where answers do not differ in the last digits either, and with `"key": KEY` where the server asks for one. With `"files": [PATH],
//! "content_type": TYPE` in place of `inputs` files are sent as they are, and with `"by": HEADER` that header is told in place of
//! the node that answered. Then questions
//!
//! * `{"do": "learn"}`: asks every input once, alone; its answer is what it must be from then on. With `"bare": MODEL` in a stream that
//!   file's answer to the same input, run in this process by `"library"`, is, and the server's must be the same at once;
//! * `{"do": "closed", "stream", "connections", "warm_ms", "ms"}`: every connection asks again at once;
//! * `{"do": "paced", "per_second": [RATE A STREAM], "ms", "seed", "connections", "patience_ms"}`: at times drawn beforehand
//!   (Poisson). Latency counts from when a query should have come. Whatever is not 200 counts as lost, and what differs from
//!   what was learnt as wrong. `answers` are when, in milliseconds since `began_unix_ms`, latency in microseconds, and which
//!   of `nodes` answered; `failures` are when, after how long, and with which of the names under `lost`. With `"steps": [[AT_MS, TIMES]]`
//!   all rates are so many times as high from then on.
//! * `{"do": "day", "servegen": PATH, "window_s", "per_second", "ms", "seed", "connections", "patience_ms"}`: the same at the times of the clients of a
//!   trace ([`modelless_simulator::trace`]), dealt to the streams in turn.
//!
//! With several addresses connections are spread over them. A connection that ends without a byte of an answer is then what
//! it is to a client that may ask twice: the same query is asked at the next address (`moved`), within its time.
//!
//! With `"balanced": true` a paced load comes through what behaves as a usual balancer does, see [`modelless_bench::balancer`]: no query
//! is sent twice, whatever becomes of it.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use modelless_bench::balancer::Balancer;
use modelless_bench::bare;
use modelless_bench::timing::{nanos, percentiles, sleep_precisely};
use modelless_simulator::{Rng, trace};
use modelless_testkit::{Connection, Request, Response, process, turns};
use modelless_types::{Micros, TensorSpec};
use serde_json::{Value, json};

/// Different inputs of a stream, asked in turn.
const INPUTS: usize = 16;
/// Connections of a stream whose times are set: more than are ever open at once in a run that goes well.
const CONNECTIONS: usize = 24;
/// Where nothing else is asked for, an answer may take so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Batches of other sizes are computed in another order, so the last digits differ.
const TOLERANCE: f64 = 1e-3;

struct Stream {
    requests: Vec<Vec<u8>>,
    /// Their inputs where they were made here.
    inputs: Vec<Vec<u8>>,
    /// The library and the file that answer in this process what the server must answer.
    bare: Option<(String, String)>,
    learnt: Vec<Vec<f64>>,
    /// Part of a number by which an answer may differ from what was learnt.
    tolerance: f64,
    /// The header that says who answered.
    by: String,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addresses, streams, seed] = args.as_slice() else {
        bail!("usage: http-load ADDRESSES STREAMS SEED")
    };
    let addresses = addresses.split(',').map(str::parse).collect::<Result<Vec<SocketAddr>, _>>()?;
    let address = *addresses.first().context("an address")?;
    let mut rng = modelless_testkit::Rng::new(seed.parse()?);
    let streams: Vec<Value> = serde_json::from_str(streams)?;
    let mut streams = streams.iter().map(|s| stream(s, &mut rng)).collect::<Result<Vec<_>>>()?;
    turns::serve(|question| {
        let number = |name: &str| question[name].as_f64().with_context(|| format!("`{name}` in {question}"));
        let ms = |name: &str| Ok::<_, anyhow::Error>(Duration::from_secs_f64(number(name)? / 1e3));
        match question["do"].as_str() {
            Some("learn") => learn(address, &mut streams),
            Some("closed") => {
                let place = |name: &str| {
                    Ok::<_, anyhow::Error>(usize::try_from(question[name].as_u64().context("a count")?)?)
                };
                let stream = &streams[place("stream")?];
                closed(&addresses, stream, place("connections")?, ms("warm_ms")?, ms("ms")?)
            }
            Some(what @ ("paced" | "day")) => {
                let seed = question["seed"].as_u64().context("`seed`")?;
                let connections = question["connections"].as_u64().map(usize::try_from).transpose()?;
                let patience = question["patience_ms"].as_u64().map(Duration::from_millis);
                let balancer = (question["balanced"] == true).then(|| Balancer::new(addresses.clone()));
                let habits = Habits {
                    addresses: &addresses,
                    balancer: balancer.as_ref(),
                    connections: connections.unwrap_or(CONNECTIONS),
                    patience: patience.unwrap_or(PATIENCE),
                };
                let times = if what == "day" {
                    day(question, streams.len(), ms("ms")?)?
                } else {
                    poisson(question, streams.len(), (ms("ms")?, seed))?
                };
                paced(&habits, &streams, times)
            }
            other => bail!("cannot do {other:?}"),
        }
    })
}

fn stream(spec: &Value, rng: &mut modelless_testkit::Rng) -> Result<Stream> {
    let target = spec["target"].as_str().context("`target`")?;
    let request = |body: Vec<u8>, content: &str| {
        let mut request = Request::post(target).header("content-type", content);
        if let Some(key) = spec["key"].as_str() {
            request = request.header("api-key", key);
        }
        request.body(body).to_bytes()
    };
    let mut bodies = Vec::new();
    let requests: Vec<Vec<u8>> = if let Some(files) = spec["files"].as_array() {
        let content = spec["content_type"].as_str().context("`content_type`")?;
        let read = |file: &Value| {
            let file = file.as_str().context("a path")?;
            let body = std::fs::read(file).with_context(|| format!("reading {file}"))?;
            Ok(request(body, content))
        };
        files.iter().map(read).collect::<Result<_>>()?
    } else {
        let inputs: Vec<TensorSpec> = serde_json::from_value(spec["inputs"].clone())?;
        bodies = (0..INPUTS).map(|_| modelless_bench::random(&inputs, rng)).collect::<Result<_>>()?;
        bodies.iter().map(|body| request(body.clone(), "application/octet-stream")).collect()
    };
    ensure!(!requests.is_empty(), "nothing to ask in {spec}");
    let tolerance = if spec["exact"] == true { 0.0 } else { TOLERANCE };
    let by = spec["by"].as_str().unwrap_or("modelless-node").to_owned();
    let bare = spec["bare"].as_str().map(|model| {
        let library = spec["library"].as_str().context("`library`, which runs `bare`")?;
        Ok::<_, anyhow::Error>((library.to_owned(), model.to_owned()))
    });
    Ok(Stream { requests, inputs: bodies, bare: bare.transpose()?, learnt: Vec::new(), tolerance, by })
}

fn learn(address: SocketAddr, streams: &mut [Stream]) -> Result<Value> {
    let mut connection = Connection::open(address)?;
    for stream in streams.iter_mut() {
        let ask = |request: &Vec<u8>| {
            let response = connection.exchange_bytes(request, false)?;
            ensure!(response.status == 200, "{response}");
            numbers(&response)
        };
        stream.learnt = stream.requests.iter().map(ask).collect::<Result<_>>()?;
        if let Some((library, model)) = &stream.bare {
            let expected = bare_answers(library, model, &stream.inputs)?;
            let right = |(expected, found): (&Vec<f64>, &Vec<f64>)| same(expected, found, stream.tolerance);
            let wrong = expected.iter().zip(&stream.learnt).filter(|pair| !right(*pair)).count();
            ensure!(
                wrong == 0,
                "{wrong} of {} inputs are answered otherwise than by {model} in a loop",
                expected.len()
            );
            stream.learnt = expected;
        }
    }
    Ok(json!({"learnt": streams.len() * INPUTS}))
}

/// What a file answers to inputs with none of the server's code between.
fn bare_answers(library: &str, model: &str, inputs: &[Vec<u8>]) -> Result<Vec<Vec<f64>>> {
    let mut session = bare::open_alone(library, model)?;
    let takes = bare::inputs(&session)?;
    inputs.iter().map(|input| bare::answer(&mut session, &takes, input)).collect()
}

/// All numbers of an answer, in their order.
fn numbers(response: &Response) -> Result<Vec<f64>> {
    fn collect(value: &Value, into: &mut Vec<f64>) {
        into.extend(value.as_f64());
        value.as_array().into_iter().flatten().for_each(|item| collect(item, into));
        if let Some(data) = value.get("data") {
            return collect(data, into); // a tensor's shape is none of its numbers
        }
        value.as_object().into_iter().flatten().for_each(|(_, item)| collect(item, into));
    }
    let mut found = Vec::new();
    collect(&response.json()?["outputs"], &mut found);
    ensure!(!found.is_empty(), "no numbers in {response}");
    Ok(found)
}

fn same(learnt: &[f64], found: &[f64], tolerance: f64) -> bool {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * a.abs().max(1.0);
    learnt.len() == found.len() && learnt.iter().zip(found).all(close)
}

fn closed(
    addresses: &[SocketAddr],
    stream: &Stream,
    count: usize,
    warm: Duration,
    time: Duration,
) -> Result<Value> {
    let spread = addresses.iter().cycle().take(count);
    let mut open = spread.map(|address| Connection::open(*address)).collect::<Result<Vec<_>>>()?;
    let mut next = stream.requests.iter().cycle();
    let mut request = || next.next().context("there are inputs; this is a bug");
    for connection in &mut open {
        connection.send_raw(request()?)?;
    }
    let begin = Instant::now() + warm;
    let (mut answered, mut cpu, mut since) = (0_u32, Duration::ZERO, None);
    'all: loop {
        for connection in &mut open {
            let response = connection.receive(false)?.context("the server closed a connection")?;
            ensure!(response.status == 200, "{response}");
            let now = Instant::now();
            if since.is_none() && now >= begin {
                (answered, cpu, since) = (0, process::own_cpu_time(), Some(now));
            }
            if now >= begin + time {
                break 'all;
            }
            answered += 1;
            connection.send_raw(request()?)?;
        }
    }
    let wall = since.context("nothing was answered after warming up")?.elapsed();
    Ok(json!({
        "answered": answered, "per_second": f64::from(answered) / wall.as_secs_f64(), "wall_ns": nanos(wall),
        "client_cpu_ns": nanos(process::own_cpu_time().saturating_sub(cpu)),
    }))
}

/// When queries of a stream come, since the load began.
type Times = Box<dyn Iterator<Item = Duration> + Send>;

/// At so many a second.
fn poisson(question: &Value, streams: usize, (time, seed): (Duration, u64)) -> Result<Vec<Times>> {
    let rates = question["per_second"].as_array().context("`per_second`")?;
    let rates: Vec<f64> = rates.iter().filter_map(Value::as_f64).collect();
    ensure!(rates.len() == streams, "a rate for each stream");
    let steps = question.get("steps").cloned().map(serde_json::from_value);
    let steps: Vec<(u64, f64)> = steps.transpose().context("`steps`")?.unwrap_or_default();
    let steps = steps.into_iter().map(|(at, times)| (Duration::from_millis(at), times));
    let steps: VecDeque<(Duration, f64)> = steps.collect();
    let of = |(number, rate): (usize, &f64)| -> Times {
        if *rate <= 0.0 {
            return Box::new(std::iter::empty());
        }
        let rng = Rng::new(seed, &format!("stream {number}"));
        Box::new(stepped(rng, 1.0 / rate, steps.clone()).take_while(move |due| *due < time))
    };
    Ok(rates.iter().enumerate().map(of).collect())
}

/// The same at a rate that changes: from each of these moments on so many times as many come.
fn stepped(
    mut rng: Rng,
    mean_s: f64,
    mut steps: VecDeque<(Duration, f64)>,
) -> impl Iterator<Item = Duration> {
    let (mut due, mut times) = (Duration::ZERO, 1.0);
    std::iter::from_fn(move || {
        let mut next = |due, times| due + Duration::from_secs_f64(rng.exponential() * mean_s / times);
        due = next(due, times);
        // Whoever would have come after a step is drawn anew from there: what came before says nothing of it.
        while let Some((at, then)) = steps.pop_front_if(|(at, _)| *at <= due) {
            times = then;
            due = next(at, times);
        }
        Some(due)
    })
}

/// As the clients of a trace ask.
fn day(question: &Value, streams: usize, time: Duration) -> Result<Vec<Times>> {
    let path = question["servegen"].as_str().context("`servegen`")?;
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let number = |name: &str| question[name].as_f64().with_context(|| format!("`{name}` in {question}"));
    let seed = question["seed"].as_u64().context("`seed`")?;
    let lasts = Micros(u64::try_from(time.as_micros())?);
    let clients = trace::servegen(&text, number("window_s")?, lasts, number("per_second")?, seed)
        .map_err(anyhow::Error::msg)?;
    let mut of: Vec<Vec<Duration>> = vec![Vec::new(); streams];
    for (client, times) in clients.into_iter().enumerate() {
        of[client % streams].extend(times.into_iter().map(|at| Duration::from_micros(at.0)));
    }
    for times in &mut of {
        times.sort_unstable();
    }
    Ok(of.into_iter().map(|times| -> Times { Box::new(times.into_iter()) }).collect())
}

/// When the next query of a stream is due, and which it is.
struct Schedule {
    times: std::iter::Enumerate<Times>,
    start: Instant,
}

impl Schedule {
    fn take(&mut self) -> Option<(usize, Instant)> {
        self.times.next().map(|(number, at)| (number + 1, self.start + at))
    }
}

/// How the clients of a paced load ask.
struct Habits<'a> {
    addresses: &'a [SocketAddr],
    balancer: Option<&'a Balancer>,
    connections: usize,
    patience: Duration,
}

#[derive(Default)]
struct Seen {
    sent: usize,
    latencies: Vec<u64>,
    /// When each of them should have come, and which of `nodes` answered.
    came: Vec<(Instant, usize)>,
    nodes: Vec<String>,
    lags: Vec<u64>,
    wrong: usize,
    moved: usize,
    lost: BTreeMap<String, usize>,
    failures: Vec<(Instant, Duration, String)>,
}

impl Seen {
    fn node(&mut self, name: &str) -> usize {
        self.nodes.iter().position(|known| known == name).unwrap_or_else(|| {
            self.nodes.push(name.to_owned());
            self.nodes.len() - 1
        })
    }

    fn json(&self, start: Instant) -> Value {
        let since = |at: Instant| nanos(at.saturating_duration_since(start)) / 1_000_000;
        let answers = self.came.iter().zip(&self.latencies);
        let answers = answers.map(|((came, node), ns)| (since(*came), ns / 1_000, *node)).collect::<Vec<_>>();
        let failed = |(came, took, why): &(Instant, Duration, String)| {
            (since(*came), nanos(*took) / 1_000, why.clone())
        };
        json!({
            "answers": answers, "nodes": self.nodes, "sent": self.sent, "answered": self.latencies.len(),
            "wrong": self.wrong, "moved": self.moved, "lost": self.lost,
            "failures": self.failures.iter().map(failed).collect::<Vec<_>>(),
            "latency": percentiles(&self.latencies), "sent_after_due": percentiles(&self.lags),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn paced(habits: &Habits<'_>, streams: &[Stream], times: Vec<Times>) -> Result<Value> {
    let start = Instant::now() + Duration::from_millis(50);
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? + Duration::from_millis(50);
    let (cpu, mut out) = (process::own_cpu_time(), Vec::new());
    std::thread::scope(|scope| {
        let _watched = habits.balancer.map(|balancer| balancer.watch(scope));
        let mut all = Vec::new();
        for (stream, times) in streams.iter().zip(times) {
            let schedule = Schedule { times: times.enumerate(), start };
            let shared = std::sync::Arc::new((Mutex::new(schedule), Mutex::new(Seen::default())));
            let of_one = |number| {
                let shared = std::sync::Arc::clone(&shared);
                let client = Client { habits, home: number, next: number, open: None };
                scope.spawn(move || client.ask_all(stream, &shared.0, &shared.1))
            };
            let clients: Vec<_> = (0..habits.connections).map(of_one).collect();
            all.push((clients, shared));
        }
        for (clients, shared) in all {
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            }
            out.push(lock(&shared.1).json(start));
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(
        json!({"began_unix_ms": nanos(began) / 1_000_000, "streams": out, "client_cpu_ns": nanos(process::own_cpu_time().saturating_sub(cpu))}),
    )
}

/// One connection, to one address after the other where there are several.
struct Client<'a> {
    habits: &'a Habits<'a>,
    /// Where it asks while that is ready, behind a balancer.
    home: usize,
    next: usize,
    open: Option<Connection>,
}

impl Client<'_> {
    /// Takes the next query that is due, until there is none.
    fn ask_all(mut self, stream: &Stream, schedule: &Mutex<Schedule>, seen: &Mutex<Seen>) -> Result<()> {
        sleep_precisely()?;
        loop {
            let Some((number, due)) = lock(schedule).take() else { return Ok(()) };
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let lag = Instant::now().saturating_duration_since(due);
            let at = number % stream.requests.len();
            let (answer, moved) = self.ask(&stream.requests[at], due);
            let took = due.elapsed();
            let mut seen = lock(seen);
            seen.sent += 1;
            seen.moved += moved;
            seen.lags.push(nanos(lag));
            let lost = match answer {
                Ok(response) if response.status == 200 => {
                    let node = seen.node(response.header(&stream.by).unwrap_or_default());
                    seen.latencies.push(nanos(took));
                    seen.came.push((due, node));
                    let right = stream.learnt.get(at).is_none_or(|learnt| {
                        numbers(&response).is_ok_and(|found| same(learnt, &found, stream.tolerance))
                    });
                    seen.wrong += usize::from(!right);
                    continue;
                }
                Ok(response) => {
                    let json = response.json().unwrap_or_default();
                    let reason = json["reason"].as_str();
                    format!("{} {}", response.status, reason.unwrap_or("without a reason"))
                }
                Err(error) => format!("no answer: {error:#}"),
            };
            *seen.lost.entry(lost.clone()).or_default() += 1;
            seen.failures.push((due, took, lost));
        }
    }

    /// The answer, and how often it was asked for elsewhere.
    fn ask(&mut self, request: &[u8], due: Instant) -> (Result<Response>, usize) {
        if let Some(balancer) = self.habits.balancer {
            return self.ask_balanced(balancer, request, due);
        }
        let mut moved = 0;
        loop {
            let asked = self.ask_here(request, due);
            let others_left = moved + 1 < self.habits.addresses.len();
            if asked.is_err() {
                self.open = None;
                self.next += 1;
            }
            match asked {
                Ok(response) => return (Ok(response), moved),
                Err(error) if !others_left || due.elapsed() >= self.habits.patience => {
                    return (Err(error), moved);
                }
                Err(_) => moved += 1,
            }
        }
    }

    /// The answer, and whether it was asked for elsewhere than at home. Only a connection that does not come about is
    /// tried elsewhere: what was sent once is not sent again.
    fn ask_balanced(
        &mut self,
        balancer: &Balancer,
        request: &[u8],
        due: Instant,
    ) -> (Result<Response>, usize) {
        let places = balancer.order(self.home);
        let mut refused = anyhow::anyhow!("no address");
        for at in places {
            let elsewhere = usize::from(at != self.home % self.habits.addresses.len());
            if at != self.next || self.open.as_ref().is_some_and(|open| open.has_answer().unwrap_or(true)) {
                self.open = None; // another is wanted, or this one was closed while it was not used
            }
            self.next = at;
            if self.open.is_none() {
                match Connection::open(self.habits.addresses[at]) {
                    Ok(open) => self.open = Some(open),
                    Err(error) => {
                        refused = error;
                        continue;
                    }
                }
            }
            let answer = self.ask_here(request, due);
            if answer.is_err() {
                self.open = None;
            }
            return (answer, elsewhere);
        }
        (Err(refused), 1)
    }

    fn ask_here(&mut self, request: &[u8], due: Instant) -> Result<Response> {
        let open = if let Some(open) = &mut self.open {
            open
        } else {
            let address = self.habits.addresses[self.next % self.habits.addresses.len()];
            self.open.insert(Connection::open(address)?)
        };
        let left = self.habits.patience.saturating_sub(due.elapsed());
        open.set_patience(left.max(Duration::from_millis(1)))?;
        let response = open.exchange_bytes(request, false)?;
        if response.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.open = None;
            self.next += 1; // this server asks to be left
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_step_so_many_times_as_many_come() {
        let at = Duration::from_secs;
        let steps = [(at(10), 20.0), (at(20), 1.0)].into();
        let mut came = [0_u32; 3];
        for due in stepped(Rng::new(7, "steps"), 0.01, steps).take_while(|due| *due < at(30)) {
            came[usize::try_from(due.as_secs() / 10).unwrap()] += 1;
        }
        let near = |count: u32, mean: f64| (f64::from(count) / mean - 1.0).abs() < 0.15;
        assert!(near(came[0], 1_000.0) && near(came[1], 20_000.0) && near(came[2], 1_000.0), "{came:?}");
    }

    #[test]
    fn last_digits_may_differ_and_nothing_more() {
        assert!(same(&[1.0, -20.0], &[1.000_01, -20.01], TOLERANCE));
        assert!(!same(&[1.0, -20.0], &[-20.0, 1.0], TOLERANCE));
        assert!(!same(&[1.0], &[1.0, 1.0], TOLERANCE));
        assert!(!same(&[1.0], &[1.000_01], 0.0) && same(&[1.5], &[1.5], 0.0));
    }
}
