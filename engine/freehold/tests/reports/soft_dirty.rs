//! Soft-dirty pages (`clear_soft_dirty` in `src/report/clear_refs.rs`): which pages count as written since the
//! bits were cleared. Each test clears the bits, makes a change, and compares the soft-dirty pages with the
//! expected pages. `Process::check` tests after each scenario that a writable entry is soft-dirty.

use super::*;
use freehold::{
    call::{Advice, RemapFlags},
    engine::HugePages,
    hugetlb::HugePageSize,
    remote::{AccessMode, PinFlags},
    vma::flags::VmFlags,
};
use std::ops::ControlFlow;

const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);

/// Returns the numbers of the soft-dirty pages among `pages` pages from `at` on.
fn dirty(process: &Process, at: u64, pages: u64) -> Vec<u64> {
    let mut dirty = Vec::new();
    let end = at + pages * PAGE;
    for line in process.maps(at).take_while(|line| line.start < end) {
        let part = line.start.max(at)..line.end.min(end);
        if line.flags.contains(VmFlags::SOFTDIRTY) {
            dirty.extend(part.step_by(PAGE as usize).map(|page| (page - at) / PAGE));
            continue;
        }
        process.page_entries(part, |run| {
            if run.soft_dirty {
                dirty.extend(run.range.iter().map(|page| (page - at) / PAGE));
            }
            ControlFlow::Continue(())
        });
    }
    dirty
}

fn all(pages: u64) -> Vec<u64> {
    (0..pages).collect()
}

#[test]
fn stores_after_the_clear_make_pages_soft_dirty() {
    everywhere(|world, process, cpu| {
        let file = world.file(4);
        let [own, shared, private] = [0, 16, 32].map(|page| BASE + page * PAGE);
        anon(process, own, 4);
        process.mmap(shared, 4 * PAGE, RW, SHARED, Some(&file), 0).unwrap();
        process.mmap(private, 4 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        for at in [own, shared, private] {
            assert_eq!(dirty(process, at, 4), all(4), "new memory counts as soft-dirty");
            fill(process, cpu, at, 3, 1);
        }
        // The CPU has cached translations with the right to write.
        process.clear_soft_dirty().unwrap();
        for at in [own, shared, private] {
            assert_eq!(dirty(process, at, 4), []);
            process.load::<u64>(cpu, at).unwrap();
            process.load::<u64>(cpu, at + 3 * PAGE).unwrap();
            assert_eq!(dirty(process, at, 4), [], "loads do not count");
            process.store(cpu, at + PAGE, 7u64).unwrap();
            process.store(cpu, at + 3 * PAGE, 8u64).unwrap();
            assert_eq!(dirty(process, at, 4), [1, 3]);
            let contents = [0, 1, 2, 3].map(|n| process.load::<u64>(cpu, at + n * PAGE).unwrap());
            assert_eq!(contents[..2], [1, 7]);
            assert_eq!(contents[3], 8);
        }
        process.clear_soft_dirty().unwrap();
        process.madvise(own, 2 * PAGE, Advice::DontNeed).unwrap();
        process.store(cpu, own, 1u64).unwrap();
        assert_eq!(dirty(process, own, 4), [0]);
    });
}

#[test]
fn rights_given_without_a_fault_do_not_hide_a_store() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        process.clear_soft_dirty().unwrap();
        process.store(cpu, BASE, 2u64).unwrap();
        process.mprotect(BASE, 4 * PAGE, R).unwrap();
        process.mprotect(BASE, 4 * PAGE, RW).unwrap();
        assert_eq!(dirty(process, BASE, 4), [0]);
        process.store(cpu, BASE + PAGE, 2u64).unwrap();
        assert_eq!(dirty(process, BASE, 4), [0, 1]);
        // A debugger and a pin write to a private copy of memory that the program may not write.
        process.mprotect(BASE, 4 * PAGE, R).unwrap();
        process.write_memory(BASE + 2 * PAGE, &[1], AccessMode::Forced).unwrap();
        assert_eq!(dirty(process, BASE, 4), [0, 1, 2]);
        let pins = process.pin_user_pages(BASE + 3 * PAGE, 1, PinFlags::WRITE | PinFlags::FORCE).unwrap();
        assert_eq!(dirty(process, BASE, 4), all(4));
        drop(pins);
    });
}

#[test]
fn pinned_pages_stay_soft_dirty() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        let pins = process.pin_user_pages(BASE, 1, PinFlags::WRITE).unwrap();
        process.clear_soft_dirty().unwrap();
        assert_eq!(dirty(process, BASE, 2), [0], "the device stores to the page without a fault");
        drop(pins);
        process.clear_soft_dirty().unwrap();
        assert_eq!(dirty(process, BASE, 2), []);
    });
}

