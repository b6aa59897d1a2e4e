//! A throw-away Postgres: really the server, on a free loopback port, gone when the value is dropped.
//!
//! A shell script in a process group of its own holds the server and waits for the end of its input. Whatever
//! ends us (a return, a panic, Ctrl-C, SIGKILL), that pipe closes, the script stops the server and removes the
//! folder. `initdb` refuses root, so under root all of it runs as `postgres` or `nobody`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::lines::{Lines, Waited};
use crate::{process, wait};

const START_WITHIN: Duration = Duration::from_mins(1);
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// Runs the server until the input ends, then stops it (SIGINT is Postgres' fast shutdown) and clears up. Until then it
/// kills the server or starts it again when told so.
const KEEPER: &str = r#"
run() {
    "$1/postgres" -D "$2/data" -k "$2" -h 127.0.0.1 -p "$3" -c fsync=off -c synchronous_commit=off \
        -c full_page_writes=off -c max_connections=200 -c shared_buffers=32MB </dev/null &
    server=$!
}
run "$@"
while read -r word; do
    case "$word" in
        kill) kill -KILL "$server" 2>/dev/null; wait "$server" 2>/dev/null ;;
        start) kill -0 "$server" 2>/dev/null || run "$@" ;;
    esac
done
kill -INT "$server" 2>/dev/null
wait "$server" 2>/dev/null
cd / && rm -rf "$2"
"#;

pub struct Postgres {
    keeper: Child,
    folder: PathBuf,
    url: String,
    address: SocketAddr,
}

impl Postgres {
    /// Makes a new cluster in a temporary folder and starts it.
    pub fn start() -> Result<Self> {
        let bin = find_binaries().context(
            "no Postgres server found: install it (Debian: `apt-get install postgresql`), put the folder of \
             `postgres` and `initdb` in PATH, or set MODELLESS_TEST_POSTGRES to a database that may be written to",
        )?;
        // Somebody may take the port between our look and the server's: then try another.
        let mut last = None;
        for _ in 0..3 {
            match Self::start_on(&bin, crate::free_port()?) {
                Ok(server) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made; this is a bug")?)
    }

    fn start_on(bin: &Path, port: u16) -> Result<Self> {
        let user = unprivileged_user()?;
        // The keeper removes the folder, also when this process is long gone.
        let folder = crate::temp_dir("postgres")?.keep();
        let result = Self::start_in(bin, port, &folder, user);
        if result.is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        result
    }

    fn start_in(bin: &Path, port: u16, folder: &Path, user: Option<(u32, u32)>) -> Result<Self> {
        let password = random_hex()?;
        let password_file = folder.join("password");
        fs::write(&password_file, &password)?;
        fs::set_permissions(&password_file, fs::Permissions::from_mode(0o600))?;
        if let Some((uid, gid)) = user {
            chown(folder, Some(uid), Some(gid))?;
            chown(&password_file, Some(uid), Some(gid))?;
        }
        let as_user = |program: &Path| {
            let mut command = Command::new(program);
            command.current_dir(folder).env("LC_ALL", "C").env_remove("PGDATA");
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };

        let made = as_user(&bin.join("initdb"))
            .args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"])
            .arg("--pwfile")
            .arg(&password_file)
            .arg("--pgdata")
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {}", bin.join("initdb").display()))?;
        ensure!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr).trim());

        let mut keeper = as_user(Path::new("/bin/sh"))
            .args(["-c", KEEPER, "postgres-keeper"])
            .arg(bin)
            .arg(folder)
            .arg(port.to_string())
            .process_group(0) // Ctrl-C is for us; the keeper sees our end through its input
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting the Postgres keeper")?;
        let log = Lines::follow(keeper.stderr.take().context("the keeper's stderr is piped; this is a bug")?);
        let url = format!("postgres://postgres:{password}@127.0.0.1:{port}/postgres");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = Self { keeper, folder: folder.to_owned(), url, address };

        let ended = |line: &str| {
            line.contains("database system is ready to accept connections") || line.contains("FATAL:")
        };
        match log.wait_for(ended, START_WITHIN) {
            Waited::Line(line, _) if !line.contains("FATAL:") => Ok(server),
            Waited::Line(..) | Waited::Closed | Waited::TimedOut => {
                bail!("Postgres did not start on port {port}; it wrote:\n{}", log.tail())
            }
        }
    }

