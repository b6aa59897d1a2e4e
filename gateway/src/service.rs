//! The gateway as a component: built, bound, run until drained.

use crate::access::{Deeds, Gate, keep, shares};
use crate::admin::Admin;
use crate::cache::Cache;
use crate::config::Config;
use crate::core::Core;
use crate::demand::{AskedTold, DemandTold};
use crate::door::Door;
use crate::errors::Error;
use crate::feedback::Desk;
use crate::files;
use crate::grpc;
use crate::http;
use crate::ids::{QueryIds, SECRET};
use crate::jobs;
use crate::openapi;
use crate::past::DECISIONS;
use crate::regions::REGIONS_MAX;
use crate::routes::{self, App, KnownPlan};
use crate::tls::{H2, HTTP1, Tls};
use crate::traces::{Exporter, Traces};
use crate::update::Updater;
use crate::view::{TasksOf, Views};
use bytes::Bytes as Buffer;
use modelless_decision::route::Router;
use modelless_drive::{Clock, Driver, Recorder};
use modelless_live::{Live, Member, Role, Tried};
use modelless_store::{Artefacts, Deed, Store};
use modelless_telemetry::Metrics;
use modelless_types::Bytes;
use modelless_wire::{GatewayLink, NodeLink, NodeStatus};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Each upload has a thread that hashes and writes; there is one disk.
pub(crate) const UPLOADS: usize = 8;

/// What a gateway needs of others.
pub struct Deps {
    /// The catalogue and the secret of query ids. Never asked while a query is answered.
    pub store: Arc<dyn Store>,
    /// Where uploads go; without it, uploading is not served.
    pub artefacts: Option<Artefacts>,
    /// Nodes that are known from the start; more can be added through the [`Handle`].
    pub nodes: Vec<(watch::Receiver<NodeStatus>, Arc<dyn NodeLink>)>,
    /// The clock of the process.
    pub clock: Clock,
    /// Keeps what the router was told.
    pub recorder: Option<Recorder>,
    /// The registry of the process.
    pub metrics: Arc<Metrics>,
    /// Registers models; without it, registering is not served.
    pub admin: Option<Arc<dyn Admin>>,
    /// Where answers are shared with other gateways; without it each gives only its own again.
    pub live: Option<Arc<dyn Live>>,
}

/// A gateway that is not running yet.
pub struct Service {
    core: Arc<Core>,
    updater: Updater,
    app: Arc<App>,
    noted: mpsc::Receiver<Deed>,
    exporter: Option<Exporter>,
    http: Option<(Door, Option<Tls>)>,
    grpc: Option<(Door, Option<Tls>)>,
}

/// A running (or not yet running) gateway, to hold on to. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    core: Arc<Core>,
}

/// Where a gateway listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// HTTP.
    pub http: SocketAddr,
    /// gRPC, if it is served.
    pub grpc: Option<SocketAddr>,
    /// Both by TLS.
    pub encrypted: bool,
}

impl Addresses {
    /// Of HTTP, as clients take it.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.encrypted { "https" } else { "http" }, self.http)
    }
}

