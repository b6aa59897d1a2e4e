//! The guide to clusters (`docs/cluster.md`): every command in it, in its order, in one shell. Only addresses are others than
//! it says (free ports, a database and a Redis of our own), and the registered model has two variants instead of twelve.

use crate::database::{drop_database, postgres};
use crate::registering;
use anyhow::{Context, Result, bail, ensure};
use modelless_testkit::{Redis, free_port, process, server};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(200);
/// Where the guide's processes listen.
const PORTS: [&str; 5] = ["8080", "8081", "7401", "7402", "7403"];
/// Whatever ends the shell ends what it started.
const AROUND: &str = "trap 'kill -KILL $(jobs -p) 2> /dev/null || true' EXIT\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The blocks of a language, one after the other.
fn blocks(guide: &str, language: &str) -> String {
    let open = format!("```{language}");
    let (mut inside, mut text) = (false, String::new());
    for line in guide.lines() {
        if inside && line == "```" {
            inside = false;
        } else if line == open {
            inside = true;
        } else if inside {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// A place with the guide's files, and what stands in it for the guide's addresses.
struct Place {
    folder: tempfile::TempDir,
    given: Vec<(String, String)>,
    database: String,
    redis: Redis,
}

impl Place {
    fn new() -> Result<Self> {
        let (folder, redis) = (tempfile::tempdir()?, Redis::start()?);
        let database = format!("guide_{}", std::process::id());
        let base = postgres()?;
        let server = base.rsplit_once('/').and_then(|(front, _)| front.rsplit_once('@'));
        let (_, server) = server.context("a database on a server, with a user")?;
        let mut given = vec![
            (
                "postgres://modelless:change-me@127.0.0.1/modelless".to_owned(),
                format!("postgres://{database}:change-me@{server}/{database}"),
            ),
            ("redis://127.0.0.1:6379".to_owned(), redis.url()),
            ("CREATE USER modelless".to_owned(), format!("CREATE USER {database}")),
            (
                "DATABASE modelless OWNER modelless".to_owned(),
                format!("DATABASE {database} OWNER {database}"),
            ),
        ];
        for port in PORTS {
            given.push((format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", free_port()?)));
        }
        let place = Self { folder, given, database, redis };
        place.copy(&root().join("examples/cluster"), &place.folder.path().join("examples/cluster"))?;
        let fashion = place.folder.path().join("examples/fashion");
        registering::package(&fashion)?;
        fs::create_dir_all(fashion.join("pictures"))?;
        fs::copy(root().join("examples/fashion/pictures/boot.png"), fashion.join("pictures/boot.png"))?;
        Ok(place)
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            let name = entry.file_name();
            if path.is_dir() && name == "hosts" {
                self.copy(&path, &target)?;
            } else if path.extension().is_some_and(|extension| extension == "toml") {
                fs::write(target, self.in_place(&fs::read_to_string(path)?))?;
            }
        }
        Ok(())
    }

    /// The same text with our addresses.
    fn in_place(&self, text: &str) -> String {
        let text = self.given.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours));
        // Where the guide names ports alone.
        PORTS.iter().fold(text, |text, port| {
            text.replace(&format!("ready {port}"), &format!("ready {}", self.port(port)))
        })
    }

    fn port<'a>(&'a self, theirs: &'a str) -> &'a str {
        let given = self.given.iter().find(|(name, _)| name.ends_with(&format!(":{theirs}")));
        given.map_or(theirs, |(_, ours)| ours.rsplit(':').next().unwrap_or_default())
    }

    /// What its processes wrote.
    fn logs(&self) -> String {
        let folder = self.folder.path().join("examples/cluster");
        let logs = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let log = |path: PathBuf| {
            format!("--- {}\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default())
        };
        logs.map(log).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.redis.kill();
        let _ = drop_database(&self.database);
    }
}

/// Runs a script in a shell that stops at the first command that fails.
fn run(place: &Place, script: &str) -> Result<String> {
    let (out, binary) = (place.folder.path().join("output"), server::binary()?);
    let bin = binary.parent().context("a program lies in a folder")?;
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let file = fs::File::create(&out)?;
    let mut shell = Command::new("bash")
        .args(["-eu", "-o", "pipefail", "-c", &format!("{AROUND}{script}")])
        .current_dir(place.folder.path())
        .env("PATH", path)
        .env("MODELLESS_LOG", "info")
        .env("MODELLESS_SERVER", format!("http://127.0.0.1:{}", place.port("8080")))
        .envs(libpq(&postgres()?)?)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    let ended = process::wait(&mut shell, WITHIN)?;
    if ended.is_none() {
        process::signal(&shell, process::Signal::TERM)?; // its trap ends the others
        if process::wait(&mut shell, Duration::from_secs(10))?.is_none() {
            shell.kill()?;
        }
    }
    let said = fs::read_to_string(out)?;
    match ended {
        Some(status) if status.success() => Ok(said),
        Some(status) => bail!("the guide's commands ended with {status}:\n{said}\n{}", place.logs()),
        None => bail!("the guide's commands did not end:\n{said}\n{}", place.logs()),
    }
}

/// Where `psql` without an address goes.
fn libpq(url: &str) -> Result<Vec<(&'static str, String)>> {
    let rest = url.split_once("://").context("a URL")?.1;
    let (user, rest) = rest.split_once('@').context("a user")?;
    let (server, name) = rest.split_once('/').context("a database")?;
    let (host, port) = server.split_once(':').unwrap_or((server, "5432"));
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let name = name.split('?').next().unwrap_or_default();
    let pairs = [
        ("PGHOST", host),
        ("PGPORT", port),
        ("PGUSER", user),
        ("PGPASSWORD", password),
        ("PGDATABASE", name),
    ];
    Ok(pairs
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name, value.to_owned()))
        .collect())
}

#[test]
fn every_command_of_the_guide_to_clusters_works() -> Result<()> {
    let guide = fs::read_to_string(root().join("docs/cluster.md"))?;
    let script = blocks(&guide, "sh");
    ensure!(script.lines().count() > 40, "hardly any commands were found:\n{script}");
    let place = Place::new()?;
    let said = run(&place, &place.in_place(&script))?;
    for wanted in [
        "Ankle boot",
        "executor-3",
        "modelless_queries_lost_with_node_total",
        "advertise = \"10.0.0.21:7400\"",
    ] {
        ensure!(said.contains(wanted), "nothing said {wanted:?}:\n{said}");
    }
    // The role that the unit starts is one, with a file that is there.
    let unit = fs::read_to_string(root().join("examples/cluster/hosts/modelless@.service"))?;
    ensure!(unit.contains("modelless %i --config /etc/modelless/%i.toml"), "the unit starts something else");
    Ok(())
}
