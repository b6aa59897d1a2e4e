//! A fresh, empty place for each test, on each backend.

use modelless_store::{MemStore, SqlStore, Store, open};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Opens the place of a test, as many times as it likes: each is another process, as far as the database knows.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Memory(Arc<MemStore>),
    At(String),
}

impl Backend {
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::At(address) => Arc::new(open_at(address).await),
        }
    }
}

pub(crate) async fn open_at(address: &str) -> SqlStore {
    open(address).await.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn on_memory<F: Future<Output = ()>>(test: impl FnOnce(Backend) -> F) {
    test(Backend::Memory(Arc::new(MemStore::new()))).await;
}

pub(crate) async fn on_sqlite<F: Future<Output = ()>>(test: impl FnOnce(Backend) -> F) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    test(Backend::At(folder.path().join("store.db").display().to_string())).await;
}

/// Runs the test in a database of its own, which is dropped afterwards, also when the test fails.
pub(crate) async fn on_postgres<F>(test: impl FnOnce(Backend) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    static MADE: AtomicU32 = AtomicU32::new(0);
    let server = server_url();
    let name = format!("modelless_test_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    admin(&server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
    admin(&server, format!("CREATE DATABASE {name}")).await;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(test(Backend::At(beside(&server, &name))));
    let result = tasks.join_next().await.expect("one task was spawned");
    admin(&server, format!("DROP DATABASE {name} WITH (FORCE)")).await;
    if let Err(failed) = result {
        std::panic::resume_unwind(failed.into_panic());
    }
}

pub(crate) fn server_url() -> String {
    std::env::var("MODELLESS_TEST_POSTGRES").expect(
        "MODELLESS_TEST_POSTGRES is not set: this test needs a real Postgres. Run `cargo xtask test`, which starts \
         one, or set the variable to the address of one where databases may be made",
    )
}

/// The same server, another database.
fn beside(server: &str, database: &str) -> String {
    let (place, parameters) = server.split_once('?').map_or((server, None), |(a, b)| (a, Some(b)));
    let start = place.find("://").map_or(0, |at| at + 3);
    let place = place[start..].rfind('/').map_or(place, |at| &place[..start + at]);
    match parameters {
        Some(parameters) => format!("{place}/{database}?{parameters}"),
        None => format!("{place}/{database}"),
    }
}

pub(crate) async fn admin(url: &str, sql: String) {
    let mut connection = PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    connection.execute(AssertSqlSafe(sql.clone())).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.close().await.expect("closing an idle connection");
}
