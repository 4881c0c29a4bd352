//! The second stage of a virtual machine: a guest's physical memory, as a hypervisor's tables translate it.
//!
//! `cargo run --example second_stage --package freehold-vmspace`
//!
//! The guest gets memory at two places, as machines have it; an image is copied in; and a round of dirty
//! logging, as live migration has it, finds what the guest has written since: all pages lose the right to
//! write, and those that fault get it back.

use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::PAGE_SIZE;
use freehold_sync::counted::Counted;
use freehold_vmspace::{
    Memory, VmSpace,
    platform::{Platform, PteFlags},
};
use std::{error::Error, ops::Range};

/// Low memory, and memory above what devices take.
const MEMORY: [Range<u64>; 2] = [0..0xa_0000, 0x10_0000..0x20_0000];
const RIGHTS: PteFlags = PteFlags::USER.union(PteFlags::EXEC);

struct Guest {
    stage: VmSpace<Machine>,
    dirty: Vec<u64>,
}

impl Guest {
    fn new(memory: &Counted<Memory<Machine>>) -> Result<Self, Box<dyn Error>> {
        let mut stage = VmSpace::new(memory)?;
        for range in MEMORY {
            stage.map(range, RIGHTS | PteFlags::WRITE)?;
        }
        Ok(Guest { stage, dirty: Vec::new() })
    }

    /// From now on the first store to each page faults.
    fn log_stores(&mut self) {
        self.dirty.clear();
        MEMORY.into_iter().for_each(|range| self.stage.set_rights(range, RIGHTS));
    }

    /// A store by the guest, inside a page: translated, and where that is refused the hypervisor's fault
    /// handler runs.
    fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let mut page = self.stage.translate(at).ok_or(format!("no memory at {at:#x}"))?;
        if !page.flags.contains(PteFlags::WRITE) {
            let first = at & !(PAGE_SIZE - 1);
            self.dirty.push(first);
            self.stage.set_rights(first..first + PAGE_SIZE, RIGHTS | PteFlags::WRITE);
            page = self.stage.translate(at).ok_or("the page went away")?;
        }
        self.stage.platform().write_frame(page.pfn, (at % PAGE_SIZE) as usize, bytes);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let machine: Machine = Machine::new(MachineConfig::backed(8 << 20))?;
    let memory = Counted::try_new(Memory::new(machine.clone())?).map_err(|_| "no memory")?;
    let mut guest = Guest::new(&memory)?;
    guest.store(0x7c00, b"boot")?;
    println!("{} KiB of guest memory.", guest.stage.rss().total() * 4);

    guest.log_stores();
    for at in [0x7c02, 0x10_2000, 0x10_2ff0, 0x7d00] {
        guest.store(at, &[0xff])?;
    }
    println!("Written since: {:#x?}", guest.dirty);
    assert_eq!(guest.dirty, [0x7000, 0x10_2000]);
    assert!(guest.store(0xb_8000, b"text").is_err(), "the screen is no memory");

    drop((guest, memory));
    machine.accounting().assert_clean();
    println!("Everything was given back.");
    Ok(())
}

#[test]
fn a_guest_gets_its_memory() {
    main().unwrap();
}
