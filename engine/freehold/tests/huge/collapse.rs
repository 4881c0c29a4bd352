//! MADV_COLLAPSE (`src/call/madvise/collapse.rs`, `src/fault/collapse.rs`): small pages become a huge page,
//! or stay unchanged. The tests check the contents, the rights, the frames and tables in use, and the answer
//! of the call. The expected answers are those of Linux 6.18; `recordings/causes/collapse` is a recording of
//! the same calls on Linux. `lab/freehold-machine/tests/shuttle_engine/collapse.rs` explores concurrent
//! cases. A new reason to refuse is one more use of `refused` in
//! `collapse_refuses_empty_guarded_and_excluded_ranges`.

use super::*;
use freehold::{
    error::{Errno, MadviseError},
    fault::{FaultError, SegvCode},
    remote::PinFlags,
    uffd::{Features, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};

fn collapse(process: &Process, at: u64, len: u64) -> Result<(), MadviseError> {
    process.madvise(at, len, Advice::Collapse)
}

/// Returns which of the first `huge` blocks are huge pages.
fn huge_ones(process: &Process, huge: u64) -> Vec<bool> {
    (0..huge).map(|n| present(process, BASE + n * HUGE, 1) == ONE).collect()
}

#[test]
fn collapse_keeps_contents_and_fills_holes_with_zeroes() {
    each_way(HugePages::Never, |world, process, cpu| {
        let mut other = world.machine.cpu(1);
        map(process, BASE, 1);
        write_sample(process, cpu, BASE, 1);
        // One page is a zero page that was read. Both CPUs have translations of other pages.
        assert_eq!(process.load::<u64>(cpu, BASE + 50 * PAGE), Ok(0));
        assert_sample(process, &mut other, BASE, 1, all);
        let before = world.machine.accounting();
        collapse(process, BASE, HUGE).unwrap();
        assert_eq!(present(process, BASE, 1), ONE);
        assert_eq!((process.rss().anon, huge_bytes(process)), (PAGES as i64, HUGE));
        let after = world.machine.accounting();
        // The page table of the small pages is freed, and a table is kept in reserve for a split.
        assert_eq!(after.tables, before.tables);
        let faults = world.machine.stats().faults;
        for cpu in [cpu, &mut other] {
            assert_sample(process, cpu, BASE, 1, all);
            assert_eq!(process.load::<u64>(cpu, BASE + 50 * PAGE), Ok(0));
            assert_eq!(process.load::<u64>(cpu, BASE + 51 * PAGE), Ok(0));
        }
        write_sample(process, &mut other, BASE, 2);
        assert_sample(process, &mut other, BASE, 2, all);
        assert_eq!(world.machine.stats().faults, faults, "all pages are present and writable");
        // A second collapse finds a huge page and does nothing. The page is split like any other.
        collapse(process, BASE, HUGE).unwrap();
        process.munmap(BASE + 100 * PAGE, PAGE).unwrap();
        assert_sample(process, &mut other, BASE, 2, |page| page != 100);
        assert_eq!(huge_bytes(process), 0);
        // The parts can be collapsed again, but not across a hole.
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Invalid));
        anon(process, BASE + 100 * PAGE, 1);
        collapse(process, BASE, HUGE).unwrap();
        assert_sample(process, &mut other, BASE, 2, |page| page != 100);
        assert_eq!(process.load::<u64>(&mut other, BASE + 100 * PAGE), Ok(0));
    });
}

#[test]
fn collapse_keeps_rights() {
    each_way(HugePages::Never, |_, process, cpu| {
        for (prot, at) in [(R, BASE), (Prot::empty(), BASE + HUGE)] {
            map(process, at, 1);
            write_sample(process, cpu, at, 1);
            process.mprotect(at, HUGE, prot).unwrap();
            collapse(process, at, HUGE).unwrap();
            assert_eq!(present(process, at, 1), ONE);
            let denied = Err(FaultError::Segv { addr: at, code: SegvCode::Accerr });
            assert_eq!(process.store(cpu, at, 1u64), denied);
            assert_eq!(process.load::<u64>(cpu, at).is_ok(), prot == R);
            process.mprotect(at, HUGE, RW).unwrap();
            assert_sample(process, cpu, at, 1, all);
            write_sample(process, cpu, at, 2);
        }
    });
}

