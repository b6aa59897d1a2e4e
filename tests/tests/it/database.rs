//! The same tests on SQLite and on Postgres.

use anyhow::{Context, Result, ensure};
use modelless_testkit::wait;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where a demo keeps what it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

/// Makes of each of these functions a test on each database.
macro_rules! on_both_databases {
    ($($name:ident,)*) => {
        mod sqlite {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                super::$name(crate::database::Database::Sqlite)
            })*
        }
        mod postgres {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                super::$name(crate::database::Database::Postgres)
            })*
        }
    };
}
pub(crate) use on_both_databases;

/// The Postgres that tests may make databases in.
pub(crate) fn postgres() -> Result<String> {
    std::env::var("MODELLESS_TEST_POSTGRES").context("no Postgres: run this by `cargo xtask test`")
}

/// A database of its own, which goes away with this.
pub(crate) struct OwnDatabase {
    base: String,
    name: String,
}

impl OwnDatabase {
    /// A copy of another one, or an empty one.
    pub(crate) fn create(name: &str, template: Option<&str>) -> Result<Self> {
        let base = postgres()?;
        psql(&base, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))?;
        let template = template.map(|template| format!(" TEMPLATE {template}")).unwrap_or_default();
        psql(&base, &format!("CREATE DATABASE {name}{template}"))?;
        Ok(Self { base, name: name.to_owned() })
    }

    pub(crate) fn url(&self) -> Result<String> {
        let (front, _) = self.base.rsplit_once('/').context("a URL with a database")?;
        Ok(format!("{front}/{}", self.name))
    }

    /// It stays, for others to copy.
    pub(crate) fn keep(mut self, name: &str) -> Result<()> {
        psql(&self.base, &format!("ALTER DATABASE {} RENAME TO {name}", self.name))?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for OwnDatabase {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // One that stays behind takes room and harms nobody.
            let _ = psql(&self.base, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        }
    }
}

/// The databases whose names begin so.
pub(crate) fn databases(prefix: &str) -> Result<Vec<String>> {
    let sql = format!("SELECT datname FROM pg_database WHERE starts_with(datname, '{prefix}')");
    Ok(psql(&postgres()?, &sql)?.lines().map(str::to_owned).collect())
}

pub(crate) fn drop_database(name: &str) -> Result<()> {
    psql(&postgres()?, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).map(drop)
}

/// A table that nobody else gets at, while this lives.
pub(crate) struct Locked {
    /// The client whose transaction has it.
    client: Child,
    url: String,
    table: String,
}

impl Locked {
    pub(crate) fn table(url: &str, table: &str) -> Result<Self> {
        let mut client = Command::new(modelless_testkit::postgres::program("psql"))
            .args([url, "--quiet"])
            .stdin(Stdio::piped())
            .spawn()
            .context("running psql")?;
        let sql = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;\n");
        client.stdin.as_mut().context("the client's input is piped")?.write_all(sql.as_bytes())?;
        Ok(Self { client, url: url.to_owned(), table: table.to_owned() })
    }

    /// Until a query of somebody stands still at it.
    pub(crate) fn wait_for_somebody(&self) -> Result<()> {
        let sql = format!(
            "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation \
             WHERE relname = '{}' AND NOT granted",
            self.table
        );
        wait::until(Duration::from_mins(1), || {
            let waiting = psql(&self.url, &sql)?;
            Ok(if waiting.trim() == "0" { Err("nobody asks for it".to_owned()) } else { Ok(()) })
        })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = (self.client.kill(), self.client.wait());
    }
}

/// What a query says of any database.
#[cfg(any(feature = "moto", feature = "kubernetes"))]
pub(crate) fn sql(url: &str, sql: &str) -> Result<String> {
    psql(url, sql)
}

fn psql(url: &str, sql: &str) -> Result<String> {
    let quiet = ["--quiet", "--no-align", "--tuples-only", "--command"];
    let output = Command::new(modelless_testkit::postgres::program("psql"))
        .arg(url)
        .args(quiet)
        .arg(sql)
        .env("PGOPTIONS", "-c client_min_messages=warning")
        .output()
        .context("running psql")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
