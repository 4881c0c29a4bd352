//! Pages of shared memory that are swapped out and come back (`src/file/swapped.rs`).

use super::{Swapped, swapped_pages};
use crate::support::{
    failure::{Failure, at_every_allocation},
    *,
};
use freehold::{
    call::Advice,
    error::{FillError, SwapOffError, UffdError},
    fault::{Access, FaultError},
    file::{File, FileAccess, Mapping},
    remote::PinFlags,
    report::pagemap::{MarkerKind, PageEntry},
    space::AddressSpace,
    uffd::{FillMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_vmspace::{PageIndex, PageRange};
use std::ops::ControlFlow;

/// A file of shared memory that a process maps at [`BASE`]. Page `n` has the word `n + 1`.
struct Shared {
    swapped: Swapped,
    process: Process,
    file: Counted<File<Machine>>,
}

impl Shared {
    fn new(locking: Locking, pages: u64) -> Self {
        let swapped = Swapped::new(64);
        let process = swapped.process(locking);
        let mapping = Mapping::memfd(swapped.world.engine(), pages * PAGE).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/memfd:it").unwrap();
        map(&process, &file, BASE, pages, MapFlags::SHARED);
        let mut cpu = swapped.world.machine.cpu(0);
        fill(&process, &mut cpu, BASE, pages, 1);
        drop(cpu);
        Shared { swapped, process, file }
    }

    fn mapping(&self) -> &Counted<Mapping<Machine>> {
        self.file.mapping()
    }

    /// Swaps all pages out that can go.
    fn swap_out(&self) {
        while self.swapped.reclaim().freed > 0 {}
        self.mapping().check();
    }

    fn cpu(&self) -> Vcpu {
        self.swapped.world.machine.cpu(0)
    }

    fn word(&self, page: u64) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(self.mapping().read_at(page * PAGE, &mut bytes), Ok(8));
        u64::from_le_bytes(bytes)
    }

    fn reads(&self) -> u64 {
        self.swapped.device.stats().pages_read
    }

    fn swapped_out(&self) -> u64 {
        self.mapping().swapped_pages(PageRange::ALL)
    }
}

fn map(process: &Process, file: &Counted<File<Machine>>, at: u64, pages: u64, flags: MapFlags) {
    process.mmap(at, pages * PAGE, RW, flags | MapFlags::FIXED, Some(file), 0).unwrap();
}

/// Runs a scenario on every design, with a file of `pages` pages that are in memory.
fn with_file(pages: u64, scenario: impl Fn(&Shared, &mut Vcpu)) {
    for locking in Locking::ALL {
        let shared = Shared::new(locking, pages);
        let mut cpu = shared.cpu();
        scenario(&shared, &mut cpu);
        shared.process.check();
        shared.mapping().check();
        let Shared { swapped, process, file } = shared;
        drop((process, file, cpu));
        swapped.end();
    }
}

/// Runs a scenario like [`with_file`], with pages that are swapped out.
fn with_out(pages: u64, scenario: impl Fn(&Shared, &mut Vcpu)) {
    with_file(pages, |shared, cpu| {
        shared.swap_out();
        assert_eq!(
            (shared.swapped_out(), shared.swapped.used(), shared.process.rss().shmem),
            (pages, pages, 0)
        );
        scenario(shared, cpu);
    });
}

#[test]
fn pages_come_back_with_their_contents() {
    with_out(4, |shared, cpu| {
        assert_eq!(shared.mapping().present_pages(), 4, "they are memory of the file");
        assert_eq!(swapped_pages(&shared.process), 0, "as on Linux, VmSwap counts private memory");
        assert!(shared.process.handle_fault(BASE, Access::READ).unwrap().major);
        assert_filled(&shared.process, cpu, BASE, 4, 1);
        assert_eq!((shared.swapped_out(), shared.swapped.used()), (0, 0));
        // Each page is written to, and goes and comes again.
        for round in 2..20 {
            fill(&shared.process, cpu, BASE, 4, round);
            shared.swap_out();
            assert_eq!(shared.swapped.used(), 4);
            assert_filled(&shared.process, cpu, BASE, 4, round);
        }
    });
}

#[test]
fn page_full_of_zeroes_takes_no_slot() {
    with_file(2, |shared, cpu| {
        shared.process.store(cpu, BASE, 0u64).unwrap();
        shared.swap_out();
        assert_eq!((shared.swapped_out(), shared.swapped.used()), (2, 1));
        assert!(shared.mapping().has_data(PageIndex::ZERO), "the page is no hole");
        assert_eq!((shared.word(0), shared.word(1), shared.reads()), (0, 2, 1));
        assert_eq!(shared.swapped_out(), 0);
    });
}

#[test]
fn reads_and_writes_of_the_file() {
    with_out(4, |shared, _| {
        assert_eq!((shared.word(1), shared.reads()), (2, 1));
        // The page before is in memory, so the next page is read as well.
        shared.mapping().write_at(2 * PAGE + 8, &[7; 8]).unwrap();
        assert_eq!((shared.word(2), shared.reads()), (3, 3));
        // A whole page is not read.
        let before = shared.reads();
        shared.mapping().write_at(0, &[9; PAGE as usize]).unwrap();
        assert_eq!((shared.word(0), shared.reads()), (u64::from_le_bytes([9; 8]), before));
        assert_eq!((shared.word(3), shared.mapping().present_pages()), (4, 4));
    });
}

#[test]
fn write_across_pages_keeps_the_rest() {
    with_out(3, |shared, _| {
        shared.mapping().write_at(PAGE - 8, &[5; 16 + PAGE as usize]).unwrap();
        assert_eq!((shared.word(0), shared.word(1)), (1, u64::from_le_bytes([5; 8])));
        let mut end = [0; 16];
        shared.mapping().read_at(2 * PAGE, &mut end).unwrap();
        assert_eq!(end[..8], [5; 8]);
        assert_eq!(end[8..], [0; 8]);
    });
}

#[test]
fn removed_pages_give_up_their_slots() {
    with_out(6, |shared, cpu| {
        shared.mapping().punch(PAGE..2 * PAGE).unwrap();
        assert_eq!((shared.swapped.used(), shared.mapping().present_pages()), (5, 5));
        assert!(!shared.mapping().has_data(PageIndex::new(1)));
        shared.mapping().truncate(4 * PAGE).unwrap();
        assert_eq!((shared.swapped.used(), shared.word(1)), (3, 0));
        shared.mapping().truncate(6 * PAGE).unwrap();
        assert_eq!((shared.word(4), shared.word(3)), (0, 4));
        assert_eq!(shared.process.load::<u64>(cpu, BASE), Ok(1));
        // The last reference to the file frees the rest.
        shared.swap_out();
    });
}

#[test]
fn parts_of_pages_become_zeroes() {
    with_file(3, |shared, cpu| {
        for page in 0..3 {
            shared.process.store(cpu, BASE + page * PAGE + PAGE - 8, 50u64).unwrap();
        }
        shared.swap_out();
        shared.mapping().punch(8..PAGE + 8).unwrap();
        assert_eq!(shared.process.load::<u64>(cpu, BASE), Ok(1));
        assert_eq!(shared.process.load::<u64>(cpu, BASE + PAGE - 8), Ok(0));
        assert_eq!(shared.process.load::<u64>(cpu, BASE + PAGE), Ok(0));
        assert_eq!(shared.process.load::<u64>(cpu, BASE + 2 * PAGE - 8), Ok(50));
        shared.swap_out();
        shared.mapping().truncate(2 * PAGE + 8).unwrap();
        shared.mapping().truncate(3 * PAGE).unwrap();
        assert_eq!(shared.process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(3));
        assert_eq!(shared.process.load::<u64>(cpu, BASE + 3 * PAGE - 8), Ok(0));
    });
}

#[test]
fn allocation_of_a_page_that_is_swapped_out_brings_it_back() {
    with_out(2, |shared, _| {
        shared.mapping().reserve(PageIndex::new(1)).unwrap();
        assert_eq!((shared.word(1), shared.swapped_out()), (2, 1));
    });
}

#[test]
fn reports_show_the_pages() {
    with_out(4, |shared, _| {
        let usage = || shared.process.smaps(BASE).next().unwrap().usage;
        assert_eq!((usage().swap, usage().swap_pss, usage().rss), (4 * PAGE, 0, 0));
        let mut present = [9; 4];
        shared.process.mincore(BASE, 4 * PAGE, &mut present).unwrap();
        assert_eq!(present, [0; 4]);
        let (run, is_data) = shared.mapping().page_run(PageRange::ALL);
        assert_eq!((run.len().get(), is_data), (4, true));
        shared.process.madvise(BASE, 2 * PAGE, Advice::WillNeed).unwrap();
        shared.process.mincore(BASE, 4 * PAGE, &mut present).unwrap();
        assert_eq!((present, shared.reads()), ([1, 1, 0, 0], 2), "two pages are in the swap cache");
        assert_eq!(usage().swap, 4 * PAGE);
        assert!(!shared.process.handle_fault(BASE, Access::READ).unwrap().major);
    });
}

#[test]
fn private_mappings_see_the_pages() {
    with_file(2, |shared, cpu| {
        let own = BASE + 16 * PAGE;
        map(&shared.process, &shared.file, own, 2, MapFlags::PRIVATE);
        shared.process.store(cpu, own, 70u64).unwrap();
        shared.swap_out();
        let usage = || shared.process.smaps(own).next().unwrap().usage;
        // A page of the file, and the copy of the other page.
        assert_eq!((shared.swapped_out(), usage().swap, usage().swap_pss), (2, 2 * PAGE, PAGE));
        assert_eq!(shared.process.load::<u64>(cpu, own), Ok(70));
        shared.process.store(cpu, own + PAGE, 71u64).unwrap();
        assert_filled(&shared.process, cpu, BASE, 2, 1);
        assert_eq!(shared.process.load::<u64>(cpu, own + PAGE), Ok(71));
    });
}

#[test]
fn processes_share_the_pages() {
    with_file(2, |shared, cpu| {
        let child = Process::of(shared.process.fork().unwrap());
        assert_filled(&child, cpu, BASE, 2, 1);
        shared.swap_out();
        assert_eq!((shared.swapped.used(), child.rss().shmem), (2, 0));
        child.store(cpu, BASE, 60u64).unwrap();
        assert_eq!(shared.process.load::<u64>(cpu, BASE), Ok(60));
        assert_eq!(shared.process.frame_at(BASE), child.frame_at(BASE));
        shared.swap_out();
        child.check();
    });
}

#[test]
fn pages_in_use_stay() {
    with_file(3, |shared, _| {
        shared.process.mlock(BASE, PAGE).unwrap();
        let pins = shared.process.pin_user_pages(BASE + PAGE, 1, PinFlags::WRITE).unwrap();
        shared.swap_out();
        assert_eq!(shared.swapped_out(), 1);
        drop(pins);
        shared.process.munlock(BASE, PAGE).unwrap();
        shared.swap_out();
        assert_eq!(shared.swapped_out(), 3);
    });
}

#[test]
fn advice_swaps_pages_out() {
    with_file(4, |shared, cpu| {
        shared.process.madvise(BASE, 2 * PAGE, Advice::PageOut).unwrap();
        assert_eq!((shared.swapped_out(), shared.swapped.used()), (2, 2));
        assert_filled(&shared.process, cpu, BASE, 4, 1);
    });
}

#[test]
fn full_device_leaves_pages_in_memory() {
    for locking in Locking::ALL {
        let shared = Shared::new(locking, 80);
        shared.swap_out();
        assert_eq!((shared.swapped_out(), shared.swapped.used()), (64, 64));
        assert_filled(&shared.process, &mut shared.cpu(), BASE, 80, 1);
        let Shared { swapped, process, file } = shared;
        drop((process, file));
        swapped.end();
    }
}

#[test]
fn failed_read_is_an_error_for_that_page_alone() {
    with_out(3, |shared, cpu| {
        shared.swapped.device.fail_reads(shared.swapped.device.stored());
        assert_eq!(shared.process.load::<u64>(cpu, BASE), Err(FaultError::Bus { addr: BASE }));
        assert_eq!(shared.mapping().read_at(PAGE, &mut [0; 8]), Err(FillError::Io));
        assert_eq!(shared.mapping().write_at(8, &[1]), Err(FillError::Io));
        shared.mapping().write_at(2 * PAGE, &[0; PAGE as usize]).unwrap();
        shared.swapped.device.fail_reads([]);
        assert_eq!((shared.word(0), shared.word(1), shared.word(2)), (1, 2, 0));
    });
}

#[test]
fn tasks_that_need_the_same_page_cause_one_read_and_hold_no_lock() {
    with_out(2, |shared, _| {
        shared.swapped.device.complete_later(true);
        let load = |number: usize| {
            move || {
                let mut cpu = shared.swapped.world.machine.cpu(number);
                shared.process.load::<u64>(&mut cpu, BASE)
            }
        };
        std::thread::scope(|scope| {
            let tasks = [1, 2].map(|number| spawn_until_waiting(scope, load(number)));
            let writer = spawn_until_waiting(scope, || shared.mapping().write_at(8, &[3; 8]));
            assert_eq!(shared.swapped.device.stats().read_requests, 1);
            // Neither the readers nor the writer hold a lock.
            shared.process.mprotect(BASE, PAGE, R).unwrap();
            shared.process.mprotect(BASE, PAGE, RW).unwrap();
            shared.mapping().truncate(3 * PAGE).unwrap();
            shared.mapping().write_at(2 * PAGE, &[4; 8]).unwrap();
            while shared.swapped.device.complete_next() {}
            tasks.into_iter().for_each(|task| assert_eq!(task.join().unwrap(), Ok(1)));
            assert_eq!(writer.join().unwrap(), Ok(8));
        });
        shared.swapped.device.complete_later(false);
        assert_eq!((shared.word(0), shared.word(1)), (1, 2));
    });
}

#[test]
fn removal_does_not_wait_for_a_read() {
    with_out(1, |shared, cpu| {
        shared.swapped.device.complete_later(true);
        std::thread::scope(|scope| {
            let reader = spawn_until_waiting(scope, || shared.word(0));
            shared.mapping().punch(0..PAGE).unwrap();
            assert_eq!(shared.process.load::<u64>(cpu, BASE), Ok(0));
            assert!(shared.swapped.device.complete_next());
            assert_eq!(reader.join().unwrap(), 0);
        });
        shared.swapped.device.complete_later(false);
        assert_eq!(shared.swapped.used(), 0);
    });
}

#[test]
fn fatal_signal_ends_the_wait() {
    with_out(1, |shared, _| {
        shared.swapped.device.complete_later(true);
        assert_eq!(killed(|| shared.mapping().read_at(0, &mut [0; 8])), Err(FillError::Killed));
        assert!(shared.swapped.device.complete_next());
        shared.swapped.device.complete_later(false);
        assert_eq!(shared.word(0), 1);
    });
}

#[test]
fn page_that_is_being_written_comes_back_without_a_read() {
    with_file(1, |shared, cpu| {
        shared.swapped.device.complete_later(true);
        shared.swapped.reclaim();
        assert_eq!((shared.swapped.device.waiting(), shared.swapped_out()), (1, 1));
        shared.process.store(cpu, BASE + 8, 5u64).unwrap();
        assert_eq!((shared.swapped_out(), shared.reads()), (0, 0));
        // The page is in use by the write, and stays.
        shared.swapped.reclaim();
        assert_eq!(shared.swapped_out(), 0);
        assert!(shared.swapped.device.complete_next());
        shared.swapped.device.complete_later(false);
        shared.swap_out();
        assert_eq!(shared.process.load::<u64>(cpu, BASE + 8), Ok(5));
        assert_eq!(shared.process.load::<u64>(cpu, BASE), Ok(1));
    });
}

#[test]
fn swapoff_brings_the_pages_back() {
    with_out(4, |shared, cpu| {
        let (engine, id) = (shared.swapped.world.engine(), shared.swapped.id);
        let none = || None::<Counted<AddressSpace<Machine>>>;
        shared.swapped.device.fail_reads(shared.swapped.device.stored());
        assert_eq!(engine.swap_off(id, none), Err(SwapOffError::Io));
        shared.swapped.device.fail_reads([]);
        engine.swap_off(id, none).unwrap();
        assert_eq!((shared.swapped_out(), shared.swapped.device.stored().len()), (0, 0));
        assert_filled(&shared.process, cpu, BASE, 4, 1);
        assert_eq!(engine.swap_on(shared.swapped.device.clone(), 0), Ok(id));
    });
}

#[test]
fn userfaultfd_gets_no_message_about_a_page_that_is_swapped_out() {
    with_out(3, |shared, cpu| {
        let uffd = Userfaultfd::new(shared.process.space(), UffdConfig::default()).unwrap();
        uffd.register(BASE, 3 * PAGE, RegisterMode::MISSING).unwrap();
        assert_eq!(shared.process.load::<u64>(cpu, BASE), Ok(1));
        let copied = uffd.copy(BASE + PAGE, &[9; PAGE as usize], FillMode::empty());
        assert_eq!(copied, Err(UffdError::Present));
        uffd.unregister(BASE, 3 * PAGE).unwrap();
        uffd.register(BASE, 3 * PAGE, RegisterMode::MINOR).unwrap();
        assert_eq!(uffd.continue_with(BASE + PAGE, 2 * PAGE, FillMode::empty()), Ok(2 * PAGE));
        assert_eq!(shared.process.load::<u64>(cpu, BASE + PAGE), Ok(2));
        assert_eq!(shared.process.load::<u64>(cpu, BASE + 2 * PAGE), Ok(3));
    });
}

#[test]
fn write_protection_by_a_userfaultfd_survives() {
    with_file(1, |shared, _| {
        let uffd = Userfaultfd::new(shared.process.space(), UffdConfig::default()).unwrap();
        uffd.register(BASE, PAGE, RegisterMode::WP).unwrap();
        uffd.write_protect(BASE, PAGE, freehold::uffd::ProtectMode::WP).unwrap();
        shared.swap_out();
        assert_eq!(shared.swapped_out(), 1);
        let mut entries = Vec::new();
        shared.process.page_entries(BASE..BASE + PAGE, |run| {
            entries.push(run.entry);
            ControlFlow::Continue(())
        });
        assert_eq!(entries, [PageEntry::Marker(MarkerKind::UffdWp)]);
    });
}

#[test]
fn swap_out_without_memory_loses_nothing() {
    let reached = at_every_allocation(&Failure::ALL, |point| {
        // The table of the slots is allocated in the call.
        let shared = Shared::new(Locking::default(), 3);
        point.fail(|| while shared.swapped.reclaim().freed > 0 {});
        shared.mapping().check();
        assert_filled(&shared.process, &mut shared.cpu(), BASE, 3, 1);
        let Shared { swapped, process, file } = shared;
        drop((process, file));
        swapped.end();
    });
    assert!(reached > 0, "a swap-out allocates");
}

#[test]
fn swap_in_without_memory_can_be_repeated() {
    with_file(3, |shared, cpu| {
        let reached = at_every_allocation(&Failure::ALL, |point| {
            shared.swap_out();
            shared.swapped.world.engine().trim();
            match point.fail(|| shared.mapping().write_at(8, &[1; 2 * PAGE as usize])) {
                Ok(_) => {}
                Err(error) => assert_eq!(error, FillError::NoMemory, "{point}"),
            }
            shared.mapping().check();
            assert_eq!(shared.word(0), 1);
            fill(&shared.process, cpu, BASE, 3, 1);
        });
        assert!(reached > 0, "a swap-in allocates");
    });
}
