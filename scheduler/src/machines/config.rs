//! What is set for machines: a file of pools.

use modelless_decision::fleet::Pool;
use modelless_decision::hire;
use modelless_fleet::{Ec2Pool, KubernetesPool};
use modelless_planning::PoolSetting;
use modelless_types::{Micros, PricePerHour};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// All pools.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// What all machines of all pools together may cost, in dollars an hour.
    #[serde(default)]
    pub budget: Option<f64>,
    /// None is to be busier than this share of its time.
    #[serde(default = "busy")]
    pub busy: f64,
    /// A machine goes only when the highest demand of so long a time would do without it.
    #[serde(default = "remembered")]
    pub remembered_s: usize,
    /// Between rounds.
    #[serde(default = "interval")]
    pub interval_ms: u64,
    /// What machines cost by their types, for pools that do not say it themselves.
    #[serde(default)]
    pub prices: Option<Prices>,
    /// The pools, by name.
    pub pools: BTreeMap<String, PoolConfig>,
}

/// A list of prices, and where it comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Prices {
    /// Whose prices, where, on which terms.
    pub source: String,
    /// The day they were read, such as `2026-01-19`.
    pub as_of: String,
    /// Dollars an hour by type of machine.
    pub usd_per_hour: BTreeMap<String, f64>,
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolConfig {
    /// So many machines whatever is asked.
    #[serde(default)]
    pub least: u32,
    /// Never more.
    pub most: u32,
    /// Dollars an hour for one; what `prices` say of the dearest of its types, where nothing is said.
    #[serde(default)]
    pub price: Option<f64>,
    /// Batches that one runs side by side, where nobody of the pool has told yet.
    #[serde(default)]
    pub lanes: Option<u16>,
    /// Hardware that behaves alike, where nobody of the pool has told yet.
    #[serde(default)]
    pub device_class: Option<String>,
    /// What its machines are told of where they are.
    #[serde(default)]
    pub zone: Option<String>,
    /// How long one takes until its node is there, as long as none has come.
    #[serde(default)]
    pub start_up_s: Option<f64>,
    /// One that has not joined by then never will; four times what is usual, and half a minute at least, where nothing is said.
    #[serde(default)]
    pub joins_within_s: Option<f64>,
    /// One that has not ended what it had by then is taken away.
    #[serde(default = "minute")]
    pub drains_within_s: f64,
    /// One that ends so soon after it joined counts as one that failed to start.
    #[serde(default = "minute")]
    pub young_s: f64,
    /// One whose node is silent for so long is lost.
    #[serde(default = "lost_after")]
    pub lost_after_s: f64,
    /// Settings of its executors, `NAME=VALUE`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Its machines are processes on the scheduler's machine.
    #[serde(default)]
    pub process: Option<ProcessPool>,
    /// A script has its machines.
    #[serde(default)]
    pub command: Option<CommandPool>,
    /// EC2 has its machines.
    #[serde(default)]
    pub ec2: Option<Ec2Pool>,
    /// They are pods of Kubernetes.
    #[serde(default)]
    pub kubernetes: Option<KubernetesPool>,
}

/// Local processes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProcessPool {
    /// Where their output goes; a folder in the data folder where nothing is said.
    #[serde(default)]
    pub logs: Option<std::path::PathBuf>,
    /// The program and its first arguments, which `executor` and its settings follow; this one where nothing is said.
    #[serde(default)]
    pub run: Vec<String>,
}

/// The user's own script.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CommandPool {
    /// The program and its arguments; never through a shell.
    pub run: Vec<String>,
    /// How long it may take.
    #[serde(default = "minute")]
    pub within_s: f64,
    /// How often it is asked what there is.
    #[serde(default = "list_every")]
    pub list_every_s: f64,
}

fn busy() -> f64 {
    0.7
}
fn remembered() -> usize {
    hire::REMEMBERED
}
fn interval() -> u64 {
    1_000
}
fn minute() -> f64 {
    60.0
}
fn lost_after() -> f64 {
    30.0
}
fn list_every() -> f64 {
    10.0
}

