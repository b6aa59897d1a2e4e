//! Names in the environment that begin with [`PREFIX`]: what exists, and what is said of one that does not.
//!
//! A name that nobody reads was mistyped, and whoever set it believes that it holds. So it is refused like an unknown key of a
//! file; all that exist stand here. What one role knows the others let pass: one environment may be given to all
//! of a machine.

use crate::exit::usage;
use crate::roles::settings::nearest;

/// In front of every name that is ours.
pub(crate) const PREFIX: &str = "MODELLESS_";

/// Names that are no settings of a role, behind [`PREFIX`], and who reads them.
const OTHERS: &[(&str, &str)] = &[
    ("LOG", "what is logged, by everything"),
    ("LOG_FORMAT", "how its lines look, human or json"),
    ("ENGINES", "where inference libraries are, by everything that runs models"),
    ("SERVER", "which server commands ask"),
    ("KEY", "the key that commands present to a server"),
    ("CA", "whom commands believe that a server is who it says"),
    ("CERT", "the certificate that commands show to a server"),
    ("CERT_KEY", "its key"),
    ("DATABASE", "`up`, and a setting of every role"),
    ("NODE", "`up` and `executor`: the node's name"),
    ("POOL", "`up` and `executor`: the node's pool"),
    ("ZONE", "`up` and `executor`: the node's zone"),
    ("LIBTORCH_RPATH", "the build of libtorch's runner"),
    ("BIN", "tests and measurements: the program under test"),
    ("PYTHON", "tests: a Python with the clients that they use"),
    ("DEMO_MADE", "tests: a folder in which what demos are made of is kept"),
    ("DEMO_PYTHON", "tests: a Python with what the recipes of demos need"),
    ("TEST_DEMOS", "tests: `all` for the long ones"),
    ("WRITE_SEEDS", "tests: write what fuzzers begin with"),
    ("TEST_POSTGRES", "tests: a database server"),
    ("TEST_PEER", "tests: a server of others"),
    ("TEST_PEER_GRPC", "tests: the same by gRPC"),
    ("TEST_KUBECONFIG", "tests: a Kubernetes whose namespaces they may make and leave"),
    ("TEST_KUBERNETES", "tests: a Python that has what stands for an API server of Kubernetes"),
    ("TEST_MOTO", "tests: a Python that has a server that answers as EC2 does"),
    ("TEST_PERF_ANALYZER", "tests: NVIDIA's load generator"),
    ("TEST_RUNNER", "tests: a runner as another user"),
    ("TEST_MODELS", "tests: its models"),
    ("TEST_TORCH_PROBE", "tests: what tries to get out of libtorch's runner"),
];

/// Refuses names that nobody reads.
pub(crate) fn check() -> anyhow::Result<()> {
    let all = std::env::vars_os();
    let all =
        all.map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    check_all(all, crate::roles::variables)
}

/// `settings` gives the names of all settings of all roles; asked only where it is needed, since some defaults are detected.
fn check_all(
    given: impl Iterator<Item = (String, String)>,
    settings: impl FnOnce() -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<()> {
    let other = |name: &str| {
        let name = name.strip_prefix(PREFIX);
        OTHERS.iter().any(|(known, _)| name == Some(*known))
    };
    let mut left: Vec<String> = given
        .filter(|(name, value)| name.starts_with(PREFIX) && !other(name) && !of_kubernetes(name, value))
        .map(|(name, _)| name)
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let known: Vec<String> =
        settings()?.into_iter().chain(OTHERS.iter().map(|(name, _)| format!("{PREFIX}{name}"))).collect();
    left.sort_unstable(); // the environment has no order
    match left.into_iter().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let meant = nearest(&name, known.iter().map(String::as_str));
            let hint = meant.map_or(String::new(), |meant| format!("did you mean {meant}? "));
            Err(usage(format!(
                "nothing reads {name}, which stands in the environment; {hint}`--print-config` of a role shows its \
                 settings, docs/defaults.md the other names"
            )))
        }
    }
}