#[test]
fn collapse_covers_only_whole_huge_pages_of_a_range() {
    each_way(HugePages::Never, |_, process, cpu| {
        let touched = |process: &Process, cpu: &mut Vcpu| {
            map(process, BASE, 3);
            (0..3).for_each(|n| process.store(cpu, BASE + n * HUGE, n + 1).unwrap());
        };
        // Each case has the start and the length in pages, the result, and the blocks that are huge pages
        // afterwards. Parts of blocks at the ends of the range are skipped. A range that lies within a block
        // and ends before the end of the block is refused.
        let cases = [
            (0, 3 * PAGES, Ok(()), [true, true, true]),
            (1, 3 * PAGES - 1, Ok(()), [false, true, true]),
            (1, PAGES, Ok(()), [false; 3]),
            (0, 1, Ok(()), [false; 3]),
            (1, PAGES - 1, Ok(()), [false; 3]),
            (1, 1, Err(MadviseError::Invalid), [false; 3]),
            (PAGES, 0, Ok(()), [false; 3]),
            (2 * PAGES, 2 * PAGES, Err(MadviseError::NotMapped), [false, false, true]),
        ];
        for (first, pages, said, huge) in cases {
            touched(process, cpu);
            assert_eq!(collapse(process, BASE + first * PAGE, pages * PAGE), said, "{first}, {pages}");
            assert_eq!(huge_ones(process, 3), huge, "{first}, {pages}");
            (0..3).for_each(|n| assert_eq!(process.load::<u64>(cpu, BASE + n * HUGE), Ok(n + 1)));
        }
        // Holes are reported after the rest was collapsed. A VMA without room for a huge page ends the call.
        touched(process, cpu);
        process.munmap(BASE + HUGE + PAGE, PAGE).unwrap();
        assert_eq!(collapse(process, BASE, 3 * HUGE), Err(MadviseError::NotMapped));
        assert_eq!(huge_ones(process, 3), [true, false, true]);
        touched(process, cpu);
        process.munmap(BASE + HUGE - PAGE, PAGE).unwrap();
        assert_eq!(collapse(process, BASE, 3 * HUGE), Err(MadviseError::Invalid));
        assert_eq!(huge_ones(process, 3), [false; 3]);
    });
}

/// The huge page contains zeroes in place of discarded pages. If the discard has also freed the page table,
/// collapse fails.
#[test]
fn collapse_fills_an_empty_page_table_with_zeroes() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 1);
        process.store(cpu, BASE, 1u64).unwrap();
        process.madvise(BASE, HUGE / 2, Advice::DontNeed).unwrap();
        process.madvise(BASE + HUGE / 2, HUGE / 2, Advice::DontNeed).unwrap();
        collapse(process, BASE, HUGE).unwrap();
        assert_eq!(huge_ones(process, 1), [true]);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        process.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Invalid));
    });
}

#[test]
fn collapse_refuses_empty_guarded_and_excluded_ranges() {
    each_way(HugePages::Never, |_, process, cpu| {
        let mut refused = |what: &str, prepare: &dyn Fn(&mut Vcpu)| {
            map(process, BASE, 2);
            process.store(cpu, BASE + HUGE, 9u64).unwrap();
            prepare(cpu);
            let frames = process.rss();
            // The call fails before it reaches the second block.
            assert_eq!(collapse(process, BASE, 2 * HUGE), Err(MadviseError::Invalid), "{what}");
            assert_eq!(process.rss(), frames);
            assert_eq!(huge_ones(process, 2), [false; 2]);
        };
        refused("no page", &|_| ());
        refused("all pages were discarded", &|cpu| {
            process.store(cpu, BASE, 1u64).unwrap();
            process.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
        });
        refused("a guard", &|cpu| {
            process.store(cpu, BASE, 1u64).unwrap();
            process.madvise(BASE + PAGE, PAGE, Advice::GuardInstall).unwrap();
        });
        // The block has only zero pages, and its VMA has no other page.
        process.munmap(BASE, 2 * HUGE).unwrap();
        map(process, BASE, 1);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Invalid));
        // Ranges in which huge pages are disabled are refused. WIPEONFORK does not prevent a collapse.
        for (advice, said) in [
            (Advice::NoHugePage, Err(MadviseError::Invalid)),
            (Advice::HugePage, Ok(())),
            (Advice::WipeOnFork, Ok(())),
        ] {
            map(process, BASE, 1);
            process.store(cpu, BASE, 1u64).unwrap();
            process.madvise(BASE, HUGE, advice).unwrap();
            assert_eq!(collapse(process, BASE, HUGE), said);
        }
        for (disable, said) in
            [(ThpDisable::Everywhere, Err(MadviseError::Invalid)), (ThpDisable::UnlessAdvised, Ok(()))]
        {
            map(process, BASE, 1);
            process.store(cpu, BASE, 1u64).unwrap();
            process.set_thp_disable(disable);
            assert_eq!(collapse(process, BASE, HUGE), said, "{disable:?}");
        }
    });
}

#[test]
fn collapse_skips_a_block_with_a_pinned_page() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 2);
        process.store(cpu, BASE + 3 * PAGE, 5u64).unwrap();
        process.store(cpu, BASE + HUGE, 6u64).unwrap();
        let pins = process.pin_user_pages(BASE + 3 * PAGE, 1, PinFlags::WRITE).unwrap();
        // The next block is collapsed nevertheless.
        assert_eq!(collapse(process, BASE, 2 * HUGE), Err(MadviseError::InUse));
        assert_eq!(MadviseError::InUse.errno(), Errno::EAGAIN);
        assert_eq!(huge_ones(process, 2), [false, true]);
        pins.write(0, &7u64.to_le_bytes()).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + 3 * PAGE), Ok(7));
        drop(pins);
        collapse(process, BASE, 2 * HUGE).unwrap();
        assert_eq!(process.load::<u64>(cpu, BASE + 3 * PAGE), Ok(7));
        assert_eq!(huge_ones(process, 2), [true, true]);
    });
}

