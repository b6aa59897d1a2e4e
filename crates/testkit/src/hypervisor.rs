//! What boots the machines that moto only writes down: each in namespaces of its own, with a root folder and an address.
//!
//! It looks at what runs there, waits as a boot takes, and starts the machine's own user data as the first process of a room that has
//! nothing of this one but its programs: mounts, processes, host name and network are the machine's. A machine that shuts itself
//! down is reported to moto, and one that moto has ended is ended. A metadata service tells each its address, and that it has to
//! go, to whoever shows a token. It needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{Moto, Proxy, TempDir, temp_dir};

/// The first process of a machine: makes its root folder of what this machine has of programs, and runs its user data.
const BOOT: &str = r#"
set -e
folder=$1; name=$2; program=$3; engines=$4
hostname "$name"
mount -t tmpfs machine "$folder/root"
cd "$folder/root"
mkdir -p dev etc old opt/bin proc root run sys tmp usr var/log root/.local/share/modelless/engines
for place in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$place" ]; then cp -d "/$place" .; elif [ -d "/$place" ]; then mkdir "$place"; mount --rbind "/$place" "$place"; fi
done
mount --rbind /usr usr
mount --rbind /dev dev
mount --bind /etc etc
mount -o remount,bind,ro etc
mount --rbind /sys sys
mount -t proc proc proc
mount --bind "$folder/log" var/log
: >opt/modelless
mount --bind "$program" opt/modelless
mount --bind "$engines" root/.local/share/modelless/engines
cp "$folder/user-data" var/user-data
printf '#!/bin/sh\n: >/run/off\n' >opt/bin/shutdown
chmod 755 opt/bin/shutdown
pivot_root . old
umount -l /old
exec env -i PATH=/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c '
    sh /var/user-data
    until [ -e /run/off ]; do sleep 0.1; done
