//! Two tenants that ask, and a third that attacks: what they see of it.
//!
//! Both are asked for all the time, on connections that are kept, while the third floods with its own key (it has a quota), over HTTP and over
//! gRPC, asks for explanations, sends what cannot be read and, over gRPC, what is small until it is unpacked, keys of nobody, bodies that are too
//! large, heads and bodies byte by byte, and opens ten
//! thousand connections; a fourth floods, whose quota says nothing of how many at once. TLS greetings are not among it: a server speaks TLS with
//! everybody or nobody, and who is attacked here speaks without. It comes from another address than they
//! do, as on a network, where the machine has one. Before that it tries to read what is theirs, on every route that the OpenAPI document
//! declares: what their catalogue, queries, jobs, artefacts and keys are called is known to it, as if somebody had told.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Request, Rng, Server, openapi, stats, temp_dir};
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m};
use super::{Check, Context, Measure, Outcome, demo};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "attack",
    what: "p99 of two tenants while a third attacks, over that without; and what it can read of theirs",
    run: measure,
};

const LATENCY_MS: u32 = 30_000;
/// The attack begins so long before it is measured what others see of it, and lasts so much longer.
const AHEAD: Duration = Duration::from_secs(1);
/// What the third (and the fourth) may ask a second, and how many of that at once.
const RATE: &str = "20";
const OPEN: &str = "2";

