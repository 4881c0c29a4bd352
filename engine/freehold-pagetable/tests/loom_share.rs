//! Every interleaving, under weak memory, of tables that two spaces share. Tables have two entries here. Run
//! with `RUSTFLAGS="--cfg loom"`.
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

type Tables = PageTable<X86_4, Memory>;

const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);
const PAGE: Pfn = Pfn::new(0);

/// Two spaces, and whether a processor is walking the tables of the first. A flush of that space waits for
/// it, if it says that tables were freed.
struct World {
    memory: Memory,
    spaces: [Tables; 2],
    walking: AtomicBool,
}

fn at() -> VirtAddr {
    VirtAddr::new(0)
}

impl World {
    /// The second space has a huge page; the first shares its table, if asked for.
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

/// What the processors know that run one of the spaces.
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
            // SAFETY: the gather was given the table when it was unlinked, and flushed.
            unsafe { freehold_pagetable::TableMemory::free_table(&self.0.memory, *table) }
        }
    }

    fn is_unwinding(&self) -> bool {
        std::thread::panicking()
    }
}

/// Two faults of one space share one table: it is counted once, whichever is faster.
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

/// C-13: a processor of the space that leaves is still in the table when the other space, alone now, frees
/// it.
#[test]
fn c13_unsharing_waits_for_walkers() {
    loom::model(|| {
        let world = World::new(true);
        let other = Arc::clone(&world);
        let walker = thread::spawn(move || {
            // Within what the flush waits for: from the first entry to the last.
            let seen = other.walk(0);
            let absent = Err(WalkFault::Page(FaultCode::USER));
            assert!(seen == Ok(PAGE) || seen == absent, "in a table that was freed: {seen:?}");
            other.walking.store(false, Ordering::Release);
        });
        let tlb = SpaceTlb(&world, 0);
        let mut gather = Gather::<_, 2>::exclusive(&tlb);
        assert!(world.spaces[0].unshare(&world.memory, at(), &mut gather));
        gather.finish();
        drop(gather);
        // The other space's munmap, which has no business with the processors of the first.
        let tlb = SpaceTlb(&world, 1);
        let mut gather = Gather::<_, 2>::exclusive(&tlb);
        world.spaces[1].pmd_table(&world.memory, at()).unwrap().lock().take(at(), &mut NotCached);
        let span = VaRange::of(0, Level::Pud.span());
        // SAFETY: nobody maps anything here any more, and the first space has let go of the table.
        unsafe {
            world.spaces[1].unlink_tables(&world.memory, span, span.start(), span.end(), &mut gather);
        }
        gather.finish();
        drop(gather);
        walker.join().unwrap();
    });
}
