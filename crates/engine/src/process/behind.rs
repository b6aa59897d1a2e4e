//! Which threads of a runner stand back behind others: those of a batch that runs far too long, on purpose; and whether a
//! load that gave way left threads behind that go on giving way.
//!
//! Nothing can take that back, and a batch that they run would wait for everybody. What starts threads for libraries
//! knows the libraries that were there when the process began; this finds what came by another way.

use crate::prompt::StoodBack;
use std::fs;

/// Runs a variant for the first time, gives way on purpose, and ends by itself.
const WARM: &str = "warm";

/// As lanes' threads are called, before their number.
const LANE: &str = "lane-";

/// Has the threads of a process stand back that may run a batch of one of its lanes: all but its first one, which loads, and
/// those of its other lanes. Gives those that do.
pub(super) fn stand_back(pid: u32, lane: u16) -> Vec<StoodBack> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let own = format!("{LANE}{lane}");
    let theirs = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let id: i32 = task.file_name().to_str()?.parse().ok()?;
        let another = name.starts_with(LANE) && name.trim_end() != own;
        (id.unsigned_abs() != pid && !another).then_some(id)
    });
    theirs.filter_map(StoodBack::make).collect()
}

/// Whether a process was killed and is not gone yet: its first thread, which never stands back, has ended before the others.
pub(super) fn is_ending(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    parse(&stat).is_some_and(|(_, state, _)| matches!(state, 'Z' | 'X'))
}

/// Niceness and policy.
type Class = (i32, u32);

/// Threads of a process that give way to its first one, and are there to stay: asleep, and not on their way out.
pub(super) fn left(pid: u32) -> Vec<String> {
    let stat = |id: &str| fs::read_to_string(format!("/proc/{pid}/task/{id}/stat")).ok();
    let first = stat(&pid.to_string()).unwrap_or_default();
    let Some((_, _, class)) = parse(&first) else { return Vec::new() };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| stat(task.file_name().to_str()?));
    let mut left: Vec<String> = stats
        .filter_map(|stat| {
            let (name, state, its) = parse(&stat)?;
            (its != class && state == 'S' && name != WARM).then(|| name.to_owned())
        })
        .collect();
    left.sort_unstable();
    left
}

fn parse(stat: &str) -> Option<(&str, char, Class)> {
    let (before, after) = stat.rsplit_once(") ")?;
    let name = before.split_once('(')?.1;
    let fields: Vec<&str> = after.split(' ').collect();
    Some((
        name,
        fields.first()?.chars().next()?,
        (fields.get(16)?.parse().ok()?, fields.get(38)?.parse().ok()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    #[expect(unsafe_code, reason = "setting the priority of a thread, for which there is no safe binding")]
    fn a_thread_that_sleeps_behind_the_others_is_found() {
        let (go, wait) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name("left".to_owned()).spawn(move || {
            // SAFETY: numbers only. 0 is the calling thread.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
            let _ = wait.recv();
        });
        let thread = thread.expect("a thread");
        let pid = std::process::id();
        while !left(pid).contains(&"left".to_owned()) {
            std::thread::yield_now();
        }
        drop(go);
        thread.join().expect("it ends");
        assert!(!left(pid).contains(&"left".to_owned()));
    }
}
