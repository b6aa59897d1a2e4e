//! What an executor measures of itself: variants without a profile on its device class, after its start and whenever the
//! catalogue changed, and those whose profile was marked as stale, is coarse for want of time, or was taken in an unsteady minute. It fetches what it lacks, one
//! variant after the other, in runners apart from those that serve. `up` measures before it serves; here it does again what has
//! become stale or was measured in a hurry.
//!
//! It gives way: it begins when the node has nothing to do, and pauses when a query comes, until its patience is over (a
//! node that is never idle would never be measured). What is measured again is on an idle node or not at all: it can be
//! served meanwhile, and what is measured beside serving would be no better. It makes way, too, for what somebody registers and for
//! what was never measured here. Until a variant is measured the node serves it by
//! an estimate, where variants that were measured on two classes tell how the classes compare (`decision::transfer`). Of the
//! nodes of a class one measures a variant: it says so in
//! the store, again and again, and once it has not said so for a while another takes it up.

mod next;
mod wishes;

use self::next::{Rests, elsewhere_us, estimates, retry, to_do_again, waits};
use self::wishes::decided;
pub(crate) use self::wishes::is_measured_somewhere;
use super::tell;
use crate::giving_way;
use crate::profile::detail;
use crate::up::admin::{Beside, Registry};
use crate::up::measure::is_measured;
use modelless_adapter::AdapterSpec;
use modelless_executor::{self as executor, Fetch};
use modelless_live::{Live, Notice};
use modelless_profiler::{Error, Progress};
use modelless_store::{Catalog, Error as StoreError, Measuring, UnixMicros};
use modelless_types::{Model, Task, TenantId, Variant};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Between looks whether there is something to measure. What is told is looked at at once.
const LOOK: Duration = Duration::from_secs(2);
/// How long others leave a variant to a node that says nothing more of it.
const HOLD: Duration = Duration::from_secs(20);
/// How often a node says that it is still at it, and how far.
const RENEW: Duration = Duration::from_secs(1);
/// How long serving may put off one variant.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is measured again is never measured beside serving.
const NEVER_BESIDE: Duration = Duration::from_hours(24 * 365);
/// A store that takes longer is away.
const STORE_WITHIN: Duration = Duration::from_secs(10);
/// What others are told of a failure, in characters.
const WHY: usize = 500;

pub(crate) struct Measurer {
    pub(crate) registry: Registry,
    pub(crate) fetching: Arc<dyn Fetch>,
    pub(crate) name: String,
    pub(crate) node: executor::Handle,
    pub(crate) live: Arc<dyn Live>,
    /// The catalogue changed.
    pub(crate) look: Arc<Notify>,
    /// What makes these figures, for people.
    pub(crate) command: &'static str,
    /// Only what was measured before.
    pub(crate) only_again: bool,
}

/// A variant that this node took up.
struct Job {
    task: Task,
    model: Model,
    variant: Variant,
    /// It was measured before, and that is off, coarse or of an unsteady minute.
    again: bool,
    /// How many variants its model has.
    of: usize,
    /// How often it failed.
    attempts: u32,
}

/// What is known from one look to the next.
#[derive(Default)]
struct Known {
    /// The version of the catalogue in which nothing was left to do.
    settled: Option<u64>,
    rests: Rests,
}

/// How a job ended, if it did not go well.
enum Ended {
    /// The variant or the way to it is to blame.
    Failed(String),
    /// Another node has it, this one stops, or something goes first.
    Left,
}

