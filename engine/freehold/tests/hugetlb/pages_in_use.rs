//! Another task reads, migrates, pins or copies a huge page of a pool at the moment at which the owner needs
//! the page. Neither the page nor its reservation is lost, and no task gets SIGBUS.
//!
//! The first user is stopped in the middle by a gate of `support/gate.rs`, or holds a pin. The owner then
//! discards, stores to or truncates the page on another thread. The tests check the counts of the pool and
//! the results of the calls. A new test starts with `gates` if the first user is stopped in the middle of a
//! call.

use super::{
    support::{gate::Gated, spawn_until_waiting, until},
    *,
};
use freehold::{
    fault::Access,
    remote::{AccessMode, PinFlags},
    space::AddressSpace,
};
use freehold_machine::Task;
use std::{sync::mpsc::channel, thread};

/// An address space on the machine with gates.
type Space = Counted<AddressSpace<Gated>>;

/// A machine with gates and a pool, and an address space with a private huge page at `BASE`.
struct Gates {
    machine: Machine,
    gated: Gated,
    engine: Counted<Engine<Gated>>,
    space: Space,
}

/// Returns a pool of `pages` pages, and a space with a private mapping of one page at `BASE`. The page was
/// touched.
fn gates(locking: Locking, pages: u64) -> Gates {
    let machine: Machine = Machine::new(MachineConfig::backed((pages + 4) * HUGE)).unwrap();
    let gated = Gated::new(&machine);
    let engine = Engine::new(gated.clone(), Config::default()).unwrap();
    assert_eq!(engine.resize_huge_pool(HugePageSize::Mib2, pages, None), pages);
    let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
    space.mmap(BASE, HUGE, RW, PRIVATE | MapFlags::FIXED, None, 0).unwrap();
    space.handle_fault(BASE, Access::WRITE).unwrap();
    Gates { machine, gated, engine, space }
}

impl Gates {
    fn counts(&self) -> (u64, u64) {
        let counts = self.engine.huge_pool(HugePageSize::Mib2).counts(None);
        (counts.free, counts.reserved)
    }

    fn end(self, pages: u64) {
        self.space.check();
        drop(self.space);
        let counts = self.engine.huge_pool(HugePageSize::Mib2).counts(None);
        assert_eq!(counts, all_free(pages));
        drop((self.gated, self.engine));
        self.machine.accounting().assert_clean();
    }
}

/// Makes a call on a thread of its own that has a fatal signal pending. The call is killed if it waits.
fn killed_in<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let thread = || {
        Task::current().interrupt_wait(1);
        call()
    };
    thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// The owner reclaims a page that a child also maps, while another task reads the child's memory. The owner
/// waits for the reader.
#[test]
fn owner_waits_for_a_reader_of_its_page() {
    for locking in designs() {
        let gates = gates(locking, 1);
        let (child, owner) = (gates.space.fork().unwrap(), gates.space.clone());
        let (sender, receiver) = channel();
        let at_child = child.clone();
        gates.gated.read.put(move || {
            let (tell_task, hear_task) = channel();
            let store = thread::spawn(move || {
                tell_task.send(Task::current()).unwrap();
                owner.handle_fault(BASE, Access::WRITE)
            });
            let taken = move || until(|| at_child.frame_at(BASE).is_none());
            thread::spawn(taken).join().unwrap();
            // The owner has found that another task holds the page.
            let task = hear_task.recv().unwrap();
            until(|| task.waits() > 0 || store.is_finished());
            sender.send((store.is_finished(), store)).unwrap();
        });
        assert_eq!(child.read_memory(BASE, &mut [0; 8], AccessMode::Plain), Ok(8));
        let (finished, store) = receiver.recv().unwrap();
        assert!(store.join().unwrap().is_ok(), "{locking:?}");
        assert!(!finished, "{locking:?}: the owner stored to a page that is being read");
        child.check();
        drop(child);
        gates.end(1);
    }
}

