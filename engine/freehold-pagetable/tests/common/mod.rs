//! Memory for tables in an ordinary process, and a `Tlb` that records its calls.
//!
//! A test creates a [`Memory`] with a few tables, builds a page table in it, and passes a [`Ledger`] to
//! gathers to see each flush and each freed table. [`tear_down`] checks at the end that no table is left. A
//! free table has poisoned entries, so a test notices a walk that still reads it. `host.rs` has the services
//! of a host that page tables need.
#![allow(dead_code)] // each test file uses only some of the items

mod host;

use freehold_pagetable::{
    ENTRIES, Flush, Format, Gather, Kind, LeafGuard, Level, OutOfTables, PageTable, Pfn, PteGuard, Table,
    TableMemory, TableMeta, Tlb, UnmappedFrame, VaRange, Visitor, Walked,
};
use freehold_sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::Mutex;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
#[cfg(not(loom))]
use std::sync::Mutex;

/// One table and its record.
struct Page {
    table: Table,
    meta: TableMeta,
}

/// A memory with a fixed number of tables, numbered from [`Memory::BASE`].
pub struct Memory {
    pages: Vec<Page>,
    books: Mutex<Books>,
}

/// The state of the allocator. Guarded by the lock in [`Memory`].
struct Books {
    free: Vec<Pfn>,
    live: BTreeSet<Pfn>,
    /// Number of successful allocations before one fails. `None` if no failure is requested.
    countdown: Option<usize>,
    published: Vec<Published>,
}

/// A call of `publish_code`, and the entries of all tables at that time.
pub struct Published {
    pub frames: (Pfn, u64),
    pub entries: BTreeSet<u64>,
}

impl Memory {
    /// The number of the first table, which is far from every frame that the tests map.
    pub const BASE: u64 = 1 << 30;

    /// The value of the entries of a free table. A walk that still reads such an entry sees a page that no
    /// test mapped.
    pub const POISON: u64 = u64::MAX;

    /// Returns a memory with room for `tables` tables.
    pub fn new(tables: usize) -> Self {
        let pages: Vec<_> =
            (0..tables).map(|_| Page { table: Table::new(), meta: TableMeta::new() }).collect();
        pages.iter().for_each(|page| fill(&page.table, Self::POISON));
        let free = (0..tables as u64).rev().map(|i| Pfn::new(Self::BASE + i)).collect();
        Memory {
            pages,
            books: Mutex::new(Books { free, live: BTreeSet::new(), countdown: None, published: Vec::new() }),
        }
    }

    /// Returns the number of tables that are allocated.
    pub fn live(&self) -> usize {
        self.books.lock().unwrap().live.len()
    }

    /// Makes one allocation fail, after `allocations` successful allocations.
    pub fn fail_after(&self, allocations: usize) {
        self.books.lock().unwrap().countdown = Some(allocations);
    }

    /// Returns the calls of `publish_code` since the last call of this function.
    pub fn take_published(&self) -> Vec<Published> {
        std::mem::take(&mut self.books.lock().unwrap().published)
    }

    fn page(&self, pfn: Pfn) -> &Page {
        &self.pages[(pfn.get() - Self::BASE) as usize]
    }
}

fn fill(table: &Table, raw: u64) {
    (0..ENTRIES).for_each(|index| table.entry(index).store(raw, Ordering::Relaxed));
}

// SAFETY: a table is not handed out again before it is freed. `free_table` checks that the table is empty.
// The vector of pages never changes.
unsafe impl TableMemory for Memory {
    fn alloc_table(&self, _: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let mut books = self.books.lock().unwrap();
        if let Some(left) = books.countdown {
            books.countdown = left.checked_sub(1);
            if left == 0 {
                return Err(OutOfTables);
            }
        }
        let pfn = books.free.pop().ok_or(OutOfTables)?;
        books.live.insert(pfn);
        fill(&self.page(pfn).table, 0);
        Ok(pfn)
    }

    unsafe fn free_table(&self, pfn: Pfn) {
        assert!(self.page(pfn).table.is_zero(), "a freed table is not empty");
        self.page(pfn).meta.reset();
        fill(&self.page(pfn).table, Self::POISON);
        let mut books = self.books.lock().unwrap();
        assert!(books.live.remove(&pfn), "{pfn:?} was freed twice");
        books.free.push(pfn);
    }

