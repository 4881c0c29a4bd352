//! The table of descriptors of a thread: open files by number, the flag FD_CLOEXEC, and the limit. The threads of
//! a process usually share one table, and processes made with CLONE_FILES share it too.
//! `files/open.rs` has the open files, and `calls/descriptors.rs` has most of the calls.
//!
//! The table consists of blocks of 64 descriptors, and a block in which no descriptor is in use has no
//! memory. A new descriptor may need memory and then fails with ENOMEM; closing never needs memory.
//!
//! A spin lock guards the table. A file is closed after the lock is released, because closing may free memory
//! and wake threads. A program chooses the number of descriptors, so functions that visit all of them release
//! the lock at checkpoints. A copy of a table with more than [`VISITED_AT_ONCE`] descriptors therefore
//! consists of parts that are copied one after another. The program `descriptors.c` of the tests checks the
//! table.

use crate::arch::lock::SpinLock;
use crate::arch::preempt::preempt_point;
use crate::errno;
use crate::files::open::Open;
use crate::sched::charge::{self, Charge};
use crate::sched::checkpoint;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use freehold::error::Errno;

/// Number of descriptors of a block: one for each bit of a word.
const BLOCK: usize = u64::BITS as usize;
/// Number of descriptors that a function copies or marks before it releases the lock.
const VISITED_AT_ONCE: usize = 4096;

/// Number of blocks whose files [`FileTable::left`] counts before it releases the lock.
const COUNTED_AT_ONCE: usize = 4;
/// Number of sockets in flight that [`FileTable::left`] follows one after another.
const CHAIN: u32 = 8;

/// The descriptors whose numbers differ only in the lowest six bits.
#[derive(Default)]
struct Block {
    /// The open files, which several descriptors may share. Empty if no descriptor is in use.
    open: Vec<Option<Arc<Open>>>,
    /// The descriptors in use, one bit each.
    used: u64,
    /// The descriptors with the flag FD_CLOEXEC, one bit each. A subset of `used`.
    close_on_exec: u64,
    /// The charge for the block and its open files' places.
    _charge: Option<Charge>,
}

impl Block {
    /// Charges the calling thread's process for a block.
    fn charge() -> Option<Charge> {
        Some(Charge::new(size_of::<Block>() + BLOCK * size_of::<Option<Arc<Open>>>()))
    }

    /// Returns a block with the same files and flags.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    fn copy(&self) -> Result<Block, Errno> {
        let mut open = Vec::new();
        charge::reserve(&mut open, self.open.len())?;
        open.extend_from_slice(&self.open);
        Ok(Block { open, used: self.used, close_on_exec: self.close_on_exec, _charge: Self::charge() })
    }
}

/// The descriptors by number.
#[derive(Default)]
pub struct Blocks {
    blocks: Vec<Block>,
    /// Number of blocks at the start in which no number is free.
    full: usize,
}

/// Returns the block of a number, and its bit in the words of the block.
fn place(number: usize) -> (usize, u64) {
    (number / BLOCK, 1 << (number % BLOCK))
}

impl Blocks {
    /// Returns the block of a descriptor in use.
    fn of(&mut self, number: usize) -> Option<&mut Block> {
        let (at, bit) = place(number);
        self.blocks.get_mut(at).filter(|block| block.used & bit != 0)
    }

    /// Returns the lowest free number that is at least `from`.
    fn lowest_free(&self, from: usize) -> usize {
        let first = from.max(self.full * BLOCK);
        let mut mask = u64::MAX << (first % BLOCK);
        for (at, block) in self.blocks.iter().enumerate().skip(first / BLOCK) {
            let free = !block.used & mask;
            if free != 0 {
                return at * BLOCK + free.trailing_zeros() as usize;
            }
            mask = u64::MAX;
        }
        first.max(self.blocks.len() * BLOCK)
    }