    /// `postgres://user:password@127.0.0.1:port/postgres`, a superuser of an empty cluster.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends it as a crash would. What was committed is there again after [`Postgres::start_again`].
    pub fn kill(&mut self) -> Result<()> {
        self.tell("kill")?;
        wait::until(STOP_WITHIN, || match TcpStream::connect(self.address) {
            Ok(_) => Ok(Err("it takes connections".to_owned())),
            Err(_) => Ok(Ok(())),
        })
        .context("Postgres did not end on SIGKILL")
    }

    /// Starts it again on its port, with its data.
    pub fn start_again(&mut self) -> Result<()> {
        let mut asked = None::<Instant>;
        let address = self.address;
        wait::until(START_WITHIN, || {
            let greeted = greet(address);
            if matches!(greeted, Ok(b'R')) {
                return Ok(Ok(()));
            }
            // The first attempt may find processes of the one that was killed, and give up.
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(1)) {
                self.tell("start")?;
                asked = Some(Instant::now());
            }
            Ok(Err(format!("{greeted:?}")))
        })
        .with_context(|| format!("Postgres did not start again on {address}"))
    }

    fn tell(&mut self, word: &str) -> Result<()> {
        let keeper = self.keeper.stdin.as_mut().context("the keeper's stdin is piped; this is a bug")?;
        writeln!(keeper, "{word}").context("telling the Postgres keeper")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if !matches!(process::wait(&mut self.keeper, STOP_WITHIN), Ok(Some(_))) {
            let group = rustix::process::Pid::from_child(&self.keeper);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.keeper.wait();
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The folder that holds `postgres` and `initdb`: from PATH, else where Debian puts the newest version.
pub fn find_binaries() -> Option<PathBuf> {
    let has_both = |folder: &PathBuf| folder.join("postgres").is_file() && folder.join("initdb").is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&path).find(has_both) {
        return Some(found);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .filter(|(_, folder)| has_both(folder))
        .collect();
    found.sort();
    found.pop().map(|(_, folder)| folder)
}

/// A client program (`psql`, `pg_dump`): the one that belongs to the server that is found, so that they understand each other;
/// else the one in PATH, for a server elsewhere.
pub fn program(name: &str) -> PathBuf {
    let beside = find_binaries().map(|folder| folder.join(name));
    beside.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(name))
}

/// Whom to run as: nobody else, unless we are root.
fn unprivileged_user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users =
        fs::read_to_string("/etc/passwd").context("reading /etc/passwd for a user to run Postgres as")?;
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| ids_of(&users, name))
        .map(Some)
        .context("Postgres refuses to run as root, and /etc/passwd has neither `postgres` nor `nobody`")
}

/// `name:x:uid:gid:...`
fn ids_of(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let fields: Vec<&str> =
        passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name)?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

fn random_hex() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

/// Sends one start-up packet, as any client does first, and gives the kind of the server's answer.
pub fn greet(address: SocketAddr) -> Result<u8> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    let body = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(body.len() + 4)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(body)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    Ok(kind[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_ids_of_a_user() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib:/bin/sh\n";
        assert_eq!(ids_of(passwd, "postgres"), Some((101, 104)));
        assert_eq!(ids_of(passwd, "nobody"), None);
    }

    #[test]
    fn clients_are_those_of_the_server_that_is_found() {
        let Some(folder) = find_binaries() else { return assert_eq!(program("psql"), Path::new("psql")) };
        assert_eq!(program("initdb"), folder.join("initdb"));
        assert_eq!(program("not_there"), Path::new("not_there"), "from PATH, then");
    }

    #[test]
    fn a_server_asks_for_a_password_comes_back_when_killed_and_leaves_nothing_behind() {
        if find_binaries().is_none() && std::env::var_os("MODELLESS_TEST_POSTGRES").is_some() {
            return; // a server elsewhere was given on purpose; there is none here to start
        }
        let server = Postgres::start().unwrap();
        let port: u16 = server.url().rsplit([':', '/']).nth(1).unwrap().parse().unwrap();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(greet(address).unwrap(), b'R', "an authentication request");
        let folder = server.folder.clone();
        assert!(folder.exists());
        let mut server = server;
        server.kill().unwrap();
        assert!(greet(address).is_err());
        server.start_again().unwrap();
        assert_eq!(greet(address).unwrap(), b'R', "it is back");
        drop(server);
        assert!(!folder.exists());
        assert!(greet(address).is_err());
    }
}
