//! Machines of EC2 through a whole life while everything goes wrong that can: rounds of one fault each, in an order that a seed gives.
//!
//! EC2 is moto's server with what it lacks, and machines are rooms of this one that boot the user data which is shipped; see
//! `testkit::hypervisor`. So it tells what the scheduler does about faults, and not how long EC2 takes for anything.
//!
//! A round begins when all machines have been there for a while. Then one fault happens, most with the end of a machine, so that
//! another is needed meanwhile. It is over when EC2 has exactly the wanted machines, all written down and joined. As many are wanted as
//! there may be, so whoever ever asks for one too many is seen: moto counts what runs whenever a machine comes. An orphan is a machine
//! that EC2 has and that nobody alive has written down by its id, looked up right after the scheduler was killed. Time below
//! the minimum is how long fewer served than are wanted; a list of EC2 is believed 15 s after a machine's state changed, which is part
//! of it. Meanwhile clients ask for one variant; a node that is no machine has it too, so that what is lost was lost with a machine.
//!
//! At last none are wanted, and all must go.

mod fault;
mod queries;
mod watch;
mod world;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Rng, hypervisor, stats, wait};
use serde_json::{Value, json};

use super::cluster::{count, ms, unix_ms};
use super::{Check, Context, Measure, Outcome};
use crate::say;
use fault::Fault;
use queries::{Queries, Seen};
use watch::{Found, Look, Told};
use world::{BOOT, World, YOUNG};

pub(crate) const MEASURE: Measure = Measure {
    name: "ec2",
    what: "machines of EC2 (moto) through faults of every kind, kill -9 of the scheduler among them: most at once, orphans, time until all \
           serve again, queries lost",
    run: measure,
};

/// How long all is well before something goes wrong.
const CALM: Duration = Duration::from_secs(6);
/// How long EC2 does not answer.
const AWAY: Duration = Duration::from_secs(8);
/// Longer than usual, and no failure yet.
const SLOW_BOOT: Duration = Duration::from_secs(8);
/// So many are refused before there are machines again.
const REFUSED: usize = 2;
/// The scheduler is killed within so long of when it begins to ask for a machine.
const ASKS_FOR_MS: usize = 150;
/// A round that takes longer is none.
const PATIENCE: Duration = Duration::from_mins(4);
/// What users may rely on: all serve again within this of the end of what went wrong.
const BACK_WITHIN_S: f64 = 90.0;

fn measure(context: &Context) -> Result<Outcome> {
    if !hypervisor::possible() {
        // A full measure that measured nothing must not look like one that passed.
        ensure!(context.short, "no machine can be booted here: that takes root, `ip` and `unshare`");
        let result =
            "no machine can be booted here: that takes root, `ip` and `unshare`; nothing was measured"
                .to_owned();
        return Ok(Outcome {
            seeds: Vec::new(),
            repetitions: Value::Null,
            summary: Value::Null,
            result,
            checks: Vec::new(),
        });
    }
    let mut rng = Rng::new(context.seed);
    let (deck, wanted) = if context.short { (Fault::few(), 1) } else { (Fault::deck(&mut rng), 3) };
    let mut world = World::start(context, wanted)?;
    let queries = Queries::start(context, world.gateway)?;
    let mut rounds = Vec::new();
    for fault in deck {
        let round = world.round(fault, &mut rng).with_context(|| format!("with `{}`", fault.name()))?;
        say(round.line());
        rounds.push(round);
    }
    let asked = queries.end()?;
    let left = world.none_wanted()?;
    outcome(context, &world, &rounds, &asked, left)
}

/// What became of a fault.
struct Round {
    fault: Fault,
    began_unix_ms: u64,
    /// From its beginning until it was over.
    lasted: Duration,
    /// From then until all served again.
    back: Duration,
    kills: usize,
    /// Machines that nobody alive knew of.
    orphans: usize,
    told: Told,
}