impl Config {
    /// Refuses what cannot be done.
    pub fn check(&self) -> Result<(), String> {
        if self.pools.is_empty() {
            return Err("there are no pools; expected something like [pools.local]".to_owned());
        }
        if !(self.busy > 0.0 && self.busy <= 1.0) {
            return Err(format!(
                "`busy` is {}; expected a share above 0 and at most 1, such as 0.7",
                self.busy
            ));
        }
        if self.interval_ms < 10 {
            return Err(format!("`interval-ms` is {}; expected 10 or more, such as 1000", self.interval_ms));
        }
        if self.remembered_s < 10 {
            return Err(format!("`remembered-s` is {}; expected 10 or more, such as 60", self.remembered_s));
        }
        let mut least = 0.0;
        for (name, pool) in &self.pools {
            let wrong = |why: String| format!("pool `{name}`: {why}");
            pool.check(name).map_err(wrong)?;
            least += f64::from(pool.least) * self.priced(pool).map_err(wrong)?.0.as_usd();
        }
        match self.budget {
            Some(budget) if price(budget).is_none() => {
                Err(format!("`budget` is {budget}; expected dollars an hour"))
            }
            Some(budget) if least > budget => Err(format!(
                "the least machines of all pools cost {least} dollars an hour, and `budget` is {budget}; raise it, or \
                 want fewer"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// What a machine of a pool costs, and who says so. Whichever of its types comes, it is no dearer.
    pub(super) fn priced(&self, pool: &PoolConfig) -> Result<(PricePerHour, String), String> {
        if let Some(usd) = pool.price {
            let wrong = || format!("`price` is {usd}; expected dollars an hour, such as 0.085");
            return price(usd).map(|price| (price, "the pool's file".to_owned())).ok_or_else(wrong);
        }
        let types = pool.ec2.as_ref().map_or(&[][..], |ec2| &ec2.types);
        let Some(prices) = self.prices.as_ref().filter(|_| !types.is_empty()) else {
            return Err(
                "it has no `price`; expected dollars an hour for one machine, such as 0.085".to_owned()
            );
        };
        let mut dearest = (PricePerHour(0), "");
        for kind in types {
            let usd = prices.usd_per_hour.get(kind).copied().and_then(price);
            let of = usd.ok_or_else(|| {
                format!(
                    "[prices] has none for `{kind}`; add it under `usd-per-hour`, or give the pool a `price`"
                )
            })?;
            dearest = dearest.max((of, kind.as_str()));
        }
        let (of, kind) = dearest;
        Ok((of, format!("{} as of {}: {kind}", prices.source, prices.as_of)))
    }

    /// What is decided from, pool by pool.
    pub fn settings(&self) -> Vec<PoolSetting> {
        let setting = |(name, pool): (&String, &PoolConfig)| {
            // Checked when the file was read.
            let price = self.priced(pool).map(|(price, _)| price).unwrap_or_default();
            PoolSetting {
                rules: pool.rules(name, price),
                joins_within_is_set: pool.joins_within_s.is_some(),
                start_up: pool.prior(),
                device_class: pool.device_class.clone(),
                lanes: pool.lanes,
            }
        };
        self.pools.iter().map(setting).collect()
    }

    /// Dollars an hour for all machines of all pools.
    pub fn budget(&self) -> Option<PricePerHour> {
        self.budget.and_then(price)
    }
}

/// Dollars an hour.
fn price(usd: f64) -> Option<PricePerHour> {
    PricePerHour::parse_usd(&format!("{usd}"))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be a time of less than a year"
)]
fn micros(seconds: f64) -> Micros {
    Micros((seconds * 1e6) as u64)
}

impl PoolConfig {
    fn check(&self, name: &str) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
            return Err("a pool's name has 1 to 40 lower-case letters, digits and `-`".to_owned());
        }
        if self.least > self.most || self.most > 1_000 {
            let (least, most) = (self.least, self.most);
            return Err(format!("`least` is {least} and `most` {most}; expected `least` <= `most` <= 1000"));
        }
        let times = [self.start_up_s, self.joins_within_s, Some(self.drains_within_s), Some(self.young_s)];
        let limits = [Some(self.lost_after_s), self.command.as_ref().map(|command| command.within_s)];
        let wrong = times.into_iter().chain(limits).flatten().find(|s| !(*s >= 0.0 && *s < 86_400.0));
        if let Some(wrong) = wrong {
            return Err(format!("a time is {wrong}; expected seconds, less than a day"));
        }
        let from =
            [self.process.is_some(), self.command.is_some(), self.ec2.is_some(), self.kubernetes.is_some()];
        if from.iter().filter(|from| **from).count() != 1 {
            return Err(format!(
                "say where its machines come from, in one of [pools.{name}.process], [pools.{name}.command], [pools.{name}.ec2] and \
                 [pools.{name}.kubernetes]"
            ));
        }
        if let Some(ec2) = &self.ec2 {
            ec2.check()?;
        }
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.check(name)?;
        }
        if self.command.as_ref().is_some_and(|command| command.run.is_empty()) {
            return Err("`command.run` is empty; expected a program and its arguments".to_owned());
        }
        Ok(())
    }

    /// What a start-up takes where none was seen: a process seconds, a script's machine as long as a cloud's.
    fn prior(&self) -> Micros {
        let usual = if self.process.is_some() { 5.0 } else { 90.0 };
        micros(self.start_up_s.unwrap_or(usual))
    }

