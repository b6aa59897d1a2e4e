//! What a runner cannot do, tried from inside.
//!
//! [`stoppers`] says which layers stop what. It is held against all combinations of layers, so a layer that does
//! nothing, or one that is thought to be needed and is not, is found.

use super::*;
use modelless_engine::{Layer, LayerState, Sandbox};
use modelless_types::Bytes;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use Layer::{Capabilities, Landlock, Limits, Seccomp, Undumpable};

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EFBIG: i32 = 27;

/// Beyond what ONNX Runtime needs to start, below what the probe asks for.
const LIMIT: Bytes = Bytes::from_mib(1_024);

/// What its model may touch: more than any engine holds when it has started.
const MEASURED: Bytes = Bytes::from_mib(192);

/// What the kernel lets a runner with one variant have that may touch so much, by what an engine says of it.
fn bound(touched: Bytes) -> u64 {
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    touched.0 * 3 / 2 + (Bytes::from_mib(256) + Bytes::from_mib(8 * 2 * cores)).0
}

/// What the kernel adds to a process's share of memory when it chooses whom to end.
fn goes_by(process: &str) -> i32 {
    std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

/// Every attempt of the probe with the layers of which each alone stops it, and what it says where the filter of system
/// calls (which says `EPERM` to everything) is not there.
fn stoppers(rights: Rights) -> Vec<(&'static str, Vec<Layer>, i32)> {
    // These rights pass by a layer, for as long as the runner keeps them.
    let unless = |right: bool, layer| if right { vec![] } else { vec![layer] };
    let with = |mut layers: Vec<Layer>, more: Vec<Layer>| {
        layers.extend(more);
        layers
    };
    vec![
        ("read a file of the host", vec![Landlock, Seccomp], EACCES),
        ("read another model", vec![Landlock, Seccomp], EACCES),
        ("create a file", vec![Landlock, Seccomp], EACCES),
        ("fill a file", vec![Landlock, Seccomp, Limits], EACCES),
        ("look whether a file is there", vec![Seccomp], EPERM),
        ("change who may read a file", vec![Seccomp], EPERM),
        ("connect by TCP", vec![Landlock, Seccomp], EACCES),
        ("connect by TCP to where it may", vec![Landlock, Seccomp], EACCES),
        ("listen on TCP", vec![Landlock, Seccomp], EACCES),
        ("listen on a Unix socket", vec![Seccomp], EPERM),
        ("send a datagram", vec![Seccomp], EPERM),
        ("connect to an abstract Unix socket", vec![Landlock, Seccomp], EPERM),
        ("connect to a Unix socket", vec![Seccomp], EPERM),
        ("trace a sibling", with(vec![Landlock, Seccomp], unless(rights.trace(), Undumpable)), EPERM),
        ("read a sibling's memory", with(vec![Landlock, Seccomp], unless(rights.trace(), Undumpable)), EPERM),
        (
            "open a sibling's memory",
            with(vec![Landlock, Seccomp], unless(rights.trace(), Undumpable)),
            EACCES,
        ),
        // Whoever has no rights does not look into who has some.
        (
            "read the parent's environment",
            with(vec![Landlock, Seccomp], unless(!rights.any(), Capabilities)),
            EACCES,
        ),
        ("signal a sibling", vec![Landlock, Seccomp], EPERM),
        ("signal the parent", vec![Landlock, Seccomp], EPERM),
        ("tie a sibling to a core", vec![Seccomp], EPERM),
        ("put a sibling behind all others", vec![Seccomp], EPERM),
        ("make a pair of sockets", vec![Seccomp], EPERM),
        ("change a sibling's limits", vec![Seccomp], EPERM),
        ("find something open that it was not given", vec![], EPERM),
        ("start a process", vec![Seccomp], EPERM),
        ("run a program", vec![Landlock, Seccomp], EACCES),
        ("make code at run time", vec![Seccomp], EPERM),
        ("make a file in memory", vec![Seccomp], EPERM),
        ("come before others", if rights.nice() { vec![Capabilities, Seccomp] } else { vec![] }, EACCES),
        ("take too much memory", vec![Limits], ENOMEM),
        ("take more memory than its model needs", vec![Limits], ENOMEM),
        ("take memory that no limit counts", vec![Seccomp], EPERM),
        // A process whose memory is hidden has files of root's in /proc.
        (
            "be ended no sooner than the executor",
            with(vec![Landlock, Seccomp], unless(is_root(), Undumpable)),
            EACCES,
        ),
        ("raise its limit to the node's", vec![Seccomp], EPERM),
        ("raise its own limit", with(vec![Seccomp], unless(rights.limits(), Limits)), EPERM),
    ]
}

/// The layers that stop an attempt when these are entered: some only together.
fn stops(attempt: &str, mut alone: Vec<Layer>, entered: &BTreeSet<Layer>, rights: Rights) -> bool {
    if entered.contains(&Capabilities) {
        match attempt {
            "trace a sibling" | "read a sibling's memory" | "open a sibling's memory" => {
                alone.push(Undumpable);
            }
            "raise its own limit" => alone.push(Limits),
            // What was raised with that right is lowered with it only.
            "be ended no sooner than the executor" if rights.limits() && entered.contains(&Limits) => {
                alone.push(Limits);
            }
            _ => {}
        }
    }
    // The system itself does not let everybody do it.
    let never = attempt == "find something open that it was not given"
        || (attempt == "come before others" && !rights.nice());
    never || alone.iter().any(|layer| entered.contains(layer))
}

/// Tries everything in a runner without these layers, on a sibling without them.
async fn probe(without: &BTreeSet<Layer>) -> BTreeMap<String, i32> {
    probe_of(Kind::Onnx, without, None).await
}

/// The same in a runner of an engine, which may connect to one port.
async fn probe_of(kind: Kind, without: &BTreeSet<Layer>, allowed: Option<u16>) -> BTreeMap<String, i32> {
    probe_in(kind, without, allowed, false).await
}

/// The same, maybe in a runner for models on GPUs.
async fn probe_in(
    kind: Kind,
    without: &BTreeSet<Layer>,
    allowed: Option<u16>,
    gpu: bool,
) -> BTreeMap<String, i32> {
    let sandbox = Sandbox { without: without.clone() };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    std::fs::copy(models().join("echo.onnx"), &model).unwrap();
    let sibling = engine_with(|config| config.sandbox = sandbox.clone());
    load(&sibling, 1, "echo.onnx").await;
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let name = format!("modelless-probe-{}", folder.path().file_name().unwrap().display());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let path = folder.path().join("socket");
    let _path = UnixListener::bind(&path).unwrap();
    // Open, and by mistake not to be closed in programs that this process starts.
    let _leak = rustix::io::dup(&tcp).unwrap();
    let pid = sibling.runners()[0].pid.unwrap();
    let targets = json!({
        "sibling": pid,
        "address": address(pid),
        "parent": std::process::id(),
        "file": model,
        "folder": folder.path(),
        "tcp": tcp.local_addr().unwrap().port(),
        "allowed": allowed,
        "udp": udp.local_addr().unwrap().port(),
        "unix_abstract": name,
        "unix_path": path,
        "too_much": 2 * LIMIT.0,
        "more_than_measured": bound(MEASURED) + Bytes::from_mib(64).0,
        "goes_by": goes_by("self"),
    });
    let prober = engine_of(kind, |config| {
        config.sandbox = sandbox;
        config.memory_limit = Some(LIMIT);
        config.gpu = gpu;
        config.command = if kind == Kind::Torch {
            vec![torch_probe(), "probe".to_owned(), targets.to_string()]
        } else {
            vec![runner(), "probe".to_owned(), targets.to_string(), kind.name().to_owned()]
        };
    });
    let measured = LoadSpec { memory_limit: Some(MEASURED), ..spec(2, "echo.onnx") };
    let said = refused(&prober, measured).await;
    let confinement = prober.confinement().unwrap();
    for layer in Layer::ALL {
        let found = &confinement.layers[&layer];
        match (without.contains(&layer), gpu && layer == Seccomp) {
            (true, _) => assert_eq!(*found, LayerState::Off, "{}", layer.name()),
            (false, false) => assert_eq!(*found, LayerState::On, "{}", layer.name()),
            (false, true) => assert!(matches!(found, LayerState::Partly(_)), "{found:?}"),
        }
    }
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Torch's runner with the probe in it, which is linked to its library.
fn torch_probe() -> String {
    std::env::var("MODELLESS_TEST_TORCH_PROBE").unwrap_or_else(|_| {
        panic!("MODELLESS_TEST_TORCH_PROBE names no program; `cargo xtask test --only torch` builds one")
    })
}

/// An address that is mapped in a process; any, where this user may not know.
fn address(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let first = maps.split('-').next().unwrap_or_default();
    u64::from_str_radix(first, 16).unwrap_or(0x1000)
}

/// Root's rights that these tests, and so their runners at first, have. In a container root has only some.
#[derive(Clone, Copy, Debug)]
struct Rights(u64);

impl Rights {
    fn own() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        Self(u64::from_str_radix(line.trim(), 16).unwrap())
    }

    fn any(self) -> bool {
        self.0 != 0
    }

    fn trace(self) -> bool {
        self.0 & 1 << 19 != 0
    }

    fn nice(self) -> bool {
        self.0 & 1 << 23 != 0
    }

    fn limits(self) -> bool {
        self.0 & 1 << 24 != 0
    }
}

fn is_root() -> bool {
    // The owner of what is this process's own.
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

#[tokio::test]
async fn a_hostile_model_can_do_nothing() {
    let rights = Rights::own();
    let tried = probe(&BTreeSet::new()).await;
    assert_eq!(tried.len(), stoppers(rights).len(), "{tried:?}");
    for (attempt, errno) in &tried {
        let expected = if TOO_MUCH.contains(&attempt.as_str()) { ENOMEM } else { EPERM };
        assert_eq!(*errno, expected, "{attempt}");
    }
}

/// What the limits of memory stop, in their own way.
const TOO_MUCH: [&str; 2] = ["take too much memory", "take more memory than its model needs"];

#[tokio::test]
async fn a_runner_goes_before_the_executor_where_memory_ends() {
    let own = goes_by("self");
    for (without, expected) in [(BTreeSet::new(), (own + 500).min(1_000)), (BTreeSet::from([Limits]), own)] {
        let engine = engine_with(|config| config.sandbox = Sandbox { without });
        load(&engine, 1, "echo.onnx").await;
        let pid = engine.runners()[0].pid.unwrap();
        assert_eq!(goes_by(&pid.to_string()), expected);
    }
}

#[tokio::test]
async fn a_runner_that_needs_one_connection_gets_that_and_nothing_else() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let allowed = server.local_addr().unwrap().port();
    for (attempt, errno) in probe_of(Kind::Onnx, &BTreeSet::new(), Some(allowed)).await {
        let expected = match attempt.as_str() {
            "connect by TCP to where it may" => 0,
            // To another port: a matter of landlock's, for the call is allowed.
            "connect by TCP" => EACCES,
            much if TOO_MUCH.contains(&much) => ENOMEM,
            _ => EPERM,
        };
        assert_eq!(errno, expected, "{attempt}");
    }
}

/// A driver's calls cannot be listed: what reaches out is forbidden all the same, by this layer or by another.
#[tokio::test]
async fn a_model_on_a_gpu_reaches_no_file_no_network_and_no_other_process() {
    for (attempt, errno) in probe_in(Kind::Onnx, &BTreeSet::new(), None, true).await {
        let expected: &[i32] = match attempt.as_str() {
            // The holes: landlock does not hide names, and a driver makes code, shares memory and offers that to others.
            "look whether a file is there"
            | "listen on a Unix socket"
            | "make code at run time"
            | "make a file in memory"
            | "take memory that no limit counts"
            // Nor is it held to what its model needs: a driver reserves many times what it touches.
            | "take more memory than its model needs" => &[0],
            "take too much memory" => &[ENOMEM],
            _ => &[EPERM, EACCES],
        };
        assert!(expected.contains(&errno), "{attempt}: {errno}");
    }
}

/// Without landlock the filter of such a runner still keeps it from the network, from programs and from other processes.
#[tokio::test]
async fn the_filter_of_a_model_on_a_gpu_stops_by_itself_what_reaches_other_processes() {
    let without = BTreeSet::from([Landlock, Limits, Capabilities, Undumpable]);
    let tried = probe_in(Kind::Onnx, &without, None, true).await;
    for attempt in [
        "change who may read a file",
        "connect by TCP",
        "listen on TCP",
        "send a datagram",
        "connect to an abstract Unix socket",
        "connect to a Unix socket",
        "trace a sibling",
        "read a sibling's memory",
        "signal a sibling",
        "signal the parent",
        "tie a sibling to a core",
        "put a sibling behind all others",
        "make a pair of sockets",
        "change a sibling's limits",
        "start a process",
        "run a program",
        "raise its own limit",
    ] {
        assert_eq!(tried[attempt], EPERM, "{attempt}");
    }
    assert_eq!(tried["read a file of the host"], 0, "files are landlock's matter here");
}

/// What the filter of system calls leaves to an engine that opens its parts late and makes code.
const LATE: [&str; 6] = [
    "read a file of the host",
    "read another model",
    "open a sibling's memory",
    "read the parent's environment",
    "look whether a file is there",
    "make code at run time",
];

/// What landlock alone keeps from an engine that opens its parts late, and what such an engine may do.
async fn reads_its_own_parts_only(kind: Kind) {
    for (attempt, errno) in probe_of(kind, &BTreeSet::new(), None).await {
        let expected = match attempt.as_str() {
            "look whether a file is there" | "make code at run time" => 0,
            much if TOO_MUCH.contains(&much) => ENOMEM,
            late if LATE.contains(&late) => EACCES,
            _ => EPERM,
        };
        assert_eq!(errno, expected, "{kind}: {attempt}");
    }
}

#[tokio::test]
async fn openvino_reads_its_own_parts_only() {
    reads_its_own_parts_only(Kind::Openvino).await;
}

#[cfg(feature = "conformance-torch")]
#[tokio::test]
async fn torch_reads_its_own_parts_only() {
    reads_its_own_parts_only(Kind::Torch).await;
}

#[tokio::test]
async fn every_layer_stops_what_it_should_and_nothing_else_does() {
    every_layer_stops_what_it_should(Kind::Onnx, |_| true).await;
}

/// Each layer alone, and all but each: what they do is the same code as for the others, but not the same library.
fn few(without: usize) -> bool {
    without <= 1 || without + 1 >= Layer::ALL.len()
}

#[tokio::test]
async fn every_layer_stops_what_it_should_in_openvino() {
    every_layer_stops_what_it_should(Kind::Openvino, few).await;
}

#[cfg(feature = "conformance-torch")]
#[tokio::test]
async fn every_layer_stops_what_it_should_in_torch() {
    every_layer_stops_what_it_should(Kind::Torch, few).await;
}

/// In all combinations of layers of which so many are left out.
async fn every_layer_stops_what_it_should(kind: Kind, tried: fn(usize) -> bool) {
    let rights = Rights::own();
    let late: &[&str] = if kind == Kind::Onnx { &[] } else { &LATE };
    let mut table = stoppers(rights);
    for (attempt, alone, _) in &mut table {
        alone.retain(|layer| *layer != Seccomp || !late.contains(attempt));
    }
    for bits in (0..1_u32 << Layer::ALL.len()).filter(|bits| tried(bits.count_ones() as usize)) {
        let chosen = Layer::ALL.into_iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
        let without: BTreeSet<Layer> = chosen.map(|(_, layer)| layer).collect();
        let entered: BTreeSet<Layer> =
            Layer::ALL.into_iter().filter(|layer| !without.contains(layer)).collect();
        let tried = probe_of(kind, &without, None).await;
        for (attempt, alone, otherwise) in &table {
            let errno = tried[*attempt];
            let stopped = stops(attempt, alone.clone(), &entered, rights);
            let expected = match (stopped, *attempt) {
                (false, _) => 0,
                (true, much) if TOO_MUCH.contains(&much) => ENOMEM,
                (true, late_one) if late.contains(&late_one) => *otherwise,
                (true, _) if entered.contains(&Seccomp) => EPERM,
                (true, "fill a file") if !entered.contains(&Landlock) => EFBIG,
                (true, _) => *otherwise,
            };
            assert_eq!(errno, expected, "{kind}: {attempt}, without {without:?}, {rights:?}");
        }
    }
}

/// What might depend on rights: confining, watching memory, and giving way.
const ALSO_FOR_OTHERS: [&str; 4] = [
    "isolation::a_hostile_model_can_do_nothing",
    "isolation::every_layer_stops_what_it_should_and_nothing_else_does",
    "misbehaviour::a_model_that_eats_memory_is_stopped_and_told_why_while_others_serve",
    "beside::a_load_beside_a_model_that_is_served_gives_way_for_so_long_and_no_longer",
];

/// Root can do what others cannot, so what holds for one says little about the other.
#[test]
fn the_same_holds_for_another_user() {
    if !is_root() {
        return; // that is who runs this
    }
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    open(folder.path());
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        std::fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        open(&to);
        to
    };
    let library = Library::locate(None, &default_engines_dir()).unwrap().path;
    let library = copy(&library, &library.file_name().unwrap().to_string_lossy());
    let program = copy(&std::env::current_exe().unwrap(), "tests");
    let runner = copy(Path::new(&runner()), "runner");
    for model in ["echo.onnx", "eats.onnx"] {
        copy(&models().join(model), model);
    }
    let nobody = 65_534;
    let output = Command::new(program)
        .args(ALSO_FOR_OTHERS)
        .arg("--test-threads=1")
        .env_clear()
        .env("ORT_DYLIB_PATH", library)
        .env("MODELLESS_TEST_RUNNER", runner)
        .env("MODELLESS_TEST_MODELS", folder.path())
        .current_dir(folder.path())
        .gid(nobody)
        .uid(nobody)
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(&format!("{} passed", ALSO_FOR_OTHERS.len())), "{said}");
}
