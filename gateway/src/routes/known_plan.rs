//! The plan that holds, for those who only want to know what it says.

use modelless_decision::plan::Plan;
use modelless_store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The plan that holds, as the store had it a moment ago. It is read by one at a time, and what came of that is kept for a second, so
/// however many ask, and whether the store answers or not, it has little to do and nobody waits for long.
#[derive(Default)]
pub(crate) struct KnownPlan(tokio::sync::Mutex<Option<(Instant, Option<Arc<Plan>>)>>);

/// What was read is told for so long.
const PLAN_KEPT: Duration = Duration::from_secs(1);
/// Whoever asks has to do without it after that.
const PLAN_WITHIN: Duration = Duration::from_millis(250);

impl KnownPlan {
    pub(super) async fn read(&self, store: &dyn Store) -> Option<Arc<Plan>> {
        let mut known = self.0.lock().await;
        if let Some((_, plan)) = known.as_ref().filter(|(at, _)| at.elapsed() < PLAN_KEPT) {
            return plan.clone();
        }
        let plan = match timeout(PLAN_WITHIN, store.current_plan()).await {
            Ok(Ok(Some(saved))) => serde_json::from_str(&saved.json).ok().map(Arc::new),
            Ok(Ok(None)) => Some(Arc::default()),
            Ok(Err(_)) | Err(_) => None,
        };
        *known = Some((Instant::now(), plan.clone()));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::plan::Rest;
    use modelless_store::{MemStore, UnixMicros};
    use modelless_types::TaskId;

    #[tokio::test(start_paused = true)]
    async fn which_tasks_sleep_is_read_once_a_second_however_many_ask() {
        let (store, known) = (MemStore::new(), KnownPlan::default());
        assert_eq!(known.read(&store).await.as_deref(), Some(&Plan::default()), "there is none yet");
        let asleep = Plan { rest: [(TaskId(1), Rest { asleep: true, woken: 0 })].into(), ..Plan::default() };
        let saved = store.save_plan(None, serde_json::to_string(&asleep).unwrap(), UnixMicros(1)).await;
        assert!(saved.is_ok());
        let sleeps = async || known.read(&store).await.unwrap().sleeps(TaskId(1));
        assert!(!sleeps().await, "as it was read");
        tokio::time::advance(PLAN_KEPT).await;
        assert!(sleeps().await);
    }
}