impl Round {
    fn line(&self) -> String {
        let found: Vec<String> = self.told.found.iter().map(described).collect();
        format!(
            "{}: lasted {:.1} s, back after {:.1} s, {:.1} s below the minimum, {} at once; {} orphans{}{}",
            self.fault.name(),
            self.lasted.as_secs_f64(),
            self.back.as_secs_f64(),
            self.told.below.as_secs_f64(),
            self.told.most,
            self.orphans,
            if found.is_empty() { "" } else { ": " },
            found.join(", ")
        )
    }

    fn json(&self) -> Value {
        let found = |of: &Found| json!({"adopted": of.adopted, "after_ms": ms(of.after)});
        json!({
            "fault": self.fault.name(), "began_unix_ms": self.began_unix_ms, "lasted_ms": ms(self.lasted),
            "back_after_ms": ms(self.back), "below_the_minimum_ms": ms(self.told.below), "most_at_once": self.told.most,
            "scheduler_killed": self.kills, "orphans": self.orphans, "orphans_left": self.told.left,
            "found": self.told.found.iter().map(found).collect::<Vec<_>>(), "looks": self.told.looks,
            "looks_that_failed": self.told.failed,
        })
    }
}

fn described(found: &Found) -> String {
    let how = if found.adopted { "adopted" } else { "removed" };
    format!("{how} after {:.1} s", found.after.as_secs_f64())
}

/// A round that is under way.
struct Going {
    began: Instant,
    /// When what went wrong did not any longer, where that was later.
    over: Option<Instant>,
    kills: usize,
    /// Machines that nobody alive knew of.
    orphans: usize,
}

impl Going {
    fn over(&mut self) {
        self.over = Some(Instant::now());
    }
}

impl World {
    fn round(&mut self, fault: Fault, rng: &mut Rng) -> Result<Round> {
        let wanted = self.wanted;
        self.until("all are there", PATIENCE, |look| look.are(wanted))?;
        thread::sleep(CALM.max(YOUNG));
        let before = self.until("all are there still", PATIENCE, |look| look.are(wanted))?.running;
        let victim = rng.pick(&before.iter().cloned().collect::<Vec<_>>()).clone();
        self.watch.mark();
        let began_unix_ms = unix_ms()?;
        let mut going = Going { began: Instant::now(), over: None, kills: 0, orphans: 0 };
        let failed = self.failed()?;
        self.begin(fault, &victim)?;
        match fault {
            Fault::NoCapacity | Fault::NoQuota => {
                self.refused(failed + REFUSED)?;
                self.end(fault)?;
                going.over();
            }
            Fault::Hangs | Fault::Severed => {
                thread::sleep(AWAY);
                self.end(fault)?;
                going.over();
            }
            Fault::DiesYoung => {
                let look = self.until("another is there", PATIENCE, |look| look.are(wanted))?;
                self.ec2.end(look.running.difference(&before).next().context("another one")?)?;
                going.over();
            }
            Fault::Killed | Fault::KilledUnheard => {
                if fault == Fault::Killed {
                    self.until_asked(&before)?;
                    thread::sleep(Duration::from_millis(u64::try_from(rng.below(ASKS_FOR_MS))?));
                } else {
                    self.until_started(&before)?;
                }
                self.kill()?;
                self.count_orphans(&mut going)?;
                self.end(fault)?;
                self.start_again()?;
            }
            Fault::Forgotten | Fault::ForgottenAndFewer => self.forgotten(fault, &mut going)?,
            // What goes wrong with a machine is over as soon as it went wrong, and what moto does goes on until all serve again.
            Fault::PowerCut
            | Fault::TakenBack
            | Fault::FirstTypeOut
            | Fault::Throttled
            | Fault::Failing
            | Fault::Unheard
            | Fault::Late
            | Fault::SlowBoot
            | Fault::NeverJoins => {}
        }
        let gone = fault.ends_one() || fault == Fault::TakenBack;
        self.until("all serve again", PATIENCE, |look| {
            look.are(wanted) && !(gone && look.running.contains(&victim))
        })?;
        let over = going.over.unwrap_or(going.began);
        let (back, lasted) = (over.elapsed(), over - going.began);
        self.end(fault)?;
        let Going { kills, orphans, .. } = going;
        Ok(Round { fault, began_unix_ms, lasted, back, kills, orphans, told: self.watch.told()? })
    }

