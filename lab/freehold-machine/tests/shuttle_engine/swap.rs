//! Swap devices whose requests end on another CPU: faults, releases, writes, drops of clean pages, and the
//! removal of a device, concurrently.
//!
//! The code under test is `swap/`. A thread of the scenario completes the requests that wait in a
//! [`MemorySwap`], which also checks the rules for devices. The threads hold the swap entries and references
//! that page tables would hold. Each scenario ends with an empty device and without a frame in use. A task
//! that is never woken is a deadlock, which the checker reports.

use crate::explore::{explore_in, thread};
use freehold::{
    Pfn,
    counted::Counted,
    engine::{Config, Engine},
    error::SwapOffError,
    platform::{PageOwner, Platform},
    space::Locking,
    swap::{Lookup, NoSlot, Shadow, Swap, SwapEntry, SwapId, SwapReadError},
};
use freehold_machine::{Machine, MachineConfig, MemorySwap};
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};

const SHADOW: Shadow = Shadow::new(7);

/// Runs a scenario; address spaces take no part, so one design is enough.
fn explore(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    explore_in(&[Locking::default()], name, 400, move |_| scenario());
}

/// An engine with a swap device.
struct Rig {
    machine: Machine,
    engine: Counted<Engine<Machine>>,
    device: MemorySwap,
    id: SwapId,
}

impl Rig {
    fn new(slots: u64) -> Self {
        let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
        let engine = Engine::new(machine.clone(), Config::new()).unwrap();
        let device = MemorySwap::new(slots);
        let id = engine.swap_on(device.clone(), 0).unwrap();
        Rig { machine, engine, device, id }
    }

    fn swap(&self) -> &Swap<Machine> {
        self.engine.swap()
    }

    fn frame(&self) -> Pfn {
        self.engine.memory().alloc_swap(PageOwner::Caller).unwrap()
    }

    fn put(&self, pfn: Pfn) {
        self.engine.memory().put_frame(pfn);
    }

    /// Puts a page with this number into the swap cache. The cache has the only reference.
    fn insert(&self, number: u64) -> SwapEntry {
        let pfn = self.frame();
        self.machine.write_frame(pfn, 0, &number.to_le_bytes());
        let entry = self.swap().allocate(1).unwrap().insert(pfn).unwrap();
        self.put(pfn);
        entry
    }

    /// Swaps a page with this number out.
    fn store(&self, number: u64) -> SwapEntry {
        let entry = self.insert(number);
        self.swap().send_write(self.swap().begin_write(entry, SHADOW).unwrap());
        entry
    }

    fn release(&self, entry: SwapEntry) {
        self.swap().release(entry).into_iter().for_each(|pfn| self.put(pfn));
    }

    /// Gets the page of a swap entry that the caller has. The caller gets a reference to the frame.
    fn get(&self, entry: SwapEntry) -> Result<Pfn, SwapReadError> {
        let pfn = loop {
            match self.swap().lookup(entry) {
                Lookup::Cached(pfn) => return Ok(pfn),
                Lookup::Reading(pfn) => break pfn,
                Lookup::NotInUse => panic!("the caller has the entry {entry:?}"),
                Lookup::Stored(_) => {
                    let pfn = self.frame();
                    if let Some(request) = self.swap().begin_read(entry, pfn) {
                        self.swap().send_read(request);
                        break pfn;
                    }
                    self.put(pfn);
                }
            }
        };
        self.swap().wait_for_read(entry, pfn).inspect_err(|_| self.put(pfn))?;
        Ok(pfn)
    }