struct Kind {
    name: &'static str,
    connections: u64,
    /// One of these must have come back in each round, or nothing was attacked.
    comes: &'static [&'static str],
    /// This must have come back in one of the rounds.
    comes_once: Option<&'static str>,
    /// What else the attacker has to know.
    with: Value,
    /// It goes at somebody who takes each connection and closes it at once. What others see beside that is the machine's doing.
    at_nobody: bool,
}

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, rate, ms) = context.choose((5, 200.0, 4_000), (1, 20.0, 2_000));
    let many = context.choose(10_000, 500);
    let from = own_address().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let served = cnn_m(&context.root);
    let site = Site::open(context, &served)?;
    let read = site.readable()?;
    site.admin(
        &["model", "share", served.name, "--task", served.task, "--with", "third,wide"],
        &site.keys[0],
    )?;
    let kind = |name, connections, comes| Kind {
        name,
        connections,
        comes,
        comes_once: None,
        with: Value::Null,
        at_nobody: false,
    };
    let grpc = site.over_grpc(&served, from)?;
    let over_grpc = |name, comes| Kind { with: grpc.clone(), ..kind(name, context.choose(8, 2), comes) };
    let several = context.choose(100, 4);
    let kinds = [
        kind("flood", several, &["200"]),
        Kind { with: json!({"key": site.keys[3]}), ..kind("flood-wide", several, &["200"]) },
        over_grpc("grpc-flood", &["grpc 0"]),
        over_grpc("grpc-malformed", &["grpc 3 malformed"]),
        // After each that was too large its tenant's are unpacked more slowly, until none comes to its end in a round.
        Kind {
            comes_once: Some("grpc 8 too_large"),
            ..over_grpc("grpc-bombs", &["grpc 8 too_large", "unanswered at the end"])
        },
        kind("explain", several, &["200"]),
        Kind { with: json!({"model": served.task}), ..kind("malformed", several, &["400"]) },
        kind("wrong-keys", several, &["401"]),
        kind("oversized", context.choose(16, 4), &["413"]),
        kind("slow", context.choose(500, 50), &["408", "closed", "open to the end"]),
        kind("connections", many, &["open to the end"]),
        Kind {
            with: json!({"at": closer(from)?}),
            at_nobody: true,
            ..kind("connections", many, &["closed", "open to the end"])
        },
    ];
    let stream = |key: &str| {
        let mut stream = served.stream(LATENCY_MS);
        stream["key"] = json!(key);
        stream
    };
    let mut load = demo::load(context, &site.server, &[stream(&site.keys[0]), stream(&site.keys[1])])?;
    load.ask(&json!({"do": "learn"}))?;
    let target = format!("/v1/tasks/{}?latency_ms={LATENCY_MS}", served.task);
    let bytes = (demo::TENSOR_FLOATS * 4).to_string();
    let address = SocketAddr::new(from, site.server.address().port()).to_string();
    let mut attacker =
        Side::start(&context.bench_program("http-attack")?, &[&address, &site.keys[2], &target, &bytes])?;

    let (mut rows, mut results, mut summary) = (Vec::new(), Vec::new(), Map::new());
    let (mut lost, mut all, mut idle) = (0, Vec::new(), 0);
    for kind in &kinds {
        let (mut ratios, mut once) = (Vec::new(), kind.comes_once.is_none());
        for round in 0..rounds {
            let question =
                json!({"do": "paced", "per_second": [rate, rate], "ms": ms, "seed": context.seed + round});
            let calm = load.ask(&question)?;
            let (beside, attack) = attacked(&mut load, &question, &mut attacker, kind, ms)?;
            for seen in [&calm, &beside] {
                lost += losses(seen)?;
            }
            idle += usize::from(!kind.hit(&attack));
            once |= kind.comes_once.is_some_and(|what| came(&attack, what));
            for tenant in 0..2 {
                ratios.push(p99(&beside, tenant)? / p99(&calm, tenant)?);
            }
            rows.push(json!({
                "kind": kind.title(), "connections": kind.connections, "calm": demo::bare(calm),
                "beside": demo::bare(beside), "attack": attack,
            }));
        }
        idle += usize::from(!once);
        let of = |percent| stats::percentile(&ratios, percent).context("no rounds");
        let (median, worst) = (of(50)?, of(100)?);
        if !kind.at_nobody {
            all.push(median);
        }
        results.push(format!("{} {median:.2} (worst {worst:.2})", kind.title()));
        summary.insert(kind.title(), json!({"p99_ratio_median": median, "p99_ratio_worst": worst}));
    }
    drop((load, attacker));
    summary.insert(
        "attacks_come_from".to_owned(),
        json!(if from.is_loopback() { "loopback" } else { "another address" }),
    );
    site.server.stop()?;
    let count = |of: usize| u32::try_from(of).map(f64::from);
    Ok(Outcome {
        seeds: (0..rounds).map(|round| context.seed + round).collect(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: format!(
            "p99 of two tenants over that without an attack: {}; {lost} of their queries lost, {} things of theirs readable",
            results.join(", "),
            read.len()
        ),
        checks: vec![
            Check {
                what: "p99 beside the worst kind of attack over that without",
                value: all.into_iter().fold(0.0, f64::max),
                limit: context.choose(1.3, 100.0),
                unit: "",
            },
            Check { what: "queries of others lost", value: count(lost)?, limit: 0.0, unit: "" },
            Check { what: "attacks of which nothing came", value: count(idle)?, limit: 0.0, unit: "" },
            Check { what: "things of others read", value: count(read.len())?, limit: 0.0, unit: "" },
        ],
    })
}

impl Kind {
    fn title(&self) -> String {
        if self.at_nobody { format!("{} at nobody", self.name) } else { self.name.to_owned() }
    }

    /// Whether what came back shows that it reached what it was to attack.
    fn hit(&self, attack: &Value) -> bool {
        self.comes.iter().any(|what| came(attack, what))
    }

    /// What the attacker is told.
    fn question(&self, ms: u64) -> Result<Value> {
        let mut question = json!({"do": self.name, "connections": self.connections, "ms": ms});
        let Some(all) = question.as_object_mut() else { bail!("made as an object; this is a bug") };
        all.extend(self.with.as_object().cloned().unwrap_or_default());
        Ok(question)
    }
}

fn came(attack: &Value, what: &str) -> bool {
    attack[what].as_u64().is_some_and(|times| times > 0)
}