/// Kubernetes tells a pod of every service: of one called `modelless-gateway` in names that begin as ours do.
fn of_kubernetes(name: &str, value: &str) -> bool {
    let address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let of_port = || {
        let (_, rest) = name.split_once("_PORT_")?;
        let (number, rest) = rest.split_once('_')?;
        let protocol = ["TCP", "UDP", "SCTP"].iter().any(|protocol| rest.split('_').next() == Some(protocol));
        Some(number.parse::<u16>().is_ok() && protocol)
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && address)
        || of_port().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn of(names: &[(&str, &str)]) -> anyhow::Result<()> {
        let given = names.iter().map(|(name, value)| {
            let whole = name.strip_prefix('=').map(str::to_owned);
            let name = whole.unwrap_or_else(|| format!("{PREFIX}{name}"));
            (name, (*value).to_owned())
        });
        check_all(given, crate::roles::variables)
    }

    #[test]
    fn a_name_that_nobody_reads_is_refused_with_the_one_that_was_meant() {
        for (wrong, meant) in [
            ("EXECUTOR__LANE", "EXECUTOR__LANES"),
            ("GATEWAY__LEAVE", "GATEWAY__LEAVE_MS"),
            ("DATABSE", "DATABASE"),
            ("SERVR", "SERVER"),
            ("EXECUTOR_LANES", "EXECUTOR__LANES"),
        ] {
            let error = of(&[("LOG", "info"), (wrong, "1")]).unwrap_err();
            let text = error.to_string();
            assert!(error.is::<Usage>(), "{text}");
            assert!(text.contains(&format!("reads {PREFIX}{wrong},")), "{text}");
            assert!(text.contains(&format!("did you mean {PREFIX}{meant}?")), "{text}");
        }
        let text = of(&[("ZEBRA_AND_OTHER_STRIPED_ANIMALS", "1")]).unwrap_err().to_string();
        assert!(!text.contains("mean"), "{text}");
    }

    #[test]
    fn settings_of_any_role_and_names_of_others_pass() {
        of(&[("EXECUTOR__LANES", "2"), ("GATEWAY__HTTP", "x"), ("SCHEDULER__INTERVAL_MS", "1")]).unwrap();
        of(&[("EXECUTOR__REMOTES", "{}"), ("KEY_FILE", "x"), ("NODES", "[]"), ("REDIS", "x")]).unwrap();
        of(&[("=PATH", "x"), ("=MODELLES", "x"), ("=HOME", "x")]).unwrap();
    }

    #[test]
    fn what_kubernetes_tells_of_a_service_of_our_name_passes() {
        of(&[
            ("GATEWAY_SERVICE_HOST", "10.0.0.1"),
            ("GATEWAY_SERVICE_PORT", "8080"),
            ("GATEWAY_SERVICE_PORT_HTTP", "8080"),
            ("GATEWAY_PORT", "tcp://10.0.0.1:8080"),
            ("GATEWAY_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("GATEWAY_PORT_8080_TCP_PROTO", "tcp"),
        ])
        .unwrap();
        assert!(of(&[("GATEWAY_PORT", "8080")]).is_err());
        assert!(of(&[("GATEWAY_PORT_TCP", "8080")]).is_err());
    }

    /// Every such name in quotes, of all that is compiled.
    #[test]
    fn whatever_the_sources_read_stands_in_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        for folder in [
            "cli",
            "crates",
            "executor",
            "gateway",
            "scheduler",
            "profiler",
            "bench",
            "tests",
            "xtask",
            "runners",
        ] {
            sources(&root.join(folder), &mut files);
        }
        let mut found = 0;
        let mark = format!("\"{PREFIX}");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for part in text.split(&mark).skip(1) {
                let name: String = part
                    .chars()
                    .take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_')
                    .collect();
                if !name.is_empty() {
                    found += 1;
                    let known = of(&[(name.as_str(), "x")]);
                    assert!(known.is_ok(), "{}: {known:?}", file.display());
                }
            }
        }
        assert!(found > 20, "hardly any names were found: {found}");
    }

    fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") {
                sources(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
}
