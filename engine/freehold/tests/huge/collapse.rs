//! MADV_COLLAPSE: small pages become a huge one, or stay what they were. As Linux 6.18 answers;
//! `recordings/causes/collapse` has the same from there.

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

/// How many of the first `huge` lie in huge pages.
fn huge_ones(process: &Process, huge: u64) -> Vec<bool> {
    (0..huge).map(|n| present(process, BASE + n * HUGE, 1) == ONE).collect()
}

#[test]
fn contents_stay_and_holes_become_zeroes() {
    each_way(HugePages::Never, |world, process, cpu| {
        let mut other = world.machine.cpu(1);
        map(process, BASE, 1);
        write_sample(process, cpu, BASE, 1);
        // One page of zeroes that was looked at; others that both processors remember.
        assert_eq!(process.load::<u64>(cpu, BASE + 50 * PAGE), Ok(0));
        assert_sample(process, &mut other, BASE, 1, all);
        let before = world.machine.accounting();
        collapse(process, BASE, HUGE).unwrap();
        assert_eq!(present(process, BASE, 1), ONE);
        assert_eq!((process.rss().anon, huge_bytes(process)), (PAGES as i64, HUGE));
        let after = world.machine.accounting();
        // Their table is exchanged for the one that is kept.
        assert_eq!(after.tables, before.tables);
        let faults = world.machine.stats().faults;
        for cpu in [cpu, &mut other] {
            assert_sample(process, cpu, BASE, 1, all);
            assert_eq!(process.load::<u64>(cpu, BASE + 50 * PAGE), Ok(0));
            assert_eq!(process.load::<u64>(cpu, BASE + 51 * PAGE), Ok(0));
        }
        write_sample(process, &mut other, BASE, 2);
        assert_sample(process, &mut other, BASE, 2, all);
        assert_eq!(world.machine.stats().faults, faults, "everything is there, and may be written");
        // There is one: nothing to do. It is split as any other.
        collapse(process, BASE, HUGE).unwrap();
        process.munmap(BASE + 100 * PAGE, PAGE).unwrap();
        assert_sample(process, &mut other, BASE, 2, |page| page != 100);
        assert_eq!(huge_bytes(process), 0);
        // And can be made again, but not across a hole.
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Invalid));
        anon(process, BASE + 100 * PAGE, 1);
        collapse(process, BASE, HUGE).unwrap();
        assert_sample(process, &mut other, BASE, 2, |page| page != 100);
        assert_eq!(process.load::<u64>(&mut other, BASE + 100 * PAGE), Ok(0));
    });
}

