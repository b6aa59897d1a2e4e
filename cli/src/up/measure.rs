//! What `up` measures before it serves. What cannot be measured is left out and said; it keeps nothing else from
//! being served, and the next start tries it again.

use super::admin::{Beside, Registry};
use crate::profile::detail;
use crate::progress::{Phase, count};
use crate::way::{Budget, Way};
use modelless_profiler::{Error, LabelledSet, ModelManifest, Package, Progress, Registrar, Report};
use modelless_store::{Catalog, Error as StoreError};
use modelless_types::{Model, Profile, Task, TenantId, Variant};
use std::collections::BTreeMap;
use tokio::time::Instant;

/// Of what has no profile here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// All of it is measured.
    Now,
    /// Only what belongs to tasks of the packages.
    Later,
}

/// Registers what is missing of the packages, and measures whatever has no profile on this device class, within one budget for
/// all of it. What is to be said of what could not be.
pub(crate) async fn measure(
    registry: &Registry,
    packages: &[Package],
    rest: Rest,
    budget: Budget,
) -> anyhow::Result<Vec<String>> {
    let command = if packages.is_empty() { "modelless up" } else { "modelless up --demo" };
    let (mut registrar, engine) = registry.registrar(command, (Beside::Nothing, TenantId::DEFAULT))?;
    registrar.profiler = registrar.profiler.within(budget.0);
    let result = measured(&registrar, packages, rest, budget).await;
    engine.shutdown().await;
    Ok(result?)
}

async fn measured(
    registrar: &Registrar,
    packages: &[Package],
    rest: Rest,
    budget: Budget,
) -> Result<Vec<String>, Error> {
    let known = registrar.store.catalog().await?;
    let class = registrar.profiler.device_class();
    let wanted = |catalog: &Catalog, variant: &Variant| {
        let task = owner(catalog, variant).map(|(task, _)| task.name.as_str());
        let here = |task: &str| packages.iter().any(|package| package.task.name == task);
        !is_measured(variant, class) && task.is_some_and(|task| rest == Rest::Now || here(task))
    };
    let missing: Vec<(&Package, &ModelManifest)> = packages
        .iter()
        .flat_map(|package| package.models.iter().map(move |model| (package, model)))
        .filter(|(package, model)| !is_registered(&known, registrar.tenant, &package.task.name, model))
        .collect();
    let unmeasured = known.variants.iter().filter(|variant| wanted(&known, variant)).count();
    let number = missing.iter().map(|(_, model)| model.variants.len()).sum::<usize>() + unmeasured;
    if number > 0 {
        eprintln!("measuring {}, {}", count(number, "variant"), budget.words());
    }
    let mut phase = Phase::start("measuring");
    let (since, mut way) = (Instant::now(), Way::new(number, budget.0));
    let mut left_out = LeftOut::default();
    let (mut models, mut gone) = (0, 0);
    // Rules that its manifest names hold from now on, whether anything of it is missing or not.
    for package in packages {
        left_out.unless(registrar.task(&package.task).await, "task", &package.task.name)?;
    }
    for (package, model) in missing {
        // One at a time, so that one that fails takes no other with it.
        let one = Package { task: package.task.clone(), models: vec![model.clone()] };
        let own = model.variants.len();
        let registrar =
            Registrar { profiler: registrar.profiler.part(since, (own, number - gone)), ..registrar.clone() };
        let registered = registrar.package(&one, &mut report(&mut phase, &mut way)).await;
        models += left_out.unless(registered, "model", &model.name)?.unwrap_or(0);
        gone += own;
        way.finished(gone);
    }
    let catalog = registrar.store.catalog().await?;
    let mut sets = Sets::default();
    let mut variants = 0;
    for variant in catalog.variants.iter().filter(|variant| wanted(&catalog, variant)) {
        let Some((task, model)) = owner(&catalog, variant) else { continue };
        let left = number.saturating_sub(gone);
        let registrar =
            Registrar { profiler: registrar.profiler.part(since, (1, left)), ..registrar.clone() };
        let result = {
            let mut report = report(&mut phase, &mut way);
            match sets.of(packages, task) {
                Ok(Some(set)) => {
                    registrar.again((task, model, variant), (Some(set), None), &mut report).await
                }
                Ok(None) => by_evidence(&registrar, (task, model, variant), &mut report).await,
                Err(error) => Err(error),
            }
        };
        variants += usize::from(left_out.unless(result, "variant", &variant.name)?.is_some());
        gone += 1;
        way.finished(gone);
    }
    match (models, variants) {
        (0, 0) => drop(phase),
        (0, variants) => {
            phase.done(&format!("{} measured for this device class", count(variants, "variant")));
        }
        (models, _) => phase.done(&format!("{} registered and measured", count(models, "model"))),
    }
    if number > 0 {
        let catalog = registrar.store.catalog().await?;
        let all = catalog.variants.iter().filter_map(|variant| variant.profile_on(class));
        if let Some(line) = provisional(all) {
            eprintln!("{line}");
        }
    }
    Ok(left_out.0)
}

/// Tells a person where it is.
fn report<'a>(phase: &'a mut Phase, way: &'a mut Way) -> impl FnMut(&str, Progress) + Send + 'a {
    move |name, progress| {
        way.at(name, progress);
        phase.on_the_way(way.done(), name, &detail(progress), &way.words());
    }
}

/// What is not known as well as it will be.
fn provisional<'a>(profiles: impl Iterator<Item = &'a Profile>) -> Option<String> {
    let (mut coarse, mut unsteady) = (0, 0);
    for profile in profiles.filter(|profile| profile.is_provisional()) {
        coarse += usize::from(profile.is_coarse());
        unsteady += usize::from(!profile.is_coarse());
    }
    let coarse =
        (coarse > 0).then(|| format!("{} only coarsely, as the time was over", count(coarse, "variant")));
    let unsteady = (unsteady > 0).then(|| format!("{} in an unsteady minute", count(unsteady, "variant")));
    let known: Vec<String> = [coarse, unsteady].into_iter().flatten().collect();
    (!known.is_empty())
        .then(|| format!("measured {}; they are measured again when nothing is asked", known.join(", and ")))
}

fn is_registered(catalog: &Catalog, tenant: TenantId, task: &str, model: &ModelManifest) -> bool {
    catalog.task_named(tenant, task).is_some_and(|task| {
        let same = |known: &Model| known.name == model.name && known.version == model.version;
        catalog.models_of(task.id).any(same)
    })
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
    fn what_is_known_coarsely_or_of_an_unsteady_minute_is_counted_once() {
        use modelless_types::{Provenance, Unsteady};
        let of = |coarse: bool, left: Option<u32>| {
            let mut profile = crate::client::profile::file::tests::entry("x").profile;
            profile.detail.coarse = coarse;
            profile.detail.unsteady =
                left.map(|left| Unsteady { stolen: 0.5, tries: 1, left, ..Unsteady::default() });
            profile
        };
        assert_eq!(provisional([of(false, None), of(false, Some(0))].iter()), None);
        let told = provisional([of(true, None), of(true, Some(3)), of(false, Some(1))].iter()).unwrap();
        assert!(
            told.contains("2 variants only coarsely") && told.contains("1 variant in an unsteady"),
            "{told}"
        );
        let mut estimated = of(true, None);
        estimated.latency_provenance = Provenance::Estimated;
        assert_eq!(provisional([estimated].iter()), None);
    }

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
