//! Tests of tables in one thread: creating and filling them, splitting leaves, unlinking at exact borders,
//! the walker, and the walk of the hardware.
//!
//! Each test builds a space in a [`Memory`] of a few tables. The oracles are the number of live tables, the
//! walk of the hardware, and [`tear_down`], which finds a table that was not freed. `walker_model.rs` tests
//! random changes, and `kept.rs` tests splits with deposited tables. A new function of tables is tested here
//! first; a property of concurrent calls belongs in `loom.rs`.

use crate::common::{Ledger, Memory, NoTlb, tear_down, unmap};
use freehold_pagetable::{
    AbsentPolicy, Access, FaultCode, Format, Gather, Kind, LargeLeafPolicy, LeafGuard, Level, MarkerKind,
    NotCached, OutOfTables, PAGE_SIZE, PageTable, Pfn, Pte, PteFlags, PteGuard, TableError, VaRange,
    VirtAddr, Visitor, WalkFault, Walked, X86_4, X86_5, hw_walk,
};
use std::ops::ControlFlow;

/// An address in the middle of the span of an entry of every level.
const AT: u64 = (0x2a << 39) + (0x155 << 30) + (0x0aa << 21) + (0x133 << 12);
const RW: PteFlags = PteFlags::USER.union(PteFlags::WRITE);

fn map<F: Format>(tables: &PageTable<F, Memory>, memory: &Memory, at: u64, pfn: u64) {
    let at = VirtAddr::new(at);
    let table = tables.pte_table_alloc(memory, at).unwrap();
    table.lock().install(at, Pte::page(Pfn::new(pfn), RW)).unwrap();
}

fn zap<F: Format>(tables: &PageTable<F, Memory>, memory: &Memory, at: u64) {
    let at = VirtAddr::new(at);
    assert!(tables.pte_table(memory, at).unwrap().lock().take_plain(at, &mut NotCached).is_cached());
}

fn unlink<F: Format>(memory: &Memory, tables: &PageTable<F, Memory>, floor: u64, ceiling: u64) {
    let tlb = Ledger::new(memory);
    let mut gather = Gather::<_>::exclusive(&tlb);
    let range = VaRange::of(AT, AT + PAGE_SIZE);
    // SAFETY: there is one thread, and the only mapping was zapped.
    unsafe { tables.unlink_tables(memory, range, floor.into(), ceiling.into(), &mut gather) };
    gather.finish();
}

/// Tests a table of each level with bounds that just contain it, and with bounds that miss it by a page on
/// either side.
fn borders<F: Format>() {
    let below_root = F::LEVELS - 1;
    for number in 0..below_root {
        let span = VaRange::entry(AT.into(), Level::from_number(number + 1));
        let (start, end) = (span.start().get(), span.end().get());
        for (floor, ceiling, gone) in [
            (start, end, number + 1),
            (start + PAGE_SIZE, end, number),
            (start, end - PAGE_SIZE, number),
            (0, end, number + 1),
            (start, F::USER_END, number + 1),
            (0, F::USER_END, below_root),
        ] {
            let memory = Memory::new(16);
            let tables = PageTable::<F, _>::new(&memory).unwrap();
            map(&tables, &memory, AT, 7);
            assert_eq!(memory.live(), 1 + below_root);
            zap(&tables, &memory, AT);
            unlink(&memory, &tables, floor, ceiling);
            assert_eq!(memory.live(), 1 + below_root - gone, "level {number}: {floor:#x}..{ceiling:#x}");
            tear_down(tables, &memory, &Ledger::new(&memory));
        }
    }
}

#[test]
fn a_table_is_unlinked_if_all_of_it_is_inside_the_bounds() {
    borders::<X86_4>();
    borders::<X86_5>();
}

