//! Changes of address spaces by many processors.

use crate::world::{ANON, PAGE, RW, World, more};
use freehold::fault::Access;
use freehold::space::Locking;

/// Processes of their own have nothing in common but the engine: mapping, touching, unmapping.
#[test]
fn processes_that_map_and_unmap_pass_no_line_around() {
    let more = more(20, |times| {
        let world = World::new(16);
        let processes: Vec<_> = (0..16).map(|_| world.process(Locking::default())).collect();
        let report = world.all(|number| {
            let (process, mut cpu) = (&processes[number], world.machine.cpu(number));
            for _ in 0..times {
                let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).expect("a VMA");
                process.touch(&mut cpu, at, Access::WRITE).expect("a page");
                cpu.call(|| process.munmap(at, 4 * PAGE)).expect("unmapped");
            }
        });
        (world, report)
    });
    assert!(more.most() < 0.01, "{:?}", more.places);
}

/// Threads of one process have its mmap lock in common, so that the test above is known to see it.
#[test]
fn threads_that_map_and_unmap_pass_the_mmap_lock_around() {
    let more = more(20, |times| {
        let world = World::new(16);
        let process = world.process(Locking::default());
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            for _ in 0..times {
                let at = process.mmap(0, 4 * PAGE, RW, ANON, None, 0).expect("a VMA");
                process.touch(&mut cpu, at, Access::WRITE).expect("a page");
                cpu.call(|| process.munmap(at, 4 * PAGE)).expect("unmapped");
            }
        });
        (world, report)
    });
    assert!(more.most() > 0.9, "{:?}", more.places);
}
