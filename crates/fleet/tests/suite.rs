//! What every provider must do, and what is each one's own.

use modelless_fleet::{
    Command, CommandConfig, Error, Fleet, Instance, MemFleet, MemMachines, Process, ProcessConfig, Wanted,
};
use modelless_testkit::wait;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

#[cfg(feature = "conformance-kubernetes")]
#[path = "kubernetes/suite.rs"]
mod kubernetes;
#[cfg(feature = "conformance-moto")]
#[path = "moto/suite.rs"]
mod moto;

const SOON: Duration = Duration::from_secs(20);

/// A provider, and others like it: the same seen from another process, for another pool, of another cluster.
trait Place {
    type Of: Fleet;
    fn open(&self, cluster: &str, pool: &str) -> Self::Of;
}

fn wanted(name: &str) -> Wanted {
    Wanted { name: name.to_owned(), settings: vec![format!("executor.name={name}")] }
}

/// On one runtime for the whole process: a provider's connections end with the one that it was first asked on.
fn block<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().build().expect("a runtime")
    });
    RUNTIME.block_on(future)
}

fn soon(what: &str, mut look: impl FnMut() -> bool) {
    wait::until(SOON, || Ok(if look() { Ok(()) } else { Err(what.to_owned()) })).expect("it works");
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn names(fleet: &dyn Fleet) -> Vec<String> {
    let mut names: Vec<String> =
        block(fleet.list()).expect("it works").into_iter().map(|known| known.name).collect();
    names.sort_unstable();
    names
}

fn gone(fleet: &dyn Fleet, instance: &Instance) {
    soon("it is listed still", || {
        block(fleet.stop(&instance.id)).expect("it works");
        !names(fleet).contains(&instance.name)
    });
}

fn holds(place: &impl Place) {
    let fleet = place.open("c", "p");
    assert!(names(&fleet).is_empty());
    let one = block(fleet.start(&wanted("p-1"))).expect("it works");
    let two = block(fleet.start(&wanted("p-2"))).expect("it works");
    assert_eq!((one.name.as_str(), one.ending), ("p-1", false));
    assert_ne!(one.id, two.id);
    soon("they are not listed", || names(&fleet) == ["p-1", "p-2"]);

    // Whoever asked may have been killed before it heard the answer.
    let again = place.open("c", "p");
    // Who did not start it cannot tell a process that turns into another program from one that ends: for a moment it is not seen.
    soon("whoever comes later does not find them again", || names(&again) == ["p-1", "p-2"]);
    assert_eq!(
        block(again.start(&wanted("p-1"))).expect("it works").id,
        one.id,
        "the same one, and no second"
    );
    assert_eq!(names(&again).len(), 2);

    let (pool, cluster) = (place.open("c", "q"), place.open("d", "p"));
    assert!(names(&pool).is_empty() && names(&cluster).is_empty(), "each sees its own only");
    let other = block(pool.start(&wanted("q-1"))).expect("it works");

    gone(&again, &one);
    block(again.stop(&one.id)).expect("it works");
    assert_eq!(names(&fleet), ["p-2"]);
    gone(&fleet, &two);
    gone(&pool, &other);
}

impl Place for MemMachines {
    type Of = MemFleet;
    fn open(&self, cluster: &str, pool: &str) -> MemFleet {
        self.of(cluster, pool)
    }
}

#[test]
fn the_fake_is_a_provider() {
    holds(&MemMachines::default());
}

struct Processes {
    logs: TempDir,
    program: String,
    ends_within: Duration,
}

impl Processes {
    fn of(program: &str) -> Self {
        let logs = tempfile::tempdir().expect("a folder to write to");
        Self { logs, program: program.to_owned(), ends_within: SOON }
    }
}

impl Place for Processes {
    type Of = Process;
    fn open(&self, cluster: &str, pool: &str) -> Process {
        // Tests run side by side on one machine.
        let cluster = format!("{cluster}-{}", self.logs.path().file_name().expect("a name").display());
        Process::new(ProcessConfig {
            cluster,
            pool: pool.to_owned(),
            command: ["sh", "-c", &self.program].map(ToOwned::to_owned).into(),
            environment: vec![("COLOUR".to_owned(), "green".to_owned())],
            logs: self.logs.path().to_owned(),
            ends_within: self.ends_within,
        })
    }
}

#[test]
fn local_processes_are_a_provider() {
    holds(&Processes::of("exec sleep 1000"));
}

#[test]
fn a_local_process_is_told_its_settings_and_writes_to_a_file_of_its_own() {
    let place = Processes::of(r#"echo "$COLOUR $0 $1"; exec sleep 1000"#);
    let fleet = place.open("c", "p");
    let one = block(fleet.start(&wanted("p-1"))).expect("it works");
    let log = place.logs.path().join("p-1.log");
    soon("it wrote nothing", || text(&log) == "green --set executor.name=p-1\n");
    gone(&fleet, &one);
}

#[test]
fn of_local_processes_that_ended_long_ago_no_output_is_kept() {
    let place = Processes::of("exec sleep 1000");
    let fleet = place.open("c", "p");
    let there = block(fleet.start(&wanted("p-1"))).expect("it works");
    let log = |name: &str| place.logs.path().join(name);
    for n in 2..=104 {
        fs::write(log(&format!("p-{n}.log")), "old").expect("it is written");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + n);
        File::options()
            .append(true)
            .open(log(&format!("p-{n}.log")))
            .and_then(|file| file.set_modified(at))
            .expect("it is old");
    }
    for other in ["q-1.log", "p-x.log", "p-1.txt"] {
        fs::write(log(other), "not of this pool").expect("it is written");
    }
    let one = block(fleet.start(&wanted("p-105"))).expect("it works");
    let left = |name: &str| log(name).exists();
    assert_eq!([2, 3, 4, 5, 6].map(|n| left(&format!("p-{n}.log"))), [false, false, false, true, true]);
    assert!(left("p-1.log"), "that one is there still");
    assert!(["q-1.log", "p-x.log", "p-1.txt", "p-105.log"].into_iter().all(left));
    gone(&fleet, &one);
    gone(&fleet, &there);
}

#[test]
fn a_local_process_is_listed_from_its_start_on_without_a_gap() {
    // It becomes another program over and over, and in between it has no environment.
    let place = Processes::of("exec sh -c 'exec sh -c \"exec sh -c \\\"exec sleep 1000\\\"\"'");
    let fleet = place.open("c", "p");
    for n in 1..=20 {
        let one = block(fleet.start(&wanted(&format!("p-{n}")))).expect("it works");
        for _ in 0..20 {
            assert_eq!(names(&fleet), [&*one.name]);
        }
        gone(&fleet, &one);
    }
}

#[test]
fn a_local_process_that_does_not_end_is_killed_when_its_time_is_over_and_not_before() {
    let place =
        Processes { ends_within: Duration::ZERO, ..Processes::of("trap '' TERM; echo up; exec sleep 1000") };
    let fleet = place.open("c", "p");
    let one = block(fleet.start(&wanted("p-1"))).expect("it works");
    let log = place.logs.path().join("p-1.log");
    soon("it is not up", || text(&log) == "up\n");
    block(fleet.stop(&one.id)).expect("it works");
    let listed = block(fleet.list()).expect("it works");
    assert_eq!(listed, [Instance { ending: true, ..one.clone() }], "it was only asked");
    gone(&fleet, &one);
}

#[test]
fn a_local_process_that_ended_by_itself_is_not_there_any_more() {
    let place = Processes::of("exit 3");
    let fleet = place.open("c", "p");
    block(fleet.start(&wanted("p-1"))).expect("it works");
    soon("it is listed still", || names(&fleet).is_empty());
}

#[test]
fn what_cannot_be_started_is_refused_by_name() {
    let logs = tempfile::tempdir().expect("a folder to write to");
    let command = vec!["/nowhere/modelless".to_owned()];
    let (cluster, pool, environment) = ("c".to_owned(), "p".to_owned(), Vec::new());
    let logs = logs.path().to_owned();
    let fleet = Process::new(ProcessConfig { cluster, pool, command, environment, logs, ends_within: SOON });
    let error = block(fleet.start(&wanted("p-1"))).expect_err("it fails");
    assert!(matches!(&error, Error::Refused(why) if why.contains("/nowhere/modelless")), "{error}");
}

/// A user's script, which keeps its machines as files.
const SCRIPT: &str = r#"
folder=$1; what=$2
question=$(cat)
said() { printf '%s' "$question" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
prefix="$(said cluster).$(said pool)."
case $what in
    start)
        name=$(said name)
        : > "$folder/$prefix$name"
        printf '{"instance": {"id": "%s", "name": "%s"}}' "$prefix$name" "$name" ;;
    list)
        printf '{"instances": ['
        comma=
        for file in "$folder/$prefix"*; do
            [ -e "$file" ] || continue
            id=${file##*/}
            printf '%s{"id": "%s", "name": "%s"}' "$comma" "$id" "${id#"$prefix"}"
            comma=,
        done
        printf ']}' ;;
    stop) rm -f "$folder/$(said id)"; printf '{"stopped": true}' ;;