impl Service {
    /// Reads the catalogue and the secret, so that a gateway that starts at all can serve at once.
    pub async fn build(config: Config, deps: Deps) -> Result<Self, Error> {
        config.check().map_err(Error::Config)?;
        let ports = 1 + usize::from(config.grpc.is_some());
        let others = if config.shared_memory { REGIONS_MAX } else { 0 };
        let config =
            Config { max_connections: files::connections(config.max_connections, ports, others), ..config };
        let Deps { store, artefacts, nodes, clock, recorder, metrics, admin, live } = deps;
        let mut candidate = [0; 32];
        getrandom::fill(&mut candidate).map_err(Error::Random)?;
        let ids = QueryIds::new(&store.secret(SECRET, candidate).await?);
        let number_base = getrandom::u64().map_err(Error::Random)?;
        let seed = match config.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(Error::Random)?,
        };
        let catalog = Arc::new(store.catalog().await?);
        let doors = store.access().doors().await?; // never older than the catalogue
        let (grants, said) = (doors.grants.clone(), shares(&doors));
        let gate = Gate::new(doors, Arc::clone(&metrics));
        let driver = Driver::new(Router::new(config.waiting, seed).remembering(DECISIONS), clock, recorder);
        let nothing = Views::new(&catalog, &TasksOf::new(), &[], &[]);
        let openapi = Buffer::from(openapi::document(&config).to_string());
        let seed = getrandom::u64().map_err(Error::Random)?; // not the router's, which may be set
        let traces = Traces::new(&config.traces, metrics.traces(), seed).map_err(Error::Config)?;
        let (traces, exporter) = traces.unzip();
        let cache = Cache::new(&*store, live, Bytes(config.max_cache_bytes), &metrics).await?;
        let mut core = Core::new(config, driver, (ids, number_base), gate, metrics, nothing, cache);
        core.traces = traces;
        let core = Arc::new(core);
        for (status, link) in nodes {
            core.add_node(status, link);
        }
        let updater = Updater::new(Arc::clone(&core), Arc::clone(&store), (catalog, grants, said));
        let (deeds, noted) = Deeds::new();
        let app = Arc::new(App {
            core: Arc::clone(&core),
            store,
            artefacts,
            admin,
            openapi,
            feedback: Desk::default(),
            deeds,
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            rest: KnownPlan::default(),
        });
        Ok(Self { core, updater, app, noted, exporter, http: None, grpc: None })
    }

    /// Opens the ports. What connects from now on is served once it runs.
    #[expect(
        clippy::unused_async,
        reason = "ports are bound within a runtime; so nobody calls it outside of one"
    )]
    pub async fn bind(&mut self) -> Result<Addresses, Error> {
        let (http, http_addr) = listen(self.core.config.http)?;
        self.http = Some((http, Tls::new(&self.core.config, &[H2, HTTP1])?));
        let encrypted = self.core.config.tls.is_set();
        let mut addresses = Addresses { http: http_addr, grpc: None, encrypted };
        if let Some(wanted) = self.core.config.grpc {
            let (grpc, addr) = listen(wanted)?;
            self.grpc = Some((grpc, Tls::new(&self.core.config, &[H2])?));
            addresses.grpc = Some(addr);
        }
        Ok(addresses)
    }

    /// To hold on to it.
    pub fn handle(&self) -> Handle {
        Handle { core: Arc::clone(&self.core) }
    }

    /// The routes without a socket, for tests.
    #[cfg(test)]
    pub(crate) fn router(&self) -> axum::Router {
        routes::router(Arc::clone(&self.app))
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> Arc<Core> {
        Arc::clone(&self.core)
    }

    /// Serves until drained: not ready from then on, clients sent elsewhere for as long as is set, then no new queries; but
    /// those at hand are finished, and health is told until the end.
    pub async fn run(mut self, drain: CancellationToken) -> Result<(), Error> {
        if self.http.is_none() {
            self.bind().await?;
        }
        let Self { core, updater, app, noted, exporter, http, grpc } = self;
        let stop = CancellationToken::new();
        let mut tasks: JoinSet<Result<(), Error>> = JoinSet::new();
        let (store, stopped) = (Arc::clone(&app.store), stop.clone());
        tasks.spawn(async move {
            keep(store, noted, stopped).await;
            Ok(())
        });
        let (of, store, stopped) = (Arc::clone(&core), Arc::clone(&app.store), stop.clone());
        tasks.spawn(async move {
            jobs::run(of, store, stopped).await;
            Ok(())
        });
        // They are the first to end: nobody waits for them.
        let (of, drained) = (Arc::clone(&core), drain.clone());
        let copies = async move { of.shadows.run(Arc::clone(&of), drained).await };
        let stopped = stop.clone();
        tasks.spawn(async move {
            copies.await;
            stopped.cancelled().await;
            Ok(())
        });
        if core.cache.shared.is_some() {
            let (of, stopped) = (Arc::clone(&core), stop.clone());
            tasks.spawn(async move {
                if let Some(shared) = &of.cache.shared {
                    shared.run(stopped).await;
                }
                Ok(())
            });
        }
        let (mut telling, told) = (JoinSet::new(), CancellationToken::new());
        if let Some(exporter) = exporter {
            telling.spawn(exporter.run(told.clone()));
        }
        if let Some(listener) = grpc {
            tasks.spawn(grpc::serve(listener, Arc::clone(&app), stop.clone()));
        }
        if let Some(listener) = http {
            let served = http::serve(listener, routes::router(app), Arc::clone(&core), stop.clone());
            tasks.spawn(async move {
                served.await;
                Ok(())
            });
        }
        let (timer, stopped) = (Arc::clone(&core), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = timer.driver.serve_timer(&*timer) => {}
            }
            Ok(())
        });
        let stopped = stop.clone();
        tasks.spawn(async move {
            updater.run(stopped).await;
            Ok(())
        });

        let early = tokio::select! {
            () = drain.cancelled() => None,
            end = tasks.join_next() => end, // none ends by itself: whatever this is, it is the reason to stop
        };
        if early.is_none() && !core.config.leave().is_zero() {
            core.leave();
            tokio::time::sleep(core.config.leave()).await;
        }
        core.drain();
        if tokio::time::timeout(core.config.drain_timeout(), core.pending.idle()).await.is_err() {
            core.give_up();
        }
        stop.cancel();
        let mut result = early.map_or(Ok(()), flatten);
        while let Some(end) = tasks.join_next().await {
            result = result.and(flatten(end));
        }
        // What was given up just now is to be heard of, too.
        told.cancel();
        while telling.join_next().await.is_some() {}
        core.forget_nodes();
        result
    }
}

