//! Tries every interleaving, under weak memory, of concurrent operations on tables. Tables have two entries
//! here. Run with `RUSTFLAGS="--cfg loom"`. `loom_reclaim.rs` and `loom_share.rs` test reclaimed and shared
//! tables.
//!
//! One property is tested in `hardware.rs` instead: the hardware's compare-and-swap does not undo a plain
//! store. If nothing else orders a store and a compare-and-swap, loom tries both orders. A compare-and-swap
//! that succeeds without seeing the store must precede the store, but loom also tries executions in which it
//! follows the store.
//!
//! In these tests the first thread stores, and a spawned thread reads. If the spawned thread stored and the
//! first thread read, loom 0.7 would not try the schedules in which the store comes before the load. Most
//! tests share a [`World`]: one space, and a TLB of one page ([`CachedTlb`]).
#![cfg(loom)]

mod common;

use common::{Memory, NoTlb};
use freehold_pagetable::{
    Aarch64, Access, FaultCode, Flush, Gather, GatherState, Kind, Level, NotCached, PageTable, Pfn, Pte,
    PteFlags, Tlb, UnmappedFrame, VaRange, VirtAddr, WalkFault, X86_4, hw_walk,
};
use freehold_sync::atomic::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;
/// An entry of these tables.
type P = Pte<X86_4>;

const PAGE: u64 = 4096;
const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);

/// One space: its tables, their memory, its gathers, and the TLB of the processor that runs it.
struct World {
    memory: Memory,
    tables: Tables,
    state: GatherState,
    tlb: CachedTlb,
}

impl World {
    fn new() -> Arc<Self> {
        let memory = Memory::new(6);
        let tables = Tables::new(&memory).unwrap();
        Arc::new(World { memory, tables, state: GatherState::new(), tlb: CachedTlb::new() })
    }

    fn with_page(flags: PteFlags) -> Arc<Self> {
        let world = World::new();
        let table = world.tables.pte_table_alloc(&world.memory, at(0)).unwrap();
        table.lock().install(at(0), P::page(Pfn::new(7), flags)).unwrap();
        world
    }

    fn walk(&self, access: Access) -> Result<Pfn, WalkFault> {
        hw_walk::<X86_4, _>(&self.memory, self.tables.root(), at(0), access).map(|seen| seen.pfn)
    }

    fn flags(&self) -> PteFlags {
        self.tables.peek(&self.memory, at(0)).0.flags()
    }
}

fn at(page: u64) -> VirtAddr {
    VirtAddr::new(page * PAGE)
}

/// Two threads install under one missing table. One new table is linked, the other is freed, and both pages
/// are mapped.
#[test]
fn two_installers_use_one_table() {
    loom::model(|| {
        let world = World::new();
        // One missing level is enough, because the same code fills every level.
        world.tables.pmd_table_alloc(&world.memory, at(0)).unwrap();
        let install = |world: &World, page: u64| {
            let table = world.tables.pte_table_alloc(&world.memory, at(page)).unwrap();
            table.lock().install(at(page), P::page(Pfn::new(page + 1), RW)).unwrap();
        };
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || install(&other, 1));
        install(&world, 0);
        thread.join().unwrap();
        for page in 0..2 {
            let seen = hw_walk::<X86_4, _>(&world.memory, world.tables.root(), at(page), Access::WRITE);
            assert_eq!(seen.unwrap().pfn, Pfn::new(page + 1));
        }
        assert_eq!(world.memory.live(), 4, "more than one table per level");
    });
}

