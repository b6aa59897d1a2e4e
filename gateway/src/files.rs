//! How many files this process may have open: each connection is one, and what else runs here needs some too.
//!
//! Without a bound below that, whoever opens connections keeps models from being loaded and the store from being opened.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for everything else: a quarter, and no more than this.
const RESERVE: u64 = 4_096;

/// So many connections each of these ports may have, where so many are wanted beside so many other files. Takes what the system allows at
/// most.
pub(crate) fn connections(wanted: usize, ports: usize, others: usize) -> usize {
    let Some(files) = raised() else { return wanted };
    let room = usize::try_from(of(files.saturating_sub(others as u64), ports)).unwrap_or(usize::MAX);
    if room < wanted {
        tracing::warn!(
            files,
            connections = room,
            wanted,
            "this process may have so few files open that it takes fewer connections; raise the limit (ulimit -n)"
        );
    }
    room.min(wanted)
}

/// The limit, raised as far as may be; `None` if there is none.
fn raised() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    if maximum.is_none_or(|most| before < most) {
        let wanted = Rlimit { current: maximum, maximum };
        if setrlimit(Resource::Nofile, wanted).is_ok() {
            return maximum;
        }
    }
    Some(before)
}

fn of(files: u64, ports: usize) -> u64 {
    let rest = files - (files / 4).min(RESERVE);
    (rest / (ports.max(1) as u64)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!((of(1_024, 1), of(1_024, 2)), (768, 384));
        assert_eq!((of(1 << 20, 2), of(0, 1)), (((1 << 20) - RESERVE) / 2, 1));
    }

    #[test]
    fn a_process_that_may_have_fewer_files_takes_fewer_connections() {
        assert_eq!(connections(1, 1, 0), 1);
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // Raised by the call above.
        assert_eq!(current, maximum);
        if let Some(files) = current {
            assert_eq!(connections(usize::MAX, 2, 100) as u64, of(files.saturating_sub(100), 2));
        }
    }
}