/// DONTNEED runs while a reader holds the page. The reservation is kept, and a fault waits for the page.
#[test]
fn dontneed_keeps_the_reservation_during_a_read() {
    for locking in designs() {
        let gates = gates(locking, 1);
        let inside = gates.space.clone();
        gates.gated.read.put(move || {
            thread::scope(|scope| {
                scope.spawn(|| inside.madvise(BASE, HUGE, Advice::DontNeed)).join().unwrap().unwrap();
            });
            let fault = killed_in(|| inside.handle_fault(BASE, Access::WRITE));
            assert_eq!(fault, Err(FaultError::Killed), "the fault waits for the reader");
        });
        assert_eq!(gates.space.read_memory(BASE, &mut [0; 8], AccessMode::Plain), Ok(8));
        assert_eq!(gates.counts(), (1, 1), "{locking:?}");
        gates.space.handle_fault(BASE, Access::WRITE).unwrap();
        assert_eq!(gates.counts(), (0, 0), "{locking:?}");
        gates.end(1);
    }
}

/// DONTNEED runs while the page is being migrated. The reservation is kept.
#[test]
fn dontneed_keeps_the_reservation_during_a_migration() {
    for locking in designs() {
        let gates = gates(locking, 2);
        let inside = gates.space.clone();
        gates.gated.flush.put(move || {
            thread::scope(|scope| {
                scope.spawn(|| inside.madvise(BASE, HUGE, Advice::DontNeed)).join().unwrap().unwrap();
            });
        });
        let _ = gates.engine.migrate(gates.space.frame_at(BASE).unwrap());
        assert!(!gates.gated.flush.is_waiting());
        assert_eq!(gates.counts(), (2, 1), "{locking:?}");
        gates.end(2);
    }
}

/// A pin may last for any time. When the pin is dropped, the page returns to the pool. The reservation is
/// restored if the mapping still has a right to a reservation.
#[test]
fn dontneed_keeps_the_reservation_of_a_pinned_page() {
    everywhere(2, |world, process, cpu| {
        let both = || (counts(world).free, counts(world).reserved);
        let pinned = |process: &Process, cpu: &mut Vcpu, at| {
            process.store(cpu, at, 1u64).unwrap();
            let pins = process.pin_user_pages(at, 1, PinFlags::WRITE).unwrap();
            process.madvise(at, HUGE, Advice::DontNeed).unwrap();
            pins
        };
        let at = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        // The pin is dropped before the next fault.
        drop(pinned(process, cpu, at));
        assert_eq!(both(), (2, 1));
        // The next fault uses another page and the reservation. The first page then returns without a
        // reservation.
        let pins = pinned(process, cpu, at);
        process.store(cpu, at, 2u64).unwrap();
        assert_eq!(both(), (0, 0));
        drop(pins);
        assert_eq!(both(), (1, 0));
        // The mapping is unmapped before the pin is dropped.
        let pins = pinned(process, cpu, at);
        process.munmap(at, HUGE).unwrap();
        assert_eq!(both(), (1, 0));
        drop(pins);
        assert_eq!(both(), (2, 0));
        // Another owner has a reservation and needs a page, while a pin keeps the only remaining page in use.
        // The owner waits, and gets the page of the dropped pin.
        let at = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        let other = process.mmap(0, HUGE, RW, PRIVATE, None, 0).unwrap();
        let pins = pinned(process, cpu, at);
        process.store(cpu, at, 3u64).unwrap();
        assert_eq!(both(), (0, 0));
        let fault = || process.space().handle_fault(other, Access::WRITE);
        assert_eq!(killed_in(fault), Err(FaultError::Killed));
        thread::scope(|scope| {
            let waits = spawn_until_waiting(scope, fault);
            drop(pins);
            assert!(waits.join().unwrap().is_ok());
        });
        assert_eq!(both(), (0, 0));
    });
}

/// The file is truncated while a fault prepares a private copy of a page. The fault has checked the size
/// before the copy, and checks it again afterwards.
#[test]
fn fault_does_not_map_a_page_truncated_during_the_fault() {
    for locking in designs() {
        let gates = gates(locking, 2);
        let mapping = Mapping::of_huge_pages(&gates.engine, HugePageSize::Mib2, HUGE, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/huge/file").unwrap();
        let at = BASE + SPAN;
        gates.space.mmap(at, HUGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        gates.gated.zero.put(move || {
            thread::spawn(move || mapping.truncate(0)).join().unwrap().unwrap();
        });
        let fault = gates.space.handle_fault(at, Access::WRITE);
        assert!(!gates.gated.zero.is_waiting());
        assert_eq!(fault, Err(FaultError::Bus { addr: at }), "{locking:?}");
        assert_eq!(gates.space.frame_at(at), None);
        drop(file);
        gates.space.munmap(at, HUGE).unwrap();
        gates.end(2);
    }
}
