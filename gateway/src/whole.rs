//! A request as a whole, whichever door it came by and however many queries it asks: what Triton counts. What is counted of each query
//! stands in [`crate::ask`].

use crate::ask::Answered;
use crate::core::Core;
use crate::errors::ApiError;
use crate::view::TaskView;
use modelless_telemetry::Took;
use modelless_types::{Refusal, Time, VariantId};

/// A request that has not ended. Dropped before its end, its client went away.
pub(crate) struct Whole<'a> {
    pub(crate) core: &'a Core,
    pub(crate) task: &'a TaskView,
    pub(crate) arrived: Time,
    /// Who answers it, once that is known, and the slowest of the queries that it ran.
    by: Option<(VariantId, Option<Took>)>,
    ended: bool,
}

impl<'a> Whole<'a> {
    pub(crate) fn of(core: &'a Core, task: &'a TaskView, arrived: Time) -> Self {
        Self { core, task, arrived, by: None, ended: false }
    }

    /// All its queries were answered. The variant whose number stands for all that answered: the least accurate, so that nothing is
    /// claimed that is not true of all.
    pub(crate) fn answered(&mut self, parts: &[Answered]) -> VariantId {
        let accuracy = |id| self.task.variant(id).and_then(|variant| variant.accuracy);
        let all = parts.iter().map(|part| part.answer.variant);
        let version = all.min_by_key(|id| (accuracy(*id), *id)).unwrap_or(VariantId(0));
        let ran = parts.iter().filter(|part| part.answer.variant == version && part.cached.is_none());
        self.by = Some((version, ran.max_by_key(|part| part.total).map(Answered::took)));
        version
    }

    /// What is to be told of it is at hand.
    pub(crate) fn end<T>(mut self, result: Result<T, ApiError>) -> Result<T, ApiError> {
        self.ended = true;
        match &result {
            Ok(_) => self.count_answer(),
            Err(error) => self.count_failure(error.reason),
        }
        result
    }

    fn count_answer(&self) {
        let Some((version, slowest)) = &self.by else { return };
        if let Some(variant) = self.task.variant(*version) {
            let total = self.core.driver.clock().now() - self.arrived;
            variant.served.answered(total, slowest.as_ref());
        }
    }

    fn count_failure(&self, reason: &str) {
        self.task.metrics.failed(reason, self.core.driver.clock().now() - self.arrived);
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.count_failure(Refusal::Cancelled.name());
        }
    }
}
