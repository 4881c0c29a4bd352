//! How an address space may be read and changed: the protocol, alone in its file.
//!
//! What each right promises:
//!
//! | right | got by | what it keeps still |
//! | --- | --- | --- |
//! | [`VmaRead`] | `AddressSpace::lock_vma` without any lock, or `ReadGuard::lock_vma` | one VMA: in the tree, its fields, the page tables of its range |
//! | [`ReadGuard`] | the mmap lock for reading | all VMAs |
//! | [`WriteGuard`] | the mmap lock for writing, or a claim: see [writers](#writers) | all VMAs, or those of a range; and the right to change the set of them |
//! | `VmaWrite` | `WriteGuard::lock_vma` | the above, and nobody reads this VMA through its own lock: its fields may change |
//!
//! A `&Vma` handed out by a guard lives no longer than the guard. Write locks on VMAs all end when the write
//! guard is dropped or downgraded, which goes through its list of them.
//!
//! A lookup without locks goes: RCU, tree, count of the VMA raised, owner and sequence and bounds checked
//! again. Whatever fails on the way means "climb": take the mmap lock and look again. See `docs/locking.md`.
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
//! Both then write-lock each VMA that they change, which waits for faults in that VMA, and take the lock of
//! the file or of the anonymous pages that the VMA maps where its bounds change. Neither starts while a
//! munmap of the range is under way.
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
//! fault. Such a call is an exclusive writer instead
//!
//! - while no other writer is at work: a process with one thread needs no claims;
//! - for a while, after more than an eighth of recent changes met another one in one VMA or hole;
//! - if it has waited four times for the claims of other writers;
//! - if its range has a hole between two VMAs, or more than eight VMAs;
//! - if it may reach a limit: RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK, the number of VMAs;
//! - if there is no memory for a claim, or no address for a mapping: the exclusive writer decides;
//! - in these cases: munmap, mremap that shrinks and brk that shrinks with [`Unmap::Sectioned`] or
//!   [`Unmap::Downgraded`]; mmap of a driver's file; mmap with [`FIXED`](super::MapFlags::FIXED) over a range
//!   that is mapped in part; mremap with a target that the caller names, of huge pages of a pool, of a
//!   segment, of a special mapping, or of memory that a userfaultfd watches; mprotect with
//!   [`GROWSDOWN`](super::Prot::GROWSDOWN) or [`GROWSUP`](super::Prot::GROWSUP); a stack that grows to where
//!   something lies in its gap.
//!
//! Every other call that changes VMAs is always an exclusive writer, and says "the mmap lock for writing".
//! Calls that say *killably* fail with `Killed` if a fatal signal arrives while they wait.
//!
//! [`Unmap::Sectioned`]: super::Unmap::Sectioned
//! [`Unmap::Downgraded`]: super::Unmap::Downgraded
#![expect(
    unsafe_code,
    reason = "turns words of the tree back into references; the guards are what makes that sound"
)]

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
/// A VMA that it shows is gone with it (hazard C-7):
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

/// The right to change which VMAs there are: all of them for an exclusive writer, which holds the mmap lock
/// for writing, or those that a range writer claimed ([writers](self#writers), `docs/ranges.md`).
///
/// All changes of the tree go through it.
///
/// A VMA that it shows is gone with it, and cannot be kept for afterwards (hazard C-7):
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
    /// Dropped, like all fields, in the order of declaration: VMAs are unlocked first.
    pub(super) locked: LockedVmas<'s, P>,
    pub(crate) right: WriteRight<'s, P>,
}

/// The write lock of one VMA: the right to change its fields. Ends with the write guard it came from.
pub(crate) struct VmaWrite<'g, P: Platform> {
    vma: &'g Vma<P>,
}

