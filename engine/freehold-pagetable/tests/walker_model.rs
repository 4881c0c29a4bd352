//! Compares the walker with a model: random maps, unmaps and protections with leaves of all sizes, on both
//! sides of a border of every level.
//!
//! The model ([`model`]) keeps only the list of operations, and finds the state of an address by following
//! them. After each operation, the walk of the hardware and `peek` read the entries at its edges, and both
//! results are compared with the model. At the end, every mapped frame must have been released once. A new
//! operation becomes a variant of [`Op`], with its effect in `model` and in `World::apply`.

use crate::common::{Event, Ledger, Memory, NoTlb, Zap, tear_down, unmap};
use freehold_pagetable::{
    Access, FaultCode, Gather, Kind, LeafGuard, Level, MarkerKind, PAGE_SHIFT, PAGE_SIZE, PageTable, Pfn,
    Pte, PteFlags, PteGuard, VaRange, VirtAddr, Visitor, WalkFault, Walked, X86_4, hw_walk,
};
use proptest::prelude::*;
use std::ops::ControlFlow;

/// Two GiB on each side of the end of one entry of the root.
const BASE: u64 = (512 << 30) - (2 << 30);
const PAGES: u64 = 4 << (30 - PAGE_SHIFT);

/// A random operation on the tables and on the model.
#[derive(Clone, Debug)]
enum Op {
    Map { level: Level, range: VaRange, pfn: u64, write: bool },
    Guard { range: VaRange },
    Unmap { range: VaRange },
    Protect { range: VaRange, write: bool },
}

fn pages(first: u64, count: u64) -> VaRange {
    let first = first.min(PAGES - 1);
    let end = (first + count).min(PAGES);
    VaRange::of(BASE + first * PAGE_SIZE, BASE + end * PAGE_SIZE)
}

/// Returns page numbers near the borders of tables, where errors are most likely.
fn page() -> impl Strategy<Value = u64> {
    let near =
        |step: u64| (0..PAGES / step, 0u64..6).prop_map(move |(i, d)| (i * step + d).saturating_sub(3));
    prop_oneof![near(512), near(512 * 512), 1020u64..1030, 0..PAGES]
}

fn span() -> impl Strategy<Value = VaRange> {
    let count = prop_oneof![1u64..5, 500u64..530, 1u64..5000, 1u64..PAGES, Just(512), Just(512 * 512)];
    (page(), count).prop_map(|(first, count)| pages(first, count))
}

fn op() -> impl Strategy<Value = Op> {
    let map = |level: Level, most: u64| {
        (page(), 1..=most, any::<bool>(), 0u64..1 << 16).prop_map(move |(at, count, write, pfn)| {
            let first = at.min(PAGES - 1) & !(level.frames() - 1);
            let range = pages(first, count * level.frames());
            Op::Map { level, range, pfn: pfn * level.frames(), write }
        })
    };
    prop_oneof![
        3 => map(Level::Pte, 600),
        3 => map(Level::Pmd, 3),
        2 => map(Level::Pud, 2),
        1 => (page(), 1u64..20).prop_map(|(first, count)| Op::Guard { range: pages(first, count) }),
        2 => span().prop_map(|range| Op::Unmap { range }),
        3 => (span(), any::<bool>()).prop_map(|(range, write)| Op::Protect { range, write }),
    ]
}

/// The state of a page: what a walk must find there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Guard,
    Page { pfn: u64, write: bool },
}

/// Returns what is at `address` after `ops`, by following the history.
fn model(ops: &[Op], address: VirtAddr) -> Seen {
    ops.iter().fold(Seen::Nothing, |seen, op| match *op {
        Op::Map { range, pfn, write, .. } if range.contains(address) => {
            Seen::Page { pfn: pfn + ((address.get() - range.start().get()) >> PAGE_SHIFT), write }
        }
        Op::Guard { range } if range.contains(address) => Seen::Guard,
        Op::Unmap { range } if range.contains(address) => Seen::Nothing,
        Op::Protect { range, write } if range.contains(address) => match seen {
            Seen::Page { pfn, .. } => Seen::Page { pfn, write },
            other => other,
        },
        _ => seen,
    })
}