/// Takes connections and closes them, as long as this process runs.
fn closer(at: IpAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((at, 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    Ok(address)
}

/// Words that stand in what is the first one's alone.
const PLANTED: &str = "planted";

/// A server with four tenants, of which two have a model each, and the first much else.
struct Site {
    server: Server,
    /// Of the four.
    keys: [String; 4],
    data: modelless_testkit::TempDir,
}

impl Site {
    fn open(context: &Context, served: &Model) -> Result<Self> {
        let (data, binary) = (temp_dir("attack")?, context.binary()?);
        let folder = data.path().to_str().context("a path that is text")?;
        let scopes = ["--scopes", "query,register,admin"];
        let first = [&["key", "create", "operator", "--data", folder][..], &scopes].concat();
        let operator = run(binary, &first, "")?;
        let server = Server::builder().binary(binary).data(data.path()).http("0.0.0.0:0");
        let server = server.arg("--grpc").arg("0.0.0.0:0").arg("--insecure").start()?;
        let url = format!("http://127.0.0.1:{}", server.address().port());
        let at = ["--server", url.as_str()];
        let key = |tenant: &str| {
            run(binary, &[&["tenant", "create", tenant][..], &at].concat(), &operator)?;
            let name = if tenant == "first" { format!("{PLANTED}-key") } else { tenant.to_owned() };
            let key = ["key", "create", &name, "--tenant", tenant];
            run(binary, &[&key[..], &scopes, &at].concat(), &operator)
        };
        let keys = [key("first")?, key("second")?, key("third")?, key("wide")?];
        let package = served.package.to_str().context("a path that is text")?;
        for key in &keys[..2] {
            run(binary, &[&["model", "register", package][..], &at].concat(), key)?;
        }
        for (tenant, open) in [("third", &["--concurrency", OPEN][..]), ("wide", &[])] {
            let limit = ["tenant", "limit", tenant, "--requests-per-s", RATE];
            run(binary, &[&limit[..], open, &at].concat(), &operator)?;
        }
        Ok(Self { server, keys, data })
    }

    /// What a flood over gRPC has to know.
    fn over_grpc(&self, served: &Model, from: IpAddr) -> Result<Value> {
        let told: SocketAddr = self.server.told("grpc ")?.parse()?;
        let input = served.inputs()[0].clone();
        Ok(json!({"at": SocketAddr::new(from, told.port()), "model": served.task, "input": input}))
    }

    fn admin(&self, args: &[&str], key: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}", self.server.address().port());
        run(self.server.binary(), &[args, &["--server", &url]].concat(), key)
    }

    /// Something of each kind that the first has, by the name under which a route knows it.
    fn planted(&self, served: &Model) -> Result<Vec<(&'static str, String)>> {
        let first = &self.keys[0];
        let ask = |request: Request| self.server.send(&request.header("api-key", first));
        let query =
            demo::tensor_request(served.task, demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(1)));
        let answered = ask(query)?;
        let query =
            answered.header("modelless-query-id").context("the number of an answered query")?.to_owned();
        let inputs = self.data.path().join("inputs.jsonl");
        let line = json!({"inputs": [vec![vec![0.5; 28]; 28]], "name": format!("{PLANTED}-input")});
        std::fs::write(&inputs, line.to_string())?;
        let (inputs, outputs) = (inputs.to_string_lossy(), self.data.path().join("outputs"));
        let name = format!("{PLANTED}-job");
        let job = ["job", "submit", served.task, "--input", &inputs, "--output", &outputs.to_string_lossy()];
        let told = self.admin(&[&job[..], &["--name", &name, "--json"]].concat(), first)?;
        let job: Value = serde_json::from_str(&told).with_context(|| format!("a job in {told}"))?;
        let seen = |path: &str| ask(Request::get(path))?.json();
        let variants = seen(&format!("/v1/models/{}/{}", served.task, served.name))?;
        let variant = &variants["versions"][0]["variants"][0];
        let sha256 = variant["artefact"]["sha256"].as_str().context("a file's digest")?;
        let keys = seen("/v1/keys")?;
        let key = keys["keys"][0]["id"].as_u64().with_context(|| format!("a key in {keys}"))?;
        let nodes = seen("/v1/nodes")?;
        let node = nodes["nodes"][0]["name"].as_str().unwrap_or("local").to_owned();
        Ok(vec![
            ("{task}", served.task.to_owned()),
            ("{model}", served.name.to_owned()),
            ("{variant}", served.variant.to_owned()),
            ("{version}", variant["id"].to_string()),
            ("{job}", job["job"].to_string()),
            ("{query}", query),
            ("{sha256}", sha256.to_owned()),
            ("{key}", key.to_string()),
            ("{tenant}", "first".to_owned()),
            ("{node}", node),
            ("{plan}", "1".to_owned()),
            ("{region}", "none".to_owned()),
        ])
    }

    /// What the third gets to see, or may do to, what the first has, by the routes it asks.
    fn readable(&self) -> Result<Vec<String>> {
        let served = cnn_m(Path::new(""));
        let planted = self.planted(&served)?;
        let is_theirs = |path: &str| {
            let of = ["{task}", "{model}", "{variant}", "{job}", "{query}", "{sha256}", "{key}", "{tenant}"];
            of.iter().any(|name| path.contains(name))
        };
        let document = self.server.get_json("/openapi.json")?;
        let mut read = Vec::new();
        for operation in openapi::operations(&document)? {
            let path =
                planted.iter().fold(operation.path.clone(), |path, (name, value)| path.replace(name, value));
            ensure!(!path.contains('{'), "nothing stands for a part of {path}");
            let body = if path.ends_with("/feedback") { json!({"verdict": "wrong"}) } else { json!({}) };
            let request = Request::new(&operation.method, &path).header("api-key", &self.keys[2]).json(&body);
            let answer = self.server.send(&request)?;
            let text = answer.text();
            // A refusal may repeat what was asked for, which is a name of theirs; what was planted was asked for by no name.
            let answers = answer.status < 300 && path != "/openapi.json";
            let shows = text.contains(served.name) || is_theirs(&operation.path);
            if text.contains(PLANTED) || answers && shows {
                say(format!("{} {path}: {text}", operation.method));
                read.push(path);
            }
        }
        let still =
            Request::get(&format!("/v1/jobs/{}/outputs", planted[4].1)).header("api-key", &self.keys[0]);
        let still = self.server.send(&still)?;
        ensure!(still.text().contains(PLANTED), "what was planted cannot be seen by its owner: {still}");
        Ok(read)
    }
}

