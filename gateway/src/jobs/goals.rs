//! The goals of a job, as they are kept: as they were given, and in which output space it is answered.

use crate::access::Policies;
use crate::errors::ApiError;
use crate::goals::Given;
use crate::view::TaskView;
use modelless_types::{Goals, Micros, Priority, SpaceId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// An input waits at a node for spare time no longer than this before it is sent anew.
const WITHIN: Micros = Micros::from_secs(30);

/// Of one job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobGoals {
    /// A JSON object, as it was given.
    pub(crate) given: Box<RawValue>,
    /// All its answers are in this one: those of two cannot be compared.
    pub(crate) space: SpaceId,
}

impl JobGoals {
    /// From what a client gave, and what holds for it beside that.
    pub(crate) fn new(
        task: &TaskView,
        given: Option<&RawValue>,
        policies: &Policies,
    ) -> Result<(Self, Goals), ApiError> {
        let given = match given {
            Some(given) => given.to_owned(),
            None => RawValue::from_string("{}".to_owned()).map_err(|_| ApiError::malformed("`goals`"))?,
        };
        let goals = resolved(task, &given, (policies, false))?;
        let space = task.space_of(&goals);
        Ok((Self { given, space }, goals))
    }

    /// For its inputs now; those of a job that is pressed for time go as ordinary queries of the lowest level.
    pub(crate) fn resolved(
        &self,
        task: &TaskView,
        (policies, pressed): (&Policies, bool),
    ) -> Result<Goals, ApiError> {
        resolved(task, &self.given, (policies, pressed))
    }
}

fn resolved(
    task: &TaskView,
    given: &RawValue,
    (policies, pressed): (&Policies, bool),
) -> Result<Goals, ApiError> {
    let mut goals = Given::default();
    goals.add_json(given)?;
    let Given { latency, priority, fallback, .. } = &goals;
    let taken = [
        ("latency_ms", latency.is_some()),
        ("priority", priority.is_some()),
        ("fallback", fallback.is_some()),
    ];
    if let Some((name, _)) = taken.iter().find(|(_, given)| *given) {
        let message = format!(
            "{name} is no goal of a job: its inputs are answered when nothing else has to be; say by when it should be done with \
             `deadline_s`"
        );
        return Err(ApiError::bad_goal(message));
    }
    let (mut goals, _) = policies.apply(task, &task.resolve(&goals)?)?;
    // Those are a job's own, whatever a policy says.
    goals.latency = Some(WITHIN);
    goals.priority = if pressed { lowest() } else { Priority::SPARE };
    Ok(goals)
}

fn lowest() -> Priority {
    Priority::new(Priority::LOWEST).unwrap_or_default()
}
