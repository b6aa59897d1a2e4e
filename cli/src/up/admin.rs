//! What the gateway asks to register models: measures them in runners of their own, beside what serves.

use super::{half_of_memory, left_of_memory};
use crate::engines;
use crate::giving_way;
use crate::profile::detail;
use crate::way::Way;
use async_trait::async_trait;
use modelless_adapter::AdapterSpec;
use modelless_engine::{Engine, EngineError};
use modelless_executor as executor;
use modelless_gateway::{Admin, AdminError, RegisterRequest, UnderWay};
use modelless_profiler::{
    Config, Error, Known, LabelledSet, NewRegistration, NewRegistrationVariant, Profiler, Progress,
    Registrar, Report, usual_variant_name,
};
use modelless_store::{Artefacts, Registered, SetArtefact, Signed, Store, UnixMicros};
use modelless_types::{Accuracy, Model, Task, TenantId, Variant, VariantSettings};
use modelless_wire::{Gpu, NodeStatus};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Models that may be measured or wait for it; more are told to come again.
const AT_HAND: usize = 4;

/// Registers what is sent to the gateway.
#[derive(Clone)]
pub(crate) struct Registry {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artefacts: Artefacts,
    pub(crate) library: PathBuf,
    pub(crate) servers: engines::Servers,
    /// This machine's, where models may use them.
    pub(crate) gpus: Vec<Gpu>,
    /// What is measured here is measured for.
    pub(crate) device_class: String,
    /// The work goes on when whoever asked for it goes away; a drain ends it.
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) places: Places,
    /// How far what is being registered is.
    pub(crate) going: Going,
    /// What will run it. Set once it is built.
    pub(crate) executor: Arc<OnceLock<executor::Handle>>,
}

/// Whether queries are answered meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beside {
    /// They are, and go first.
    Serving,
    /// They are not yet.
    Nothing,
}

/// How much runners that measure beside serving stand back, as `nice` counts: where all cores are taken, a tenth of one is
/// left to them.
const BEHIND: u8 = 10;
/// How long serving may put off measuring what somebody registers.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the executor may take to know what was registered. It reads the store for that.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);

/// Bounds what is measured.
#[derive(Clone)]
pub(crate) struct Places {
    at_hand: Arc<Semaphore>,
    /// Two measurements at a time would only measure each other.
    measuring: Arc<Semaphore>,
    /// How many are measured, or wait for their turn, because somebody asked for it.
    asked: Arc<watch::Sender<usize>>,
}

/// Held by whoever measures because somebody asked for it: nobody else begins meanwhile, and who did ends.
pub(crate) struct Asked(Arc<watch::Sender<usize>>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.send_modify(|asked| *asked -= 1);
    }
}

impl Default for Places {
    fn default() -> Self {
        let (at_hand, measuring) = (Arc::new(Semaphore::new(AT_HAND)), Arc::new(Semaphore::new(1)));
        Self { at_hand, measuring, asked: Arc::new(watch::Sender::new(0)) }
    }
}

impl Places {
    /// To be held while something is measured. `None` when nothing more is.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.measuring).acquire_owned().await.ok()
    }

    fn ask(&self) -> Asked {
        self.asked.send_modify(|asked| *asked += 1);
        Asked(Arc::clone(&self.asked))
    }

    /// Whether somebody asked for something that is not measured yet.
    pub(crate) fn is_asked(&self) -> bool {
        *self.asked.borrow() > 0
    }

    /// Until somebody does.
    pub(crate) async fn asked(&self) {
        let mut asked = self.asked.subscribe();
        // It cannot end while it is held here.
        let _ = asked.wait_for(|asked| *asked > 0).await;
    }

    fn take(&self) -> Result<OwnedSemaphorePermit, AdminError> {
        let full = |_| {
            let why = format!("{AT_HAND} models are being measured or wait for it already; try again later");
            AdminError::Unavailable(why)
        };
        Arc::clone(&self.at_hand).try_acquire_owned().map_err(full)
    }
}

/// How far what is being registered is, in the order of asking. No more than there are places.
#[derive(Clone, Default)]
pub(crate) struct Going(Arc<Mutex<BTreeMap<u64, One>>>);

/// One registration, from its coming until it ends, however that is.
struct One {
    tenant: TenantId,
    told: UnderWay,
    way: Way,
}

/// Held while it goes on.
struct Held {
    going: Going,
    number: u64,
}

