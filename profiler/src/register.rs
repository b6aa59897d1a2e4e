//! From manifests to a store that can serve them: tasks made, artefacts put away, variants measured.
//!
//! A model is measured before it is stored, and stored in one transaction: what is registered can be served, and a
//! registration that fails leaves nothing behind but an artefact that nobody needs. Doing it again is harmless.

use crate::doubts::doubts;
use crate::earlier::{self, Keys};
use crate::error::Error;
use crate::inspect;
use crate::manifest::{ModelManifest, Package, TaskManifest};
use crate::profile::{Profiler, Report, Subject};
use crate::set::LabelledSet;
use modelless_adapter::{AdapterSpec, Tokenizer};
use modelless_decision::steady;
use modelless_store::{
    Artefacts, Catalog, Evidence, NewModel, NewSpace, NewVariant, Registered, SetArtefact, Signed, SpaceKind,
    Store, UnixMicros,
};
use modelless_types::{
    Accuracy, AccuracyMeasure, Bytes, Engine, Model, Profile, Task, TenantId, Variant, VariantSettings,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Accuracies known from elsewhere, by the name of the variant.
pub type Known = BTreeMap<String, Vec<AccuracyMeasure>>;

/// A model to be registered, whose artefacts were put away before.
#[derive(Clone, PartialEq, Debug)]
pub struct NewRegistration {
    /// Unique in its task together with `version`.
    pub name: String,
    /// The owner's version.
    pub version: u32,
    /// Family.
    pub architecture: String,
    /// Licence.
    pub licence: String,
    /// Whom to ask about it.
    pub owner: String,
    /// Whether it becomes the default version of its name; the first one does in any case.
    pub promote: bool,
    /// Who registers it.
    pub by: Signed,
    /// The output space of its vectors; `None`: the task's default.
    pub space: Option<String>,
    /// Between the task and its tensors. A tokenizer is named by its sha256, and was put away before.
    pub adapter: AdapterSpec,
    /// How accurate it is said to be, for when there is no labelled set.
    pub declared: Option<Accuracy>,
    /// The labelled set, if it lies among the artefacts: device classes that come later are measured with it.
    pub set: Option<SetArtefact>,
    /// How it is made runnable.
    pub variants: Vec<NewRegistrationVariant>,
}

/// A variant to be registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRegistrationVariant {
    /// Unique in its task.
    pub name: String,
    /// How it is run.
    pub settings: VariantSettings,
    /// sha256 of the artefact.
    pub artefact: String,
}

/// Registers for one tenant.
#[derive(Clone)]
pub struct Registrar {
    /// Where everything is written down.
    pub store: Arc<dyn Store>,
    /// Where artefacts go.
    pub artefacts: Artefacts,
    /// What measures.
    pub profiler: Profiler,
    /// Whose it will be.
    pub tenant: TenantId,
}

impl Registrar {
    /// A task of this name, made if there is none. One that is there gets the rules which the manifest names.
    pub async fn task(&self, manifest: &TaskManifest) -> Result<Task, Error> {
        let catalog = self.store.catalog().await?;
        match catalog.task_named(self.tenant, &manifest.name) {
            Some(task) => Ok(self.store.change_task(task.id, manifest.change()).await?),
            None => Ok(self.store.create_task(manifest.new_task(self.tenant)?).await?),
        }
    }

