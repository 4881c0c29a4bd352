//! VMAs that are being unmapped, and walks through the tree of their file.
//!
//! Walks of a file find address spaces through the VMAs in the tree of the file. munmap removes its VMAs from
//! that tree before it changes an entry. From then on, only munmap reaches the entries. munmap waits for
//! walks in progress, but no other task of the address space waits for them.
//!
//! Each test uses a gate of `support/gate.rs` to stop the munmap or the walk at its flush, and runs the other
//! operation on another thread in that moment.

use super::{gate::Gated, *};
use freehold::{
    fault::Access,
    hugetlb::HugePageSize,
    space::{AddressSpace, HugetlbLock, Unmap},
};
use std::sync::mpsc::channel;

/// An address space on the machine with gates.
type Space = Counted<AddressSpace<Gated>>;

/// Bytes that one table of huge pages covers.
const SPAN: u64 = 1 << 30;
/// Number of huge pages that a gather has room for.
const ROOM: u64 = 512;

fn space(engine: &Counted<Engine<Gated>>, locking: Locking) -> Space {
    AddressSpace::new(engine, &SpaceConfig::new().locking(locking)).unwrap()
}

fn touch(space: &Space, cpu: &mut Vcpu, at: u64) {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.touch(space.mmu(), at, Access::READ, fault).unwrap();
}

/// A page table that munmap empties cannot become shared, because no walk finds the VMA any more.
#[test]
fn table_being_emptied_does_not_become_shared() {
    let at = 0x80 * SPAN;
    for locking in Locking::ALL.map(|locking| locking.hugetlb(HugetlbLock::VmaLock)) {
        let machine: Machine = Machine::new(MachineConfig::phantom((ROOM + 8) * HUGE)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, ROOM + 1, None), ROOM + 1);
        let mapping = Mapping::of_huge_pages(&engine, HugePageSize::Mib2, 2 * SPAN, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap();
        let (going, other) = (space(&engine, locking), space(&engine, locking));
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        for space in [&going, &other] {
            space.mmap(at, 2 * SPAN, RW, flags, Some(&file), 0).unwrap();
        }
        let mut cpu = machine.cpu(0);
        // One page more than the gather has room for, so that a flush occurs before the last page.
        (0..=ROOM).for_each(|n| touch(&going, &mut cpu, at + n * HUGE));
        let (inside, mut second) = (other.clone(), machine.cpu(1));
        gated.flush.put(move || {
            let fault = move || touch(&inside, &mut second, at + ROOM * HUGE);
            std::thread::spawn(fault).join().unwrap();
        });
        going.munmap(at, 2 * SPAN).unwrap();
        assert!(!gated.flush.is_waiting(), "{locking:?}: nothing was flushed");
        touch(&other, &mut cpu, at + ROOM * HUGE);
        going.check();
        other.check();
        drop((going, other, file, mapping, engine, gated, cpu));
        machine.accounting().assert_clean();
    }
}

/// A munmap of untouched pages of a file waits for a walk of the file. Other tasks of the address space do
/// not wait.
#[test]
fn only_munmap_waits_for_a_walk_of_its_file() {
    for locking in Locking::ALL.into_iter().filter(|locking| locking.unmap == Unmap::Released) {
        let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let mapping = Mapping::new(&engine, freehold::file::Zeroes, PAGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let (written, going) = (space(&engine, locking), space(&engine, locking));
        for space in [&written, &going] {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            space.mmap(BASE, PAGE, RW, flags, Some(&file), 0).unwrap();
        }
        let mut cpu = machine.cpu(0);
        let fault = |at: freehold::VirtAddr, access| written.handle_fault(at.get(), access).map(drop);
        cpu.store(written.mmu(), BASE, 1u64, fault).unwrap();
        let (inside, (sender, receiver)) = (going.clone(), channel());
        gated.flush.put(move || {
            let unmapping = inside.clone();
            sender.send(std::thread::spawn(move || unmapping.munmap(BASE, PAGE).unwrap())).unwrap();
            let meanwhile = move || {
                while inside.find_vma(BASE).is_some() {
                    std::thread::yield_now();
                }
                let mapped = inside.mmap(BASE + 8 * PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0);
                assert_eq!(mapped, Ok(BASE + 8 * PAGE));
            };
            std::thread::spawn(meanwhile).join().unwrap();
        });
        mapping.write_back((0..1).into()).unwrap();
        receiver.recv().expect("no flush").join().unwrap();
        going.check();
        drop((written, going, file, mapping, engine, gated, cpu));
        machine.accounting().assert_clean();
    }
}
