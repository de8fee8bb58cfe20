//! Fail points: places where a test build can be told to die, or to leave out a hint that nothing may depend on, so that
//! stories are exact (S-238, S-239).

/// Ends the process at once when `TIDINGS_FAIL_POINT` names this point, on the pass that it counts (`name` or `name:3`).
/// Debug builds only; in release builds this is nothing.
#[inline]
pub fn fail_point(name: &str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Whether `TIDINGS_DROP` names this hint (several are parted by commas): it is then not given, and whoever waits for it
/// has to find out by themselves. Debug builds only; in release builds nothing is dropped.
#[inline]
pub fn is_dropped(name: &str) -> bool {
    #[cfg(debug_assertions)]
    return armed::drops(name);
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        false
    }
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ARMED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSES: AtomicU32 = AtomicU32::new(0);
    static DROPPED: OnceLock<Vec<String>> = OnceLock::new();

    pub(super) fn drops(name: &str) -> bool {
        let named = || std::env::var("TIDINGS_DROP").map_or_else(|_| Vec::new(), |raw| raw.split(',').map(str::to_owned).collect());
        DROPPED.get_or_init(named).iter().any(|dropped| dropped == name)
    }

    pub(super) fn pass(name: &str) {
        let armed = ARMED.get_or_init(|| {
            let raw = std::env::var("TIDINGS_FAIL_POINT").ok()?;
            let (point, pass) = raw.split_once(':').unwrap_or((&raw, "1"));
            Some((point.to_owned(), pass.parse().ok()?))
        });
        if let Some((point, pass)) = armed
            && point == name
            && PASSES.fetch_add(1, Ordering::SeqCst) + 1 == *pass
        {
            // As kill -9 would: no destructor, no flush.
            std::process::abort();
        }
    }
}