    /// It goes wrong from now on.
    fn begin(&self, fault: Fault, victim: &str) -> Result<()> {
        if let Some((on, _)) = fault.of_moto() {
            self.ec2.faults(&on)?;
        }
        if fault == Fault::Hangs {
            self.way.cut();
        } else if fault == Fault::Severed {
            self.way.sever();
        } else if fault == Fault::SlowBoot {
            self.hosts.boots_within(SLOW_BOOT);
        } else if fault == Fault::NeverJoins {
            self.hosts.leaves_dead(1);
        } else if fault == Fault::TakenBack {
            self.hosts.take_back(victim)?;
        }
        if fault.ends_one() {
            self.ec2.end(victim)?;
        }
        Ok(())
    }

    /// It does not go wrong any longer.
    fn end(&self, fault: Fault) -> Result<()> {
        if let Some((_, off)) = fault.of_moto() {
            self.ec2.faults(&off)?;
        }
        self.way.mend();
        self.hosts.boots_within(BOOT);
        Ok(())
    }

    fn forgotten(&mut self, fault: Fault, going: &mut Going) -> Result<()> {
        self.kill()?;
        self.forget()?;
        self.count_orphans(going)?;
        if fault == Fault::ForgottenAndFewer {
            let fewer = self.wanted - 1;
            self.want(fewer)?;
            self.start_again()?;
            self.until("fewer are there", PATIENCE, |look| look.are(fewer))?;
            self.kill()?;
            going.kills += 1;
            self.want(self.wanted)?;
            going.over();
        }
        self.start_again()
    }

    /// The scheduler was killed: which machines does nobody alive know of?
    fn count_orphans(&self, going: &mut Going) -> Result<()> {
        going.kills += 1;
        going.over();
        let orphans = self.look()?.orphans();
        going.orphans += orphans.len();
        self.watch.orphaned(orphans);
        Ok(())
    }

    /// Machines that failed so far.
    fn failed(&self) -> Result<usize> {
        let answer = self.ask("/v1/machines")?;
        let all = answer["machines"].as_array().context("a list of machines")?;
        Ok(all.iter().filter(|of| of["state"] == "failed").count())
    }

    fn refused(&self, many: usize) -> Result<()> {
        wait::until(PATIENCE, || {
            let failed = self.failed()?;
            Ok(if failed >= many { Ok(()) } else { Err(format!("{failed} failed, not {many}")) })
        })
    }

    /// Waits until the scheduler is about to ask for a machine, or does.
    fn until_asked(&self, before: &BTreeSet<String>) -> Result<()> {
        let asked = |look: &Look| {
            let new = |(id, state): &(String, String)| state == "asked" || !before.contains(id);
            look.open.iter().any(new)
        };
        self.until("one is asked for", PATIENCE, asked).map(drop)
    }

    /// Waits until EC2 has a machine that it had not: it is asked alone, so that this is seen before the scheduler sees it.
    fn until_started(&self, before: &BTreeSet<String>) -> Result<()> {
        wait::until(PATIENCE, || {
            let running = self.ec2.running()?;
            let new = running.iter().any(|one| one["id"].as_str().is_some_and(|id| !before.contains(id)));
            Ok(if new { Ok(()) } else { Err(format!("{} run", running.len())) })
        })
    }