#[test]
fn tables_of_a_neighbour_stay() {
    for away in [PAGE_SIZE, 2 << 20, 1 << 30, 512 << 30] {
        let memory = Memory::new(16);
        let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
        map(&tables, &memory, AT, 7);
        map(&tables, &memory, AT + away, 8);
        zap(&tables, &memory, AT);
        unlink(&memory, &tables, 0, AT + away);
        let walk = hw_walk::<X86_4, _>(&memory, tables.root(), (AT + away).into(), Access::WRITE);
        assert_eq!(walk.unwrap().pfn, Pfn::new(8), "{away:#x} away");
        unmap(&tables, &memory, &Ledger::new(&memory), VaRange::of(0, 1 << 47));
        assert_eq!(memory.live(), 1);
    }
}

#[test]
#[should_panic(expected = "is not empty")]
fn c3_unlinking_a_table_with_a_page_panics() {
    let memory = Memory::new(16);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    map(&tables, &memory, AT, 7);
    map(&tables, &memory, AT + PAGE_SIZE, 8);
    zap(&tables, &memory, AT);
    unlink(&memory, &tables, 0, 1 << 47);
}

#[test]
fn no_memory_at_any_step_is_an_error() {
    for step in 0..3 {
        let memory = Memory::new(16);
        let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
        memory.fail_after(step);
        let failed = tables.pte_table_alloc(&memory, AT.into()).err();
        assert_eq!((failed, memory.live()), (Some(TableError::OutOfTables), 1 + step));
        map(&tables, &memory, AT, 1);
        assert_eq!(memory.live(), 4, "the tables of the failed attempt are used");
        unmap(&tables, &memory, &Ledger::new(&memory), VaRange::of(0, 1 << 47));
        tear_down(tables, &memory, &Ledger::new(&memory));
    }
    assert_eq!(PageTable::<X86_4, _>::new(&Memory::new(0)).err(), Some(OutOfTables));
}