    /// Measures a model and stores it.
    pub async fn model(
        &self,
        task: &Task,
        mut model: NewRegistration,
        (set, known): (Option<&LabelledSet>, &Known),
        report: Report<'_>,
    ) -> Result<Registered, Error> {
        let fitting = Fitting::of(&*self.store, &self.artefacts, (task, self.tenant), &model).await?;
        let variants = std::mem::take(&mut model.variants);
        let (since, count) = (Instant::now(), variants.len());
        let mut measured = Vec::with_capacity(count);
        for variant in variants {
            let (artefacts, sha256) = (self.artefacts.clone(), variant.artefact.clone());
            let (artefact, bytes) = blocking(move || open(&artefacts, &sha256)).await?;
            let subject = Subject {
                name: &variant.name,
                task,
                adapter: &model.adapter,
                settings: &variant.settings,
                artefact,
                tokenizer: fitting.tokenizer.clone(),
                declared: model.declared,
            };
            let profiler = self.profiler.share(since, count - measured.len());
            let evidence = (model.set.as_ref(), set.is_some());
            let keys = earlier::key(&self.profiler, &subject, &variant.artefact, evidence).await;
            let mut profile = self.measured(&profiler, subject, (set, keys.as_ref()), &mut *report).await?;
            profile.also = known.get(&variant.name).cloned().unwrap_or_default();
            profile.detail.doubts.extend(doubts(&profile.accuracy, set, model.declared));
            measured.push(variant.stored(bytes, vec![profile]));
        }
        let (model, evidence) = model.stored(task, self.tenant, (fitting, measured));
        Ok(self.store.register_with(model, evidence).await?)
    }

    /// Measured now, or by an earlier attempt.
    async fn measured(
        &self,
        profiler: &Profiler,
        subject: Subject<'_>,
        (set, keys): (Option<&LabelledSet>, Option<&Keys>),
        report: Report<'_>,
    ) -> Result<Profile, Error> {
        if let Some(profile) = earlier::found(&*self.store, keys).await? {
            return Ok(profile);
        }
        let profile = profiler.profile(subject, set, report).await?;
        earlier::keep(&*self.store, keys, &profile).await;
        Ok(profile)
    }

    /// Puts the artefacts of a manifest away. What it is measured with lies there already.
    async fn put(
        &self,
        manifest: &ModelManifest,
        set: Option<SetArtefact>,
    ) -> Result<NewRegistration, Error> {
        let mut variants = Vec::with_capacity(manifest.variants.len());
        for variant in &manifest.variants {
            let (artefacts, file) = (self.artefacts.clone(), variant.file.clone());
            let put = blocking(move || Ok(artefacts.put_file(&file)?)).await?;
            let (name, settings) = (variant.name.clone(), variant.settings());
            variants.push(NewRegistrationVariant { name, settings, artefact: put.sha256 });
        }
        let mut adapter = manifest.adapter.clone();
        if let Some(file) = adapter.tokenizer().map(PathBuf::from) {
            let artefacts = self.artefacts.clone();
            adapter.set_tokenizer(blocking(move || Ok(artefacts.put_file(&file)?)).await?.sha256);
        }
        Ok(NewRegistration {
            name: manifest.name.clone(),
            version: manifest.version,
            architecture: manifest.architecture.clone(),
            licence: manifest.licence.clone(),
            owner: manifest.owner.clone(),
            promote: false,
            by: Signed { who: "modelless up".to_owned(), at: UnixMicros::of(SystemTime::now()) },
            space: manifest.space.clone(),
            adapter,
            declared: manifest.declared(),
            set,
            variants,
        })
    }

    /// Puts a labelled set away, so that what is measured again later is measured with it. A set that is too large to be read
    /// back is not: then accuracies stay as they were.
    async fn put_set(&self, set: Option<&LabelledSet>) -> Result<Option<SetArtefact>, Error> {
        let Some(set) = set.cloned() else { return Ok(None) };
        let (artefacts, name) = (self.artefacts.clone(), set.name().to_owned());
        let put = move || Ok(if set.can_be_unpacked()? { Some(artefacts.put(set.packing())?) } else { None });
        let put = blocking(put).await?;
        if put.is_none() {
            tracing::warn!(
                set = name,
                "a labelled set is too large to be kept; its accuracies are measured once"
            );
        }
        Ok(put.map(|put| SetArtefact { name, artefact: put.sha256 }))
    }

