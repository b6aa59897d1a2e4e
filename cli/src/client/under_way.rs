//! Registering at a server that measures while it is waited for: how much time each model has, and how far it is.

use super::{list, text};
use crate::progress::Phase;
use crate::way::{self, Budget};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// A server takes no budget of nothing.
const LEAST: Duration = Duration::from_millis(1);

/// A budget for all models together, of which each has a share by its variants. Sending takes none of it.
pub(super) struct Left {
    budget: Option<Duration>,
    variants: usize,
    /// When the one before was sent, and what it was given.
    before: Option<(Instant, Duration)>,
}

impl Left {
    /// For so many variants in all.
    pub(super) fn of(budget: Budget, variants: usize) -> Self {
        Self { budget: budget.0, variants, before: None }
    }

    /// What the next model may take, in milliseconds: what others did not need is left to it.
    pub(super) fn next(&mut self, variants: usize) -> Option<u64> {
        let budget = self.budget.as_mut()?;
        if let Some((sent, given)) = self.before {
            *budget = budget.saturating_sub(sent.elapsed().min(given));
        }
        let [own, all] =
            [variants, self.variants.max(1)].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let given = (*budget * own / all).max(LEAST);
        self.variants = self.variants.saturating_sub(variants);
        self.before = Some((Instant::now(), given));
        Some(u64::try_from(given.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Says how far a registration is, of all that the server has under way.
pub(super) fn going(phase: &mut Phase, seen: &Value, task: &str, (model, version): (&str, u32)) {
    let Some(one) = of(seen, task, (model, version)) else { return };
    let Some(variant) = one["variant"].as_str() else { return phase.at(model, text(one, "progress")) };
    let figure = |name: &str| one[name].as_u64().unwrap_or(0);
    let [at, of] = ["at", "of"].map(|name| usize::try_from(figure(name)).unwrap_or(usize::MAX));
    let left = one["left_ms"].as_u64().map(Duration::from_millis);
    phase.on_the_way((figure("permille"), 1_000), variant, text(one, "progress"), &way::words(at, of, left));
}

fn of<'a>(seen: &'a Value, task: &str, (model, version): (&str, u32)) -> Option<&'a Value> {
    let is_it =
        |one: &&Value| (text(one, "task"), text(one, "model")) == (task, model) && one["version"] == version;
    list(seen, "registrations").iter().find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn one_budget_is_for_all_models_and_what_one_did_not_need_is_left_to_the_others() {
        let secs = Duration::from_secs;
        let mut left = Left::of(Budget(Some(secs(60))), 6);
        assert_eq!(left.next(3), Some(30_000));
        tokio::time::advance(secs(10)).await;
        assert_eq!(left.next(2), Some(33_333), "two of three variants of 50 s");
        // It took longer than it was given, as sending the next one does.
        tokio::time::advance(secs(50)).await;
        assert_eq!(left.next(1), Some(16_666));
        tokio::time::advance(secs(99)).await;
        assert_eq!(left.next(1), Some(1), "never nothing");
        assert_eq!(Left::of(Budget(None), 6).next(3), None);
    }

    #[test]
    fn of_what_is_under_way_it_is_the_one_that_was_sent() {
        let one = |task: &str, version: u32| json!({"task": task, "model": "m", "version": version});
        let seen = json!({"registrations": [one("a", 1), one("b", 1), one("b", 2)]});
        assert_eq!(of(&seen, "b", ("m", 2)), Some(&one("b", 2)));
        assert_eq!((of(&seen, "b", ("n", 2)), of(&json!({}), "b", ("m", 2))), (None, None));
    }
}