/// A hardware walk that finds a page sees its contents. A walk that finds a table finds it empty, although
/// the table was used before.
fn reader_of_a_page_sees_its_contents(table_made_before: bool) {
    loom::model(move || {
        let world = World::new();
        if table_made_before {
            world.tables.pte_table_alloc(&world.memory, at(0)).unwrap();
        } else {
            world.tables.pmd_table_alloc(&world.memory, at(0)).unwrap();
        }
        let contents = Arc::new(AtomicU64::new(0));
        let (other, page) = (Arc::clone(&world), Arc::clone(&contents));
        let hardware = thread::spawn(move || match other.walk(Access::READ) {
            Ok(pfn) => assert_eq!((pfn, page.load(Ordering::Relaxed)), (Pfn::new(7), 42)),
            Err(fault) => {
                assert_eq!(fault, WalkFault::Page(FaultCode::USER), "the walk read an earlier entry")
            }
        });
        contents.store(42, Ordering::Relaxed);
        let table = world.tables.pte_table_alloc(&world.memory, at(0)).unwrap();
        table.lock().install(at(0), P::page(Pfn::new(7), RW | PteFlags::ACCESSED)).unwrap();
        hardware.join().unwrap();
    });
}

#[test]
fn a_reader_of_an_entry_in_an_old_table_sees_the_contents() {
    reader_of_a_page_sees_its_contents(true);
}

#[test]
fn a_reader_of_an_entry_in_a_new_table_sees_the_contents() {
    reader_of_a_page_sees_its_contents(false);
}

/// Two threads fill one slot. One thread installs its entry, and the install of the other thread fails.
#[test]
fn an_entry_is_installed_once() {
    loom::model(|| {
        let world = World::new();
        world.tables.pte_table_alloc(&world.memory, at(0)).unwrap();
        let install = |world: &World, pfn: u64| {
            let table = world.tables.pte_table(&world.memory, at(0)).unwrap();
            table.lock().install(at(0), P::page(Pfn::new(pfn), RW)).is_ok()
        };
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || install(&other, 1));
        let mine = install(&world, 2);
        assert!(mine != thread.join().unwrap());
    });
}

/// A large leaf and a table race for one slot of an upper table. The table is linked without a lock.
#[test]
fn one_of_a_large_leaf_and_a_table_is_installed() {
    loom::model(|| {
        let world = World::new();
        world.tables.pmd_table_alloc(&world.memory, at(0)).unwrap();
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let table = other.tables.pmd_table(&other.memory, at(0)).unwrap();
            table.lock().install(at(0), P::leaf(Level::Pmd, Pfn::new(8), RW)).is_ok()
        });
        let table = world.tables.pte_table_alloc(&world.memory, at(0)).is_ok();
        let leaf = thread.join().unwrap();
        assert!(leaf != table);
        assert_eq!(world.memory.live(), if table { 4 } else { 3 });
    });
}

/// Clearing an entry by an exchange keeps a dirty bit that was set before. The hardware cannot set the bit
/// afterwards.
#[test]
fn an_exchange_loses_no_dirty_bit() {
    loom::model(|| {
        let world = World::with_page(RW);
        let other = Arc::clone(&world);
        let hardware = thread::spawn(move || other.walk(Access::WRITE).is_ok());
        let table = world.tables.pte_table(&world.memory, at(0)).unwrap();
        let old = table.lock().take(at(0), &mut NotCached);
        assert_eq!(hardware.join().unwrap(), old.flags().contains(PteFlags::DIRTY));
    });
}

/// Hazard C-61: write protection in place loses neither the page nor a dirty bit, and no reader sees an empty
/// entry.
#[test]
fn c61_a_change_in_place_is_never_absent() {
    loom::model(|| {
        let world = World::with_page(RW);
        let (writer, reader) = (Arc::clone(&world), Arc::clone(&world));
        let hardware = thread::spawn(move || writer.walk(Access::WRITE).is_ok());
        let looker = thread::spawn(move || {
            assert!(matches!(
                reader.tables.peek(&reader.memory, at(0)).0.kind(Level::Pte),
                Kind::Leaf { .. }
            ));
        });
        let table = world.tables.pte_table(&world.memory, at(0)).unwrap();
        let strip = |pte: P| pte.with_flags(Level::Pte, pte.flags() - PteFlags::WRITE);
        table.lock().change(at(0), &mut NotCached, strip);
        let wrote = hardware.join().unwrap();
        looker.join().unwrap();
        assert!(!world.flags().contains(PteFlags::WRITE));
        assert_eq!(world.flags().contains(PteFlags::DIRTY), wrote);
    });
}

