//! What the trees of VMAs are locked by: those of anonymous pages by a reader/writer lock, those of files as
//! [`FileRmap`] says.
#![expect(unsafe_code, reason = "a tree relies on its lock")]

use crate::{counted::Counted, platform::Platform};
use freehold_sync::{Mutex, MutexGuard, Rank, RwSem, RwSemReadGuard, RwSemWriteGuard, stats::LockStats};

/// How many writers may pass readers of a tree that wait. A writer puts one VMA in or takes it out, a reader
/// walks over as many as there are.
pub(crate) const GATHERING: u32 = 256;

/// How calls that leave the tree alone take the lock over a file's VMAs: truncation, write-back, every walk
/// from a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileRmap {
    /// It is a mutex (Linux to 3.18).
    Mutex,
    /// It is a reader/writer lock, and they take it as writers (the first part of step 2).
    Exclusive,
    /// Together (step 2, Linux today).
    #[default]
    Shared,
}

impl FileRmap {
    /// All, in the order of the step.
    pub const ALL: [FileRmap; 3] = [FileRmap::Mutex, FileRmap::Exclusive, FileRmap::Shared];
}

/// A lock over a tree.
///
/// # Safety
///
/// While a `Write` lives, no other guard of the same lock does.
pub(crate) unsafe trait TreeLock: Send + Sync {
    type Read<'l>
    where
        Self: 'l;
    type Write<'l>
    where
        Self: 'l;

    /// Takes the lock to look at the tree.
    fn read(&self) -> Self::Read<'_>;
    /// The same, if that is possible at once.
    fn try_read(&self) -> Option<Self::Read<'_>>;
    /// Takes the lock to change the tree.
    fn write(&self) -> Self::Write<'_>;
}

// SAFETY: a reader/writer lock.
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
    /// Fixed.
    design: FileRmap,
    lock: RwSem<P>,
    /// In the place of `lock`, which has its statistics, for [`FileRmap::Mutex`].
    mutex: Mutex,
}

/// A [`FileLock`], however it is held.
#[expect(dead_code, reason = "kept for their ends")]
pub(crate) enum HeldFileLock<'l, P: Platform> {
    Mutex(MutexGuard<'l, P>),
    Shared(RwSemReadGuard<'l, P>),
    Exclusive(RwSemWriteGuard<'l, P>),
}

impl<P: Platform> FileLock<P> {
    /// A free one, with the statistics that it counts in.
    pub fn new(design: FileRmap, stats: Option<Counted<LockStats<P>>>) -> Self {
        let lock = match stats {
            Some(stats) => RwSem::with_stats(Rank::IMmap, stats),
            None => RwSem::new(Rank::IMmap),
        };
        FileLock { design, lock: lock.with_passing_writers(GATHERING), mutex: Mutex::new() }
    }
}

// SAFETY: `write` takes the mutex, or the lock for writing; `read` takes the same one, in whatever mode,
// since the design is fixed.
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
