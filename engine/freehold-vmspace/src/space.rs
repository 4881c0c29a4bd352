//! A space: its tables, the processors that use them, and the counts of resident pages.
//!
//! This file creates and destroys spaces, makes gathers, and gives `freehold` access to single tables. The
//! other files of the crate add the operations that change entries; the documentation of the crate lists
//! them.
//!
//! No lock guards a whole space: each table has its own lock, and all other fields are atomic or never
//! change. A space does not depend on VMAs. Its callers hold the locks that keep tables linked. Every change
//! that removes a translation or a right goes through a gather, which announces the change to the listeners
//! of the space (`notify/`) and flushes.
#![expect(unsafe_code, reason = "frees page tables")]

use crate::{
    Memory, NoMemory, PAGE_SIZE, Pfn, Rss, RssKind, UserRange, VirtAddr,
    notify::{Heard, ListenError, Listener, ListenerId, Listeners, Refused},
    platform::Platform,
    rss_counters::RssCounters,
};
use alloc::{sync::Arc, vec::Vec};
use core::mem::ManuallyDrop;
use core::ops::ControlFlow;
use freehold_pagetable::{
    Flush, Format, GATHER_FRAMES, Gather, GatherState, LargeLeafPolicy, LeafGuard, Level, OutOfTables,
    PageTable, PmdTable, Pte, PteGuard, PteTable, PudTable, TableCount, TableError, Tlb, UnmappedFrame,
    VaRange, Visitor, Walked,
};
use freehold_sync::counted::Counted;

/// The resources that the gathers of one space use: the platform's TLBs, the frame caches, and the memory for
/// tables.
// In this order: every gather reads the first fields of `listeners` and `memory`, which are next to each
// other.
#[repr(C)]
pub struct SpaceTlb<P: Platform> {
    memory: Counted<Memory<P>>,
    /// The listeners that hear about changes.
    listeners: Listeners<P>,
    /// The platform's record of the processors that run this space.
    mmu: P::Mmu,
}

impl<P: Platform> Tlb for SpaceTlb<P> {
    fn flush(&self, what: &Flush) {
        self.memory.platform().flush(&self.mmu, what);
    }

    fn release(&self, frames: &[UnmappedFrame]) {
        self.memory.release(frames);
    }

    fn end_change(&self, range: VaRange, heard: u32) {
        self.listeners.end(as_heard(range), heard);
    }

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        for table in tables {
            // SAFETY: the gather has unlinked the table and flushed since.
            unsafe { self.memory.platform().free_table(*table) };
        }
    }
}

/// A gather for changes of a space's entries. Without a buffer, a gather holds at most `FRAMES` frames.
pub type VmGather<'v, P, const FRAMES: usize = GATHER_FRAMES> = Gather<'v, SpaceTlb<P>, FRAMES>;

/// A gather for changes of entries of pages to which the caller has references.
pub type BatchGather<'v, P> = Gather<'v, SpaceTlb<P>, 0, 0>;

/// Maximum number of small pages whose frames one flush covers: 32 MiB.
const MAX_BUFFERED_PAGES: u64 = 8192;

/// One space whose addresses processors translate: its tables, and the counts of resident pages.
pub struct VmSpace<P: Platform> {
    tlb: SpaceTlb<P>,
    /// Each table has its own lock.
    table: ManuallyDrop<PageTable<P::Format, P>>,
    /// The gathers that are running. Atomic, so no lock guards this field.
    gathers: GatherState,
    rss: RssCounters<P>,
}

impl<P: Platform> VmSpace<P> {
    /// The end of the addresses that programs may map in this format of page tables. The last page of user
    /// space stays unused.
    pub const USER_END: u64 = P::Format::USER_END - PAGE_SIZE;

    /// Creates a space in which nothing is mapped.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the counters, the root table, or the platform's record.
    pub fn new(memory: &Counted<Memory<P>>) -> Result<Self, NoMemory> {
        let rss = RssCounters::try_new()?;
        let platform = memory.platform();
        let table = PageTable::new(platform)?;
        let Some(mmu) = platform.space_created(table.root()) else {
            // SAFETY: the table was created above, and no processor knows it.
            unsafe { table.destroy(platform) };
            return Err(NoMemory);
        };
        Ok(VmSpace {
            tlb: SpaceTlb { memory: memory.clone(), listeners: Listeners::new(), mmu },
            table: ManuallyDrop::new(table),
            gathers: GatherState::new(),
            rss,
        })
    }

    /// Returns the memory whose frames this space maps.
    #[inline]
    pub fn memory(&self) -> &Counted<Memory<P>> {
        &self.tlb.memory
    }

    /// Returns the platform of this space.
    #[inline]
    pub fn platform(&self) -> &P {
        self.tlb.memory.platform()
    }