    /// Returns the lowest number in use that is at least `from`. With `marked`, returns the lowest such
    /// number with the flag FD_CLOEXEC.
    fn lowest_used(&self, from: usize, marked: bool) -> Option<usize> {
        let mut mask = u64::MAX << (from % BLOCK);
        for (at, block) in self.blocks.iter().enumerate().skip(from / BLOCK) {
            let used = if marked { block.close_on_exec } else { block.used } & mask;
            if used != 0 {
                return Some(at * BLOCK + used.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Assigns the file this number. Returns the file that had the number.
    ///
    /// # Errors
    ///
    /// ENOMEM. The table is then unchanged.
    fn set(&mut self, number: usize, open: Arc<Open>, marked: bool) -> Result<Option<Arc<Open>>, Errno> {
        let (at, bit) = place(number);
        if self.blocks.len() <= at {
            let missing = at + 1 - self.blocks.len();
            charge::reserve(&mut self.blocks, missing)?;
            self.blocks.resize_with(at + 1, Block::default);
        }
        let block = &mut self.blocks[at];
        if block.open.is_empty() {
            charge::reserve(&mut block.open, BLOCK)?;
            block.open.resize(BLOCK, None);
            block._charge = Block::charge();
        }
        block.used |= bit;
        block.close_on_exec = block.close_on_exec & !bit | if marked { bit } else { 0 };
        let before = block.open[number % BLOCK].replace(open);
        while self.blocks.get(self.full).is_some_and(|block| block.used == u64::MAX) {
            self.full += 1;
        }
        Ok(before)
    }

    /// Removes a descriptor and returns its file.
    fn take(&mut self, number: usize) -> Option<Arc<Open>> {
        let (at, bit) = place(number);
        let block = self.of(number)?;
        block.used &= !bit;
        block.close_on_exec &= !bit;
        let open = block.open[number % BLOCK].take();
        if block.used == 0 {
            (block.open, block._charge) = (Vec::new(), None);
        }
        self.full = self.full.min(at);
        open
    }
}

impl Drop for Blocks {
    // A program chooses the number of blocks, so they are freed one by one.
    fn drop(&mut self) {
        for block in core::mem::take(&mut self.blocks) {
            drop(block);
            preempt_point();
        }
    }
}

/// Descriptors by number, under the spin lock that guards them.
type Slots = SpinLock<Blocks>;

/// Returns a copy of a table, in which each number has the same file and the same flag.
///
/// # Errors
///
/// ENOMEM; EINTR if the calling thread has to end.
fn copy_of(slots: &Slots) -> Result<Blocks, Errno> {
    let mut copy = Blocks::default();
    loop {
        let table = slots.lock();
        let rest = table.blocks.get(copy.blocks.len()..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(copy);
        }
        for block in rest.iter().take(VISITED_AT_ONCE / BLOCK) {
            charge::reserve(&mut copy.blocks, 1)?;
            copy.blocks.push(block.copy()?);
        }
        drop(table);
        checkpoint()?;
    }
}

/// Descriptors that threads share.
pub type Descriptors = Arc<SpinLock<Blocks>>;

/// Returns the descriptors of all threads that have ended: none. `start.rs` calls this function first, so that the
/// end of a thread needs no memory.
pub fn of_ended() -> Descriptors {
    static NONE: SpinLock<Option<Descriptors>> = SpinLock::new(None);
    NONE.lock().get_or_insert_with(Descriptors::default).clone()
}

/// A limit on descriptors (RLIMIT_NOFILE), which the threads of a process share.
pub type Limit = Arc<AtomicUsize>;

/// The descriptors of a thread. Threads with the same descriptors may have different limits, if they belong to
/// different processes.
pub struct FileTable {
    /// The descriptors, by number. The spin lock guards only the pointer, which [`unshare`](Self::unshare)
    /// replaces.
    slots: SpinLock<Arc<Slots>>,
    /// The process's limit on descriptors.
    limit: Limit,
}

impl FileTable {
    /// Returns the table of a thread of a process with this limit.
    pub fn new(descriptors: Descriptors, limit: &Limit) -> Self {
        FileTable { slots: SpinLock::new(descriptors), limit: limit.clone() }
    }

    /// Returns the descriptors of a new thread, which has the same files under the same numbers. With `share`
    /// (CLONE_FILES), both threads use the same descriptors.
    ///
    /// # Errors
    ///
    /// ENOMEM; EINTR if the calling thread has to end.
    pub fn fork(&self, share: bool) -> Result<Descriptors, Errno> {
        let slots = self.slots();
        if share { Ok(slots) } else { Ok(Arc::new(SpinLock::new(copy_of(&slots)?))) }
    }

    /// Gives the thread a table of its own, so that changes of its descriptors affect no other thread.
    ///
    /// # Errors
    ///
    /// ENOMEM; EINTR if the calling thread has to end. The thread then still shares its table.
    pub fn unshare(&self) -> Result<(), Errno> {
        if Arc::strong_count(&self.slots.lock()) == 1 {
            return Ok(());
        }
        let own = Arc::new(SpinLock::new(copy_of(&self.slots())?));
        let before = core::mem::replace(&mut *self.slots.lock(), own);
        drop(before);
        Ok(())
    }

    /// Returns the process's limit on descriptors.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Returns the size of the table as Linux would report it: 64, or a larger power of two.
    pub fn room(&self) -> usize {
        (self.slots().lock().blocks.len() * BLOCK).next_power_of_two().max(64)
    }

    /// Returns the descriptors, which other threads may share.
    fn slots(&self) -> Arc<Slots> {
        self.slots.lock().clone()
    }

    /// Returns the address of the descriptors, which threads with the same descriptors share.
    pub fn address(&self) -> u64 {
        Arc::as_ptr(&self.slots()).addr() as u64
    }

    /// Returns the open file of a descriptor, for a call that uses the file.
    ///
    /// # Errors
    ///
    /// EBADF if the descriptor is not in use, or if its file is open with O_PATH.
    pub fn get(&self, number: u64) -> Result<Arc<Open>, Errno> {
        self.get_any(number).and_then(|open| if open.is_path() { Err(Errno::EBADF) } else { Ok(open) })
    }

    /// Returns the open file of a descriptor, which may be open with O_PATH, for a call that uses the descriptor
    /// alone or the place of the file in the tree.
    ///
    /// # Errors
    ///
    /// EBADF if the descriptor is not in use.
    pub fn get_any(&self, number: u64) -> Result<Arc<Open>, Errno> {
        let (slots, number) = (self.slots(), number as u32 as usize);
        let mut table = slots.lock();
        let open = table.of(number).and_then(|block| block.open[number % BLOCK].clone());
        open.ok_or(Errno::EBADF)
    }

    /// Assigns the file the lowest free number that is at least `from`.
    ///
    /// # Errors
    ///
    /// EMFILE if no number below the limit is free; ENOMEM.
    pub fn add(&self, open: Arc<Open>, from: usize, close_on_exec: bool) -> Result<u64, Errno> {
        let slots = self.slots();
        let mut table = slots.lock();
        let number = table.lowest_free(from);
        if number >= self.limit() {
            return Err(errno::EMFILE);
        }
        charge::admit()?;
        table.set(number, open, close_on_exec)?;
        Ok(number as u64)
    }

    /// Assigns the file this number, and closes the file that had it.
    ///
    /// # Errors
    ///
    /// EBADF if the number is not below the limit; ENOMEM.
    pub fn put(&self, open: Arc<Open>, number: u64, close_on_exec: bool) -> Result<(), Errno> {
        let number = number as u32 as usize;
        if number >= self.limit() {
            return Err(Errno::EBADF);
        }
        charge::admit()?;
        let slots = self.slots();
        let mut table = slots.lock();
        let before = table.set(number, open, close_on_exec)?;
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
        let gone = self.slots().lock().take(number as u32 as usize);
        gone.map(drop).ok_or(Errno::EBADF)
    }

    /// Returns up to `count` of the numbers in use that are at least `from`, lowest first.
    pub fn numbers(&self, from: usize, count: usize) -> Vec<usize> {
        let slots = self.slots();
        let table = slots.lock();
        let next = |number: &usize| table.lowest_used(number + 1, false);
        core::iter::successors(table.lowest_used(from, false), next).take(count).collect()
    }

    /// Returns the sum of [`Open::left`] of the files.
    pub fn left(&self, survey: u64) -> u64 {
        let (slots, mut from, mut sum) = (self.slots(), 0, 0);
        loop {
            preempt_point();
            let table = slots.lock();
            let rest = table.blocks.get(from..).unwrap_or_default();
            if rest.is_empty() {
                return sum;
            }
            let part = rest.iter().take(COUNTED_AT_ONCE).flat_map(|block| block.open.iter().flatten());
            sum += part.map(|open| open.left(survey, CHAIN)).sum::<u64>();
            from += COUNTED_AT_ONCE;
        }
    }

    /// Closes the descriptors from `first` to `last`.
    ///
    /// # Errors
    ///
    /// EINTR if the calling thread has to end.
    pub fn close_range(&self, first: usize, last: usize) -> Result<(), Errno> {
        close_in(&self.slots(), first, last, false)
    }

    /// Marks the descriptors from `first` to `last` to be closed at exec.
    ///
    /// # Errors
    ///
    /// EINTR if the calling thread has to end.
    pub fn mark_range(&self, first: usize, last: usize) -> Result<(), Errno> {
        let (slots, end) = (self.slots(), last.saturating_add(1));
        let mut begin = first;
        while begin < end {
            let mut table = slots.lock();
            if begin >= table.blocks.len() * BLOCK {
                break;
            }
            let part = end.min(begin + VISITED_AT_ONCE);
            for (at, block) in table.blocks.iter_mut().enumerate().skip(begin / BLOCK) {
                let Some(count) = part.checked_sub(at * BLOCK).filter(|count| *count > 0) else { break };
                let low = u64::MAX << begin.saturating_sub(at * BLOCK);
                let high = u64::MAX >> (BLOCK - count.min(BLOCK));
                block.close_on_exec |= block.used & low & high;
            }
            drop(table);
            begin = part;
            checkpoint()?;
        }
        Ok(())
    }

    /// Returns FD_CLOEXEC of a descriptor, and changes it if `set` gives a value.
    ///
    /// # Errors
    ///
    /// EBADF if the descriptor is not in use.
    pub fn close_on_exec(&self, number: u64, set: Option<bool>) -> Result<bool, Errno> {
        let (slots, number) = (self.slots(), number as u32 as usize);
        let mut table = slots.lock();
        let (block, bit) = (table.of(number).ok_or(Errno::EBADF)?, place(number).1);
        let before = block.close_on_exec & bit != 0;
        if set.unwrap_or(before) != before {
            block.close_on_exec ^= bit;
        }
        Ok(before)
    }

    /// Closes the descriptors that are marked to be closed at exec.
    pub fn close_marked(&self) {
        // A thread that has to end does not run the new program, and the thread closes the rest at its end.
        let _ = close_in(&self.slots(), 0, usize::MAX, true);
    }

    /// Leaves the descriptors at the end of the thread. Closes them all if no other thread has them.
    pub fn close_all(&self) {
        let before = core::mem::replace(&mut *self.slots.lock(), of_ended());
        drop(before);
    }
}

/// Closes the descriptors from `first` to `last`, or with `marked` those of them with the flag FD_CLOEXEC.
///
/// # Errors
///
/// EINTR if the calling thread has to end.
fn close_in(slots: &Slots, first: usize, last: usize, marked: bool) -> Result<(), Errno> {
    let mut next = first;
    loop {
        let mut table = slots.lock();
        let Some(number) = table.lowest_used(next, marked).filter(|number| *number <= last) else {
            return Ok(());
        };
        let gone = table.take(number);
        drop(table);
        drop(gone);
        next = number + 1;
        checkpoint()?;
    }
}
