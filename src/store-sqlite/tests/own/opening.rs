//! Opening: one process, clear errors with the path, a copy before an old database changes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, query, query_scalar};
use tidings_core::store::{FeedQuery, Registry as _, Store, StoreError, SwitchedBy};
use tidings_core::switches::Scope;
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;
use tidings_store_sqlite::{FILE_NAME, OpenError, SqliteStore};

#[tokio::test]
async fn a_second_process_is_refused_and_told_which_file_is_locked() {
    let directory = tempfile::tempdir().unwrap();
    let first = SqliteStore::open_in(directory.path()).await.unwrap();

    let refused = SqliteStore::open_in(directory.path()).await.err().unwrap();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("{}.lock", directory.path().join(FILE_NAME).display())), "{refused}");

    first.close().await;
    SqliteStore::open_in(directory.path()).await.unwrap();
}

#[tokio::test]
async fn a_missing_directory_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("a").join("b");

    let store = SqliteStore::open_in(&deep).await.unwrap();
    store.migrate().await.unwrap();

    assert!(deep.join(FILE_NAME).exists());
    assert_eq!(store.describe(), format!("SQLite in {}", deep.display()));
}

#[tokio::test]
async fn what_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();

    let no_directory = SqliteStore::open_in(&file).await.err().unwrap();
    assert!(matches!(no_directory, OpenError::Directory { .. }), "{no_directory}");
    assert!(no_directory.to_string().contains(&file.display().to_string()), "{no_directory}");

    let no_lock = SqliteStore::open_in(Path::new("/proc")).await.err().unwrap();
    assert!(matches!(no_lock, OpenError::File { .. }), "{no_lock}");
    assert!(no_lock.to_string().contains("/proc/tidings.db.lock"), "{no_lock}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("letter.txt");
    std::fs::write(&path, "Dear reader, ".repeat(100)).unwrap();

    let refused = SqliteStore::open(&path).await.err().unwrap();

    assert!(refused.to_string().contains("letter.txt"), "{refused}");
}

#[tokio::test]
async fn a_closed_store_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_in(directory.path()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;

    assert!(matches!(store.settle_setting("key", b"value").await, Err(StoreError::Unreachable(_))));
    assert!(matches!(store.setting("key").await, Err(StoreError::Unreachable(_))));
}

#[tokio::test]
async fn an_older_database_is_copied_before_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let mut old = SqliteConnectOptions::new().filename(&path).create_if_missing(true).connect().await.unwrap();
    query("CREATE TABLE letters (body TEXT)").execute(&mut old).await.unwrap();
    query("INSERT INTO letters VALUES ('kept')").execute(&mut old).await.unwrap();
    old.close().await.unwrap();

    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();

    let copy = directory.path().join(format!("{FILE_NAME}.before-1"));
    let mut copy = SqliteConnectOptions::new().filename(copy).read_only(true).connect().await.unwrap();
    assert_eq!(query_scalar::<_, String>("SELECT body FROM letters").fetch_one(&mut copy).await.unwrap(), "kept");
    assert_eq!(query_scalar::<_, i64>("SELECT count(*) FROM sqlite_schema WHERE name = 'queue'").fetch_one(&mut copy).await.unwrap(), 0);
    assert!(store.ensure_tenant("default").await.unwrap().active);
}

/// Who can read the file can read what is sent, until the master secret is moved out of it.
#[tokio::test]
async fn what_is_made_can_be_read_by_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    // A database of long ago, as far as the next start can tell.
    let mut old = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
    query("DELETE FROM _sqlx_migrations").execute(&mut old).await.unwrap();
    old.close().await.unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    // It is copied first; that its tables are there already is not what this is about.
    let _ = store.migrate().await;

    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}: {mode:o}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    for ending in ["", "-wal", ".before-1"] {
        assert!(names.contains(&format!("{FILE_NAME}{ending}")), "{names:?}");
    }
}

