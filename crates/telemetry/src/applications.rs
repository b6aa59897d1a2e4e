//! What each application asked, got and cost.

use crate::bounded::{Names, OTHERS};
use crate::histogram::{Histogram, TIMES};
use modelless_types::{CostPer1k, Micros};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// Applications that have series of their own.
const MOST: usize = 200;

type Sum = Counter<f64, AtomicU64>;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfApplication {
    tenant: String,
    application: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfTask {
    task: String,
    tenant: String,
    application: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfOutcome {
    tenant: String,
    application: String,
    outcome: &'static str,
}

#[derive(Debug)]
pub(crate) struct Families {
    names: Names,
    queries: Family<OfOutcome, Counter>,
    in_time: Family<OfApplication, Counter>,
    seconds: Family<OfApplication, Histogram, fn() -> Histogram>,
    device: Family<OfApplication, Sum>,
    cost: Family<OfApplication, Sum>,
    used: Family<OfTask, Gauge<f64, AtomicU64>>,
    share: Family<OfTask, Gauge<f64, AtomicU64>>,
}

/// How an application stands with a task of which not all can be answered in time.
#[derive(Clone, PartialEq, Debug)]
pub struct ShareGauge {
    /// The task.
    pub task: String,
    /// Whose application.
    pub tenant: String,
    /// Which.
    pub application: String,
    /// What it used lately of what the task got of devices, 0 to 1.
    pub used: f64,
    /// What it may count on, 0 to 1.
    pub share: f64,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            names: Names::new(MOST),
            queries: Family::default(),
            in_time: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(TIMES)),
            device: Family::default(),
            cost: Family::default(),
            used: Family::default(),
            share: Family::default(),
        }
    }
}

impl Families {
    pub(crate) fn register(&self, r: &mut Registry) {
        r.register(
            "application_queries",
            "Queries of an application by how they ended",
            self.queries.clone(),
        );
        let help = "Answers within their latency bound";
        r.register("application_answers_in_time", help, self.in_time.clone());
        let help = "From arrival at the gateway to the answer";
        r.register_with_unit("application_query", help, Unit::Seconds, self.seconds.clone());
        let help = "Time of devices that answers took: that of each batch, shared by its queries";
        r.register_with_unit("application_device", help, Unit::Seconds, self.device.clone());
        r.register("application_cost_usd", "What answers cost in time of devices", self.cost.clone());
        let help = "Of the devices' time that a task got lately what an application used, while not all are answered in time and applications share";
        r.register("application_share_used", help, self.used.clone());
        let help = "What an application may count on of it: what is reserved for it, or by weight among those who ask";
        r.register("application_share", help, self.share.clone());
    }

    /// How applications stand, in place of what was said before. Applications without series of their own are left out.
    pub(crate) fn set_shares(&self, shares: &[ShareGauge]) {
        self.used.clear();
        self.share.clear();
        for ShareGauge { task, tenant, application, used, share } in shares.iter().take(MOST) {
            if self.names.has_room(&format!("{tenant}\n{application}")) {
                let (task, tenant, application) = (task.clone(), tenant.clone(), application.clone());
                let labels = OfTask { task, tenant, application };
                self.used.get_or_create(&labels).set(*used);
                self.share.get_or_create(&labels).set(*share);
            }
        }
    }

    pub(crate) fn of(&self, tenant: &str, application: &str) -> AppMetrics {
        let own = self.names.has_room(&format!("{tenant}\n{application}"));
        let (tenant, application) = if own { (tenant, application) } else { (OTHERS, OTHERS) };
        let outcome = |outcome| {
            let (tenant, application) = (tenant.to_owned(), application.to_owned());
            self.queries.get_or_create_owned(&OfOutcome { tenant, application, outcome })
        };
        let labels = OfApplication { tenant: tenant.to_owned(), application: application.to_owned() };
        AppMetrics {
            answered: outcome("answered"),
            refused: outcome("refused"),
            bad_input: outcome("bad_input"),
            cancelled: outcome("cancelled"),
            in_time: self.in_time.get_or_create_owned(&labels),
            seconds: self.seconds.get_or_create_owned(&labels),
            device: self.device.get_or_create_owned(&labels),
            cost: self.cost.get_or_create_owned(&labels),
        }
    }
}

/// Those of one application, found beforehand.
#[derive(Clone, Debug)]
pub struct AppMetrics {
    answered: Counter,
    refused: Counter,
    bad_input: Counter,
    cancelled: Counter,
    in_time: Counter,
    seconds: Histogram,
    device: Sum,
    cost: Sum,
}

impl Default for AppMetrics {
    /// That nobody reads.
    fn default() -> Self {
        Self {
            answered: Counter::default(),
            refused: Counter::default(),
            bad_input: Counter::default(),
            cancelled: Counter::default(),
            in_time: Counter::default(),
            seconds: Histogram::new(TIMES),
            device: Sum::default(),
            cost: Sum::default(),
        }
    }
}

impl AppMetrics {
    /// An answer went out, which took so much of a device.
    pub fn answered(&self, total: Micros, in_time: bool, (device, cost): (Micros, CostPer1k)) {
        self.answered.inc();
        if in_time {
            self.in_time.inc();
        }
        self.seconds.observe(total.0);
        self.device.inc_by(crate::metrics::seconds(device));
        self.cost.inc_by(cost.as_usd() / 1_000.0);
    }

    /// An input of a job was answered, which took so much of a device.
    pub fn worked(&self, device: Micros, cost: CostPer1k) {
        self.device.inc_by(crate::metrics::seconds(device));
        self.cost.inc_by(cost.as_usd() / 1_000.0);
    }

    /// A query was refused.
    pub fn refused(&self) {
        self.refused.inc();
    }

    /// A query whose input cannot be used.
    pub fn bad_input(&self) {
        self.bad_input.inc();
    }

    /// A query whose client went away.
    pub fn cancelled(&self) {
        self.cancelled.inc();
    }
}
