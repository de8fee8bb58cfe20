//! Each story of the HTTP side on each database: which one it is, and where it lies while the story runs.

use std::sync::Arc;

use tidings_core::store::Store;
use tidings_store_postgres::{Options, PostgresStore};
use tidings_store_sqlite::SqliteStore;
use tidings_tests::postgres::{TestPostgres, ThrowAway};

/// The database that a story runs on.
#[derive(Clone, Copy)]
pub(super) enum Database {
    Sqlite,
    Postgres(&'static TestPostgres),
}

/// Where an installation lies; it goes with it.
pub(super) struct Place {
    /// The folder of its configuration and, on SQLite, of its database.
    pub(super) folder: tempfile::TempDir,
    _database: Option<ThrowAway>,
}

impl Database {
    /// PostgreSQL, where there is one.
    pub(super) fn postgres() -> Option<Self> {
        TestPostgres::get().map(Self::Postgres)
    }

    /// What it calls itself.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    /// A migrated store that nobody else uses.
    pub(super) async fn open(self) -> (Arc<dyn Store>, Place) {
        let folder = tempfile::tempdir().unwrap();
        match self {
            Self::Sqlite => {
                let store = SqliteStore::open_in(folder.path()).await.unwrap();
                store.migrate().await.unwrap();
                (Arc::new(store), Place { folder, _database: None })
            }
            Self::Postgres(postgres) => {
                let database = postgres.throw_away().await;
                // Tests do not wait for the disk.
                let options = Options { relaxed_durability: true, ..Options::default() };
                let store = PostgresStore::connect(database.url(), options).await.unwrap();
                (Arc::new(store), Place { folder, _database: Some(database) })
            }
        }
    }
}

/// Makes a test of each story on each database.
macro_rules! on_both_databases {
    ($($story:ident),+ $(,)?) => {$(
        mod $story {
            use $crate::api::tests::database::Database;

            #[actix_web::test]
            async fn on_sqlite() {
                super::$story(Database::Sqlite).await;
            }

            #[actix_web::test]
            async fn on_postgres() {
                if let Some(postgres) = Database::postgres() {
                    super::$story(postgres).await;
                }
            }
        }
    )+};
}

pub(super) use on_both_databases;
