//! Everything that a hostile model would try, tried from inside of a runner that is fully set up.
//!
//! Each attempt says how it ended: 0 where it succeeded, else the error's number. What stops which is known to the test
//! (`tests/process/isolation.rs`) and not here. Nothing here does harm: signals are `SIGCONT`, limits stay what they
//! are, and the memory that is read is thrown away.
#![expect(unsafe_code, reason = "system calls as a hostile model would make them")]

use serde::Deserialize;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::ptr::{null, null_mut};

/// What to try it on.
#[derive(Deserialize)]
pub(crate) struct Targets {
    /// A process of the same user: another runner.
    sibling: c_int,
    /// An address that is mapped in it.
    address: u64,
    /// The executor.
    parent: c_int,
    /// A file of another model.
    file: String,
    /// A folder that this user may write to.
    folder: String,
    /// Where somebody listens on 127.0.0.1.
    tcp: u16,
    /// The same, where the runner may connect to, if anywhere.
    pub(crate) allowed: Option<u16>,
    udp: u16,
    /// An abstract Unix socket, and one with a path, where somebody listens.
    unix_abstract: String,
    unix_path: String,
    /// More private memory than it may hold.
    too_much: u64,
    /// More than its model was measured to need.
    more_than_measured: u64,
    /// What the kernel adds to the executor's share of memory when it chooses whom to end.
    goes_by: i32,
}

type Attempt = fn(&Targets) -> io::Result<()>;

const ATTEMPTS: &[(&str, Attempt)] = &[
    ("read a file of the host", |_| open("/etc/passwd", libc::O_RDONLY).map(close)),
    ("read another model", |t| open(&t.file, libc::O_RDONLY).map(close)),
    ("create a file", |t| create(t, "created").map(close)),
    ("fill a file", fill),
    ("look whether a file is there", |_| {
        let path = c("/etc/passwd")?;
        // SAFETY: a path, and as much room as the call fills.
        done(unsafe { libc::stat(path.as_ptr(), &mut std::mem::zeroed()) })
    }),
    ("change who may read a file", |t| {
        let path = c(&t.file)?;
        // SAFETY: a path.
        done(unsafe { libc::chmod(path.as_ptr(), 0o644) })
    }),
    ("connect by TCP", |t| connect_inet(libc::SOCK_STREAM, t.tcp)),
    ("connect by TCP to where it may", |t| connect_inet(libc::SOCK_STREAM, t.allowed.unwrap_or(t.tcp))),
    ("listen on TCP", listen),
    ("listen on a Unix socket", listen_unix),
    ("send a datagram", |t| connect_inet(libc::SOCK_DGRAM, t.udp)),
    ("connect to an abstract Unix socket", |t| connect_unix(&format!("\0{}", t.unix_abstract))),
    ("connect to a Unix socket", |t| connect_unix(&t.unix_path)),
    ("trace a sibling", |t| {
        // SAFETY: an attempt on another process; it does not stop it, and ends with this thread.
        done(unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, t.sibling, null_mut::<c_void>(), null_mut::<c_void>())
        })
    }),
    ("read a sibling's memory", read_memory),
    ("open a sibling's memory", |t| open(&format!("/proc/{}/mem", t.sibling), libc::O_RDONLY).map(close)),
    ("read the parent's environment", |t| read(&format!("/proc/{}/environ", t.parent))),
    ("signal a sibling", |t| signal(t.sibling)),
    ("signal the parent", |t| signal(t.parent)),
    ("tie a sibling to a core", |t| {
        // SAFETY: a set of bits of the size that is said.
        unsafe {
            let mut cores: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of_val(&cores);
            done(libc::sched_getaffinity(t.sibling, size, &raw mut cores))?;
            done(libc::sched_setaffinity(t.sibling, size, &raw const cores))
        }
    }),
    ("put a sibling behind all others", |t| {
        // SAFETY: all zeros is a parameter, and it is read only.
        unsafe {
            let parameter: libc::sched_param = std::mem::zeroed();
            done(libc::sched_setscheduler(t.sibling, libc::SCHED_IDLE, &raw const parameter))
        }
    }),
    ("make a pair of sockets", |_| {
        let mut pair = [0; 2];
        // SAFETY: room for two.
        done(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr()) })?;
        pair.into_iter().for_each(close);
        Ok(())
    }),
    ("change a sibling's limits", |t| {
        // SAFETY: two structs, one read and one written.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            done(libc::prlimit(t.sibling, libc::RLIMIT_NOFILE, null(), &raw mut limit))?;
            done(libc::prlimit(t.sibling, libc::RLIMIT_NOFILE, &raw const limit, null_mut()))
        }
    }),
    ("find something open that it was not given", find_open),
    ("start a process", |_| child(|| 0)),
    ("run a program", run_program),
    ("make code at run time", |_| {
        map(4_096, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::MAP_PRIVATE)
    }),
    ("make a file in memory", |_| {
        let name = c("probe")?;
        // SAFETY: a name.
        done(unsafe { libc::memfd_create(name.as_ptr(), 0) })
    }),
    ("come before others", |_| {
        // SAFETY: numbers only.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: numbers only.
        done(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, before - 1) })
    }),
    ("take too much memory", |t| map(t.too_much, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)),
    ("take more memory than its model needs", |t| {
        map(t.more_than_measured, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
    }),
    ("take memory that no limit counts", |_| {
        map(1 << 20, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }),
    ("be ended no sooner than the executor", |t| {
        let fd = open("/proc/self/oom_score_adj", libc::O_WRONLY)?;
        let number = t.goes_by.to_string();
        // SAFETY: bytes that are there.
        let wrote = unsafe { libc::write(fd, number.as_ptr().cast(), number.len()) };
        let result = if wrote < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        close(fd);
        result
    }),
    ("raise its limit to the node's", |_| {
        // SAFETY: a struct that is written, then read.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            done(libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit))?;
            limit.rlim_cur = limit.rlim_max;
            done(libc::setrlimit(libc::RLIMIT_DATA, &raw const limit))
        }
    }),
    // The last one, because it may succeed.
    ("raise its own limit", |_| {
        let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a struct that is read.
        done(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const none) })
    }),
];

