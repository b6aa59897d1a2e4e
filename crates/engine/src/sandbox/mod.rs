//! What a runner is kept from. Entered by the runner itself, before anything of a model is in it.
//!
//! A model's file is code by another name, so a runner is treated as hostile: no file, no network, no other process,
//! no more memory than it was given. Several layers stand behind one another, and each is a switch of its own, so that
//! each can be tested alone; the table of which one stops what is in `probe`, and the tests go through all of it.
//!
//! Layers that belong to a thread reach threads that are started later, not those that exist. So they are entered when
//! the library is open and has read what it wants to know of the machine, and before any thread is started.

mod boxed;
mod calls;
mod denied;
mod files;
mod gpu;
mod limits;

pub(crate) use gpu::LIBRARIES;
use modelless_types::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

pub use boxed::{Boxed, Entered, boxed_main};

/// How much a thread that loads gives way to others of its own process, as `nice` counts.
pub(crate) const GIVING_WAY: i32 = 10;

/// One way to confine a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The kernel's landlock: no file, no TCP, no signal, no socket and no memory of processes outside.
    Landlock,
    /// A list of the system calls that an engine needs. All others fail with `EPERM`.
    Seccomp,
    /// Memory, files and core dumps are limited.
    Limits,
    /// No capability of root, if it was started by root.
    Capabilities,
    /// Other processes of the same user cannot read its memory.
    Undumpable,
}

impl Layer {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Landlock, Self::Seccomp, Self::Limits, Self::Capabilities, Self::Undumpable];

    /// What it is called in settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::Limits => "limits",
            Self::Capabilities => "capabilities",
            Self::Undumpable => "undumpable",
        }
    }

    /// What a model can do without it, if the others stand.
    fn without(self) -> &'static str {
        match self {
            Self::Landlock => {
                "only the filter of system calls keeps models from files, the network and other processes"
            }
            Self::Seccomp => {
                "models can start processes, send datagrams, and look at which files there are on this machine"
            }
            Self::Limits => "models can take all memory of this machine before they are noticed",
            Self::Capabilities => "models run with the rights of this user, root's included",
            Self::Undumpable => {
                "only the filter of system calls and landlock keep models from each other's memory"
            }
        }
    }
}

/// Which layers runners enter. For tests and debugging: everybody else wants all of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// Layers that are left out.
    pub without: BTreeSet<Layer>,
}

impl Sandbox {
    /// All layers but these.
    pub fn without(layers: impl IntoIterator<Item = Layer>) -> Self {
        Self { without: layers.into_iter().collect() }
    }
}

/// What an engine needs beyond what it has open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Policy {
    /// Files and folders it may read: libraries that it opens late. None: it can open no file at all.
    pub(crate) read: Vec<PathBuf>,
    /// Folders in which it may make, write and remove files.
    pub(crate) write: Vec<PathBuf>,
    /// It may make code at run time.
    pub(crate) code: bool,
    /// The one TCP port it may connect to.
    pub(crate) connect: Option<u16>,
    /// Private memory, in all.
    pub(crate) memory: Option<Bytes>,
    /// It may reach the driver of this machine's GPUs.
    pub(crate) gpu: bool,
}

/// What became of a layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It stands.
    On,
    /// It stands with a hole.
    Partly(String),
    /// It was left out on purpose.
    Off,
    /// This kernel does not have it, or refused it.
    Missing(String),
}

/// How a runner is confined.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Confinement {
    /// Every layer, and what became of it.
    pub layers: BTreeMap<Layer, State>,
}

impl Confinement {
    /// Every layer stands.
    pub fn is_whole(&self) -> bool {
        Layer::ALL.iter().all(|layer| self.layers.get(layer) == Some(&State::On))
    }

