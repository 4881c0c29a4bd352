//! The guards through which an address space is read and changed. `docs/guide/locking.md` describes the
//! protocol that they enforce.
//!
//! Each right keeps a part of the address space unchanged:
//!
//! | right | acquired by | keeps unchanged |
//! | --- | --- | --- |
//! | [`VmaRead`] | `AddressSpace::lock_vma` without any lock, or `ReadGuard::lock_vma` | one VMA: its place in the tree, its fields, the page tables of its range |
//! | [`ReadGuard`] | the mmap lock for reading | all VMAs |
//! | [`WriteGuard`] | the mmap lock for writing, or a claim: see [writers](#writers) | all VMAs, or those of a range; the holder may change the set of them |
//! | `VmaWrite` | `WriteGuard::lock_vma` | as `WriteGuard`; no task reads this VMA through the VMA's own lock, so its fields may change |
//!
//! A `&Vma` from a guard lives no longer than the guard. The write guard has a list of the VMAs that it has
//! write-locked. Dropping or downgrading the guard unlocks all of them.
//!
//! A lookup without locks has these steps: enter an RCU section, search the tree, raise the count of the VMA,
//! check the owner, the sequence number and the bounds again. If any step fails, the task takes the mmap lock
//! and looks again.
//!
//! # Writers
//!
//! A task that changes the set of VMAs of an address space, or their fields, is one of two kinds of writer:
//!
//! | writer | holds | excludes |
//! | --- | --- | --- |
//! | *exclusive writer* | the mmap lock for writing | every other writer, and readers of the mmap lock |
//! | *range writer* | the gate of the mmap lock, and claims of the VMAs of its range and of those that touch it, or of a hole | exclusive writers, readers of the mmap lock, and range writers that need the same VMAs or hole |
//!
//! Writers of both kinds then write-lock each VMA that they change. The write lock waits for faults in that
//! VMA. If the bounds of a VMA change, the writer also takes the lock of the file or of the anonymous pages
//! that the VMA maps. A writer of either kind does not start while a munmap of its range is under way.
//!
//! With [`Write::Whole`](super::Write::Whole) every writer is an exclusive writer. With
//! [`Write::Ranges`](super::Write::Ranges), the default, these calls are range writers:
//! [`mmap`](AddressSpace::mmap), [`munmap`](AddressSpace::munmap), [`mprotect`](AddressSpace::mprotect),
//! [`pkey_mprotect`](AddressSpace::pkey_mprotect), [`mremap`](AddressSpace::mremap),
//! [`brk`](AddressSpace::brk), [`mlock`](AddressSpace::mlock), [`mlock2`](AddressSpace::mlock2),
//! [`munlock`](AddressSpace::munlock), [`mseal`](AddressSpace::mseal),
//! [`set_policy`](AddressSpace::set_policy), [`madvise`](AddressSpace::madvise) with advice that changes
//! flags, [`register`](crate::uffd::Userfaultfd::register) and
//! [`unregister`](crate::uffd::Userfaultfd::unregister) of a userfaultfd, and the growth of a stack in a
//! fault. Such a call is an exclusive writer instead in these cases:
//!
//! - No other writer is at work. A process with one thread therefore never needs a claim.
//! - More than an eighth of recent changes conflicted with another change in a VMA or a hole. The calls then
//!   are exclusive writers for a while.
//! - The call has waited four times for claims of other writers.
//! - The range has a hole between two VMAs (except in a munmap of whole VMAs), or more than eight VMAs.
//! - The call may reach a limit: RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK, the number of VMAs.
//! - There is no memory for a claim, or no address for a mapping. The exclusive writer then decides whether
//!   the call fails.
//! - With [`Unmap::Sectioned`] or [`Unmap::Downgraded`]: munmap, mremap that shrinks and brk that shrinks.
//! - mmap of a driver's file; mmap with [`FIXED`](super::MapFlags::FIXED) over a range that is partly mapped.
//! - mremap to a target that the caller names; mremap of huge pages of a pool, of a segment, of a special
//!   mapping, or of memory that a userfaultfd watches.
//! - mprotect with [`GROWSDOWN`](super::Prot::GROWSDOWN) or [`GROWSUP`](super::Prot::GROWSUP).
//! - Growth of a stack if its gap is not empty.
//!
//! Every other call that changes VMAs is always an exclusive writer; its documentation says "the mmap lock
//! for writing". Calls whose documentation says *killably* fail with `Killed` if a fatal signal arrives while
//! they wait.
//!
//! [`Unmap::Sectioned`]: super::Unmap::Sectioned
//! [`Unmap::Downgraded`]: super::Unmap::Downgraded
#![expect(unsafe_code, reason = "turns words of the tree into references; the guards make that sound")]

