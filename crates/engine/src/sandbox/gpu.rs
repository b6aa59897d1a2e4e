//! What a runner is let reach for a model on a GPU, and what not even then.
//!
//! A driver is code that nobody outside of its maker can list the system calls of, and it changes with every release. So the
//! list is turned round here: what reaches other processes, the network, the machine's settings or the kernel's newer and
//! larger doors is forbidden, and the rest is allowed. Landlock says as ever which files there are: the driver's devices and
//! the folders of libraries, and no other. It is a hole, and said as one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Said of the filter of system calls of such a runner.
pub(super) const HOLE: &str = "a GPU's driver may make system calls that nobody can list, so only those that are known to reach out are forbidden";

/// Where NVIDIA's libraries and the loader look for parts of them, and what they ask of the machine.
const READABLE: [&str; 12] = [
    "/proc/driver/nvidia",
    "/proc/devices",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self/maps",
    "/proc/sys/vm",
    "/sys/bus/pci",
    "/sys/devices",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/cuda",
    "/etc/ld.so.cache",
];

/// The environment's list of folders with libraries: where those of CUDA are that came with a package.
pub(crate) const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// Files and folders that it may read.
pub(super) fn readable() -> Vec<PathBuf> {
    let named = std::env::var_os(LIBRARIES).unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| path.is_absolute());
    let mapped = folders_of_libraries(&fs::read_to_string("/proc/self/maps").unwrap_or_default());
    READABLE.iter().map(PathBuf::from).chain(named).chain(mapped).collect()
}

/// Where the libraries lie that this process has open already: each opens further parts of itself from beside it.
fn folders_of_libraries(maps: &str) -> BTreeSet<PathBuf> {
    let files = maps.lines().filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])));
    let is_library = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.split('.').skip(1).any(|part| part == "so")
    };
    files.filter(is_library).filter_map(Path::parent).map(Path::to_owned).collect()
}

/// The driver's devices in `/dev`: all GPUs, since no library can be told to open only one of them.
pub(super) fn devices(dev: &Path) -> Vec<PathBuf> {
    let named = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let ours = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("nvidia"))
    };
    let mut found: Vec<PathBuf> = named(dev).into_iter().filter(ours).collect();
    let (folders, mut devices): (Vec<_>, Vec<_>) = found.drain(..).partition(|path| path.is_dir());
    devices.extend(folders.iter().flat_map(|folder| named(folder)));
    devices.sort_unstable();
    devices
}

/// Where NVIDIA's driver names the threads it starts, for whoever looks at the machine. It ends the start where it cannot.
pub(super) const OWN_THREADS: &str = "/proc/self/task";

/// Allowed in spite of that, for sockets of one kind: the driver opens one by which another process could ask for a share
/// of its memory, and gives up where it cannot. Nobody is let in: to accept a connection stays forbidden.
pub(super) const LISTENING: [i64; 3] = [libc::SYS_socket, libc::SYS_bind, libc::SYS_listen];

/// Forbidden besides what reaches out of any process (`denied`). A runner is started already, so it starts no program.
pub(super) const FORBIDDEN: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes of this user, whatever their memory and queues are.
    libc::SYS_kcmp,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_setaffinity,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_shmctl,
    libc::SYS_semctl,
    libc::SYS_msgctl,
    libc::SYS_mq_unlink,
    // Rights.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_capset,
    libc::SYS_setrlimit,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_library_are_looked_for_beside_those_that_are_open() {
        let maps = "\
            7f00-7f10 r-xp 00000000 fe:00 11 /opt/a torch/lib/libtorch_cuda.so\n\
            7f10-7f20 r--p 00000000 fe:00 12 /opt/cudnn/libcudnn.so.9\n\
            7f20-7f30 rw-p 00000000 fe:00 12 /opt/cudnn/libcudnn.so.9\n\
            7f30-7f40 r--p 00000000 fe:00 13 /run/somebody/secret.sock\n\
            7f40-7f50 rw-p 00000000 00:00 0 \n\
            7f50-7f60 rw-p 00000000 00:00 0 [heap]\n";
        let found: Vec<_> = folders_of_libraries(maps).into_iter().collect();
        assert_eq!(found, ["/opt/a torch/lib", "/opt/cudnn"].map(PathBuf::from));
    }

    #[test]
    fn the_drivers_devices_are_found_and_no_others() {
        let dev = tempfile::tempdir().unwrap();
        fs::create_dir_all(dev.path().join("nvidia-caps")).unwrap();
        for name in ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "sda", "kvm"] {
            fs::write(dev.path().join(name), "").unwrap();
        }
        let found = devices(dev.path());
        let found: Vec<_> = found.iter().map(|path| path.strip_prefix(dev.path()).unwrap()).collect();
        let expected = ["nvidia-caps/nvidia-cap1", "nvidia-uvm", "nvidia0", "nvidiactl"].map(Path::new);
        assert_eq!(found, expected);
        assert!(devices(&dev.path().join("nothing here")).is_empty());
    }
}
