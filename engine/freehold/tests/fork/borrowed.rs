//! A page that another task holds on to (C-56).
//!
//! After a fork, the first process to write got a copy, and the last process that mapped the page wrote to it
//! in place. But a pipe still held it, and so read what was written after it had been given its data: across
//! the fork, in both directions.
//!
//! The task that holds on here is a reader of another's memory, stopped in the middle of its copy.

use super::{gate::Gated, *};
use freehold::{
    error::UffdError,
    remote::AccessMode,
    space::AddressSpace,
    uffd::{Features, MoveMode, RegisterMode, UffdConfig, Userfaultfd},
};

type Space = Counted<AddressSpace<Gated>>;

fn store(space: &Space, cpu: &mut Vcpu, value: u64) {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.store(space.mmu(), BASE, value, fault).unwrap();
}

fn load(space: &Space, cpu: &mut Vcpu) -> u64 {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.load(space.mmu(), BASE, fault).unwrap()
}

/// A page with 1 in it, shared by a parent and its child. While one of them is read, `meanwhile` is called
/// with that one and the other; what the reader got is returned.
fn read_while(
    locking: Locking,
    read_parent: bool,
    meanwhile: impl FnOnce(&Space, Space, &mut Vcpu) + Send + 'static,
) -> u64 {
    read_with(locking, |parent| {
        let child = parent.fork().unwrap();
        let (read, other) = if read_parent { (parent, child) } else { (child, parent) };
        (read, move |own: &Space, cpu: &mut Vcpu| meanwhile(own, other, cpu))
    })
}

/// A page with 1 in it. What `prepare` makes of its space is read, and while that is done, `prepare`'s other
/// half is called; what that returns is kept until the reader is done. What the reader got is returned.
fn read_with<M, K>(locking: Locking, prepare: impl FnOnce(Space) -> (Space, M)) -> u64
where
    M: FnOnce(&Space, &mut Vcpu) -> K + Send + 'static,
    K: Send + 'static,
{
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let gated = Gated::new(&machine);
    let engine = Engine::new(gated.clone(), Config::default()).unwrap();
    let parent = AddressSpace::new(&engine, &SpaceConfig { locking, ..SpaceConfig::default() }).unwrap();
    parent.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    let mut cpu = machine.cpu(0);
    store(&parent, &mut cpu, 1);
    let (read, meanwhile) = prepare(parent);
    let inside = read.clone();
    let (keep, kept) = std::sync::mpsc::channel();
    // On a thread of its own: the reader holds a lock.
    gated.read.put(move || {
        keep.send(std::thread::spawn(move || meanwhile(&inside, &mut cpu)).join().unwrap()).unwrap();
    });
    let mut word = [0; 8];
    assert_eq!(read.read_memory(BASE, &mut word, AccessMode::Plain), Ok(8));
    assert!(!gated.read.is_waiting(), "the reader read nothing");
    drop(kept.recv());
    read.check();
    drop((read, engine, gated));
    machine.accounting().assert_clean();
    u64::from_le_bytes(word)
}

/// The page's own space is the last that maps it, and writes: into a copy, for the reader has the page.
#[test]
fn the_last_one_who_maps_it_copies_it() {
    for (locking, read_parent) in
        Locking::ALL.into_iter().flat_map(|locking| [(locking, true), (locking, false)])
    {
        let read = read_while(locking, read_parent, |own, other, cpu| {
            drop(other);
            store(own, cpu, 2);
            assert_eq!(load(own, cpu), 2);
        });
        assert_eq!(read, 1, "{locking:?}: the reader saw a later store");
    }
}

/// Both write: neither to the page that is read.
#[test]
fn nobody_writes_to_it() {
    for (locking, read_parent) in
        Locking::ALL.into_iter().flat_map(|locking| [(locking, true), (locking, false)])
    {
        let read = read_while(locking, read_parent, |own, other, cpu| {
            store(&other, cpu, 3);
            store(own, cpu, 2);
            assert_eq!((load(own, cpu), load(&other, cpu)), (2, 3));
        });
        assert_eq!(read, 1, "{locking:?}: the reader saw a later store");
    }
}

/// The other side goes, and with it the mapping; the page stays until the reader is done with it.
#[test]
fn it_outlives_those_who_mapped_it() {
    for locking in Locking::ALL {
        let read = read_while(locking, true, |own, other, cpu| {
            store(&other, cpu, 3);
            own.madvise(BASE, PAGE, freehold::call::Advice::DontNeed).unwrap();
            assert_eq!(load(own, cpu), 0);
            store(own, cpu, 4);
        });
        assert_eq!(read, 1, "{locking:?}: the reader saw another page");
    }
}

/// C-48: a userfaultfd leaves the page where it is. Its reader would otherwise find what is stored at the new
/// place.
#[test]
fn c48_it_does_not_move_to_another_place() {
    for locking in Locking::ALL {
        let (tell, told) = std::sync::mpsc::channel();
        let read = read_with(locking, |space| {
            space.mmap(BASE + PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            let config = UffdConfig { features: Features::MOVE, user_mode_only: false };
            let uffd = Userfaultfd::new(&space, config).unwrap();
            uffd.register(BASE + PAGE, PAGE, RegisterMode::MISSING).unwrap();
            let move_it = move |own: &Space, cpu: &mut Vcpu| {
                let moved = uffd.move_pages(BASE + PAGE, BASE, PAGE, MoveMode::empty());
                tell.send((moved, load(own, cpu))).unwrap();
                // Closing it waits for the reader.
                uffd
            };
            (space, move_it)
        });
        assert_eq!(told.recv(), Ok((Err(UffdError::Busy), 1)), "{locking:?}");
        assert_eq!(read, 1, "{locking:?}");
    }
}
