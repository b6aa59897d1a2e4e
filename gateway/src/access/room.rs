//! Room that uploads take of their tenant's quota of artefacts while they come, so that several at once do not each take all that is left.

use super::meter::Meter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// Of one tenant, at this gateway.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Held by whoever reckons what is left: two would take the same.
    reckoning: Mutex<()>,
    taken: AtomicU64,
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

    /// Takes as much more as is left of a quota beside what `used` tells, up to `most`, unless that is less than `least`.
    pub(crate) async fn take<E>(
        &self,
        quota: u64,
        (least, most): (u64, u64),
        used: impl Future<Output = Result<u64, E>>,
    ) -> Result<Result<(), NoRoom>, E> {
        let room = &self.meter.room;
        let _turn = room.reckoning.lock().await;
        // Looked at first: an upload is noted before it gives back, so one that ends meanwhile counts twice rather than never.
        let taken = room.taken.load(Ordering::Acquire);
        let alone = quota.saturating_sub(used.await?);
        let left = alone.saturating_sub(taken);
        if left < least {
            return Ok(Err(NoRoom { alone }));
        }
        let more = left.min(most);
        room.taken.fetch_add(more, Ordering::AcqRel);
        self.bytes.fetch_add(more, Ordering::Relaxed);
        Ok(Ok(()))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.meter.room.taken.fetch_sub(self.bytes(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::Quota;

    async fn take(of: &Reserved, bounds: (u64, u64), used: u64) -> Result<(), NoRoom> {
        of.take(1_000, bounds, async { Ok::<_, ()>(used) }).await.unwrap()
    }

    #[tokio::test]
    async fn uploads_at_one_time_share_what_is_left_and_give_it_back() {
        let meter = Arc::new(Meter::new(String::new(), Quota::default(), Arc::default()));
        let [first, second] = [(); 2].map(|()| Reserved::nothing(Arc::clone(&meter)));
        assert_eq!(take(&first, (600, 600), 100).await, Ok(()));
        assert_eq!(take(&second, (301, 301), 100).await, Err(NoRoom { alone: 900 }));
        assert_eq!(take(&second, (1, 500), 100).await, Ok(()));
        assert_eq!((first.bytes(), second.bytes()), (600, 300), "as much as was left");
        assert_eq!(take(&first, (1, 1), 100).await, Err(NoRoom { alone: 900 }));
        drop(second);
        assert_eq!(take(&first, (300, 900), 100).await, Ok(()));
        assert_eq!(first.bytes(), 900);
    }
}
