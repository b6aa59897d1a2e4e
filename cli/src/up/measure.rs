//! What `up` measures before it serves. What cannot be measured is left out and said; it keeps nothing else from
//! being served, and the next start tries it again.

use super::admin::{Beside, Registry};
use crate::profile::detail;
use crate::progress::{Phase, count};
use modelless_profiler::{Error, LabelledSet, Package, Registrar, Report};
use modelless_store::{Catalog, Error as StoreError};
use modelless_types::{Model, Task, TenantId, Variant};
use std::collections::BTreeMap;

/// Of what has no profile here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// All of it is measured.
    Now,
    /// Only what belongs to tasks of the packages.
    Later,
}

/// Registers what is missing of the packages, and measures whatever has no profile on this device class. What is to
/// be said of what could not be.
pub(crate) async fn measure(
    registry: &Registry,
    packages: &[Package],
    rest: Rest,
) -> anyhow::Result<Vec<String>> {
    let command = if packages.is_empty() { "modelless up" } else { "modelless up --demo" };
    let (registrar, engine) = registry.registrar(command, (Beside::Nothing, TenantId::DEFAULT))?;
    let result = measured(&registrar, packages, rest).await;
    engine.shutdown().await;
    Ok(result?)
}

async fn measured(registrar: &Registrar, packages: &[Package], rest: Rest) -> Result<Vec<String>, Error> {
    let mut phase = Phase::start("measuring");
    let mut left_out = LeftOut::default();
    let mut models = 0;
    for package in packages {
        for model in &package.models {
            // One at a time, so that one that fails takes no other with it.
            let one = Package { task: package.task.clone(), models: vec![model.clone()] };
            let report = &mut |name: &str, progress| phase.at(name, &detail(progress));
            let registered = registrar.package(&one, report).await;
            models += left_out.unless(registered, "model", &model.name)?.unwrap_or(0);
        }
    }
    let catalog = registrar.store.catalog().await?;
    let class = registrar.profiler.device_class();
    let mut sets = Sets::default();
    let mut variants = 0;
    for variant in catalog.variants.iter().filter(|variant| !is_measured(variant, class)) {
        let Some((task, model)) = owner(&catalog, variant) else { continue };
        if rest == Rest::Later && !packages.iter().any(|package| package.task.name == task.name) {
            continue;
        }
        let report = &mut |name: &str, progress| phase.at(name, &detail(progress));
        let result = match sets.of(packages, task) {
            Ok(Some(set)) => registrar.again((task, model, variant), (Some(set), None), report).await,
            Ok(None) => by_evidence(registrar, (task, model, variant), report).await,
            Err(error) => Err(error),
        };
        variants += usize::from(left_out.unless(result, "variant", &variant.name)?.is_some());
    }
    match (models, variants) {
        (0, 0) => drop(phase),
        (0, variants) => {
            phase.done(&format!("{} measured for this device class", count(variants, "variant")));
        }
        (models, _) => phase.done(&format!("{} registered and measured", count(models, "model"))),
    }
    Ok(left_out.0)
}

/// Whether it need not be measured here any more.
pub(crate) fn is_measured(variant: &Variant, class: &str) -> bool {
    variant.profile_on(class).is_some_and(|profile| !profile.is_estimated())
}

/// With what it was registered with.
async fn by_evidence(
    registrar: &Registrar,
    (task, model, variant): (&Task, &Model, &Variant),
    report: Report<'_>,
) -> Result<(), Error> {
    let evidence = registrar.store.evidence(model.id).await?;
    let (set, declared) = registrar.evidence(task, &evidence).await?;
    registrar.again((task, model, variant), (set.as_ref(), declared), report).await
}

#[derive(Default)]
struct LeftOut(Vec<String>);

impl LeftOut {
    /// The value; or `None` where only this one model or variant is to blame. The reason may name files, so it is
    /// told here and not to clients.
    fn unless<T>(&mut self, result: Result<T, Error>, what: &str, name: &str) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                eprintln!("  cannot measure {what} {name}: {error}");
                self.0.push(format!(
                    "{what} {name} could not be measured here and is left out; the output of `up` at its start says why"
                ));
                Ok(None)
            }
        }
    }
}

/// Without a store nothing can be served. One artefact that is missing or damaged is another thing.
fn is_fatal(error: &Error) -> bool {
    let Error::Store(error) = error else { return false };
    !matches!(error, StoreError::ArtefactCorrupt { .. } | StoreError::NotFound { .. } | StoreError::Io { .. })
}

/// The labelled sets of the packages, read when they are needed.
#[derive(Default)]
struct Sets(BTreeMap<String, Option<LabelledSet>>);

impl Sets {
    fn of(&mut self, packages: &[Package], task: &Task) -> Result<Option<&LabelledSet>, Error> {
        if !self.0.contains_key(&task.name) {
            let package = packages.iter().find(|package| package.task.name == task.name);
            let set = package.map(|package| package.open_set(task)).transpose()?.flatten();
            self.0.insert(task.name.clone(), set);
        }
        Ok(self.0.get(&task.name).and_then(Option::as_ref))
    }
}

fn owner<'a>(catalog: &'a Catalog, variant: &Variant) -> Option<(&'a Task, &'a Model)> {
    let model = catalog.models.iter().find(|model| model.id == variant.model)?;
    Some((catalog.tasks.iter().find(|task| task.id == model.task)?, model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_left_out_by_name_and_a_lost_store_is_not() {
        let mut left_out = LeftOut::default();
        let unfit: Result<(), _> = Err(Error::NoAccuracy("a".to_owned()));
        assert!(left_out.unless(unfit, "variant", "a").unwrap().is_none());
        let gone: Result<(), _> =
            Err(Error::Store(StoreError::NotFound { what: "artefact", name: "ab".to_owned() }));
        assert!(left_out.unless(gone, "variant", "b").unwrap().is_none());
        assert!(left_out.0[0].contains("variant a") && left_out.0[1].contains("variant b"));
        let lost: Result<(), _> =
            Err(Error::Store(StoreError::AlreadyExists { what: "model", name: "c".to_owned() }));
        assert!(left_out.unless(lost, "model", "c").is_err());
        assert_eq!(left_out.0.len(), 2);
    }
}
