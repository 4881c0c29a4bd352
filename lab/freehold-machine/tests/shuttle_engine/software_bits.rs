//! Hardware that leaves accessed and dirty bits to software, with concurrent calls that clear the bits or
//! remove the entry.
//!
//! The machine uses the format [`SoftwareBits`], so an access faults if the entry lacks a bit that the access
//! needs, and the engine sets that bit (`fault/present.rs`). The fault sets a bit only in an entry that is
//! still there and permits the access. A bit in a wrong entry would show as a wrong value, or as a frame that
//! leaks. The helpers of `scene.rs` use a format whose hardware sets the bits, so this file builds its own
//! machine.

use crate::{
    explore::{explore, thread},
    scene::{ANON, PAGE, RW, page},
};
use freehold::{
    call::Advice,
    engine::{Config, Engine},
    space::{MapFlags, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process, SoftwareBits};
use freehold_pagetable::X86_4;

type Bare = Machine<SoftwareBits<X86_4>>;

#[test]
fn software_bits_are_set_only_in_the_current_entry() {
    explore("accesses without bits concurrent with aging, fork and DONTNEED", 60, |locking| {
        let machine = Bare::new(MachineConfig::backed(1 << 20).tables(1 << 18).cpus(4)).unwrap();
        let engine = Engine::new(machine.clone(), Config::default()).unwrap();
        let process = Process::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        process.mmap(page(0), PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
        process.store(&mut machine.cpu(0), page(0), 5u64).unwrap();
        let frame = process.frame_at(page(0)).unwrap();
        engine.referenced(frame).unwrap();
        thread::scope(|scope| {
            let (process, machine, engine) = (&process, &machine, &engine);
            scope.spawn(move || {
                // The TLB of CPU 0 still has a translation of the page.
                let mut cpu = machine.cpu(3);
                process.store(&mut cpu, page(0), 7u64).unwrap();
                let found: u64 = process.load(&mut cpu, page(0)).unwrap();
                assert!(found == 0 || found == 7, "{found}");
            });
            scope.spawn(move || {
                // `referenced` fails if the frame is free by now, or if its rmap lock is contended.
                let _ = engine.referenced(frame);
                process.madvise(page(0), PAGE, Advice::DontNeed).unwrap();
            });
            scope.spawn(move || {
                let child = Process::of(process.fork().unwrap());
                let found: u64 = child.load(&mut machine.cpu(1), page(0)).unwrap();
                assert!([0, 5, 7].contains(&found), "{found}");
                child.store(&mut machine.cpu(2), page(0), 9u64).unwrap();
            });
        });
        process.check();
        drop((process, engine));
        machine.accounting().assert_clean();
    });
}