/// A visitor that gives every leaf the right to write, or removes this right if the flag is false.
struct Protect<'g, 'a, 'm>(&'g mut Gather<'a, Ledger<'m>>, bool);

impl Protect<'_, '_, '_> {
    fn apply(pte: Pte<X86_4>, level: Level, write: bool) -> Pte<X86_4> {
        match pte.kind(level) {
            Kind::Leaf { mut flags, .. } => {
                flags.set(PteFlags::WRITE, write);
                pte.with_flags(level, flags)
            }
            Kind::Marker { .. } => pte,
            Kind::None | Kind::Table { .. } => panic!("shown {pte:?}"),
        }
    }
}

impl Visitor<X86_4, Memory> for Protect<'_, '_, '_> {
    fn table(&mut self, mut table: PteGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        let write = self.1;
        table.change_each(range, self.0, |_, pte| Self::apply(pte, Level::Pte, write));
        ControlFlow::Continue(())
    }

    fn large(&mut self, mut leaf: LeafGuard<'_, X86_4, Memory>, range: VaRange) -> ControlFlow<()> {
        assert_eq!(leaf.span(), range, "a leaf that reaches out of the range was not split");
        let (level, write) = (leaf.level(), self.1);
        leaf.change(self.0, |pte| Self::apply(pte, level, write));
        ControlFlow::Continue(())
    }
}

/// The tables under test, with the numbers of mapped and of released small pages.
struct World<'m> {
    memory: &'m Memory,
    tlb: Ledger<'m>,
    tables: PageTable<X86_4, Memory>,
    mapped: u64,
    released: u64,
}