    /// Makes the task of a package and registers those of its models that are not there yet, within one budget for all of them.
    /// How many it was.
    pub async fn package(&self, package: &Package, report: Report<'_>) -> Result<usize, Error> {
        let task = self.task(&package.task).await?;
        let catalog = self.store.catalog().await?;
        let there = |model: &&ModelManifest| {
            !catalog
                .models_of(task.id)
                .any(|known| known.name == model.name && known.version == model.version)
        };
        let missing: Vec<&ModelManifest> = package.models.iter().filter(there).collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let set = package.open_set(&task)?;
        let kept = self.put_set(set.as_ref()).await?;
        let known = package.task.also()?;
        let (since, mut left) = (Instant::now(), missing.iter().map(|model| model.variants.len()).sum());
        for model in &missing {
            let own = model.variants.len();
            let registrar = Self { profiler: self.profiler.part(since, (own, left)), ..self.clone() };
            left = left.saturating_sub(own);
            let model = self.put(model, kept.clone()).await?;
            registrar.model(&task, model, (set.as_ref(), &known), &mut *report).await?;
        }
        Ok(missing.len())
    }

    /// Stores a model of which nothing is measured yet. Whoever has the device for it measures it with what is given
    /// here, `within` such a time: see [`Registrar::evidence`] and [`Registrar::again`]. Whether it fits is asked of its files as far as
    /// they say so without being run. A version of a model that has a default is none itself before it was measured: until then it could
    /// not answer, and after it might turn out that it never can. That it is to be one is kept with it.
    pub async fn unmeasured(
        store: &dyn Store,
        artefacts: &Artefacts,
        (task, tenant): (&Task, TenantId),
        mut model: NewRegistration,
        within: Option<Duration>,
    ) -> Result<Registered, Error> {
        let fitting = Fitting::of(store, artefacts, (task, tenant), &model).await?;
        let promote = std::mem::take(&mut model.promote).then(|| model.by.who.clone());
        let within_ms = within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let variants = std::mem::take(&mut model.variants);
        if let (None, None, Some(first)) = (&model.set, model.declared, variants.first()) {
            return Err(Error::NoAccuracy(first.name.clone()));
        }
        let mut new = Vec::with_capacity(variants.len());
        for variant in variants {
            let bytes = looked_into(artefacts, &variant, (&model.adapter, task, &fitting)).await?;
            new.push(variant.stored(bytes, Vec::new()));
        }
        let (model, evidence) = model.stored(task, tenant, (fitting, new));
        Ok(store.register_with(model, Evidence { within_ms, promote, ..evidence }).await?)
    }

    /// What a model was registered with to be measured: its labelled set, read from the artefacts that are here, and how
    /// accurate it is said to be.
    pub async fn evidence(
        &self,
        task: &Task,
        evidence: &Evidence,
    ) -> Result<(Option<LabelledSet>, Option<Accuracy>), Error> {
        let Some(SetArtefact { name, artefact }) = evidence.set.clone() else {
            return Ok((None, evidence.declared));
        };
        let (artefacts, task) = (self.artefacts.clone(), task.clone());
        let read = move || {
            let file = artefacts.open(&artefact)?;
            LabelledSet::unpack(file, artefact.as_ref(), &name, &task)
        };
        Ok((Some(blocking(read).await?), evidence.declared))
    }

