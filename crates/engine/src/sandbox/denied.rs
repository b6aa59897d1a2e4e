//! System calls that a program of others is refused: the network, other processes, and the machine.
//!
//! A list of what is forbidden, unlike a runner's, because nobody knows what an interpreter and its libraries need. So it is
//! the second line: landlock stands behind it for files, TCP and signals, and what it does not cover (datagrams, the modes and
//! times of files, namespaces) is closed here.

use super::State;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Result<T> = std::result::Result<T, seccompiler::Error>;

/// What neither a tool nor a GPU's driver has any business with.
const REACHING_OUT: &[i64] = &[
    // The network, of every family, and rings that can reach it past this list.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Other processes.
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    // What landlock does not cover of files.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utimensat,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The machine, and ways around all of this.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_personality,
    libc::SYS_syslog,
];

#[cfg(target_arch = "x86_64")]
const REACHING_OUT_HERE: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
const REACHING_OUT_HERE: &[i64] = &[];

/// And what a runner cannot do without, but a tool that talks to nobody can.
const OF_A_TOOL: &[i64] = &[
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_socketpair,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
];

pub(super) fn filter() -> State {
    let installed = programs()
        .and_then(|programs| programs.iter().try_for_each(|program| seccompiler::apply_filter(program)));
    match installed {
        Ok(()) => State::On,
        Err(error) => State::Missing(error.to_string()),
    }
}

/// Several, for each can only give one error. `clone3` is said not to exist, so that glibc falls back to `clone`, whose
/// flags can be looked at.
fn programs() -> Result<Vec<BpfProgram>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let no = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, no(libc::ENOSYS), arch)?;
    let denied = SeccompFilter::new(denied()?, SeccompAction::Allow, no(libc::EPERM), arch)?;
    let programs: [BpfProgram; 2] = [absent.try_into()?, denied.try_into()?];
    Ok(programs.into_iter().chain(of_another_kind()).collect())
}

/// Refuses every call by a number beyond those of a list, where a machine has two for each: a kernel built for x32 programs
/// takes them all with this bit set, and a list of what is forbidden does not know them so.
pub(super) fn of_another_kind() -> Option<BpfProgram> {
    const BIT: u32 = 0x4000_0000;
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const ALLOWED: u32 = 0x7fff_0000;
    const REFUSED: u32 = 0x0005_0000 | libc::EPERM.unsigned_abs();
    let step = |code, jt, k| sock_filter { code, jt, jf: 0, k };
    let steps = [
        step(LOAD_NUMBER, 0, 0),
        step(JUMP_IF_AT_LEAST, 1, BIT),
        step(RETURN, 0, ALLOWED),
        step(RETURN, 0, REFUSED),
    ];
    cfg!(target_arch = "x86_64").then(|| steps.to_vec())
}

fn denied() -> Result<Rules> {
    let mut rules = reaching_out()?;
    rules.extend(OF_A_TOOL.iter().map(|call| (*call, Vec::new())));
    Ok(rules)
}

/// What reaches out of a process, for all whose other calls nobody can list.
pub(super) fn reaching_out() -> Result<Rules> {
    let all = REACHING_OUT.iter().chain(REACHING_OUT_HERE);
    let mut rules: Rules = all.map(|call| (*call, Vec::new())).collect();
    // Threads, but no processes. A namespace of its own is none of a thread.
    let mut when = |call: i64, mask: i32, value: i32| -> Result<()> {
        let (mask, value) = (u64::from(mask.unsigned_abs()), u64::from(value.unsigned_abs()));
        let condition = SeccompCondition::new(0, Len::Qword, Op::MaskedEq(mask), value)?;
        rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
        Ok(())
    };
    when(libc::SYS_clone, libc::CLONE_THREAD, 0)?;
    for space in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
        when(libc::SYS_clone, space, space)?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_made_and_say_each_call_once() {
        assert!(programs().unwrap().iter().all(|program| !program.is_empty()));
        let rules = denied().unwrap();
        assert_eq!(rules.len(), REACHING_OUT.len() + REACHING_OUT_HERE.len() + OF_A_TOOL.len() + 1);
        assert_eq!(rules[&libc::SYS_clone].len(), 5);
    }
}