    /// Returns the platform's record of this space.
    #[inline]
    pub fn mmu(&self) -> &P::Mmu {
        &self.tlb.mmu
    }

    /// Returns the number of the root table, which identifies the space for the accounting of its tables.
    #[inline]
    pub fn root(&self) -> Pfn {
        self.table.root()
    }

    /// Returns the number of resident pages by kind. The result is exact if no task changes the counts during
    /// the call.
    pub fn rss(&self) -> Rss {
        self.rss.sum()
    }

    /// Returns true if nothing is mapped in `span` and unmapping `span` frees no page table: no table at
    /// either end of `span` lies inside `free`. May return false for an unmapped range that has page tables,
    /// unless the range is `small`.
    ///
    /// # Locks
    ///
    /// The caller prevents other tasks from installing entries in `span`. Takes the locks of the tables of a
    /// `small` range.
    pub fn is_settled(&self, span: UserRange, small: bool, free: impl FnOnce() -> VaRange) -> bool {
        const TABLE: u64 = Level::Pte.table_span();
        if span.is_empty() {
            return true;
        }
        let peek = |at: u64| (VirtAddr::new(at), self.peek(VirtAddr::new(at)));
        let (first, last) = (peek(span.start()), span.end() - 1);
        // True if one table of the lowest level can hold the whole range; this is the usual case.
        let one = span.start() / TABLE == last / TABLE;
        // The walk ends at an entry; the lowest table on its path is the table that holds that entry.
        let ends = [Some(first), (!one).then(|| peek(last))];
        let mut tables =
            ends.into_iter().flatten().filter(|(_, (_, level))| *level < P::Format::ROOT).peekable();
        if tables.peek().is_some() {
            let free = free();
            if tables.any(|(at, (_, level))| free.covers(VaRange::entry(at, level.above()))) {
                return false;
            }
        }
        let (_, (pte, level)) = first;
        if one && level > Level::Pte {
            return pte.is_none();
        }
        let range = span.va();
        self.is_empty_range(range) || (small && self.is_unmapped(range))
    }

    /// Flushes everything and frees the tables.
    ///
    /// # Safety
    ///
    /// Nothing is mapped, and the space is not used again.
    pub(crate) unsafe fn end(&mut self) {
        let platform = self.tlb.memory.platform();
        platform.flush(&self.tlb.mmu, &Flush::EVERYTHING);
        platform.space_ending(&self.tlb.mmu, self.table.root());
        // SAFETY: the caller promises that the space, and so this field, is not used again.
        let table = unsafe { ManuallyDrop::take(&mut self.table) };
        // SAFETY: the last user is gone, so no processor runs this space, and every translation was flushed
        // just now.
        unsafe { table.destroy(platform) };
    }

    /// Returns true if every entry of `range` is empty.
    pub fn is_unmapped(&self, range: VaRange) -> bool {
        matches!(self.walk(range, &mut AnyEntry), Ok(Walked::All))
    }
}