    /// Measures a variant on this device class too, as after a move to another machine, and keeps that. Accuracy is
    /// measured where there is a labelled set; without one that of another device class is kept, which its own words
    /// say, or else what was declared.
    pub async fn again(
        &self,
        (task, model, variant): (&Task, &Model, &Variant),
        (set, declared): (Option<&LabelledSet>, Option<Accuracy>),
        report: Report<'_>,
    ) -> Result<(), Error> {
        let adapter = AdapterSpec::parse(&model.adapter)
            .map_err(|source| Error::Adapter { model: model.name.clone(), source })?;
        let (artefacts, sha256) = (self.artefacts.clone(), variant.artefact.clone());
        let (artefact, _) = blocking(move || open(&artefacts, &sha256)).await?;
        let tokenizer = tokenizer(&self.artefacts, &model.name, &adapter).await?;
        let measured = |profile: &&modelless_types::Profile| !profile.is_estimated();
        let before = variant.profile_on(self.profiler.device_class()).filter(measured);
        let elsewhere = before.or_else(|| variant.profiles.iter().find(measured));
        let subject = Subject {
            name: &variant.name,
            task,
            adapter: &adapter,
            settings: &variant.settings,
            artefact,
            tokenizer,
            declared: elsewhere.map(|profile| profile.accuracy.value).or(declared),
        };
        let known = self.store.evidence(model.id).await?.set;
        let known = known.filter(|known| set.is_some_and(|set| set.name() == known.name));
        // One that is measured for the second time here is measured anew; registered again after it was removed it is not.
        let keys = if before.is_none() {
            let evidence = (known.as_ref(), set.is_some());
            earlier::key(&self.profiler, &subject, &variant.artefact, evidence).await
        } else {
            None
        };
        let mut profile = self.measured(&self.profiler, subject, (set, keys.as_ref()), report).await?;
        profile.detail.doubts.extend(doubts(&profile.accuracy, set, declared));
        if let Some(elsewhere) = elsewhere {
            if set.is_none() {
                profile.detail.doubts.clone_from(&elsewhere.detail.doubts);
                profile.accuracy = elsewhere.accuracy.clone();
                profile.detail.part_of_set = elsewhere.detail.part_of_set;
            }
            profile.also.clone_from(&elsewhere.also);
        }
        if let Some(before) = before {
            let off = self.store.catalog().await?.stale(variant.id, self.profiler.device_class()).is_some();
            profile = steadier(before, profile, !off);
        }
        self.store.put_profile(variant.id, profile).await?;
        Ok(())
    }
}

/// Of two profiles of a variant on one device class the one that stands.
fn steadier(before: &Profile, mut now: Profile, believed: bool) -> Profile {
    let comparable = believed && !before.is_coarse();
    let settled = steady::settle(before.detail.unsteady, now.detail.unsteady, comparable);
    if settled.before {
        now = before.clone();
    }
    now.detail.unsteady = settled.unsteady;
    now
}

