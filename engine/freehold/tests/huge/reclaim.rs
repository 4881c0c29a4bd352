//! MADV_DONTNEED frees page tables that it covers completely and leaves empty (`src/call/madvise/pages.rs`),
//! as Linux does since 6.14 (CONFIG_PT_RECLAIM). The next store then allocates a huge page in place of small
//! pages.
//!
//! `frees` gives advice and counts the page tables that the machine gets back. The expected counts are those
//! of VmPTE on Linux 6.18. A new kind of entry or advice is one more call of `frees`. `freed_tables.rs` tests
//! calls that have found such a table before it was freed.

use super::*;
use crate::support::File;

fn advise(process: &Process, first: u64, pages: u64, advice: Advice) {
    process.madvise(BASE + first * PAGE, pages * PAGE, advice).unwrap();
}

fn store(process: &Process, cpu: &mut Vcpu, page: u64) {
    process.store(cpu, BASE + page * PAGE, page + 1).unwrap();
}

/// Returns the number of resident anonymous pages of two blocks, and how many of them are in huge pages.
fn resident(process: &Process) -> (u64, u64) {
    (process.rss().anon as u64, huge_bytes(process) / PAGE)
}

/// Parts to discard, and the expected result of [`resident`] afterwards.
type Discarded = (&'static [(u64, u64)], (u64, u64));

/// Parts of two huge pages, each as first page and length. The test splits the first huge page, and then
/// discards the parts. The results are those of Linux 6.18 after another store to the first page.
const DISCARDED: [Discarded; 7] = [
    (&[(0, 512)], (1024, 1024)),
    (&[(0, 1024)], (512, 512)),
    (&[(0, 576)], (960, 512)),
    (&[(0, 512), (100, 30)], (1024, 1024)),
    (&[(0, 100), (130, 382)], (513, 512)),
    (&[(0, 511), (511, 1)], (513, 512)),
    (&[(1, 1023)], (1, 0)),
];

#[test]
fn store_after_discarding_a_block_allocates_a_huge_page() {
    for (parts, expected) in DISCARDED {
        each_way(HugePages::Always, |_, process, cpu| {
            map(process, BASE, 2);
            store(process, cpu, 0);
            store(process, cpu, PAGES);
            advise(process, 100, 30, Advice::DontNeed);
            assert_eq!(resident(process), (994, 512));
            parts.iter().for_each(|&(first, pages)| advise(process, first, pages, Advice::DontNeed));
            store(process, cpu, 0);
            assert_eq!(resident(process), expected, "{parts:?}");
        });
    }
}

#[test]
fn block_stays_small_if_table_reclaim_is_off() {
    each_way(HugePages::Always, |world, process, cpu| {
        world.engine().set_reclaims_tables(false);
        map(process, BASE, 1);
        store(process, cpu, 0);
        advise(process, 100, 30, Advice::DontNeed);
        advise(process, 0, PAGES, Advice::DontNeed);
        store(process, cpu, 0);
        assert_eq!(resident(process), (1, 0));
        world.engine().set_reclaims_tables(true);
        advise(process, 0, PAGES, Advice::DontNeed);
        store(process, cpu, 0);
        assert_eq!(resident(process), (512, 512));
    });
}

/// Applies advice to a part of the small pages that `set_up` creates. The part is given as first page and
/// length. Checks that the call frees `tables` page tables, as VmPTE shows on Linux 6.18.
#[track_caller]
fn frees(tables: usize, part: (u64, u64), advice: Advice, set_up: impl Fn(&World, &Process, &mut Vcpu)) {
    each_way(HugePages::Never, |world, process, cpu| {
        set_up(world, process, cpu);
        let before = world.machine.accounting().tables;
        advise(process, part.0, part.1, advice);
        assert_eq!(before - world.machine.accounting().tables, tables);
    });
}

/// Maps small pages in three blocks, and stores to the given pages.
fn stored(process: &Process, cpu: &mut Vcpu, pages: impl IntoIterator<Item = u64>) {
    map(process, BASE, 3);
    pages.into_iter().for_each(|page| store(process, cpu, page));
}

/// Maps a block of a memory file, and stores to a page.
fn stored_to_file(world: &World, process: &Process, cpu: &mut Vcpu, flags: MapFlags) {
    let file = File::shared_memory(world.engine(), HUGE, true).unwrap();
    process.mmap(BASE, HUGE, RW, flags | MapFlags::FIXED, Some(&file), 0).unwrap();
    store(process, cpu, 7);
}

const BLOCK: (u64, u64) = (0, PAGES);

#[test]
fn dontneed_frees_a_fully_covered_table() {
    frees(1, BLOCK, Advice::DontNeed, |_, process, cpu| stored(process, cpu, [7]));
    frees(1, BLOCK, Advice::DontNeed, |_, process, cpu| stored(process, cpu, 0..PAGES));
    frees(3, (0, 3 * PAGES), Advice::DontNeed, |_, process, cpu| stored(process, cpu, [7, 600, 1100]));
    frees(1, (0, PAGES + 256), Advice::DontNeed, |_, process, cpu| stored(process, cpu, [7, 600]));
    frees(1, (256, 2 * PAGES), Advice::DontNeed, |_, process, cpu| stored(process, cpu, [7, 600, 1100]));
    // The table is freed whether it was empty before or not.
    frees(1, BLOCK, Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7, 200]);
        advise(process, 0, 100, Advice::DontNeed);
        advise(process, 100, 412, Advice::DontNeed);
    });
    frees(1, BLOCK, Advice::DontNeed, |_, process, cpu| {
        map(process, BASE, 1);
        assert_eq!(process.load(cpu, BASE), Ok(0u64));
    });
    frees(1, BLOCK, Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7]);
        process.mprotect(BASE, HUGE, Prot::empty()).unwrap();
    });
    frees(1, BLOCK, Advice::DontNeedLocked, |_, process, cpu| {
        stored(process, cpu, [7]);
        process.mlock(BASE, HUGE).unwrap();
    });
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        frees(1, BLOCK, Advice::DontNeed, |world, process, cpu| stored_to_file(world, process, cpu, flags));
    }
}

