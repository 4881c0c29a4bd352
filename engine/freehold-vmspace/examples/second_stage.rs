//! The second stage of a virtual machine: the physical memory of a guest, as a hypervisor's tables translate
//! it.
//!
//! `cargo run --example second_stage --package freehold-vmspace`
//!
//! The guest gets memory at two places, as on real machines, and an image is copied into the memory. Then one
//! round of dirty logging, as used for live migration, finds the pages that the guest writes: all pages lose
//! the right to write, and the fault handler restores the right of a page that faults.
//!
//! Here the memory belongs to the guest alone. The folder of examples of `freehold-machine` has a guest
//! whose memory is a part of a process, with a second stage that follows the process.

use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::PAGE_SIZE;
use freehold_sync::counted::Counted;
use freehold_vmspace::{
    Memory, VmSpace,
    platform::{Platform, PteFlags},
};
use std::{error::Error, ops::Range};

/// Low memory, and the memory above the device area.
const MEMORY: [Range<u64>; 2] = [0..0xa_0000, 0x10_0000..0x20_0000];
const RIGHTS: PteFlags = PteFlags::USER.union(PteFlags::EXEC);

/// A guest: its second stage, and the pages that it has written since the last round of logging.
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

    /// Makes the first store to each page fault.
    fn log_stores(&mut self) {
        self.dirty.clear();
        MEMORY.into_iter().for_each(|range| self.stage.set_rights(range, RIGHTS));
    }

    /// Performs a store by the guest inside one page. If the translation refuses the store, the hypervisor's
    /// fault handler runs.
    fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let mut page = self.stage.translate(at).ok_or(format!("no memory at {at:#x}"))?;
        if !page.flags.contains(PteFlags::WRITE) {
            let first = at & !(PAGE_SIZE - 1);
            self.dirty.push(first);
            self.stage.set_rights(first..first + PAGE_SIZE, RIGHTS | PteFlags::WRITE);
            page = self.stage.translate(at).ok_or("the page is no longer mapped")?;
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
    println!("{} KiB of guest memory", guest.stage.rss().total() * 4);

    guest.log_stores();
    for at in [0x7c02, 0x10_2000, 0x10_2ff0, 0x7d00] {
        guest.store(at, &[0xff])?;
    }
    println!("Pages written: {:#x?}", guest.dirty);
    assert_eq!(guest.dirty, [0x7000, 0x10_2000]);
    assert!(guest.store(0xb_8000, b"text").is_err(), "the screen is not memory");

    drop((guest, memory));
    machine.accounting().assert_clean();
    println!("All memory was freed");
    Ok(())
}

#[test]
fn example_runs() {
    main().unwrap();
}