fn run(binary: &Path, args: &[&str], key: &str) -> Result<String> {
    let output = Command::new(binary).args(args).env("MODELLESS_KEY", key).output()?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The address by which others would reach this machine. Nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_unspecified())
}

fn attacked(
    load: &mut Side,
    question: &Value,
    attacker: &mut Side,
    kind: &Kind,
    ms: u64,
) -> Result<(Value, Value)> {
    std::thread::scope(|scope| {
        let ahead = u64::try_from(AHEAD.as_millis())?;
        let attack = kind.question(ms + 2 * ahead)?;
        let attacking = scope.spawn(move || attacker.ask(&attack));
        std::thread::sleep(AHEAD);
        let seen = load.ask(question)?;
        let attack = attacking.join().map_err(|_| anyhow::anyhow!("the attack's thread panicked"))??;
        Ok((seen, attack))
    })
}

fn losses(seen: &Value) -> Result<usize> {
    let streams = seen["streams"].as_array().context("what was seen of both")?;
    let lost = streams.iter().flat_map(|stream| stream["lost"].as_object().into_iter().flatten());
    let lost: u64 = lost.filter_map(|(_, times)| times.as_u64()).sum();
    let wrong: u64 = streams.iter().filter_map(|stream| stream["wrong"].as_u64()).sum();
    Ok(usize::try_from(lost + wrong)?)
}

fn p99(seen: &Value, tenant: usize) -> Result<f64> {
    seen["streams"][tenant]["latency"]["p99_us"].as_f64().context("nothing was answered")
}
