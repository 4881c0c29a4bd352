//! Tests of the work of a gather and of the order of this work, with one gather and with overlapping gathers
//! (hazards C-4 and C-53).
//!
//! The tests run on one thread and interleave two gathers by hand. A ledger (`common/mod.rs`) records each
//! flush, each released frame and each freed table in order; `loom.rs` tries concurrent gathers. A new test
//! compares the events of [`Ledger::take`] with a list.

use crate::common::{Event, Ledger, Memory, NoTlb, Zap};
use freehold_pagetable::{
    Flush, Gather, GatherState, Level, Levels, NotCached, PageTable, Pfn, Pte, PteFlags, StaleTranslations,
    UnmappedFrame, VaRange, VirtAddr, Walked, X86_4,
};

const PAGE: u64 = 4096;
const AT: u64 = 0x7000_0000_0000 - (1 << 30);
const EVERYTHING: Flush = Flush::EVERYTHING;
const PTE: Levels = Levels::of(Level::Pte);

/// A flush of small pages, and of their tables if `tables_freed` is true.
fn exact(start: u64, end: u64, tables_freed: bool) -> Event {
    let levels = if tables_freed { PTE.union(Levels::of(Level::Pmd)) } else { PTE };
    Event::Flush(Flush { start: start.into(), end: end.into(), all: false, levels, tables_freed })
}

fn page(n: u64) -> UnmappedFrame {
    UnmappedFrame::new(Pfn::new(n), Level::Pte)
}

/// Returns true if a gather is counted. To find out, finishes a gather that has changed nothing: such a
/// gather flushes only if another gather is counted.
fn is_pending(memory: &Memory, state: &GatherState) -> bool {
    let tlb = Ledger::new(memory);
    Gather::<_>::new(&tlb, state).finish();
    !tlb.take().is_empty()
}

/// Returns a space with `count` pages at `AT`.
fn space(memory: &Memory, count: u64) -> PageTable<X86_4, Memory> {
    let tables = PageTable::new(memory).unwrap();
    for n in 0..count {
        let at = VirtAddr::new(AT + n * PAGE);
        let table = tables.pte_table_alloc(memory, at).unwrap();
        table.lock().install(at, Pte::page(Pfn::new(n), PteFlags::USER)).unwrap();
    }
    tables
}

#[test]
fn a_gather_flushes_then_releases_then_frees() {
    let memory = Memory::new(8);
    let tlb = Ledger::new(&memory);
    let state = GatherState::new();
    let tables = space(&memory, 3);
    let range = VaRange::of(AT, AT + 3 * PAGE);
    let mut gather = Gather::<_>::new(&tlb, &state);
    assert_eq!(tables.walk(&memory, &NoTlb, range, &mut Zap(&mut gather)), Ok(Walked::All));
    assert!(is_pending(&memory, &state));
    let (low, high) = (VirtAddr::new(AT), VirtAddr::new(AT + (2 << 20)));
    // SAFETY: there is one thread, and the range was zapped.
    unsafe { tables.unlink_tables(&memory, range, low, high, &mut gather) };
    assert_eq!(tlb.take(), [], "the gather did work before the end");
    gather.finish();
    assert!(!is_pending(&memory, &state));
    let events = tlb.take();
    assert_eq!(events[0], exact(AT, AT + (2 << 20), true), "the whole span of the table (hazard C-59)");
    assert_eq!(events[1], Event::Release(vec![page(0), page(1), page(2)]));
    assert!(matches!(&events[2], Event::Free(tables) if tables.len() == 1));
    assert_eq!((events.len(), memory.live()), (3, 3));
}

#[test]
fn an_empty_range_makes_no_flush() {
    let memory = Memory::new(8);
    let tlb = Ledger::new(&memory);
    let state = GatherState::new();
    let tables = space(&memory, 1);
    let mut gather = Gather::<_>::new(&tlb, &state);
    // The first range has a table without entries there, and the second has no table.
    for range in [VaRange::of(AT + 8 * PAGE, AT + 64 * PAGE), VaRange::of(0x1000, 0x4000_0000)] {
        assert_eq!(tables.walk(&memory, &NoTlb, range, &mut Zap(&mut gather)), Ok(Walked::All));
    }
    assert!(!is_pending(&memory, &state), "the shared count was changed");
    gather.finish();
    assert_eq!(tlb.take(), []);
}

/// A marker or an entry without access was never in a TLB.
#[test]
fn entries_that_hardware_cannot_cache_are_not_flushed() {
    let memory = Memory::new(8);
    let tlb = Ledger::new(&memory);
    let tables = space(&memory, 0);
    let at = VirtAddr::new(AT);
    let table = tables.pte_table_alloc(&memory, at).unwrap();
    table.lock().set(at, Pte::page(Pfn::new(9), PteFlags::USER | PteFlags::NO_ACCESS));
    let mut gather = Gather::<_>::exclusive(&tlb);
    assert_eq!(
        tables.walk(&memory, &NoTlb, VaRange::of(AT, AT + PAGE), &mut Zap(&mut gather)),
        Ok(Walked::All)
    );
    gather.finish();
    assert_eq!(tlb.take(), [Event::Release(vec![page(9)])]);
}

