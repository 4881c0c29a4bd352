//! Huge pages that two processes share after fork, until one of them stores. A store to a shared huge page
//! splits the page of the storing process and copies one small page. The last owner of all frames stores
//! without a copy and without a split. The tests count frames and compare the runs of `present` in both
//! processes.

use super::*;

/// Returns a child of `process`. Parent and child share a written huge page and the huge zero page; a third
/// block is unpopulated.
fn fork_with_huge_pages(process: &Process, cpu: &mut Vcpu) -> Process {
    map(process, BASE, 3);
    write_sample(process, cpu, BASE, 1);
    assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(0));
    Process::of(process.fork().unwrap())
}

#[test]
fn fork_shares_whole_huge_pages() {
    each_way(HugePages::Always, |world, process, cpu| {
        let before = world.machine.accounting().frames;
        let child = fork_with_huge_pages(process, cpu);
        let expected = [(0, PAGES, PageKind::Anon, true), (PAGES, PAGES, PageKind::Zero, true)];
        assert_eq!(
            (present(process, BASE, 3), present(&child, BASE, 3)),
            (expected.to_vec(), expected.to_vec())
        );
        assert_sample(&child, cpu, BASE, 1, all);
        assert_sample(process, cpu, BASE, 1, all);
        // Parent and child share the frames of the written huge page, and those of the zero page.
        assert_eq!(world.machine.accounting().frames - before, 2 * PAGES as usize);
        for process in [process, &child] {
            let usage = process.smaps(0).next().unwrap().usage;
            let sizes = (usage.rss, usage.pss, usage.shared_dirty, usage.anonymous_huge);
            assert_eq!(sizes, (HUGE, HUGE / 2, HUGE, HUGE));
            process.check();
        }
    });
}

#[test]
fn store_to_a_shared_huge_page_copies_one_small_page() {
    for child_first in [false, true] {
        each_way(HugePages::Always, |world, process, cpu| {
            let mut other = world.machine.cpu(1);
            let child = fork_with_huge_pages(process, cpu);
            assert_sample(&child, &mut other, BASE, 1, all);
            let (writer, reader) = if child_first { (&child, process) } else { (process, &child) };
            writer.store(cpu, BASE + 100 * PAGE, 7u64).unwrap();
            // The writer now has small pages, one of which is its own copy.
            assert_eq!(present(writer, BASE, 1), [(0, PAGES, PageKind::Anon, false)]);
            assert_eq!(present(reader, BASE, 1), ONE);
            let usage = writer.smaps(0).next().unwrap().usage;
            assert_eq!((usage.private_dirty, usage.shared_dirty), (PAGE, HUGE - PAGE));
            for cpu in [&mut *cpu, &mut other] {
                assert_sample(reader, cpu, BASE, 1, all);
                assert_eq!(writer.load(cpu, BASE + 100 * PAGE), Ok(7u64));
                assert_sample(writer, cpu, BASE, 1, |page| page != 100);
            }
            // The reader's page is still shared, except for one small page.
            write_sample(reader, &mut other, BASE, 2);
            assert_sample(writer, cpu, BASE, 1, |page| page != 100);
            write_sample(writer, cpu, BASE, 3);
            assert_sample(reader, &mut other, BASE, 2, all);
            // A store to the zero page or to the unpopulated block is not visible in the other process.
            writer.store(cpu, BASE + HUGE, 5u64).unwrap();
            writer.store(cpu, BASE + 2 * HUGE, 6u64).unwrap();
            assert_eq!(reader.load::<u64>(&mut other, BASE + HUGE), Ok(0));
            assert_eq!(reader.load::<u64>(&mut other, BASE + 2 * HUGE), Ok(0));
            child.check();
        });
    }
}

#[test]
fn last_owner_keeps_the_huge_page_whole() {
    each_way(HugePages::Always, |world, process, cpu| {
        let child = fork_with_huge_pages(process, cpu);
        child.store(cpu, BASE + HUGE, 1u64).unwrap();
        drop(child);
        // The parent is the only owner of all frames again: a store neither copies nor splits.
        write_sample(process, cpu, BASE, 2);
        assert_eq!(present(process, BASE, 1), ONE);
        // A store of the child neither copies nor splits once the child is the only owner.
        let child = Process::of(process.fork().unwrap());
        process.munmap(BASE, 3 * HUGE).unwrap();
        let frames = world.machine.accounting().frames;
        write_sample(&child, cpu, BASE, 3);
        assert_eq!(present(&child, BASE, 1), ONE);
        assert_eq!(world.machine.accounting().frames, frames);
        assert_sample(&child, cpu, BASE, 3, all);
        // A page that mprotect made writable again is also recognised as the process's own.
        let grandchild = Process::of(child.fork().unwrap());
        drop(grandchild);
        child.mprotect(BASE, 3 * HUGE, R).unwrap();
        child.mprotect(BASE, 3 * HUGE, RW).unwrap();
        write_sample(&child, cpu, BASE, 4);
        assert_eq!(present(&child, BASE, 1), ONE);
        child.check();
    });
}

