//! Room that uploads take of their tenant's quota of artefacts while they come, so that several at once do not each take all that is left.

use super::meter::Meter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of one tenant, at this gateway.
#[derive(Debug, Default)]
pub(super) struct Room(Mutex<Taken>);

/// What uploads have taken together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Taken {
    bytes: u64,
    /// How often it changed: what was reckoned beside it holds as long as this does.
    changes: u64,
}

impl Room {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it `bytes`, if nothing has changed since it was `seen`.
    fn change(&self, seen: Taken, bytes: u64) -> bool {
        let mut taken = self.taken();
        let same = *taken == seen;
        if same {
            *taken = Taken { bytes, changes: seen.changes + 1 };
        }
        same
    }
}

/// What an upload has taken, given back when it goes: by then what it brought is noted, or came to nothing.
#[derive(Debug)]
pub(crate) struct Reserved {
    meter: Arc<Meter>,
    bytes: AtomicU64,
}

/// There is less left than was needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom {
    /// What would be if no other upload were under way, with what this one has.
    pub(crate) alone: u64,
}

impl Reserved {
    pub(super) fn nothing(meter: Arc<Meter>) -> Self {
        Self { meter, bytes: AtomicU64::new(0) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What all uploads have taken by now. To be looked at before what is noted: an upload is noted before it gives back.
    pub(crate) fn seen(&self) -> Taken {
        *self.meter.room.taken()
    }

    /// Takes as much more as is left of a quota beside what is `used`, up to `most`, unless that is less than `least`. `None` if something has
    /// changed since it was `seen`: it has to be reckoned anew.
    pub(crate) fn take(
        &self,
        seen: Taken,
        (quota, used): (u64, u64),
        (least, most): (u64, u64),
    ) -> Option<Result<(), NoRoom>> {
        let alone = quota.saturating_sub(used);
        let left = alone.saturating_sub(seen.bytes);
        if left < least {
            return Some(Err(NoRoom { alone }));
        }
        let more = left.min(most);
        self.meter.room.change(seen, seen.bytes + more).then(|| {
            self.bytes.fetch_add(more, Ordering::Relaxed);
            Ok(())
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut taken = self.meter.room.taken();
        *taken = Taken { bytes: taken.bytes - self.bytes(), changes: taken.changes + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::Quota;

    fn take(of: &Reserved, bounds: (u64, u64), used: u64) -> Result<(), NoRoom> {
        of.take(of.seen(), (1_000, used), bounds).expect("nothing changes meanwhile")
    }

    fn two() -> [Reserved; 2] {
        let meter = Arc::new(Meter::new(String::new(), Quota::default(), Arc::default()));
        [(); 2].map(|()| Reserved::nothing(Arc::clone(&meter)))
    }

    #[test]
    fn uploads_at_one_time_share_what_is_left_and_give_it_back() {
        let [first, second] = two();
        assert_eq!(take(&first, (600, 600), 100), Ok(()));
        assert_eq!(take(&second, (301, 301), 100), Err(NoRoom { alone: 900 }));
        assert_eq!(take(&second, (1, 500), 100), Ok(()));
        assert_eq!((first.bytes(), second.bytes()), (600, 300), "as much as was left");
        assert_eq!(take(&first, (1, 1), 100), Err(NoRoom { alone: 900 }));
        drop(second);
        assert_eq!(take(&first, (300, 900), 100), Ok(()));
        assert_eq!(first.bytes(), 900);
    }

    #[test]
    fn what_changes_while_it_is_reckoned_has_it_reckoned_anew() {
        let [first, second] = two();
        let seen = first.seen();
        take(&second, (700, 700), 0).unwrap();
        assert_eq!(first.take(seen, (1_000, 0), (300, 300)), None);
        let seen = first.seen();
        // As much is taken as before, but what the one that ended brought is noted by now.
        drop(second);
        let [third, _] = [(); 2].map(|()| Reserved::nothing(Arc::clone(&first.meter)));
        take(&third, (700, 700), 0).unwrap();
        assert_eq!(first.take(seen, (1_000, 0), (300, 300)), None);
        assert_eq!(first.bytes(), 0);
    }
}
