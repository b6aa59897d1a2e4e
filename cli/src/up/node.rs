//! What a node is told about itself: by options, by the environment, by a file; what nobody told is detected.
//!
//! An option counts before the file, and either before what was found. What is detected is `executor::node`'s.

use super::remotes::{self, RemoteEntry};
use crate::environment::PREFIX;
use crate::exit::usage;
use clap::Args;
use modelless_engine::MAX_LANES;
use modelless_executor::{Config, LEAST_MEMORY, LONGEST_NAME, MOST_CORES, MOST_PARTS, is_name, node};
use modelless_types::{Bytes, PricePerHour};
use modelless_wire::Gpu;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What this machine is to others.
#[derive(Args, Debug, Default)]
pub(crate) struct NodeOptions {
    /// What is said here about this machine (TOML) instead of being detected: name, pool, zone, cores, lanes, memory,
    /// price, device-class, gpus, the most parts of like length that a batch is cut into, and what servers of remote variants
    /// cost and want to see. Options count before it.
    #[arg(long, value_name = "FILE")]
    node_file: Option<PathBuf>,
    /// The node's name; one that comes back under its name is the same node. Otherwise `local`.
    #[arg(long, value_name = "NAME", env = "MODELLESS_NODE")]
    node_name: Option<String>,
    /// Machines that are scaled together. Otherwise `default`.
    #[arg(long, value_name = "NAME", env = "MODELLESS_POOL")]
    pool: Option<String>,
    /// Where machines fail together, such as a cloud's zone. Otherwise what Kubernetes or cloud-init wrote down here, or `local`.
    #[arg(long, value_name = "NAME", env = "MODELLESS_ZONE")]
    zone: Option<String>,
    /// Cores to count on. Otherwise those that this process may use.
    #[arg(long, value_name = "N")]
    cores: Option<u16>,
    /// Batches that run side by side. Otherwise one fewer than the processor's cores, and at least one.
    #[arg(long, value_name = "N")]
    lanes: Option<u16>,
    /// Memory for models, such as 2GiB. Otherwise half of what this machine or container has.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// What an hour of a lane costs, in dollars. Otherwise what the shipped list says of the processor, or 0.05, shown
    /// as assumed.
    #[arg(long, value_name = "USD")]
    price: Option<String>,
}

/// The same in a file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct NodeFile {
    name: Option<String>,
    pool: Option<String>,
    zone: Option<String>,
    cores: Option<u16>,
    lanes: Option<u16>,
    memory: Option<String>,
    price: Option<Price>,
    device_class: Option<String>,
    gpus: Option<Vec<GpuEntry>>,
    parts: Option<u16>,
    remotes: BTreeMap<String, RemoteEntry>,
}

/// A price as a number or in quotes.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(super) enum Price {
    Number(f64),
    Text(String),
}

impl Price {
    pub(super) fn text(self) -> String {
        match self {
            Self::Number(value) => value.to_string(),
            Self::Text(value) => value,
        }
    }
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct GpuEntry {
    name: String,
    memory: Option<String>,
    /// Where one has none, that of the list.
    price: Option<Price>,
}

impl NodeFile {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let wrong = |why: String| usage(format!("--node-file {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        // The error names the line, what stands there, and what is known.
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }
}

/// A value and who gave it, for what is said when it is wrong.
struct Given<T> {
    value: T,
    by: String,
}

impl NodeOptions {
    /// What the environment says of this machine, for a role that has no such options.
    pub(crate) fn of_environment() -> Self {
        let said = |name: &str| std::env::var(format!("{PREFIX}{name}")).ok().filter(|text| !text.is_empty());
        Self { node_name: said("NODE"), pool: said("POOL"), zone: said("ZONE"), ..Self::default() }
    }

