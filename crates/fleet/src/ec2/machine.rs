//! The script that machines run, run: with a program that only says what it is told, and a metadata service of the test's.

use super::config::{Join, Secrets};
use super::join::{Told, user_data};
use modelless_testkit::{TempDir, wait};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Says what it was told, and ends when it is asked to; or at once, where that is what the test wants.
const PROGRAM: &str = r#"#!/bin/sh
echo "told $* $MODELLESS_DATABASE"
[ -e "$0.fails" ] && exit 3
trap 'echo drained; exit 0' TERM
while [ -e "$0" ]; do sleep 0.1; done
"#;
/// All that the script may call: this machine is not to be shut down, whatever a test does.
const TOOLS: [&str; 12] =
    ["cat", "chmod", "cp", "curl", "date", "dirname", "mkdir", "mv", "rm", "sh", "sleep", "wc"];

struct Machine {
    folder: TempDir,
    /// All that its user data has started.
    group: Option<Pid>,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().expect("a folder to write to"), group: None };
        let off = format!("#!/bin/sh\n: >'{}'\n", machine.path("off").display());
        for (name, text) in [("modelless", PROGRAM), ("shutdown", &off)] {
            let path = machine.path(name);
            fs::write(&path, text).expect("a folder to write to");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        for tool in TOOLS {
            let places = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(tool));
            let place = places.iter().find(|place| place.exists()).expect(tool);
            symlink(place, machine.path(tool)).expect("a folder to write to");
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Runs its user data, as cloud-init does.
    fn boot(&mut self) {
        let text = |name: &str| self.path(name).display().to_string();
        let join = Join {
            program: text("modelless"),
            environment_file: text("secrets/environment"),
            key_file: text("secrets/key"),
            secrets: Secrets::UserData,
            metadata: self.metadata(),
            ..Join::default()
        };
        let environment = vec![("MODELLESS_DATABASE".to_owned(), "it's \"here\"".to_owned())];
        let told = Told { cluster: "blue".to_owned(), environment, key: Some("KEY".to_owned()) };
        let script = user_data(&join, &told, &["executor.name=p-1".to_owned()]).expect("a script");
        fs::write(self.path("user-data"), script).expect("a folder to write to");
        let mut sh = Command::new("sh");
        sh.arg(self.path("user-data"))
            .env_clear()
            .env("PATH", self.folder.path())
            .env("log", self.path("log"))
            .process_group(0);
        let mut sh = sh.spawn().expect("a shell");
        self.group = i32::try_from(sh.id()).ok().and_then(Pid::from_raw);
        assert!(sh.wait().expect("a shell").success(), "cloud-init goes on");
    }

    /// Until the test ends. The machine has to go when there is a file that says so.
    fn metadata(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("it has one"));
        let going = self.path("going");
        std::thread::spawn(move || {
            for line in listener.incoming().flatten() {
                let _ = tell(line, going.exists());
            }
        });
        url
    }

    fn says(&self, what: &str) {
        let told = || Ok(if self.log().contains(what) { Ok(()) } else { Err(self.log()) });
        wait::until(Duration::from_secs(30), told).expect(what);
    }

    fn is_off(&self) {
        let off = || Ok(if self.path("off").exists() { Ok(()) } else { Err(self.log()) });
        wait::until(Duration::from_secs(30), off).expect("it shuts itself down");
    }
}

impl Drop for Machine {
    /// The script runs on beside whoever started it; its power is cut, however the test ends.
    fn drop(&mut self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn tell(mut line: TcpStream, going: bool) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(line.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match head.split_whitespace().nth(1) {
        Some("/latest/api/token") if head.starts_with("PUT") => (200, "t"),
        _ if !head.to_ascii_lowercase().contains("x-aws-ec2-metadata-token: t\r\n") => (401, ""),
        Some("/latest/meta-data/local-ipv4") => (200, "10.0.0.9"),
        Some("/latest/meta-data/spot/instance-action") if going => (200, "{\"action\": \"terminate\"}"),
        _ => (404, ""),
    };
    write!(line, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

#[test]
fn a_machine_starts_its_executor_drains_it_when_ec2_takes_it_back_and_shuts_itself_down() {
    let mut machine = Machine::new();
    machine.boot();
    machine.says(
        "told executor --set cluster=blue --set listen=0.0.0.0:7400 --set advertise=10.0.0.9:7400 --set executor.name=p-1",
    );
    machine.says("it's \"here\"");
    let mode = fs::metadata(machine.path("secrets/key")).expect("it is written").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else reads a key");
    assert!(!machine.path("off").exists() && !machine.log().contains("drained"));
    fs::write(machine.path("going"), "").expect("a folder to write to");
    machine.is_off();
    let log = machine.log();
    assert!(log.contains("EC2 takes this machine back") && log.contains("drained"), "{log}");
    assert!(log.contains("the executor ended with 0"), "{log}");
}

#[test]
fn a_machine_whose_executor_cannot_start_tries_three_times_and_shuts_itself_down() {
    let mut machine = Machine::new();
    fs::write(machine.path("modelless.fails"), "").expect("a folder to write to");
    machine.boot();
    machine.is_off();
    let log = machine.log();
    assert_eq!(log.matches("told executor").count(), 3, "{log}");
    assert!(log.contains("the executor ended with 3; this machine ends"), "{log}");
}
