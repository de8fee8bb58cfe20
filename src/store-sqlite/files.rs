//! The files of a database: that one process has them, and that nobody but their owner reads them.
//! They hold what is sent to whom and, until it is moved out, the master secret.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// Behind the name of the database: what SQLite keeps beside it, and the lock.
const BESIDE: &[&str] = &["", "-wal", "-shm", "-journal", ".lock"];
/// And its copies, before the number of a migration.
const COPY: &str = ".before-";
/// What others than the owner may do.
const OTHERS: u32 = 0o077;

/// Makes the directory where there is none and locks the file beside the database for as long as the process lives.
pub(crate) fn lock(path: &Path) -> Result<File, OpenError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|source| OpenError::Directory { path: directory.to_owned(), source })?;
    }
    let path = beside(path, ".lock");
    let file = private(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path }),
        Err(TryLockError::Error(source)) => Err(OpenError::File { path, source }),
    }
}

/// Opens a file, and makes an empty one for its owner alone where there is none. SQLite gives its log the permissions of
/// the database.
pub(crate) fn private(path: &Path) -> Result<File, OpenError> {
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|source| OpenError::File { path: path.to_owned(), source })
}

pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Takes from everybody but their owner the files that an older version or a copying hand left open to them. Who cannot
/// (a file of somebody else, a file system without modes) serves all the same, and says so.
pub(crate) fn narrow(path: &Path) {
    // Where the path is a link, SQLite's own files lie beside what it points to.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut narrowed = 0;
    for path in BESIDE.iter().flat_map(|ending| [beside(path, ending), beside(&real, ending)]).chain(copies(&real)) {
        match narrow_one(&path) {
            Ok(is_changed) => narrowed += usize::from(is_changed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "others may read this file, and its mode could not be changed"),
        }
    }
    if narrowed > 0 {
        tracing::info!(path = %path.display(), files = narrowed, "others could read the database: its files have mode 0600 now");
    }
}

fn narrow_one(path: &Path) -> io::Result<bool> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() || found.permissions().mode() & OTHERS == 0 {
        return Ok(false);
    }
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(true)
}

/// Copies that were made before migrations.
fn copies(path: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_copy = |found: &str| {
        let number = found.strip_prefix(name).and_then(|ending| ending.strip_prefix(COPY));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_copy))
        .collect()
}
