//! What `up` is asked for, checked before anything is opened.

use super::node::NodeOptions;
use crate::demo::Demo;
use crate::engines::LibraryOption;
use crate::exit::usage;
use crate::exposed::TlsOptions;
use crate::otel;
use crate::way::{self, Budget};
use clap::Args;
use modelless_gateway::TracesConfig;
use modelless_types::Micros;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longer than any supervisor waits.
const MOST_DRAIN_S: u64 = 3_600;
/// Longer, and nothing else could ever be loaded.
const MOST_RESIDENCE_MS: u64 = 3_600_000;
/// What the ends of the parts may take beside the queries' own: runners, the store, sockets.
const DRAIN_MARGIN: Duration = Duration::from_secs(10);

/// Start the whole platform on this machine.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Register and measure a demo: the small one inside of this program, or another by its name.
    #[arg(long, value_name = "WHICH", num_args = 0..=1, default_missing_value = "fashion")]
    pub(crate) demo: Option<Demo>,
    /// How long measuring what has no profile may take before it is served, all of it together: a time such as 60s, or none for as
    /// long as it takes. What is known coarsely then is measured again while nothing is asked.
    #[arg(long, value_name = "TIME", default_value = way::USUAL, value_parser = Budget::parse)]
    pub(crate) budget: Budget,
    /// Where everything is kept. Otherwise modelless in the user's data folder.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where HTTP is served; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Where gRPC is served (the Open Inference Protocol and health). Otherwise nowhere.
    #[arg(long, value_name = "ADDR")]
    grpc: Option<SocketAddr>,
    /// Let clients on this machine have tensors in shared memory (Triton's system shared memory) instead of sending them.
    #[arg(long)]
    shared_memory: bool,
    /// Of each of the two that a trial compares one query in so long is compared: what troubles many at once counts once.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    trial_beat_ms: u64,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    /// Where traces of queries go: a collector that takes OTLP over HTTP, such as http://localhost:4318. Otherwise what
    /// OTEL_EXPORTER_OTLP_ENDPOINT says, or nowhere.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Where tasks, models and profiles are kept: postgres://USER@HOST/NAME. Otherwise a file in the data folder.
    #[arg(long, value_name = "URL", env = "MODELLESS_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
    #[command(flatten)]
    node: NodeOptions,
    /// How long queries at hand have to finish once the server is told to stop, in seconds. Everything ends within
    /// twice that and ten seconds more.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
    /// How long a model that was loaded stays in memory at least before it may make room for another, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    min_residence: u64,
    #[command(flatten)]
    pub(crate) library: LibraryOption,
    /// Keep what the deciding machines are told in this folder, for `modelless replay`.
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<PathBuf>,
    /// Serve on an address that others can reach although there is no key (anybody there may use and change everything), or no
    /// certificate (whoever is on the way reads keys, inputs and answers).
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The same, with every default filled in.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data: PathBuf,
    pub(crate) gateway: modelless_gateway::Config,
    pub(crate) executor: modelless_executor::Config,
    /// The parts bound their own drains below this.
    pub(crate) drain_within: Duration,
}

impl Options {
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        if !(1..=MOST_DRAIN_S).contains(&self.drain) {
            let given = self.drain;
            return Err(usage(format!(
                "--drain {given} must be at least 1 and at most {MOST_DRAIN_S} seconds"
            )));
        }
        if self.min_residence > MOST_RESIDENCE_MS {
            let given = self.min_residence;
            return Err(usage(format!("--min-residence {given} must be at most {MOST_RESIDENCE_MS} ms")));
        }
        let mut executor = modelless_executor::Config {
            drain: Micros::from_secs(self.drain),
            min_residence: Micros::from_millis(self.min_residence),
            ..Default::default()
        };
        self.node.fill(&mut executor)?;
        let mut traces = TracesConfig { endpoint: self.otlp.clone(), ..TracesConfig::default() };
        otel::fill(&mut traces)?;
        Ok(Config {
            data: self.data.clone().map_or_else(default_data, Ok)?,
            gateway: modelless_gateway::Config {
                http: self.http,
                grpc: self.grpc,
                tls: self.tls.files()?,
                shared_memory: self.shared_memory,
                trial_beat_ms: self.trial_beat_ms,
                traces,
                drain_timeout_ms: self.drain * 1_000,
                ..modelless_gateway::Config::default()
            },
            drain_within: Duration::from_secs(2 * self.drain) + DRAIN_MARGIN,
            executor,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use clap::Parser;
    use modelless_types::Bytes;
    use modelless_wire::PriceOrigin;

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
        let (lanes, memory) = (config.executor.lanes, config.executor.memory);
        assert!(lanes >= 1 && memory >= modelless_executor::LEAST_MEMORY);
        assert_eq!(config.drain_within, Duration::from_secs(30));
        assert_eq!(config.executor.min_residence, modelless_executor::Config::default().min_residence);
        assert!(config.executor.device_class.starts_with("cpu:"));
    }

    #[test]
    fn bad_values_are_wrong_usage() {
        for args in [
            ["--lanes", "0"],
            ["--cores", "0"],
            ["--memory", "much"],
            ["--memory", "1MiB"],
            ["--price", "free"],
            ["--drain", "0"],
            ["--min-residence", "3600001"],
        ] {
            assert!(config(&args).unwrap_err().is::<Usage>(), "{args:?}");
        }
        let config = config(&["--price", "0.4", "--memory", "2GiB", "--lanes", "3"]).unwrap();
        let executor = config.executor;
        assert_eq!(
            (executor.price.0, executor.price_origin, executor.lanes),
            (400_000, PriceOrigin::Declared, 3)
        );
        assert_eq!(executor.memory, Bytes(2 << 30));
    }
}
