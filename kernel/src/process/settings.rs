//! Settings that programs read and write through /proc/sys and that belong to no other module: limits of
//! segments, the pattern of core files, and numbers without an effect. `proc/settings.rs` shows them, and
//! `segments.rs` and `dump.rs` use them. A setting that the kernel only stores is a line of [`KEPT`]; the
//! settings of the engine are not here but in the engine's configuration. The programs `corners.c` and
//! `cores.c` of the tests check the effects of settings.

use crate::arch::lock::SpinLock;
use alloc::string::String;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Limits of System V shared memory. Relaxed: each is read and written separately.
pub struct Shm {
    /// Maximum size of a segment, in bytes (`shmmax`).
    pub most_bytes: AtomicU64,
    /// Maximum number of segments (`shmmni`).
    pub most_segments: AtomicU64,
    /// Maximum number of pages of all segments (`shmall`).
    pub most_pages: AtomicU64,
    /// The identifier that the next segment must get; all ones if any identifier may be chosen.
    pub next_id: AtomicU64,
    /// The identifier that was chosen last; all ones at first.
    pub last_id: AtomicU64,
}

/// Linux's default for the limits on bytes and pages, `ULONG_MAX - (1UL << 24)`.
const UNLIMITED: u64 = u64::MAX - (1 << 24);

/// The limits of System V shared memory.
pub static SHM: Shm = Shm {
    most_bytes: AtomicU64::new(UNLIMITED),
    most_segments: AtomicU64::new(4096),
    most_pages: AtomicU64::new(UNLIMITED),
    next_id: AtomicU64::new(u64::MAX),
    last_id: AtomicU64::new(u64::MAX),
};

/// The pattern of core files' names (core_pattern); `dump.rs` expands it.
pub static CORE_PATTERN: SpinLock<String> = SpinLock::new(String::new());

/// A number from 0 to `most` that is stored.
pub struct Kept {
    /// The path below /proc/sys.
    pub path: &'static str,
    pub value: &'static AtomicU64,
    pub most: i64,
}

macro_rules! kept {
    ($($path:literal = $value:literal, $most:expr;)*) => {
        &[$(Kept {
            path: $path,
            value: { static VALUE: AtomicU64 = AtomicU64::new($value); &VALUE },
            most: $most,
        },)*]
    };
}

/// Settings that have no effect, or that other modules read with [`kept()`].
pub static KEPT: &[Kept] = kept! {
    "kernel/pid_max" = 4_194_304, 4_194_304;
    "kernel/threads-max" = 8192, i64::MAX;
    "kernel/randomize_va_space" = 0, 2;
    "kernel/tainted" = 0, i64::MAX;
    "kernel/cap_last_cap" = 40, 40;
    "kernel/ngroups_max" = 65536, 65536;
    "kernel/core_uses_pid" = 0, 1;
    "kernel/shm_rmid_forced" = 0, 1;
    "vm/overcommit_memory" = 0, 2;
    "vm/overcommit_ratio" = 50, i64::MAX;
    "vm/overcommit_kbytes" = 0, i64::MAX;
    "vm/min_free_kbytes" = 4096, i64::MAX;
    "vm/drop_caches" = 0, 4;
    "vm/compact_memory" = 0, 1;
    "vm/panic_on_oom" = 0, 2;
    "vm/oom_kill_allocating_task" = 0, 1;
    "vm/hugetlb_shm_group" = 0, i64::MAX;
    "vm/unprivileged_userfaultfd" = 1, 1;
    "vm/memory_failure_early_kill" = 0, 1;
    "vm/memory_failure_recovery" = 1, 1;
    "vm/stat_refresh" = 0, i64::MAX;
    "fs/nr_open" = 1_048_576, i64::MAX;
};

/// Returns the value of a number in [`KEPT`].
pub fn kept(path: &str) -> u64 {
    KEPT.iter().find(|kept| kept.path == path).map_or(0, |kept| kept.value.load(Relaxed))
}
