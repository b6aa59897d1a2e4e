//! Opening a database: looks before it touches, and says what is wrong in words.

use super::SqlStore;
use super::conn::{Db, Pools, corrupt, failed};
use super::migrate;
use crate::error::{Error, Result};
use crate::url::redact;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection as _, Executor as _};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr as _;
use std::time::Duration;

/// How long to wait for the database, for a connection or for another process' write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Files up to this size are read through for damage when they are opened: well under a second.
const READ_THROUGH_MAX: u64 = 256 << 20;
/// What every SQLite file begins with.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Opens `postgres://...`, or a file of SQLite given as `sqlite:PATH` or as a path.
pub async fn open(address: &str) -> Result<SqlStore> {
    if address.starts_with("postgres://") || address.starts_with("postgresql://") {
        return open_postgres(address).await;
    }
    let path =
        address.strip_prefix("sqlite://").or_else(|| address.strip_prefix("sqlite:")).unwrap_or(address);
    match path.split_once("://") {
        Some((scheme, _)) => Err(Error::invalid(
            "database address",
            format!(
                "{scheme:?} is not known; give postgres://USER@HOST/DATABASE, or the path of a SQLite file"
            ),
        )),
        None if path.is_empty() => Err(Error::invalid("database address", "it is empty")),
        None => open_sqlite(path).await,
    }
}

/// Opens a SQLite file, making it if it does not exist (its folder must). Several processes may share one.
pub async fn open_sqlite(path: impl AsRef<Path>) -> Result<SqlStore> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let size = inspect(path, &name)?;

    let options = SqliteConnectOptions::new().filename(path).busy_timeout(PATIENCE).foreign_keys(true);
    if size > 0 {
        examine(&options, size, &name).await?;
    }

    // WAL: readers never wait for the writer. FULL rather than NORMAL, which in WAL may lose the last commits when
    // power fails: a lost commit would give an ordinal or an id out twice, forget a signing key, or let a plan be
    // replaced that another scheduler had already seen. Writes are rare (none is on the path of a query).
    let writing = options
        .clone()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .optimize_on_close(true, None);
    let pool = || {
        SqlitePoolOptions::new()
            .acquire_timeout(PATIENCE * 3)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
    };
    let write = pool().max_connections(1).connect_with(writing).await.map_err(|e| failed(&name, &e))?;
    let read = pool().max_connections(4).connect_lazy_with(options.read_only(true));
    let store = SqlStore { db: Db { name: name.into(), pools: Pools::Sqlite { read, write } } };
    migrate::migrate(&store.db).await?;
    Ok(store)
}

/// Opens a Postgres database, or the schema of one that `search_path` names. Messages show no password.
pub async fn open_postgres(url: &str) -> Result<SqlStore> {
    let name = redact(url);
    // The parser's own words may quote the address, so they are not passed on.
    let options = PgConnectOptions::from_str(url).map_err(|_| {
        Error::invalid(
            "database address",
            format!(
                "{name:?} cannot be read; write postgres://USER:PASSWORD@HOST:PORT/DATABASE and escape what is \
                 special in the password (`@` as %40, `/` as %2F, `:` as %3A, `%` as %25)"
            ),
        )
    })?;

    // One connection by itself first: its error says what is wrong, a pool's only that time ran out.
    let unreachable = |why: String| Error::Unreachable { database: name.clone(), why };
    match tokio::time::timeout(PATIENCE, PgConnection::connect_with(&options)).await {
        Ok(Ok(connection)) => drop(connection.close().await),
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable(format!("no answer in {} s", PATIENCE.as_secs()))),
    }
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(PATIENCE)
        .after_connect(|connection, _| {
            Box::pin(async move {
                // A process that stops in the middle must not hold the counters against everybody else. And a plan that was
                // made while a table was empty must not be used when it has a million rows.
                let settings = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '30s'; \
                                SET plan_cache_mode = force_custom_plan";
                connection.execute(sqlx::raw_sql(settings)).await.map(|_| ())
            })
        })
        .connect_with(options)
        .await
        .map_err(|e| failed(&name, &e))?;
    let store = SqlStore { db: Db { name: name.into(), pools: Pools::Postgres(pool) } };
    migrate::migrate(&store.db).await?;
    Ok(store)
}

/// Whether the file can be a database, by its first bytes; makes it, readable for its owner only, if there is
/// none (it will hold keys). Gives its size.
fn inspect(path: &Path, name: &str) -> Result<u64> {
    let io = |doing, source| Error::Io { doing, path: path.to_owned(), source };
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => return Ok(0),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io("create the database", error)),
    }
    let file = File::open(path).map_err(|e| io("open the database", e))?;
    let about = file.metadata().map_err(|e| io("open the database", e))?;
    if !about.is_file() {
        return Err(Error::NotOurs { database: name.to_owned(), why: "it is not a file".to_owned() });
    }
    if about.len() == 0 {
        return Ok(0);
    }
    let mut head = Vec::with_capacity(SQLITE_MAGIC.len());
    file.take(16).read_to_end(&mut head).map_err(|e| io("read the database", e))?;
    if head != SQLITE_MAGIC {
        return Err(corrupt(
            name,
            "it does not begin as a SQLite file does, so it is damaged or something else",
        ));
    }
    Ok(about.len())
}

/// Looks through an existing file without the means to change it.
async fn examine(options: &SqliteConnectOptions, size: u64, name: &str) -> Result<()> {
    let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options.clone().read_only(true));
    let result = examine_with(&pool, size, name).await;
    pool.close().await;
    result
}

async fn examine_with(pool: &SqlitePool, size: u64, name: &str) -> Result<()> {
    let db = Db { name: name.into(), pools: Pools::Sqlite { read: pool.clone(), write: pool.clone() } };
    if size <= READ_THROUGH_MAX {
        for row in db.fetch("PRAGMA quick_check(1)", Vec::new()).await? {
            let verdict = row.read(name).text()?;
            if verdict != "ok" {
                return Err(corrupt(name, verdict.replace('\n', " ")));
            }
        }
    }
    migrate::version(&mut db.snapshot().await?).await.map(|_| ())
}