/// Access to single entries, for the crate `freehold`, which keeps tables linked and counts what it maps.
#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// If a flush would interrupt other processors and `range` is larger than the span of a lowest-level
    /// table, lets a gather of `range` collect frames in `buffer`. A smaller range needs only one flush
    /// without a buffer.
    #[inline]
    pub fn set_gather_buffer<'v>(
        &'v self,
        gather: &mut VmGather<'v, P>,
        buffer: &'v mut Vec<UnmappedFrame>,
        range: UserRange,
    ) {
        let bytes = range.end() - range.start();
        if bytes > Level::Pte.table_span() && self.platform().runs_elsewhere(&self.tlb.mmu) {
            gather.use_buffer(buffer, (bytes / PAGE_SIZE).min(MAX_BUFFERED_PAGES));
        }
    }

    /// Returns a gather for changes in `range`, which may overlap other gathers of this space. Begins the
    /// change for the listeners of the space; `finish` ends it.
    ///
    /// # Locks
    ///
    /// A listener may sleep, so the caller holds no spin lock. The caller takes the lock that keeps the
    /// tables linked before it calls this function, because registration of a listener waits for these locks.
    #[inline]
    pub fn gather<const FRAMES: usize>(&self, range: VaRange) -> VmGather<'_, P, FRAMES> {
        Gather::announced(&self.tlb, Some(&self.gathers), range, self.announce(range))
    }

    /// Calls `change` with a gather like [`gather`](Self::gather), for a change that must not sleep, and then
    /// finishes the gather.
    ///
    /// # Errors
    ///
    /// Fails with [`Refused`] if a listener would have to sleep. `change` is not called then.
    // A closure, because a gather that is returned in a `Result` is copied, which needs stack.
    #[inline]
    pub fn try_change<'v, const FRAMES: usize, R>(
        &'v self,
        range: VaRange,
        change: impl FnOnce(&mut VmGather<'v, P, FRAMES>) -> R,
    ) -> Result<R, Refused> {
        let heard = match self.has_listeners() {
            true => self.tlb.listeners.try_begin(as_heard(range))?,
            false => 0,
        };
        let mut gather = Gather::announced(&self.tlb, Some(&self.gathers), range, heard);
        let result = change(&mut gather);
        gather.finish();
        Ok(result)
    }

    /// Returns a gather for changes anywhere in this space, for a caller that unmaps pages of many spaces and
    /// flushes each space once. The caller keeps the pages until the flush. Returns `None` if the space has a
    /// listener, which hears about ranges.
    ///
    /// # Locks
    ///
    /// The locks that [`gather`](Self::gather) requires.
    pub fn batch_gather(&self) -> Option<BatchGather<'_, P>> {
        (!self.has_listeners()).then(|| Gather::new(&self.tlb, &self.gathers))
    }

    /// Returns a gather like [`gather`](Self::gather) for a range that no other gather can touch until the
    /// returned gather is finished.
    #[inline]
    pub fn exclusive_gather<const FRAMES: usize>(&self, range: VaRange) -> VmGather<'_, P, FRAMES> {
        Gather::announced(&self.tlb, None, range, self.announce(range))
    }

    /// Returns a gather for unlinking empty tables, or for a flush without a change. No listener hears about
    /// it.
    #[inline]
    pub fn table_gather(&self) -> VmGather<'_, P, 1> {
        Gather::new(&self.tlb, &self.gathers)
    }

    /// Returns a gather like [`table_gather`](Self::table_gather) that is
    /// [exclusive](Self::exclusive_gather).
    #[inline]
    pub fn exclusive_table_gather(&self) -> VmGather<'_, P, 1> {
        Gather::exclusive(&self.tlb)
    }

    /// Begins a change of `range` for the listeners, if there are any.
    #[inline]
    fn announce(&self, range: VaRange) -> Heard {
        if self.has_listeners() { self.tlb.listeners.begin(as_heard(range)) } else { 0 }
    }

    /// Returns true if the space has a listener.
    #[inline]
    pub fn has_listeners(&self) -> bool {
        self.tlb.listeners.any()
    }

    /// Adds a listener. Changes that are in progress may continue without a notification, so the caller waits
    /// for them before the listener installs a translation.
    ///
    /// # Errors
    ///
    /// Fails if the space has the maximum number of listeners.
    pub fn add_listener(&self, listener: Arc<dyn Listener>) -> Result<ListenerId, ListenError> {
        self.tlb.listeners.add(listener)
    }

    /// Removes a listener, and waits until it is not called any more.
    pub fn remove_listener(&self, id: ListenerId) {
        self.tlb.listeners.remove(id);
    }

    /// Tells the listeners that the space ends, and removes them.
    pub fn release_listeners(&self) {
        self.tlb.listeners.release();
    }

    /// Lets the listeners forget accesses to pages of `range`. Returns true if a listener has accessed one.
    #[inline]
    pub fn clear_young(&self, range: VaRange) -> bool {
        self.tlb.listeners.clear_young(as_heard(range))
    }

    /// Returns true if a listener has accessed a page of `range`.
    #[inline]
    pub fn test_young(&self, range: VaRange) -> bool {
        self.tlb.listeners.test_young(as_heard(range))
    }

    /// Adds `rss`, which may be negative, to the counts of resident pages.
    #[inline]
    pub fn count_rss(&self, rss: &Rss) {
        self.rss.count(rss);
    }

    /// Adds `pages`, which may be negative, to the count of one kind.
    #[inline]
    pub fn count_page(&self, kind: RssKind, pages: i64) {
        self.rss.count_page(kind, pages);
    }

    /// See [`PageTable::peek`].
    #[inline]
    pub fn peek(&self, at: VirtAddr) -> (Pte<P::Format>, Level) {
        self.table.peek(self.platform(), at)
    }

    /// See [`PageTable::pte_table`].
    #[inline]
    pub fn pte_table(&self, at: VirtAddr) -> Option<PteTable<'_, P::Format, P>> {
        self.table.pte_table(self.platform(), at)
    }

    /// See [`PageTable::lock_pte_table`].
    #[inline]
    pub fn lock_pte_table(&self, at: VirtAddr) -> Option<PteGuard<'_, P::Format, P>> {
        self.table.lock_pte_table(self.platform(), at)
    }

    /// See [`PageTable::pmd_table`].
    #[inline]
    pub fn pmd_table(&self, at: VirtAddr) -> Option<PmdTable<'_, P::Format, P>> {
        self.table.pmd_table(self.platform(), at)
    }

    /// See [`PageTable::pud_table`].
    #[inline]
    pub fn pud_table(&self, at: VirtAddr) -> Option<PudTable<'_, P::Format, P>> {
        self.table.pud_table(self.platform(), at)
    }

    /// See [`PageTable::pte_table_alloc`].
    #[inline]
    pub fn pte_table_alloc(&self, at: VirtAddr) -> Result<PteTable<'_, P::Format, P>, TableError> {
        self.table.pte_table_alloc(self.platform(), at)
    }

    /// See [`PageTable::pmd_table_alloc`].
    #[inline]
    pub fn pmd_table_alloc(&self, at: VirtAddr) -> Result<PmdTable<'_, P::Format, P>, TableError> {
        self.table.pmd_table_alloc(self.platform(), at)
    }

    /// See [`PageTable::pud_table_alloc`].
    #[inline]
    pub fn pud_table_alloc(&self, at: VirtAddr) -> Result<PudTable<'_, P::Format, P>, TableError> {
        self.table.pud_table_alloc(self.platform(), at)
    }

    /// See [`PageTable::lock_leaf`].
    #[inline]
    pub fn lock_leaf(&self, at: VirtAddr, level: Level) -> Option<LeafGuard<'_, P::Format, P>> {
        self.table.lock_leaf(self.platform(), at, level)
    }

    /// Splits the leaf of 2 MiB at `at` in `table`, if there is one. See [`EntryTable::split`].
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if there is no memory for the table.
    ///
    /// [`EntryTable::split`]: freehold_pagetable::EntryTable::split
    pub fn split_pmd_leaf(
        &self,
        table: PmdTable<'_, P::Format, P>,
        at: VirtAddr,
    ) -> Result<bool, OutOfTables> {
        table.split(&self.tlb, self.root(), at)
    }

    /// Splits the leaf of 1 GiB at `at` in `table`, if there is one. See [`EntryTable::split`].
    ///
    /// # Errors
    /// Fails with [`OutOfTables`] if there is no memory for the table.
    ///
    /// [`EntryTable::split`]: freehold_pagetable::EntryTable::split
    pub fn split_pud_leaf(
        &self,
        table: PudTable<'_, P::Format, P>,
        at: VirtAddr,
    ) -> Result<bool, OutOfTables> {
        table.split(&self.tlb, self.root(), at)
    }

    /// See [`PageTable::walk`].
    #[inline]
    pub fn walk<V: Visitor<P::Format, P>>(
        &self,
        range: VaRange,
        visitor: &mut V,
    ) -> Result<Walked, OutOfTables> {
        self.table.walk(self.platform(), &self.tlb, range, visitor)
    }

    /// See [`PageTable::count_tables`].
    pub fn count_tables(&self, range: UserRange, count: &mut TableCount) {
        self.table.count_tables(self.platform(), range.va(), count);
    }

    /// See [`PageTable::share`].
    pub fn share(&self, at: VirtAddr, table: PmdTable<'_, P::Format, P>) -> Result<bool, TableError> {
        self.table.share(self.platform(), at, table)
    }

    /// See [`PageTable::unshare`].
    pub fn unshare<const N: usize>(&self, at: VirtAddr, gather: &mut VmGather<'_, P, N>) -> bool {
        self.table.unshare(self.platform(), at, gather)
    }

    /// See [`PageTable::is_empty_range`].
    pub fn is_empty_range(&self, range: VaRange) -> bool {
        self.table.is_empty_range(self.platform(), range)
    }

    /// Unlinks the tables over `range` that lie inside `free`. See [`PageTable::unlink_tables`].
    ///
    /// # Safety
    ///
    /// The conditions of [`PageTable::unlink_tables`] hold. There is one difference: instead of the condition
    /// on the gather, `gather` must belong to this space.
    pub unsafe fn unlink_tables<const N: usize>(
        &self,
        range: VaRange,
        free: VaRange,
        gather: &mut VmGather<'_, P, N>,
    ) {
        // SAFETY: the caller promises the other conditions; the gather's tables come from this space's
        // platform.
        unsafe { self.table.unlink_tables(self.platform(), range, free.start(), free.end(), gather) };
    }
}

/// Returns the range as listeners hear it.
fn as_heard(range: VaRange) -> UserRange {
    UserRange::new(range.start().get(), range.end().get())
}

/// A visitor that stops at the first entry that is not empty.
struct AnyEntry;

impl<P: Platform> Visitor<P::Format, P> for AnyEntry {
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |_, _| ControlFlow::Break(()))
    }

    fn large(&mut self, _: LeafGuard<'_, P::Format, P>, _: VaRange) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