pub use super::vma_lock::VmaRead;
use super::{AddressSpace, tree_entry::decode, write_right::WriteRight};
pub(crate) use super::{
    tree_entry::{TreeEntry, closing_entry, entry, entry_at},
    vma_lock::NeedMmapLock,
};
use crate::{
    PageIndex, UserRange,
    counted::Counted,
    error::NoMemory,
    platform::Platform,
    rmap::edit::RmapEdit,
    space::{range_writer::RangeWriter, state::counters::LimitReservation},
    uffd::state::Context,
    vma::{AnonVma, Vma, flags::VmFlags, locked_list::LockedVmas},
};
use core::{
    cell::{Cell, RefCell},
    ops::Range,
};
use freehold_range::{ClaimWriter, Direction, Entry, GapRequest, Reader};
use freehold_sync::{Killed, MmapReadGuard, MmapWriteGuard};

/// The mmap lock held for reading (or downgraded).
///
/// A VMA that this guard returns cannot outlive the guard (hazard C-7):
///
/// ```
/// use freehold::{platform::Platform, space::locking::ReadGuard, vma::Vma};
///
/// fn first<'g, P: Platform>(guard: &'g ReadGuard<'_, P>) -> Option<&'g Vma<P>> {
///     guard.next(0)
/// }
/// ```
///
/// ```compile_fail,E0515
/// use freehold::{platform::Platform, space::AddressSpace, vma::Vma};
///
/// fn first<P: Platform>(space: &AddressSpace<P>) -> Option<&Vma<P>> {
///     space.read().next(0)
/// }
/// ```
pub struct ReadGuard<'s, P: Platform> {
    tree: Reader<'s, P>,
    lock: MmapReadGuard<'s, P>,
}

/// The right to change the set of VMAs: all of them for an exclusive writer, which holds the mmap lock for
/// writing, or those that a range writer has claimed ([writers](self#writers), `docs/guide/ranges.md`).
///
/// All changes of the tree are methods of this guard.
///
/// A VMA that this guard returns cannot outlive the guard (hazard C-7):
///
/// ```compile_fail,E0505
/// use freehold::{platform::Platform, space::AddressSpace};
///
/// fn start<P: Platform>(space: &AddressSpace<P>) -> Option<u64> {
///     let guard = space.write();
///     let vma = guard.next(0)?;
///     drop(guard);
///     Some(vma.start())
/// }
/// ```
pub struct WriteGuard<'s, P: Platform> {
    pub(crate) space: &'s AddressSpace<P>,
    /// Dropped before `right`, because fields are dropped in the order of declaration: VMAs are unlocked
    /// first.
    pub(super) locked: LockedVmas<'s, P>,
    pub(crate) right: WriteRight<'s, P>,
}