    /// Gets the page of a swap entry, checks its number and drops the entry. If the page belongs to the caller,
    /// stores to it.
    fn take(&self, entry: SwapEntry, number: u64) {
        let pfn = self.get(entry).unwrap();
        let mut bytes = [0; 8];
        self.machine.read_frame(pfn, 0, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), number);
        let taken = self.swap().take(entry, pfn);
        if taken.is_exclusive {
            self.machine.write_frame(pfn, 0, &[0xff; 8]);
        }
        taken.frame.into_iter().for_each(|other| self.put(other));
        self.put(pfn);
    }

    /// Completes requests until the number of tasks that may wait is 0.
    fn serve(&self, tasks: &AtomicU64) {
        while tasks.load(SeqCst) != 0 {
            if !self.device.complete_next() {
                thread::yield_now();
            }
        }
        while self.device.complete_next() {}
    }

    fn end(self) {
        assert_eq!(self.engine.swap_usage(self.id).unwrap().used, 0);
        assert!(self.device.stored().is_empty(), "a slot was not discarded");
        drop((self.engine, self.device));
        self.machine.accounting().assert_clean();
    }
}

/// Each entry that fork has copied finds the contents, whichever of the faults reads the page, and even if the
/// page is dropped from the cache in between. An entry that is dropped during the read ends the slot once.
#[test]
fn faults_of_copied_entries_and_a_release() {
    explore("faults of copied swap entries", || {
        let rig = Rig::new(4);
        let entry = rig.store(42);
        (0..2).for_each(|_| rig.swap().duplicate(entry).unwrap());
        rig.device.complete_later(true);
        let left = AtomicU64::new(3);
        thread::scope(|scope| {
            for number in 0..3 {
                let (rig, left) = (&rig, &left);
                scope.spawn(move || {
                    match number {
                        0 | 1 => rig.take(entry, 42),
                        _ => {
                            rig.swap().drop_clean(entry, SHADOW);
                            rig.release(entry);
                        }
                    }
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| rig.serve(&left));
        });
        rig.end();
    });
}

/// A page is needed again, and another entry is dropped, while the page is written. The slot is used for
/// another page only after the write.
#[test]
fn fault_and_release_during_a_write() {
    explore("a fault and a release during a write to a swap device", || {
        let rig = Rig::new(1);
        let entry = rig.insert(42);
        rig.swap().duplicate(entry).unwrap();
        rig.device.complete_later(true);
        let left = AtomicU64::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The caller has an entry until the write has begun.
                let request = rig.swap().begin_write(entry, SHADOW).unwrap();
                rig.release(entry);
                rig.swap().send_write(request);
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                rig.take(entry, 42);
                match rig.swap().allocate(1) {
                    Ok(mut run) => {
                        let pfn = rig.frame();
                        let next = run.insert(pfn).unwrap();
                        rig.swap().send_write(rig.swap().begin_write(next, SHADOW).unwrap());
                        rig.put(pfn);
                        rig.release(next);
                    }
                    Err(error) => assert_eq!(error, NoSlot::Full),
                }
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| rig.serve(&left));
        });
        rig.end();
    });
}

/// A task gets a slot of the device before the device is closed, or no slot. The device leaves when its last
/// page is read back.
#[test]
fn allocation_and_removal_of_a_device() {
    explore("an allocation concurrent with the removal of a swap device", || {
        let rig = Rig::new(4);
        thread::scope(|scope| {
            scope.spawn(|| match rig.swap().allocate(2) {
                Ok(mut run) => {
                    let pfn = rig.frame();
                    let entry = run.insert(pfn).unwrap();
                    drop(run);
                    assert_eq!(rig.swap().lookup(entry), Lookup::Cached(pfn));
                    rig.put(pfn);
                    assert!(rig.swap().take(entry, pfn).is_exclusive, "the device is gone");
                    rig.put(pfn);
                }
                Err(error) => assert_eq!(error, NoSlot::Full),
            });
            scope.spawn(|| {
                assert!(rig.swap().close(rig.id));
                loop {
                    match rig.swap().remove(rig.id) {
                        Ok(()) => break,
                        Err(error) => assert_eq!(error, SwapOffError::InUse),
                    }
                    thread::yield_now();
                }
            });
        });
        assert_eq!(rig.engine.swap_usage(rig.id), None);
        drop((rig.engine, rig.device));
        rig.machine.accounting().assert_clean();
    });
}