/// Changes and zaps entries. Hardware may have cached only two of these entries. The two entries take every
/// position inside a group of entries and at its edges. The flush must cover the addresses from the first of
/// the two to the last.
#[test]
fn a_flush_covers_from_the_first_cached_entry_to_the_last() {
    let memory = Memory::new(8);
    let tlb = Ledger::new(&memory);
    let tables = space(&memory, 0);
    let at = |n: u64| VirtAddr::new(AT + n * PAGE);
    let pairs = (1..26).flat_map(|first| (first..26).map(move |last| (first, last)));
    for (first, last) in pairs {
        let mut table = tables.pte_table_alloc(&memory, at(0)).unwrap().lock();
        let fill = |table: &mut freehold_pagetable::PteGuard<'_, _, _>| {
            for n in 0..28 {
                let access = if n == first || n == last { PteFlags::WRITE } else { PteFlags::NO_ACCESS };
                table.set(at(n), Pte::page(Pfn::new(n), PteFlags::USER | access));
            }
        };
        for (start, end) in [(0, 28), (first, last + 1), (first - 1, last + 1), (first, last + 2)] {
            let range = VaRange::new(at(start), at(end));
            fill(&mut table);
            let mut gather = Gather::<_>::exclusive(&tlb);
            table.change_each(range, &mut gather, |_, pte| {
                pte.with_flags(Level::Pte, pte.flags().difference(PteFlags::WRITE))
            });
            gather.finish();
            assert_eq!(
                tlb.take(),
                [exact(at(first).get(), at(last + 1).get(), false)],
                "a change of {range:?}"
            );
            let mut gather = Gather::<_>::exclusive(&tlb);
            table.zap_each(range, &mut gather, |_, slot, _| slot.clear());
            gather.finish();
            assert_eq!(tlb.take(), [exact(at(first).get(), at(last + 1).get(), false)], "a zap of {range:?}");
        }
        for n in 0..28 {
            table.set(at(n), Pte::NONE);
        }
    }
}

/// Hazard C-4, both halves. The inner gather finds the entry already empty, and must still flush everything,
/// including the walk caches. The outer gather must also flush everything if the inner gather is still
/// counted.
#[test]
fn c4_overlapping_gathers_flush_everything() {
    let memory = Memory::new(8);
    let (one, two) = (Ledger::new(&memory), Ledger::new(&memory));
    let state = GatherState::new();
    let tables = space(&memory, 1);
    let range = VaRange::of(AT, AT + PAGE);

    let mut outer = Gather::<_>::new(&one, &state);
    assert_eq!(tables.walk(&memory, &NoTlb, range, &mut Zap(&mut outer)), Ok(Walked::All));
    let mut inner = Gather::<_>::new(&two, &state);
    assert_eq!(tables.walk(&memory, &NoTlb, range, &mut Zap(&mut inner)), Ok(Walked::All));
    inner.finish();
    assert_eq!(two.take(), [Event::Flush(EVERYTHING)]);
    outer.finish();
    assert_eq!(one.take(), [exact(AT, AT + PAGE, false), Event::Release(vec![page(0)])]);
    assert!(!is_pending(&memory, &state));

    let mut first = Gather::<_>::new(&one, &state);
    let mut second = Gather::<_>::new(&two, &state);
    for (gather, pfn) in [(&mut first, 5), (&mut second, 6)] {
        gather.begin_change();
        gather.add_changed(range, PTE.union(Levels::of(Level::Pmd)), true);
        gather.add_frame(Pfn::new(pfn), Level::Pte);
    }
    first.finish();
    assert_eq!(one.take(), [Event::Flush(EVERYTHING), Event::Release(vec![page(5)])]);
    second.finish();
    let kept = [exact(AT, AT + PAGE, true), Event::Release(vec![page(6)])];
    assert_eq!(two.take(), kept, "the flush must still say that tables were freed");
}

/// Hazard C-53: a call write-protects an entry that is already write-protected. The call must wait for a
/// flush that another gather has not done yet.
#[test]
fn c53_an_unchanged_entry_is_flushed_for_a_pending_gather() {
    let memory = Memory::new(8);
    let (one, two) = (Ledger::new(&memory), Ledger::new(&memory));
    let state = GatherState::new();
    let tables = space(&memory, 1);
    let at = VirtAddr::new(AT);
    let table = tables.pte_table(&memory, at).unwrap();
    table.lock().grant(at, PteFlags::WRITE);
    let protect = |gather: &mut Gather<'_, Ledger<'_>>| {
        let strip = |pte: Pte<X86_4>| pte.with_flags(Level::Pte, pte.flags() - PteFlags::WRITE);
        table.lock().change(at, gather, strip);
    };
    let (mut slow, mut fast) = (Gather::new(&one, &state), Gather::new(&two, &state));
    protect(&mut slow);
    protect(&mut fast);
    fast.finish();
    assert_eq!(two.take(), [Event::Flush(EVERYTHING)]);
    slow.finish();
    assert_eq!(one.take(), [exact(AT, AT + PAGE, false)]);
}