#[test]
fn mprotect_does_not_make_a_shared_huge_page_writable() {
    each_way(HugePages::Always, |_, process, cpu| {
        let child = fork_with_huge_pages(process, cpu);
        for part in [HUGE, 100 * PAGE] {
            process.mprotect(BASE, part, R).unwrap();
            process.mprotect(BASE, part, RW).unwrap();
            write_sample(process, cpu, BASE, part);
            assert_sample(&child, cpu, BASE, 1, all);
        }
        child.check();
    });
}

#[test]
fn split_in_one_process_keeps_the_other_whole() {
    each_way(HugePages::Always, |world, process, cpu| {
        let mut other = world.machine.cpu(1);
        let child = fork_with_huge_pages(process, cpu);
        assert_sample(&child, &mut other, BASE, 1, all);
        process.munmap(BASE + 100 * PAGE, 156 * PAGE).unwrap();
        child.madvise(BASE + 256 * PAGE, 155 * PAGE, Advice::DontNeed).unwrap();
        assert_sample(process, cpu, BASE, 1, |page| !(100..256).contains(&page));
        assert_sample(&child, &mut other, BASE, 1, |page| !(256..411).contains(&page));
        assert_eq!(child.load::<u64>(&mut other, BASE + 300 * PAGE), Ok(0));
        // Pages that no other process maps any more are not copied.
        let frames = world.machine.accounting().frames;
        child.store(&mut other, BASE + 101 * PAGE, 9u64).unwrap();
        process.store(cpu, BASE + 410 * PAGE, 9u64).unwrap();
        assert_eq!(world.machine.accounting().frames, frames);
        // A grandchild shares both kinds of pages.
        let third = Process::of(child.fork().unwrap());
        drop(child);
        assert_eq!(third.load(&mut other, BASE + 101 * PAGE), Ok(9u64));
        assert_sample(&third, &mut other, BASE, 1, |page| page != 101 && !(256..411).contains(&page));
        third.check();
    });
}

#[test]
fn store_to_a_partly_shared_huge_page_copies() {
    // The child discards one page of the huge page and still shares the others. A store to another page makes
    // a copy.
    for (own, shared) in [(0, 100), (100, 0), (511, 510)] {
        each_way(HugePages::Always, |_, process, cpu| {
            let child = fork_with_huge_pages(process, cpu);
            child.madvise(BASE + own * PAGE, PAGE, Advice::DontNeed).unwrap();
            process.store(cpu, BASE + shared * PAGE, 9u64).unwrap();
            process.store(cpu, BASE + own * PAGE, 8u64).unwrap();
            assert_sample(&child, cpu, BASE, 1, |page| page != own);
            assert_eq!(child.load::<u64>(cpu, BASE + own * PAGE), Ok(0));
            assert_sample(process, cpu, BASE, 1, |page| page != own && page != shared);
            child.check();
        });
    }
}

#[test]
fn child_inherits_no_dontfork_part_of_a_huge_page() {
    each_way(HugePages::Always, |_, process, cpu| {
        map(process, BASE, 3);
        for huge in 0..3 {
            write_sample(process, cpu, BASE + huge * HUGE, 1);
        }
        process.madvise(BASE + 100 * PAGE, HUGE, Advice::DontFork).unwrap();
        process.madvise(BASE + 2 * HUGE, HUGE, Advice::WipeOnFork).unwrap();
        let child = Process::of(process.fork().unwrap());
        assert_sample(&child, cpu, BASE, 1, |page| page < 100);
        assert!(child.load::<u64>(cpu, BASE + 100 * PAGE).is_err());
        assert_sample(&child, cpu, BASE + HUGE, 1, |page| page >= 100);
        assert_eq!(child.load::<u64>(cpu, BASE + 2 * HUGE), Ok(0));
        assert_sample(process, cpu, BASE + 2 * HUGE, 1, all);
        child.check();
    });
}

#[test]
fn failed_copies_of_a_huge_page_lose_no_frame() {
    for locking in Locking::ALL {
        // Memory for one huge page, the huge zero page, and almost one more huge page.
        let world = World::with(6 << 20, Config::new().huge_pages(HugePages::Always));
        let process = world.process(locking);
        let mut cpu = world.machine.cpu(0);
        let child = fork_with_huge_pages(&process, &mut cpu);
        let written = (0..PAGES).take_while(|page| child.store(&mut cpu, BASE + page * PAGE, 2u64).is_ok());
        assert!((1..PAGES).contains(&(written.count() as u64)));
        assert_sample(&process, &mut cpu, BASE, 1, all);
        drop(process);
        // The child is the only owner of its pages now.
        write_sample(&child, &mut cpu, BASE, 3);
        assert_sample(&child, &mut cpu, BASE, 3, all);
        child.check();
        drop((child, cpu));
        world.end();
    }
}
