//! The system calls that an engine needs once its library is open. Every other one fails with `EPERM`.
//!
//! A list of what is allowed, because nobody knows all that is dangerous, and kernels learn new calls. What was found
//! missing from it on another machine shows as an engine that says "operation not permitted", never as a hole.

use super::{Policy, State, denied, gpu};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Result<T> = std::result::Result<T, seccompiler::Error>;

/// A condition on one argument.
#[derive(Clone, Copy)]
enum Arg {
    /// Its lower half is this.
    Is(u8, u64),
    /// All of it is this.
    IsWhole(u8, u64),
    /// These bits of it are those.
    Bits(u8, u64, u64),
    /// Its lower half is anything but this.
    IsNot(u8, u64),
    /// All of it is anything but this.
    IsNotWhole(u8, u64),
}

use Arg::{Bits, Is, IsNot, IsNotWhole, IsWhole};

/// Nothing about these can reach out of the process.
const ALWAYS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // glibc falls back to `clone` when the other filter says that there is no `clone3`, whose flags nobody can check.
    libc::SYS_clone3,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Its own signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // What it has open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_recvmsg,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // The machine.
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
];

#[cfg(target_arch = "x86_64")]
const ARCH_GET_XCOMP_SUPP: u64 = 0x1021;
#[cfg(target_arch = "x86_64")]
const ARCH_GET_XCOMP_PERM: u64 = 0x1022;
#[cfg(target_arch = "x86_64")]
const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;

/// To open libraries late. Landlock says which.
const READING: &[i64] = &[
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// To speak over a TCP connection. Landlock says to which port.
const SPEAKING: &[i64] = &[
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_recvfrom,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

pub(super) fn filter(policy: &Policy) -> State {
    let installed = programs(policy).and_then(|programs| {
        // On all threads, should the library have started some.
        programs.iter().try_for_each(|program| seccompiler::apply_filter_all_threads(program))
    });
    match installed {
        Ok(()) if policy.gpu => State::Partly(gpu::HOLE.to_owned()),
        Ok(()) => State::On,
        Err(error) => State::Missing(error.to_string()),
    }
}

/// Two of them, for each can only give one error: `clone3` is said not to exist, and what is not allowed is forbidden.
fn programs(policy: &Policy) -> Result<[BpfProgram; 2]> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let no = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, no(libc::ENOSYS), arch)?;
    let (refused, granted) = (no(libc::EPERM), SeccompAction::Allow);
    let listed = if policy.gpu {
        SeccompFilter::new(forbidden()?, granted, refused, arch)?
    } else {
        SeccompFilter::new(allowed(policy)?, refused, granted, arch)?
    };
    Ok([absent.try_into()?, listed.try_into()?])
}

/// The bits of a socket's type that are not its flags.
const SOCKET_KIND: u64 = 0xf;

/// What reaches out of the process, for one whose driver may make every other call.
fn forbidden() -> Result<Rules> {
    let mut rules = denied::reaching_out()?;
    rules.extend(gpu::FORBIDDEN.iter().map(|call| (*call, Vec::new())));
    // The driver does not start without a socket that others could connect to: one of this kind only, and it connects nowhere.
    rules.retain(|call, _| !gpu::LISTENING.contains(call));
    let mut when = |call: i64, args: &[Arg]| -> Result<()> {
        rules.entry(call).or_default().push(rule(args)?);
        Ok(())
    };
    when(libc::SYS_tgkill, &[IsNot(0, std::process::id().into())])?;
    when(libc::SYS_socket, &[IsNot(0, libc::AF_UNIX.unsigned_abs().into())])?;
    for other in (0..=SOCKET_KIND).filter(|kind| *kind != u64::from(libc::SOCK_SEQPACKET.unsigned_abs())) {
        when(libc::SYS_socket, &[Bits(1, SOCKET_KIND, other)])?;
    }
    // Others' limits, and its own to be changed.
    when(libc::SYS_prlimit64, &[IsNot(0, 0)])?;
    when(libc::SYS_prlimit64, &[IsNotWhole(2, 0)])?;
    Ok(rules)
}

