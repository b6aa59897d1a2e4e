//! Machines of a cluster: at the scheduler what sees to them, at a node the end that is written down for it.

use super::{BEAT, random};
use crate::exit::usage;
use crate::up::config::default_data;
use anyhow::Context as _;
use modelless_decision::baseline::Rules;
use modelless_fleet::{
    Command, CommandConfig, Ec2, Ec2Config, Ec2Pool, Fleet, Kubernetes, KubernetesConfig, Process,
    ProcessConfig, Secrets, Told,
};
use modelless_scheduler::Handle;
use modelless_scheduler::machines::{Config, Keeper, Machinery, PoolConfig, build};
use modelless_store::Store;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// A process that was asked to end and has not by then is killed.
const PROCESS_ENDS_WITHIN: Duration = Duration::from_mins(1);

/// What the scheduler knows that its machines must.
pub(super) struct Cluster<'a> {
    pub(super) database: &'a str,
    pub(super) redis: &'a str,
    pub(super) name: &'a str,
    pub(super) key_file: Option<&'a Path>,
    /// Of the store.
    pub(super) identity: &'a str,
}

/// What a file says of pools.
pub(crate) fn read(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("`pools`: cannot read {}: {error}", path.display())))?;
    let config: Config =
        toml::from_str(&text).map_err(|error| usage(format!("{}: {error}", path.display())))?;
    config.check().map_err(|why| usage(format!("{}: {why}", path.display())))?;
    Ok(config)
}

/// What sees to machines of these pools.
pub(super) fn keeper(
    config: Config,
    of: &Cluster<'_>,
    store: &Arc<dyn Store>,
    (handle, name, rules): (Handle, &str, Rules),
) -> anyhow::Result<Keeper> {
    let fleet = |(name, pool): (&String, &PoolConfig)| Ok((name.clone(), fleet(name, pool, of)?));
    let fleets = config.pools.iter().map(fleet).collect::<anyhow::Result<BTreeMap<_, _>>>()?;
    let instance = random()? >> 1; // the database's numbers have a sign
    let (store, name) = (Arc::clone(store), name.to_owned());
    Ok(build(Machinery { config, fleets, store, rules, handle, name, instance }))
}

fn fleet(name: &str, pool: &PoolConfig, of: &Cluster<'_>) -> anyhow::Result<Arc<dyn Fleet>> {
    // Two clusters may have one name, and one database two clusters.
    let cluster = format!("{}-{}", of.name, &of.identity[..of.identity.len().min(16)]);
    let pool_name = name.to_owned();
    if let Some(command) = &pool.command {
        let within = Duration::from_secs_f64(command.within_s);
        let config = CommandConfig { cluster, pool: pool_name, command: command.run.clone(), within };
        return Ok(Arc::new(Command::new(config)));
    }
    if let Some(ec2) = &pool.ec2 {
        let told = told(ec2, of).map_err(|why| usage(format!("pool `{name}`: {why}")))?;
        let config = Ec2Config { cluster, pool: pool_name, of: ec2.clone(), told };
        return Ok(Arc::new(Ec2::new(config).map_err(|why| usage(format!("pool `{name}`: {why}")))?));
    }
    if let Some(kubernetes) = &pool.kubernetes {
        let (of, named) = (kubernetes.clone(), of.name.to_owned());
        return Ok(Arc::new(Kubernetes::new(KubernetesConfig { cluster, pool: pool_name, of, named })));
    }
    let process = pool.process.clone().unwrap_or_default();
    let mut command = process.run;
    if command.is_empty() {
        command.push(std::env::current_exe().context("where this program is")?.display().to_string());
    }
    command.push("executor".to_owned());
    let mut set = |setting: String| command.extend(["--set".to_owned(), setting]);
    set(format!("cluster={}", of.name));
    set("listen=127.0.0.1:0".to_owned());
    if let Some(key) = of.key_file {
        let key = std::path::absolute(key).context("where the key is")?;
        set(format!("key_file={}", key.display()));
    }
    let environment = [("MODELLESS_DATABASE", of.database), ("MODELLESS_REDIS", of.redis)];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let logs = match process.logs {
        Some(logs) => logs,
        None => default_data()?.join("machines"),
    };
    let (pool, ends_within) = (pool_name, PROCESS_ENDS_WITHIN);
    Ok(Arc::new(Process::new(ProcessConfig { cluster, pool, command, environment, logs, ends_within })))
}