/// The small leaves translate as the large leaf did.
#[test]
fn splitting_changes_no_translation() {
    let memory = Memory::new(600);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let at = VirtAddr::new(AT).span_down(Level::Pud);
    let flags = RW | PteFlags::DIRTY | PteFlags::SOFT_DIRTY;
    let leaf = Pte::leaf(Level::Pud, Pfn::new(3 << 18), flags).with_pkey(5);
    tables.pud_table_alloc(&memory, at).unwrap().lock().install(at, leaf).unwrap();
    assert_eq!(tables.pte_table_alloc(&memory, at).err(), Some(TableError::Huge(Level::Pud)));
    assert!(tables.pte_table(&memory, at).is_none());

    let probes = [0, 1, 511, 512, 0x2_0155, (1 << 18) - 1];
    let look = |level: Level| {
        for page in probes {
            let probe = at.checked_add(page * PAGE_SIZE + 123).unwrap();
            let seen = hw_walk::<X86_4, _>(&memory, tables.root(), probe, Access::WRITE).unwrap();
            assert_eq!((seen.pfn, seen.level, seen.pkey), (Pfn::new((3 << 18) + page), level, 5));
            let (pte, _) = tables.peek(&memory, probe);
            assert!(pte.flags().contains(flags | PteFlags::ACCESSED));
        }
    };
    look(Level::Pud);
    assert_eq!(tables.pud_table(&memory, at).unwrap().split(&NoTlb, tables.root(), at), Ok(true));
    assert_eq!(
        tables.pud_table(&memory, at).unwrap().split(&NoTlb, tables.root(), at),
        Ok(false),
        "the leaf is now a table"
    );
    look(Level::Pmd);
    for page in probes {
        let probe = at.checked_add(page * PAGE_SIZE).unwrap();
        tables.pmd_table(&memory, probe).unwrap().split(&NoTlb, tables.root(), probe).unwrap();
    }
    look(Level::Pte);
    memory.fail_after(0);
    let last = at.checked_add(100 << 21).unwrap();
    assert_eq!(tables.pmd_table(&memory, last).unwrap().split(&NoTlb, tables.root(), last), Err(OutOfTables));
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn the_hardware_walk_faults_as_the_manual_says() {
    use FaultCode as C;
    let none = PteFlags::empty();
    let pkru = |rights: u32| rights << (2 * 3);
    let privileged = Access { user: false, ..Access::READ };
    for (flags, access, expected) in [
        (PteFlags::USER, Access::READ, None),
        (PteFlags::USER, Access::WRITE, Some(C::PRESENT | C::WRITE | C::USER)),
        (PteFlags::USER, Access::EXEC, Some(C::PRESENT | C::FETCH | C::USER)),
        (PteFlags::USER | PteFlags::EXEC, Access::EXEC, None),
        (RW, Access::WRITE, None),
        (none, Access::READ, Some(C::PRESENT | C::USER)),
        (none, privileged, None),
        (RW | PteFlags::NO_ACCESS, Access::READ, Some(C::USER)),
        (RW | PteFlags::NO_ACCESS, Access::WRITE, Some(C::WRITE | C::USER)),
        (RW, Access { pkru: pkru(1), ..Access::READ }, Some(C::PRESENT | C::KEY | C::USER)),
        (RW, Access { pkru: pkru(2), ..Access::READ }, None),
        (RW, Access { pkru: pkru(2), ..Access::WRITE }, Some(C::PRESENT | C::WRITE | C::KEY | C::USER)),
        (RW | PteFlags::EXEC, Access { pkru: pkru(3), ..Access::EXEC }, None),
    ] {
        let memory = Memory::new(16);
        let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
        let at = VirtAddr::new(AT);
        let pte = Pte::page(Pfn::new(77), flags).with_pkey(3);
        tables.pte_table_alloc(&memory, at).unwrap().lock().install(at, pte).unwrap();
        let seen = hw_walk::<X86_4, _>(&memory, tables.root(), at, access);
        assert_eq!(seen.err(), expected.map(WalkFault::Page), "{flags:?} {access:?}");
        let left = tables.peek(&memory, at).0.flags();
        assert_eq!(
            left.contains(PteFlags::ACCESSED),
            expected.is_none(),
            "only a successful access sets the bit"
        );
        assert_eq!(left.contains(PteFlags::DIRTY), expected.is_none() && access.write);
    }
    let memory = Memory::new(1);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let walk = |at: u64| hw_walk::<X86_4, _>(&memory, tables.root(), at.into(), Access::READ).err();
    assert_eq!(walk((1 << 47) - 1), Some(WalkFault::Page(C::USER)));
    assert_eq!(walk(1 << 47), Some(WalkFault::NonCanonical));
    assert_eq!(walk(!((1 << 47) - 1)), Some(WalkFault::Page(C::USER)));
    assert_eq!(walk(!((1 << 47) - 1) - 1), Some(WalkFault::NonCanonical));
}

/// A visitor that records the parts of the range, and the pages with an entry.
struct Parts {
    seen: Vec<(u64, u64)>,
    pages: Vec<u64>,
}

impl Visitor<X86_4, Memory> for Parts {
    fn table(&mut self, table: PteGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        assert!(table.span().covers(range), "a part reaches beyond its table");
        self.seen.push((range.start().get(), range.end().get()));
        table.for_each(range, |at, _| {
            self.pages.push(at.get());
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, _: LeafGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        panic!("no large leaf exists");
    }
}

/// Hazard C-60: for any range, a walk does not run past the end of a table and visits each page exactly once.
#[test]
fn c60_a_walk_visits_each_page_of_any_range_once() {
    let memory = Memory::new(16);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let base = VirtAddr::new(AT).span_down(Level::Pmd).get();
    for page in 0..1024 {
        map(&tables, &memory, base + page * PAGE_SIZE, page);
    }
    let marks = [0, 1, 7, 8, 9, 63, 64, 65, 504, 510, 511, 512, 513, 519, 520, 521, 1016, 1023, 1024];
    for (i, first) in marks.into_iter().enumerate() {
        for end in &marks[i..] {
            let mut parts = Parts { seen: Vec::new(), pages: Vec::new() };
            let range = VaRange::of(base + first * PAGE_SIZE, base + end * PAGE_SIZE);
            assert_eq!(tables.walk(&memory, &NoTlb, range, &mut parts), Ok(Walked::All));
            let expected: Vec<u64> = (first..*end).map(|page| base + page * PAGE_SIZE).collect();
            assert_eq!(parts.pages, expected);
            assert!(parts.seen.len() <= 2);
        }
    }
    unmap(&tables, &memory, &Ledger::new(&memory), VaRange::of(0, 1 << 47));
    tear_down(tables, &memory, &Ledger::new(&memory));
}

/// Clears a part of a group, then the rest, then fills the group again. No entry is missed.
#[test]
fn partly_cleared_groups_are_still_visited() {
    let memory = Memory::new(16);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let base = VirtAddr::new(AT).span_down(Level::Pmd);
    let at = |page: u64| base.checked_add(page * PAGE_SIZE).unwrap();
    let range = |first, end| VaRange::new(at(first), at(end));
    let table = tables.pte_table_alloc(&memory, base).unwrap();
    for round in 0..3 {
        for page in 0..512 {
            table.lock().install(at(page), Pte::page(Pfn::new(page + round), RW)).unwrap();
        }
        let mut count = 0;
        let mut guard = table.lock();
        let mut clear = |range, every: u64| {
            guard.zap_each(range, &mut NotCached, |at, slot, _| {
                if (at.index(Level::Pte) as u64).is_multiple_of(every) {
                    slot.clear();
                    count += 1;
                }
            })
        };
        clear(range(3, 505), 1);
        clear(range(0, 512), 2);
        clear(range(0, 8), 1);
        clear(range(0, 512), 1);
        clear(range(0, 512), 1);
        assert_eq!(count, 512);
        drop(guard);
        assert!((0..512).all(|page| table.peek(at(page)).is_none()));
    }
    unmap(&tables, &memory, &Ledger::new(&memory), VaRange::of(0, 1 << 47));
    tear_down(tables, &memory, &Ledger::new(&memory));
}

/// A visitor for which the walk creates missing tables. Fills every page, and counts the pages it filled plus
/// 1,000 for each large leaf.
struct Making(usize);

impl Visitor<X86_4, Memory> for Making {
    const ABSENT: AbsentPolicy = AbsentPolicy::Make;
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Visit;

    fn table(&mut self, mut table: PteGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        for page in 0..range.len() / PAGE_SIZE {
            let at = range.start().checked_add(page * PAGE_SIZE).unwrap();
            table.install(at, Pte::page(Pfn::new(page), RW)).unwrap();
            self.0 += 1;
        }
        ControlFlow::Continue(())
    }

    fn large(&mut self, leaf: LeafGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        assert!(leaf.span().covers(range) && matches!(leaf.kind(), Kind::Leaf { .. }));
        self.0 += 1000;
        ControlFlow::Continue(())
    }
}

/// A visitor that records the bytes without a table and the kinds of large markers. If the flag is set, stops
/// the walk at the first table.
#[derive(Default)]
struct Holes(u64, Vec<MarkerKind>, bool);

impl Visitor<X86_4, Memory> for Holes {
    const ABSENT: AbsentPolicy = AbsentPolicy::Report;
    const LARGE: LargeLeafPolicy = LargeLeafPolicy::Split;

    fn table(&mut self, _: PteGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        if self.2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn large(&mut self, leaf: LeafGuard<'_, X86_4, Memory>, _: VaRange) -> ControlFlow<()> {
        let Kind::Marker { kind, .. } = leaf.kind() else { panic!("a leaf was not split") };
        self.1.push(kind);
        ControlFlow::Continue(())
    }

    fn absent(&mut self, range: VaRange) -> ControlFlow<()> {
        self.0 += range.len();
        ControlFlow::Continue(())
    }
}

#[test]
fn a_visitor_gets_the_entries_of_its_policies() {
    let memory = Memory::new(16);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let base = VirtAddr::new(AT).span_down(Level::Pud);
    let at = |bytes: u64| base.checked_add(bytes).unwrap();
    let leaf = Pte::leaf(Level::Pmd, Pfn::new(512), RW);
    tables.pmd_table_alloc(&memory, at(2 << 20)).unwrap().lock().install(at(2 << 20), leaf).unwrap();
    let range = VaRange::new(at(PAGE_SIZE), at((4 << 20) + 3 * PAGE_SIZE));
    let mut making = Making(0);
    assert_eq!(tables.walk(&memory, &NoTlb, range, &mut making), Ok(Walked::All));
    assert_eq!(making.0, 511 + 1000 + 3);

    let marker = Pte::marker(MarkerKind::Poison, 0);
    assert!(
        tables
            .pmd_table(&memory, at(6 << 20))
            .unwrap()
            .lock()
            .replace(at(6 << 20), marker, &mut NotCached)
            .is_none()
    );
    assert_eq!(tables.pte_table_alloc(&memory, at(6 << 20)).err(), Some(TableError::Marker(Level::Pmd)));
    let mut holes = Holes::default();
    let wide = VaRange::new(at(0), at(3 << 30));
    assert_eq!(tables.walk(&memory, &NoTlb, wide, &mut holes), Ok(Walked::All));
    assert_eq!(holes.0, (3 << 30) - 4 * (2 << 20), "all except three tables and a marker");
    assert_eq!(holes.1, [MarkerKind::Poison]);
    assert_eq!(tables.peek(&memory, at(2 << 20)).1, Level::Pte, "the leaf was not split");
    holes.2 = true;
    assert_eq!(
        tables.walk(&memory, &NoTlb, VaRange::new(at(3 << 20), at(8 << 20)), &mut holes),
        Ok(Walked::Stopped(at(3 << 20)))
    );

    let empty = |from, to| tables.is_empty_range(&memory, VaRange::new(at(from), at(to)));
    assert!(empty(8 << 20, 1 << 30) && empty(1 << 30, 3 << 30) && empty(8 << 20, (8 << 20) + PAGE_SIZE));
    assert!(!empty(6 << 20, 8 << 20) && !empty((6 << 20) - PAGE_SIZE, 6 << 20) && !empty(0, 3 << 30));
    unmap(&tables, &memory, &Ledger::new(&memory), VaRange::of(0, 1 << 47));
    tear_down(tables, &memory, &Ledger::new(&memory));
}

#[test]
fn two_tables_are_locked_in_one_order() {
    let memory = Memory::new(16);
    let tables = PageTable::<X86_4, _>::new(&memory).unwrap();
    let [one, two] = [AT, AT + (2 << 20)].map(|at| tables.pte_table_alloc(&memory, at.into()).unwrap());
    for (first, second) in [(one, two), (two, one)] {
        let (a, b) = first.lock_two(second);
        assert_eq!((a.span(), b.map(|guard| guard.span())), (first.span(), Some(second.span())));
    }
    let (a, b) = one.lock_two(one);
    assert_eq!((a.span(), b.is_none()), (one.span(), true));
    drop((a, b));
    assert!(one.lock_linked().is_some());
    let pmd = tables.pmd_table(&memory, AT.into()).unwrap();
    let link = pmd.lock().take(AT.into(), &mut NotCached);
    assert!(one.lock_linked().is_none(), "an unlinked table was locked");
    let Kind::Table { pfn } = link.kind(Level::Pmd) else { panic!("the entry did not point to a table") };
    // SAFETY: the table is empty and linked nowhere.
    unsafe { freehold_pagetable::TableMemory::free_table(&memory, pfn) };
    tear_down(tables, &memory, &Ledger::new(&memory));
}