    /// None are wanted any more; how many are there all the same in the end.
    fn none_wanted(&mut self) -> Result<usize> {
        self.kill()?;
        self.want(0)?;
        self.start_again()?;
        let gone =
            self.until("all are gone", PATIENCE, |look| look.running.is_empty() && look.open.is_empty());
        match gone {
            Ok(_) => Ok(0),
            Err(error) => {
                say(format!("machines are left: {error:#}"));
                Ok(self.ec2.running()?.len())
            }
        }
    }
}

fn outcome(context: &Context, world: &World, rounds: &[Round], asked: &Seen, left: usize) -> Result<Outcome> {
    let counted = world.ec2.counted()?;
    let found: Vec<&Found> = rounds.iter().flat_map(|round| &round.told.found).collect();
    let adopted = found.iter().filter(|found| found.adopted).count();
    let made: usize = rounds.iter().map(|round| round.orphans).sum();
    let unfound: usize = rounds.iter().map(|round| round.told.left).sum();
    let kills: usize = rounds.iter().map(|round| round.kills).sum();
    let seconds = |of: &dyn Fn(&Round) -> Duration, percent| -> Result<f64> {
        let all: Vec<f64> = rounds.iter().map(|round| of(round).as_secs_f64()).collect();
        stats::percentile(&all, percent).context("no rounds")
    };
    let (back, worst) = (seconds(&|round| round.back, 50)?, seconds(&|round| round.back, 100)?);
    let (below, longest) =
        (seconds(&|round| round.told.below, 50)?, seconds(&|round| round.told.below, 100)?);
    let after: Vec<f64> = found.iter().map(|found| found.after.as_secs_f64()).collect();
    let latest = after.iter().copied().fold(0.0, f64::max);
    let seen_most = rounds.iter().map(|round| round.told.most).max().unwrap_or_default();
    let most = u64::try_from(seen_most)?.max(counted.most);
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: rounds.iter().map(Round::json).collect(),
        summary: json!({
            "wanted": world.wanted, "machines_started": counted.started, "machines_ended": counted.ended, "most_at_once": most,
            "schedulers_killed": kills, "orphans_made": made, "orphans_adopted": adopted,
            "orphans_removed": found.len() - adopted, "orphans_left": unfound, "orphans_found_after_s_worst": latest,
            "back_after_s_median": back, "back_after_s_worst": worst, "below_the_minimum_s_median": below,
            "below_the_minimum_s_worst": longest, "queries": queries::json(asked), "machines_left": left,
        }),
        result: format!(
            "{} rounds of one fault each, {} wanted and at most as many: {} machines started and {} ended, {most} at once at most; all \
             serve again {back:.1} s after a fault (worst {worst:.1} s), below the minimum for {below:.1} s (worst {longest:.1} s); the \
             scheduler killed {kills} times, which left {made} machines that nobody knew of: {adopted} adopted, {} removed, {unfound} \
             left, the last found after {latest:.1} s; of {} queries {} without a word, {} wrong, {} late, {} refused by name{}",
            rounds.len(),
            world.wanted,
            counted.started,
            counted.ended,
            found.len() - adopted,
            asked.sent,
            asked.untold,
            asked.wrong,
            asked.late,
            asked.refusals(),
            asked.reasons()
        ),
        checks: vec![
            Check { what: "machines at once", value: count(most)?, limit: count(world.wanted)?, unit: "" },
            Check { what: "orphans left", value: count(unfound)?, limit: 0.0, unit: "" },
            Check { what: "orphans short of 1", value: (1.0 - count(made)?).max(0.0), limit: 0.0, unit: "" },
            Check { what: "machines left when none are wanted", value: count(left)?, limit: 0.0, unit: "" },
            Check { what: "worst time until all serve again", value: worst, limit: BACK_WITHIN_S, unit: "s" },
            Check { what: "queries without a word", value: count(asked.untold)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(asked.wrong)?, limit: 0.0, unit: "" },
        ],
    })
}
