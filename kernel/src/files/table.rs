//! The table of descriptors of a process: open files by number, the flag FD_CLOEXEC, and the limit.
//! `files/open.rs` has the open files, and `calls/descriptors.rs` has most of the calls.
//!
//! A spin lock guards the table. A file is closed after the lock is released, because closing may free memory
//! and wake threads. The program `processes.c` of the tests checks sharing and FD_CLOEXEC.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::open::Open;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use freehold::error::Errno;

/// Maximum number of descriptors of a process.
pub const MAX_OPEN: usize = 4096;

/// A descriptor in use.
#[derive(Clone)]
struct Slot {
    /// The open file, which several descriptors may share.
    open: Arc<Open>,
    /// The flag FD_CLOEXEC.
    close_on_exec: bool,
}

/// Descriptors by number, under the spin lock that guards them.
type Slots = SpinLock<Vec<Option<Slot>>>;

/// The descriptors of a process. Processes made with CLONE_FILES share the descriptors, but not the limit.
pub struct FileTable {
    /// The descriptors, by number. The spin lock guards only the pointer, which [`unshare`](Self::unshare)
    /// replaces.
    slots: SpinLock<Arc<Slots>>,
    /// The process's limit on descriptors (RLIMIT_NOFILE).
    limit: AtomicUsize,
}

impl FileTable {
    /// Returns an empty table.
    pub fn new() -> Self {
        FileTable { slots: SpinLock::new(Arc::default()), limit: AtomicUsize::new(MAX_OPEN) }
    }

    /// Returns the table of a new process, which has the same files under the same numbers. With `share`
    /// (CLONE_FILES), both processes use the same descriptors.
    pub fn fork(&self, share: bool) -> Self {
        let slots = self.slots();
        let slots = if share { slots } else { Arc::new(SpinLock::new(slots.lock().clone())) };
        FileTable { slots: SpinLock::new(slots), limit: AtomicUsize::new(self.limit()) }
    }

    /// Gives the process a table of its own, so that changes of its descriptors affect no other process.
    pub fn unshare(&self) {
        if Arc::strong_count(&self.slots.lock()) == 1 {
            return;
        }
        let own = self.fork(false).slots();
        let before = core::mem::replace(&mut *self.slots.lock(), own);
        drop(before);
    }

    /// Returns the process's limit on descriptors.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Returns the size of the table as Linux would report it: 64, or a larger power of two.
    pub fn room(&self) -> usize {
        self.slots().lock().len().next_power_of_two().max(64)
    }

    /// Applies a change of RLIMIT_NOFILE, up to [`MAX_OPEN`].
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit.min(MAX_OPEN as u64) as usize, Relaxed);
    }

    /// Returns the descriptors, which another process may share.
    fn slots(&self) -> Arc<Slots> {
        self.slots.lock().clone()
    }

    /// Returns the open file of a descriptor.
    ///
    /// # Errors
    ///
    /// EBADF if the descriptor is not in use.
    pub fn get(&self, number: u64) -> Result<Arc<Open>, Errno> {
        let slots = self.slots();
        let table = slots.lock();
        let slot = table.get(number as u32 as usize).and_then(Option::as_ref);
        slot.map(|slot| slot.open.clone()).ok_or(Errno::EBADF)
    }

    /// Assigns the file the lowest free number that is at least `from`.
    ///
    /// # Errors
    ///
    /// EMFILE if no number below the limit is free.
    pub fn add(&self, open: Arc<Open>, from: usize, close_on_exec: bool) -> Result<u64, Errno> {
        let most = self.limit();
        let slots = self.slots();
        let mut table = slots.lock();
        let number = (from..most).find(|n| table.get(*n).is_none_or(Option::is_none)).ok_or(errno::EMFILE)?;
        if table.len() <= number {
            table.resize(number + 1, None);
        }
        table[number] = Some(Slot { open, close_on_exec });
        Ok(number as u64)
    }

    /// Assigns the file this number, and closes the file that had it.
    ///
    /// # Errors
    ///
    /// EBADF if the number is not below the limit.
    pub fn put(&self, open: Arc<Open>, number: u64, close_on_exec: bool) -> Result<(), Errno> {
        let number =
            usize::try_from(number).ok().filter(|number| *number < self.limit()).ok_or(Errno::EBADF)?;
        let slots = self.slots();
        let mut table = slots.lock();
        if table.len() <= number {
            table.resize(number + 1, None);
        }
        let before = table[number].replace(Slot { open, close_on_exec });
        drop(table);
        drop(before);
        Ok(())
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    ///
    /// EBADF if the descriptor is not in use.
    pub fn close(&self, number: u64) -> Result<(), Errno> {
        let slots = self.slots();
        let mut table = slots.lock();
        let gone = table.get_mut(number as u32 as usize).and_then(Option::take);
        drop(table);
        gone.map(drop).ok_or(Errno::EBADF)
    }

    /// Returns the numbers in use.
    pub fn numbers(&self) -> Vec<u64> {
        let slots = self.slots();
        let table = slots.lock();
        table.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(n, _)| n as u64).collect()
    }

    /// Closes the descriptors from `first` to `last`, or with `at_exec` marks them to be closed at exec.
    pub fn close_range(&self, first: usize, last: usize, at_exec: bool) {
        let mut gone = Vec::new();
        let last = last.saturating_add(1);
        for slot in self.slots().lock().iter_mut().take(last).skip(first) {
            match slot {
                Some(slot) if at_exec => slot.close_on_exec = true,
                _ => gone.extend(slot.take()),
            }
        }
    }

    /// Returns FD_CLOEXEC of a descriptor, and changes it if `set` gives a value.
    ///
    /// # Errors
    ///
    /// EBADF if the descriptor is not in use.
    pub fn close_on_exec(&self, number: u64, set: Option<bool>) -> Result<bool, Errno> {
        let slots = self.slots();
        let mut table = slots.lock();
        let slot = table.get_mut(number as u32 as usize).and_then(Option::as_mut).ok_or(Errno::EBADF)?;
        let before = slot.close_on_exec;
        slot.close_on_exec = set.unwrap_or(before);
        Ok(before)
    }

    /// Closes the descriptors that are marked to be closed at exec.
    pub fn close_marked(&self) {
        let mut gone = Vec::new();
        for slot in self.slots().lock().iter_mut() {
            if slot.as_ref().is_some_and(|slot| slot.close_on_exec) {
                gone.extend(slot.take());
            }
        }
    }

    /// Closes all descriptors, at the end of the process.
    pub fn close_all(&self) {
        let before = core::mem::take(&mut *self.slots.lock());
        drop(before);
    }
}
