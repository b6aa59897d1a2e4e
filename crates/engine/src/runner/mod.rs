//! The other side: what runs inside a runner process, around whichever library it hosts.
//!
//! Main thread: one request after another from the control socket (its standard input). One thread for each lane:
//! one batch after another from the lane's ring. It opens no file but the inference library, so that everything
//! else can be closed to it.

mod backend;
mod lane;
mod onnx;
mod openvino;
mod remote;
mod specs;

pub use backend::{Backend, Inputs, LoadRequest, Model, Program, Results};
pub use specs::Declared;

use crate::control::{self, Ask, Say};
use crate::ring::Ring;
use crate::seam::Io;
use crate::shm::Mapping;
use crate::slot::Layout;
use lane::{Seat, Seats};
use modelless_types::{Engine, VariantSettings};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// How a runner is started. Written by the executor only, so a mistake is a bug and said tersely.
struct Args {
    library: PathBuf,
    parent: Option<Pid>,
    memory_limit: Option<u64>,
}

impl Args {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut parsed = Self { library: PathBuf::new(), parent: None, memory_limit: None };
        let mut args = args.into_iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{} needs a value", name.display()))?;
            let number = || value.to_str().and_then(|text| text.parse::<u64>().ok());
            match name.to_str() {
                Some("--library") => parsed.library = PathBuf::from(value),
                Some("--parent") => {
                    parsed.parent = number().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                }
                Some("--memory-limit") => parsed.memory_limit = number(),
                _ => return Err(format!("unknown argument {}", name.display())),
            }
        }
        if parsed.parent.is_none() {
            return Err("--parent is needed; runners are started by the executor".to_owned());
        }
        Ok(parsed)
    }
}

/// Opens a library: see [`Backend`].
pub type Open = fn(&Path) -> Result<Box<dyn Backend>, String>;

/// Runs a runner process for one of the engines that this program knows, with the arguments after
/// `modelless runner ENGINE`, until the executor hangs up.
pub fn builtin_runner_main(engine: &str, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let open: Open = match Engine::parse(engine) {
        Some(Engine::Onnx) => onnx::open,
        Some(Engine::Openvino) => openvino::open,
        Some(Engine::Remote) => remote::open,
        Some(Engine::Torch) | None => {
            eprintln!("runner: {engine} has no runner in this program");
            return ExitCode::FAILURE;
        }
    };
    runner_main(open, args)
}

