//! One way to run a statement on either database, so that each query is written once.
//!
//! Columns are whole numbers and texts (documents are JSON, secrets hexadecimal), and bytes where they are many: both databases
//! keep them alike. It deliberately does not build queries: their text is fixed, and both read `$1`. A list of any length is one
//! argument (`listed`).

use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Postgres, Row as _, Sqlite, Transaction};
use std::sync::Arc;

/// The connections to a database.
#[derive(Clone)]
pub(crate) struct Db {
    /// For people, without password.
    pub(crate) name: Arc<str>,
    pub(crate) pools: Pools,
}

#[derive(Clone)]
pub(crate) enum Pools {
    /// SQLite has one writer at a time, so there is one connection for it: writers of this process stand in a
    /// fair line instead of polling for the lock.
    Sqlite {
        read: SqlitePool,
        write: SqlitePool,
    },
    Postgres(PgPool),
}

/// A transaction. Dropped without [`Tx::commit`] it leaves nothing behind.
pub(crate) struct Tx {
    name: Arc<str>,
    on: TxOn,
}

enum TxOn {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// A value for a `$n`.
pub(crate) enum Arg {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Vec<u8>),
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}
impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self::Int(Some(value.into()))
    }
}
impl From<Option<i64>> for Arg {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}
impl From<String> for Arg {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}
impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}
impl From<Option<String>> for Arg {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<u8>> for Arg {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

/// Arguments of a statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::conn::Arg::from($value)),*] };
}
pub(crate) use args;

/// The text of a statement with a list, which is a JSON array of arrays in one argument. The list stands where it is named; in both
/// databases `CAST(item.value ->> 0 AS BIGINT)` then is the first number of an inner array, `item.value ->> 1` the text after it.
macro_rules! listed {
    ($tx:expr, $before:literal, $list:literal, $after:literal) => {
        if $tx.is_sqlite() {
            concat!($before, "json_each(", $list, ") AS item", $after)
        } else {
            concat!($before, "json_array_elements(CAST(", $list, " AS JSON)) AS item", $after)
        }
    };
}
pub(crate) use listed;

/// Binds arguments for whichever driver the executor belongs to.
macro_rules! bound {
    ($sql:expr, $args:expr) => {{
        let mut query = sqlx::query($sql);
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

impl Db {
    /// A transaction that writes. On SQLite it has the only write lock from its start, so it cannot fail halfway.
    pub(crate) async fn begin(&self) -> Result<Tx> {
        let on = match &self.pools {
            Pools::Sqlite { write, .. } => write.begin_with("BEGIN IMMEDIATE").await.map(TxOn::Sqlite),
            Pools::Postgres(pool) => pool.begin().await.map(TxOn::Postgres),
        };
        Ok(Tx { name: Arc::clone(&self.name), on: on.map_err(|e| failed(&self.name, &e))? })
    }

    /// A transaction that only reads, and sees one moment throughout.
    pub(crate) async fn snapshot(&self) -> Result<Tx> {
        let on = match &self.pools {
            Pools::Sqlite { read, .. } => read.begin().await.map(TxOn::Sqlite),
            Pools::Postgres(pool) => {
                pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map(TxOn::Postgres)
            }
        };
        Ok(Tx { name: Arc::clone(&self.name), on: on.map_err(|e| failed(&self.name, &e))? })
    }

    /// One reading statement by itself.
    pub(crate) async fn fetch(&self, sql: &'static str, args: Vec<Arg>) -> Result<Vec<Row>> {
        let rows = match &self.pools {
            Pools::Sqlite { read, .. } => bound!(sql, args).fetch_all(read).await.map(Row::sqlite),
            Pools::Postgres(pool) => bound!(sql, args).fetch_all(pool).await.map(Row::postgres),
        };
        rows.map_err(|e| failed(&self.name, &e))
    }
}

impl Tx {
    pub(crate) async fn fetch(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Vec<Row>> {
        let rows = match &mut self.on {
            TxOn::Sqlite(tx) => bound!(sql, args).fetch_all(&mut **tx).await.map(Row::sqlite),
            TxOn::Postgres(tx) => bound!(sql, args).fetch_all(&mut **tx).await.map(Row::postgres),
        };
        rows.map_err(|e| failed(&self.name, &e))
    }

    /// The first row.
    pub(crate) async fn first(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Option<Row>> {
        Ok(self.fetch(sql, args).await?.into_iter().next())
    }

    /// Gives how many rows were changed.
    pub(crate) async fn exec(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<u64> {
        let done = match &mut self.on {
            TxOn::Sqlite(tx) => bound!(sql, args).execute(&mut **tx).await.map(|done| done.rows_affected()),
            TxOn::Postgres(tx) => bound!(sql, args).execute(&mut **tx).await.map(|done| done.rows_affected()),
        };
        done.map_err(|e| failed(&self.name, &e))
    }

    /// Several statements without arguments.
    pub(crate) async fn script(&mut self, sql: &'static str) -> Result<()> {
        let done = match &mut self.on {
            TxOn::Sqlite(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(|_| ()),
            TxOn::Postgres(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(|_| ()),
        };
        done.map_err(|e| failed(&self.name, &e))
    }

    /// The next number of a counter. Others that want one of the same counter wait until this transaction ends;
    /// what is read after it is therefore up to date. Take `catalog` before `replicas` before others, and
    /// all of them before the lock of any row, or two transactions could wait for each other. A job's row comes before those of its inputs.
    pub(crate) async fn next(&mut self, counter: &'static str) -> Result<i64> {
        let row = self
            .first("UPDATE counters SET value = value + 1 WHERE name = $1 RETURNING value", args![counter])
            .await?;
        match row {
            Some(row) => row.read(&self.name).int(),
            None => Err(corrupt(&self.name, format!("the counter {counter:?} is missing"))),
        }
    }

    /// The same for an id.
    pub(crate) async fn next_id(&mut self, counter: &'static str) -> Result<u32> {
        let id = self.next(counter).await?;
        u32::try_from(id).map_err(|_| Error::Database {
            database: self.name.to_string(),
            why: format!("no number is left for another of {counter}"),
        })
    }

    pub(crate) async fn commit(self) -> Result<()> {
        let done = match self.on {
            TxOn::Sqlite(tx) => tx.commit().await,
            TxOn::Postgres(tx) => tx.commit().await,
        };
        done.map_err(|e| failed(&self.name, &e))
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self.on, TxOn::Sqlite(_))
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

/// A row of either database.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    fn sqlite(rows: Vec<SqliteRow>) -> Vec<Self> {
        rows.into_iter().map(Self::Sqlite).collect()
    }

    fn postgres(rows: Vec<PgRow>) -> Vec<Self> {
        rows.into_iter().map(Self::Postgres).collect()
    }

    /// Reads its columns from the left.
    pub(crate) fn read<'r>(&'r self, database: &'r str) -> Columns<'r> {
        Columns { row: self, database, next: 0 }
    }
}

/// The columns of a row not yet read.
pub(crate) struct Columns<'r> {
    row: &'r Row,
    database: &'r str,
    next: usize,
}

impl Columns<'_> {
    pub(crate) fn opt_int(&mut self) -> Result<Option<i64>> {
        let at = self.next;
        self.next += 1;
        match self.row {
            Row::Sqlite(row) => row.try_get(at),
            Row::Postgres(row) => row.try_get(at),
        }
        .map_err(|e| failed(self.database, &e))
    }

    pub(crate) fn opt_text(&mut self) -> Result<Option<String>> {
        let at = self.next;
        self.next += 1;
        match self.row {
            Row::Sqlite(row) => row.try_get(at),
            Row::Postgres(row) => row.try_get(at),
        }
        .map_err(|e| failed(self.database, &e))
    }

    pub(crate) fn opt_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        let at = self.next;
        self.next += 1;
        match self.row {
            Row::Sqlite(row) => row.try_get(at),
            Row::Postgres(row) => row.try_get(at),
        }
        .map_err(|e| failed(self.database, &e))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        let at = self.next;
        self.opt_bytes()?.ok_or_else(|| corrupt(self.database, format!("column {at} of a row has no value")))
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        let at = self.next;
        self.opt_int()?.ok_or_else(|| corrupt(self.database, format!("column {at} of a row has no value")))
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        let at = self.next;
        self.opt_text()?.ok_or_else(|| corrupt(self.database, format!("column {at} of a row has no value")))
    }

    /// A number of the type it is needed in.
    pub(crate) fn num<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let value = self.int()?;
        T::try_from(value).map_err(|_| corrupt(self.database, format!("the number {value} is out of range")))
    }

    /// A JSON document.
    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text = self.text()?;
        serde_json::from_str(&text)
            .map_err(|error| corrupt(self.database, format!("a document cannot be read: {error}")))
    }

    /// The error for a row whose columns contradict each other.
    pub(crate) fn senseless(&self, why: String) -> Error {
        corrupt(self.database, why)
    }

    /// A word out of a fixed list.
    pub(crate) fn word<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let text = self.text()?;
        parse(&text).ok_or_else(|| corrupt(self.database, format!("the word {text:?} is unknown here")))
    }

    /// The same where a column may be empty.
    pub(crate) fn opt_word<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(text) = self.opt_text()? else { return Ok(None) };
        let known = parse(&text);
        known.map(Some).ok_or_else(|| corrupt(self.database, format!("the word {text:?} is unknown here")))
    }
}

pub(crate) fn corrupt(database: &str, why: impl Into<String>) -> Error {
    Error::Corrupt { database: database.to_owned(), why: why.into() }
}

/// What an error of the driver means. The driver's texts hold no password: addresses are parsed before.
pub(crate) fn failed(database: &str, error: &sqlx::Error) -> Error {
    use sqlx::Error as E;
    let database = database.to_owned();
    let why = error.to_string();
    if let Some(reported) = error.as_database_error() {
        // SQLite's codes are numbers whose low byte is the kind; Postgres' have five characters.
        let code = reported.code().unwrap_or_default();
        let sqlite = code.len() < 5 && reported.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some();
        let kind = code.parse::<u32>().ok().filter(|_| sqlite).map(|code| code & 0xff);
        return match kind {
            Some(11 | 26) => Error::Corrupt { database, why },
            Some(5) => {
                Error::Unreachable { database, why: "another process has it locked for too long".to_owned() }
            }
            _ => Error::Database { database, why },
        };
    }
    if matches!(error, E::ColumnDecode { .. } | E::Decode(_) | E::ColumnIndexOutOfBounds { .. }) {
        return Error::Corrupt { database, why };
    }
    if matches!(error, E::Io(_) | E::Tls(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed) {
        return Error::Unreachable { database, why };
    }
    Error::Database { database, why }
}