/// Tries everything, on a thread that was started after the sandbox was entered, as those that run batches are. JSON.
pub(crate) fn run(targets: &Targets) -> String {
    // SAFETY: no handler, and no other thread cares. Beyond the limit of a file's size comes a signal otherwise.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let tried = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let number = |result: io::Result<()>| {
                result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0)
            };
            ATTEMPTS.iter().map(|(name, attempt)| (*name, number(attempt(targets)))).collect::<Vec<_>>()
        });
        thread.join()
    });
    let tried: std::collections::BTreeMap<_, _> = tried.unwrap_or_default().into_iter().collect();
    serde_json::to_string(&tried).unwrap_or_default()
}

/// Standard input, output and error, the control socket, and the model that it was just given are its own.
fn find_open(_: &Targets) -> io::Result<()> {
    // SAFETY: numbers only.
    let open = (0..1_024).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0);
    if open.count() > 5 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

fn fill(targets: &Targets) -> io::Result<()> {
    let fd = create(targets, "filled")?;
    // SAFETY: one byte that is there.
    let wrote = unsafe { libc::write(fd, c"x".as_ptr().cast(), 1) };
    let result = if wrote == 1 { Ok(()) } else { Err(io::Error::last_os_error()) };
    close(fd);
    result
}

fn read_memory(targets: &Targets) -> io::Result<()> {
    let mut buffer = [0_u8; 8];
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let address = usize::try_from(targets.address).map_err(io::Error::other)?;
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: buffer.len() };
    // SAFETY: writes into `buffer` only; `there` is an address of another process.
    done(unsafe { libc::process_vm_readv(targets.sibling, &raw const here, 1, &raw const there, 1, 0) })
}

/// In a child where there can be one, for success would end this process.
fn run_program(_: &Targets) -> io::Result<()> {
    let path = c("/bin/true")?;
    let run = || {
        let args: [*const c_char; 2] = [path.as_ptr(), null()];
        // SAFETY: a path and lists that end with a null pointer.
        unsafe { libc::execve(path.as_ptr(), args.as_ptr(), args[1..].as_ptr()) };
        io::Error::last_os_error().raw_os_error().unwrap_or(255)
    };
    match child(run) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(io::Error::from_raw_os_error(run())),
        other => other,
    }
}