/// Hazard C-62: a large leaf is split while the hardware writes through it. The translation is always valid,
/// and the small leaves have the dirty bit.
#[test]
fn c62_a_split_keeps_the_translation_and_the_dirty_bit() {
    loom::model(|| {
        let world = World::new();
        let table = world.tables.pmd_table_alloc(&world.memory, at(0)).unwrap();
        table.lock().install(at(0), P::leaf(Level::Pmd, Pfn::new(8), RW)).unwrap();
        let other = Arc::clone(&world);
        let hardware = thread::spawn(move || other.walk(Access::WRITE));
        assert_eq!(
            world.tables.pmd_table(&world.memory, at(0)).unwrap().split(&NoTlb, world.tables.root(), at(0)),
            Ok(true)
        );
        assert_eq!(hardware.join().unwrap(), Ok(Pfn::new(8)));
        assert!(world.flags().contains(PteFlags::DIRTY));
    });
}

/// Two threads split one leaf. One new table is linked, and the other is freed empty.
#[test]
fn c62_two_splits_install_one_table() {
    loom::model(|| {
        let world = World::new();
        let table = world.tables.pmd_table_alloc(&world.memory, at(0)).unwrap();
        table.lock().install(at(0), P::leaf(Level::Pmd, Pfn::new(8), RW)).unwrap();
        let split = |world: &World| {
            world
                .tables
                .pmd_table(&world.memory, at(0))
                .unwrap()
                .split(&NoTlb, world.tables.root(), at(0))
                .unwrap()
        };
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || split(&other));
        let mine = split(&world);
        assert!(mine != thread.join().unwrap());
        assert_eq!(world.memory.live(), 4);
        assert_eq!(world.walk(Access::READ), Ok(Pfn::new(8)));
    });
}

/// The TLB of one processor for one page, and its walk cache for the table above. Each of the two is empty or
/// filled. A flush empties the walk cache only if the flush says that tables were freed, because hardware may
/// keep the walk cache during other flushes.
struct CachedTlb {
    leaf: AtomicU64,
    walk: AtomicU64,
}

impl CachedTlb {
    /// Returns filled caches, as if the page was used before the test.
    fn new() -> Self {
        CachedTlb { leaf: AtomicU64::new(1), walk: AtomicU64::new(1) }
    }

    fn stale(&self) -> (bool, bool) {
        (self.leaf.load(Ordering::Acquire) != 0, self.walk.load(Ordering::Acquire) != 0)
    }
}

impl Tlb for CachedTlb {
    fn flush(&self, what: &Flush) {
        self.leaf.store(0, Ordering::Release);
        if what.tables_freed {
            self.walk.store(0, Ordering::Release);
        }
    }

    fn release(&self, frames: &[UnmappedFrame]) {
        assert!(frames.is_empty() || !self.stale().0, "a frame was released while the TLB held it");
    }

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        assert!(tables.is_empty() || !self.stale().1, "a table was freed while the walk cache held it");
    }

    fn is_unwinding(&self) -> bool {
        std::thread::panicking()
    }
}

/// Clears the page if it is mapped, and checks that the TLB does not hold the page afterwards.
fn discard(world: &World) {
    let mut gather = Gather::<_, 2>::new(&world.tlb, &world.state);
    let table = world.tables.pte_table(&world.memory, at(0)).unwrap();
    table.lock().zap_each(VaRange::new(at(0), at(1)), &mut gather, |_, slot, gather| {
        gather.add_frame(slot.pte().pfn(), Level::Pte);
        slot.clear();
    });
    gather.finish();
    assert!(!world.tlb.stale().0, "the page was discarded, but is still in the TLB");
}

/// Hazard C-4, second half: a discard that finds the entry already cleared returns after a flush.
#[test]
fn c4_each_of_two_discards_returns_after_a_flush() {
    loom::model(|| {
        let world = World::with_page(RW);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || discard(&other));
        discard(&world);
        thread.join().unwrap();
    });
}

