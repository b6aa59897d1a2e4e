//! The other side: what runs inside a runner process, around whichever library it hosts.
//!
//! Main thread: one request after another from the control socket (its standard input). One thread for each lane:
//! one batch after another from the lane's ring. It opens no file but the inference library, so that everything
//! else can be closed to it.

mod backend;
mod gentle;
mod lane;
mod onnx;
mod openvino;
mod remote;
mod specs;
mod starting;

pub use backend::{Backend, Inputs, LoadRequest, Model, Needs, Program, Results};
pub use gentle::Threads;
pub(crate) use remote::certified as remote_certified;
pub use remote::{authority as remote_authority, authority_of as remote_authority_of};
pub use specs::Declared;

use crate::control::{self, Ask, Gently, Say, Secret};
use crate::heap;
use crate::ring::Ring;
use crate::sandbox::{self, Policy, Sandbox};
use crate::seam::Io;
use crate::shm::Mapping;
use crate::slot::Layout;
use backend::FirstRun;
use lane::{Seat, Seats};
use modelless_types::{Bytes, Engine, TensorSpec, VariantSettings};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// How a runner is started. Written by the executor only, so a mistake is a bug and said tersely.
struct Args {
    library: PathBuf,
    parent: Option<Pid>,
    memory_limit: Option<u64>,
    sandbox: Sandbox,
    /// It is a spare: nobody waits for it to start.
    gently: Gently,
    /// A port that it needs to connect to.
    connect: Option<u16>,
    /// It is for models on GPUs.
    gpu: bool,
}

impl Args {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut parsed = Self {
            library: PathBuf::new(),
            parent: None,
            memory_limit: None,
            sandbox: Sandbox::default(),
            gently: Gently::Not,
            connect: None,
            gpu: false,
        };
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
                Some("--connect") => parsed.connect = number().and_then(|port| u16::try_from(port).ok()),
                Some("--gpu") => parsed.gpu = value == "yes",
                Some("--gently") => {
                    parsed.gently = if value == "idle" { Gently::Idle } else { Gently::Nice };
                }
                Some("--sandbox") => {
                    let text = value.to_str().unwrap_or_default();
                    parsed.sandbox =
                        serde_json::from_str(text).map_err(|error| format!("--sandbox: {error}"))?;
                }
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
    begin_builtin(engine, args, None)
}

fn begin_builtin(engine: &str, args: impl IntoIterator<Item = OsString>, probe: Option<Probe>) -> ExitCode {
    let open: Open = match Engine::parse(engine) {
        Some(Engine::Onnx) => onnx::open,
        Some(Engine::Openvino) => openvino::open,
        Some(Engine::Remote) => remote::open,
        Some(Engine::Torch) | None => {
            eprintln!("runner: {engine} has no runner in this program");
            return ExitCode::FAILURE;
        }
    };
    begin(open, args, probe)
}

/// Runs a runner process that hosts a library, with the arguments the executor gave it, until the executor hangs up.
pub fn runner_main(open: Open, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    begin(open, args, None)
}

/// A runner that calls `probe` where it should load a model, and refuses the model with what that returns. For tests:
/// what it can do, a model can do.
#[doc(hidden)]
pub fn hostile_runner_main(
    engine: &str,
    args: impl IntoIterator<Item = OsString>,
    probe: impl Fn() -> String + Sync + 'static,
) -> ExitCode {
    begin_builtin(engine, args, Some(Box::new(probe)))
}

/// The same around a library that is linked.
#[doc(hidden)]
pub fn hostile_runner_of(
    open: Open,
    args: impl IntoIterator<Item = OsString>,
    probe: impl Fn() -> String + Sync + 'static,
) -> ExitCode {
    begin(open, args, Some(Box::new(probe)))
}

type Probe = Box<dyn Fn() -> String + Sync>;