impl Measurer {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = Known::default();
        let mut away = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.look.notified() => {}
                _ = tick.tick() => {}
            }
            // One after the other, as long as it goes well; a failure waits for the next look.
            loop {
                let job = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    job = within(self.next(&mut known)) => job,
                };
                match job {
                    Ok(Some(job)) => {
                        away = false;
                        if !self.take(&job, &stop).await {
                            break;
                        }
                    }
                    Ok(None) => {
                        away = false;
                        break;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut away, true) {
                            tracing::warn!(%error, "what is to be measured cannot be read; serving on");
                        }
                        break;
                    }
                }
            }
        }
    }

    fn class(&self) -> &str {
        &self.registry.device_class
    }

    /// Takes up the next variant that nobody measures.
    async fn next(&self, Known { settled, rests }: &mut Known) -> Result<Option<Job>, StoreError> {
        let store = &*self.registry.store;
        if *settled == Some(store.catalog_version().await?) {
            return Ok(None);
        }
        let catalog = store.catalog().await?;
        let known = store.measurings().await?;
        let status = self.node.status().borrow().clone();
        if !self.only_again {
            self.assume(&catalog, &status).await?;
            self.promote(&catalog).await?;
        }
        let mut left = false;
        let fresh = self.fresh(&catalog);
        let again = to_do_again(&catalog, self.class());
        rests.keep(&again);
        let idle = giving_way::is_idle(&status, status.load.queries) && !self.registry.places.is_asked();
        for (variant, again) in
            fresh.into_iter().map(|v| (v, false)).chain(again.into_iter().map(|v| (v, true)))
        {
            if status.without(variant.settings.engine).is_some() {
                continue; // the node says so itself, and with which reason
            }
            let Some(model) = catalog.models.iter().find(|model| model.id == variant.model) else { continue };
            let Some(task) = catalog.tasks.iter().find(|task| task.id == model.task) else { continue };
            left = true;
            let before = self.before(&known, variant);
            let resting = again && rests.holds(&catalog, variant, self.class(), Instant::now());
            if resting || before.is_some_and(|before| waits(before, &self.name, now())) || (again && !idle) {
                continue;
            }
            let job = Job {
                task: task.clone(),
                model: model.clone(),
                variant: variant.clone(),
                again,
                of: catalog.variants_of(model.id).count(),
                attempts: before.map_or(0, |before| before.attempts),
            };
            // Another node may have stored it just now.
            if !again && self.has_been_measured(&catalog, variant).await? {
                continue;
            }
            if self.claim(&job, "taken up", HOLD, None).await? {
                return Ok(Some(job));
            }
        }
        *settled = (!left).then_some(catalog.version);
        Ok(None)
    }

    /// Whether a variant was measured here since the catalogue was read.
    async fn has_been_measured(&self, read: &Catalog, variant: &Variant) -> Result<bool, StoreError> {
        let store = &*self.registry.store;
        if store.catalog_version().await? == read.version {
            return Ok(false);
        }
        let now = store.catalog().await?;
        let known = now.variants.iter().find(|known| known.id == variant.id);
        Ok(known.is_none_or(|known| is_measured(known, self.class())))
    }

    /// What was never measured here. The quickest first: the sooner one is measured, the sooner the others can be estimated.
    fn fresh<'a>(&self, catalog: &'a Catalog) -> Vec<&'a Variant> {
        let known = |variant: &&Variant| is_measured(variant, self.class());
        let mut fresh: Vec<&Variant> =
            catalog.variants.iter().filter(|variant| !self.only_again && !known(variant)).collect();
        fresh.sort_by(|a, b| elsewhere_us(a).total_cmp(&elsewhere_us(b)));
        fresh
    }

    /// Who is at it, or was.
    fn before<'a>(&self, known: &'a [Measuring], variant: &Variant) -> Option<&'a Measuring> {
        known.iter().find(|m| m.variant == variant.id && m.device_class == self.class())
    }

    /// Until they are measured, variants of which nothing is known here are taken to compare with other classes as those do
    /// that are.
    async fn assume(&self, catalog: &Catalog, status: &modelless_wire::NodeStatus) -> Result<(), StoreError> {
        let runs = |variant: &Variant| status.without(variant.settings.engine).is_none();
        let mut assumed = 0;
        for (variant, profile) in estimates(catalog, self.class()) {
            if runs(variant) {
                self.registry.store.put_profile(variant.id, profile).await?;
                assumed += 1;
            }
        }
        if assumed > 0 {
            tracing::info!(assumed, class = self.class(), "estimated variants until they are measured");
            self.node.catalog_changed();
        }
        Ok(())
    }

    /// Makes versions the default that were to be it once they are measured. Looked for whenever the catalogue has changed, so that it
    /// happens too where the node that measured the last variant was gone right after. Of several nodes that see to it one does.
    async fn promote(&self, catalog: &Catalog) -> Result<(), StoreError> {
        let store = &*self.registry.store;
        for (model, wish) in decided(catalog, now()) {
            if store.evidence(model.id).await?.promote.is_none() {
                continue;
            }
            match store.wish(model.id, wish).await {
                Ok(Some(_)) => {
                    let (model, version) = (&model.name, model.version);
                    tracing::info!(model, version, "it is measured, and the default now");
                }
                Ok(None) | Err(StoreError::NotFound { .. }) => {} // another saw to it, or it was removed
                Err(error) => return Err(error),
            }
            self.told().await;
        }
        Ok(())
    }

    /// Tells others that the catalogue changed.
    async fn told(&self) {
        self.node.catalog_changed();
        if let Ok(version) = within(self.registry.store.catalog_version()).await {
            tell(&*self.live, Notice::Catalog { version }).await;
        }
    }

    /// Whether it is this node's now.
    async fn claim(
        &self,
        job: &Job,
        progress: &str,
        hold: Duration,
        failed: Option<String>,
    ) -> Result<bool, StoreError> {
        let now = now();
        let hold = u64::try_from(hold.as_micros()).unwrap_or(u64::MAX);
        let wanted = Measuring {
            variant: job.variant.id,
            device_class: self.class().to_owned(),
            node: self.name.clone(),
            until: UnixMicros(now.0.saturating_add(hold)),
            progress: progress.to_owned(),
            attempts: job.attempts + u32::from(failed.is_some()),
            failed,
        };
        let stands = self.registry.store.claim_measuring(wanted, now).await?;
        Ok(stands.is_some_and(|stands| stands.node == self.name))
    }

    /// Measures it and says how that went. Whether to go on with the next one at once.
    async fn take(&self, job: &Job, stop: &CancellationToken) -> bool {
        let (variant, end) = (&job.variant.name, stop.child_token());
        let overtaken = AtomicBool::new(false);
        let overtake = async {
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                () = self.overtaken(job) => {
                    overtaken.store(true, Ordering::Relaxed);
                    end.cancel();
                }
            }
        };
        let progress = Mutex::new("fetching".to_owned());
        let work = async {
            let ended = self.work(job, &progress, &end).await;
            end.cancel();
            ended
        };
        let (ended, (), ()) = tokio::join!(work, self.renew(job, &progress, &end), overtake);
        let told = match ended {
            Ok(()) => {
                tracing::info!(variant, class = self.class(), "measured a variant");
                self.told().await;
                return true;
            }
            Err(Ended::Failed(why)) => {
                tracing::warn!(variant, why, "a variant could not be measured here");
                let why = why.chars().filter(|c| *c != '\0').take(WHY).collect();
                within(self.claim(job, "", retry(job.attempts), Some(why))).await
            }
            // Others need not wait until its time is over. Where another has it this changes nothing.
            Err(Ended::Left) => within(self.claim(job, "left", Duration::ZERO, None)).await,
        };
        if let Err(error) = told {
            tracing::debug!(variant, %error, "how measuring ended was not told");
        }
        overtaken.into_inner()
    }

    /// Until something comes for which somebody waits, where nobody waits for this: what is to be registered, or what was and
    /// is not measured yet.
    async fn overtaken(&self, job: &Job) {
        if !job.again {
            std::future::pending::<()>().await;
        }
        let fresh = async {
            loop {
                self.look.notified().await;
                match within(self.has_fresh()).await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) => tracing::debug!(%error, "whether there is anything new is not known"),
                }
            }
        };
        tokio::select! {
            () = self.registry.places.asked() => {}
            () = fresh => {}
        }
    }

    async fn has_fresh(&self) -> Result<bool, StoreError> {
        let store = &*self.registry.store;
        let (catalog, known) = (store.catalog().await?, store.measurings().await?);
        let status = self.node.status().borrow().clone();
        let mut fresh = self.fresh(&catalog).into_iter();
        Ok(fresh.any(|variant| {
            let before = self.before(&known, variant);
            status.without(variant.settings.engine).is_none()
                && !before.is_some_and(|before| waits(before, &self.name, now()))
        }))
    }

    /// Says that it is still at it, until `end`; ends it when another node has it.
    async fn renew(&self, job: &Job, progress: &Mutex<String>, end: &CancellationToken) {
        let mut due = interval(RENEW);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        due.reset(); // it was claimed a moment ago
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                _ = due.tick() => {}
            }
            let far = progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let renewed = tokio::select! {
                biased;
                () = end.cancelled() => return,
                renewed = within(self.claim(job, &far, HOLD, None)) => renewed,
            };
            match renewed {
                Ok(true) => {}
                // Or it has just been stored, which `work` is about to say.
                Ok(false) => return self.lost(job, end).await,
                Err(StoreError::NotFound { .. }) => return end.cancel(), // removed
                Err(error) => tracing::debug!(%error, "the store does not hear what is measured"),
            }
        }
    }

    async fn lost(&self, job: &Job, end: &CancellationToken) {
        let known = within(self.registry.store.measurings()).await.unwrap_or_default();
        let other = |m: &Measuring| {
            m.variant == job.variant.id && m.device_class == self.class() && m.node != self.name
        };
        if known.iter().any(other) {
            end.cancel();
        }
    }

    async fn work(&self, job: &Job, progress: &Mutex<String>, end: &CancellationToken) -> Result<(), Ended> {
        let at = |text: String| *progress.lock().unwrap_or_else(PoisonError::into_inner) = text;
        let evidence = tokio::select! {
            biased;
            () = end.cancelled() => return Err(Ended::Left),
            evidence = self.fetched(job) => evidence.map_err(Ended::Failed)?,
        };
        let give_way_until = Instant::now() + PATIENCE;
        at("waiting until the node has nothing else to do".to_owned());
        let mut status = self.node.status();
        tokio::select! {
            biased;
            () = end.cancelled() => return Err(Ended::Left),
            quiet = timeout_at(give_way_until, giving_way::quiet(&mut status)) => {
                if quiet.is_err() && job.again {
                    return Err(Ended::Left);
                }
            }
        }
        // Two measurements at a time would only measure each other.
        let _turn = tokio::select! {
            biased;
            () = end.cancelled() => return Err(Ended::Left),
            turn = self.registry.places.turn() => turn,
        };
        let made = self.registry.registrar(self.command, (Beside::Serving, TenantId::DEFAULT));
        let (mut registrar, engine) = made.map_err(|error| Ended::Failed(format!("{error:#}")))?;
        let (busy, watched) = watch::channel(false);
        let put_off = put_off(watched.clone(), job.again.then_some(give_way_until));
        registrar.profiler = registrar.profiler.beside(watched);
        if !job.again {
            registrar.profiler = wishes::within(registrar.profiler, &evidence, job.of);
        }
        let patience = if job.again { NEVER_BESIDE } else { give_way_until - Instant::now() };
        let mut report = |_: &str, progress: Progress| at(detail(progress));
        let measuring = async {
            let (set, declared) = registrar.evidence(&job.task, &evidence).await?;
            let what = (&job.task, &job.model, &job.variant);
            registrar.again(what, (set.as_ref(), declared), &mut report).await
        };
        let measured = tokio::select! {
            biased;
            () = end.cancelled() => Err(Ended::Left),
            () = put_off => Err(Ended::Left),
            measured = measuring => measured.map_err(|error| Ended::Failed(said(&error, &self.name))),
            never = giving_way::tell(status, Instant::now() + patience, &busy) => match never {},
        };
        engine.shutdown().await;
        measured
    }

    /// Brings what it takes, and tells what that is.
    async fn fetched(&self, job: &Job) -> Result<modelless_store::Evidence, String> {
        self.fetching.fetch(&job.variant.artefact, Some(job.variant.artefact_bytes)).await?;
        if let Ok(spec) = AdapterSpec::parse(&job.model.adapter)
            && let Some(tokenizer) = spec.tokenizer()
        {
            self.fetching.fetch(tokenizer, None).await?;
        }
        let evidence = within(self.registry.store.evidence(job.model.id)).await;
        let evidence = evidence.map_err(|error| error.to_string())?;
        if let Some(set) = &evidence.set {
            self.fetching.fetch(&set.artefact, None).await?;
        }
        Ok(evidence)
    }
}