    pub(super) fn list_every(&self) -> Duration {
        let of_command = self.command.as_ref().map(|command| command.list_every_s);
        let of_cloud = self.ec2.as_ref().map(|ec2| ec2.list_every_s);
        let of_pods = self.kubernetes.as_ref().map(|kubernetes| kubernetes.list_every_s);
        let every = of_command.or(of_cloud).or(of_pods).unwrap_or(0.0);
        Duration::from_secs_f64(every.clamp(0.0, 3_600.0))
    }

    /// As the rules see it. How soon a machine joins, if that is not set, is learnt.
    fn rules(&self, name: &str, price: PricePerHour) -> Pool {
        // A process is in the list as soon as it was started, and a pod as soon as it was made: Kubernetes' lists are consistent. Others
        // tell of a machine when they have heard of it everywhere.
        let at_once = self.process.is_some() || self.kubernetes.is_some();
        let settles = if at_once { Micros::from_millis(1) } else { Micros::from_secs(15) };
        Pool {
            name: name.to_owned(),
            least: self.least,
            most: self.most,
            price,
            joins_within: self.joins_within_s.map_or(Micros::ZERO, micros),
            drains_within: micros(self.drains_within_s),
            settles,
            young: micros(self.young_s),
            lost_after: micros(self.lost_after_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(least: u32, most: u32) -> PoolConfig {
        let json = serde_json::json!({"least": least, "most": most, "price": 0.1, "process": {}});
        serde_json::from_value(json).unwrap()
    }

    fn config(name: &str, pool: PoolConfig) -> Config {
        let pools = BTreeMap::from([(name.to_owned(), pool)]);
        let (busy, remembered_s, interval_ms) = (busy(), remembered(), interval());
        Config { budget: None, busy, remembered_s, interval_ms, prices: None, pools }
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_the_pool_and_what_was_expected() {
        assert_eq!(config("cpu", pool(1, 4)).check(), Ok(()));
        let price = PoolConfig { price: Some(-1.0), ..pool(1, 4) };
        let nowhere = PoolConfig { process: None, ..pool(1, 4) };
        let command = CommandPool { run: Vec::new(), within_s: 1.0, list_every_s: 1.0 };
        let both = PoolConfig { command: Some(command.clone()), ..pool(1, 4) };
        let kubernetes = serde_json::from_value(serde_json::json!({"template": "A"})).unwrap();
        let pods = PoolConfig { kubernetes: Some(kubernetes), ..nowhere.clone() };
        let empty = PoolConfig { command: Some(command), ..nowhere.clone() };
        for (wrong, told) in [
            (config("cpu", pool(5, 4)), "`least` <= `most`"),
            (config("C P U", pool(1, 4)), "lower-case"),
            (config("cpu", price), "`price` is -1"),
            (config("cpu", nowhere), "[pools.cpu.process]"),
            (config("cpu", both), "in one of"),
            (config("cpu", pods), "`template` is \"A\""),
            (config("cpu", empty), "`command.run` is empty"),
            (config("cpu", PoolConfig { price: None, ..pool(1, 4) }), "it has no `price`"),
            (config("cpu", PoolConfig { young_s: f64::NAN, ..pool(1, 4) }), "a time is NaN"),
            (Config { busy: 0.0, ..config("cpu", pool(1, 4)) }, "`busy` is 0"),
            (Config { budget: Some(0.15), ..config("cpu", pool(2, 4)) }, "cost 0.2 dollars an hour"),
            (Config { pools: BTreeMap::new(), ..config("cpu", pool(1, 4)) }, "there are no pools"),
        ] {
            let why = wrong.check().unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn a_pool_without_a_price_costs_what_the_list_says_of_its_dearest_type() {
        let text = r#"
            [prices]
            source = "EC2 on demand, us-east-1"
            as-of = "2026-01-19"
            usd-per-hour = { "m6i.large" = 0.096, "m7i.large" = 0.1008 }
            [pools.cloud]
            most = 3
            [pools.cloud.ec2]
            region = "us-east-1"
            image = "ami-1"
            types = ["m6i.large", "m7i.large"]
            spot = "first"
        "#;
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.check(), Ok(()));
        let (price, source) = config.priced(&config.pools["cloud"]).unwrap();
        assert_eq!(price, PricePerHour(100_800));
        assert_eq!(source, "EC2 on demand, us-east-1 as of 2026-01-19: m7i.large");
        let unlisted: Config = toml::from_str(&text.replace("\"m7i.large\"]", "\"c5.large\"]")).unwrap();
        let why = unlisted.check().unwrap_err();
        assert!(why.starts_with("pool `cloud`: [prices] has none for `c5.large`"), "{why}");
        let wrong: Config = toml::from_str(&text.replace("region = \"us-east-1\"", "region = \"\"")).unwrap();
        assert!(wrong.check().unwrap_err().contains("`region` is"));
    }
}