impl World<'_> {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Map { level, range, pfn, write } => self.map(level, range, pfn, write),
            Op::Guard { range } => {
                unmap(&self.tables, self.memory, &self.tlb, range);
                self.each_page(range, |table, at, _| table.set(at, Pte::marker(MarkerKind::Guard, 0)));
            }
            Op::Unmap { range } => unmap(&self.tables, self.memory, &self.tlb, range),
            Op::Protect { range, write } => {
                let mut gather = Gather::exclusive(&self.tlb);
                let walked = self.tables.walk(self.memory, &NoTlb, range, &mut Protect(&mut gather, write));
                assert_eq!(walked, Ok(Walked::All));
                gather.finish();
            }
        }
        self.count_released();
    }

    fn map(&mut self, level: Level, range: VaRange, pfn: u64, write: bool) {
        unmap(&self.tables, self.memory, &self.tlb, range);
        let mut flags = PteFlags::USER;
        flags.set(PteFlags::WRITE, write);
        self.mapped += range.len() / PAGE_SIZE;
        if level == Level::Pte {
            return self.each_page(range, |table, at, n| {
                assert_eq!(table.install(at, Pte::page(Pfn::new(pfn + n), flags)), Ok(()));
            });
        }
        for n in 0..range.len() / level.span() {
            let at = range.start().checked_add(n * level.span()).unwrap();
            let leaf = Pte::leaf(level, Pfn::new(pfn + n * level.frames()), flags);
            let installed = if level == Level::Pmd {
                self.tables.pmd_table_alloc(self.memory, at).unwrap().lock().install(at, leaf)
            } else {
                self.tables.pud_table_alloc(self.memory, at).unwrap().lock().install(at, leaf)
            };
            assert_eq!(installed, Ok(()));
        }
    }

    fn each_page(&self, range: VaRange, mut f: impl FnMut(&mut PteGuard<'_, X86_4, Memory>, VirtAddr, u64)) {
        for n in 0..range.len() / PAGE_SIZE {
            let at = range.start().checked_add(n * PAGE_SIZE).unwrap();
            self.split_at(at);
            f(&mut self.tables.pte_table_alloc(self.memory, at).unwrap().lock(), at, n);
        }
    }

    fn split_at(&self, at: VirtAddr) {
        if let Some(table) = self.tables.pud_table(self.memory, at) {
            table.split(&NoTlb, self.tables.root(), at).unwrap();
        }
        if let Some(table) = self.tables.pmd_table(self.memory, at) {
            table.split(&NoTlb, self.tables.root(), at).unwrap();
        }
    }

    fn count_released(&mut self) {
        for event in self.tlb.take() {
            if let Event::Release(frames) = event {
                self.released += frames.iter().map(|frame| frame.level().frames()).sum::<u64>();
            }
        }
    }

    /// Compares the results of the hardware and of software for one page with the result of the model.
    fn compare(&self, ops: &[Op], at: VirtAddr) {
        let fault = |code: FaultCode| Err(WalkFault::Page(code | FaultCode::USER));
        let read = hw_walk::<X86_4, _>(self.memory, self.tables.root(), at, Access::READ).map(|t| t.pfn);
        let write = hw_walk::<X86_4, _>(self.memory, self.tables.root(), at, Access::WRITE).map(|t| t.pfn);
        let (pte, level) = self.tables.peek(self.memory, at);
        match model(ops, at) {
            Seen::Page { pfn, write: may } => {
                assert_eq!(read, Ok(Pfn::new(pfn)), "reading {at:?}");
                let expected =
                    if may { Ok(Pfn::new(pfn)) } else { fault(FaultCode::PRESENT | FaultCode::WRITE) };
                assert_eq!(write, expected, "writing {at:?}");
                assert_eq!(pte.pfn().add(at.frame_in_leaf(level)), Pfn::new(pfn));
                assert!(
                    pte.flags().contains(PteFlags::ACCESSED),
                    "the hardware did not set the accessed bit"
                );
                assert!(!may || pte.flags().contains(PteFlags::DIRTY));
            }
            other => {
                assert_eq!(read, fault(FaultCode::empty()), "reading {at:?}");
                assert_eq!(write, fault(FaultCode::WRITE), "writing {at:?}");
                let guard = Kind::Marker { kind: MarkerKind::Guard, payload: 0 };
                let kind = if other == Seen::Guard { guard } else { Kind::None };
                assert_eq!(pte.kind(level), kind);
            }
        }
    }
}

fn edges(op: &Op) -> [VirtAddr; 4] {
    let (Op::Map { range, .. } | Op::Guard { range } | Op::Unmap { range } | Op::Protect { range, .. }) = op;
    let (start, end) = (range.start().get(), range.end().get());
    [start - 1, start, end - 1, end].map(VirtAddr::new)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn tables_agree_with_the_model_after_random_changes(
        ops in prop::collection::vec(op(), 1..24),
        probes in prop::collection::vec(0..PAGES * PAGE_SIZE, 32),
    ) {
        let memory = Memory::new(8192);
        let tables = PageTable::new(&memory).unwrap();
        let mut world = World { memory: &memory, tlb: Ledger::new(&memory), tables, mapped: 0, released: 0 };
        for done in 1..=ops.len() {
            world.apply(&ops[done - 1]);
            for at in edges(&ops[done - 1]) {
                world.compare(&ops[..done], at);
            }
        }
        for at in ops.iter().flat_map(edges).chain(probes.iter().map(|p| VirtAddr::new(BASE + p))) {
            world.compare(&ops, at);
        }
        let mut gather = Gather::exclusive(&world.tlb);
        let everything = VaRange::of(0, 1 << 47);
        prop_assert_eq!(world.tables.walk(&memory, &NoTlb, everything, &mut Zap(&mut gather)), Ok(Walked::All));
        gather.finish();
        drop(gather);
        world.count_released();
        prop_assert_eq!(world.released, world.mapped, "every frame is released once");
        tear_down(world.tables, &memory, &world.tlb);
    }
}