    /// What is to be said to whoever registers models here: nothing if all is well.
    pub fn warnings(&self) -> Vec<String> {
        let mut said = Vec::new();
        for layer in Layer::ALL {
            let (name, without) = (layer.name(), layer.without());
            match self.layers.get(&layer) {
                Some(State::On) => {}
                Some(State::Partly(why)) => {
                    said.push(format!("models are confined with a hole: {name}: {why}"));
                }
                Some(State::Off) => {
                    said.push(format!("models run without {name}, which is switched off: {without}"));
                }
                Some(State::Missing(why)) => {
                    said.push(format!("models run without {name} ({why}): {without}"));
                }
                None => said.push(format!("models run without {name}: {without}")),
            }
        }
        said
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, layer) in Layer::ALL.into_iter().enumerate() {
            let state = match self.layers.get(&layer) {
                Some(State::On) => "on",
                Some(State::Partly(_)) => "partly",
                Some(State::Off) => "off",
                Some(State::Missing(_)) | None => "missing",
            };
            write!(f, "{}{} {state}", if at == 0 { "" } else { ", " }, layer.name())?;
        }
        Ok(())
    }
}

/// Closes what was inherited by mistake: whoever started the server may have left something open. To be called first of
/// all, when nothing but standard input, output and error is this process's own.
#[expect(unsafe_code, reason = "closing descriptors by number")]
pub(crate) fn close_inherited() {
    // SAFETY: nothing of this process is open yet but the first three, so nobody has a descriptor that is closed here.
    // A kernel too old for this call is too old for landlock, which is said.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// Confines this process for good. To be called while it has one thread.
pub(crate) fn enter(sandbox: &Sandbox, policy: &Policy) -> Confinement {
    // Needed by two layers, and harmless: nothing that it starts may gain rights. It starts nothing.
    let alone = is_alone();
    let privileges = rustix::thread::set_no_new_privs(true);
    let mut layers = BTreeMap::new();
    // The filter of system calls comes last: it forbids what the others are made with.
    for layer in [Layer::Limits, Layer::Capabilities, Layer::Undumpable, Layer::Landlock, Layer::Seccomp] {
        let state = if sandbox.without.contains(&layer) {
            State::Off
        } else {
            match (layer, &privileges) {
                (Layer::Landlock | Layer::Seccomp, Err(error)) => {
                    State::Missing(format!("no_new_privs: {error}"))
                }
                (Layer::Limits, _) => limits::limit(policy),
                (Layer::Capabilities, _) => limits::drop_capabilities(),
                (Layer::Undumpable, _) => limits::hide(),
                (Layer::Landlock, Ok(())) => files::close(policy, alone),
                (Layer::Seccomp, Ok(())) => calls::filter(policy),
            }
        };
        layers.insert(layer, state);
    }
    Confinement { layers }
}

/// Whether this thread is the only one. One that was joined may take a moment to leave the books.
fn is_alone() -> bool {
    for _ in 0..1_000 {
        match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
            Ok(threads) if threads > 1 => std::thread::yield_now(),
            Ok(_) | Err(_) => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_and_what_stands_is_not() {
        let mut confinement = Confinement::default();
        for layer in Layer::ALL {
            confinement.layers.insert(layer, State::On);
        }
        assert!(confinement.is_whole() && confinement.warnings().is_empty());
        confinement
            .layers
            .insert(Layer::Landlock, State::Missing("the kernel was built without it".to_owned()));
        confinement.layers.insert(Layer::Limits, State::Off);
        let said = confinement.warnings();
        assert!(!confinement.is_whole());
        assert!(said[0].contains("without landlock (the kernel was built without it)"), "{said:?}");
        assert!(said[1].contains("without limits, which is switched off"), "{said:?}");
        assert_eq!(said.len(), 2);
        assert_eq!(Confinement::default().warnings().len(), Layer::ALL.len(), "saying nothing is no layer");
    }

    #[test]
    fn settings_are_read_by_name() {
        let sandbox: Sandbox = serde_json::from_str(r#"{"without": ["seccomp"]}"#).unwrap();
        assert_eq!(sandbox, Sandbox::without([Layer::Seccomp]));
        assert!(serde_json::from_str::<Sandbox>(r#"{"without": ["everything"]}"#).is_err());
    }
}