fn begin(open: Open, args: impl IntoIterator<Item = OsString>, probe: Option<Probe>) -> ExitCode {
    let result = Args::parse(args).and_then(|args| run(open, &args, probe));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("runner: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(open: Open, args: &Args, probe: Option<Probe>) -> Result<(), String> {
    sandbox::close_inherited();
    heap::begin();
    settle(args).map_err(|error| format!("cannot set up the process: {error}"))?;
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let mut confinement = None;
    let opened = gentle::gently(args.gently, |_| open(&args.library));
    let led = starting::lead();
    let started = opened.and_then(|mut backend| {
        // All is mapped, the library has read what it wants to know of the machine, and no thread runs yet.
        let Needs { mut read, code, connect } = backend.needs();
        if args.gpu {
            // The parts of the library that are for GPUs lie beside it, and it opens them with the first model.
            read.extend(args.library.parent().map(Path::to_owned));
        }
        let (connect, memory) = (connect.or(args.connect), args.memory_limit.map(Bytes));
        let policy = Policy { read, write: Vec::new(), code, connect, memory, gpu: args.gpu };
        confinement = Some(sandbox::enter(&args.sandbox, &policy));
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
    let confinement = confinement.unwrap_or_default();
    let gives_way = backend.gives_way() || led > 0;
    let hello = Say::Hello { version, confinement, gives_way };
    control::send(&control, &hello, &[]).map_err(|error| error.to_string())?;
    let mut host = Host { backend, lanes: Vec::new(), loaded: BTreeMap::new(), probe };
    while let Some((ask, fds)) = control::receive::<Ask>(&control).map_err(|error| error.to_string())? {
        let said = host.answer(ask, fds).unwrap_or_else(|why| Say::Failed { why });
        control::send(&control, &said, &[]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Dies with its parent and ends as a whole.
fn settle(args: &Args) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != args.parent {
        return Err(io::Error::other("the executor that started it is gone"));
    }
    // A lane whose thread is gone would look like one that hangs. Better all at once, with the reason.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
    Ok(())
}

/// What was handed over as a file of a moderate size.
fn read(file: OwnedFd) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::from(file).take(control::MAX_BESIDE).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| format!("cannot read what came along: {error}"))
}

/// What is resident.
struct Host {
    backend: Box<dyn Backend>,
    lanes: Vec<Seats>,
    /// Loaded, not yet attached to their slots.
    loaded: BTreeMap<u32, (backend::Loaded, Gently)>,
    probe: Option<Probe>,
}

impl Host {
    fn answer(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> Result<Say, String> {
        match ask {
            Ask::OpenLane { lane } => self.open_lane(lane, &fds).map(|()| Say::Done),
            Ask::Load { variant, settings, lanes, expect, shown, gently, token } => {
                if let Some(probe) = &self.probe {
                    return Err(gentle::gently(gently, |_| probe()));
                }
                let mut fds = fds.into_iter();
                let artefact = fds.next().ok_or("the artefact is missing")?;
                let roots = fds.next().map(read).transpose()?;
                let backend = &mut *self.backend;
                // One that waits for idle moments is not awaited: its first run may be part of it.
                let first_run = if gently == Gently::Idle { FirstRun::Now } else { FirstRun::Later };
                let shown = shown.then_some(first_run);
                let loaded = gentle::gently(gently, |pool| {
                    // Mapped by the thread that gives way, since unmapping a large file takes a while too.
                    let bytes =
                        Mapping::of_file(&artefact).map_err(|error| format!("cannot map it: {error}"))?;
                    if gently == Gently::Not {
                        heap::make_ready(bytes.len());
                    }
                    let expect = expect.as_ref().map(|io| (io, shown));
                    let server = (token.as_ref(), roots.as_deref());
                    load(backend, &bytes, (&settings, lanes), server, (expect, pool))
                })?;
                let said = Say::Loaded {
                    inputs: loaded.inputs.clone(),
                    outputs: loaded.outputs.clone(),
                    fixed_batch: loaded.fixed_batch,
                    stretch: loaded.stretch.clone(),
                    device: loaded.device.clone(),
                };
                self.loaded.insert(variant, (loaded, gently));
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
                heap::give_back();
                Ok(Say::Done)
            }
        }
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
        let (loaded, gently) = self.loaded.remove(&variant).ok_or("attached before it was loaded")?;
        let layout = Layout::new(&loaded.inputs, &loaded.outputs, rows, loaded.strings, u64::MAX)?;
        let layout = layout.stretching(loaded.stretch.as_ref())?;
        if layout.slot_bytes != slot_bytes
            || fds.len() != loaded.programs.len()
            || fds.len() > self.lanes.len()
        {
            return Err("its slots are not as agreed".to_owned());
        }
        let layout = Arc::new(layout);
        let arenas = fds.iter().map(|fd| Mapping::open(fd, layout.arena_bytes()));
        let arenas = arenas.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        for (at, ((program, arena), lane)) in
            loaded.programs.into_iter().zip(arenas).zip(&self.lanes).enumerate()
        {
            let seat = Arc::new(Mutex::new(Seat { program, layout: Arc::clone(&layout), arena }));
            lane.lock().unwrap_or_else(PoisonError::into_inner).insert(variant, Arc::clone(&seat));
            if at < loaded.cold {
                let shape = (loaded.fixed_batch.unwrap_or(1), loaded.strings);
                warm(seat, loaded.inputs.clone(), shape, gently);
            }
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "a slice over the mapped artefact")]
fn load(
    backend: &mut dyn Backend,
    artefact: &Mapping,
    (settings, lanes): (&VariantSettings, u16),
    (token, roots): (Option<&Secret>, Option<&[u8]>),
    (expect, pool): (Option<(&Io, Option<FirstRun>)>, &Threads),
) -> Result<backend::Loaded, String> {
    // SAFETY: artefacts are content-addressed and never written in place. Whoever does so all the same
    // spoils this runner only: libraries parse untrusted bytes anyway.
    let artefact = unsafe { artefact.whole() };
    let (expect, shown) = (expect.map(|(io, _)| io), expect.and_then(|(_, shown)| shown));
    let model = backend.load(&LoadRequest { artefact, settings, lanes, expect, token, roots, pool })?;
    if model.programs.len() != usize::from(lanes) || model.programs.is_empty() {
        return Err("it needs one program for each lane, and at least one lane".to_owned());
    }
    let loaded = backend::settle(model, settings, expect, shown);
    heap::give_back();
    loaded
}

/// Has a variant run once, beside everything else. Without a thread for it the first batch is a little slower.
/// It gives way where the load did, though not altogether: a batch that comes meanwhile waits for it.
fn warm(seat: Arc<Mutex<Seat>>, inputs: Vec<TensorSpec>, (rows, strings): (u32, Bytes), gently: Gently) {
    let gently = if gently == Gently::Not { Gently::Not } else { Gently::Nice };
    let run = move || {
        gentle::gently(gently, |_| {
            let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
            backend::warm(&mut *seat.program, &inputs, rows, strings);
        });
    };
    let _ = std::thread::Builder::new().name("warm".to_owned()).spawn(run);
}
