//! From a scenario as it is written to the world that is run.

use super::file::{self, Application, Figures, File, Mix, Task};
use super::profiles::{self, Row};
use super::traffic::{self, Part, micros};
use super::{Behaviour, Fault, LinkSpec, NodeSpec, Planner, Rented, Scenario, Stream, TaskSpec, VariantSpec};
use crate::Error;
use modelless_decision::route::Limits;
use modelless_types::{
    Accuracy, BatchPoint, Batching, Bytes, CostPer1k, Engine, Goals, ModelId, Prefer, PricePerHour, Priority,
    SpaceId, StageTime, TaskId, VariantId,
};
use std::collections::BTreeMap;
use std::path::Path;

/// What a scenario may read beside itself.
pub(crate) struct Files<'a> {
    read: &'a dyn Fn(&str) -> Result<String, String>,
    pub(crate) duration_s: f64,
}

impl<'a> Files<'a> {
    pub(crate) fn new(read: &'a dyn Fn(&str) -> Result<String, String>, duration_s: f64) -> Self {
        Self { read, duration_s }
    }

    pub(crate) fn read(&self, name: &str) -> Result<String, String> {
        (self.read)(name)
    }
}

impl File {
    /// From text.
    pub fn parse(text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| super::unknown::explained(&error.to_string()))
    }

    /// From a file, with its rates times `load`, ready to run.
    pub fn load(path: &Path, load: f64) -> Result<Scenario, Error> {
        Self::load_starting(path, load, 1.0)
    }

    /// The same with loads of models and starts of machines that take so many times as long.
    pub(crate) fn load_starting(path: &Path, load: f64, times: f64) -> Result<Scenario, Error> {
        let at = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let mut file = Self::parse(&at(path).map_err(Error::Scenario)?)?;
        file.load *= load;
        file.loading.factor *= times;
        file.renting.factor *= times;
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        file.build(&|name| at(&folder.join(name)))
    }

    /// The world it describes; `read` gives the text of files that it names.
    pub fn build(&self, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Scenario, Error> {
        let scenario = self.world(&Files::new(read, self.duration_s)).map_err(Error::Scenario)?;
        scenario.check().map_err(Error::Scenario)?;
        Ok(scenario)
    }

    fn world(&self, files: &Files<'_>) -> Result<Scenario, String> {
        if !(self.load.is_finite() && self.load >= 0.0) {
            return Err(format!("`load` is {}, but it must be 0 or more", self.load));
        }
        let mut names = Names::default();
        for task in &self.task {
            names.add(task, self, files).map_err(|why| format!("task {}: {why}", task.name))?;
        }
        let mut streams = Vec::new();
        for application in &self.application {
            let stream = application.stream(&names, Part::whole(self.load), files);
            streams.push(stream.map_err(|why| format!("application {}: {why}", application.name))?);
        }
        for mix in &self.mix {
            streams.extend(
                mix_streams(mix, &names, self.load, files)
                    .map_err(|why| format!("mix {}: {why}", mix.name))?,
            );
        }
        let mut nodes = Vec::new();
        let mut places = BTreeMap::new();
        for pool in &self.pool {
            for number in 1..=pool.count {
                places.insert(format!("{}/{number}", pool.name), nodes.len());
                let node = self.node(pool, number, &names);
                nodes.push(node.map_err(|why| format!("pool {}: {why}", pool.name))?);
            }
        }
        let pinned = self.pool.iter().any(|pool| pool.pinned.is_some());
        let planner = Planner {
            every: micros(self.planner.every_s)?,
            discretionary_permille: permille(self.planner.discretionary)?,
        };
        let faults = self.fault.iter().map(|fault| fault.world(&places, &names));
        let link = LinkSpec {
            one_way: micros(self.network.one_way_ms / 1e3)?,
            jitter: micros(self.network.jitter_ms / 1e3)?,
        };
        Ok(Scenario {
            gateways: self.gateways,
            limits: Limits { announce: self.announce, ..Limits::default() },
            link,
            heartbeat: micros(self.network.heartbeat_ms / 1e3)?,
            faults: faults.collect::<Result<_, _>>()?,
            start: micros(self.warm_up_s)?,
            duration: micros(self.duration_s)?,
            planner: (!pinned).then_some(planner),
            busy: busy(self.planner.busy)?,
            ..Scenario::new(&self.name, names.tasks, nodes, streams)
        })
    }

    fn node(&self, pool: &file::Pool, number: u32, names: &Names) -> Result<NodeSpec, String> {
        let pinned = pool.pinned.iter().flatten().map(|name| names.variant(name));
        let lanes = pool.lanes.max(1);
        let price = pool.usd_per_hour / f64::from(lanes);
        let price = PricePerHour::parse_usd(&format!("{price:.6}"));
        let mut node =
            NodeSpec::with(lanes, Bytes::from_mib(pool.memory_mib), pinned.collect::<Result<_, _>>()?);
        node.worker.devices[0].price = price
            .ok_or_else(|| format!("`usd_per_hour` is {}, but it must be 0 or more", pool.usd_per_hour))?;
        node.worker.hand_back = true;
        node.worker.foresight = self.planner.foresight;
        let least = pool.least.unwrap_or(pool.count);
        let at_start = pool.at_start.unwrap_or(least);
        if !(least <= at_start && at_start <= pool.count) {
            return Err(format!(
                "it must be `least` <= `at_start` <= `count`: {least}, {at_start}, {}",
                pool.count
            ));
        }
        let rented = Rented {
            at_start: number <= at_start,
            start_up: micros(pool.start_up_s * self.renting.factor)?,
            scatter: self.renting.scatter.clamp(0.0, 10.0),
        };
        Ok(NodeSpec {
            class: pool.class.clone(),
            zone: pool.zone.clone(),
            far: micros(pool.far_ms / 1e3)?,
            load_scatter: self.loading.scatter,
            load_failure: self.loading.failure,
            unload: micros(self.loading.unload_ms / 1e3)?,
            rented: (number > least).then_some(rented),
            ..node
        })
    }
}

