//! Starting a cluster from installed binaries in a folder that goes when the process does, however it ends.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

use super::on_a_thread;

/// Folders of clusters begin so, with the process behind it.
const FOLDER: &str = "tidings-postgres-";

/// Where the server's programs are.
pub(super) fn binaries() -> Option<PathBuf> {
    if let Ok(bin) = std::env::var("PG_BIN") {
        return Some(PathBuf::from(bin));
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.flatten().map(|version| version.path()).filter(|path| path.join("bin/postgres").exists()).max_by_key(number)?;
    Some(newest.join("bin"))
}

/// Starts a cluster in a folder of its own and returns the URL of its database `postgres`.
pub(super) fn start_cluster(bin: &Path, settings: &'static [&'static str]) -> String {
    remove_dead_clusters();
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let folder = std::env::temp_dir().join(format!("{FOLDER}{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed)));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the cluster");
    if is_root() {
        let owned = Command::new("chown").arg("nobody:nogroup").arg(&folder).status();
        assert!(owned.is_ok_and(|status| status.success()), "the folder belongs to nobody");
    }
    let data = folder.join("data");
    let made = as_server(&bin.join("initdb"))
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N", "-D"])
        .arg(&data)
        .output()
        .expect("initdb runs");
    assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));

    let mut server = as_server(&bin.join("postgres"));
    server.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "max_connections=400"]);
    server.arg("-c").arg(format!("unix_socket_directories={}", folder.display()));
    for setting in settings {
        server.args(["-c", setting]);
    }
    let log = fs::File::create(folder.join("log")).expect("a log file");
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let pid = spawn_for_life(server);
    watch(pid, &folder);
    wait_until_up(&folder);
    format!("postgres://postgres@localhost/postgres?host={}", folder.display())
}

/// The server ends with the thread that started it, so that thread stays for as long as the process.
fn spawn_for_life(mut server: Command) -> u32 {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut child = server.spawn().expect("the server starts");
        let _ = tell.send(child.id());
        let _ = child.wait();
    });
    told.recv().expect("the server starts")
}

/// A shell that outlives us, however we end: it then stops the server and removes the folder.
fn watch(pid: u32, folder: &Path) {
    let script = "cat >/dev/null; kill -QUIT $0 2>/dev/null; n=0; \
                  while kill -0 $0 2>/dev/null && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done; \
                  kill -KILL $0 2>/dev/null; rm -rf \"$1\"";
    let shell = Command::new("sh")
        .args(["-c", script, &pid.to_string()])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell runs");
    // Its input ends when this process does.
    std::mem::forget(shell);
}

fn wait_until_up(folder: &Path) {
    for _ in 0..500 {
        if UnixStream::connect(folder.join(".s.PGSQL.5432")).is_ok() && on_a_thread(answers(folder)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("PostgreSQL did not start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default());
}

async fn answers(folder: &Path) -> bool {
    let options = PgConnectOptions::new_without_pgpass().socket(folder).username("postgres").database("postgres");
    PgConnection::connect_with(&options).await.is_ok()
}

/// The server refuses to run as root; and it is to end when we do.
fn as_server(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    } else if !Path::new("/usr/bin/setpriv").exists() {
        return Command::new(program);
    }
    command.args(["--pdeathsig=INT", "--"]).arg(program);
    command
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// What a killed watcher left: folders of processes that are gone.
fn remove_dead_clusters() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(FOLDER)).and_then(|rest| rest.split('-').next()) else { continue };
        let is_alive = Path::new("/proc").join(pid).exists() || UnixStream::connect(entry.path().join(".s.PGSQL.5432")).is_ok();
        if !is_alive {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