/// Hazard C-4 for a task that only reads, without the table's lock, and finds the entry cleared.
#[test]
fn c4_a_lockless_reader_of_a_cleared_entry_flushes() {
    loom::model(|| {
        let world = World::with_page(RW);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            if other.tables.pte_table(&other.memory, at(0)).unwrap().peek(at(0)).is_none() {
                Gather::<_, 2>::new(&other.tlb, &other.state).finish();
                assert!(!other.tlb.stale().0, "the entry was cleared, but is still in the TLB");
            }
        });
        discard(&world);
        thread.join().unwrap();
    });
}

/// Hazard C-4, first half: a table is unlinked while another gather finds its slot empty. When that gather
/// has finished, both caches are empty.
#[test]
fn c4_a_gather_that_sees_an_unlinked_table_flushes_all() {
    loom::model(|| {
        let world = World::with_page(RW);
        let other = Arc::clone(&world);
        let looker = thread::spawn(move || {
            // This gather writes nothing. So only the load of the slot orders this gather after the count of
            // the other gather.
            let mut gather = Gather::<_, 2>::new(&other.tlb, &other.state);
            let gone = other.tables.peek(&other.memory, at(0)).1 > Level::Pte;
            gather.finish();
            assert!(!gone || other.tlb.stale() == (false, false), "the table is unlinked, but still cached");
        });
        let mut gather = Gather::<_, 2>::new(&world.tlb, &world.state);
        let table = world.tables.pte_table(&world.memory, at(0)).unwrap();
        table.lock().take_plain(at(0), &mut gather);
        gather.add_frame(Pfn::new(7), Level::Pte);
        let (low, high) = (at(0), at(2));
        // SAFETY: the other thread only reads entries, and the memory of freed tables stays readable.
        unsafe {
            world.tables.unlink_tables(&world.memory, VaRange::new(low, at(1)), low, high, &mut gather)
        };
        gather.finish();
        drop(gather);
        looker.join().unwrap();
        assert_eq!(world.tlb.stale(), (false, false));
    });
}

/// On a format with break-before-make, a fault installs a huge leaf where a discard unlinks a table. No walk
/// cache holds the table once the leaf is live.
#[test]
fn large_leaf_is_live_after_the_flush_of_the_table_that_it_replaces() {
    type Tables = PageTable<Aarch64<2>, Memory>;
    loom::model(|| {
        let memory = Memory::new(6);
        let tables = Tables::new(&memory).unwrap();
        tables.pte_table_alloc(&memory, at(0)).unwrap();
        let world = Arc::new((memory, tables, GatherState::new(), CachedTlb::new()));
        let other = Arc::clone(&world);
        let fault = thread::spawn(move || {
            let (memory, tables, state, tlb) = &*other;
            let table = tables.pmd_table(memory, at(0)).unwrap();
            let leaf = Pte::leaf(Level::Pmd, Pfn::new(8), RW);
            let mut gather = Gather::<_, 1>::new(tlb, state);
            if table.lock().install_large(at(0), leaf, &mut gather) {
                assert!(!tlb.stale().1, "the leaf is live, and a walk cache holds the table");
            }
        });
        let (memory, tables, state, tlb) = &*world;
        let mut gather = Gather::<_, 2>::new(tlb, state);
        // SAFETY: the other thread uses only the upper table, and the memory of freed tables stays readable.
        unsafe { tables.unlink_tables(memory, VaRange::new(at(0), at(1)), at(0), at(2), &mut gather) };
        gather.finish();
        fault.join().unwrap();
    });
}

/// Two threads change a table. The bits of its groups stay correct.
#[test]
fn adjacent_entries_are_filled_and_cleared_concurrently() {
    loom::model(|| {
        let world = World::with_page(RW);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || discard(&other));
        let table = world.tables.pte_table(&world.memory, at(1)).unwrap();
        table.lock().install(at(1), P::page(Pfn::new(9), RW)).unwrap();
        thread.join().unwrap();
        let mut found = Vec::new();
        table.lock().zap_each(VaRange::new(at(0), at(2)), &mut NotCached, |_, slot, _| {
            found.push(slot.pte().pfn());
            slot.clear();
        });
        assert_eq!(found, [Pfn::new(9)]);
    });
}