impl Going {
    fn begin(&self, tenant: TenantId, request: &RegisterRequest) -> Held {
        let (task, model) = (request.task.clone(), request.name.clone());
        let of = request.variants.len();
        let progress = "waiting until another is measured".to_owned();
        let (version, budget) = (request.version, request.budget_ms.map(Duration::from_millis));
        let told =
            UnderWay { task, model, version, variant: None, progress, at: 1, of, permille: 0, left_ms: None };
        let mut all = self.all();
        let number = all.keys().next_back().map_or(0, |last| last + 1);
        all.insert(number, One { tenant, told, way: Way::new(of, budget) });
        Held { going: self.clone(), number }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, One>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, tenant: TenantId) -> Vec<UnderWay> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let all = self.all();
        let own = all.values().filter(|one| one.tenant == tenant);
        own.map(|One { told, way, .. }| {
            let ((at, of), (done, all)) = (way.place(), way.done());
            // Before its turn its time does not run.
            let left_ms = told.variant.as_ref().and_then(|_| way.left()).map(millis);
            UnderWay { at, of, permille: done.saturating_mul(1_000) / all, left_ms, ..told.clone() }
        })
        .collect()
    }
}

impl Held {
    /// Its turn has come: its time runs from now on.
    fn starts(&self, budget: Option<Duration>) {
        if let Some(one) = self.going.all().get_mut(&self.number) {
            one.way = Way::new(one.told.of, budget);
        }
    }

    fn report(&self) -> impl FnMut(&str, Progress) + Send + '_ {
        move |name, progress| {
            if let Some(one) = self.going.all().get_mut(&self.number) {
                one.way.at(name, progress);
                one.told.variant = Some(name.to_owned());
                one.told.progress = detail(progress);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.going.all().remove(&self.number);
    }
}

impl Registry {
    /// Something to register with, and its engine, to be shut down afterwards.
    pub(crate) fn registrar(
        &self,
        command: &str,
        (beside, tenant): (Beside, TenantId),
    ) -> anyhow::Result<(Registrar, Arc<dyn Engine>)> {
        let room = match beside {
            Beside::Serving => (left_of_memory(), BEHIND),
            Beside::Nothing => (half_of_memory(), 0),
        };
        let engine: Arc<dyn Engine> = engines::engine(self.library.clone(), room, &self.gpus, &self.servers)?;
        let profiler =
            Profiler::new(Arc::clone(&engine), Config::default(), self.device_class.as_str(), command);
        let (store, artefacts) = (Arc::clone(&self.store), self.artefacts.clone());
        Ok((Registrar { store, artefacts, profiler, tenant }, engine))
    }

    async fn work(
        self,
        tenant: TenantId,
        request: RegisterRequest,
        _place: OwnedSemaphorePermit,
    ) -> Result<Registered, AdminError> {
        let ending = || AdminError::Unavailable("the server is shutting down".to_owned());
        let _asked = self.places.ask();
        let held = self.going.begin(tenant, &request);
        let _measuring = tokio::select! {
            turn = self.places.measuring.acquire() => turn.map_err(|_| ending())?,
            () = self.stop.cancelled() => return Err(ending()),
        };
        let (mut registrar, engine) = self
            .registrar("modelless model register", (Beside::Serving, tenant))
            .map_err(|error| AdminError::Unavailable(error.to_string()))?;
        let (busy, watched) = watch::channel(false);
        let budget = request.budget_ms.map(Duration::from_millis);
        registrar.profiler = registrar.profiler.beside(watched).within(budget);
        held.starts(budget);
        let mut report = held.report();
        let registered = tokio::select! {
            registered = register(&registrar, request, &mut report) => registered,
            () = self.stop.cancelled() => Err(ending()),
            never = self.give_way(&busy) => match never {},
        };
        engine.shutdown().await;
        if let Ok(registered) = &registered {
            self.known(registered).await;
        }
        registered
    }