fn flatten(end: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    end.unwrap_or_else(|error| {
        tracing::error!(%error, "a part of the gateway failed; this is a bug");
        Ok(())
    })
}

fn listen(addr: SocketAddr) -> Result<(Door, SocketAddr), Error> {
    let failed = |source| Error::Bind { addr, source };
    let door = Door::open(addr).map_err(failed)?;
    let bound = door.address().map_err(failed)?;
    Ok((door, bound))
}

impl Handle {
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Where nodes send what they have to say.
    pub fn link(&self) -> Arc<dyn GatewayLink> {
        Arc::clone(&self.core) as Arc<dyn GatewayLink>
    }

    /// A node that came later.
    pub fn add_node(&self, status: watch::Receiver<NodeStatus>, link: Arc<dyn NodeLink>) {
        self.core.add_node(status, link);
    }

    /// The catalogue was changed: it is read now instead of within a second.
    pub fn catalog_changed(&self) {
        self.core.look_at_catalog();
    }

    /// The catalogue's version, once it is another than `known`.
    pub async fn next_catalog(&self, known: u64) -> u64 {
        let mut shown = self.core.shown.subscribe();
        let next = shown.wait_for(|shown| shown.version != known).await;
        next.map_or(known, |shown| shown.version)
    }

    /// Who else is there, as the live state tells.
    pub fn set_members(&self, members: Vec<Member>) {
        let (at, view) = (self.core.driver.clock().now(), self.core.view());
        self.core.outlook.lock().unwrap_or_else(PoisonError::into_inner).look(at, &members, &view.catalog);
        let gateways = members.iter().filter(|member| member.role == Role::Gateway).count();
        self.core.gate.share(gateways);
        let lent = self.core.members.lock().unwrap_or_else(PoisonError::into_inner).take(members);
        if lent {
            self.core.changed.notify_one();
        }
    }

    /// What it is to announce itself by: its queries are numbered from there, so whoever is asked for one of them knows whose it is.
    pub fn instance(&self) -> u64 {
        self.core.instance()
    }

    /// What was asked of this gateway so far, class by class: the most asked for, up to a bound.
    pub fn demand(&self) -> DemandTold {
        let waiting = self.core.driver.look(|router, _| router.waiting_by_class());
        self.core.demand.told(&waiting)
    }

    /// When each task was asked for last here.
    pub fn asked(&self) -> AskedTold {
        self.core.demand.asked(self.core.driver.clock().now())
    }

    /// What was counted of trials that run, up to a bound.
    pub fn trials(&self) -> Vec<Tried> {
        self.core.trials.told()
    }

    /// Follows whether the gateway is ready.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.core.ready.subscribe()
    }

    /// Checks and reads the names that answers carry in `modelless-query-id`.
    pub fn query_ids(&self) -> QueryIds {
        self.core.ids.clone()
    }

    /// Queries that wait or run.
    pub fn open_queries(&self) -> usize {
        self.core.pending.len()
    }
}

impl Core {
    /// Has the catalogue and the nodes looked at soon; [`crate::core::Shown::asked`] tells when that is done.
    pub(crate) fn look_at_catalog(&self) -> u64 {
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.catalog_changed.store(true, Ordering::Release);
        self.changed.notify_one();
        asked
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("http", &self.http).field("grpc", &self.grpc).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("open_queries", &self.open_queries()).finish_non_exhaustive()
    }
}
