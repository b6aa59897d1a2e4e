//! Landlock: no file but those named, no TCP but to one port, no signal and no socket to processes outside.
//!
//! It also forbids to trace, and so to read the memory of, every process that is not in the same domain. Each runner
//! is a domain of its own.

use super::{Policy, State, gpu};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, NetPort, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::Path;

/// The newest interface that this was written for. What an older kernel lacks is left out and told.
const NEWEST: ABI = ABI::V7;

pub(super) fn close(policy: &Policy, alone: bool) -> State {
    match restrict(policy) {
        Ok(status) => describe(&status, policy, alone),
        Err(error) => State::Missing(error.to_string()),
    }
}

fn restrict(policy: &Policy) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let gpu = if policy.gpu { gpu::readable() } else { Vec::new() };
    for path in policy.read.iter().chain(&gpu) {
        // One that is not there cannot be read either way.
        if let Ok(opened) = PathFd::new(path) {
            let mut access = AccessFs::from_read(NEWEST);
            if !path.is_dir() {
                access &= AccessFs::from_file(NEWEST);
            }
            rules = rules.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    for path in &policy.write {
        if let Ok(opened) = PathFd::new(path) {
            // Plain files and folders: no device, no socket, nothing to run.
            let access = AccessFs::ReadFile
                | AccessFs::ReadDir
                | AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::MakeReg
                | AccessFs::MakeDir
                | AccessFs::RemoveFile
                | AccessFs::RemoveDir;
            rules = rules.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    for device in if policy.gpu { gpu::devices(Path::new("/dev")) } else { Vec::new() } {
        if let Ok(opened) = PathFd::new(device) {
            let access = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
            rules = rules.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    if policy.gpu
        && let Ok(opened) = PathFd::new(gpu::OWN_THREADS)
    {
        let access = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate;
        rules = rules.add_rule(PathBeneath::new(opened, access))?;
    }
    if let Some(port) = policy.connect {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    rules.restrict_self()
}

fn describe(status: &RestrictionStatus, policy: &Policy, alone: bool) -> State {
    let abi = match status.landlock {
        LandlockStatus::NotEnabled => return State::Missing("this kernel has it switched off".to_owned()),
        LandlockStatus::NotImplemented => {
            return State::Missing("this kernel was built without it".to_owned());
        }
        LandlockStatus::Available { effective_abi, .. } => effective_abi,
    };
    if status.ruleset == RulesetStatus::NotEnforced {
        return State::Missing("this kernel did not take it".to_owned());
    }
    // Threads that exist already stay outside.
    if !alone {
        return State::Partly(
            "the inference library had started threads before it could be confined".to_owned(),
        );
    }
    if abi < ABI::V4 && policy.connect.is_some() {
        return State::Partly("this kernel cannot hold a connection to one port (Linux 6.7 can)".to_owned());
    }
    if abi < ABI::V6 {
        // The filter of system calls stops all of it as well; this is the second line that is missing.
        return State::Partly(format!(
            "this kernel has version {abi:?} of it, and only {:?} covers signals",
            ABI::V6
        ));
    }
    State::On
}