impl<P: Platform> AddressSpace<P> {
    /// Takes the mmap lock for reading.
    pub fn read(&self) -> ReadGuard<'_, P> {
        self.reader(self.mmap_lock.read())
    }

    /// Takes the mmap lock for reading unless a fatal signal arrives first.
    pub fn read_killable(&self) -> Result<ReadGuard<'_, P>, Killed> {
        Ok(self.reader(self.mmap_lock.read_killable()?))
    }

    /// Takes the mmap lock for reading if that needs no waiting.
    pub fn try_read(&self) -> Option<ReadGuard<'_, P>> {
        Some(self.reader(self.mmap_lock.try_read()?))
    }

    /// Takes the mmap lock for writing.
    pub fn write(&self) -> WriteGuard<'_, P> {
        self.writer(self.mmap_lock.write())
    }

    /// Takes the mmap lock for writing unless a fatal signal arrives first.
    // Inlined, since every change begins with it, and the guard is large for a return value.
    #[inline(always)]
    pub fn write_killable(&self) -> Result<WriteGuard<'_, P>, Killed> {
        Ok(self.writer(self.mmap_lock.write_killable()?))
    }

    /// Takes the mmap lock of a child in fork for writing, the parent's being held.
    pub(crate) fn write_nested(&self) -> WriteGuard<'_, P> {
        self.writer(self.mmap_lock.write_nested())
    }

    fn reader<'s>(&'s self, lock: MmapReadGuard<'s, P>) -> ReadGuard<'s, P> {
        // SAFETY: the mmap lock is held for reading, so there is no writer while the guard lives.
        ReadGuard { tree: unsafe { self.tree.reader() }, lock }
    }

    #[inline(always)]
    pub(super) fn writer<'s>(&'s self, lock: MmapWriteGuard<'s, P>) -> WriteGuard<'s, P> {
        // SAFETY: the mmap lock is held for writing, so this is the only writer while the guard lives.
        let tree = RefCell::new(unsafe { self.tree.exclusive_writer() });
        WriteGuard { space: self, locked: LockedVmas::none(), right: WriteRight::Exclusive { tree, lock } }
    }

    /// The VMA at `addr`, locked for reading.
    ///
    /// # Locks
    ///
    /// None but the VMA's, where possible; else the mmap lock for reading, for the look-up alone.
    #[inline]
    pub fn find_vma(&self, addr: u64) -> Option<VmaRead<'_, P>> {
        match self.lock_vma(addr) {
            Ok(vma) => Some(vma),
            Err(_) => self.find_vma_by_mmap_lock(addr),
        }
    }

    /// As [`find_vma`](Self::find_vma), when that needs the mmap lock.
    #[cold]
    #[inline(never)]
    fn find_vma_by_mmap_lock(&self, addr: u64) -> Option<VmaRead<'_, P>> {
        loop {
            let guard = self.read();
            // The VMA may have too many readers to be counted; that passes.
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
    /// The VMA that contains `addr`.
    pub fn find(&self, addr: u64) -> Option<&Vma<P>> {
        self.tree.find(addr).and_then(|found| self.slot(&found).vma())
    }

    /// The first VMA that ends above `addr`; closing ranges are passed over.
    pub fn next(&self, mut addr: u64) -> Option<&Vma<P>> {
        loop {
            let found = self.tree.next(addr)?;
            match self.slot(&found) {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => addr = range.end(),
            }
        }
    }

    /// The VMAs that end where `vma` starts and start where it ends, by one look-up.
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

    /// The last VMA that ends at or below `addr`; closing ranges are passed over.
    pub fn prev(&self, mut addr: u64) -> Option<&Vma<P>> {
        loop {
            let found = self.tree.prev(addr)?;
            match self.slot(&found) {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => addr = range.start(),
            }
        }
    }

    /// The VMAs that overlap `range`, in order.
    pub fn vmas(&self, range: UserRange) -> impl Iterator<Item = &Vma<P>> {
        let mut at = range.start();
        core::iter::from_fn(move || {
            let vma = (at < range.end()).then(|| self.next(at))?.filter(|vma| vma.start() < range.end())?;
            at = vma.end();
            Some(vma)
        })
    }

    /// Locks a VMA for reading so that the mmap lock may be dropped.
    /// Fails only when the VMA has as many readers as can be counted.
    pub(crate) fn lock_vma(&self, vma: &Vma<P>) -> Result<VmaRead<'s, P>, NeedMmapLock> {
        let place = vma.lock().read_under::<P>(&self.lock).map_err(|_| NeedMmapLock::Busy)?;
        // SAFETY: locked just now.
        Ok(unsafe { VmaRead::locked(vma, place) })
    }

    fn slot<'g>(&'g self, found: &Entry) -> TreeEntry<'g, P> {
        // SAFETY: the entry is of this space's tree, in which the guard keeps it.
        unsafe { decode(found) }
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// The VMA that contains `addr`.
    pub fn find(&self, addr: u64) -> Option<&Vma<P>> {
        let found = self.right.find(addr)?;
        self.slot(&found).vma()
    }

    /// The first VMA or closing range that ends above `addr`.
    pub(crate) fn next_slot(&self, addr: u64) -> Option<TreeEntry<'_, P>> {
        let found = self.right.next(addr)?;
        Some(self.slot(&found))
    }

    /// The last VMA or closing range that ends at or below `addr`.
    pub(crate) fn prev_slot(&self, addr: u64) -> Option<TreeEntry<'_, P>> {
        let found = self.right.prev(addr)?;
        Some(self.slot(&found))
    }

    /// The first VMA that overlaps `range`, in which closing ranges are passed over; nothing beyond it is
    /// looked at but the tree.
    // Inlined: every change of VMAs begins with it.
    #[inline(always)]
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

    /// The addresses taken by what lies before and behind `range`, which may hold anything.
    pub(crate) fn occupied_around(&self, range: UserRange) -> (Option<UserRange>, Option<UserRange>) {
        let (prev, next) = self.right.around(range);
        let taken = |found: Entry| UserRange::new(found.start, found.end);
        (prev.map(taken), next.map(taken))
    }

    /// The VMAs that touch `range`, which may hold anything; no others are looked at.
    #[inline(always)]
    pub(crate) fn neighbours(&self, range: UserRange) -> (Option<&Vma<P>>, Option<&Vma<P>>) {
        let (prev, next) = self.right.around(range);
        let prev = prev.filter(|prev| prev.end == range.start());
        let next = next.filter(|next| next.start == range.end());
        let vma = |found: Option<Entry>| found.and_then(|found| self.slot(&found).vma());
        (vma(prev), vma(next))
    }

    /// The first VMA that ends above `addr`; closing ranges are passed over.
    pub fn next(&self, addr: u64) -> Option<&Vma<P>> {
        self.first_in(addr..u64::MAX)
    }

    /// The last VMA that ends at or below `addr`; closing ranges are passed over.
    pub fn prev(&self, mut addr: u64) -> Option<&Vma<P>> {
        loop {
            match self.prev_slot(addr)? {
                TreeEntry::Vma(vma) => return Some(vma),
                TreeEntry::Closing(range) | TreeEntry::Boundary(range) => addr = range.start(),
            }
        }
    }

    /// The VMAs that overlap `range`, in order. The set may change behind the iterator's back.
    pub fn vmas(&self, range: UserRange) -> impl Iterator<Item = &Vma<P>> {
        let mut at = range.start();
        core::iter::from_fn(move || {
            let vma = self.first_in(at..range.end())?;
            at = vma.end();
            Some(vma)
        })
    }

    /// The highest free range of `len` bytes within `bounds`, all of them whole pages; and the lowest address
    /// that what lies above it [keeps](Self::next_occupied). Does not know of the gaps that stacks keep.
    /// Takes time by the depth of the tree, since no gap that is long enough is passed over; and by the
    /// leaves in which gaps were filled since a search last looked for one as long.
    #[inline(always)]
    pub(crate) fn highest_gap(&self, len: u64, bounds: Range<u64>) -> Option<(u64, u64)> {
        // The entry above the gap is the last that the search asks about; none, if it lies above all.
        let above = Cell::new(u64::MAX);
        let start = self.gap(len, bounds, Direction::TopDown, |found| above.set(self.guard_start(found)))?;
        Some((start, above.get()))
    }

    /// The lowest free range, as [`highest_gap`](Self::highest_gap).
    pub(crate) fn lowest_gap(&self, len: u64, bounds: Range<u64>) -> Option<u64> {
        self.gap(len, bounds, Direction::BottomUp, |_| ())
    }

    #[inline(always)]
    fn gap(&self, len: u64, bounds: Range<u64>, from: Direction, above: impl Fn(&Entry)) -> Option<u64> {
        let Range { start: low, end: high } = bounds;
        let request = GapRequest { len, align: crate::PAGE_SIZE, low, high, direction: from };
        self.right.gap(&request, |found| {
            above(found);
            0
        })
    }

    /// What comes first above `addr`: the addresses that it takes, and the lowest that it keeps for itself,
    /// which is where its gap begins if it is a stack.
    pub(crate) fn next_occupied(&self, addr: u64) -> Option<(UserRange, u64)> {
        let rcu = P::rcu_read();
        let found = self.right.next_of_any_writer(&rcu, addr)?;
        Some((UserRange::new(found.start, found.end), self.guard_start(&found)))
    }

    pub(super) fn guard_start(&self, found: &Entry) -> u64 {
        let gap = match self.slot(found) {
            TreeEntry::Vma(vma) if vma.flags().contains(VmFlags::GROWSDOWN) => {
                self.space.engine.config().stack_gap
            }
            _ => 0,
        };
        found.start.saturating_sub(gap)
    }

    /// Prepares so that `replaces` calls of [`replace`](Self::replace) cannot fail.
    #[inline(always)]
    pub(crate) fn reserve(&self, replaces: usize) -> Result<(), NoMemory> {
        self.right.reserve(replaces)
    }

    /// Frees the nodes that [`reserve`](Self::reserve) has left over.
    pub(crate) fn trim_tree(&self) {
        self.right.exclusive_tree().borrow_mut().trim();
    }

    /// Puts `with` in place of everything in `range`, in one step for readers. Uses up one reserved replace.
    pub(crate) fn replace(&self, range: UserRange, with: &[Entry]) {
        self.right.replace(range, with);
    }

    /// Removes everything in `range` from the tree, whose pages are unmapped. Uses up one reserved replace.
    /// Of a range writer, page tables at the ends of `range` go when the change is published.
    #[inline(always)]
    pub(crate) fn remove(&self, range: UserRange) {
        self.right.remove(range);
    }

    /// Takes everything out of the tree; needs no memory.
    pub(crate) fn clear_tree(&self) {
        self.right.exclusive_tree().borrow_mut().clear();
    }

    /// Locks a VMA for writing: waits for its readers, and keeps new ones out until this guard ends.
    #[inline(always)]
    pub(crate) fn lock_vma<'g>(&'g self, vma: &'g Vma<P>) -> VmaWrite<'g, P> {
        self.locked.lock(vma, &self.right);
        VmaWrite { vma }
    }

    /// As [`lock_vma`](Self::lock_vma), unless a fatal signal arrives first.
    pub(crate) fn lock_vma_killable<'g>(&'g self, vma: &'g Vma<P>) -> Result<VmaWrite<'g, P>, Killed> {
        self.locked.lock_killable(vma, &self.right)?;
        Ok(VmaWrite { vma })
    }

    /// Makes a VMA that was just stored into the tree lockable; it is locked. It is complete: a hook hears of
    /// it.
    #[inline(always)]
    pub(crate) fn attach<'g>(&'g self, vma: &'g Vma<P>) -> VmaWrite<'g, P> {
        self.locked.attach(vma, &self.right);
        vma.open_hook(&self.space.vm);
        VmaWrite { vma }
    }

    /// Makes a VMA that was just taken out of the tree unlockable; waits for readers that are about to
    /// notice.
    pub(crate) fn detach(&self, vma: &Vma<P>) {
        self.locked.detach(vma, &self.right);
    }

    /// Lets readers in. Write locks on VMAs end here.
    pub(crate) fn downgrade(self) -> ReadGuard<'s, P> {
        let WriteGuard { space, locked, right } = self;
        drop(locked);
        match right {
            WriteRight::Exclusive { lock, .. } => space.reader(lock.downgrade()),
            WriteRight::Range(_) => unreachable!("a range writer does not become a reader of the whole"),
        }
    }

    /// The tree's own rules, and that every VMA is attached, owned and where the tree says.
    pub(crate) fn check(&self) {
        self.right.exclusive_tree().borrow().check();
        let mut at = 0;
        while let Some(found) = self.right.next(at) {
            if let TreeEntry::Vma(vma) = self.slot(&found) {
                assert_eq!(vma.range(), found.start..found.end, "a VMA lies elsewhere than the tree says");
                assert!(!vma.lock().is_detached(), "a detached VMA is in the tree at {:#x}", found.start);
                assert!(
                    vma.is_owned_by(&self.space.vm),
                    "a VMA of another space is in the tree at {:#x}",
                    found.start
                );
            }
            at = found.end;
        }
    }

    pub(crate) fn slot<'g>(&'g self, found: &Entry) -> TreeEntry<'g, P> {
        // SAFETY: the entry is of this space's tree; nobody but the guard's holder ends a VMA in it.
        unsafe { decode(found) }
    }

    /// What it has, if it is a range writer.
    #[inline(always)]
    pub(crate) fn range_writer(&self) -> Option<&RangeWriter<'s, P>> {
        match &self.right {
            WriteRight::Exclusive { .. } => None,
            WriteRight::Range(writer) => Some(writer),
        }
    }

    /// The same, to change what it has.
    pub(crate) fn range_writer_mut(&mut self) -> Option<&mut RangeWriter<'s, P>> {
        match &mut self.right {
            WriteRight::Exclusive { .. } => None,
            WriteRight::Range(writer) => Some(writer),
        }
    }

    /// Locks a VMA that a range writer has claimed, and not locked, for reading, so that the claim may
    /// end. Fails only when the VMA has as many readers as can be counted.
    pub(crate) fn read_lock_claimed(&self, vma: &Vma<P>) -> Result<VmaRead<'s, P>, NeedMmapLock> {
        let WriteRight::Range(writer) = &self.right else {
            unreachable!("an exclusive writer claims nothing")
        };
        let place = vma.lock().read_claimed::<P>(&writer.gate).map_err(|_| NeedMmapLock::Busy)?;
        // SAFETY: locked just now.
        Ok(unsafe { VmaRead::locked(vma, place) })
    }

    /// The tree, of a range writer.
    #[inline]
    pub(crate) fn claims(&self) -> &ClaimWriter<'s, P> {
        match &self.right {
            WriteRight::Exclusive { .. } => unreachable!("an exclusive writer claims nothing"),
            WriteRight::Range(writer) => &writer.map,
        }
    }

    /// What a range writer may add to sizes that have limits.
    #[inline(always)]
    pub(super) fn limit_reservation(&self) -> Option<&'s LimitReservation> {
        self.range_writer().map(|writer| &writer.state.reserved)
    }
}