pub(crate) fn permille(share: f64) -> Result<u16, String> {
    Accuracy::floor_from_f64(share)
        .and_then(|share| u16::try_from(share.ppm() / 1_000).ok())
        .ok_or_else(|| format!("{share} is no share: it must be from 0 to 1"))
}

fn accuracy(value: f64) -> Result<Accuracy, String> {
    Accuracy::floor_from_f64(value).ok_or_else(|| format!("{value} is no accuracy: it must be from 0 to 1"))
}

fn busy(share: f64) -> Result<f64, String> {
    (share > 0.0 && share <= 1.0)
        .then_some(share)
        .ok_or_else(|| format!("`busy` is {share}, but it must be above 0 and at most 1"))
}

/// What is registered, by the names that the file gives it.
#[derive(Default)]
pub(crate) struct Names {
    tasks: Vec<TaskSpec>,
    of_tasks: Vec<String>,
    variants: BTreeMap<String, VariantId>,
    models: BTreeMap<String, ModelId>,
}

impl Names {
    fn task(&self, name: &str) -> Result<TaskId, String> {
        let found = self.of_tasks.iter().position(|known| known == name);
        let found =
            found.ok_or_else(|| format!("there is no task {name}; there is {}", self.of_tasks.join(", ")))?;
        Ok(self.tasks[found].id)
    }

    fn variant(&self, name: &str) -> Result<VariantId, String> {
        let known = || self.variants.keys().cloned().collect::<Vec<_>>().join(", ");
        self.variants
            .get(name)
            .copied()
            .ok_or_else(|| format!("there is no variant {name}; there is {}", known()))
    }

    fn add(&mut self, task: &Task, file: &File, files: &Files<'_>) -> Result<(), String> {
        let mut rows = Vec::new();
        for variant in &task.variant {
            rows.extend(written(variant, file)?);
        }
        for import in &task.profiles {
            rows.extend(profiles::rows(import, &files.read(&import.file)?)?);
        }
        if rows.is_empty() {
            return Err("it has no variant: give `[[task.variant]]` or `[[task.profiles]]`".into());
        }
        for copy in 1..=task.copies.max(1) {
            let end = if task.copies > 1 { format!("-{copy}") } else { String::new() };
            self.add_one(task, &end, &rows, file.loading.factor)?;
        }
        Ok(())
    }