#[test]
fn new_grown_and_moved_memory_is_soft_dirty() {
    everywhere(|_, process, cpu| {
        let far = BASE + 64 * HUGE;
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        process.clear_soft_dirty().unwrap();
        process.munmap(BASE + PAGE, PAGE).unwrap();
        assert_eq!(dirty(process, BASE, 4), []);
        // The new memory merges with its neighbours. The merged VMA counts as soft-dirty.
        anon(process, BASE + PAGE, 1);
        assert_eq!(dirty(process, BASE, 4), all(4));
        process.clear_soft_dirty().unwrap();
        process.mremap(BASE, 4 * PAGE, 5 * PAGE, RemapFlags::empty(), 0).unwrap();
        assert_eq!(dirty(process, BASE, 5), all(5));
        process.clear_soft_dirty().unwrap();
        process.mremap(BASE, 2 * PAGE, 2 * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, far).unwrap();
        assert_eq!((dirty(process, far, 2), dirty(process, BASE + 2 * PAGE, 3)), (all(2), vec![]));
        // Whole page tables move here.
        anon(process, BASE, 512);
        fill(process, cpu, BASE, 8, 1);
        process.clear_soft_dirty().unwrap();
        process.mremap(BASE, HUGE, HUGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, far).unwrap();
        assert_eq!(dirty(process, far, 512), all(512));
    });
}

#[test]
fn forked_child_has_the_bits_of_its_parent() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        fill(process, cpu, BASE, 4, 1);
        process.clear_soft_dirty().unwrap();
        process.store(cpu, BASE + PAGE, 2u64).unwrap();
        let child = Process::of(process.fork().unwrap());
        assert_eq!((dirty(process, BASE, 4), dirty(&child, BASE, 4)), (vec![1], vec![1]));
        child.store(cpu, BASE + 2 * PAGE, 3u64).unwrap();
        assert_eq!((dirty(process, BASE, 4), dirty(&child, BASE, 4)), (vec![1], vec![1, 2]));
        child.clear_soft_dirty().unwrap();
        assert_eq!((dirty(process, BASE, 4), dirty(&child, BASE, 4)), (vec![1], vec![]));
    });
}

#[test]
fn moved_frames_keep_the_bits() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 1);
        process.clear_soft_dirty().unwrap();
        process.store(cpu, BASE, 2u64).unwrap();
        for n in 0..2 {
            world.engine().migrate(process.frame_at(BASE + n * PAGE).unwrap()).unwrap();
        }
        assert_eq!(dirty(process, BASE, 2), [0]);
        process.store(cpu, BASE + PAGE, 2u64).unwrap();
        assert_eq!(dirty(process, BASE, 2), all(2));
    });
}

#[test]
fn store_to_a_huge_page_makes_the_huge_page_soft_dirty() {
    let config = Config::new().huge_pages(HugePages::Always);
    everywhere_with(16 << 20, &config, |_, process, cpu| {
        anon(process, BASE, HUGE / PAGE);
        process.store(cpu, BASE, 1u64).unwrap();
        process.clear_soft_dirty().unwrap();
        assert_eq!(dirty(process, BASE, 512), []);
        process.store(cpu, BASE + 9 * PAGE, 1u64).unwrap();
        assert_eq!(dirty(process, BASE, 512), all(512));
        // The small pages of a split huge page have its bits.
        process.clear_soft_dirty().unwrap();
        process.mprotect(BASE + PAGE, PAGE, R).unwrap();
        assert_eq!(dirty(process, BASE, 512), []);
        process.store(cpu, BASE, 2u64).unwrap();
        assert_eq!(dirty(process, BASE, 512), [0]);
    });
}

#[test]
fn huge_pages_of_pools_keep_their_bits() {
    for locking in Locking::ALL {
        let world = World::with(24 << 20, Config::default());
        world.engine().resize_huge_pool(HugePageSize::Mib2, 2, None);
        world.live(locking, |_, process, cpu| {
            process.mmap(BASE, HUGE, RW, ANON | MapFlags::HUGETLB | MapFlags::FIXED, None, 0).unwrap();
            process.store(cpu, BASE, 1u64).unwrap();
            process.clear_soft_dirty().unwrap();
            let line = process.maps(BASE).next().unwrap();
            assert!(!line.flags.contains(VmFlags::SOFTDIRTY));
            assert_eq!(dirty(process, BASE, 512), all(512));
        });
    }
}
