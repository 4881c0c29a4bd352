//! Memory runs out in `VmSpace::map`, on a `VmSpace` without an address space above it. `VmSpace` is part of
//! `freehold-vmspace`, and the engine does not call this method, so the sweep of the other files cannot reach
//! it. The call maps all pages or none.

use crate::support::failure::{Failure, at_every_allocation};
use freehold_machine::{Machine, MachineConfig};
use freehold_sync::counted::Counted;
use freehold_vmspace::{MapError, Memory, PAGE_SIZE, VmSpace, platform::PteFlags};

#[test]
fn map_of_a_bare_vm_space_maps_all_pages_or_none() {
    // Pages under two page tables.
    let range = (2 << 20) - 2 * PAGE_SIZE..(2 << 20) + 2 * PAGE_SIZE;
    let reached = at_every_allocation(&Failure::ALL, |point| {
        let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
        let memory = Counted::try_new(Memory::new(machine.clone()).unwrap()).ok().unwrap();
        let mut space = VmSpace::new(&memory).unwrap();
        let mapped = |space: &VmSpace<Machine>| {
            range.clone().step_by(PAGE_SIZE as usize).filter(|at| space.translate(*at).is_some()).count()
        };
        if let Err(error) = point.fail(|| space.map(range.clone(), PteFlags::USER)) {
            assert!(point.reached() && error == MapError::NoMemory, "{point}: {error:?}");
            assert_eq!(mapped(&space), 0, "{point}");
            space.map(range.clone(), PteFlags::USER).unwrap();
        }
        assert_eq!(mapped(&space), 4, "{point}");
        drop((space, memory));
        machine.accounting().assert_clean();
    });
    assert!(reached > 0, "no failure was injected");
}