    fn add_one(&mut self, task: &Task, end: &str, rows: &[Row], factor: f64) -> Result<(), String> {
        let name = format!("{}{end}", task.name);
        if self.of_tasks.contains(&name) {
            return Err(format!("there are two tasks {name}"));
        }
        let id = TaskId(u32::try_from(self.tasks.len() + 1).map_err(|_| "too many tasks")?);
        let space = SpaceId(id.0);
        let mut by_name: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in rows {
            by_name.entry(&row.variant).or_default().push(row);
        }
        let mut variants = Vec::new();
        for (at, (variant, rows)) in by_name.into_iter().enumerate() {
            let ordinal = u8::try_from(at).map_err(|_| "a task has at most 256 variants")?;
            let full = format!("{variant}{end}");
            let number = VariantId(u32::try_from(self.variants.len() + 1).map_err(|_| "too many variants")?);
            if self.variants.insert(full.clone(), number).is_some() {
                return Err(format!("there are two variants {full}"));
            }
            let next = ModelId(u32::try_from(self.models.len() + 1).map_err(|_| "too many models")?);
            let model = *self.models.entry(format!("{}{end}", rows[0].model)).or_insert(next);
            variants.push(spec(&full, (number, model, ordinal, space), &rows, factor)?);
        }
        let defaults = Goals {
            accuracy: task.accuracy.map(accuracy).transpose()?,
            latency: task.latency_ms.map(|ms| micros(ms / 1e3)).transpose()?,
            ..Goals::default()
        };
        let batching = match &task.batching {
            Some(text) => Some(text.parse::<Batching>().map_err(|_| {
                format!("`batching` is {text:?}; it is deadline, aimd, fixed:SIZE:WAIT or off")
            })?),
            None => None,
        };
        self.of_tasks.push(name);
        self.tasks.push(TaskSpec { id, default_space: space, defaults, batching, variants });
        Ok(())
    }
}