/// The write lock of one VMA: the right to change its fields. Ends with the write guard that created it.
pub(crate) struct VmaWrite<'g, P: Platform> {
    vma: &'g Vma<P>,
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the mmap lock for reading.
    pub fn read(&self) -> ReadGuard<'_, P> {
        self.reader(self.mmap_lock.read())
    }

    /// Takes the mmap lock for reading. Fails with [`Killed`] if a fatal signal arrives first.
    pub fn read_killable(&self) -> Result<ReadGuard<'_, P>, Killed> {
        Ok(self.reader(self.mmap_lock.read_killable()?))
    }

    /// Takes the mmap lock for reading if that does not require waiting.
    pub fn try_read(&self) -> Option<ReadGuard<'_, P>> {
        Some(self.reader(self.mmap_lock.try_read()?))
    }

    /// Takes the mmap lock for writing.
    pub fn write(&self) -> WriteGuard<'_, P> {
        self.writer(self.mmap_lock.write())
    }

    /// Takes the mmap lock for writing. Fails with [`Killed`] if a fatal signal arrives first.
    // Inlined: every change begins with this call, and the guard is large for a return value.
    #[cfg_attr(feature = "inline", inline(always))]
    pub fn write_killable(&self) -> Result<WriteGuard<'_, P>, Killed> {
        Ok(self.writer(self.mmap_lock.write_killable()?))
    }

    /// Takes the mmap lock of fork's child for writing, while the parent's mmap lock is held.
    pub(crate) fn write_nested(&self) -> WriteGuard<'_, P> {
        self.writer(self.mmap_lock.write_nested())
    }

    fn reader<'s>(&'s self, lock: MmapReadGuard<'s, P>) -> ReadGuard<'s, P> {
        // SAFETY: the mmap lock is held for reading, so there is no writer while the guard lives.
        ReadGuard { tree: unsafe { self.tree.reader() }, lock }
    }

    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn writer<'s>(&'s self, lock: MmapWriteGuard<'s, P>) -> WriteGuard<'s, P> {
        // SAFETY: the mmap lock is held for writing, so this is the only writer while the guard lives.
        let tree = RefCell::new(unsafe { self.tree.exclusive_writer() });
        WriteGuard { space: self, locked: LockedVmas::none(), right: WriteRight::Exclusive { tree, lock } }
    }

    /// Returns the VMA at `addr`, locked for reading.
    ///
    /// # Locks
    ///
    /// Only the VMA's lock, if possible. Otherwise also the mmap lock for reading, during the lookup.
    #[inline]
    pub fn find_vma(&self, addr: u64) -> Option<VmaRead<'_, P>> {
        match self.lock_vma(addr) {
            Ok(vma) => Some(vma),
            Err(_) => self.find_vma_by_mmap_lock(addr),
        }
    }

    /// Performs [`find_vma`](Self::find_vma) with the mmap lock.
    #[cold]
    #[inline(never)]
    fn find_vma_by_mmap_lock(&self, addr: u64) -> Option<VmaRead<'_, P>> {
        loop {
            let guard = self.read();
            // Fails if the VMA has the maximum number of readers, which is a temporary condition.
            if let Ok(vma) = guard.lock_vma(guard.find(addr)?) {
                return Some(vma);
            }
            drop(guard);
            P::relax();
            if let Ok(vma) = self.lock_vma(addr) {
                return Some(vma);
            }
        }
    }
}

impl<'s, P: Platform> ReadGuard<'s, P> {
    /// Returns the VMA that contains `addr`.
    pub fn find(&self, addr: u64) -> Option<&Vma<P>> {
        self.tree.find(addr).and_then(|found| self.slot(&found).vma())
    }

    /// Returns the first VMA that ends above `addr`. Skips closing ranges.
    pub fn next(&self, mut addr: u64) -> Option<&Vma<P>> {
        loop {
            let found = self.tree.next(addr)?;
            match self.slot(&found) {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => addr = range.end(),
            }
        }
    }

    /// Returns the VMA that ends where `vma` starts and the VMA that starts where `vma` ends, with one
    /// lookup.
    pub(crate) fn neighbours(&self, vma: &Vma<P>) -> (Option<&Vma<P>>, Option<&Vma<P>>) {
        let (start, end) = (vma.start(), vma.end());
        let mut entries = self.tree.iter_from(start.saturating_sub(1));
        let prev = entries.next().filter(|first| first.start < start);
        if prev.is_some() {
            entries.next();
        }
        let next = entries.next().filter(|next| next.start == end);
        let vma = |found: Option<Entry>| found.and_then(|found| self.slot(&found).vma());
        (vma(prev), vma(next))
    }

    /// Returns the last VMA that ends at or below `addr`. Skips closing ranges.
    pub fn prev(&self, mut addr: u64) -> Option<&Vma<P>> {
        loop {
            let found = self.tree.prev(addr)?;
            match self.slot(&found) {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => addr = range.start(),
            }
        }
    }

    /// Returns the VMAs that overlap `range`, in order of address.
    pub fn vmas(&self, range: UserRange) -> impl Iterator<Item = &Vma<P>> {
        let mut at = range.start();
        core::iter::from_fn(move || {
            let vma = (at < range.end()).then(|| self.next(at))?.filter(|vma| vma.start() < range.end())?;
            at = vma.end();
            Some(vma)
        })
    }

