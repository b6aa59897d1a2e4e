//! What `up` is asked for, checked before anything is opened.

use crate::engines::LibraryOption;
use crate::exit::usage;
use clap::Args;
use modelless_profiler::device;
use modelless_types::{Bytes, PricePerHour};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What a lane of a device without a price is taken to cost: about a core-hour of a cloud's ordinary machines.
pub(crate) const ASSUMED_PRICE: PricePerHour = PricePerHour(50_000);
/// Less is not worth starting with.
const LEAST_MEMORY: Bytes = Bytes::from_mib(64);

/// Start the whole platform on this machine.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Register and measure the Fashion-MNIST demo.
    #[arg(long)]
    pub(crate) demo: bool,
    /// Where everything is kept. Otherwise modelless in the user's data folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where HTTP is served; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Where gRPC is served (health only for now). Otherwise nowhere.
    #[arg(long, value_name = "ADDR")]
    grpc: Option<SocketAddr>,
    /// Where tasks, models and profiles are kept: postgres://USER@HOST/NAME. Otherwise a file in the data folder.
    #[arg(long, value_name = "URL", env = "MODELLESS_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Batches that run side by side. Otherwise one fewer than the processor's cores, and at least one.
    #[arg(long, value_name = "N")]
    lanes: Option<u16>,
    /// Memory for models, such as 2GiB. Otherwise half of what this machine or container has.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// What an hour of a lane costs, in dollars. Otherwise 0.05, shown as assumed.
    #[arg(long, value_name = "USD")]
    price: Option<String>,
    #[command(flatten)]
    pub(crate) library: LibraryOption,
    /// Keep what the deciding machines are told in this folder, for `modelless replay`.
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<PathBuf>,
    /// Serve on an address that others can reach, although anybody there may use and change everything.
    #[arg(long)]
    insecure: bool,
}

/// The same, with every default filled in.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data: PathBuf,
    pub(crate) gateway: modelless_gateway::Config,
    pub(crate) executor: modelless_executor::Config,
}

impl Options {
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        for (option, address) in [("--http", Some(self.http)), ("--grpc", self.grpc)] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback() && !self.insecure) {
                return Err(usage(format!(
                    "{option} {address} can be reached by others, and there are no keys yet to keep them out; give a \
                     loopback address such as 127.0.0.1:{}, or --insecure if everybody there may use and change \
                     everything",
                    address.port()
                )));
            }
        }
        if self.lanes == Some(0) {
            return Err(usage("--lanes must be at least 1"));
        }
        let memory = match &self.memory {
            Some(text) => size(text).ok_or_else(|| {
                usage(format!(
                    "--memory {text} is no amount of memory; expected something like 512MiB or 2GiB"
                ))
            })?,
            None => half_of_memory(),
        };
        if memory < LEAST_MEMORY {
            return Err(usage(format!("--memory {memory} is too little; give at least {LEAST_MEMORY}")));
        }
        let price = self.price.as_ref().map(|text| {
            let price = PricePerHour::parse_usd(text);
            price.ok_or_else(|| {
                usage(format!("--price {text} is no price; expected dollars per hour such as 0.05"))
            })
        });
        let price = price.transpose()?;
        Ok(Config {
            data: self.data.clone().map_or_else(default_data, Ok)?,
            gateway: modelless_gateway::Config {
                http: self.http,
                grpc: self.grpc,
                ..modelless_gateway::Config::default()
            },
            executor: modelless_executor::Config {
                device_class: device::class(),
                lanes: self.lanes.unwrap_or_else(spare_cores),
                memory,
                price: price.unwrap_or(ASSUMED_PRICE),
                price_given: price.is_some(),
                ..modelless_executor::Config::default()
            },
        })
    }
}

/// `$XDG_DATA_HOME/modelless`, or `~/.local/share/modelless`.
pub(crate) fn default_data() -> anyhow::Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = var("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data.or_else(|| var("HOME").map(|home| home.join(".local/share")));
    let data = data
        .ok_or_else(|| usage("neither XDG_DATA_HOME nor HOME is set; say where to keep data with --data"))?;
    Ok(data.join("modelless"))
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

/// One is left for the rest, where there is more than one.
pub(crate) fn spare_cores() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u16::try_from(cores.saturating_sub(1)).unwrap_or(u16::MAX).max(1)
}

/// Of the machine's memory or the container's, whichever is less.
pub(crate) fn half_of_memory() -> Bytes {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limits.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).min();
    half(total_memory(&info), limit)
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn half(total: Option<u64>, limit: Option<u64>) -> Bytes {
    match total.into_iter().chain(limit).min() {
        Some(bytes) => Bytes(bytes / 2).max(LEAST_MEMORY),
        None => Bytes::from_mib(1_024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Only {
        #[command(flatten)]
        options: Options,
    }

    fn config(args: &[&str]) -> anyhow::Result<Config> {
        let args = ["up", "--data", "/tmp/x"].iter().chain(args);
        Only::try_parse_from(args)?.options.config()
    }

    #[test]
    fn without_options_the_defaults_are_those_of_the_docs() {
        let config = config(&[]).unwrap();
        assert_eq!(config.gateway.http, "127.0.0.1:8080".parse().unwrap());
        assert_eq!((config.executor.price.as_usd(), config.executor.price_given), (0.05, false));
        assert!(config.executor.lanes >= 1 && config.executor.memory >= LEAST_MEMORY);
        assert!(config.executor.device_class.starts_with("cpu:"));
    }

    #[test]
    fn what_others_can_reach_must_be_asked_for() {
        for address in ["0.0.0.0:8080", "192.168.1.1:1", "[::]:80"] {
            let error = config(&["--http", address]).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains("--insecure"), "{error}");
            assert!(config(&["--grpc", address]).is_err());
            assert!(config(&["--http", address, "--insecure"]).is_ok());
        }
        assert!(config(&["--http", "[::1]:80"]).is_ok());
    }

    #[test]
    fn bad_values_are_wrong_usage() {
        for args in [["--lanes", "0"], ["--memory", "much"], ["--memory", "1MiB"], ["--price", "free"]] {
            assert!(config(&args).unwrap_err().is::<Usage>(), "{args:?}");
        }
        let config = config(&["--price", "0.4", "--memory", "2GiB", "--lanes", "3"]).unwrap();
        let executor = config.executor;
        assert_eq!((executor.price.0, executor.price_given, executor.lanes), (400_000, true, 3));
        assert_eq!(executor.memory, Bytes(2 << 30));
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
    }

    #[test]
    fn a_container_has_the_memory_of_its_limit() {
        let info = "MemTotal:       24000000 kB\nMemFree: 1 kB\n";
        let total = total_memory(info);
        assert_eq!(half(total, None), Bytes(24_000_000 * 512));
        assert_eq!(half(total, Some(1 << 30)), Bytes(1 << 29));
        assert_eq!(half(total, Some(u64::MAX)), Bytes(24_000_000 * 512));
        assert_eq!(half(None, None), Bytes::from_mib(1_024));
    }
}