#[test]
fn dontneed_keeps_a_partly_covered_table() {
    frees(0, (1, PAGES - 1), Advice::DontNeed, |_, process, cpu| stored(process, cpu, [7]));
    frees(0, (256, PAGES), Advice::DontNeed, |_, process, cpu| stored(process, cpu, [300, 600]));
    // The VMA covers only a part of the table, whatever is mapped next to it.
    frees(0, (0, PAGES - 1), Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7]);
        process.munmap(BASE + HUGE - PAGE, PAGE).unwrap();
    });
    frees(0, BLOCK, Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7, 300]);
        process.mprotect(BASE, HUGE / 2, R).unwrap();
    });
    frees(3, (0, 3 * PAGES), Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7, 600, 1100]);
        process.mprotect(BASE + HUGE, HUGE, R).unwrap();
    });
    frees(2, (0, 3 * PAGES), Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7, 600, 1100]);
        process.mprotect(BASE, HUGE + HUGE / 2, R).unwrap();
    });
}

#[test]
fn dontneed_keeps_a_table_with_a_guard() {
    frees(0, BLOCK, Advice::DontNeed, |_, process, cpu| {
        stored(process, cpu, [7]);
        advise(process, 9, 1, Advice::GuardInstall);
    });
    frees(0, BLOCK, Advice::DontNeed, |_, process, _| {
        map(process, BASE, 1);
        advise(process, 0, PAGES, Advice::GuardInstall);
    });
}

#[test]
fn other_advice_frees_no_table() {
    for advice in [Advice::Free, Advice::Cold, Advice::PageOut, Advice::GuardInstall, Advice::GuardRemove] {
        frees(0, BLOCK, advice, |_, process, cpu| stored(process, cpu, [7]));
    }
    frees(0, BLOCK, Advice::GuardRemove, |_, process, _| {
        map(process, BASE, 1);
        advise(process, 0, PAGES, Advice::GuardInstall);
    });
    frees(0, BLOCK, Advice::Remove, |world, process, cpu| {
        stored_to_file(world, process, cpu, MapFlags::SHARED);
    });
}