/// Hazard C-4: a gather that has changed nothing is not counted, but still flushes if another gather is
/// counted. A zap may have skipped an entry that the other gather has emptied.
#[test]
fn c4_a_gather_that_changed_nothing_flushes_for_a_pending_one() {
    let memory = Memory::new(8);
    let (one, two) = (Ledger::new(&memory), Ledger::new(&memory));
    let state = GatherState::new();
    let mut other = Gather::<_>::new(&one, &state);
    other.begin_change();
    other.add_changed(VaRange::of(AT, AT + PAGE), PTE, false);
    Gather::<_>::new(&two, &state).finish();
    assert_eq!(two.take(), [Event::Flush(EVERYTHING)]);
    other.finish();
    Gather::<_>::new(&two, &state).finish();
    assert_eq!(two.take(), []);
}

#[test]
fn an_exclusive_gather_is_not_counted() {
    let memory = Memory::new(8);
    let tlb = Ledger::new(&memory);
    let state = GatherState::new();
    let mut alone = Gather::<_>::exclusive(&tlb);
    alone.begin_change();
    alone.add_changed(VaRange::of(AT, AT + PAGE), PTE, false);
    assert!(!is_pending(&memory, &state));
    alone.finish();
    assert_eq!(tlb.take(), [exact(AT, AT + PAGE, false)]);
}

/// A gather flushes before its end if its frames or tables exceed its room. Each flush comes before the
/// release of the frames and tables that it covers.
#[test]
fn a_full_gather_flushes_and_goes_on() {
    assert_eq!(flushes_of_a_large_range(0), 99 + 4, "one per full gather, and one per 32 tables");
}

/// Buffered frames are released after the flush that covers them, and before frames that are added later.
#[test]
fn kept_frames_share_a_flush() {
    assert_eq!(flushes_of_a_large_range(9 * 512), 9 + 4, "ten batches share a flush");
    assert_eq!(flushes_of_a_large_range(99 * 512), 4);
    assert_eq!(flushes_of_a_large_range(1000 * 512), 4);
    // There is no memory for a buffer of this size, so the gather works without it.
    assert_eq!(flushes_of_a_large_range(u64::MAX / 2), 99 + 4);
}

/// A large page counts in the buffer as the number of its small pages.
#[test]
fn large_pages_use_up_the_capacity() {
    let memory = Memory::new(1);
    let tlb = Ledger::new(&memory);
    let mut room = Vec::new();
    let mut gather = Gather::<_>::exclusive(&tlb);
    gather.use_buffer(&mut room, 2 * 512);
    for n in 0..4 {
        gather.make_capacity(512);
        assert_eq!(tlb.take().len(), if n == 3 { 3 } else { 0 }, "a flush and two releases");
        gather.begin_change();
        let span = VaRange::of(AT + n * (2 << 20), AT + (n + 1) * (2 << 20));
        gather.add_changed(span, Levels::of(Level::Pmd), false);
        gather.add_frame(Pfn::new(n * 512), Level::Pmd);
    }
    gather.finish();
    assert_eq!(tlb.take().len(), 2);
}

fn flushes_of_a_large_range(kept: u64) -> usize {
    let memory = Memory::new(256);
    let tlb = Ledger::new(&memory);
    let mut room = Vec::new();
    let tables = space(&memory, 100 * 512);
    let range = VaRange::of(AT, AT + 100 * (2 << 20));
    let mut gather = Gather::exclusive(&tlb);
    gather.use_buffer(&mut room, kept);
    assert_eq!(tables.walk(&memory, &NoTlb, range, &mut Zap(&mut gather)), Ok(Walked::All));
    // SAFETY: there is one thread, and the range was zapped.
    unsafe { tables.unlink_tables(&memory, range, range.start(), range.end(), &mut gather) };
    gather.finish();
    let (mut released, mut freed, mut flushed, mut flushes) = (0, 0, AT..AT, 0);
    for event in tlb.take() {
        match event {
            Event::Flush(what) => {
                flushed = what.start.get()..what.end.get();
                flushes += 1;
            }
            Event::Release(frames) => {
                for frame in frames {
                    assert_eq!(frame, page(released));
                    assert!(flushed.contains(&(AT + released * PAGE)));
                    released += 1;
                }
            }
            Event::Free(tables) => freed += tables.len(),
        }
    }
    assert_eq!((released, freed), (100 * 512, 100));
    flushes
}

#[test]
#[should_panic(expected = "dropped before it was finished")]
fn dropping_an_unfinished_gather_panics() {
    let memory = Memory::new(1);
    let tlb = Ledger::new(&memory);
    let mut gather = Gather::<_>::exclusive(&tlb);
    gather.add_frame(Pfn::new(1), Level::Pte);
    drop(gather);
}

#[test]
fn not_cached_records_nothing() {
    let memory = Memory::new(8);
    let tables = space(&memory, 1);
    let at = VirtAddr::new(AT);
    let mut table = tables.pte_table(&memory, at).unwrap().lock();
    assert_eq!(table.take(at, &mut NotCached).pfn(), Pfn::new(0));
    assert!(table.get(at).is_none());
}