    /// Fills in the node's part of an executor's settings.
    pub(crate) fn fill(&self, config: &mut Config) -> anyhow::Result<()> {
        let file = self.node_file.as_deref().map(NodeFile::read).transpose()?.unwrap_or_default();
        let by_file = |what: &str| match &self.node_file {
            Some(path) => format!("{what} in {}", path.display()),
            None => what.to_owned(),
        };
        let pick = |option: Option<&String>, flag: &str, in_file: Option<String>, what: &str| {
            let option = option.map(|value| Given { value: value.clone(), by: flag.to_owned() });
            option.or_else(|| in_file.map(|value| Given { value, by: by_file(what) }))
        };
        let count = |option: Option<u16>, flag: &str, in_file: Option<u16>, what: &str| {
            let option = option.map(|value| Given { value, by: flag.to_owned() });
            option.or_else(|| in_file.map(|value| Given { value, by: by_file(what) }))
        };
        for (option, flag, in_file, what, into) in [
            (&self.node_name, "--node-name", file.name, "name", &mut config.name),
            (&self.pool, "--pool", file.pool, "pool", &mut config.pool),
            (&self.zone, "--zone", file.zone, "zone", &mut config.zone),
        ] {
            if let Some(given) = pick(option.as_ref(), flag, in_file, what) {
                if what == "zone" {
                    given.by.clone_into(&mut config.zone_source);
                }
                *into = label(given)?;
            }
        }
        if config.zone_source.is_empty() {
            match node::zone() {
                Ok(found) => (config.zone, config.zone_source) = (found.name, found.source),
                Err(why) => config.zone_source = why.unwrap_or_else(|| "nothing here tells one".to_owned()),
            }
        }

        let mut hardware = node::hardware();
        if let Some(cores) = count(self.cores, "--cores", file.cores, "cores") {
            hardware.cores = at_least_one(&cores, MOST_CORES)?;
        }
        if let Some(gpus) = file.gpus {
            let by = by_file("gpus");
            let gpus = gpus.into_iter().map(|entry| gpu(entry, &by)).collect::<anyhow::Result<Vec<_>>>()?;
            (hardware.gpus, config.gpu_prices) = gpus.into_iter().unzip();
        }
        config.device_class = match file.device_class {
            Some(value) => label(Given { value, by: by_file("device-class") })?,
            None => node::device_class(&hardware),
        };
        config.lanes = match count(self.lanes, "--lanes", file.lanes, "lanes") {
            Some(lanes) => at_least_one(&lanes, MAX_LANES)?,
            None => hardware.cores.saturating_sub(1).clamp(1, MAX_LANES),
        };
        config.memory = match pick(self.memory.as_ref(), "--memory", file.memory, "memory") {
            Some(given) => {
                let memory = memory(&given)?;
                if memory < LEAST_MEMORY {
                    let by = given.by;
                    return Err(usage(format!("{by} {memory} is too little; give at least {LEAST_MEMORY}")));
                }
                memory
            }
            None => half(hardware.memory),
        };
        let price = match (&self.price, file.price) {
            (Some(text), _) => Some(Given { value: text.clone(), by: "--price".to_owned() }),
            (None, Some(price)) => Some(Given { value: price.text(), by: by_file("price") }),
            (None, None) => None,
        };
        let price = price.map(|given| self::price(&given));
        (config.price, config.price_origin) = node::lane_price(&config.device_class, price.transpose()?);
        config.hardware = hardware;
        if let Some(value) = file.parts {
            let parts = at_least_one(&Given { value, by: by_file("parts") }, MOST_PARTS)?;
            config.parts = u8::try_from(parts)?;
        }
        if let Some(path) = &self.node_file {
            let folder = path.parent().unwrap_or(Path::new(""));
            let wrong = |why| usage(format!("--node-file {}: {why}", path.display()));
            config.remotes = remotes::servers(file.remotes, folder).map_err(wrong)?;
        }
        Ok(())
    }
}

fn at_least_one(given: &Given<u16>, most: u16) -> anyhow::Result<u16> {
    let Given { value, by } = given;
    if (1..=most).contains(value) {
        return Ok(*value);
    }
    Err(usage(format!("{by} is {value}; it must be at least 1 and at most {most}")))
}

/// Names that are shown, stored, and labels of metrics.
fn label(given: Given<String>) -> anyhow::Result<String> {
    let Given { value, by } = given;
    if is_name(&value) {
        return Ok(value);
    }
    Err(usage(format!(
        "{by} {value:?} is no name; expected 1 to {LONGEST_NAME} letters, digits or any of - _ . :"
    )))
}

fn gpu(entry: GpuEntry, by: &str) -> anyhow::Result<(Gpu, PricePerHour)> {
    let GpuEntry { name, memory: text, price: given } = entry;
    let told = |value: String| Given { value, by: by.to_owned() };
    let memory = text.map(|value| memory(&told(value))).transpose()?;
    let price = given.map(|value| price(&told(value.text()))).transpose()?;
    let price = price.unwrap_or_else(|| node::gpu_price(&name));
    Ok((Gpu { name, memory }, price))
}

fn price(given: &Given<String>) -> anyhow::Result<PricePerHour> {
    let Given { value, by } = given;
    let wrong = || usage(format!("{by} {value} is no price; expected dollars per hour such as 0.05"));
    PricePerHour::parse_usd(value).ok_or_else(wrong)
}

fn memory(given: &Given<String>) -> anyhow::Result<Bytes> {
    let Given { value, by } = given;
    let wrong =
        || usage(format!("{by} {value} is no amount of memory; expected something like 512MiB or 2GiB"));
    size(value).ok_or_else(wrong)
}

/// A number of bytes with a unit. Units of a thousand and of 1024 are told apart.
fn size(text: &str) -> Option<Bytes> {
    const UNITS: [(&str, u64); 10] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("g", 1 << 30),
        ("b", 1),
    ];
    let text = text.trim().to_ascii_lowercase();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)))
        .unwrap_or((text.as_str(), 1));
    let number: u64 = digits.trim().parse().ok()?;
    number.checked_mul(unit).map(Bytes)
}

