//! Frames with as many references as can be counted: what may last and be had without end is refused, and
//! nothing wraps.

use super::*;
use freehold::{engine::HugePages, error::ForkError, fault::FaultError, platform::Frame};

/// So many that nothing fits beside those that a page has in these tests.
const MORE: i32 = 1 << 30;

/// Runs `f` while a frame has so many references more.
fn crowded<R>(frame: &Frame, f: impl FnOnce() -> R) -> R {
    frame.pretend_references(MORE);
    let result = f();
    frame.pretend_references(-MORE);
    result
}

fn frame<'w>(world: &'w World, process: &Process, at: u64) -> &'w Frame {
    world.machine.frame(process.frame_at(at).expect("a page is there"))
}

#[test]
fn a_child_does_not_get_it() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 3);
        fill(process, cpu, BASE, 3, 10);
        // Shared already: what is one space's alone is copied for a child instead.
        let child = Process::of(process.fork().unwrap());
        let frame = frame(world, process, BASE + PAGE);
        crowded(frame, || assert_eq!(process.fork().err(), Some(ForkError::OutOfMemory)));
        drop(Process::of(process.fork().unwrap()));
        support::assert_filled(process, cpu, BASE, 3, 10);
        support::assert_filled(&child, cpu, BASE, 3, 10);
        child.check();
    });
}

#[test]
fn nor_a_huge_page_with_it() {
    for locking in Locking::ALL {
        let world = World::with(24 << 20, Config { huge_pages: HugePages::Always, ..Config::default() });
        world.live(locking, |world, process, cpu| {
            anon(process, BASE, 512);
            fill(process, cpu, BASE, 512, 10);
            let child = Process::of(process.fork().unwrap());
            let frame = frame(world, process, BASE + 100 * PAGE);
            crowded(frame, || assert_eq!(process.fork().err(), Some(ForkError::OutOfMemory)));
            support::assert_filled(&child, cpu, BASE, 512, 10);
            child.check();
        });
    }
}

#[test]
fn a_fault_does_not_map_it() {
    everywhere(|world, process, cpu| {
        let file = world.file(8);
        let map = |at| {
            process.mmap(at, 4 * PAGE, RW, MapFlags::SHARED | MapFlags::FIXED, Some(&file), 0).unwrap();
        };
        map(BASE);
        process.store(cpu, BASE + PAGE, 7u64).unwrap();
        let (frame, again) = (frame(world, process, BASE + PAGE), BASE + 0x100_0000);
        map(again);
        crowded(frame, || {
            assert_eq!(process.load::<u64>(cpu, again + PAGE), Err(FaultError::OutOfMemory));
            assert_eq!(process.store(cpu, again + PAGE, 8u64), Err(FaultError::OutOfMemory));
            // Its neighbours are mapped without it.
            assert_eq!(process.load(cpu, again), Ok(Disk::number(0)));
            assert_eq!(process.pin_user_pages(BASE + PAGE, 1, WRITE).err(), Some(PinError::TooMany));
        });
        assert_eq!(process.load(cpu, again + PAGE), Ok(7u64));
    });
}