    fn table(&self, pfn: Pfn) -> &Table {
        &self.page(pfn).table
    }

    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        &self.page(pfn).meta
    }

    fn publish_code(&self, first: Pfn, frames: u64) {
        let mut books = self.books.lock().unwrap();
        let tables = books.live.iter().map(|pfn| self.table(*pfn));
        let words = tables.flat_map(|table| (0..ENTRIES).map(|index| table.entry(index)));
        let entries = words.map(|entry| entry.load(Ordering::Relaxed)).collect();
        books.published.push(Published { frames: (first, frames), entries });
    }
}

/// A call that a [`Ledger`] recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Flush(Flush),
    Release(Vec<UnmappedFrame>),
    Free(Vec<Pfn>),
}

/// A `Tlb` that records its calls and frees tables.
pub struct Ledger<'m> {
    memory: &'m Memory,
    events: RefCell<Vec<Event>>,
}

impl<'m> Ledger<'m> {
    pub fn new(memory: &'m Memory) -> Self {
        Ledger { memory, events: RefCell::default() }
    }

    /// Returns the calls since the last `take`.
    pub fn take(&self) -> Vec<Event> {
        self.events.take()
    }

    fn push(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }
}

/// The TLBs of splits on a format without break-before-make. A split there flushes nothing.
pub struct NoTlb;

impl Tlb for NoTlb {
    fn flush(&self, what: &Flush) {
        panic!("a split flushes {what:?}");
    }

    fn release(&self, frames: &[UnmappedFrame]) {
        panic!("a split releases {frames:?}");
    }

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        panic!("a split frees {tables:?}");
    }
}

impl Tlb for Ledger<'_> {
    fn is_unwinding(&self) -> bool {
        std::thread::panicking()
    }

    fn flush(&self, what: &Flush) {
        self.push(Event::Flush(*what));
    }

    fn release(&self, frames: &[UnmappedFrame]) {
        self.push(Event::Release(frames.to_vec()));
    }

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        self.push(Event::Free(tables.to_vec()));
        for table in tables {
            // SAFETY: the gather got the table when it was unlinked, and has flushed.
            unsafe { self.memory.free_table(*table) }
        }
    }
}

/// Clears every entry and adds the frames to the gather.
pub struct Zap<'g, 'a, T: Tlb>(pub &'g mut Gather<'a, T>);

impl<F: Format, T: Tlb> Visitor<F, Memory> for Zap<'_, '_, T> {
    fn unlocked(&mut self, _: VaRange) {
        self.0.make_capacity(ENTRIES);
    }

    fn table(&mut self, mut table: PteGuard<'_, F, Memory>, range: VaRange) -> ControlFlow<()> {
        table.zap_each(range, self.0, |_, slot, gather| {
            if let Kind::Leaf { pfn, .. } = slot.pte().kind(Level::Pte) {
                gather.add_frame(pfn, Level::Pte);
            }
            slot.clear();
        });
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, F, Memory>, _: VaRange) -> ControlFlow<()> {
        let level = leaf.level();
        if let Kind::Leaf { pfn, .. } = leaf.take(self.0).kind(level) {
            self.0.add_frame(pfn, level);
        }
        ControlFlow::Continue(())
    }
}

/// Zaps `range` and unlinks the tables whose span lies within it.
pub fn unmap<F: Format>(tables: &PageTable<F, Memory>, memory: &Memory, tlb: &Ledger<'_>, range: VaRange) {
    let mut gather = Gather::exclusive(tlb);
    assert_eq!(tables.walk(memory, &NoTlb, range, &mut Zap(&mut gather)), Ok(Walked::All));
    // SAFETY: there is one thread. The whole range was just zapped, so nothing in it is in use.
    unsafe { tables.unlink_tables(memory, range, range.start(), range.end(), &mut gather) };
    gather.finish();
}

/// Frees the tables of a space whose entries are all empty. Checks that no table is left.
pub fn tear_down<F: Format>(tables: PageTable<F, Memory>, memory: &Memory, tlb: &Ledger<'_>) {
    let all = VaRange::of(0, F::USER_END);
    unmap(&tables, memory, tlb, all);
    assert_eq!(memory.live(), 1, "only the root is left");
    // SAFETY: there is one thread, and the space is not used again.
    unsafe { tables.destroy(memory) };
    assert_eq!(memory.live(), 0);
}
