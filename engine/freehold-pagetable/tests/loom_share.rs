//! Tries every interleaving, under weak memory, of operations on tables that two spaces share
//! (`src/share.rs`). Tables have two entries here. Run with `RUSTFLAGS="--cfg loom"`.
//!
//! A [`World`] has two spaces; the second owns a table with a huge page. A walk must never read an entry of a
//! freed table, which [`Memory`] poisons. `shared.rs` tests the same functions in one thread. A flush of the
//! first space waits while `World::walking` is set.
#![cfg(loom)]

mod common;

use common::Memory;
use freehold_pagetable::{
    Access, FaultCode, Flush, Gather, Level, NotCached, PageTable, Pfn, Pte, PteFlags, Tlb, UnmappedFrame,
    VaRange, VirtAddr, WalkFault, X86_4, hw_walk,
};
use freehold_sync::atomic::{AtomicBool, Ordering};
use loom::sync::Arc;
use loom::thread;

/// The page tables under test.
type Tables = PageTable<X86_4, Memory>;

const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);
const PAGE: Pfn = Pfn::new(0);

/// Two spaces, and a flag that is set while a processor walks the tables of the first space. A flush of the
/// first space with `tables_freed` waits until the flag is clear.
struct World {
    memory: Memory,
    spaces: [Tables; 2],
    walking: AtomicBool,
}

fn at() -> VirtAddr {
    VirtAddr::new(0)
}

impl World {
    /// Returns a world in which the second space has a huge page. If `shared` is set, the first space shares
    /// the table of the second space.
    fn new(shared: bool) -> Arc<Self> {
        let memory = Memory::new(8);
        let spaces = [Tables::new(&memory).unwrap(), Tables::new(&memory).unwrap()];
        let table = spaces[1].pmd_table_alloc(&memory, at()).unwrap();
        table.lock().install(at(), Pte::leaf(Level::Pmd, PAGE, RW | PteFlags::ACCESSED)).unwrap();
        if shared {
            assert_eq!(spaces[0].share(&memory, at(), table), Ok(true));
        }
        Arc::new(World { memory, spaces, walking: AtomicBool::new(shared) })
    }

    fn walk(&self, space: usize) -> Result<Pfn, WalkFault> {
        hw_walk::<X86_4, _>(&self.memory, self.spaces[space].root(), at(), Access::READ).map(|seen| seen.pfn)
    }
}

/// The TLBs of the processors that run one of the spaces.
struct SpaceTlb<'w>(&'w World, usize);

impl Tlb for SpaceTlb<'_> {
    fn flush(&self, what: &Flush) {
        while self.1 == 0 && what.tables_freed && self.0.walking.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn release(&self, _frames: &[UnmappedFrame]) {}

    unsafe fn free_tables(&self, tables: &[Pfn]) {
        for table in tables {
            // SAFETY: the gather got the table when it was unlinked, and has flushed.
            unsafe { freehold_pagetable::TableMemory::free_table(&self.0.memory, *table) }
        }
    }

    fn is_unwinding(&self) -> bool {
        std::thread::panicking()
    }
}

/// Two faults of one space share one table. The table is counted once, in any order of the two faults.
#[test]
fn two_sharers_of_a_table_are_counted_once() {
    loom::model(|| {
        let world = World::new(false);
        let share = |world: &World| {
            let table = world.spaces[1].pmd_table(&world.memory, at()).unwrap();
            assert_eq!(world.spaces[0].share(&world.memory, at(), table), Ok(true));
            assert!(table.is_shared());
        };
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || share(&other));
        share(&world);
        thread.join().unwrap();
        assert_eq!(world.walk(0), Ok(PAGE));
        let tlb = SpaceTlb(&world, 0);
        let mut gather = Gather::<_, 2>::exclusive(&tlb);
        assert!(world.spaces[0].unshare(&world.memory, at(), &mut gather));
        assert!(!world.spaces[1].unshare(&world.memory, at(), &mut gather));
        gather.finish();
    });
}

/// C-13: a processor of the leaving space is still in the table when the other space, now the only user of
/// the table, frees the table.
#[test]
fn c13_unsharing_waits_for_walkers() {
    loom::model(|| {
        let world = World::new(true);
        let other = Arc::clone(&world);
        let walker = thread::spawn(move || {
            // The flag is set from the first entry of the walk to the last, so the flush waits for the walk.
            let seen = other.walk(0);
            let absent = Err(WalkFault::Page(FaultCode::USER));
            assert!(seen == Ok(PAGE) || seen == absent, "an entry of a freed table: {seen:?}");
            other.walking.store(false, Ordering::Release);
        });
        let tlb = SpaceTlb(&world, 0);
        let mut gather = Gather::<_, 2>::exclusive(&tlb);
        assert!(world.spaces[0].unshare(&world.memory, at(), &mut gather));
        gather.finish();
        drop(gather);
        // The munmap of the other space does not wait for processors of the first space.
        let tlb = SpaceTlb(&world, 1);
        let mut gather = Gather::<_, 2>::exclusive(&tlb);
        world.spaces[1].pmd_table(&world.memory, at()).unwrap().lock().take(at(), &mut NotCached);
        let span = VaRange::of(0, Level::Pud.span());
        // SAFETY: no task maps anything here any more, and the first space does not use the table.
        unsafe {
            world.spaces[1].unlink_tables(&world.memory, span, span.start(), span.end(), &mut gather);
        }
        gather.finish();
        drop(gather);
        walker.join().unwrap();
    });
}