fn allowed(policy: &Policy) -> Result<Rules> {
    let mut rules: Rules = ALWAYS.iter().map(|call| (*call, Vec::new())).collect();
    let mut when = |call: i64, args: &[Arg]| -> Result<()> {
        rules.entry(call).or_default().push(rule(args)?);
        Ok(())
    };
    // A thread of this process, never a process, never with a namespace of its own.
    let thread =
        (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_FILES).unsigned_abs();
    let apart =
        (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWPID).unsigned_abs();
    when(libc::SYS_clone, &[Bits(0, u64::from(thread | apart), u64::from(thread))])?;
    // To itself only: `abort` needs it.
    when(libc::SYS_tgkill, &[Is(0, u64::from(std::process::id()))])?;
    when(libc::SYS_prctl, &[Is(0, libc::PR_SET_NAME.unsigned_abs().into())])?;
    // Large pages for large models.
    when(libc::SYS_prctl, &[Is(0, libc::PR_SET_THP_DISABLE.unsigned_abs().into())])?;
    // To be allowed the matrix registers of newer processors, which libraries ask for with their first model.
    #[cfg(target_arch = "x86_64")]
    for question in [ARCH_GET_XCOMP_SUPP, ARCH_GET_XCOMP_PERM, ARCH_REQ_XCOMP_PERM] {
        when(libc::SYS_arch_prctl, &[Is(0, question)])?;
    }
    // To look at its limits, not to change them.
    when(libc::SYS_prlimit64, &[Is(0, 0), IsWhole(2, 0)])?;
    for command in [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC, libc::F_GET_SEALS] {
        when(libc::SYS_fcntl, &[Is(1, command.unsigned_abs().into())])?;
    }
    // Never with "fast open", which connects without asking landlock.
    let fast = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
    when(libc::SYS_sendmsg, &[Bits(2, fast, 0)])?;
    // A thread that gives way to all others, for loading. The way back is not allowed, and not needed.
    when(libc::SYS_sched_setscheduler, &[Is(0, 0), Is(1, libc::SCHED_IDLE.unsigned_abs().into())])?;
    let nice = u64::from(super::GIVING_WAY.unsigned_abs());
    when(libc::SYS_setpriority, &[Is(0, u64::from(libc::PRIO_PROCESS)), Is(1, 0), Is(2, nice)])?;
    // A thread that takes short turns. It can ask for no more than any program may.
    for own in [libc::SYS_sched_getattr, libc::SYS_sched_setattr] {
        when(own, &[Is(0, 0)])?;
    }

    // Memory that a model fills never becomes code.
    let late = !policy.read.is_empty();
    let exec = u64::from(libc::PROT_EXEC.unsigned_abs());
    let code = if late || policy.code { Bits(2, 0, 0) } else { Bits(2, exec, 0) };
    when(libc::SYS_mprotect, &[code])?;
    // Its own memory, or a file's. Memory to share, with no file behind it, is counted by no limit.
    let of = |flags: i32| u64::from(flags.unsigned_abs());
    when(libc::SYS_mmap, &[code, Bits(3, of(libc::MAP_TYPE), of(libc::MAP_PRIVATE))])?;
    for shared in [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE] {
        when(libc::SYS_mmap, &[code, Bits(3, of(libc::MAP_TYPE | libc::MAP_ANONYMOUS), of(shared))])?;
    }
    if late {
        let flags = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
        when(
            libc::SYS_openat,
            &[Bits(2, flags.unsigned_abs().into(), libc::O_RDONLY.unsigned_abs().into())],
        )?;
        rules.extend(READING.iter().map(|call| (*call, Vec::new())));
    }
    if policy.connect.is_some() {
        let kind = u64::from((libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).unsigned_abs());
        for family in [libc::AF_INET, libc::AF_INET6] {
            for protocol in [0, libc::IPPROTO_TCP] {
                let stream = Bits(1, !kind & u64::from(u32::MAX), libc::SOCK_STREAM.unsigned_abs().into());
                let args =
                    [Is(0, family.unsigned_abs().into()), stream, Is(2, protocol.unsigned_abs().into())];
                rules.entry(libc::SYS_socket).or_default().push(rule(&args)?);
            }
        }
        // To wait for a connection no longer than it should: a socket's blocking is set like this, and nothing else.
        rules.entry(libc::SYS_ioctl).or_default().push(rule(&[Is(1, libc::FIONBIO)])?);
        // To where it is connected only.
        rules.entry(libc::SYS_sendto).or_default().push(rule(&[Bits(3, fast, 0), IsWhole(4, 0)])?);
        rules.extend(SPEAKING.iter().map(|call| (*call, Vec::new())));
    }
    Ok(rules)
}

fn rule(args: &[Arg]) -> Result<SeccompRule> {
    let conditions = args.iter().map(|arg| match *arg {
        Is(at, value) => SeccompCondition::new(at, Len::Dword, Op::Eq, value),
        IsWhole(at, value) => SeccompCondition::new(at, Len::Qword, Op::Eq, value),
        IsNot(at, value) => SeccompCondition::new(at, Len::Dword, Op::Ne, value),
        IsNotWhole(at, value) => SeccompCondition::new(at, Len::Qword, Op::Ne, value),
        Bits(at, mask, value) => SeccompCondition::new(at, Len::Qword, Op::MaskedEq(mask), value),
    });
    Ok(SeccompRule::new(conditions.collect::<std::result::Result<_, _>>()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_made_for_every_policy() {
        let remote = Policy { connect: Some(8_001), ..Policy::default() };
        let late = Policy { read: vec!["/usr/lib".into()], code: true, ..Policy::default() };
        let gpu = Policy { gpu: true, ..Policy::default() };
        for policy in [Policy::default(), remote, late, gpu] {
            assert!(programs(&policy).unwrap().iter().all(|program| !program.is_empty()));
        }
    }

    #[test]
    fn files_and_sockets_are_opened_only_where_the_policy_says_so() {
        let has = |policy: &Policy, call| allowed(policy).unwrap().contains_key(&call);
        let strict = Policy::default();
        for call in
            [libc::SYS_openat, libc::SYS_socket, libc::SYS_connect, libc::SYS_execve, libc::SYS_ptrace]
        {
            assert!(!has(&strict, call), "{call}");
        }
        let remote = Policy { connect: Some(8_001), ..Policy::default() };
        assert!(has(&remote, libc::SYS_connect) && !has(&remote, libc::SYS_openat));
        assert!(!has(&remote, libc::SYS_bind) && !has(&remote, libc::SYS_listen));
    }
}
