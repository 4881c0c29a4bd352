//! The side of the engine in the bench of userfaultfd.
//!
//! Implements [`Side`] with a process of the engine on backed memory. Each thread has an area that it fills
//! and an area from which it moves pages; one further area is for faults. Only the areas that threads fill
//! and the area for faults are registered. `host.rs` implements [`Side`] for the host kernel; `main.rs` runs
//! both in alternating rounds. Sizes and calls must be those of `host.rs`, because the table compares the two
//! sides.

use super::{Call, FAULTING, FAULTS, PAGE, PAGES, Side};
use freehold::engine::{Config, Engine as Kernel};
use freehold::fault::Access;
use freehold::uffd::{FillMode, Message, MoveMode, RegisterMode, UffdConfig, Userfaultfd};
use freehold::{
    call::Advice,
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process};
use std::time::{Duration, Instant};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
const FIXED: MapFlags = ANON.union(MapFlags::FIXED);
/// Start of the areas that threads fill. Each of the three kinds of areas has its own page tables.
const TARGET: u64 = 0x10_0000_0000;
/// Start of the areas from which pages are moved.
const SOURCE: u64 = 0x20_0000_0000;
/// Start of the area for faults.
const FAULTED: u64 = 0x30_0000_0000;

/// The contents that COPY writes.
static CONTENTS: [u8; (PAGES * PAGE) as usize] = [7; (PAGES * PAGE) as usize];

/// The process and its userfaultfd.
pub struct Engine {
    /// The process with the three areas.
    process: Process,
    /// The userfaultfd.
    uffd: Userfaultfd<Machine>,
}

/// Returns the start of a thread's part of an area.
fn area(start: u64, thread: u64) -> u64 {
    start + thread * 2 * PAGES * PAGE
}

impl Engine {
    /// Maps and registers the areas.
    pub fn new() -> Self {
        let machine = Machine::new(MachineConfig::backed(128 << 20).fast()).expect("memory");
        let kernel = Kernel::new(machine, Config::default()).expect("memory");
        let process = Process::new(&kernel, &SpaceConfig::default()).expect("memory");
        let uffd = Userfaultfd::new(process.space(), UffdConfig::default()).expect("memory");
        for thread in 0..2 {
            for start in [TARGET, SOURCE] {
                process.mmap(area(start, thread), PAGES * PAGE, RW, FIXED, None, 0).expect("room");
            }
            uffd.register(area(TARGET, thread), PAGES * PAGE, RegisterMode::MISSING).expect("mapped");
        }
        process.mmap(FAULTED, FAULTING * FAULTS * PAGE, RW, FIXED, None, 0).expect("room");
        uffd.register(FAULTED, FAULTING * FAULTS * PAGE, RegisterMode::MISSING).expect("mapped");
        Engine { process, uffd }
    }
}

impl Side for Engine {
    const NAME: &'static str = "freehold";

    fn call(&self, call: Call, thread: u64, first: u64, pages: u64) {
        let (at, len) = (area(TARGET, thread) + first * PAGE, pages * PAGE);
        let done = match call {
            Call::Copy => self.uffd.copy(at, &CONTENTS[..len as usize], FillMode::empty()),
            Call::ZeroPage => self.uffd.zeropage(at, len, FillMode::empty()),
            Call::Move => {
                let from = area(SOURCE, thread) + first * PAGE;
                self.uffd.move_pages(at, from, len, MoveMode::empty())
            }
        };
        assert_eq!(done, Ok(len), "{call:?}");
    }

    fn reset(&self, call: Call, thread: u64) {
        self.process.madvise(area(TARGET, thread), PAGES * PAGE, Advice::DontNeed).expect("mapped");
        for page in (0..PAGES).filter(|_| call == Call::Move) {
            self.process.handle_fault(area(SOURCE, thread) + page * PAGE, Access::WRITE).expect("memory");
        }
    }

    fn map_unmap(&self) {
        let at = self.process.mmap(0, PAGE, RW, ANON, None, 0).expect("room");
        self.process.munmap(at, PAGE).expect("mapped");
    }

    fn faults(&self) -> Duration {
        let pages = FAULTING * FAULTS;
        self.process.madvise(FAULTED, pages * PAGE, Advice::DontNeed).expect("mapped");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..pages {
                    let Ok(Message::Fault { addr, .. }) = self.uffd.read() else {
                        panic!("a message that is not a fault")
                    };
                    self.uffd
                        .copy(addr, &CONTENTS[..PAGE as usize], FillMode::empty())
                        .expect("the page is not mapped");
                }
            });
            let began = Instant::now();
            let threads: Vec<_> = (0..FAULTING)
                .map(|thread| {
                    scope.spawn(move || {
                        for page in 0..FAULTS {
                            let at = FAULTED + (thread * FAULTS + page) * PAGE;
                            self.process.handle_fault(at, Access::WRITE).expect("served");
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no fault fails"));
            began.elapsed()
        })
    }
}
