//! One lane of a runner: one batch after another.

use super::backend::{self, Program};
use crate::prompt::take_short_turns;
use crate::ring::{self, Answer, Reply, Request, Ring};
use crate::shm::Mapping;
use crate::slot::{Layout, SLOTS_PER_LANE};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A variant on a lane.
pub(super) struct Seat {
    /// Of this lane alone. What is behind it may be other lanes' as well, where its library is safe to call so.
    pub(super) program: Box<dyn Program>,
    pub(super) layout: Arc<Layout>,
    pub(super) arena: Mapping,
}

/// The variants of a lane. The control thread adds and removes; the lane takes one for the time of a run.
pub(super) type Seats = Arc<Mutex<BTreeMap<u32, Arc<Mutex<Seat>>>>>;

/// Serves a lane for the rest of the process.
pub(super) fn serve(ring: &Ring, seats: &Seats) {
    take_short_turns();
    let mut n = 0;
    while let Some(request) = ring.receive(n) {
        // A batch may have stood here behind a long one, and all its clients have gone away meanwhile.
        let revoked = ring.is_revoked(n).then_some(Reply { run_us: 0, answer: Answer::Revoked });
        ring.reply(n, &revoked.unwrap_or_else(|| answer(request, seats)));
        n = ring::next(n);
    }
    panic!("a request that is none; this is a bug");
}

fn answer(request: Request, seats: &Seats) -> Reply {
    let seat = seats.lock().unwrap_or_else(PoisonError::into_inner).get(&request.variant).cloned();
    let Some(seat) = seat else {
        return Reply { run_us: 0, answer: Answer::Failed("the variant is not loaded".to_owned()) };
    };
    let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = request.slot as usize;
    if slot >= SLOTS_PER_LANE || request.parts.rows() == 0 || !seat.layout.takes(&request.parts) {
        return Reply { run_us: 0, answer: Answer::Failed("a slot or batch that does not exist".to_owned()) };
    }
    let Seat { program, layout, arena } = &mut *seat;
    backend::run(&mut **program, layout, arena, slot, &request.parts)
}
