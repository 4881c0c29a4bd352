//! VMAs that are going, and walks that come by way of the file.
//!
//! A file's walkers find address spaces through the VMAs that are in the file's tree. munmap takes its VMAs
//! out of there before it touches an entry: from then on all entries are its own. But it waits for the
//! walkers, and nobody is to wait for them with it.

use super::{gate::Gated, *};
use freehold::{
    fault::Access,
    hugetlb::HugePageSize,
    space::{AddressSpace, HugetlbLock, Unmap},
};
use std::sync::mpsc::channel;

type Space = Counted<AddressSpace<Gated>>;

/// What a table of huge pages spans.
const SPAN: u64 = 1 << 30;
/// Huge pages that a gather has room for.
const ROOM: u64 = 512;

fn space(engine: &Counted<Engine<Gated>>, locking: Locking) -> Space {
    AddressSpace::new(engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap()
}

fn touch(space: &Space, cpu: &mut Vcpu, at: u64) {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.touch(space.mmu(), at, Access::READ, fault).unwrap();
}

/// A table that munmap empties is shared with nobody: nobody finds the VMA any more.
#[test]
fn a_table_of_huge_pages_is_not_shared_while_it_is_emptied() {
    let at = 0x100 * SPAN;
    for locking in Locking::ALL.map(|locking| Locking { hugetlb: HugetlbLock::VmaLock, ..locking }) {
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
        // One more than there is room for, so that there is a flush before the last.
        (0..=ROOM).for_each(|n| touch(&going, &mut cpu, at + n * HUGE));
        let (inside, mut beside) = (other.clone(), machine.cpu(1));
        gated.flush.put(move || {
            let fault = move || touch(&inside, &mut beside, at + ROOM * HUGE);
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

/// A munmap of pages that were never touched, of a file that somebody walks: it waits for the walker, its
/// address space does not.
#[test]
fn nobody_waits_for_a_walker_with_it() {
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
        let (inside, (tell, told)) = (going.clone(), channel());
        gated.flush.put(move || {
            let unmapping = inside.clone();
            tell.send(std::thread::spawn(move || unmapping.munmap(BASE, PAGE).unwrap())).unwrap();
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
        told.recv().expect("something was flushed").join().unwrap();
        going.check();
        drop((written, going, file, mapping, engine, gated, cpu));
        machine.accounting().assert_clean();
    }
}