'
"#;
/// Whether this process may make such rooms.
pub fn possible() -> bool {
    let rooms = ["--mount", "--pid", "--fork", "--net", "--uts", "ip", "link"];
    let tried = Command::new("unshare").args(rooms).stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

const TOKEN: &str = "only-for-this-machine";

/// Machines end with it.
pub struct Hypervisor {
    shared: Arc<Shared>,
    loops: Vec<JoinHandle<()>>,
    ways: Mutex<Vec<Proxy>>,
}

struct Shared {
    ec2: Arc<Moto>,
    /// Of the addresses that machines have, `10.201.net.*`.
    net: u8,
    folder: TempDir,
    program: PathBuf,
    engines: PathBuf,
    stop: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What a boot takes.
    boot: Duration,
    /// So many of the next machines never boot.
    dead: usize,
    /// When they were first seen.
    seen: BTreeMap<String, Instant>,
    machines: BTreeMap<String, Machine>,
    /// No machine comes back that was there.
    booted: BTreeSet<String>,
    /// Where machines have to go.
    going: BTreeSet<Ipv4Addr>,
    addresses: u8,
    troubles: Vec<String>,
}

struct Machine {
    name: String,
    address: Ipv4Addr,
    room: Child,
    folder: PathBuf,
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("running `ip`, which needs iproute2")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {}`: {} (it needs root)", args.join(" "), said.trim());
    Ok(())
}

impl Hypervisor {
    /// Boots machines with this `modelless`; a boot takes so long.
    pub fn start(ec2: Arc<Moto>, program: &Path, boot: Duration) -> Result<Self> {
        let net = u8::try_from(std::process::id() % 250)? + 1;
        let home = PathBuf::from(std::env::var_os("HOME").context("HOME is set")?);
        let data = std::env::var_os("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from);
        let shared = Arc::new(Shared {
            ec2,
            net,
            folder: temp_dir("hypervisor")?,
            program: fs::canonicalize(program)?,
            engines: data.join("modelless/engines"),
            stop: AtomicBool::new(false),
            state: Mutex::new(State { boot, ..State::default() }),
        });
        let (bridge, address) = (shared.bridge(), format!("{}/24", shared.host()));
        let _ = ip(&["link", "del", &bridge]); // of one that was killed
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["addr", "add", &address, "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])?;
        let listener = TcpListener::bind((shared.host(), 80)).context("listening as a metadata service")?;
        let (telling, booting) = (Arc::clone(&shared), Arc::clone(&shared));
        let loops = vec![
            thread::spawn(move || {
                for line in listener.incoming() {
                    if telling.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Whoever breaks off asks again.
                    let _ = line.map(|line| telling.tell(line).is_ok());
                }
            }),
            thread::spawn(move || booting.run()),
        ];
        Ok(Self { shared, loops, ways: Mutex::default() })
    }

    /// How machines become nodes here.
    pub fn join(&self) -> Value {
        json!({
            "program": "/opt/modelless",
            "environment-file": "/var/modelless/environment",
            "key-file": "/var/modelless/key",
            "secrets": "user-data",
            "metadata": format!("http://{}", self.shared.host()),
        })
    }

    /// The same server for machines, which reach nothing else of this one.
    pub fn reach(&self, url: &str) -> Result<String> {
        let rest = url.split_once("://").context("an address has a scheme")?.1;
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let place = place.split('/').next().unwrap_or_default();
        let way = Proxy::start_on(self.shared.host())?;
        way.lead(place.parse().with_context(|| format!("{place} is an address"))?);
        let url = url.replace(place, &way.address().to_string());
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).push(way);
        Ok(url)
    }

    /// What a machine is called.
    pub fn name(&self, id: &str) -> Result<String> {
        let state = self.shared.state();
        Ok(state.machines.get(id).with_context(|| format!("{id} is not booted"))?.name.clone())
    }

    /// EC2 says that it takes a machine back.
    pub fn take_back(&self, id: &str) -> Result<()> {
        let mut state = self.shared.state();
        let address = state.machines.get(id).with_context(|| format!("{id} is not booted"))?.address;
        state.going.insert(address);
        Ok(())
    }

    /// What a boot takes from now on.
    pub fn boots_within(&self, boot: Duration) {
        self.shared.state().boot = boot;
    }

    /// So many of the next machines never boot, though EC2 has them.
    pub fn leaves_dead(&self, machines: usize) {
        self.shared.state().dead = machines;
    }

    /// What machines wrote, for a failure's message.
    pub fn output(&self) -> String {
        let mut text = self.shared.state().troubles.join("\n");
        let Ok(all) = fs::read_dir(self.shared.folder.path()) else { return text };
        for folder in all.flatten().map(|entry| entry.path()) {
            for log in ["log/modelless-machine.log", "console"] {
                let said = fs::read_to_string(folder.join(log)).unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(30).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                let _ = write!(text, "\n--- {} {log}\n{}", folder.display(), last.join("\n"));
            }
        }
        text
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect((self.shared.host(), 80)); // so that the one who accepts looks up
        for thread in self.loops.drain(..) {
            let _ = thread.join();
        }
        let machines = std::mem::take(&mut self.shared.state().machines);
        for machine in machines.into_values() {
            self.shared.end(machine);
        }
        let _ = ip(&["link", "del", &self.shared.bridge()]);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bridge(&self) -> String {
        format!("mlbr{}", self.net)
    }

    fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 201, self.net, 1)
    }

    /// A machine's network, and its end of the wire.
    fn room(&self, address: Ipv4Addr) -> (String, String, String) {
        let at = format!("{}x{}", self.net, address.octets()[3]);
        (format!("mlns{at}"), format!("mlh{at}"), format!("mlm{at}"))
    }

    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            // A server that does not answer has ended nothing.
            if let Ok(running) = self.ec2.running() {
                self.look(&running);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn look(&self, running: &[Value]) {
        let mut state = self.state();
        let ids: BTreeSet<&str> = running.iter().filter_map(|one| one["id"].as_str()).collect();
        let (mut over, mut off) = (Vec::new(), Vec::new());
        for (id, machine) in &mut state.machines {
            if !ids.contains(id.as_str()) {
                over.push(id.clone());
            } else if !matches!(machine.room.try_wait(), Ok(None)) {
                off.push(id.clone());
            }
        }
        for id in over.iter().chain(&off) {
            if let Some(machine) = state.machines.remove(id) {
                state.going.remove(&machine.address);
                self.end(machine);
            }
        }
        for id in off {
            let told = self.ec2.end(&id);
            state.troubles.extend(told.err().map(|error| format!("{id}: {error:#}")));
        }
        for one in running {
            let Some(id) = one["id"].as_str() else { continue };
            let seen = *state.seen.entry(id.to_owned()).or_insert_with(Instant::now);
            if seen.elapsed() < state.boot || !state.booted.insert(id.to_owned()) {
                continue;
            }
            if state.dead > 0 {
                state.dead -= 1;
                continue;
            }
            state.addresses += 1;
            let address = Ipv4Addr::new(10, 201, self.net, 1 + state.addresses);
            match self.boot(one, id, address) {
                Ok(machine) => drop(state.machines.insert(id.to_owned(), machine)),
                Err(error) => state.troubles.push(format!("booting {id}: {error:#}")),
            }
        }
    }

    fn boot(&self, one: &Value, id: &str, address: Ipv4Addr) -> Result<Machine> {
        let name = one["tags"]["modelless:machine"].as_str().context("it has a name")?.to_owned();
        let folder = self.folder.path().join(id);
        for inner in ["root", "log"] {
            fs::create_dir_all(folder.join(inner))?;
        }
        fs::write(folder.join("user-data"), one["user_data"].as_str().context("it has user data")?)?;
        let (netns, here, there) = self.room(address);
        let _ = ip(&["netns", "del", &netns]); // of one that was killed
        ip(&["netns", "add", &netns])?;
        ip(&["link", "add", &here, "type", "veth", "peer", "name", &there])?;
        ip(&["link", "set", &here, "master", &self.bridge(), "up"])?;
        ip(&["link", "set", &there, "netns", &netns])?;
        ip(&["-n", &netns, "addr", "add", &format!("{address}/24"), "dev", &there])?;
        ip(&["-n", &netns, "link", "set", &there, "up"])?;
        ip(&["-n", &netns, "link", "set", "lo", "up"])?;
        let console = fs::File::create(folder.join("console"))?;
        let spaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc"];
        let mut room = Command::new("ip");
        room.args(["netns", "exec", &netns, "unshare"]).args(spaces).args(["sh", "-c", BOOT, "boot"]);
        room.arg(&folder).arg(&name).arg(&self.program).arg(&self.engines);
        let room = room.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console).spawn()?;
        Ok(Machine { name, address, room, folder })
    }

    /// As when its power is cut.
    fn end(&self, mut machine: Machine) {
        let _ = (machine.room.kill(), machine.room.wait());
        let (netns, here, _) = self.room(machine.address);
        let _ = ip(&["link", "del", &here]);
        let _ = ip(&["netns", "del", &netns]);
        let _ = fs::remove_file(machine.folder.join("user-data"));
    }

    /// Answers one question to the metadata service.
    fn tell(&self, mut line: TcpStream) -> Result<()> {
        line.set_read_timeout(Some(Duration::from_secs(5)))?;
        let IpAddr::V4(address) = line.peer_addr()?.ip() else {
            bail!("machines have addresses of four numbers")
        };
        let mut head = String::new();
        let mut reader = BufReader::new(line.try_clone()?);
        while !head.ends_with("\r\n\r\n") {
            ensure!(reader.read_line(&mut head)? > 0 && head.len() < 10_000, "no question");
        }
        let lower = head.to_ascii_lowercase();
        let shown = lower.contains(&format!("x-aws-ec2-metadata-token: {TOKEN}\r\n"));
        let target = head.split_whitespace().nth(1).unwrap_or_default();
        let (status, body) = match target {
            "/latest/api/token" if head.starts_with("PUT ") && lower.contains("token-ttl-seconds: ") => {
                (200, TOKEN.to_owned())
            }
            _ if !shown => (401, String::new()),
            "/latest/meta-data/local-ipv4" => (200, address.to_string()),
            "/latest/meta-data/spot/instance-action" if self.state().going.contains(&address) => {
                (200, json!({"action": "terminate", "time": "2026-01-01T00:02:00Z"}).to_string())
            }
            _ => (404, String::new()),
        };
        let length = body.len();
        write!(line, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")?;
        Ok(())
    }
}