#[test]
fn collapse_leaves_missing_pages_to_the_pager() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 2);
        process.store(cpu, BASE, 1u64).unwrap();
        (0..PAGES).for_each(|page| process.store(cpu, BASE + HUGE + page * PAGE, page).unwrap());
        let config = UffdConfig::new().features(Features::empty());
        let uffd = Userfaultfd::new(process.space(), config).unwrap();
        uffd.register(BASE, 2 * HUGE, RegisterMode::MISSING).unwrap();
        // A page that the pager has to supply must not become zeroes.
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Busy));
        collapse(process, BASE + HUGE, HUGE).unwrap();
        assert_eq!(huge_ones(process, 2), [false, true]);
        drop(uffd);
        let uffd = Userfaultfd::new(process.space(), config).unwrap();
        uffd.register(BASE, HUGE, RegisterMode::WP).unwrap();
        uffd.write_protect(BASE, PAGE, ProtectMode::WP).unwrap();
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Invalid));
        uffd.write_protect(BASE, PAGE, ProtectMode::empty()).unwrap();
        collapse(process, BASE, HUGE).unwrap();
    });
}

#[test]
fn collapse_copies_pages_that_are_shared_after_fork() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 1);
        write_sample(process, cpu, BASE, 1);
        let child = Process::of(process.fork().unwrap());
        // The child gets a copy, and the parent keeps the small pages.
        collapse(&child, BASE, HUGE).unwrap();
        write_sample(&child, cpu, BASE, 2);
        assert_sample(process, cpu, BASE, 1, all);
        assert_sample(&child, cpu, BASE, 2, all);
        assert_eq!((huge_bytes(process), huge_bytes(&child)), (0, HUGE));
        assert_eq!(process.rss().anon, SAMPLE.len() as i64);
        // The huge page is shared again after another fork. The parent collapses its own pages.
        let grandchild = Process::of(child.fork().unwrap());
        collapse(process, BASE, HUGE).unwrap();
        write_sample(process, cpu, BASE, 3);
        assert_sample(&grandchild, cpu, BASE, 2, all);
        child.check();
        grandchild.check();
    });
}

#[test]
fn collapse_allocates_a_huge_page_of_shared_memory() {
    each_way(HugePages::Never, |_, process, cpu| {
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE, 2 * HUGE, RW, shared, None, 0).unwrap();
        process.store(cpu, BASE + 7 * PAGE, 7u64).unwrap();
        collapse(process, BASE, HUGE).unwrap();
        assert_eq!(process.rss().shmem, PAGES as i64);
        assert_eq!(process.load::<u64>(cpu, BASE + 7 * PAGE), Ok(7));
        process.store(cpu, BASE + 8 * PAGE, 8u64).unwrap();
        assert_eq!(
            collapse(process, BASE, 2 * HUGE),
            Err(MadviseError::Invalid),
            "the second block has no page"
        );
        assert_eq!(process.rss().shmem, PAGES as i64);
        // A private copy of a page prevents a collapse.
        let vma = process.find_vma(BASE).unwrap();
        let file = vma.object().file().unwrap().clone();
        drop(vma);
        let private = MapFlags::PRIVATE | MapFlags::FIXED;
        process.mmap(BASE + 4 * HUGE, HUGE, RW, private, Some(&file), 0).unwrap();
        collapse(process, BASE + 4 * HUGE, HUGE).unwrap();
        assert_eq!(process.rss().shmem, 2 * PAGES as i64);
        process.mmap(BASE + 4 * HUGE, HUGE, RW, private, Some(&file), 0).unwrap();
        process.store(cpu, BASE + 4 * HUGE, 1u64).unwrap();
        assert_eq!(collapse(process, BASE + 4 * HUGE, HUGE), Err(MadviseError::Invalid));
        assert_eq!((process.rss().shmem, process.rss().anon), (PAGES as i64, 1));
        // A mapping whose offset in the file and address differ in alignment cannot be collapsed.
        process.mmap(BASE + 4 * HUGE, HUGE, RW, shared - MapFlags::ANONYMOUS, Some(&file), PAGE).unwrap();
        process.store(cpu, BASE + 4 * HUGE, 1u64).unwrap();
        assert_eq!(collapse(process, BASE + 4 * HUGE, HUGE), Err(MadviseError::Invalid));
    });
}

#[test]
fn collapse_without_memory_changes_nothing() {
    for locking in Locking::ALL {
        // The machine has less memory than one huge page.
        let world = World::with(1 << 20, Config::default());
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        map(&process, BASE, 1);
        process.store(&mut cpu, BASE, 1u64).unwrap();
        assert_eq!(collapse(&process, BASE, HUGE), Err(MadviseError::OutOfMemory));
        assert_eq!(process.load::<u64>(&mut cpu, BASE), Ok(1));
        process.check();
        drop((process, cpu));
        world.end();
    }
}
