//! Inference engines, each in runner processes of its own that are spawned and supervised here.
//!
//! Inference libraries crash, leak and hold memory, so none is ever loaded into the server. [`Engine`] is the
//! seam; [`ProcessEngine`] the real implementation, hosting one library ([`Backend`]) in `modelless runner ENGINE` or in
//! a binary of its own; [`EngineSet`] all of a node's together; [`FakeEngine`] the one for tests. A batch's tensors lie in shared memory and are never copied on their way in; submitting is one
//! store and one futex wake, and so is the way back.
//!
//! Nothing here decides: which variant runs, when and with what is `decision`'s to say; how an input becomes a
//! tensor is the adapter's.
#![warn(missing_docs)]

mod clock;
mod control;
pub mod fake;
mod heap;
pub mod install;
pub mod library;
mod parts;
mod process;
mod prompt;
mod ring;
mod runner;
mod sandbox;
mod seam;
mod set;
mod shm;
mod slot;

pub use control::{MAX_LANES, Secret};
pub use fake::{FakeEngine, FakeModel};
pub use library::{Library, LibraryError, default_engines_dir};
pub use parts::{MAX_PARTS, Part};
pub use process::{ProcessConfig, ProcessEngine, RunnerInfo, ServerFiles, SpareInfo, USUAL_AUTHORITIES};
pub use prompt::take_short_turns;
pub use runner::{
    Backend, Declared, Inputs, LoadRequest, Model, Needs, Open, Program, Results, Threads,
    builtin_runner_main, hostile_runner_main, hostile_runner_of, remote_authority, remote_authority_of,
    runner_main,
};
pub use sandbox::{Boxed, Confinement, Entered, Layer, Sandbox, State as LayerState, boxed_main};
pub use seam::{
    Availability, BatchError, BatchResult, Done, Engine, EngineError, EngineEvent, Freed, Io, LoadSpec,
    Loaded, says_memory,
};
pub use set::EngineSet;
pub use slot::{BatchSlot, Outputs, SLOTS_PER_LANE, Vacancy};
