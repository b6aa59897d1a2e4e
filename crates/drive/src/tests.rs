use crate::{Clock, Driver, Perform, Recorder, replay};
use modelless_decision::{Machine, Rank, Ranked, Wake};
use modelless_types::{Micros, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Says back what it hears; a number is said again that many microseconds later.
#[derive(Default)]
struct Parrot {
    alarms: Vec<(Time, u64)>,
    out: VecDeque<Said>,
    heard_at: Vec<Time>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum Heard {
    Word(u64),
    Later(u64),
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Said(u64);

impl Ranked for Heard {
    fn rank(&self) -> Rank {
        Rank::Arrival
    }
}

impl Machine for Parrot {
    type Event = Heard;
    type Action = Said;

    fn handle(&mut self, now: Time, event: Heard) {
        self.heard_at.push(now);
        match event {
            Heard::Word(word) => self.out.push_back(Said(word)),
            Heard::Later(us) => {
                self.alarms.push((now + Micros(us), us));
                self.alarms.sort_unstable();
            }
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        while self.alarms.first().is_some_and(|(at, _)| *at <= now) {
            self.out.push_back(Said(self.alarms.remove(0).1));
        }
    }

    fn poll_timeout(&self) -> Option<Wake> {
        self.alarms.first().map(|(at, _)| Wake { at: *at, why: "an alarm" })
    }

    fn poll_action(&mut self) -> Option<Said> {
        self.out.pop_front()
    }
}

#[derive(Clone, Default)]
struct Ears(Arc<Mutex<Vec<u64>>>);

impl Perform<Said> for Ears {
    fn perform(&self, said: Said) {
        self.0.lock().unwrap().push(said.0);
    }
}

fn driver(recorder: Option<Recorder>) -> Driver<Parrot> {
    Driver::new(Parrot::default(), Clock::start(), recorder)
}

#[tokio::test(start_paused = true)]
async fn times_rise_strictly_even_when_the_clock_stands_still() {
    let (driver, ears) = (driver(None), Ears::default());
    for word in 0..10 {
        driver.feed(Heard::Word(word), &ears);
    }
    let times = driver.look(|parrot, _| parrot.heard_at.clone());
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    assert_eq!(*ears.0.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_is_set_for_sooner_wakes_sooner() {
    let (driver, ears) = (driver(None), Ears::default());
    driver.feed(Heard::Later(10_000_000), &ears);
    let serving = driver.serve_timer(&ears);
    tokio::pin!(serving);
    let over = tokio::time::timeout(Duration::from_secs(1), &mut serving).await;
    assert!(over.is_err() && ears.0.lock().unwrap().is_empty());
    driver.feed(Heard::Later(5_000), &ears);
    let _ = tokio::time::timeout(Duration::from_millis(20), &mut serving).await;
    assert_eq!(*ears.0.lock().unwrap(), [5_000]);
    let _ = tokio::time::timeout(Duration::from_secs(10), &mut serving).await;
    assert_eq!(*ears.0.lock().unwrap(), [5_000, 10_000_000]);
}

/// Performing may feed the machine again: the lock is not held.
struct Echoing<'a>(&'a Driver<Parrot>, Ears);

impl Perform<Said> for Echoing<'_> {
    fn perform(&self, said: Said) {
        if said.0 > 0 {
            self.0.feed(Heard::Word(said.0 - 1), &Echoing(self.0, self.1.clone()));
        }
        self.1.perform(said);
    }
}

#[tokio::test]
async fn an_action_may_feed_the_machine_again() {
    let (driver, ears) = (driver(None), Ears::default());
    driver.feed(Heard::Word(3), &Echoing(&driver, ears.clone()));
    assert_eq!(*ears.0.lock().unwrap(), [0, 1, 2, 3]);
}

/// Says when it is asked to hand on what it has: by then everything that was written is there.
struct Flushed(Shared, std::sync::mpsc::SyncSender<String>);

impl Write for Flushed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        let text = String::from_utf8(self.0.0.lock().unwrap().clone()).unwrap();
        let _ = self.1.try_send(text); // whoever has not read the last ones needs no more
        Ok(())
    }
}

#[tokio::test]
async fn who_reads_along_has_all_that_was_recorded_once_nothing_more_comes() {
    let (told, hears) = std::sync::mpsc::sync_channel(16);
    let recorder = Recorder::to(Flushed(Shared::default(), told)).unwrap();
    let (driver, ears) = (driver(Some(recorder)), Ears::default());
    driver.feed(Heard::Word(7), &ears);
    // The driver is alive, so nothing is written because it ends.
    let last = || hears.recv_timeout(Duration::from_secs(20)).expect("it is handed on");
    while !last().contains("\"actions\":[7]") {}
    drop(driver);
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_recording_with_timers_replays_and_a_changed_one_does_not() {
    let (log, ears) = (Shared::default(), Ears::default());
    let driver = driver(Some(Recorder::to(log.clone()).unwrap()));
    driver.feed(Heard::Later(5_000), &ears);
    let _ = tokio::time::timeout(Duration::from_millis(20), driver.serve_timer(&ears)).await;
    driver.feed(Heard::Word(7), &ears);
    drop(driver);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let replayed = replay(&mut Parrot::default(), log.as_bytes()).unwrap();
    assert_eq!((replayed.inputs, replayed.actions), (3, 2));
    let changed = log.replace("\"actions\":[7]", "\"actions\":[8]");
    let difference = replay(&mut Parrot::default(), changed.as_bytes()).unwrap_err();
    assert!(difference.contains("line 3"), "{difference}");
    assert!(replay(&mut Parrot::default(), &b"nonsense"[..]).unwrap_err().contains("line 1"));
}
