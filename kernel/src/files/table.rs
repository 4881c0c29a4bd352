//! The descriptors of a process.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::open::Open;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use freehold::error::Errno;

/// Most descriptors that a process may have.
pub const MOST: usize = 4096;

#[derive(Clone)]
struct Slot {
    open: Arc<Open>,
    close_on_exec: bool,
}

type Slots = SpinLock<Vec<Option<Slot>>>;

/// The descriptors of a process, which processes that were made by CLONE_FILES share.
pub struct FileTable {
    slots: SpinLock<Arc<Slots>>,
    /// How many descriptors the process may have (RLIMIT_NOFILE).
    limit: AtomicUsize,
}

impl FileTable {
    pub fn new() -> Self {
        FileTable { slots: SpinLock::new(Arc::default()), limit: AtomicUsize::new(MOST) }
    }

    /// The same files, by the same numbers; with `share`, also what becomes of them.
    pub fn fork(&self, share: bool) -> Self {
        let slots = self.slots();
        let slots = if share { slots } else { Arc::new(SpinLock::new(slots.lock().clone())) };
        FileTable { slots: SpinLock::new(slots), limit: AtomicUsize::new(self.limit()) }
    }

    /// What happens to the descriptors concerns no other process from now on.
    pub fn unshare(&self) {
        if Arc::strong_count(&self.slots.lock()) == 1 {
            return;
        }
        let own = self.fork(false).slots();
        let before = core::mem::replace(&mut *self.slots.lock(), own);
        drop(before);
    }

    /// How many descriptors there may be.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// For how many descriptors there is room without a larger table, as on Linux: 64, or a power of two.
    pub fn room(&self) -> usize {
        self.slots().lock().len().next_power_of_two().max(64)
    }

    /// RLIMIT_NOFILE has changed; there is room for [`MOST`].
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit.min(MOST as u64) as usize, Relaxed);
    }

    fn slots(&self) -> Arc<Slots> {
        self.slots.lock().clone()
    }

    /// # Errors
    ///
    /// EBADF.
    pub fn get(&self, number: u64) -> Result<Arc<Open>, Errno> {
        let slots = self.slots();
        let table = slots.lock();
        let slot = table.get(number as u32 as usize).and_then(Option::as_ref);
        slot.map(|slot| slot.open.clone()).ok_or(Errno::EBADF)
    }

    /// The lowest number from `from` on that is free becomes the file's.
    ///
    /// # Errors
    ///
    /// EMFILE.
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

    /// This number becomes the file's; what it was before is closed.
    ///
    /// # Errors
    ///
    /// EBADF: there is no such number.
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

    /// # Errors
    ///
    /// EBADF.
    pub fn close(&self, number: u64) -> Result<(), Errno> {
        let slots = self.slots();
        let mut table = slots.lock();
        let gone = table.get_mut(number as u32 as usize).and_then(Option::take);
        drop(table);
        gone.map(drop).ok_or(Errno::EBADF)
    }

    /// The numbers in use.
    pub fn numbers(&self) -> Vec<u64> {
        let slots = self.slots();
        let table = slots.lock();
        table.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(n, _)| n as u64).collect()
    }

    /// close_range: those from `first` to `last` go, or will at exec.
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

    /// FD_CLOEXEC of a number.
    ///
    /// # Errors
    ///
    /// EBADF.
    pub fn close_on_exec(&self, number: u64, set: Option<bool>) -> Result<bool, Errno> {
        let slots = self.slots();
        let mut table = slots.lock();
        let slot = table.get_mut(number as u32 as usize).and_then(Option::as_mut).ok_or(Errno::EBADF)?;
        let before = slot.close_on_exec;
        slot.close_on_exec = set.unwrap_or(before);
        Ok(before)
    }

    /// Exec: what is marked goes.
    pub fn close_marked(&self) {
        let mut gone = Vec::new();
        for slot in self.slots().lock().iter_mut() {
            if slot.as_ref().is_some_and(|slot| slot.close_on_exec) {
                gone.extend(slot.take());
            }
        }
    }

    /// The process ends.
    pub fn close_all(&self) {
        let before = core::mem::take(&mut *self.slots.lock());
        drop(before);
    }
}