/// Starts a process that ends with what `work` returns, as an error's number.
fn child(work: impl FnOnce() -> c_int) -> io::Result<()> {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    done(pid)?;
    if pid == 0 {
        let code = work();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a number that is written.
    done(unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn map(bytes: u64, access: c_int, whose: c_int) -> io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    let flags = whose | libc::MAP_ANONYMOUS;
    // SAFETY: new memory at an address of the kernel's choice.
    let start = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just mapped, and nobody has a pointer to it.
    done(unsafe { libc::munmap(start, bytes) })
}

fn signal(pid: c_int) -> io::Result<()> {
    // SAFETY: a signal that does nothing to a process that runs.
    done(unsafe { libc::kill(pid, libc::SIGCONT) })
}

fn listen(_: &Targets) -> io::Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let address = inet(0);
    // SAFETY: an address of the size that is said.
    let bound = done(unsafe { libc::bind(fd, (&raw const address).cast(), socklen(size_of_val(&address))) });
    // SAFETY: a socket.
    let result = bound.and_then(|()| done(unsafe { libc::listen(fd, 1) }));
    close(fd);
    result
}

/// On a socket of packets without a name in any folder, as NVIDIA's driver does.
fn listen_unix(_: &Targets) -> io::Result<()> {
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC)?;
    let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(io::Error::other)?;
    // Of no more than a family: the kernel chooses a name.
    // SAFETY: an address of the size that is said.
    let bound = done(unsafe { libc::bind(fd, (&raw const family).cast(), socklen(size_of_val(&family))) });
    // SAFETY: a socket.
    let result = bound.and_then(|()| done(unsafe { libc::listen(fd, 1) }));
    close(fd);
    result
}

fn connect_inet(kind: c_int, port: u16) -> io::Result<()> {
    let fd = socket(libc::AF_INET, kind)?;
    let (address, byte) = (inet(port), 1_u8);
    // SAFETY: an address of the size that is said.
    let connected =
        done(unsafe { libc::connect(fd, (&raw const address).cast(), socklen(size_of_val(&address))) });
    // SAFETY: one byte that is there.
    let result = connected.and_then(|()| done(unsafe { libc::send(fd, (&raw const byte).cast(), 1, 0) }));
    close(fd);
    result
}

fn connect_unix(name: &str) -> io::Result<()> {
    let fd = socket(libc::AF_UNIX, libc::SOCK_STREAM)?;
    // SAFETY: all zeros is an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(io::Error::other)?;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    let size = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
    // SAFETY: an address of the size that is said.
    let result = done(unsafe { libc::connect(fd, (&raw const address).cast(), socklen(size)) });
    close(fd);
    result
}

fn inet(port: u16) -> libc::sockaddr_in {
    // SAFETY: all zeros is an address.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    address
}

fn socket(family: c_int, kind: c_int) -> io::Result<c_int> {
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(family, kind, 0) };
    done(fd).map(|()| fd)
}

fn socklen(size: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(size).unwrap_or_default()
}

fn create(targets: &Targets, name: &str) -> io::Result<c_int> {
    let path = format!("{}/{name}-{}", targets.folder, std::process::id());
    open(&path, libc::O_CREAT | libc::O_WRONLY)
}

fn read(path: &str) -> io::Result<()> {
    let fd = open(path, libc::O_RDONLY)?;
    let mut buffer = [0_u8; 64];
    // SAFETY: as much room as is said.
    let read = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    let result = if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    close(fd);
    result
}

fn open(path: &str, flags: c_int) -> io::Result<c_int> {
    let path = c(path)?;
    // SAFETY: a path, and the mode that `O_CREAT` wants.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    done(fd).map(|()| fd)
}

fn close(fd: c_int) {
    // SAFETY: opened here, and nobody else's.
    unsafe { libc::close(fd) };
}

fn c(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::other)
}

fn done<T: Copy + Default + PartialOrd>(result: T) -> io::Result<()> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(()) }
}
