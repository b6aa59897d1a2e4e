//! How things look in answers: milliseconds, dollars and accuracies from 0 to 1, and with every figure where it
//! came from.

mod catalog;
mod decision;
mod fleet;
mod jobs;
mod plans;
mod profile;
mod trials;

pub(crate) use catalog::{
    flag_change, live_accuracy, measuring, model, model_in_full, task, task_in_full, unavailable,
    usual_metric, variants, version_change,
};
pub(crate) use decision::{decision, origins};
pub(crate) use fleet::{
    cautious, demand, explained, finding, members, narrowed, nodes, replica, replicas, task_name, transition,
};
pub(crate) use jobs::{Output, estimate, job, output};
pub(crate) use plans::{change, event, plan_in_short, step};
pub(crate) use trials::trial;
