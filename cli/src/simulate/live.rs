//! `modelless simulate --from-live`: what the traffic of a running server would cost and violate with other machines, floors and prices.

use crate::client::{Api, TlsOptions, presented};
use crate::exit::usage;
use anyhow::Context;
use clap::Args;
use modelless_simulator::scenario::live::{Changes, Live, Written, between, recorded, written};
use modelless_simulator::scenario::timed::Timed;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

#[derive(Args, Debug)]
pub(super) struct Running {
    /// Instead of a scenario: the machines, models and demand of a running server.
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "http://127.0.0.1:8080", conflicts_with = "scenario")]
    pub(super) from_live: Option<String>,
    /// How long demand is watched.
    #[arg(long, value_parser = crate::profile::duration, default_value = "10s", requires = "from_live")]
    watch: Duration,
    /// Instead of watching: what `up --record DIR` wrote there, with each arrival and bound as it was, and everything taking as long as it did.
    #[arg(long, value_name = "DIR", requires = "from_live")]
    recording: Option<PathBuf>,
    /// Another recording of `up --record`, of this server's data: things take as long as they did there.
    #[arg(long, value_name = "DIR", requires = "from_live")]
    times_of: Option<PathBuf>,
    /// A pool has so many machines: POOL=COUNT.
    #[arg(long, value_name = "POOL=COUNT", requires = "from_live")]
    pool: Vec<String>,
    /// An hour of one of a pool's machines costs so many dollars: POOL=USD.
    #[arg(long, value_name = "POOL=USD", requires = "from_live")]
    usd_per_hour: Vec<String>,
    /// No query of a task has a lower floor: TASK=ACCURACY.
    #[arg(long, value_name = "TASK=ACCURACY", requires = "from_live")]
    floor: Vec<String>,
    /// How long it is simulated; without, a minute, or as long as the recording.
    #[arg(long, value_name = "SECONDS", requires = "from_live")]
    seconds: Option<f64>,
    /// A folder for the scenario as a file, with the profiles beside it, to be changed and simulated again.
    #[arg(long, value_name = "DIR", requires = "from_live")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsOptions,
}

impl Running {
    /// Whether queries come when they came, and no oftener.
    pub(super) const fn plays_as_it_came(&self) -> bool {
        self.recording.is_some()
    }

    /// The scenario.
    pub(super) fn written(&self, server: &str) -> anyhow::Result<Written> {
        let changes = Changes {
            pools: pairs(&self.pool, "--pool", "POOL=COUNT")?,
            usd_per_hour: pairs(&self.usd_per_hour, "--usd-per-hour", "POOL=USD")?,
            floors: pairs(&self.floor, "--floor", "TASK=ACCURACY")?,
            seconds: self.seconds,
        };
        let api = Api::new(server, presented(None)?, &self.tls)?;
        let get = |path: &str| -> anyhow::Result<Value> { api.get(path)?.ok()?.json() };
        let mut live = Live {
            nodes: get("/v1/nodes")?,
            profiles: get("/v1/profiles")?,
            tasks: get("/v1/tasks")?,
            variants: get("/v1/variants")?,
            ..Live::default()
        };
        self.demand(&api, server, &mut live)?;
        live.members = get("/v1/members")?;
        (live.timed, live.timed_is_asked) = (self.timed()?, self.times_of.is_some());
        let written = written(&live, &changes).map_err(usage)?;
        eprintln!("{}", written.file.about);
        if let Some(folder) = &self.keep {
            keep(folder, &written)?;
        }
        Ok(written)
    }

    /// How long things took: by a recording that happens to have a node's, or by the one that has to.
    fn timed(&self) -> anyhow::Result<Option<Timed>> {
        let Some(folder) = self.times_of.as_ref().or(self.recording.as_ref()) else { return Ok(None) };
        let (router, worker) = (folder.join("router.jsonl"), folder.join("worker.jsonl"));
        if self.times_of.is_none() && !worker.exists() {
            return Ok(None);
        }
        let timed = Timed::recorded(lines_of(&router)?.into_iter(), lines_of(&worker)?.into_iter());
        Ok(Some(timed.map_err(|why| usage(format!("{}: {why}", folder.display())))?))
    }

    fn demand(&self, api: &Api, server: &str, live: &mut Live) -> anyhow::Result<()> {
        if let Some(folder) = &self.recording {
            let path = folder.join("router.jsonl");
            let (asked, seconds) = recorded(lines_of(&path)?.into_iter(), &live.variants)
                .map_err(|why| usage(format!("{}: {why}", path.display())))?;
            (live.asked, live.seconds) = (asked, seconds);
            live.watched =
                format!("The machines and models of {server}, and what was asked while it was recorded");
            return Ok(());
        }
        let members = || -> anyhow::Result<Value> { api.get("/v1/members")?.ok()?.json() };
        let before = members()?;
        eprintln!("watching what is asked for {} s", self.watch.as_secs_f64());
        api.pause(self.watch);
        live.seconds = self.watch.as_secs_f64();
        live.asked = between(&before, &members()?, live.seconds);
        live.watched =
            format!("The machines and models of {server}, and what was asked within {} s", live.seconds);
        Ok(())
    }
}

fn lines_of(path: &Path) -> anyhow::Result<Vec<String>> {
    let lines = || -> std::io::Result<Vec<String>> { BufReader::new(File::open(path)?).lines().collect() };
    lines().with_context(|| format!("cannot read {}", path.display()))
}

fn keep(folder: &Path, written: &Written) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let scenario = ("live.toml".to_owned(), toml::to_string(&written.file)?);
    for (name, text) in written.beside.iter().chain([(&scenario.0, &scenario.1)]) {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// `NAME=VALUE`, each name once.
fn pairs<T: FromStr>(given: &[String], option: &str, form: &str) -> anyhow::Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    for text in given {
        let parsed =
            text.rsplit_once('=').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        let Some((name, value)) = parsed else {
            return Err(usage(format!("{option} {text:?}: it is {form}")));
        };
        if all.insert(name.clone(), value).is_some() {
            return Err(usage(format!("{option} names {name} twice")));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_a_name_and_a_value_each_once() {
        let given = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            pairs::<u32>(&texts, "--pool", "POOL=COUNT")
        };
        assert_eq!(given(&["a=3", "b=c=4"]).unwrap(), BTreeMap::from([("a".into(), 3), ("b=c".into(), 4)]));
        for (wrong, said) in
            [(&["a"][..], "POOL=COUNT"), (&["a=x"], "POOL=COUNT"), (&["a=1", "a=2"], "a twice")]
        {
            assert!(format!("{:#}", given(wrong).unwrap_err()).contains(said));
        }
    }
}
