//! Goals as users give them: in the query string, in headers, or in a JSON object. One set of names everywhere.
//!
//! The same goal may come from several places if the values agree; two different values are an error, never a
//! silent choice. An unknown name is an error too: a misspelt floor that is ignored would be a broken one.

use crate::errors::ApiError;
use crate::suggest::{excerpt, suggest};
use http::HeaderMap;
use modelless_types::{Accuracy, CostPer1k, Fallback, Goals, Micros, Prefer, Priority};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Headers that are goals start so.
const HEADER_PREFIX: &str = "modelless-";
/// The longest latency bound: a connection is not kept for longer.
pub(crate) const LATENCY_MAX_MS: u64 = 3_600_000;
/// The highest price ceiling, in dollars per 1,000 queries.
pub(crate) const COST_MAX_USD: u64 = 1_000_000;
/// The longest name of a model or variant.
pub(crate) const NAME_MAX: usize = 200;

/// A goal, by what it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    Accuracy,
    LatencyMs,
    MaxCost,
    Prefer,
    Priority,
    Fallback,
    Model,
    Variant,
}

impl Goal {
    pub(crate) const ALL: [Self; 8] = [
        Self::Accuracy,
        Self::LatencyMs,
        Self::MaxCost,
        Self::Prefer,
        Self::Priority,
        Self::Fallback,
        Self::Model,
        Self::Variant,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::LatencyMs => "latency_ms",
            Self::MaxCost => "max_cost",
            Self::Prefer => "prefer",
            Self::Priority => "priority",
            Self::Fallback => "fallback",
            Self::Model => "model",
            Self::Variant => "variant",
        }
    }

    /// What a value must look like, for errors.
    const fn expected(self) -> &'static str {
        match self {
            Self::Accuracy => "a number from 0 to 1",
            Self::LatencyMs => "a number of milliseconds above 0 and at most 3600000",
            Self::MaxCost => "a number of dollars per 1,000 queries from 0 to 1000000",
            Self::Prefer => "one of accuracy, cost, latency",
            Self::Priority => {
                "a whole number from 0 to 9, where 1 is the highest level and 0 the default one"
            }
            Self::Fallback => "one of reject, best_effort",
            Self::Model => "the name of a model of this task, or NAME@VERSION",
            Self::Variant => "the name of a variant of this task",
        }
    }

    const fn is_number(self) -> bool {
        matches!(self, Self::Accuracy | Self::LatencyMs | Self::MaxCost | Self::Priority)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|goal| goal.name() == name)
    }

    /// From the part of a header's name behind the prefix. Header names are lower case here.
    fn of_header(rest: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|goal| {
            goal.name().len() == rest.len()
                && goal.name().bytes().zip(rest.bytes()).all(|(a, b)| a == b || (a == b'_' && b == b'-'))
        })
    }
}

/// Goals as given, pins still by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Given {
    pub(crate) accuracy: Option<Accuracy>,
    pub(crate) latency: Option<Micros>,
    pub(crate) max_cost: Option<CostPer1k>,
    pub(crate) prefer: Option<Prefer>,
    pub(crate) priority: Option<Priority>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) model: Option<String>,
    pub(crate) variant: Option<String>,
}

impl Given {
    /// From the query string and the headers of a request.
    pub(crate) fn of_request(query: Option<&str>, headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut given = Self::default();
        if let Some(query) = query {
            given.add_query(query)?;
        }
        given.add_headers(headers)?;
        Ok(given)
    }