esac
"#;

struct Scripts {
    folder: TempDir,
    script: PathBuf,
}

impl Scripts {
    fn of(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder to write to");
        std::fs::create_dir(folder.path().join("machines")).expect("a folder to write to");
        let script = folder.path().join("machines.sh");
        std::fs::write(&script, text).expect("a folder to write to");
        Self { folder, script }
    }

    fn command(&self) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        vec!["sh".to_owned(), path(&self.script), path(&self.folder.path().join("machines"))]
    }
}

impl Place for Scripts {
    type Of = Command;
    fn open(&self, cluster: &str, pool: &str) -> Command {
        let command = self.command();
        let (cluster, pool) = (cluster.to_owned(), pool.to_owned());
        Command::new(CommandConfig { cluster, pool, command, within: Duration::from_secs(10) })
    }
}

#[test]
fn a_users_script_is_a_provider() {
    holds(&Scripts::of(SCRIPT));
}

fn fails(text: &str) -> Error {
    block(Scripts::of(text).open("c", "p").start(&wanted("p-1"))).expect_err("it fails")
}

#[test]
fn a_script_says_why_and_what_is_no_answer_is_told_with_what_it_wrote() {
    for (kind, expected) in [
        ("capacity", Error::Capacity("none".into())),
        ("quota", Error::Quota("none".into())),
        ("refused", Error::Refused("none".into())),
        ("throttled", Error::Throttled("none".into())),
        ("away", Error::Away("none".into())),
    ] {
        let text = format!(r#"echo '{{"error": {{"kind": "{kind}", "message": "none"}}}}'; exit 1"#);
        assert_eq!(fails(&text), expected);
    }
    let error = fails("echo nonsense; echo 'no credentials' >&2; exit 1").to_string();
    assert!(error.contains("nonsense") && error.contains("no credentials"), "{error}");
    let failed = fails(r#"echo '{"instance": {"id": "x", "name": "p-1"}}'; exit 1"#);
    assert!(matches!(&failed, Error::Away(why) if why.contains("failed all the same")), "{failed}");
    let other = fails(r#"echo '{"instance": {"id": "x", "name": "p-2"}}'"#);
    assert!(other.is_passing(), "another machine than was asked for: {other}");
}

#[test]
fn a_script_that_hangs_is_killed_with_what_it_started() {
    let place = Scripts::of("echo $$ > \"$1/pid\"; sleep 1000 & wait");
    let config = CommandConfig {
        cluster: "c".into(),
        pool: "p".into(),
        command: place.command(),
        within: Duration::from_secs(1),
    };
    let error = block(Command::new(config).list()).expect_err("it fails");
    assert!(matches!(&error, Error::Away(why) if why.contains("did not end within 1 s")), "{error}");
    let group = text(&place.folder.path().join("machines/pid"));
    let in_group = |entry: std::io::Result<std::fs::DirEntry>| {
        let stat = text(&entry.ok()?.path().join("stat"));
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let alive = fields.next()? != "Z";
        (alive && fields.nth(1)? == group.trim()).then_some(())
    };
    soon("what it started runs on", || {
        std::fs::read_dir("/proc").expect("it works").filter_map(in_group).count() == 0
    });
}

#[test]
fn what_is_asked_for_never_meets_a_shell() {
    let place = Scripts::of(r#"cat > "$1/asked"; echo '{"instances": []}'"#);
    let fleet = place.open("$(touch /tmp/x); `id`", "p");
    assert!(block(fleet.list()).expect("it works").is_empty());
    let asked = text(&place.folder.path().join("machines/asked"));
    assert!(asked.contains("$(touch /tmp/x); `id`"), "{asked}");
}
