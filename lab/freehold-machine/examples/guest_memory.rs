//! The memory of a guest that is a part of a process: a hypervisor whose second stage follows the process as
//! a listener.
//!
//! `cargo run --example guest_memory --package freehold-machine`
//!
//! The second stage is a [`Shadow`] (`src/shadow.rs`), which is the listener to copy for a hypervisor of your
//! own. The process changes its memory by munmap, fork, migration and reclaim, and the guest never sees a
//! page that the process has lost. At the end, the guest inflates and deflates a balloon.

use freehold::{
    PAGE_SIZE,
    call::Advice,
    engine::{Config, Engine},
    error::AccessError,
    space::{MapFlags, Prot, SpaceConfig},
};
use freehold_machine::{Machine, MachineConfig, Process, Shadow};
use std::{error::Error, sync::Arc};

/// The start of the guest's memory in the process.
const BASE: u64 = 0x1000_0000;
/// Number of pages of the guest.
const PAGES: u64 = 16;

/// A guest: the process whose memory it uses, and its second stage.
struct Guest {
    process: Process,
    stage: Arc<Shadow>,
}

impl Guest {
    fn new(process: Process) -> Result<Self, Box<dyn Error>> {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        process.mmap(BASE, PAGES * PAGE_SIZE, Prot::READ | Prot::WRITE, flags, None, 0)?;
        let (stage, _) = Shadow::attach(process.space())?;
        Ok(Guest { process, stage })
    }

    /// Returns the address in the process of a page of the guest.
    fn page(number: u64) -> u64 {
        BASE + number * PAGE_SIZE
    }

    fn load(&self, number: u64) -> Result<u64, AccessError> {
        self.stage.load(&self.process, Self::page(number))
    }

    fn store(&self, number: u64, value: u64) -> Result<(), AccessError> {
        self.stage.store(&self.process, Self::page(number), value)
    }

    /// Inflates the balloon by a page: the guest promises not to use the page. The page is unmapped from the
    /// second stage and released before the call returns, which acknowledges the request of the guest.
    fn inflate(&self, number: u64) -> Result<(), Box<dyn Error>> {
        self.process.madvise(Self::page(number), PAGE_SIZE, Advice::DontNeed)?;
        assert_eq!(self.stage.translation(Self::page(number)), None, "unmapped before it was released");
        Ok(())
    }

    /// Deflates the balloon by a page: the page is mapped again before the request is acknowledged, so the
    /// first access of the guest does not wait for memory.
    fn deflate(&self, number: u64) -> Result<(), Box<dyn Error>> {
        self.process.madvise(Self::page(number), PAGE_SIZE, Advice::PopulateWrite)?;
        self.store(number, 0)?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let machine: Machine = Machine::new(MachineConfig::backed(8 << 20))?;
    let engine = Engine::new(machine.clone(), Config::new())?;
    let guest = Guest::new(Process::new(&engine, &SpaceConfig::new())?)?;
    let process = &guest.process;
    for number in 0..PAGES {
        guest.store(number, 100 + number)?;
    }

    // The process and the guest use the same page.
    let mut cpu = machine.cpu(0);
    process.store(&mut cpu, Guest::page(0), 7_u64).map_err(|_| "no page")?;
    assert_eq!(guest.load(0), Ok(7));

    // After fork, a store of the guest copies the page. The child keeps the old contents.
    let child = Process::of(process.fork()?);
    guest.store(1, 8)?;
    assert_eq!(child.load::<u64>(&mut cpu, Guest::page(1)), Ok(101));
    drop(child);

    // The page moves to another frame.
    let frame = process.frame_at(Guest::page(2)).ok_or("no page")?;
    engine.migrate(frame)?;
    assert_eq!(guest.load(2), Ok(102));
    assert_ne!(guest.stage.translation(Guest::page(2)), Some((frame, true)));

    // Reclaim takes a page whose contents the process does not need.
    process.madvise(Guest::page(3), PAGE_SIZE, Advice::Free)?;
    assert_eq!(process.drop_discardable(), 1);
    assert_eq!(guest.load(3), Ok(0));

    // The device driver of the guest refuses while it would have to sleep, so reclaim leaves the page.
    process.madvise(Guest::page(4), PAGE_SIZE, Advice::Free)?;
    guest.stage.refuse(true);
    assert_eq!(process.drop_discardable(), 0);
    guest.stage.refuse(false);

    guest.inflate(5)?;
    println!("{} pages of the guest are resident", process.rss().anon);
    guest.deflate(5)?;

    // Memory that the process unmaps leaves the guest, too.
    process.munmap(Guest::page(6), PAGE_SIZE)?;
    assert_eq!(guest.load(6), Err(AccessError::BadAddress));
    assert_eq!(guest.load(7), Ok(107));

    guest.stage.check(process);
    let Guest { process, stage } = guest;
    drop((process, cpu));
    stage.assert_released();
    drop((engine, stage));
    machine.accounting().assert_clean();
    println!("All memory was freed");
    Ok(())
}

#[test]
fn example_runs() {
    main().unwrap();
}