    fn add_query(&mut self, query: &str) -> Result<(), ApiError> {
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let Some(goal) = Goal::named(&name) else { return Err(unknown(&name, "query parameter")) };
            self.set(goal, &value)?;
        }
        Ok(())
    }

    fn add_headers(&mut self, headers: &HeaderMap) -> Result<(), ApiError> {
        for (name, value) in headers {
            let Some(rest) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
            let Some(goal) = Goal::of_header(rest) else {
                let (name, near) = (excerpt(name.as_str()), suggest(rest, Goal::ALL.map(Goal::name)));
                return Err(ApiError::bad_goal(format!("the header {name} names no goal{near}")));
            };
            let value = value.to_str().map_err(|_| bad(goal, &String::from_utf8_lossy(value.as_bytes())))?;
            self.set(goal, value)?;
        }
        Ok(())
    }

    /// From the JSON object of a body.
    pub(crate) fn add_json(&mut self, goals: &RawValue) -> Result<(), ApiError> {
        let entries: Entries<'_> = serde_json::from_str(goals.get())
            .map_err(|error| ApiError::bad_goal(format!("`goals` must be an object of goals: {error}")))?;
        for (name, value) in entries.0 {
            let Some(goal) = Goal::named(&name) else { return Err(unknown(&name, "goal")) };
            let text = value.get();
            if text == "null" {
                continue; // as if it were not there: how many clients write "no value"
            }
            if text.starts_with('"') == goal.is_number() {
                return Err(bad(goal, text));
            }
            if goal.is_number() {
                // The digits as they were written: an accuracy is a decimal, not the float nearest to it.
                self.set(goal, text)?;
            } else {
                let text: String = serde_json::from_str(text).map_err(|_| bad(goal, text))?;
                self.set(goal, &text)?;
            }
        }
        Ok(())
    }

    /// A goal by its name, as a parameter gives it. Whether there is one of that name.
    pub(crate) fn add(&mut self, name: &str, text: &str) -> Result<bool, ApiError> {
        let Some(goal) = Goal::named(name) else { return Ok(false) };
        self.set(goal, text).map(|()| true)
    }

    /// The names of all goals.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        Goal::ALL.into_iter().map(Goal::name)
    }

    /// Another bound on the latency, in microseconds, beside `latency_ms`: the shorter one holds. 0 is none.
    pub(crate) fn within(&mut self, micros: u64) -> Result<(), ApiError> {
        if micros > LATENCY_MAX_MS * 1_000 {
            let message =
                format!("timeout is {micros}; it may be {} microseconds at most", LATENCY_MAX_MS * 1_000);
            return Err(ApiError::bad_goal(message));
        }
        if micros > 0 {
            let within = Micros(micros);
            self.latency = Some(self.latency.map_or(within, |latency| latency.min(within)));
        }
        Ok(())
    }

    fn set(&mut self, goal: Goal, text: &str) -> Result<(), ApiError> {
        let bad = || bad(goal, text);
        match goal {
            Goal::Accuracy => once(goal, &mut self.accuracy, Accuracy::parse_floor(text).ok_or_else(bad)?),
            Goal::LatencyMs => {
                let latency = Micros::parse_millis(text)
                    .filter(|latency| (1..=LATENCY_MAX_MS * 1_000).contains(&latency.0));
                once(goal, &mut self.latency, latency.ok_or_else(bad)?)
            }
            Goal::MaxCost => {
                let cost = CostPer1k::parse_usd(text).filter(|cost| cost.0 <= COST_MAX_USD * 1_000_000_000);
                once(goal, &mut self.max_cost, cost.ok_or_else(bad)?)
            }
            Goal::Prefer => once(goal, &mut self.prefer, Prefer::parse(text).ok_or_else(bad)?),
            Goal::Priority => {
                // `parse` would take "+1" and "007"; a level is one digit.
                let level = Some(text).filter(|text| text.len() == 1).and_then(|text| text.parse().ok());
                once(goal, &mut self.priority, level.and_then(Priority::new).ok_or_else(bad)?)
            }
            Goal::Fallback => once(goal, &mut self.fallback, Fallback::parse(text).ok_or_else(bad)?),
            Goal::Model => once(goal, &mut self.model, name(text).ok_or_else(bad)?),
            Goal::Variant => once(goal, &mut self.variant, name(text).ok_or_else(bad)?),
        }
    }

    /// As decisions take them, once the pins are resolved.
    pub(crate) fn resolved(
        &self,
        model: Option<modelless_types::ModelId>,
        variant: Option<modelless_types::VariantId>,
    ) -> Goals {
        Goals {
            accuracy: self.accuracy,
            latency: self.latency,
            max_cost: self.max_cost,
            prefer: self.prefer,
            priority: self.priority.unwrap_or_default(),
            fallback: self.fallback.unwrap_or_default(),
            model,
            variant,
            among: None,
        }
    }
}

fn name(text: &str) -> Option<String> {
    (!text.is_empty() && text.chars().count() <= NAME_MAX).then(|| text.to_owned())
}

fn once<T: PartialEq>(goal: Goal, place: &mut Option<T>, value: T) -> Result<(), ApiError> {
    match place {
        Some(known) if *known != value => Err(ApiError::bad_goal(format!(
            "{} is given twice with different values; give it once",
            goal.name()
        ))),
        Some(_) => Ok(()),
        None => {
            *place = Some(value);
            Ok(())
        }
    }
}

fn bad(goal: Goal, text: &str) -> ApiError {
    ApiError::bad_goal(format!("{} is {}; expected {}", goal.name(), excerpt(text), goal.expected()))
}

fn unknown(name: &str, what: &str) -> ApiError {
    let near = suggest(name, Goal::ALL.map(Goal::name));
    ApiError::bad_goal(format!("there is no {what} {}{near}", excerpt(name)))
}

