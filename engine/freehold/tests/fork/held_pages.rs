//! A page that another task holds across a fork (C-56).
//!
//! The bug in Linux: after a fork, the process that wrote first got a copy, and the last process that mapped
//! the page wrote to it in place. A pipe that still held the page then read bytes that were written later.
//! The bug leaked data across the fork in both directions.
//!
//! In these tests, the holder of the page is a reader of another process's memory, stopped in the middle of
//! its copy by a gate (`read_with`). A test makes its stores or unmaps at that point, and asserts that the
//! reader gets the old word.

use super::{gate::Gated, *};
use freehold::{
    error::UffdError,
    remote::AccessMode,
    space::AddressSpace,
    uffd::{Features, MoveMode, RegisterMode, UffdConfig, Userfaultfd},
};

/// An address space on the machine with gates.
type Space = Counted<AddressSpace<Gated>>;

fn store(space: &Space, cpu: &mut Vcpu, value: u64) {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.store(space.mmu(), BASE, value, fault).unwrap();
}

fn load(space: &Space, cpu: &mut Vcpu) -> u64 {
    let fault = |at: freehold::VirtAddr, access| space.handle_fault(at.get(), access).map(drop);
    cpu.load(space.mmu(), BASE, fault).unwrap()
}

/// Maps a page that contains 1 and forks. Reads the page from the parent or the child. During the read, calls
/// `during_read` with the space that is read and the other space. Returns the word that the reader got.
fn read_while(
    locking: Locking,
    read_parent: bool,
    during_read: impl FnOnce(&Space, Space, &mut Vcpu) + Send + 'static,
) -> u64 {
    read_with(locking, |parent| {
        let child = parent.fork().unwrap();
        let (read, other) = if read_parent { (parent, child) } else { (child, parent) };
        (read, move |own: &Space, cpu: &mut Vcpu| during_read(own, other, cpu))
    })
}

/// Maps a page that contains 1, and reads it from the space that `prepare` returns. During the read, calls
/// the function that `prepare` returns, and keeps the result until the reader is done. Returns the word that
/// the reader got.
fn read_with<M, K>(locking: Locking, prepare: impl FnOnce(Space) -> (Space, M)) -> u64
where
    M: FnOnce(&Space, &mut Vcpu) -> K + Send + 'static,
    K: Send + 'static,
{
    let machine: Machine = Machine::new(MachineConfig::backed(16 << 20)).unwrap();
    let gated = Gated::new(&machine);
    let engine = Engine::new(gated.clone(), Config::default()).unwrap();
    let parent = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
    parent.mmap(BASE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    let mut cpu = machine.cpu(0);
    store(&parent, &mut cpu, 1);
    let (read, during_read) = prepare(parent);
    let inside = read.clone();
    let (keep, kept) = std::sync::mpsc::channel();
    // Runs on a thread of its own, because the reader holds a lock.
    gated.read.put(move || {
        keep.send(std::thread::spawn(move || during_read(&inside, &mut cpu)).join().unwrap()).unwrap();
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

/// The space that is being read is the last space that maps the page. Its store goes to a copy, because the
/// reader holds the page.
#[test]
fn last_mapper_copies_a_page_that_a_reader_holds() {
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

/// Parent and child both store. Neither store goes to the page that is being read.
#[test]
fn stores_never_reach_a_page_that_a_reader_holds() {
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

/// Both processes unmap the page. The page stays allocated until the reader is done with it.
#[test]
fn page_outlives_its_last_mapping_while_a_reader_holds_it() {
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

/// C-48: UFFDIO_MOVE does not move a page that a reader holds. If the page moved, the reader would see stores
/// to the new address.
#[test]
fn c48_uffd_move_refuses_a_page_that_a_reader_holds() {
    for locking in Locking::ALL {
        let (sender, receiver) = std::sync::mpsc::channel();
        let read = read_with(locking, |space| {
            space.mmap(BASE + PAGE, PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
            let config = UffdConfig::new().features(Features::MOVE);
            let uffd = Userfaultfd::new(&space, config).unwrap();
            uffd.register(BASE + PAGE, PAGE, RegisterMode::MISSING).unwrap();
            let move_it = move |own: &Space, cpu: &mut Vcpu| {
                let moved = uffd.move_pages(BASE + PAGE, BASE, PAGE, MoveMode::empty());
                sender.send((moved, load(own, cpu))).unwrap();
                // Closing the userfaultfd would wait for the reader, so the userfaultfd is kept until the
                // reader is done.
                uffd
            };
            (space, move_it)
        });
        assert_eq!(receiver.recv(), Ok((Err(UffdError::Busy), 1)), "{locking:?}");
        assert_eq!(read, 1, "{locking:?}");
    }
}