/// What a machine somewhere else is told of this cluster. The key itself only where it is to go along.
fn told(ec2: &Ec2Pool, of: &Cluster<'_>) -> Result<Told, String> {
    let read = |path: &Path| {
        if ec2.join.secrets == Secrets::Machine {
            return Ok(String::new());
        }
        let wrong =
            |error| format!("`key_file`: {} has to be text to go to machines: {error}", path.display());
        std::fs::read_to_string(path).map_err(wrong)
    };
    let environment = [("MODELLESS_DATABASE", of.database), ("MODELLESS_REDIS", of.redis)];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Ok(Told { cluster: of.name.to_owned(), environment, key: of.key_file.map(read).transpose()? })
}

/// Returns when it is written down that the machine of this name is to go, so that its node drains; not at all for a node that is no
/// such machine. It asks the store, so a word that is lost is said again.
pub(super) async fn told_to_leave(store: &dyn Store, name: &str, ended: &CancellationToken) -> bool {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = ended.cancelled() => return false,
            _ = beat.tick() => {}
        }
        let told = tokio::select! {
            biased;
            () = ended.cancelled() => return false,
            told = timeout(BEAT * 5, store.rented().machine_named(name)) => told,
        };
        match told {
            Ok(Ok(Some(machine))) if !machine.state.stays() => {
                tracing::info!(name, state = machine.state.name(), "this machine is to go; draining");
                return true;
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "it is not known whether this machine is to go"),
            Err(_) => tracing::debug!("the store does not tell whether this machine is to go"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::{MachineStep, MemStore, NewMachine, Signed};
    use modelless_types::{MachineState, PricePerHour};

    #[tokio::test(start_paused = true)]
    async fn a_node_leaves_when_its_machine_is_to_go_and_another_stays() {
        let store = MemStore::new();
        let (why, by) = ("wanted".to_owned(), Signed::default());
        let found = Some(("m-1".to_owned(), "i-1".to_owned()));
        let price = PricePerHour(1);
        let new = NewMachine {
            pool: "m".into(),
            found,
            price,
            most: 1,
            budget: None,
            why: why.clone(),
            by: by.clone(),
        };
        let machine = store.rented().add_machine(new).await.unwrap().unwrap();
        let ended = CancellationToken::new();
        let leaves = async |name| timeout(BEAT * 3, told_to_leave(&store, name, &ended)).await.is_ok();
        assert!(!leaves("m-1").await && !leaves("another").await);
        let (from, to) = (MachineState::Starting, MachineState::Stopping);
        let step = MachineStep { machine: machine.id, from, to, instance: None, why, by };
        store.rented().move_machine(step).await.unwrap();
        assert!(leaves("m-1").await && !leaves("another").await);
        ended.cancel();
        assert!(!told_to_leave(&store, "m-1", &ended).await, "it ends anyway");
    }

    #[test]
    fn a_file_of_pools_is_read_and_a_mistake_in_it_is_told_with_its_place() {
        let folder = modelless_testkit::temp_dir("pools").unwrap();
        let path = folder.path().join("pools.toml");
        let told = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path).map_err(|error| format!("{error:#}"))
        };
        let config =
            told("budget = 0.5\n[pools.cpu]\nleast = 1\nmost = 4\nprice = 0.1\n[pools.cpu.process]\n")
                .unwrap();
        assert_eq!((config.pools["cpu"].most, config.budget), (4, Some(0.5)));
        let wrong = told("[pools.cpu]\nmost = 4\nprize = 0.1").unwrap_err();
        assert!(wrong.contains("pools.toml") && wrong.contains("prize"), "{wrong}");
        let nowhere = told("[pools.cpu]\nmost = 4\nprice = 0.1").unwrap_err();
        assert!(nowhere.contains("[pools.cpu.process]"), "{nowhere}");
    }
}