#[test]
fn rights_stay() {
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
fn the_whole_ones_of_a_range() {
    each_way(HugePages::Never, |_, process, cpu| {
        let touched = |process: &Process, cpu: &mut Vcpu| {
            map(process, BASE, 3);
            (0..3).for_each(|n| process.store(cpu, BASE + n * HUGE, n + 1).unwrap());
        };
        // Start and length in pages, what is said, what became huge. Parts of huge pages are passed over; a
        // range that lies within one and ends before its end is refused.
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
        // Holes are told at the end; a VMA without room for a huge page ends it.
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

/// Zeroes come where pages were discarded, unless their table went with them.
#[test]
fn an_empty_table_is_no_obstacle() {
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
fn what_cannot_be_part_of_one() {
    each_way(HugePages::Never, |_, process, cpu| {
        let mut refused = |what: &str, prepare: &dyn Fn(&mut Vcpu)| {
            map(process, BASE, 2);
            process.store(cpu, BASE + HUGE, 9u64).unwrap();
            prepare(cpu);
            let frames = process.rss();
            // The second one's turn does not come.
            assert_eq!(collapse(process, BASE, 2 * HUGE), Err(MadviseError::Invalid), "{what}");
            assert_eq!(process.rss(), frames);
            assert_eq!(huge_ones(process, 2), [false; 2]);
        };
        refused("nothing", &|_| ());
        refused("nothing any more", &|cpu| {
            process.store(cpu, BASE, 1u64).unwrap();
            process.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
        });
        refused("a guard", &|cpu| {
            process.store(cpu, BASE, 1u64).unwrap();
            process.madvise(BASE + PAGE, PAGE, Advice::GuardInstall).unwrap();
        });
        // Zeroes alone, in a VMA that has no page yet.
        process.munmap(BASE, 2 * HUGE).unwrap();
        map(process, BASE, 1);
        assert_eq!(process.load::<u64>(cpu, BASE), Ok(0));
        assert_eq!(collapse(process, BASE, HUGE), Err(MadviseError::Invalid));
        // Nor where none are wanted; what is locked, sealed or left out of forks is no obstacle.
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
fn who_has_a_page_keeps_it() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 2);
        process.store(cpu, BASE + 3 * PAGE, 5u64).unwrap();
        process.store(cpu, BASE + HUGE, 6u64).unwrap();
        let pins = process.pin_user_pages(BASE + 3 * PAGE, 1, PinFlags::WRITE).unwrap();
        // The next one is collapsed all the same.
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
fn pages_of_a_userfaultfd() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 2);
        process.store(cpu, BASE, 1u64).unwrap();
        (0..PAGES).for_each(|page| process.store(cpu, BASE + HUGE + page * PAGE, page).unwrap());
        let config = UffdConfig { features: Features::empty(), user_mode_only: false };
        let uffd = Userfaultfd::new(process.space(), config).unwrap();
        uffd.register(BASE, 2 * HUGE, RegisterMode::MISSING).unwrap();
        // A page that its pager has to supply must not become zeroes.
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
fn a_forked_family() {
    each_way(HugePages::Never, |_, process, cpu| {
        map(process, BASE, 1);
        write_sample(process, cpu, BASE, 1);
        let child = Process::of(process.fork().unwrap());
        // Copied for the child, while the parent keeps the small ones.
        collapse(&child, BASE, HUGE).unwrap();
        write_sample(&child, cpu, BASE, 2);
        assert_sample(process, cpu, BASE, 1, all);
        assert_sample(&child, cpu, BASE, 2, all);
        assert_eq!((huge_bytes(process), huge_bytes(&child)), (0, HUGE));
        assert_eq!(process.rss().anon, SAMPLE.len() as i64);
        // Shared again, as a huge page, which moves when somebody asks it to.
        let grandchild = Process::of(child.fork().unwrap());
        collapse(process, BASE, HUGE).unwrap();
        write_sample(process, cpu, BASE, 3);
        assert_sample(&grandchild, cpu, BASE, 2, all);
        child.check();
        grandchild.check();
    });
}

#[test]
fn shared_memory_comes_whole() {
    each_way(HugePages::Never, |_, process, cpu| {
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE, 2 * HUGE, RW, shared, None, 0).unwrap();
        process.store(cpu, BASE + 7 * PAGE, 7u64).unwrap();
        collapse(process, BASE, HUGE).unwrap();
        assert_eq!(process.rss().shmem, PAGES as i64);
        assert_eq!(process.load::<u64>(cpu, BASE + 7 * PAGE), Ok(7));
        process.store(cpu, BASE + 8 * PAGE, 8u64).unwrap();
        assert_eq!(collapse(process, BASE, 2 * HUGE), Err(MadviseError::Invalid), "the second has no page");
        assert_eq!(process.rss().shmem, PAGES as i64);
        // A private copy is in the way.
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
        // Pages that do not lie in the file as they do in memory.
        process.mmap(BASE + 4 * HUGE, HUGE, RW, shared - MapFlags::ANONYMOUS, Some(&file), PAGE).unwrap();
        process.store(cpu, BASE + 4 * HUGE, 1u64).unwrap();
        assert_eq!(collapse(process, BASE + 4 * HUGE, HUGE), Err(MadviseError::Invalid));
    });
}

#[test]
fn without_memory() {
    for locking in Locking::ALL {
        // Less than one huge page.
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