/// Until there is something else to do and no patience left for it; never, where it would be measured beside that.
async fn put_off(mut busy: watch::Receiver<bool>, until: Option<Instant>) {
    if let Some(until) = until {
        sleep_until(until).await;
        if busy.wait_for(|busy| *busy).await.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Without the paths of this machine: others read it.
fn said(error: &Error, node: &str) -> String {
    if let Error::Store(StoreError::ArtefactCorrupt { expected, .. }) = error {
        return format!(
            "the artefact {expected} is damaged at node {node}; remove it there, and it is fetched again"
        );
    }
    if let Error::Store(StoreError::Io { doing, source, .. }) = error {
        return format!("node {node} cannot {doing} a file: {source}");
    }
    error.to_string()
}

fn now() -> UnixMicros {
    UnixMicros::of(SystemTime::now())
}

/// A store that does not answer keeps nothing waiting for ever.
async fn within<T>(asked: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(STORE_WITHIN, asked).await.unwrap_or_else(|_| {
        let why = format!("it did not answer within {STORE_WITHIN:?}");
        Err(StoreError::Unreachable { database: "of the cluster".to_owned(), why })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_artefact_is_told_without_a_path() {
        let error = StoreError::ArtefactCorrupt {
            path: "/secret/place".into(),
            expected: "ab".repeat(32),
            found: "cd".repeat(32),
        };
        let text = said(&Error::Store(error), "one");
        assert!(text.contains("damaged at node one") && !text.contains("secret"), "{text}");
    }
}