impl<'g, P: Platform> VmaWrite<'g, P> {
    /// Changes rights and properties.
    pub fn set_flags(&self, flags: VmFlags) {
        self.vma.set_flags(flags);
    }

    /// Changes the userfaultfd that the VMA is registered with.
    pub fn set_uffd(&self, uffd: Option<Counted<Context<P>>>) {
        self.vma.set_uffd(uffd);
    }

    /// Changes the NUMA policy tag.
    pub fn set_policy(&self, policy: u64) {
        self.vma.set_policy(policy);
    }

    /// Gives a VMA that has none an anon_vma, as a part of a change of its tree.
    pub fn join_within(&self, edit: &mut RmapEdit<'_, P>, anon_vma: AnonVma<'_, P>) {
        debug_assert!(!self.vma.anon().is_some());
        self.vma.set_anon_vma(anon_vma);
        edit.insert_pages(self.vma);
    }

    /// The VMA has no anonymous page any more, and no anon_vma.
    pub fn leave_anon_vma(&self) {
        RmapEdit::of(self.vma).remove_pages(self.vma);
        self.vma.set_anon_vma(AnonVma::NONE);
    }

    /// Changes the bounds, and with them the VMA's place in the trees that it is linked in.
    ///
    /// # Locks
    ///
    /// Those of the trees, for writing.
    pub fn set_bounds(&self, range: UserRange, pgoff: PageIndex) {
        self.set_bounds_within(&mut RmapEdit::of(self.vma), range, pgoff);
    }

    /// As [`set_bounds`](Self::set_bounds), as a part of a larger change of the same trees.
    pub fn set_bounds_within(&self, edit: &mut RmapEdit<'_, P>, range: UserRange, pgoff: PageIndex) {
        edit.rekey(self.vma, range, pgoff);
    }

    /// The VMA.
    pub fn vma(&self) -> &'g Vma<P> {
        self.vma
    }
}
