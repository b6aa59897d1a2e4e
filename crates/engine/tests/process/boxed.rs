//! A program of others in a box: what it may do works, what it may not fails, with each layer left out in turn where
//! another stands behind it.

use crate::runner;
use modelless_engine::{Boxed, Entered, Layer, LayerState, Sandbox};
use modelless_types::Bytes;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder that may be written, one that may be read, and one that is nobody's business.
struct Places {
    _root: TempDir,
    write: PathBuf,
    read: PathBuf,
    secret: PathBuf,
}

fn places() -> Places {
    let root = tempfile::tempdir().unwrap();
    let [write, read, secret] = ["write", "read", "secret"].map(|name| {
        let path = root.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("there"), name).unwrap();
        path
    });
    Places { _root: root, write, read, secret }
}

/// Where Python and the libraries of this system are.
fn system() -> Vec<PathBuf> {
    let asked = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sep='\\n')"])
        .output()
        .unwrap();
    let known = String::from_utf8(asked.stdout).unwrap();
    let all = known.lines().map(PathBuf::from);
    all.chain(["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom"].map(PathBuf::from))
        .collect()
}

/// Runs Python in a box.
fn python(places: &Places, change: impl FnOnce(&mut Boxed), code: &str) -> Output {
    let mut boxed = Boxed {
        read: system(),
        write: vec![places.write.clone()],
        memory: Bytes::from_mib(512),
        file: Bytes::from_mib(1),
        cpu_seconds: 20,
        sandbox: Sandbox::default(),
        unboxed: false,
    };
    let python = boxed.read[0].clone();
    boxed.read.push(places.read.clone());
    change(&mut boxed);
    let mut command = Command::new(runner());
    command.arg("boxed").arg(boxed.argument()).arg(python).args(["-I", "-S", "-c", code]);
    command.arg(&places.write).arg(&places.read).arg(&places.secret).output().unwrap()
}

/// Each try must fail for want of permission; prints the names of those that worked.
const TRIES: &str = r##"
import ctypes, os, socket, sys
write, read, secret = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def tries():
    yield "reads elsewhere", lambda: open(secret + "/there").read()
    yield "lists elsewhere", lambda: os.listdir(secret)
    yield "writes what it may read", lambda: open(read + "/there", "w")
    yield "writes elsewhere", lambda: open(secret + "/new", "w")
    yield "removes elsewhere", lambda: os.remove(secret + "/there")
    yield "changes modes elsewhere", lambda: os.chmod(secret + "/there", 0o777)
    yield "links elsewhere", lambda: os.link(secret + "/there", write + "/linked")
    yield "a stream", lambda: socket.create_connection(("127.0.0.1", int(os.environ.get("PORT", "9"))), 1)
    yield "a datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
    yield "a local socket", lambda: socket.socket(socket.AF_UNIX)
    yield "a process", lambda: os.fork() or os._exit(0)
    yield "a program", lambda: os.posix_spawn("/bin/true", ["true"], {})
    yield "a signal", lambda: os.kill(os.getppid(), 0)
    yield "a namespace", lambda: call(272, 0x10000000) if os.uname().machine == "x86_64" else os.fork()
    yield "a call of another kind", lambda: call(0x40000000 | 39)
    yield "runs what it wrote", lambda: run_own()
def run_own():
    with open(write + "/own", "w") as file:
        file.write("#!/bin/true\n")
    os.chmod(write + "/own", 0o700)
    os.execv(write + "/own", ["own"])
for name, attempt in tries():
    try:
        attempt()
        print("WORKED", name)
    except OSError as error:
        print("refused", name, error.errno)
"##;

fn said(output: &Output) -> (Entered, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (first, rest) = text
        .split_once('\n')
        .unwrap_or_else(|| panic!("it said nothing: {}", String::from_utf8_lossy(&output.stderr)));
    (serde_json::from_str(first).unwrap(), rest.to_owned())
}

#[test]
fn a_program_in_a_box_writes_its_folder_and_computes() {
    let places = places();
    let code = "import sys, threading\n\
        open(sys.argv[1] + '/made', 'w').write(open(sys.argv[2] + '/there').read())\n\
        t = threading.Thread(target=lambda: print('a thread')); t.start(); t.join()\n\
        import os; os.replace(sys.argv[1] + '/made', sys.argv[1] + '/final')";
    let output = python(&places, |_| {}, code);
    let (entered, rest) = said(&output);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(entered.boxed.warnings_of_box().is_empty(), "{:?}", entered.boxed);
    assert_eq!(rest.trim(), "a thread");
    assert_eq!(fs::read_to_string(places.write.join("final")).unwrap(), "read");
}

#[test]
fn a_program_in_a_box_reaches_nothing_else() {
    let places = places();
    let output = python(&places, |_| {}, TRIES);
    let (_, rest) = said(&output);
    assert!(!rest.contains("WORKED"), "{rest}");
    // Told apart from a kernel that does not have them.
    let expected = if cfg!(target_arch = "x86_64") { "refused a call of another kind 1\n" } else { "" };
    assert!(rest.contains(expected), "{rest}");
    assert_eq!(rest.lines().count(), 16, "{rest}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(places.secret.join("there")).unwrap(), "secret");
}

/// With either one alone the network stays out of reach, and with landlock alone files do.
#[test]
fn each_of_two_layers_closes_what_both_of_them_cover() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let tries = format!("import os; os.environ['PORT'] = '{port}'\n{TRIES}");
    for (left_out, holds) in [
        (Layer::Seccomp, ["reads elsewhere", "writes elsewhere", "a stream", "a signal"].as_slice()),
        (Layer::Landlock, &["a stream", "a datagram", "a process", "a signal", "changes modes elsewhere"]),
    ] {
        let places = places();
        let output = python(&places, |boxed| leave_out(boxed, left_out, true), &tries);
        let (entered, rest) = said(&output);
        assert_eq!(entered.boxed.layers[&left_out], LayerState::Off);
        for what in holds {
            assert!(rest.contains(&format!("refused {what} ")), "without {left_out:?}: {what}:\n{rest}");
        }
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "a connection came through");
}

fn leave_out(boxed: &mut Boxed, layer: Layer, unboxed: bool) {
    boxed.sandbox = Sandbox::without([layer]);
    boxed.unboxed = unboxed;
}

#[test]
fn without_a_layer_nothing_is_run_unless_it_was_said_to_do() {
    for left_out in [Layer::Landlock, Layer::Seccomp, Layer::Limits, Layer::Capabilities] {
        let places = places();
        let run = |unboxed| python(&places, |boxed| leave_out(boxed, left_out, unboxed), "print('it runs')");
        let output = run(false);
        let (entered, rest) = said(&output);
        assert!(entered.boxed.missing_of_box().concat().contains(left_out.name()), "{:?}", entered.boxed);
        assert!(rest.is_empty() && !output.status.success(), "without {left_out:?}: {rest}");
        assert_eq!(said(&run(true)).1.trim(), "it runs");
    }
}

#[test]
fn memory_files_and_time_have_an_end() {
    let places = places();
    let memory =
        python(&places, |_| {}, "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    print('none')");
    assert_eq!(said(&memory).1.trim(), "none");
    let file = "import sys\ntry:\n    open(sys.argv[1] + '/big', 'wb').write(bytes(2 << 20))\nexcept OSError as e:\n    print(e.errno)";
    assert_eq!(said(&python(&places, |_| {}, file)).1.trim(), "27");
    let time = python(&places, |boxed| boxed.cpu_seconds = 1, "while True: pass");
    assert!(!time.status.success());
}
