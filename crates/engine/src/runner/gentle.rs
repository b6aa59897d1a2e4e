//! Loading without getting in the way of what is served.
//!
//! Reading a model and making it runnable takes a core for as long as it takes, and nobody's answer should wait for it.
//! So it is done on a thread that gives way to all others, which ends with the load: without rights of its own a
//! process can make a thread give way but never take that back. Threads inherit it, too. Those that will run batches
//! are therefore started by the main thread, on behalf of the library: where it asks for them, and where it does not
//! ([`super::starting`]).
#![expect(unsafe_code, reason = "setting the priority of a thread, for which there is no safe binding")]

use super::starting::{Call, Handing};
use crate::control::Gently;
use crate::sandbox::GIVING_WAY;
use ort::environment::ThreadManager;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

type Work = Box<dyn FnOnce() + Send>;

enum Request {
    Start(Work, SyncSender<std::io::Result<JoinHandle<()>>>),
    Call(Call),
    Done,
}

/// Starts threads that give way to nobody.
#[derive(Clone, Debug)]
pub struct Threads(Option<SyncSender<Request>>);

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Start(..) => "Start",
            Self::Call(_) => "Call",
            Self::Done => "Done",
        })
    }
}

/// Does some work, giving way as far as is wanted.
pub(super) fn gently<T: Send>(gently: Gently, work: impl FnOnce(&Threads) -> T + Send) -> T {
    if gently == Gently::Not {
        return work(&Threads(None));
    }
    let (sender, requests) = sync_channel(1);
    std::thread::scope(|scope| {
        let loader = scope.spawn(move || {
            give_way(gently);
            let main = sender.clone();
            let _handing = Handing::over(Box::new(move |call| {
                main.send(Request::Call(call)).map_err(|error| match error.0 {
                    Request::Call(call) => call,
                    Request::Start(..) | Request::Done => unreachable!("it gives back what it was given"),
                })
            }));
            let result = work(&Threads(Some(sender.clone())));
            // What was loaded keeps a sender, so its being dropped would not tell.
            let _ = sender.send(Request::Done);
            result
        });
        loop {
            match requests.recv() {
                Ok(Request::Start(work, reply)) => drop(reply.send(start(work))),
                Ok(Request::Call(call)) => call.make(),
                Ok(Request::Done) | Err(_) => break,
            }
        }
        drop(requests);
        loader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn start(work: Work) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name("pool".to_owned()).spawn(work)
}

/// For the rest of the calling thread's life.
pub(super) fn give_way(gently: Gently) {
    let gave = match gently {
        Gently::Not => 0,
        Gently::Idle => {
            // SAFETY: all zeros is a priority of this policy, which has only one.
            let none = unsafe { std::mem::zeroed() };
            // SAFETY: a struct that is read. 0 is the calling thread.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) }
        }
        // SAFETY: numbers only. 0 is the calling thread.
        Gently::Nice => unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, GIVING_WAY) },
    };
    if gave != 0 {
        eprintln!("runner: loading does not give way: {}", std::io::Error::last_os_error());
    }
}

impl ThreadManager for Threads {
    type Thread = JoinHandle<()>;

    fn create(&self, work: impl FnOnce() + Send + 'static) -> ort::Result<Self::Thread> {
        let mut work: Work = Box::new(work);
        if let Some(main) = &self.0 {
            let (reply, started) = sync_channel(1);
            match main.send(Request::Start(work, reply)) {
                Ok(()) => {
                    let started = started.recv().unwrap_or_else(|error| Err(std::io::Error::other(error)));
                    return started.map_err(|error| ort::Error::new(error.to_string()));
                }
                // The load is over, and with it what this thread would have inherited.
                Err(error) => match error.0 {
                    Request::Start(back, _) => work = back,
                    Request::Call(_) | Request::Done => {
                        return Err(ort::Error::new("no work to start a thread for"));
                    }
                },
            }
        }
        start(work).map_err(|error| ort::Error::new(error.to_string()))
    }

    fn join(thread: Self::Thread) -> ort::Result<()> {
        // A panic aborts the process, so there is none to tell of.
        let _ = thread.join();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: a number. 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn the_work_gives_way_and_the_threads_that_it_starts_do_not() {
        let normal = policy();
        let (own, started) = gently(Gently::Idle, |threads| {
            let (sender, receiver) = sync_channel(1);
            let thread = threads.create(move || sender.send(policy()).unwrap()).unwrap();
            Threads::join(thread).unwrap();
            (policy(), receiver.recv().unwrap())
        });
        assert_eq!((own, started), (libc::SCHED_IDLE, normal));
        assert_eq!(policy(), normal, "whoever asked for it goes on as before");
    }

    #[test]
    fn threads_can_be_started_after_the_load_too() {
        let normal = policy();
        for how in [Gently::Not, Gently::Nice] {
            let threads = gently(how, Threads::clone);
            let (sender, receiver) = sync_channel(1);
            let thread = threads.create(move || sender.send(policy()).unwrap()).unwrap();
            Threads::join(thread).unwrap();
            assert_eq!(receiver.recv().unwrap(), normal);
        }
    }
}