/// The same for an option.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    size(text).ok_or_else(|| format!("{text:?} is no size; expected one such as 512MiB or 4GiB"))
}

/// What models may take of this machine where nobody said otherwise.
pub(crate) fn half_of_memory() -> Bytes {
    half(modelless_executor::node::hardware().memory)
}

/// What measuring may take beside what serves, which may grow meanwhile: most of what is free now, and never more than half of the machine.
pub(crate) fn left_of_memory() -> Bytes {
    left(half_of_memory(), modelless_executor::node::free_memory())
}

fn left(half: Bytes, free: Option<Bytes>) -> Bytes {
    let most = free.map_or(half, |free| Bytes(free.0 / 4 * 3));
    half.min(most).max(LEAST_MEMORY)
}

/// The other half is for everything else; where nothing is known, something small.
fn half(memory: Bytes) -> Bytes {
    match memory {
        Bytes(0) => Bytes::from_mib(1_024),
        Bytes(bytes) => Bytes(bytes / 2).max(LEAST_MEMORY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use modelless_engine::ServerFiles;
    use modelless_wire::PriceOrigin;

    #[test]
    fn measuring_beside_serving_takes_most_of_what_is_free_and_never_more_than_half_of_the_machine() {
        let gib = |count: u64| Bytes(count << 30);
        assert_eq!(left(gib(8), Some(gib(4))), gib(3));
        assert_eq!(left(gib(8), Some(gib(15))), gib(8));
        assert_eq!(left(gib(8), None), gib(8), "nothing tells");
        assert_eq!(left(gib(8), Some(Bytes(0))), LEAST_MEMORY);
    }

    fn filled(options: &NodeOptions) -> anyhow::Result<Config> {
        let mut config = Config::default();
        options.fill(&mut config)?;
        Ok(config)
    }

    fn by_file(text: &str, options: NodeOptions) -> anyhow::Result<Config> {
        let file = modelless_testkit::temp_dir("node")?;
        let path = file.path().join("node.toml");
        fs::write(&path, text)?;
        filled(&NodeOptions { node_file: Some(path), ..options })
    }

    const FILE: &str = r#"
        name = "edge-1"
        pool = "edge"
        zone = "eu-1a"
        cores = 6
        memory = "3GiB"
        price = 0.07
        [[gpus]]
        name = "NVIDIA L4"
        memory = "24GB"
        [[gpus]]
        name = "other"
        price = 0.25
    "#;

    #[test]
    fn a_file_says_what_would_be_detected_and_options_count_before_it() {
        let config = by_file(FILE, NodeOptions::default()).unwrap();
        assert_eq!(
            (config.name.as_str(), config.pool.as_str(), config.zone.as_str()),
            ("edge-1", "edge", "eu-1a")
        );
        assert_eq!((config.hardware.cores, config.lanes), (6, 5));
        assert!(config.device_class.ends_with(":6:nvidia-l4+other"), "{}", config.device_class);
        assert_eq!(config.memory, Bytes(3 << 30));
        assert_eq!((config.price.0, config.price_origin), (70_000, PriceOrigin::Declared));
        let gpus = [("NVIDIA L4", Some(Bytes(24_000_000_000))), ("other", None)];
        assert_eq!(config.hardware.gpus, gpus.map(|(name, memory)| Gpu { name: name.into(), memory }));
        assert_eq!(config.gpu_prices, [804_800, 250_000].map(PricePerHour), "by the list, and as declared");

        let options = NodeOptions {
            zone: Some("us-2b".into()),
            lanes: Some(2),
            price: Some("0.1".into()),
            ..NodeOptions::default()
        };
        let config = by_file(FILE, options).unwrap();
        assert_eq!((config.zone.as_str(), config.lanes, config.price.0), ("us-2b", 2, 100_000));
        assert_eq!(config.zone_source, "--zone", "who says so is told");
        assert_eq!(config.pool, "edge");
        let text = "device-class = \"cpu:amd-epyc-9r14:4\"\nprice = \"0.5\"\nparts = 2";
        let config = by_file(text, NodeOptions::default()).unwrap();
        assert_eq!(config.parts, 2);
        assert_eq!((config.device_class.as_str(), config.price.0), ("cpu:amd-epyc-9r14:4", 500_000));
    }

    #[test]
    fn a_machine_with_more_cores_than_a_runner_has_lanes_uses_as_many_as_it_has() {
        let config = by_file("cores = 96", NodeOptions::default()).unwrap();
        assert_eq!((config.hardware.cores, config.lanes), (96, MAX_LANES));
    }

    #[test]
    fn a_processor_on_the_list_is_priced_by_it() {
        let config = by_file("device-class = \"cpu:amd-epyc-9r14:4\"", NodeOptions::default()).unwrap();
        assert_eq!(config.price.0, 57_960);
        assert!(matches!(config.price_origin, PriceOrigin::Listed { .. }));
    }

    #[test]
    fn servers_have_prices_and_tokens_of_their_own() {
        let text = r#"
            [remotes."10.0.0.7:8001"]
            price = 1.2
            token-file = "secrets/seven"
            ca = "authorities.pem"
            [remotes."http://models.example"]
            price = "0.5"
        "#;
        let config = by_file(text, NodeOptions::default()).unwrap();
        let prices: Vec<_> = config
            .remotes
            .iter()
            .map(|(server, known)| (server.as_str(), known.price.map(|p| p.0)))
            .collect();
        assert_eq!(prices, [("10.0.0.7:8001", Some(1_200_000)), ("models.example:80", Some(500_000))]);
        let servers = config.servers();
        let files = &servers["10.0.0.7:8001"];
        for (file, name) in [(&files.token, "secrets/seven"), (&files.ca, "authorities.pem")] {
            assert!(file.as_ref().is_some_and(|file| file.is_absolute() && file.ends_with(name)), "{file:?}");
        }
        assert_eq!(
            (servers.len(), &servers["models.example:80"]),
            (2, &ServerFiles::default()),
            "one of which nothing is known may be reached too"
        );
    }

    #[test]
    fn bad_values_are_named() {
        for (text, named) in [
            ("cores = 0", "cores"),
            ("lanes = 0", "lanes"),
            ("lanes = 65", "lanes"),
            ("parts = 0", "parts"),
            ("parts = 5", "parts"),
            ("memory = \"much\"", "memory"),
            ("memory = \"1MiB\"", "too little"),
            ("price = \"free\"", "price"),
            ("price = -1", "price"),
            ("zone = \"\"", "zone"),
            ("pool = \"a b\"", "pool"),
            ("colour = \"red\"", "colour"),
            ("cores = \"two\"", "cores"),
            ("[[gpus]]\nname = \"x\"\nmemory = \"big\"", "gpus"),
            ("[[gpus]]\nname = \"x\"\nprice = \"dear\"", "price"),
            ("[[gpus]]\nsize = 1", "size"),
            ("[remotes.\"h:1\"]\nprice = \"free\"", "price free"),
            ("[remotes.\"h:1\"]\ntoken = \"s3cret\"", "token"),
            ("[remotes.\"ftp://h\"]\nprice = 1", "https://"),
            ("[remotes.\"http://h\"]\nprice = 1\n[remotes.\"h:80\"]\nprice = 2", "twice"),
        ] {
            let error = by_file(text, NodeOptions::default()).unwrap_err();
            let said = error.to_string();
            assert!(
                error.is::<Usage>() && said.contains(named) && said.contains("node.toml"),
                "{text}: {said}"
            );
        }
        let missing = NodeOptions { node_file: Some("no/such.toml".into()), ..NodeOptions::default() };
        assert!(filled(&missing).unwrap_err().to_string().contains("no/such.toml"));
        let options = NodeOptions { node_name: Some("ä".into()), ..NodeOptions::default() };
        assert!(filled(&options).unwrap_err().to_string().contains("--node-name"));
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("512MiB", 512 << 20), ("2g", 2 << 30), (" 1 GB ", 1_000_000_000), ("4096", 4096), ("7B", 7)]
        {
            assert_eq!(size(text), Some(Bytes(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5G", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!((half(Bytes(24 << 30)), half(Bytes(1))), (Bytes(12 << 30), LEAST_MEMORY));
        assert_eq!(half(Bytes(0)), Bytes::from_mib(1_024));
    }
}
