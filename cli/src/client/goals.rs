//! Goals as options, passed on as they were written: the server is who judges them.

use clap::Args;
use serde_json::{Map, Value};

/// What to ask for besides an answer. All of it is optional.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GoalOptions {
    /// The floor: no variant measured below it may answer. 0 to 1.
    #[arg(long, value_name = "0..1")]
    accuracy: Option<String>,
    /// From arrival at the server to the answer.
    #[arg(long, value_name = "MS")]
    latency_ms: Option<String>,
    /// Ceiling in dollars per 1,000 queries.
    #[arg(long, value_name = "USD")]
    max_cost: Option<String>,
    /// What idle capacity is spent on: accuracy, cost or latency.
    #[arg(long, value_name = "GOAL")]
    prefer: Option<String>,
    /// 1 is the highest level, 9 the lowest, 0 the default one.
    #[arg(long, value_name = "0..9")]
    priority: Option<String>,
    /// What to do when latency or cost cannot be met: reject or best_effort.
    #[arg(long)]
    fallback: Option<String>,
    /// Answer with this model only.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Answer with this variant only.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
}

impl GoalOptions {
    /// As a query string, with its question mark; empty without goals.
    pub(crate) fn query(&self) -> String {
        let goals = [
            ("accuracy", &self.accuracy),
            ("latency_ms", &self.latency_ms),
            ("max_cost", &self.max_cost),
            ("prefer", &self.prefer),
            ("priority", &self.priority),
            ("fallback", &self.fallback),
            ("model", &self.model),
            ("variant", &self.variant),
        ];
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in goals {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        let query = query.finish();
        if query.is_empty() { query } else { format!("?{query}") }
    }
}

/// What to ask for of each input of a job. How long one may take is not among it: a job has a deadline as a whole.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct JobGoalOptions {
    /// The floor: no variant measured below it may answer. 0 to 1.
    #[arg(long, value_name = "0..1")]
    accuracy: Option<String>,
    /// Ceiling in dollars per 1,000 inputs.
    #[arg(long, value_name = "USD")]
    max_cost: Option<String>,
    /// What idle capacity is spent on: accuracy, cost or latency.
    #[arg(long, value_name = "GOAL")]
    prefer: Option<String>,
    /// Answer with this model only.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Answer with this variant only.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
}

impl JobGoalOptions {
    /// As a JSON object. What should be a number and is none goes as text, for the server to judge.
    pub(crate) fn json(&self) -> Value {
        let number =
            |text: &String| serde_json::from_str(text).map_or(Value::from(text.as_str()), Value::Number);
        let goals = [
            ("accuracy", self.accuracy.as_ref().map(number)),
            ("max_cost", self.max_cost.as_ref().map(number)),
            ("prefer", self.prefer.as_deref().map(Value::from)),
            ("model", self.model.as_deref().map(Value::from)),
            ("variant", self.variant.as_deref().map(Value::from)),
        ];
        let given = goals.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(given.collect::<Map<_, _>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_passed_on_as_written() {
        assert_eq!(GoalOptions::default().query(), "");
        let goals = GoalOptions {
            accuracy: Some("0.9155".to_owned()),
            variant: Some("a&b c".to_owned()),
            ..GoalOptions::default()
        };
        assert_eq!(goals.query(), "?accuracy=0.9155&variant=a%26b+c");
    }

    #[test]
    fn goals_of_a_job_are_json() {
        assert_eq!(JobGoalOptions::default().json(), serde_json::json!({}));
        let goals = JobGoalOptions {
            accuracy: Some("0.9".to_owned()),
            max_cost: Some("cheap".to_owned()),
            prefer: Some("cost".to_owned()),
            ..JobGoalOptions::default()
        };
        assert_eq!(goals.json().to_string(), r#"{"accuracy":0.9,"max_cost":"cheap","prefer":"cost"}"#);
    }
}