/// Runs a runner process that hosts a library, with the arguments the executor gave it, until the executor hangs up.
pub fn runner_main(open: Open, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = Args::parse(args).and_then(|args| run(open, &args));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("runner: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(open: Open, args: &Args) -> Result<(), String> {
    settle(args).map_err(|error| format!("cannot set up the process: {error}"))?;
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    // Between opening and starting is the moment to confine the process: all is mapped, no thread runs yet.
    let opened = open(&args.library);
    let started = opened.and_then(|mut backend| {
        let version = backend.start()?;
        Ok((backend, version))
    });
    let (backend, version) = match started {
        Ok(started) => started,
        Err(why) => {
            control::send(&control, &Say::Failed { why: why.clone() }, &[])
                .map_err(|error| error.to_string())?;
            return Err(why);
        }
    };
    control::send(&control, &Say::Hello { version }, &[]).map_err(|error| error.to_string())?;
    let mut host = Host { backend, lanes: Vec::new(), loaded: BTreeMap::new() };
    while let Some((ask, fds)) = control::receive::<Ask>(&control).map_err(|error| error.to_string())? {
        let said = host.answer(ask, fds).unwrap_or_else(|why| Say::Failed { why });
        control::send(&control, &said, &[]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Dies with its parent, leaves no core dump with tenants' data in it, keeps to its memory, ends as a whole.
fn settle(args: &Args) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != args.parent {
        return Err(io::Error::other("the executor that started it is gone"));
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    if let Some(bytes) = args.memory_limit {
        rustix::process::setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    }
    // A lane whose thread is gone would look like one that hangs. Better all at once, with the reason.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
    Ok(())
}

/// What is resident.
struct Host {
    backend: Box<dyn Backend>,
    lanes: Vec<Seats>,
    /// Loaded, not yet attached to their slots.
    loaded: BTreeMap<u32, backend::Loaded>,
}

impl Host {
    fn answer(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> Result<Say, String> {
        match ask {
            Ask::OpenLane { lane } => self.open_lane(lane, &fds).map(|()| Say::Done),
            Ask::Load { variant, settings, lanes, expect } => {
                let [artefact] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| "the artefact is missing")?;
                let bytes = Mapping::of_file(&artefact).map_err(|error| format!("cannot map it: {error}"))?;
                let loaded = self.load(&bytes, &settings, lanes, expect.as_ref())?;
                let said = Say::Loaded {
                    inputs: loaded.inputs.clone(),
                    outputs: loaded.outputs.clone(),
                    fixed_batch: loaded.fixed_batch,
                    device: loaded.device.clone(),
                };
                self.loaded.insert(variant, loaded);
                Ok(said)
            }
            Ask::Attach { variant, rows, slot_bytes } => {
                self.attach(variant, rows, slot_bytes, &fds).map(|()| Say::Done)
            }
            Ask::Unload { variant } => {
                self.loaded.remove(&variant);
                for lane in &self.lanes {
                    lane.lock().unwrap_or_else(PoisonError::into_inner).remove(&variant);
                }
                Ok(Say::Done)
            }
        }
    }

    #[expect(unsafe_code, reason = "a slice over the mapped artefact")]
    fn load(
        &mut self,
        artefact: &Mapping,
        settings: &VariantSettings,
        lanes: u16,
        expect: Option<&Io>,
    ) -> Result<backend::Loaded, String> {
        // SAFETY: artefacts are content-addressed and never written in place. Whoever does so all the same
        // spoils this runner only: libraries parse untrusted bytes anyway.
        let artefact = unsafe { artefact.whole() };
        let model = self.backend.load(&LoadRequest { artefact, settings, lanes, expect })?;
        if model.programs.len() != usize::from(lanes) || model.programs.is_empty() {
            return Err("it needs one program for each lane, and at least one lane".to_owned());
        }
        backend::settle(model, settings.max_batch, expect)
    }

    fn open_lane(&mut self, lane: u16, fds: &[OwnedFd]) -> Result<(), String> {
        let [fd] = fds else { return Err("a lane needs one ring".to_owned()) };
        if usize::from(lane) != self.lanes.len() {
            return Err(format!("lane {lane} is out of turn"));
        }
        let ring = Ring::open(fd).map_err(|error| error.to_string())?;
        let seats = Seats::default();
        self.lanes.push(Arc::clone(&seats));
        std::thread::Builder::new()
            .name(format!("lane-{lane}"))
            .spawn(move || lane::serve(&ring, &seats))
            .map(|_| ())
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

    fn attach(&mut self, variant: u32, rows: u32, slot_bytes: usize, fds: &[OwnedFd]) -> Result<(), String> {
        let loaded = self.loaded.remove(&variant).ok_or("attached before it was loaded")?;
        let layout = Layout::new(&loaded.inputs, &loaded.outputs, rows, u64::MAX)?;
        if layout.slot_bytes != slot_bytes
            || fds.len() != loaded.programs.len()
            || fds.len() > self.lanes.len()
        {
            return Err("its slots are not as agreed".to_owned());
        }
        let layout = Arc::new(layout);
        let arenas = fds.iter().map(|fd| Mapping::open(fd, layout.arena_bytes()));
        let arenas = arenas.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        for ((program, arena), lane) in loaded.programs.into_iter().zip(arenas).zip(&self.lanes) {
            let seat = Seat { program, layout: Arc::clone(&layout), arena };
            lane.lock().unwrap_or_else(PoisonError::into_inner).insert(variant, Arc::new(Mutex::new(seat)));
        }
        Ok(())
    }
}