    /// Locks a VMA for reading, so that the mmap lock may be dropped. Fails only if the VMA has the maximum
    /// number of readers.
    pub(crate) fn lock_vma(&self, vma: &Vma<P>) -> Result<VmaRead<'s, P>, NeedMmapLock> {
        let place = vma.lock().read_under::<P>(&self.lock).map_err(|_| NeedMmapLock::Busy)?;
        // SAFETY: `read_under` has just locked the VMA.
        Ok(unsafe { VmaRead::locked(vma, place) })
    }

    fn slot<'g>(&'g self, found: &Entry) -> TreeEntry<'g, P> {
        // SAFETY: the entry is from this space's tree, and the guard keeps the entry's VMA in that tree.
        unsafe { decode(found) }
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Returns the VMA that contains `addr`.
    pub fn find(&self, addr: u64) -> Option<&Vma<P>> {
        let found = self.right.find(addr)?;
        self.slot(&found).vma()
    }

    /// Returns the first entry (a VMA, a closing range or a boundary) that ends above `addr`.
    pub(crate) fn next_slot(&self, addr: u64) -> Option<TreeEntry<'_, P>> {
        let found = self.right.next(addr)?;
        Some(self.slot(&found))
    }

    /// Returns the last entry (a VMA, a closing range or a boundary) that ends at or below `addr`.
    pub(crate) fn prev_slot(&self, addr: u64) -> Option<TreeEntry<'_, P>> {
        let found = self.right.prev(addr)?;
        Some(self.slot(&found))
    }

    /// Returns the first VMA that overlaps `range`. Skips closing ranges. Reads no VMA outside `range`.
    // Inlined: every change of VMAs begins with this call.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<&Vma<P>> {
        let mut at = range.start;
        while at < range.end {
            let found = self.right.next(at).filter(|found| found.start < range.end)?;
            match self.slot(&found) {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => at = range.end(),
            }
        }
        None
    }

    /// Returns the addresses of the entries before and behind `range`. The range itself may contain anything.
    pub(crate) fn occupied_around(&self, range: UserRange) -> (Option<UserRange>, Option<UserRange>) {
        let (prev, next) = self.right.around(range);
        let taken = |found: Entry| UserRange::new(found.start, found.end);
        (prev.map(taken), next.map(taken))
    }

    /// Returns the VMAs that touch `range`. The range itself may contain anything. Reads no other VMA.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn neighbours(&self, range: UserRange) -> (Option<&Vma<P>>, Option<&Vma<P>>) {
        let (prev, next) = self.right.around(range);
        let prev = prev.filter(|prev| prev.end == range.start());
        let next = next.filter(|next| next.start == range.end());
        let vma = |found: Option<Entry>| found.and_then(|found| self.slot(&found).vma());
        (vma(prev), vma(next))
    }

    /// Returns the first VMA that ends above `addr`. Skips closing ranges.
    pub fn next(&self, addr: u64) -> Option<&Vma<P>> {
        self.first_in(addr..u64::MAX)
    }

    /// Returns the last VMA that ends at or below `addr`. Skips closing ranges.
    pub fn prev(&self, mut addr: u64) -> Option<&Vma<P>> {
        loop {
            match self.prev_slot(addr)? {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => addr = range.start(),
            }
        }
    }

    /// Returns the VMAs that overlap `range`, in order of address. The caller may change the set of VMAs
    /// during the iteration, because each step searches the tree again.
    pub fn vmas(&self, range: UserRange) -> impl Iterator<Item = &Vma<P>> {
        let mut at = range.start();
        core::iter::from_fn(move || {
            let vma = self.first_in(at..range.end())?;
            at = vma.end();
            Some(vma)
        })
    }

    /// Returns the start of the highest free range of `len` bytes within `bounds`, and the lowest address
    /// that the entry above the range [keeps free](Self::next_occupied). All numbers are whole pages. The
    /// search does not respect the gaps of stacks.
    ///
    /// The time depends on the depth of the tree, because the search takes the first gap that is long enough.
    /// The time also depends on the number of leaves whose gaps were filled since the last search for a gap
    /// of this length.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn highest_gap(&self, len: u64, bounds: Range<u64>) -> Option<(u64, u64)> {
        // The last entry that the search passes to the function is the entry above the gap. If the gap lies
        // above all entries, the search does not call the function.
        let above = Cell::new(u64::MAX);
        let start = self.gap(len, bounds, Direction::TopDown, |found| above.set(self.guard_start(found)))?;
        Some((start, above.get()))
    }

    /// Returns the start of the lowest free range; see [`highest_gap`](Self::highest_gap).
    pub(crate) fn lowest_gap(&self, len: u64, bounds: Range<u64>) -> Option<u64> {
        self.gap(len, bounds, Direction::BottomUp, |_| ())
    }

    #[cfg_attr(feature = "inline", inline(always))]
    fn gap(&self, len: u64, bounds: Range<u64>, from: Direction, above: impl Fn(&Entry)) -> Option<u64> {
        let Range { start: low, end: high } = bounds;
        let request = GapRequest { len, align: crate::PAGE_SIZE, low, high, direction: from };
        self.right.gap(&request, |found| {
            above(found);
            0
        })
    }

    /// Returns the first entry above `addr`: its addresses, and the lowest address that it keeps free. For a
    /// stack this address is the start of the stack's gap; for any other entry it is the start of the entry.
    pub(crate) fn next_occupied(&self, addr: u64) -> Option<(UserRange, u64)> {
        self.right.with_next_of_any_writer(addr, |found| {
            found.map(|found| (UserRange::new(found.start, found.end), self.guard_start(&found)))
        })
    }

    /// Returns the start of the gap of a stack, or the start of any other entry.
    pub(super) fn guard_start(&self, found: &Entry) -> u64 {
        let gap = match self.slot(found) {
            TreeEntry::Vma(vma) if vma.flags().contains(VmFlags::GROWSDOWN) => {
                self.space.engine.config().stack_gap
            }
            _ => 0,
        };
        found.start.saturating_sub(gap)
    }

    /// Reserves nodes, so that `replaces` calls of [`replace`](Self::replace) cannot fail.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn reserve(&self, replaces: usize) -> Result<(), NoMemory> {
        self.right.reserve(replaces)
    }

    /// Frees the nodes that [`reserve`](Self::reserve) reserved and that were not used.
    pub(crate) fn trim_tree(&self) {
        self.right.exclusive_tree().borrow_mut().trim();
    }

    /// Replaces everything in `range` by the entries `with`, in one step for readers. Uses up one call that
    /// [`reserve`](Self::reserve) prepared.
    pub(crate) fn replace(&self, range: UserRange, with: &[Entry]) {
        self.right.replace(range, with);
    }

    /// Removes everything in `range` from the tree, after its pages were unmapped. Counts as one call of
    /// [`replace`](Self::replace). A range writer frees the page tables at the ends of `range` when it
    /// publishes its write set.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn remove(&self, range: UserRange) {
        self.right.remove(range);
    }

    /// Removes all entries from the tree. Needs no memory.
    pub(crate) fn clear_tree(&self) {
        self.right.exclusive_tree().borrow_mut().clear();
    }

    /// Locks a VMA for writing: waits for its readers, and blocks new readers until this guard ends.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn lock_vma<'g>(&'g self, vma: &'g Vma<P>) -> VmaWrite<'g, P> {
        self.locked.lock(vma, &self.right);
        VmaWrite { vma }
    }

    /// Locks a VMA for writing like [`lock_vma`](Self::lock_vma). Fails with [`Killed`] if a fatal signal
    /// arrives first.
    pub(crate) fn lock_vma_killable<'g>(&'g self, vma: &'g Vma<P>) -> Result<VmaWrite<'g, P>, Killed> {
        self.locked.lock_killable(vma, &self.right)?;
        Ok(VmaWrite { vma })
    }

    /// Attaches a VMA whose fields are complete, before the caller stores it in the tree. The VMA is
    /// write-locked afterwards. Calls the `open` hook of a special mapping.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn attach<'g>(&'g self, vma: &'g Vma<P>) -> VmaWrite<'g, P> {
        self.locked.attach(vma, &self.right);
        vma.open_hook(&self.space.vm);
        VmaWrite { vma }
    }

    /// Detaches a VMA that was just removed from the tree, so that it can no longer be locked. Waits for
    /// readers that have raised the VMA's count and have not yet seen that the VMA is write-locked.
    pub(crate) fn detach(&self, vma: &Vma<P>) {
        self.locked.detach(vma, &self.right);
    }

    /// Downgrades the mmap lock, so that it admits readers. Unlocks all write-locked VMAs.
    pub(crate) fn downgrade(self) -> ReadGuard<'s, P> {
        let WriteGuard { space, locked, right } = self;
        drop(locked);
        match right {
            WriteRight::Exclusive { lock, .. } => space.reader(lock.downgrade()),
            WriteRight::Range(_) => unreachable!("a range writer does not hold the mmap lock"),
        }
    }

    /// Checks the tree's own rules, and that every VMA is attached, belongs to this space and has the bounds
    /// of its entry.
    pub(crate) fn check(&self) {
        self.right.exclusive_tree().borrow().check();
        let mut at = 0;
        while let Some(found) = self.right.next(at) {
            if let TreeEntry::Vma(vma) = self.slot(&found) {
                assert_eq!(vma.range(), found.start..found.end, "a VMA differs from its tree entry");
                assert!(!vma.lock().is_detached(), "detached VMA in the tree at {:#x}", found.start);
                assert!(
                    vma.is_owned_by(&self.space.vm),
                    "VMA of another space in the tree at {:#x}",
                    found.start
                );
            }
            at = found.end;
        }
    }

    pub(crate) fn slot<'g>(&'g self, found: &Entry) -> TreeEntry<'g, P> {
        // SAFETY: the entry is from this space's tree, and only the holder of this guard frees VMAs of that
        // tree.
        unsafe { decode(found) }
    }

    /// Returns the range writer, or `None` for the exclusive writer.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(crate) fn range_writer(&self) -> Option<&RangeWriter<'s, P>> {
        match &self.right {
            WriteRight::Exclusive { .. } => None,
            WriteRight::Range(writer) => Some(writer),
        }
    }

    /// Returns the range writer for modification, or `None` for the exclusive writer.
    pub(crate) fn range_writer_mut(&mut self) -> Option<&mut RangeWriter<'s, P>> {
        match &mut self.right {
            WriteRight::Exclusive { .. } => None,
            WriteRight::Range(writer) => Some(writer),
        }
    }

    /// Locks for reading a VMA that this range writer has claimed and has not write-locked. Afterwards the
    /// range writer may release the claim. Fails only if the VMA has the maximum number of readers.
    pub(crate) fn read_lock_claimed(&self, vma: &Vma<P>) -> Result<VmaRead<'s, P>, NeedMmapLock> {
        let WriteRight::Range(writer) = &self.right else {
            unreachable!("the exclusive writer has no claims")
        };
        let place = vma.lock().read_claimed::<P>(&writer.gate).map_err(|_| NeedMmapLock::Busy)?;
        // SAFETY: `read_claimed` has just locked the VMA.
        Ok(unsafe { VmaRead::locked(vma, place) })
    }

    /// Returns the range writer's access to the tree.
    #[inline]
    pub(crate) fn claims(&self) -> &ClaimWriter<'s, P> {
        match &self.right {
            WriteRight::Exclusive { .. } => unreachable!("the exclusive writer has no claims"),
            WriteRight::Range(writer) => &writer.map,
        }
    }

    /// Returns the pages and VMAs that a range writer has reserved within limits, or `None` for the exclusive
    /// writer.
    #[cfg_attr(feature = "inline", inline(always))]
    pub(super) fn limit_reservation(&self) -> Option<&'s LimitReservation> {
        self.range_writer().map(|writer| &writer.state.reserved)
    }
}