/// The entries of a JSON object in their order, repeated names included.
pub(crate) struct Entries<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, headers: &[(&'static str, &str)], json: &str) -> Result<Given, ApiError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let mut given = Given::of_request(Some(query), &map)?;
        if !json.is_empty() {
            given.add_json(serde_json::from_str(json).unwrap())?;
        }
        Ok(given)
    }

    #[test]
    fn every_goal_can_be_given_in_every_place() {
        let expected = Given {
            accuracy: Accuracy::from_ppm(915_500),
            latency: Some(Micros(12_500)),
            max_cost: Some(CostPer1k(1_000_000)),
            prefer: Some(Prefer::Cost),
            priority: Priority::new(1),
            fallback: Some(Fallback::BestEffort),
            model: Some("cnn m".to_owned()),
            variant: Some("cnn_m-int8".to_owned()),
        };
        let query = "accuracy=0.9155&latency_ms=12.5&max_cost=0.001&prefer=cost&priority=1&fallback=best_effort\
                     &model=cnn+m&variant=cnn%5Fm-int8";
        let headers = [
            ("modelless-accuracy", "0.9155"),
            ("modelless-latency-ms", "12.5"),
            ("modelless-max-cost", "0.001"),
            ("modelless-prefer", "cost"),
            ("modelless-priority", "1"),
            ("modelless-fallback", "best_effort"),
            ("modelless-model", "cnn m"),
            ("modelless-variant", "cnn_m-int8"),
        ];
        let json = r#"{"accuracy": 0.9155, "latency_ms": 12.5, "max_cost": 1e-3, "prefer": "cost", "priority": 1,
            "fallback": "best_effort", "model": "cnn m", "variant": "cnn_m-int8"}"#;
        assert_eq!(read(query, &[], "").unwrap(), expected);
        assert_eq!(read("", &headers, "").unwrap(), expected);
        assert_eq!(read("", &[], json).unwrap(), expected);
        assert_eq!(
            read(query, &headers, json).unwrap(),
            expected,
            "saying the same thrice is no contradiction"
        );
        assert_eq!(
            read("", &[("content-type", "image/png")], r#"{"accuracy": null}"#).unwrap(),
            Given::default()
        );
    }

    #[test]
    fn two_values_of_one_goal_contradict_each_other_wherever_they_stand() {
        for (query, headers, json) in [
            ("accuracy=0.9&accuracy=0.8", &[][..], ""),
            ("accuracy=0.9", &[("modelless-accuracy", "0.91")][..], ""),
            ("accuracy=0.9", &[][..], r#"{"accuracy": 0.8}"#),
            ("", &[("modelless-prefer", "cost"), ("modelless-prefer", "latency")][..], ""),
            ("", &[][..], r#"{"latency_ms": 5, "latency_ms": 6}"#),
        ] {
            let error = read(query, headers, json).unwrap_err();
            assert_eq!(error.status.as_u16(), 400);
            assert!(error.message.contains("twice"), "{}", error.message);
        }
        assert!(read("accuracy=0.90", &[("modelless-accuracy", "0.9")], "").is_ok(), "0.90 is 0.9");
    }

    #[test]
    fn what_is_no_goal_is_named_with_what_is_expected() {
        for (query, named) in [
            ("accuracy=NaN", "a number from 0 to 1"),
            ("accuracy=1.01", "a number from 0 to 1"),
            ("accuracy=-0", "a number from 0 to 1"),
            ("accuracy=", "a number from 0 to 1"),
            ("accuracy=%ff", "a number from 0 to 1"),
            ("latency_ms=0", "milliseconds"),
            ("latency_ms=-1", "milliseconds"),
            ("latency_ms=inf", "milliseconds"),
            ("latency_ms=3600001", "milliseconds"),
            ("max_cost=1000001", "dollars"),
            ("max_cost=free", "dollars"),
            ("prefer=speed", "one of accuracy, cost, latency"),
            ("priority=10", "whole number"),
            ("priority=1.5", "whole number"),
            ("priority=%2B1", "whole number"),
            ("fallback=none", "one of reject, best_effort"),
            ("model=", "name of a model"),
        ] {
            let error = read(query, &[], "").unwrap_err();
            assert_eq!((error.status.as_u16(), error.reason), (400, "bad_goal"), "{query}");
            assert!(error.message.contains(named), "{query}: {}", error.message);
        }
    }

    #[test]
    fn unknown_names_are_refused_with_a_suggestion() {
        for (query, headers, json) in [
            ("acuracy=0.9", &[][..], ""),
            ("", &[("modelless-acuracy", "0.9")][..], ""),
            ("", &[][..], r#"{"Accuracy": 0.9}"#),
        ] {
            let error = read(query, headers, json).unwrap_err();
            assert!(error.message.contains("did you mean \"accuracy\"?"), "{}", error.message);
        }
    }

    #[test]
    fn json_goals_must_have_their_type() {
        for json in [
            r#"{"accuracy": "0.9"}"#,
            r#"{"accuracy": true}"#,
            r#"{"accuracy": [0.9]}"#,
            r#"{"prefer": 1}"#,
            r#"{"model": {}}"#,
            r#"{"variant": 7}"#,
            r#"{"model": "\ud800"}"#,
            "[]",
            "7",
            r#""accuracy""#,
        ] {
            assert_eq!(read("", &[], json).unwrap_err().status.as_u16(), 400, "{json}");
        }
    }
}
