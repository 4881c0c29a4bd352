//! Swap devices, their tables and the swap cache (`src/swap`), without page tables: a test holds the swap
//! entries and the references that page tables and faults would hold.
//!
//! The device is `MemorySwap` of `freehold-machine`, which checks what the engine may ask of a device, and
//! completes requests when the test says so. `Rig::end` fails if a frame is still in use. The tests of single
//! words and tables, under loom too, are in `src/swap`.

use crate::support::{
    failure::{Failure, at_every_allocation},
    gate::{Gated, before_read_section},
    *,
};
use freehold::{
    error::{SwapOffError, SwapOnError},
    swap::{
        DuplicateError, Lookup, NoSlot, Shadow, SwapDevice, SwapEntry, SwapId, SwapRead, SwapReadError,
        SwapWrite,
    },
};
use freehold_machine::MemorySwap;
use freehold_vmspace::platform::{PageOwner, Platform};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

const SHADOW: Shadow = Shadow::new(77);

/// An engine with one swap device.
struct Rig {
    world: World,
    device: MemorySwap,
    id: SwapId,
}

impl Rig {
    fn new(slots: u64) -> Self {
        Self::with(MemorySwap::new(slots))
    }

    fn with(device: MemorySwap) -> Self {
        let world = World::new();
        let id = world.engine().swap_on(device.clone(), 0).unwrap();
        Rig { world, device, id }
    }

    fn swap(&self) -> &freehold::swap::Swap<Machine> {
        self.world.engine().swap()
    }

    fn frame(&self) -> Pfn {
        self.world.engine().memory().alloc_swap(PageOwner::Caller).unwrap()
    }

    /// Returns a new page that begins with this number.
    fn page(&self, number: u64) -> Pfn {
        let pfn = self.frame();
        self.world.machine.write_frame(pfn, 0, &number.to_le_bytes());
        pfn
    }

    fn put(&self, pfn: Pfn) {
        self.world.engine().memory().put_frame(pfn);
    }

    /// Returns the first number of a frame, and drops the caller's reference.
    fn number(&self, pfn: Pfn) -> u64 {
        let mut bytes = [0; 8];
        self.world.machine.read_frame(pfn, 0, &mut bytes);
        self.put(pfn);
        u64::from_le_bytes(bytes)
    }

    /// Puts a new page into the swap cache, which keeps the only reference.
    fn insert(&self, number: u64) -> SwapEntry {
        let pfn = self.page(number);
        let entry = self.swap().allocate(1).unwrap().insert(pfn).unwrap();
        self.put(pfn);
        entry
    }

    /// Swaps a new page out.
    fn store(&self, number: u64) -> SwapEntry {
        let entry = self.insert(number);
        self.swap().send_write(self.swap().begin_write(entry, SHADOW).unwrap());
        entry
    }

    /// Drops a swap entry, as munmap does.
    fn release(&self, entry: SwapEntry) {
        self.swap().release(entry).into_iter().for_each(|pfn| self.put(pfn));
    }