/// Versions before that left the mode to the umask.
#[tokio::test]
async fn what_an_older_version_left_to_others_is_taken_from_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    store.settle_setting("master", b"secret").await.unwrap();
    store.close().await;
    let file = |ending: &str| directory.path().join(format!("{FILE_NAME}{ending}"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // A log with nothing in it, a copy, and files of somebody else.
    for ending in ["-wal", ".before-3", ".before-noon", ".sql", ""] {
        std::fs::OpenOptions::new().create(true).append(true).open(file(ending)).unwrap();
        std::fs::set_permissions(file(ending), Permissions::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(file(".lock"), Permissions::from_mode(0o664)).unwrap();
    // One that cannot be narrowed is no reason to refuse the start.
    std::os::unix::fs::symlink("/proc/self/stat", file(".before-4")).unwrap();

    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.setting("master").await.unwrap().as_deref(), Some(&b"secret"[..]));
    for ending in ["", "-wal", ".lock", ".before-3"] {
        assert_eq!(mode(&file(ending)), 0o600, "{ending:?}");
    }
    for ending in [".before-noon", ".sql"] {
        assert_eq!(mode(&file(ending)), 0o644, "{ending:?}");
    }
}

#[tokio::test]
async fn a_new_database_is_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_in(directory.path()).await.unwrap();
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();

    let copies = std::fs::read_dir(directory.path()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("before")
    });
    assert_eq!(copies.count(), 0);
}

/// S-231: what an older binary told is still read, and what is told of anything but deliveries follows it.
#[tokio::test]
async fn events_of_an_older_schema_are_read_and_others_follow_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    let mut old = SqliteConnectOptions::new().filename(&path).create_if_missing(true).connect().await.unwrap();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/sqlite"));
    let known = Migrator::new(folder).await.unwrap();
    Migrator::with_migrations(known.iter().filter(|migration| migration.version <= 6).cloned().collect()).run(&mut old).await.unwrap();
    query("INSERT INTO tenants (public_id, name, state) VALUES (randomblob(16), 'default', 'active')").execute(&mut old).await.unwrap();
    query(
        "INSERT INTO events (tenant_id, mode, at, delivery_id, version, type, state, certainty, generation, attempt_count, flags, occurred_at)
         VALUES (1, 0, 1, randomblob(16), 3, 'accepted', 'accepted', 'unconfirmed', 1, 1, 0, 1)",
    )
    .execute(&mut old)
    .await
    .unwrap();
    old.close().await.unwrap();

    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    assert!(directory.path().join(format!("{FILE_NAME}.before-7")).exists());
    let tenant = store.ensure_tenant("default").await.unwrap().id;
    let by = SwitchedBy { actor: "key_1".to_owned(), reason: None, at: Timestamp::from_millis(1_800_000_000_000) };
    store.pauses().set_switch(&Scope::All, true, None, &by).await.unwrap();
    let asked = FeedQuery { tenant, mode: Mode::Live, with_installation: true, types: Vec::new(), after: None, limit: 10 };
    let page = store.feed().events(&asked).await.unwrap().unwrap();
    let told: Vec<_> = page.events.iter().map(|event| (event.kind.as_str(), event.detail.is_some())).collect();
    assert_eq!(told, [("accepted", false), ("switch.paused", true)]);
}

#[tokio::test]
async fn what_was_committed_is_there_after_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_in(directory.path()).await.unwrap();
    store.migrate().await.unwrap();
    store.settle_setting("master", b"secret").await.unwrap();
    // As a killed process leaves it: nothing is closed in order.
    drop(store);

    let store = loop {
        match SqliteStore::open_in(directory.path()).await {
            Ok(store) => break store,
            Err(OpenError::InUse { .. }) => tokio::task::yield_now().await,
            Err(err) => panic!("{err}"),
        }
    };
    assert_eq!(store.setting("master").await.unwrap().as_deref(), Some(&b"secret"[..]));
}

/// As `.cargo/config.toml` says: without it every page and every allocation of one connection waits for those of the others.
#[tokio::test]
async fn sqlite_is_built_without_locks_that_connections_share() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(tidings_store_sqlite::FILE_NAME);
    tidings_store_sqlite::SqliteStore::open(&path).await.unwrap().close().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
    let built: Vec<String> =
        sqlx::query_scalar("SELECT compile_options FROM pragma_compile_options").fetch_all(&mut connection).await.unwrap();
    assert!(built.iter().any(|option| option == "DEFAULT_MEMSTATUS=0"), "{built:?}");
    assert!(!built.iter().any(|option| option == "ENABLE_MEMORY_MANAGEMENT"), "{built:?}");
}
