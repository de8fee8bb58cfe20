//! What a message costs in CPU time, of this program and every process that it started: load generator, gateway, database.
//! On a machine that others use too it is steadier than a rate; where nothing waits, the two say the same.

use std::collections::HashMap;
use std::time::Duration;

/// Microseconds of CPU time that this process and all its descendants have used, as Linux counts it.
pub(crate) fn used() -> f64 {
    let processes: HashMap<u32, (u32, u64)> = std::fs::read_dir("/proc")
        .expect("a Linux machine")
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the name, which may hold anything, the fields are parted by blanks; the parent is the 4th of all,
            // user and system time are the 14th and 15th.
            let fields: Vec<u64> =
                stat.rsplit(')').next()?.split_ascii_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect();
            Some((pid, (u32::try_from(*fields.first()?).ok()?, fields.get(10)? + fields.get(11)?)))
        })
        .collect();
    let own = std::process::id();
    let is_ours = |pid: &u32| {
        let ancestors = std::iter::successors(Some(*pid), |pid| processes.get(pid).map(|(parent, _)| *parent));
        ancestors.take(32).any(|pid| pid == own)
    };
    let ticks: u64 = processes.iter().filter(|(pid, _)| is_ours(pid)).map(|(_, (_, ticks))| ticks).sum();
    Duration::from_millis(ticks * 10).as_secs_f64() * 1e6
}