    /// Gets the page of a swap entry, as a fault does. The caller has a reference to the frame, and still has
    /// the entry.
    fn get(&self, entry: SwapEntry) -> Result<Pfn, SwapReadError> {
        let pfn = loop {
            match self.swap().lookup(entry) {
                Lookup::Cached(pfn) => return Ok(pfn),
                Lookup::Reading(pfn) => break pfn,
                Lookup::NotInUse => panic!("the caller has the entry {entry:?}"),
                Lookup::Stored(shadow) => {
                    assert_eq!(shadow, SHADOW);
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

    /// Drops the swap entry of a page, to which the caller has a reference and keeps it. Returns true if the
    /// page belongs to the caller.
    fn owns(&self, entry: SwapEntry, pfn: Pfn) -> bool {
        let taken = self.swap().take(entry, pfn);
        taken.frame.into_iter().for_each(|other| self.put(other));
        taken.is_exclusive
    }

    /// Gets the number of a page, and drops the swap entry.
    fn take(&self, entry: SwapEntry) -> Result<u64, SwapReadError> {
        let pfn = self.get(entry)?;
        self.owns(entry, pfn);
        Ok(self.number(pfn))
    }

    fn used(&self) -> u64 {
        self.world.engine().swap_usage(self.id).unwrap().used
    }

    fn bad(&self) -> u64 {
        self.world.engine().swap_usage(self.id).unwrap().bad
    }

    /// Checks that no slot is in use, and no frame either.
    fn end(self) {
        assert_eq!((self.used(), self.device.waiting()), (0, 0));
        assert_eq!(self.device.stored(), [], "a slot was not discarded");
        self.world.end();
    }
}

#[test]
fn page_goes_to_the_device_and_comes_back() {
    let rig = Rig::new(8);
    let frames = rig.world.machine.accounting().frames;
    let entry = rig.store(42);
    assert_eq!((rig.used(), rig.device.stored()), (1, vec![entry.slot()]));
    rig.world.engine().trim();
    assert!(rig.world.machine.accounting().frames <= frames, "the frame of a stored page is free");
    assert_eq!(rig.swap().lookup(entry), Lookup::Stored(SHADOW));
    let pfn = rig.get(entry).unwrap();
    assert!(rig.owns(entry, pfn), "the page belongs to the caller");
    assert_eq!(rig.number(pfn), 42);
    assert_eq!(rig.swap().lookup(entry), Lookup::NotInUse);
    rig.end();
}

#[test]
fn page_is_found_and_can_be_taken_while_it_is_written() {
    let rig = Rig::new(8);
    rig.device.complete_later(true);
    let entry = rig.store(42);
    let Lookup::Cached(pfn) = rig.swap().lookup(entry) else { panic!("not in the cache") };
    assert!(!rig.owns(entry, pfn), "the device still reads the frame");
    assert_eq!(rig.swap().lookup(entry), Lookup::NotInUse);
    // The slot stays in use until the write ends.
    assert_eq!(rig.used(), 1);
    assert!(rig.device.complete_next());
    assert_eq!(rig.used(), 0);
    assert_eq!(rig.world.machine.frame(pfn).refs(), 1);
    assert_eq!(rig.number(pfn), 42);
    rig.end();
}

#[test]
fn page_freed_while_it_is_written_leaves_no_trace() {
    let rig = Rig::new(8);
    for succeeds in [true, false] {
        rig.device.complete_later(true);
        let entry = rig.store(1);
        rig.release(entry);
        assert_eq!(rig.used(), 1);
        assert!(if succeeds { rig.device.complete_next() } else { rig.device.drop_next() });
        assert_eq!((rig.used(), rig.bad()), (0, u64::from(!succeeds)));
    }
    rig.end();
}

#[test]
fn page_that_other_entries_need_must_be_copied() {
    let rig = Rig::new(8);
    let entry = rig.store(42);
    rig.swap().duplicate(entry).unwrap();
    let first = rig.get(entry).unwrap();
    assert!(!rig.owns(entry, first), "another entry names the page");
    let second = rig.get(entry).unwrap();
    assert_eq!(first, second, "the page is in the swap cache");
    assert!(!rig.owns(entry, second), "another task has a reference");
    rig.put(first);
    assert_eq!(rig.world.machine.frame(second).refs(), 1);
    assert_eq!(rig.number(second), 42);
    assert_eq!(rig.swap().duplicate(entry), Err(DuplicateError::NotInUse));
    rig.end();
}

#[test]
fn tasks_that_need_the_same_page_share_one_read() {
    let rig = Rig::new(8);
    let entry = rig.store(42);
    (0..2).for_each(|_| rig.swap().duplicate(entry).unwrap());
    rig.device.complete_later(true);
    std::thread::scope(|scope| {
        let faults = [(); 3].map(|()| spawn_until_waiting(scope, || rig.take(entry)));
        assert_eq!(rig.device.waiting(), 1);
        assert!(rig.device.complete_next());
        faults.into_iter().for_each(|fault| assert_eq!(fault.join().unwrap(), Ok(42)));
    });
    assert_eq!(rig.device.stats().read_requests, 1);
    rig.end();
}

#[test]
fn failed_read_fails_for_each_task_that_waits_and_is_tried_again_later() {
    let rig = Rig::new(8);
    let [bad, good] = [rig.store(1), rig.store(2)];
    rig.device.fail_reads([bad.slot()]);
    rig.device.complete_later(true);
    std::thread::scope(|scope| {
        let faults = [(); 2].map(|()| spawn_until_waiting(scope, || rig.get(bad)));
        assert!(rig.device.complete_next());
        faults.into_iter().for_each(|fault| assert_eq!(fault.join().unwrap(), Err(SwapReadError::Io)));
    });
    rig.device.complete_later(false);
    assert_eq!(rig.take(good), Ok(2));
    assert_eq!(rig.get(bad), Err(SwapReadError::Io));
    rig.device.fail_reads([]);
    assert_eq!(rig.take(bad), Ok(1));
    rig.end();
}

#[test]
fn pages_of_a_dropped_request_fail() {
    let rig = Rig::new(8);
    let entry = rig.store(1);
    rig.device.complete_later(true);
    std::thread::scope(|scope| {
        let fault = spawn_until_waiting(scope, || rig.get(entry));
        assert!(rig.device.drop_next());
        assert_eq!(fault.join().unwrap(), Err(SwapReadError::Io));
    });
    rig.device.complete_later(false);
    assert_eq!(rig.take(entry), Ok(1));
    rig.end();
}

#[test]
fn device_that_hangs_leaves_other_pages_usable_and_its_waiters_killable() {
    let rig = Rig::new(8);
    let [hangs, cached] = [rig.store(1), rig.insert(2)];
    rig.device.complete_later(true);
    assert_eq!(killed(|| rig.get(hangs)), Err(SwapReadError::Killed));
    assert_eq!(rig.device.waiting(), 1);
    assert_eq!(rig.take(cached), Ok(2));
    // The entry is dropped while the read is under way, as at exit.
    rig.release(hangs);
    assert_eq!(rig.used(), 1, "the slot is in use until the read ends");
    assert!(rig.device.complete_next());
    rig.end();
}

#[test]
fn page_whose_write_fails_stays_and_its_slot_becomes_bad() {
    let rig = Rig::new(2);
    rig.device.fail_writes([0, 1]);
    let entries = [rig.store(1), rig.store(2)];
    assert_eq!(rig.bad(), 0, "the slots are still in use");
    assert!(rig.swap().begin_write(entries[0], SHADOW).is_none(), "the page needs another slot");
    assert!(!rig.swap().drop_clean(entries[0], SHADOW), "the only copy is in memory");
    assert_eq!(entries.map(|entry| rig.take(entry)), [Ok(1), Ok(2)]);
    assert_eq!((rig.used(), rig.bad()), (0, 2));
    assert_eq!(rig.swap().allocate(1).err(), Some(NoSlot::Full));
    rig.end();
}

#[test]
fn requests_have_as_many_pages_as_the_device_allows() {
    for merges in [true, false] {
        let device = MemorySwap::new(64);
        let rig = Rig::with(if merges { device } else { device.without_merging() });
        let mut run = rig.swap().allocate(8).unwrap();
        assert_eq!(run.len(), 8);
        let entries: [_; 8] = core::array::from_fn(|n| {
            let pfn = rig.page(n as u64);
            let entry = run.insert(pfn).unwrap();
            rig.put(pfn);
            entry
        });
        drop(run);
        let mut at = 0;
        while at < 8 {
            let mut write = rig.swap().begin_write(entries[at], SHADOW).unwrap();
            while write.extend(SHADOW) {}
            at += write.len() as usize;
            rig.swap().send_write(write);
        }
        assert_eq!(rig.device.stats().write_requests, if merges { 1 } else { 8 });
        // Readahead stops at a slot that is not stored, here the sixth.
        let sixth = rig.get(entries[5]).unwrap();
        let frames: [_; 8] = core::array::from_fn(|_| rig.frame());
        let mut read = rig.swap().begin_read(entries[1], frames[0]).unwrap();
        let more = frames[1..].iter().take_while(|pfn| read.extend(**pfn)).count();
        assert_eq!(more, if merges { 3 } else { 0 });
        rig.swap().send_read(read);
        frames.into_iter().for_each(|pfn| rig.put(pfn));
        rig.put(sixth);
        assert_eq!(entries.map(|entry| rig.take(entry).unwrap()), [0, 1, 2, 3, 4, 5, 6, 7]);
        rig.end();
    }
}

#[test]
fn parts_of_a_request_are_completed_in_any_order() {
    let world = World::new();
    let id = world.engine().swap_on(Backwards(MemorySwap::new(16)), 0).unwrap();
    let swap = world.engine().swap();
    let memory = world.engine().memory();
    let mut run = swap.allocate(6).unwrap();
    let entries: Vec<_> = (0..6u64)
        .map(|number| {
            let pfn = memory.alloc_swap(PageOwner::Caller).unwrap();
            world.machine.write_frame(pfn, 0, &number.to_le_bytes());
            let entry = run.insert(pfn).unwrap();
            memory.put_frame(pfn);
            entry
        })
        .collect();
    drop(run);
    let mut write = swap.begin_write(entries[0], SHADOW).unwrap();
    while write.extend(SHADOW) {}
    swap.send_write(write);
    for entry in entries {
        assert_eq!(swap.lookup(entry), Lookup::Stored(SHADOW));
        assert_eq!(swap.release(entry), None);
    }
    assert_eq!(world.engine().swap_usage(id).unwrap().used, 0);
    world.end();
}

/// A device that splits each request to write, and completes the later part first and each part backwards.
struct Backwards(MemorySwap);

impl SwapDevice<Machine> for Backwards {
    fn slots(&self) -> u64 {
        16
    }

    fn read(&self, request: SwapRead<Machine>) {
        self.0.read(request);
    }

    fn write(&self, mut request: SwapWrite<Machine>) {
        let middle = (request.slots().start + request.slots().end) / 2;
        let mut later = request.split_off(middle);
        assert_eq!((request.slots().end, later.slots().start), (middle, middle));
        for part in [&mut later, &mut request] {
            for slot in part.slots().rev() {
                assert!(part.frame(slot).is_some());
                part.complete(slot, Ok(()));
                part.complete(slot, Ok(()));
                assert_eq!(part.frame(slot), None);
            }
            assert!(part.is_empty());
        }
    }
}

#[test]
fn clean_pages_are_dropped_from_the_swap_cache() {
    let rig = Rig::new(1024);
    let entries = [1, 2, 3].map(|number| rig.store(number));
    let [first, _, third] = entries.map(|entry| rig.get(entry).unwrap());
    assert_eq!(rig.swap().next_clean(rig.id, 0, 1024).0, Some(entries[0]));
    assert!(rig.swap().drop_clean(entries[0], SHADOW));
    assert!(!rig.swap().drop_clean(entries[0], SHADOW));
    assert_eq!(rig.swap().lookup(entries[0]), Lookup::Stored(SHADOW));
    assert_eq!(rig.swap().next_clean(rig.id, 0, 1024).0, Some(entries[1]));
    assert_eq!(rig.swap().next_clean(rig.id, entries[2].slot() + 1, 1024), (None, 0));
    // The task that has found the first page keeps it.
    assert_eq!(rig.number(first), 1);
    rig.put(third);
    let second = rig.get(entries[1]).unwrap();
    (0..2).for_each(|_| rig.put(second));
    assert_eq!(entries.map(|entry| rig.take(entry)), [Ok(1), Ok(2), Ok(3)]);
    rig.end();
}

/// Between the lookup of a fault and its last step, the page leaves the cache, and may come back in another
/// frame. Both frames have the contents.
#[test]
fn page_that_left_the_cache_is_taken_from_either_frame() {
    let rig = Rig::new(8);
    let entry = rig.store(42);
    let first = rig.get(entry).unwrap();
    assert!(rig.swap().drop_clean(entry, SHADOW));
    assert!(rig.owns(entry, first), "no other task needs the page");
    assert_eq!(rig.number(first), 42);
    let entry = rig.store(43);
    rig.swap().duplicate(entry).unwrap();
    let first = rig.get(entry).unwrap();
    assert!(rig.swap().drop_clean(entry, SHADOW));
    let second = rig.get(entry).unwrap();
    assert_ne!(first, second);
    assert!(!rig.owns(entry, second), "another entry names the page");
    assert_eq!(rig.number(second), 43);
    let taken = rig.swap().take(entry, first);
    assert_eq!((taken.is_exclusive, taken.frame), (true, Some(second)));
    rig.put(second);
    assert_eq!(rig.number(first), 43);
    rig.end();
}

#[test]
fn frame_is_in_one_slot_at_a_time() {
    let rig = Rig::new(8);
    let pfn = rig.page(1);
    let entry = rig.swap().allocate(1).unwrap().insert(pfn).unwrap();
    let mut run = rig.swap().allocate(1).unwrap();
    assert_eq!(run.insert(pfn), None);
    rig.release(entry);
    let entry = run.insert(pfn).unwrap();
    assert_eq!(run.insert(pfn), None, "the run has no slot left");
    rig.put(pfn);
    rig.release(entry);
    drop(run);
    rig.end();
}

#[test]
fn slots_come_from_the_device_with_the_highest_priority() {
    let world = World::new();
    let swap = world.engine().swap();
    let on = |slots, priority| world.engine().swap_on(MemorySwap::new(slots), priority).unwrap();
    let [low, high, other] = [on(4, -1), on(2, 5), on(2, 5)];
    let mut runs: Vec<_> = (0..8).map(|_| swap.allocate(1).unwrap()).collect();
    let of = |id| world.engine().swap_usage(id).unwrap().used;
    assert_eq!([low, high, other].map(of), [4, 2, 2]);
    assert_eq!(swap.allocate(1).err(), Some(NoSlot::Full));
    // The two devices of the same priority took turns.
    let ids: Vec<_> = runs
        .iter_mut()
        .map(|run| {
            let pfn = world.engine().memory().alloc_swap(PageOwner::Caller).unwrap();
            let entry = run.insert(pfn).unwrap();
            world.engine().memory().put_frame(pfn);
            swap.release(entry).into_iter().for_each(|pfn| world.engine().memory().put_frame(pfn));
            entry.device()
        })
        .collect();
    assert_ne!(ids[0], ids[1]);
    assert!(ids[..4].iter().all(|id| *id != low) && ids[4..].iter().all(|id| *id == low));
    drop(runs);
    world.end();
}

#[test]
fn device_is_removed_when_it_is_closed_and_empty() {
    struct Dropped(MemorySwap, #[expect(dead_code, reason = "shows whether the device lives")] Arc<()>);
    impl SwapDevice<Machine> for Dropped {
        fn slots(&self) -> u64 {
            4
        }
        fn read(&self, request: SwapRead<Machine>) {
            self.0.read(request);
        }
        fn write(&self, request: SwapWrite<Machine>) {
            self.0.write(request);
        }
    }
    let world = World::new();
    let (swap, lives) = (world.engine().swap(), Arc::new(()));
    let weak: Weak<()> = Arc::downgrade(&lives);
    let id = world.engine().swap_on(Dropped(MemorySwap::new(4), lives), 0).unwrap();
    assert_eq!(swap.ids().collect::<Vec<_>>(), [id]);
    let run = swap.allocate(1).unwrap();
    assert_eq!(swap.remove(id), Err(SwapOffError::NotClosed));
    assert!(swap.close(id) && !swap.close(id));
    assert_eq!(swap.allocate(1).err(), Some(NoSlot::Full));
    assert_eq!((swap.remove(id), swap.is_empty(id)), (Err(SwapOffError::InUse), false));
    drop(run);
    swap.reopen(id);
    let pfn = world.engine().memory().alloc_swap(PageOwner::Caller).unwrap();
    let entry = swap.allocate(1).unwrap().insert(pfn).unwrap();
    assert!(swap.close(id));
    assert_eq!(swap.remove(id), Err(SwapOffError::InUse));
    assert!(swap.take(entry, pfn).is_exclusive);
    world.engine().memory().put_frame(pfn);
    assert!(swap.is_empty(id));
    assert_eq!(swap.remove(id), Ok(()));
    assert_eq!(weak.upgrade(), None, "the device was not dropped");
    assert_eq!(swap.remove(id), Err(SwapOffError::NotFound));
    // An entry of the removed device names nothing.
    assert_eq!(swap.lookup(entry), Lookup::NotInUse);
    assert_eq!(swap.release(entry), None);
    assert_eq!(world.engine().swap_usage(id), None);
    world.end();
}

/// A device that is never used.
struct Unused;

impl<P: Platform> SwapDevice<P> for Unused {
    fn slots(&self) -> u64 {
        4
    }
    fn read(&self, request: SwapRead<P>) {
        drop(request);
    }
    fn write(&self, request: SwapWrite<P>) {
        drop(request);
    }
}

/// Closes the device and tries to remove it as soon as this thread has counted a slot as used.
fn remove_at_first_use(engine: Counted<Engine<Gated>>, id: SwapId, tried: Arc<Mutex<Option<SwapOffError>>>) {
    before_read_section(move || {
        if engine.swap_usage(id).unwrap().used == 0 {
            return remove_at_first_use(engine, id, tried);
        }
        assert!(engine.swap().close(id));
        *tried.lock().unwrap() = engine.swap().remove(id).err();
    });
}

#[test]
fn allocation_that_meets_the_removal_of_its_device_is_cancelled() {
    let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    let engine = Engine::new(Gated::new(&machine), Config::default()).unwrap();
    let id = engine.swap_on(Unused, 0).unwrap();
    let tried = Arc::default();
    remove_at_first_use(engine.clone(), id, Arc::clone(&tried));
    assert_eq!(engine.swap().allocate(1).err(), Some(NoSlot::Full));
    assert_eq!(*tried.lock().unwrap(), Some(SwapOffError::InUse), "the slot was in use");
    assert_eq!(engine.swap().remove(id), Ok(()));
    drop(engine);
    machine.accounting().assert_clean();
}

#[test]
fn number_of_devices_and_of_their_slots_is_limited() {
    let world = World::new();
    let on = |slots| world.engine().swap_on(MemorySwap::new(slots), 0);
    assert_eq!(on(0), Err(SwapOnError::Invalid));
    assert_eq!(on(SwapEntry::MAX_SLOTS + 1), Err(SwapOnError::Invalid));
    let ids: Vec<_> = (0..32).map(|_| on(1).unwrap()).collect();
    assert_eq!(on(1), Err(SwapOnError::TooManyDevices));
    let entry = SwapEntry::new(ids[31], SwapEntry::MAX_SLOTS - 1);
    assert_eq!(SwapEntry::from_payload(entry.payload() | 1 << SwapEntry::BITS), entry);
    assert_eq!((entry.device(), entry.slot()), (ids[31], SwapEntry::MAX_SLOTS - 1));
    world.end();
}

#[test]
fn devices_and_clusters_need_memory() {
    let world = World::new();
    let reached = at_every_allocation(&Failure::ALL, |point| {
        let device = MemorySwap::new(2000);
        match point.fail(|| world.engine().swap_on(device, 0)) {
            Ok(id) => {
                assert!(world.engine().swap().close(id));
                world.engine().swap().remove(id).unwrap();
            }
            Err(error) => assert_eq!(error, SwapOnError::OutOfMemory),
        }
        assert_eq!(world.engine().swap().ids().count(), 0);
    });
    assert!(reached > 8, "{reached} failures");
    // The first slot of each cluster needs a table. Clusters with a table are used if there is no memory.
    let id = world.engine().swap_on(MemorySwap::new(2 * 512), 0).unwrap();
    let swap = world.engine().swap();
    let used = || world.engine().swap_usage(id).unwrap().used;
    let reached = at_every_allocation(&[Failure::Heap], |point| {
        let run = point.fail(|| swap.allocate(32));
        match &run {
            Ok(run) => assert_eq!(run.len(), 32),
            Err(error) => assert_eq!(*error, NoSlot::OutOfMemory),
        }
        assert_eq!(used(), if run.is_ok() { 32 } else { 0 });
    });
    assert_eq!(reached, 1);
    let runs: Vec<_> = (0..16).map(|_| swap.allocate(32).unwrap()).collect();
    freehold_machine::fail_heap_from(1);
    let full = swap.allocate(1);
    freehold_machine::stop_failing_heap();
    assert_eq!(full.err(), Some(NoSlot::OutOfMemory));
    drop(runs);
    assert_eq!(used(), 0);
    world.end();
}

/// Pages go to a device that fails and come back, in an order that a seed chooses. A map from entries to
/// numbers is the oracle.
#[test]
fn contents_survive_many_round_trips() {
    let rig = Rig::new(700);
    let mut dice = Dice::new(51);
    let mut held: BTreeMap<u64, (SwapEntry, u64, u32)> = BTreeMap::new();
    let rounds = Effort::of(20_000, 100_000, 2_000_000);
    for round in 0..rounds {
        if round % 1000 == 0 {
            rig.device.fail_by_seed(round + 1, if round % 3000 == 0 { 20 } else { 0 });
        }
        let pick = |dice: &mut Dice, held: &BTreeMap<u64, (SwapEntry, u64, u32)>| {
            let nth = dice.roll(held.len() as u64) as usize;
            *held.keys().nth(nth).unwrap()
        };
        match dice.roll(8) {
            0..4 if held.len() < 200 && rig.bad() < 400 => {
                let entry = rig.store(round);
                assert_eq!(held.insert(entry.payload(), (entry, round, 1)), None, "a slot is in use twice");
            }
            _ if held.is_empty() => {}
            4 => {
                let key = pick(&mut dice, &held);
                let (entry, _, count) = held.get_mut(&key).unwrap();
                rig.swap().duplicate(*entry).unwrap();
                *count += 1;
            }
            5 => {
                let (entry, number, _) = held[&pick(&mut dice, &held)];
                match rig.get(entry) {
                    Ok(pfn) => assert_eq!(rig.number(pfn), number),
                    Err(error) => assert_eq!(error, SwapReadError::Io),
                }
            }
            6 => {
                let (entry, ..) = held[&pick(&mut dice, &held)];
                rig.swap().drop_clean(entry, SHADOW);
            }
            _ => {
                let key = pick(&mut dice, &held);
                let (entry, number, count) = held.get_mut(&key).unwrap();
                match rig.take(*entry) {
                    Ok(found) => {
                        assert_eq!(found, *number);
                        *count -= 1;
                    }
                    Err(error) => assert_eq!(error, SwapReadError::Io),
                }
                if *count == 0 {
                    held.remove(&key);
                }
            }
        }
        assert_eq!(rig.used(), held.len() as u64);
    }
    rig.device.fail_by_seed(0, 0);
    for (entry, number, count) in held.into_values() {
        (0..count).for_each(|_| assert_eq!(rig.take(entry), Ok(number)));
    }
    rig.end();
}
