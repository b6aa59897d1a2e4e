//! What the machine does beside this node, as its operating system tells. Where that tells nothing, nothing is said.

use modelless_decision::replica::Host;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;
use tokio::time::Instant;

/// Counts of the system since it started, in its own ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    busy: u64,
    stolen: u64,
    all: u64,
    cores: u16,
    runnable: u32,
}

/// Tells what was done between two looks.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    before: Option<Counts>,
    own: Option<(Instant, Duration)>,
}

impl Watch {
    /// Since the look before; nothing at the first one. `own` is the processor time that has been taken by what runs this node's
    /// models.
    pub(crate) fn look(&mut self, at: Instant, own: Option<Duration>) -> Option<Host> {
        let before = std::mem::replace(&mut self.own, own.map(|own| (at, own)));
        // What ended took its count with it.
        let own_milli =
            before.zip(own).and_then(|((then, before), now)| milli(now.checked_sub(before)?, at - then));
        Some(Host { own_milli, ..self.machine()? })
    }

    fn machine(&mut self) -> Option<Host> {
        // Files of the kernel: they are made when they are read and never wait for a disk.
        let mine = allowed(&fs::read_to_string("/proc/self/status").ok()?)?;
        let now = parse(&fs::read_to_string("/proc/stat").ok()?, &mine)?;
        let before = self.before.replace(now)?;
        between(&before, &now)
    }
}

/// Thousandths of a core.
fn milli(took: Duration, of: Duration) -> Option<u32> {
    let of = of.as_micros().max(1);
    u32::try_from(took.as_micros() * 1_000 / of).ok()
}

/// The cores that this process may use, as in `0-2,5`.
fn allowed(status: &str) -> Option<BTreeSet<u16>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

/// What those cores did.
fn parse(stat: &str, mine: &BTreeSet<u16>) -> Option<Counts> {
    let runnable = stat.lines().find_map(|line| line.strip_prefix("procs_running "));
    let runnable = runnable.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    let mut counts = Counts { busy: 0, stolen: 0, all: 0, cores: 0, runnable };
    for line in stat.lines().filter_map(|line| line.strip_prefix("cpu")) {
        let Some((core, ticks)) = line.split_once(' ') else { continue };
        // The line of all cores together has no number.
        if !core.parse().is_ok_and(|core: u16| mine.contains(&core)) {
            continue;
        }
        let ticks: Vec<u64> = ticks.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, waiting for a disk, interrupts, soft ones, stolen; what follows is counted in these.
        let [user, nice, system, idle, disk, hard, soft, stolen] = *ticks.first_chunk()?;
        let busy = user + nice + system + hard + soft + stolen;
        counts.busy += busy;
        counts.stolen += stolen;
        counts.all += busy + idle + disk;
        counts.cores += 1;
    }
    (counts.cores > 0).then_some(counts)
}

fn between(before: &Counts, now: &Counts) -> Option<Host> {
    let all = now.all.checked_sub(before.all).filter(|all| *all > 0)?;
    let share = |now: u64, before: u64, of: u64| {
        u32::try_from(u128::from(now.saturating_sub(before)) * u128::from(of) / u128::from(all)).ok()
    };
    Some(Host {
        cores: now.cores,
        busy_milli: share(now.busy, before.busy, u64::from(now.cores) * 1_000)?,
        steal_permille: u16::try_from(share(now.stolen, before.stolen, 1_000)?).ok()?,
        runnable: now.runnable,
        own_milli: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 10 20 800 5 1 2 3 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 100 10 20 800 5 1 2 3 0 0\n\
                        cpu2 100 0 0 0 0 0 0 0 0 0\nintr 5\nprocs_running 2\n";

    #[test]
    fn what_was_done_between_two_looks_on_the_cores_that_it_may_use_is_told() {
        let mine = allowed("Name:\tx\nCpus_allowed_list:\t1-2\n").expect("a list");
        assert_eq!(mine, BTreeSet::from([1, 2]));
        assert_eq!(allowed("Cpus_allowed_list:\t0,2-3,7"), Some(BTreeSet::from([0, 2, 3, 7])));
        let before = parse(STAT, &mine).expect("a file of the kernel");
        assert_eq!(before, Counts { busy: 236, stolen: 3, all: 1_041, cores: 2, runnable: 2 });
        let now =
            Counts { busy: before.busy + 150, stolen: before.stolen + 10, all: before.all + 200, ..before };
        let host = between(&before, &now).expect("time passed");
        assert_eq!(
            host,
            Host { cores: 2, busy_milli: 1_500, steal_permille: 50, runnable: 2, own_milli: None }
        );
        assert_eq!(between(&before, &before), None, "no time passed");
        assert_eq!(parse("nothing of the kind", &mine), None);
        assert_eq!(parse("cpu1 1 2 3\n", &mine), None, "a kernel that counts less");
    }

    #[test]
    fn this_machine_tells_what_it_does() {
        let mut watch = Watch::default();
        let began = Instant::now();
        assert_eq!(watch.look(began, Some(Duration::from_secs(4))), None, "there was no look before");
        let (mut seconds, mut own) = (0, Duration::from_secs(4));
        let told = modelless_testkit::wait::until(Duration::from_secs(5), || {
            (seconds, own) = (seconds + 2, own + Duration::from_secs(1));
            let host = watch.look(began + Duration::from_secs(seconds), Some(own));
            Ok(host.ok_or_else(|| "no tick has passed yet".to_owned()))
        });
        let host = told.expect("ticks pass");
        assert_eq!(host.own_milli, Some(500), "a second of every two");
        assert!(host.cores > 0 && host.busy_milli <= u32::from(host.cores) * 1_000, "{host:?}");
    }
}
