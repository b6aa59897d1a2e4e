//! A program of others in a box: it reads what it is given, writes one folder, and reaches nothing else.
//!
//! For tools that turn a model into others, whose libraries were written to open files and start what they like. A runner
//! confines itself when its library is open; such a program cannot be asked to, so a process of ours does it and then becomes
//! the program. All of it survives that, and is inherited by whatever the program could start; it can start nothing.

use super::{Confinement, Layer, Policy, Sandbox, State, close_inherited, denied, files, limits};
use modelless_types::Bytes;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What a program of others may do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boxed {
    /// Files and folders that it may read, and run.
    pub read: Vec<PathBuf>,
    /// Folders in which it may make, write and remove files.
    pub write: Vec<PathBuf>,
    /// Memory that it alone can write to.
    pub memory: Bytes,
    /// The largest file that it may write.
    pub file: Bytes,
    /// Seconds of one processor, after which it is ended.
    pub cpu_seconds: u64,
    /// Layers that are left out: for tests.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// It runs even where a layer does not stand.
    #[serde(default)]
    pub unboxed: bool,
}

/// Address space beyond the memory that is its own: libraries and files that are mapped, and what allocators reserve.
const MAPPED: u64 = 8 << 30;

/// Its niceness: whatever serves on this machine comes first.
const NICE: i32 = 10;

/// The line on standard output that says how it is confined, before the program's own.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entered {
    /// Which layers stand.
    pub boxed: Confinement,
}

impl Boxed {
    /// What to put before a program and its arguments, behind the name of this program and the word that leads to
    /// [`boxed_main`].
    pub fn argument(&self) -> OsString {
        serde_json::to_string(self).expect("it has no maps; this is a bug").into()
    }
}

/// Enters a box and becomes a program: the arguments are a [`Boxed`] as JSON, the program by its path, and its arguments.
/// Returns only if that fails.
pub fn boxed_main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    close_inherited();
    let policy = args.next().map(|text| serde_json::from_str::<Boxed>(&text.to_string_lossy()));
    let (Some(Ok(boxed)), Some(program)) = (policy, args.next()) else {
        eprintln!("a box takes what is allowed as JSON, a program and its arguments");
        return ExitCode::FAILURE;
    };
    let entered = Entered { boxed: enter(&boxed) };
    let missing = !boxed.unboxed && !entered.boxed.missing_of_box().is_empty();
    let said = serde_json::to_string(&entered).expect("its keys are names; this is a bug");
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{said}").and_then(|()| out.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    drop(out);
    if missing {
        // Whoever listens knows from that line what is missing, and says it.
        return ExitCode::FAILURE;
    }
    let error = Command::new(&program).args(args).exec();
    eprintln!("{} cannot be run: {error}", program.to_string_lossy());
    ExitCode::FAILURE
}

fn enter(boxed: &Boxed) -> Confinement {
    // It would go on writing beside whoever starts anew. What cannot be had of this is no layer of the box.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let policy = Policy { read: boxed.read.clone(), write: boxed.write.clone(), ..Policy::default() };
    let privileges = rustix::thread::set_no_new_privs(true);
    let _ = rustix::process::nice(NICE);
    let mut confinement = Confinement::default();
    for layer in [Layer::Limits, Layer::Capabilities, Layer::Landlock, Layer::Seccomp] {
        let state = if boxed.sandbox.without.contains(&layer) {
            State::Off
        } else {
            match (layer, &privileges) {
                (Layer::Landlock | Layer::Seccomp, Err(error)) => {
                    State::Missing(format!("no_new_privs: {error}"))
                }
                (Layer::Limits, _) => limits::of_others(
                    boxed.memory,
                    boxed.memory.0.saturating_add(MAPPED),
                    boxed.file,
                    boxed.cpu_seconds,
                ),
                (Layer::Capabilities, _) => limits::drop_capabilities(),
                (Layer::Landlock, Ok(())) => files::close(&policy, true),
                (Layer::Seccomp, Ok(())) => denied::filter(),
                // What becomes another program is dumpable again. Landlock keeps other runners out of it.
                (Layer::Undumpable, _) => State::Off,
            }
        };
        confinement.layers.insert(layer, state);
    }
    confinement
}

impl Confinement {
    /// Layers of a box that do not stand, and why: nothing is run without them unless somebody said so. One that stands with
    /// a hole is not among them.
    pub fn missing_of_box(&self) -> Vec<String> {
        let of_box = Layer::ALL.into_iter().filter(|layer| *layer != Layer::Undumpable);
        let missing = |layer: Layer| match self.layers.get(&layer) {
            Some(State::On | State::Partly(_)) => None,
            Some(State::Missing(why)) => Some(format!("{}: {why}", layer.name())),
            Some(State::Off) | None => Some(format!("{}: left out", layer.name())),
        };
        of_box.filter_map(missing).collect()
    }

    /// What is to be said of a box: nothing if all of its layers stand.
    pub fn warnings_of_box(&self) -> Vec<String> {
        let mut known = self.clone();
        known.layers.insert(Layer::Undumpable, State::On);
        known.warnings()
    }
}
