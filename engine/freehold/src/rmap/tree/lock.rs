//! The locks of the trees of VMAs (*rmap locks*): trees of anonymous pages have a reader/writer lock, and
//! trees of files have a lock with one of three designs, [`FileRmap`] (step 2 of `docs/guide/five-steps.md`).
//!
//! Only `VmaTree` (`mod.rs` of this folder) takes these locks. A change that links, unlinks or moves a VMA is
//! a writer; a walk is a reader. The rmap locks come after the VMA lock and before the locks of page tables
//! (`docs/guide/locking.md`). A walk over a tree of many processes is long, so waiting writers may overtake a
//! waiting reader, up to `GATHERING` of them. The tests of `rmap::moves` (`engine/freehold/tests`) run on all
//! three designs.
#![expect(unsafe_code, reason = "implements an unsafe trait that a tree relies on")]

use crate::{counted::Counted, platform::Platform};
use freehold_sync::{Mutex, MutexGuard, Rank, RwSem, RwSemReadGuard, RwSemWriteGuard, stats::LockStats};

/// Maximum number of writers that may overtake a waiting reader of a tree. A writer inserts or removes one
/// VMA; a reader walks over all matching VMAs.
pub(crate) const GATHERING: u32 = 256;

/// Design of the lock over a file's VMAs. The designs differ in how truncation, write-back and walks from a
/// page take the lock. These calls do not change the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileRmap {
    /// A mutex (Linux to 3.18).
    Mutex,
    /// A reader/writer lock, which these calls take as writers (the first part of step 2).
    Exclusive,
    /// A reader/writer lock, which these calls take as readers (step 2, Linux today).
    #[default]
    Shared,
}

impl FileRmap {
    /// All designs, in the order of their development.
    pub const ALL: [FileRmap; 3] = [FileRmap::Mutex, FileRmap::Exclusive, FileRmap::Shared];
}

/// The lock of a tree.
///
/// # Safety
///
/// While a `Write` guard lives, no other guard of the same lock exists.
pub(crate) unsafe trait TreeLock: Send + Sync {
    type Read<'l>
    where
        Self: 'l;
    type Write<'l>
    where
        Self: 'l;

    /// Takes the lock to read the tree.
    fn read(&self) -> Self::Read<'_>;
    /// Takes the lock to read the tree, if that requires no waiting.
    fn try_read(&self) -> Option<Self::Read<'_>>;
    /// Takes the lock to change the tree.
    fn write(&self) -> Self::Write<'_>;
}

// SAFETY: a reader/writer lock excludes all other guards while it is held for writing.
unsafe impl<P: Platform> TreeLock for RwSem<P> {
    type Read<'l> = RwSemReadGuard<'l, P>;
    type Write<'l> = RwSemWriteGuard<'l, P>;

    #[inline]
    fn read(&self) -> RwSemReadGuard<'_, P> {
        self.read()
    }

    #[inline]
    fn try_read(&self) -> Option<RwSemReadGuard<'_, P>> {
        self.try_read()
    }

    #[inline]
    fn write(&self) -> RwSemWriteGuard<'_, P> {
        self.write()
    }
}

/// The lock over a file's VMAs.
pub(crate) struct FileLock<P: Platform> {
    /// The design; fixed.
    design: FileRmap,
    lock: RwSem<P>,
    /// Used instead of `lock` with [`FileRmap::Mutex`]. The waits for the mutex are recorded in the
    /// statistics of `lock`.
    mutex: Mutex,
}

/// A [`FileLock`], held in any mode.
#[expect(dead_code, reason = "the guards are kept to be dropped")]
pub(crate) enum HeldFileLock<'l, P: Platform> {
    Mutex(MutexGuard<'l, P>),
    Shared(RwSemReadGuard<'l, P>),
    Exclusive(RwSemWriteGuard<'l, P>),
}

impl<P: Platform> FileLock<P> {
    /// Creates a lock of this design. The use of the lock is counted in `stats`.
    pub fn new(design: FileRmap, stats: Option<Counted<LockStats<P>>>) -> Self {
        let lock = match stats {
            Some(stats) => RwSem::with_stats(Rank::IMmap, stats),
            None => RwSem::new(Rank::IMmap),
        };
        FileLock { design, lock: lock.with_passing_writers(GATHERING), mutex: Mutex::new() }
    }
}

// SAFETY: `write` takes either `mutex`, or `lock` for writing. `read` takes the same one of the two, because
// the design never changes. Neither admits another guard while a guard of `write` is held.
unsafe impl<P: Platform> TreeLock for FileLock<P> {
    type Read<'l> = HeldFileLock<'l, P>;
    type Write<'l> = HeldFileLock<'l, P>;

    fn read(&self) -> HeldFileLock<'_, P> {
        match self.design {
            FileRmap::Mutex => HeldFileLock::Mutex(self.mutex.lock(Rank::IMmap, self.lock.stats())),
            FileRmap::Exclusive => HeldFileLock::Exclusive(self.lock.write()),
            FileRmap::Shared => HeldFileLock::Shared(self.lock.read()),
        }
    }

    fn try_read(&self) -> Option<HeldFileLock<'_, P>> {
        Some(match self.design {
            FileRmap::Mutex => HeldFileLock::Mutex(self.mutex.try_lock(Rank::IMmap, self.lock.stats())?),
            FileRmap::Exclusive => HeldFileLock::Exclusive(self.lock.try_write()?),
            FileRmap::Shared => HeldFileLock::Shared(self.lock.try_read()?),
        })
    }

    fn write(&self) -> HeldFileLock<'_, P> {
        match self.design {
            FileRmap::Mutex => HeldFileLock::Mutex(self.mutex.lock(Rank::IMmap, self.lock.stats())),
            FileRmap::Exclusive | FileRmap::Shared => HeldFileLock::Exclusive(self.lock.write()),
        }
    }
}