/// What a model's words come to among what is there: looked at before anything is measured, so that what nobody can use is
/// refused at once.
struct Fitting {
    adapter: String,
    space: Option<NewSpace>,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Fitting {
    async fn of(
        store: &dyn Store,
        artefacts: &Artefacts,
        (task, tenant): (&Task, TenantId),
        model: &NewRegistration,
    ) -> Result<Self, Error> {
        let NewRegistration { name, version, adapter, space, variants, .. } = model;
        let notation = adapter.to_json();
        let notation = notation.map_err(|source| Error::Adapter { model: name.clone(), source })?;
        let catalog = store.catalog().await?;
        let space = self::space(&catalog, task, name, (space.clone(), adapter))?;
        let names: Vec<&str> = variants.iter().map(|variant| &*variant.name).collect();
        catalog.could_take((task.id, tenant), (name, *version), space.as_ref(), &names)?;
        Ok(Self { adapter: notation, space, tokenizer: tokenizer(artefacts, name, adapter).await? })
    }
}

impl NewRegistration {
    /// As it is stored, with what became of its variants; and what they are measured with.
    fn stored(
        self,
        task: &Task,
        tenant: TenantId,
        (fitting, variants): (Fitting, Vec<NewVariant>),
    ) -> (NewModel, Evidence) {
        let Self { name, version, architecture, licence, owner, promote, by, declared, set, .. } = self;
        let Fitting { adapter, space, .. } = fitting;
        let model = NewModel {
            task: task.id,
            tenant,
            name,
            version,
            architecture,
            licence,
            owner,
            promote,
            by,
            space,
            adapter,
            variants,
        };
        (model, Evidence { set, declared, ..Evidence::default() })
    }
}

impl NewRegistrationVariant {
    fn stored(self, artefact_bytes: Bytes, profiles: Vec<Profile>) -> NewVariant {
        let Self { name, settings, artefact } = self;
        NewVariant { name, settings, artefact, artefact_bytes, profiles }
    }
}

impl Package {
    /// The labelled set that its manifest names.
    pub fn open_set(&self, task: &Task) -> Result<Option<LabelledSet>, Error> {
        self.task.labelled_set.as_ref().map(|set| LabelledSet::open(&set.path, &set.name, task)).transpose()
    }
}

/// The file that an adapter names, read from the artefacts.
async fn tokenizer(
    artefacts: &Artefacts,
    model: &str,
    adapter: &AdapterSpec,
) -> Result<Option<Arc<Tokenizer>>, Error> {
    let Some(sha256) = adapter.tokenizer().map(str::to_owned) else { return Ok(None) };
    let (artefacts, model) = (artefacts.clone(), model.to_owned());
    let read = move || {
        let mut file = Vec::new();
        let (mut opened, _) = open(&artefacts, &sha256)?;
        let unreadable = |source| Error::Read { path: sha256.into(), source };
        opened.read_to_end(&mut file).map_err(unreadable)?;
        Tokenizer::read(&file).map_err(|source| Error::Adapter { model, source })
    };
    blocking(read).await.map(Some)
}

/// Vectors of different spaces must never be compared, so a model says whose it gives; that of the task's default has to
/// have its length. Labels and tensors have the task's space.
fn space(
    catalog: &Catalog,
    task: &Task,
    model: &str,
    (wanted, adapter): (Option<String>, &AdapterSpec),
) -> Result<Option<NewSpace>, Error> {
    let Some(dimension) = adapter.dimension() else {
        return match wanted {
            None => Ok(None),
            Some(space) => Err(Error::Space { model: model.to_owned(), why: inspect::no_vectors(&space) }),
        };
    };
    let default = catalog.spaces.iter().find(|space| space.id == task.default_space);
    let name = wanted.or_else(|| default.map(|space| space.name.clone()));
    let name = name.ok_or_else(|| Error::Space {
        model: model.to_owned(),
        why: "its task has no output space".to_owned(),
    })?;
    Ok(Some(NewSpace { name, kind: SpaceKind::Embedding { dimension } }))
}

/// What somebody else sent is only looked into up to so many bytes: they are read whole into the memory of whoever takes it in.
const LOOKED_INTO: u64 = 256 << 20;

/// How large a variant's artefact is, if what it says of itself fits, as far as that is looked at here: of ONNX, whose weights are passed over.
/// TorchScript would have to be unpacked, which is for whoever has a box for it; so is what is very large.
async fn looked_into(
    artefacts: &Artefacts,
    variant: &NewRegistrationVariant,
    (adapter, task, fitting): (&AdapterSpec, &Task, &Fitting),
) -> Result<Bytes, Error> {
    let NewRegistrationVariant { name, settings, artefact } = variant.clone();
    let (artefacts, adapter, task) = (artefacts.clone(), adapter.clone(), task.clone());
    let tokenizer = fitting.tokenizer.clone();
    let look = move || {
        let (mut file, bytes) = open(&artefacts, &artefact)?;
        let looked_into = matches!(settings.engine, Engine::Onnx | Engine::Openvino);
        if !looked_into || bytes.0 > LOOKED_INTO {
            return Ok(bytes);
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(|source| Error::Read { path: artefact.into(), source })?;
        let found = inspect::fits(settings.engine, &content, (&adapter, &task, tokenizer.as_ref()));
        found.map_err(|unfit| Error::Unfit { variant: name, why: unfit.to_string() })?;
        Ok(bytes)
    };
    blocking(look).await
}

fn open(artefacts: &Artefacts, sha256: &str) -> Result<(File, Bytes), Error> {
    let file = artefacts.hold(sha256)?;
    let read = |source| Error::Read { path: sha256.into(), source };
    let bytes = file.metadata().map_err(read)?.len();
    Ok((file, Bytes(bytes)))
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| Err(Error::Cancelled(error.to_string())))
}