fn spec(
    name: &str,
    (id, model, ordinal, space): (VariantId, ModelId, u8, SpaceId),
    rows: &[&Row],
    factor: f64,
) -> Result<VariantSpec, String> {
    let first = rows[0];
    let mut on = BTreeMap::new();
    for row in rows {
        let memory = Bytes::from_mib(1).0;
        let memory =
            Bytes(modelless_decision::Moments { mean: row.memory_mib * float(memory), var: 0.0 }.mean().0);
        let load_time = micros(row.load_ms / 1e3 * factor)?;
        let behaviour = Behaviour {
            latency: row.latency.clone(),
            max_batch: row.max_batch,
            memory,
            load_time,
            profiled: row.profiled.clone(),
        };
        if row.accuracy != first.accuracy {
            return Err(format!("{name} has two accuracies"));
        }
        on.insert(row.class.clone(), behaviour);
    }
    let any = on.values().next().expect("one for each row");
    Ok(VariantSpec {
        name: name.into(),
        id,
        model,
        engine: Engine::Onnx,
        ordinal,
        space,
        accuracy: first.accuracy,
        max_batch: any.max_batch,
        threads: 1,
        latency: any.latency.clone(),
        decode: first.decode,
        decoded: first.decoded.clone(),
        prepare: first.prepare,
        memory: any.memory,
        load_time: any.load_time,
        on,
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(n: u64) -> f64 {
    n as f64
}

/// A variant that is written out, on each class of devices there is.
fn written(variant: &file::Variant, file: &File) -> Result<Vec<Row>, String> {
    let stage = |ms: f64| StageTime { mean_us: ms * 1e3, var_us2: (0.1 * ms * 1e3).powi(2), samples: 0 };
    let row = |class: &str, figures: &Figures| -> Result<Row, String> {
        let point = |&(batch, ms): &(u32, f64)| {
            let (mean_us, sd) = (ms * 1e3, figures.scatter * ms * 1e3);
            BatchPoint { batch, mean_us, var_us2: sd * sd, p99_us: mean_us + 2.326 * sd, samples: 1 }
        };
        let mut latency: Vec<BatchPoint> = figures.batch_ms.iter().map(point).collect();
        latency.sort_by_key(|point| point.batch);
        let largest = latency.last().ok_or_else(|| format!("{} has no `batch_ms`", variant.name))?.batch;
        Ok(Row {
            variant: variant.name.clone(),
            model: variant.model.clone().unwrap_or_else(|| variant.name.clone()),
            class: class.into(),
            accuracy: accuracy(variant.accuracy)?,
            latency,
            decode: stage(variant.decode_ms),
            decoded: Vec::new(),
            prepare: stage(variant.prepare_ms),
            memory_mib: float(figures.memory_mib),
            load_ms: figures.load_ms,
            max_batch: figures.max_batch.unwrap_or(largest),
            profiled: None,
        })
    };
    let classes: std::collections::BTreeSet<&str> =
        file.pool.iter().map(|pool| pool.class.as_str()).collect();
    let figures = |class: &str| variant.on.get(class).or_else(|| variant.on.get("any"));
    let rows: Vec<Row> =
        classes.iter().filter_map(|class| Some(row(class, figures(class)?))).collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Err(format!("no pool is of a class that {} runs on", variant.name));
    }
    Ok(rows)
}

impl Application {
    fn stream(&self, names: &Names, part: Part, files: &Files<'_>) -> Result<Stream, String> {
        let prefer = match &self.prefer {
            Some(text) => Some(
                Prefer::parse(text)
                    .ok_or_else(|| format!("`prefer` is {text:?}; it is accuracy, cost or latency"))?,
            ),
            None => None,
        };
        let goals = Goals {
            accuracy: self.accuracy.map(accuracy).transpose()?,
            latency: self.latency_ms.map(|ms| micros(ms / 1e3)).transpose()?,
            max_cost: match self.usd_per_1000 {
                Some(usd) => Some(CostPer1k::from_usd_f64(usd).ok_or_else(|| format!("{usd} is no price"))?),
                None => None,
            },
            prefer,
            priority: Priority::new(self.priority).ok_or("`priority` is from 0 to 9")?,
            ..Goals::default()
        };
        let arrivals = traffic::arrivals(&self.arrivals, part, files)?;
        Ok(Stream {
            bytes: Bytes(self.kib * 1_024),
            gives_up: self.gives_up,
            ..Stream::new(&self.name, names.task(&self.task)?, arrivals, goals)
        })
    }
}

fn mix_streams(mix: &Mix, names: &Names, load: f64, files: &Files<'_>) -> Result<Vec<Stream>, String> {
    let parts = traffic::parts(mix, &names.of_tasks)?.into_iter().enumerate();
    let stream = |(number, asker): (usize, traffic::Asker)| {
        let application = Application {
            name: format!("{}-{}", mix.name, number + 1),
            task: asker.task,
            accuracy: asker.floor,
            latency_ms: asker.bound_ms,
            usd_per_1000: None,
            prefer: mix.prefer.clone(),
            priority: mix.priority,
            gives_up: 0.0,
            kib: mix.kib,
            arrivals: mix.arrivals.clone(),
        };
        application.stream(names, Part { number, share: asker.share, load }, files)
    };
    parts.map(stream).collect()
}

impl file::Fault {
    fn world(&self, places: &BTreeMap<String, usize>, names: &Names) -> Result<Fault, String> {
        let place = |node: &String| {
            places
                .get(node)
                .copied()
                .ok_or_else(|| format!("there is no node {node}: they are POOL/NUMBER, from 1"))
        };
        let time = |seconds: &f64| micros(*seconds);
        let back = |seconds: &Option<f64>| seconds.map(micros).transpose();
        Ok(match self {
            Self::NodeDown { node, at_s, back_s } => {
                Fault::NodeDown { node: place(node)?, at: time(at_s)?, back: back(back_s)? }
            }
            Self::GatewayDown { gateway, at_s, back_s } => Fault::GatewayDown {
                gateway: gateway.saturating_sub(1),
                at: time(at_s)?,
                back: back(back_s)?,
            },
            Self::Crash { node, at_s, variant } => {
                let id = names.variant(variant)?;
                let mut all = names.tasks.iter().flat_map(|task| &task.variants);
                let model = all.find(|v| v.id == id).map(|v| v.model).ok_or("no such variant")?;
                Fault::RunnerCrash { node: place(node)?, at: time(at_s)?, model }
            }
            Self::Slow { node, at_s, until_s, factor } => {
                Fault::Slow { node: place(node)?, at: time(at_s)?, until: time(until_s)?, factor: *factor }
            }
            Self::Pause { node, at_s, until_s } => {
                Fault::Pause { node: place(node)?, at: time(at_s)?, until: time(until_s)? }
            }
            Self::Drain { node, at_s } => Fault::Drain { node: place(node)?, at: time(at_s)? },
        })
    }
}
