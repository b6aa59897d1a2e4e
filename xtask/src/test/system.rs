//! The programs that tests start and cargo does not build: Postgres, Redis, Prometheus, Python, nextest.
//!
//! Looks first, installs only what is missing, and only where it can: as root or with `sudo` that asks nothing, on
//! a system with apt. Elsewhere it names what to install.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use modelless_testkit::{postgres, prometheus, redis};

use crate::command::{cargo, program, run, succeeds};
use crate::say;

/// The nextest that `.config/nextest.toml` was tried with.
const NEXTEST: &str = "cargo-nextest@0.9.143";

struct Need {
    what: &'static str,
    /// Debian packages that bring it.
    packages: &'static [&'static str],
    present: fn(&Path) -> bool,
}

const NEEDS: &[Need] = &[
    Need {
        what: "a Postgres server (`postgres`, `initdb`)",
        packages: &["postgresql"],
        // A database that was given needs no server here.
        present: |_| {
            std::env::var_os("MODELLESS_TEST_POSTGRES").is_some() || postgres::find_binaries().is_some()
        },
    },
    Need {
        what: "a Redis server (`redis-server`)",
        packages: &["redis-server"],
        present: |_| redis::find_server().is_some(),
    },
    Need {
        what: "a Prometheus server (`prometheus`)",
        packages: &["prometheus"],
        present: |_| prometheus::find_prometheus().is_some(),
    },
    Need {
        what: "Python 3 with pip and venv",
        packages: &["python3", "python3-pip", "python3-venv"],
        present: |root| succeeds(program(root, "python3").args(["-c", "import ensurepip, pip, venv"])),
    },
    Need {
        what: "a Python 3 with torch, numpy and venv",
        packages: &["python3-torch", "python3-numpy", "python3-venv"],
        present: |root| torch_python(root).is_some(),
    },
];

/// A Python that has torch: the system's own one, where the system's package put it, or the first of the path. It comes from
/// the system because pip's torch is many times as large.
pub(super) fn torch_python(root: &Path) -> Option<&'static str> {
    let has =
        |python: &&str| succeeds(program(root, python).args(["-c", "import ensurepip, numpy, torch, venv"]));
    ["/usr/bin/python3", "python3"].into_iter().find(has)
}

pub(super) fn ensure(root: &Path) -> Result<()> {
    let missing = || NEEDS.iter().filter(|need| !(need.present)(root)).collect::<Vec<_>>();
    let before = missing();
    if !before.is_empty() {
        let packages: Vec<&str> = before.iter().flat_map(|need| need.packages).copied().collect();
        say(format!("missing: {}", names(&before)));
        apt_install(root, &packages).with_context(|| {
            format!("install {} yourself (Debian packages: {})", names(&before), packages.join(", "))
        })?;
        let after = missing();
        ensure!(
            after.is_empty(),
            "still missing after installing {}: {}",
            packages.join(", "),
            names(&after)
        );
    }
    if !succeeds(cargo(root).args(["nextest", "--version"])) {
        say(format!("missing: cargo-nextest; building {NEXTEST}, which takes some minutes once"));
        run(cargo(root).args(["install", "--locked", NEXTEST]))?;
    }
    Ok(())
}

fn names(needs: &[&Need]) -> String {
    needs.iter().map(|need| need.what).collect::<Vec<_>>().join("; ")
}

fn apt_install(root: &Path, packages: &[&str]) -> Result<()> {
    if !succeeds(program(root, "apt-get").arg("--version")) {
        bail!("there is no apt-get here");
    }
    let as_root: &[&str] = if is_root(root) {
        &[]
    } else if succeeds(program(root, "sudo").args(["-n", "true"])) {
        &["sudo", "-n"]
    } else {
        bail!("installing packages needs root, and `sudo` would ask for a password");
    };
    let apt = |args: &[&str]| {
        let words: Vec<&str> =
            as_root.iter().chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]).copied().collect();
        let mut command = program(root, words[0]);
        command.args(&words[1..]).args(["-q", "-y"]).args(args);
        run(&mut command)
    };
    let install = [&["install", "--no-install-recommends"], packages].concat();
    // The package lists may be old or absent: then they are fetched, and only then.
    apt(&install).or_else(|_| {
        apt(&["update"])?;
        apt(&install)
    })
}

fn is_root(root: &Path) -> bool {
    crate::command::output(program(root, "id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