    /// Says when what is served goes first. Somebody waits for the registration, so not for long.
    async fn give_way(&self, busy: &watch::Sender<bool>) -> Infallible {
        match self.executor.get() {
            Some(node) => giving_way::tell(node.status(), Instant::now() + PATIENCE, busy).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the executor offers what was registered: a query that comes next finds something to run.
    async fn known(&self, registered: &Registered) {
        let Some(executor) = self.executor.get() else { return };
        executor.catalog_changed();
        let task = registered.model.task;
        let offered = |status: &NodeStatus, ordinal: u8| {
            status.info.offers.iter().any(|offer| (offer.task, offer.ordinal) == (task, ordinal))
        };
        let mut status = executor.status();
        let all = status.wait_for(|status| registered.variants.iter().all(|v| offered(status, v.ordinal)));
        if timeout(KNOWN_WITHIN, all).await.is_err() {
            tracing::warn!(model = registered.model.name, "the executor does not offer all of it yet");
        }
    }
}

#[async_trait]
impl Admin for Registry {
    async fn register(&self, tenant: TenantId, request: RegisterRequest) -> Result<Registered, AdminError> {
        let place = self.places.take()?;
        let work = self.tasks.spawn(self.clone().work(tenant, request, place));
        work.await.unwrap_or_else(|error| {
            tracing::error!(%error, "registering a model failed; this is a bug");
            Err(AdminError::Unavailable(
                "registering was cut short; the log of the server says how".to_owned(),
            ))
        })
    }

    fn under_way(&self, tenant: TenantId) -> Vec<UnderWay> {
        self.going.of(tenant)
    }
}

async fn register(
    registrar: &Registrar,
    request: RegisterRequest,
    report: Report<'_>,
) -> Result<Registered, AdminError> {
    if let Some(there) = already(&*registrar.store, registrar.tenant, &request).await? {
        return Ok(there);
    }
    let task = task_of(&*registrar.store, registrar.tenant, &request).await?;
    let set = labelled(&registrar.artefacts, &task, &request).await?;
    let model = registration(request)?;
    registrar.model(&task, model, (set.as_ref(), &Known::new()), report).await.map_err(admin)
}

/// The task, which must be there, for a model that must not. Said before minutes are spent on measuring.
pub(crate) async fn task_of(
    store: &dyn Store,
    tenant: TenantId,
    request: &RegisterRequest,
) -> Result<Task, AdminError> {
    let RegisterRequest { task, name, version, .. } = request;
    let catalog = store.catalog().await?;
    let known = catalog.task_named(tenant, task);
    let task = known.ok_or_else(|| AdminError::Invalid(format!("there is no task {task:?}")))?;
    if catalog.models_of(task.id).any(|model| model.name == *name && model.version == *version) {
        let name = format!("{name} version {version}");
        return Err(modelless_store::Error::AlreadyExists { what: "model", name }.into());
    }
    Ok(task.clone())
}

/// The model, if it is there already as it is asked for: then an earlier attempt got as far as storing it. One that is to
/// be promoted is.
pub(crate) async fn already(
    store: &dyn Store,
    tenant: TenantId,
    request: &RegisterRequest,
) -> Result<Option<Registered>, AdminError> {
    let catalog = store.catalog().await?;
    let Some(task) = catalog.task_named(tenant, &request.task) else { return Ok(None) };
    let named = |model: &&Model| model.name == request.name && model.version == request.version;
    let Some(model) = catalog.models_of(task.id).find(named) else { return Ok(None) };
    let wanted = registration(request.clone())?;
    let known: Vec<&Variant> = catalog.variants_of(model.id).collect();
    let same = |new: &NewRegistrationVariant| {
        known.iter().any(|known| {
            (&known.name, &known.settings, &known.artefact) == (&new.name, &new.settings, &new.artefact)
        })
    };
    let space = catalog.spaces.iter().find(|space| space.id == model.space).map(|space| &space.name);
    let adapter = wanted.adapter.to_json().map_err(|error| AdminError::Invalid(error.to_string()))?;
    let as_asked = (&model.architecture, &model.licence, &model.owner, &model.adapter)
        == (&wanted.architecture, &wanted.licence, &wanted.owner, &adapter)
        && wanted.space.as_ref().is_none_or(|wanted| Some(wanted) == space)
        && wanted.variants.iter().all(same);
    // What it is to be measured with is a part of what is asked: a set that was mended has to be measured.
    let evidence = store.evidence(model.id).await?;
    if !as_asked || (evidence.set, evidence.declared) != (wanted.set, wanted.declared) {
        return Ok(None);
    }
    let variants = known.into_iter().cloned().collect();
    if !wanted.promote {
        return Ok(Some(Registered { model: model.clone(), variants }));
    }
    store.promote(model.id, wanted.by).await?;
    let promoted = store.catalog().await?.models_of(task.id).find(named).cloned();
    Ok(promoted.map(|model| Registered { model, variants }))
}

/// The labelled set that was uploaded for it.
pub(crate) async fn labelled(
    artefacts: &Artefacts,
    task: &Task,
    request: &RegisterRequest,
) -> Result<Option<LabelledSet>, AdminError> {
    let Some(set) = request.set.clone() else { return Ok(None) };
    let (artefacts, task) = (artefacts.clone(), task.clone());
    let read = move || {
        let file = artefacts.hold(&set.artefact_sha256)?;
        LabelledSet::unpack(file, Path::new(&set.artefact_sha256), &set.name, &task)
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| AdminError::Unavailable(error.to_string()))?.map(Some).map_err(admin)
}

/// What is asked for, in the profiler's words.
pub(crate) fn registration(request: RegisterRequest) -> Result<NewRegistration, AdminError> {
    let RegisterRequest {
        task: _,
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
        set,
        declared_accuracy,
        budget_ms: _,
    } = request;
    let invalid = |error: &dyn std::fmt::Display| AdminError::Invalid(error.to_string());
    let variants = variants.into_iter().map(|variant| NewRegistrationVariant {
        name: variant.name.unwrap_or_else(|| usual_variant_name(&name, version, &variant.precision)),
        settings: VariantSettings {
            engine: variant.engine,
            precision: variant.precision,
            threads: variant.threads,
            max_batch: variant.max_batch,
            optimisation: variant.optimisation,
            processor: variant.processor,
            gpu_memory: variant.gpu_memory,
            string_bytes: variant.string_bytes,
        },
        artefact: variant.artefact_sha256,
    });
    Ok(NewRegistration {
        variants: variants.collect(),
        name,
        version,
        architecture,
        licence,
        owner,
        promote,
        by: Signed { who: by, at: UnixMicros::of(SystemTime::now()) },
        space,
        adapter: AdapterSpec::parse(&adapter.to_string()).map_err(|error| invalid(&error))?,
        declared: declared_accuracy.and_then(Accuracy::floor_from_f64),
        set: set.map(|set| SetArtefact { name: set.name, artefact: set.artefact_sha256 }),
    })
}

/// Whether it is the request's fault, the store's, or this machine's.
pub(crate) fn admin(error: Error) -> AdminError {
    match error {
        Error::Store(error) => AdminError::Store(error),
        Error::Engine {
            why: EngineError::Unavailable(_) | EngineError::System { .. } | EngineError::Busy(_),
            ..
        }
        | Error::Cancelled(_)
        | Error::Read { .. }
        | Error::Write { .. }
        | Error::Tools(_) => AdminError::Unavailable(error.to_string()),
        Error::Engine { .. }
        | Error::Batch { .. }
        | Error::Manifest { .. }
        | Error::Set { .. }
        | Error::SetMismatch { .. }
        | Error::Item { .. }
        | Error::Adapter { .. }
        | Error::Space { .. }
        | Error::Unfit { .. }
        | Error::Prepare { .. }
        | Error::Output { .. }
        | Error::Dump { .. }
        | Error::Calibration { .. }
        | Error::Generator { .. }
        | Error::TooMuch { .. }
        | Error::NoAccuracy(_) => AdminError::Invalid(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_few_models_wait_to_be_measured() {
        let places = Places::default();
        let taken: Vec<_> = (0..AT_HAND).map(|_| places.take().unwrap()).collect();
        assert!(matches!(places.take(), Err(AdminError::Unavailable(why)) if why.contains("try again")));
        drop(taken);
        assert!(places.take().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_being_registered_is_told_to_its_tenant_until_it_ends() {
        let request = |name: &str| -> RegisterRequest {
            let variant = serde_json::json!({"precision": "fp32", "artefact_sha256": "ab".repeat(32)});
            let request =
                serde_json::json!({"task": "t", "name": name, "adapter": {}, "variants": [variant, variant]});
            serde_json::from_value(request).unwrap()
        };
        let going = Going::default();
        let (mine, other) = (TenantId(1), TenantId(2));
        let first = going.begin(mine, &request("a"));
        let second = going.begin(mine, &request("b"));
        tokio::time::advance(Duration::from_secs(9)).await;
        first.starts(Some(Duration::from_mins(1)));
        first.report()("a-fp32", Progress::Loading);
        let told = going.of(mine);
        assert_eq!(told.iter().map(|one| one.model.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((told[0].variant.as_deref(), told[0].progress.as_str()), (Some("a-fp32"), "loading"));
        assert_eq!(
            (told[0].at, told[0].of, told[0].left_ms),
            (1, 2, Some(60_000)),
            "its time ran from its turn on"
        );
        assert!(
            told[1].variant.is_none() && told[1].progress.contains("waiting") && told[1].left_ms.is_none()
        );
        assert_eq!(going.of(other), []);
        drop(first);
        assert_eq!(going.of(mine).len(), 1);
        drop(second);
        assert_eq!(going.of(mine), []);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_measures_unasked_learns_of_what_is_asked_until_that_is_over() {
        let places = Places::default();
        let wait = Duration::from_secs(9);
        assert!(!places.is_asked() && timeout(wait, places.asked()).await.is_err());
        let (one, two) = (places.ask(), places.clone().ask());
        assert!(timeout(wait, places.asked()).await.is_ok());
        drop(one);
        assert!(places.is_asked(), "there is another");
        drop(two);
        assert!(!places.is_asked());
    }
}