impl<'g, P: Platform> VmaWrite<'g, P> {
    /// Sets the flags: access rights and properties.
    pub fn set_flags(&self, flags: VmFlags) {
        self.vma.set_flags(flags);
    }

    /// Sets the userfaultfd that the VMA is registered with.
    pub fn set_uffd(&self, uffd: Option<Counted<Context<P>>>) {
        self.vma.set_uffd(uffd);
    }

    /// Sets the NUMA policy tag.
    pub fn set_policy(&self, policy: u64) {
        self.vma.set_policy(policy);
    }

    /// Attaches `anon_vma` to a VMA that has none, and links the VMA in the tree that `edit` has locked.
    pub fn join_within(&self, edit: &mut RmapEdit<'_, P>, anon_vma: AnonVma<'_, P>) {
        debug_assert!(!self.vma.anon().is_some());
        self.vma.set_anon_vma(anon_vma);
        edit.insert_pages(self.vma);
    }

    /// Removes the anon_vma of a VMA that has no anonymous page any more.
    pub fn leave_anon_vma(&self) {
        RmapEdit::of(self.vma).remove_pages(self.vma);
        self.vma.set_anon_vma(AnonVma::NONE);
    }

    /// Sets the bounds, and moves the VMA in the rmap trees that link it.
    ///
    /// # Locks
    ///
    /// The locks of those trees, for writing.
    pub fn set_bounds(&self, range: UserRange, pgoff: PageIndex) {
        self.set_bounds_within(&mut RmapEdit::of(self.vma), range, pgoff);
    }

    /// Sets the bounds like [`set_bounds`](Self::set_bounds), as a part of a larger change of the same trees.
    pub fn set_bounds_within(&self, edit: &mut RmapEdit<'_, P>, range: UserRange, pgoff: PageIndex) {
        edit.rekey(self.vma, range, pgoff);
    }

    /// Returns the VMA.
    pub fn vma(&self) -> &'g Vma<P> {
        self.vma
    }
}
