//! A discard frees a page table that another call has found but not locked yet. The call continues in the
//! table that is installed by then, and never uses the freed table.
//!
//! `late` makes a call, and discards the block on another thread before the call takes its first page table
//! lock (`before_lock` in `support/gate.rs`). Each test makes one kind of call in this way. A new call that
//! finds a table without a lock needs a test here. `reclaim.rs` tests which tables a discard frees.

use super::HUGE;
use crate::support::{
    ANON, BASE, Config, Counted, Engine, File, Locking, MapFlags, PAGE, RW, SpaceConfig,
    gate::{Gated, before_lock, before_table, waits_for_lock, waits_for_table},
};
use freehold::{
    call::Advice,
    fault::Access,
    remote::{AccessMode, PinFlags},
    space::AddressSpace,
    uffd::{Features, FillMode, RegisterMode, UffdConfig, Userfaultfd},
};
use freehold_machine::{Machine, MachineConfig};
use freehold_sync::Rank;
use std::thread;

/// An address space on the machine with gates.
type Space = Counted<AddressSpace<Gated>>;

/// Two pages: one is present when the call begins, and one is not.
const THERE: u64 = BASE + 9 * PAGE;
const ABSENT: u64 = BASE + 7 * PAGE;

fn map(space: &Space, flags: MapFlags, file: Option<&Counted<File<Gated>>>) {
    space.mmap(BASE, HUGE, RW, flags | MapFlags::FIXED, file, 0).unwrap();
}

/// Faults repeatedly, as the hardware does, until the access is served.
fn fault(space: &Space, at: u64, access: Access) {
    for _ in 0..2 {
        space.handle_fault(at, access).unwrap();
    }
}

fn read(space: &Space, at: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(space.read_memory(at, &mut bytes, AccessMode::Plain), Ok(8));
    u64::from_le_bytes(bytes)
}

fn write(space: &Space, at: u64, value: u64) {
    assert_eq!(space.write_memory(at, &value.to_le_bytes(), AccessMode::Plain), Ok(8));
}

/// Discards the block. Runs on another thread, because the calling thread holds locks.
fn discard(space: &Space) {
    let advise = || space.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
    thread::scope(|scope| scope.spawn(advise).join().unwrap());
}

/// Runs `scenario` on every design.
fn each_way(scenario: impl Fn(&Counted<Engine<Gated>>, &Space)) {
    for locking in Locking::ALL {
        let machine: Machine = Machine::new(MachineConfig::backed(8 << 20)).unwrap();
        let gated = Gated::new(&machine);
        let engine = Engine::new(gated.clone(), Config::default()).unwrap();
        let space = AddressSpace::new(&engine, &SpaceConfig::new().locking(locking)).unwrap();
        scenario(&engine, &space);
        space.check();
        drop((space, engine, gated));
        machine.accounting().assert_clean();
    }
}

/// Makes a call. Before the call takes its first page table lock, the block is discarded and its page table
/// freed.
fn late<R>(space: &Space, call: impl FnOnce() -> R) -> R {
    let other = space.clone();
    before_lock(Rank::PageTable, move || discard(&other));
    let result = call();
    assert!(!waits_for_lock(), "no page table was locked");
    result
}

#[test]
fn faults_retry_when_their_table_was_freed() {
    each_way(|_, space| {
        map(space, ANON, None);
        fault(space, THERE, Access::WRITE);
        late(space, || fault(space, ABSENT, Access::WRITE));
        assert!(space.frame_at(ABSENT).is_some());
        assert_eq!(space.rss().anon, 1);
        late(space, || fault(space, THERE, Access::READ));
        assert_eq!(space.rss().anon, 0);
        fault(space, ABSENT, Access::WRITE);
        late(space, || assert_eq!(read(space, ABSENT), 0));
        late(space, || write(space, THERE, 7));
        assert_eq!((read(space, THERE), space.rss().anon), (7, 1));
        late(space, || space.madvise(BASE, HUGE, Advice::PopulateWrite).unwrap());
        assert_eq!(space.rss().anon, 512);
    });
}

#[test]
fn copy_on_write_retries_when_its_table_was_freed() {
    each_way(|_, space| {
        map(space, ANON, None);
        write(space, THERE, 1);
        let child = space.fork().unwrap();
        late(space, || fault(space, THERE, Access::WRITE));
        assert_eq!((read(space, THERE), read(&child, THERE)), (0, 1));
        // When the child has ended, only this space maps the page. Without the discard, the fault would
        // therefore not copy the page, but only restore the right to write.
        write(space, THERE, 2);
        drop(child);
        drop(space.fork().unwrap());
        late(space, || fault(space, THERE, Access::WRITE));
        assert_eq!(read(space, THERE), 0);
    });
}

#[test]
fn file_faults_retry_when_their_table_was_freed() {
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        each_way(|engine, space| {
            let file = File::shared_memory(engine, HUGE, true).unwrap();
            file.mapping().write_at(THERE - BASE, &[5]).unwrap();
            map(space, flags, Some(&file));
            for (at, access) in [(THERE, Access::READ), (THERE, Access::WRITE), (ABSENT, Access::WRITE)] {
                // Leaves only the page table and a distant page, which is outside of the window that the
                // fault maps.
                discard(space);
                fault(space, BASE + 300 * PAGE, Access::READ);
                late(space, || fault(space, at, access));
                assert!(space.frame_at(at).is_some(), "{at:#x}, {access:?}");
            }
            // A store to a page that is mapped read-only.
            discard(space);
            fault(space, THERE, Access::READ);
            late(space, || fault(space, THERE, Access::WRITE));
            late(space, || write(space, THERE, 6));
            assert_eq!(read(space, THERE), 6);
        });
    }
}

#[test]
fn guards_and_pins_retry_when_their_table_was_freed() {
    each_way(|_, space| {
        map(space, ANON, None);
        write(space, THERE, 1);
        late(space, || space.madvise(ABSENT, PAGE, Advice::GuardInstall).unwrap());
        assert!(space.handle_fault(ABSENT, Access::READ).is_err());
        space.madvise(ABSENT, PAGE, Advice::GuardRemove).unwrap();
        let pins = late(space, || space.pin_user_pages(THERE, 1, PinFlags::WRITE)).unwrap();
        pins.write(0, &[8]).unwrap();
        assert_eq!(read(space, THERE), 8);
        drop(pins);
    });
}

#[test]
fn rmap_walks_retry_when_their_table_was_freed() {
    each_way(|engine, space| {
        map(space, ANON, None);
        write(space, THERE, 1);
        let child = space.fork().unwrap();
        let frame = space.frame_at(THERE).unwrap();
        late(space, || engine.migrate(frame)).unwrap();
        assert_eq!((read(space, THERE), read(&child, THERE)), (0, 1));
        let frame = child.frame_at(THERE).unwrap();
        late(&child, || engine.referenced(frame).unwrap());
        drop(child);
    });
}

#[test]
fn uffd_fills_retry_when_their_table_was_freed() {
    each_way(|_, space| {
        map(space, ANON, None);
        let config = UffdConfig::new().features(Features::empty());
        let uffd = Userfaultfd::new(space, config).unwrap();
        uffd.register(BASE, HUGE, RegisterMode::MISSING).unwrap();
        let copy = |at| uffd.copy(at, &[3; PAGE as usize], FillMode::empty());
        assert_eq!(copy(THERE), Ok(PAGE));
        assert_eq!(late(space, || copy(ABSENT)), Ok(PAGE));
        assert_eq!(space.rss().anon, 1);
        assert_eq!(late(space, || copy(THERE)), Ok(PAGE));
        assert_eq!(late(space, || uffd.zeropage(ABSENT, PAGE, FillMode::empty())), Ok(PAGE));
        assert_eq!((read(space, ABSENT), space.rss().anon), (0, 0));
        drop(uffd);
    });
}

/// C-62: a fault reads an entry in a freed page table that another process uses by then. The fault must
/// ignore that entry.
#[test]
fn c62_fault_ignores_an_entry_in_a_reused_table() {
    /// Number of tables that a fault visits: three upper tables, and then the lowest table, in which the
    /// fault reads an entry.
    const LOWEST: usize = 4;
    each_way(|engine, space| {
        map(space, ANON, None);
        fault(space, THERE, Access::WRITE);
        let other = AddressSpace::new(engine, &SpaceConfig::default()).unwrap();
        // The other space has all its tables except the lowest one. The next table that this space allocates
        // is therefore the freed table.
        map(&other, ANON, None);
        fault(&other, THERE, Access::READ);
        other.madvise(BASE, HUGE, Advice::DontNeed).unwrap();
        let (here, there) = (space.clone(), other.clone());
        before_table(LOWEST, move || {
            discard(&here);
            let guard = || there.madvise(ABSENT, PAGE, Advice::GuardInstall).unwrap();
            thread::scope(|scope| scope.spawn(guard).join().unwrap());
        });
        fault(space, ABSENT, Access::WRITE);
        assert!(!waits_for_table(), "the fault visited fewer tables");
        assert!(space.frame_at(ABSENT).is_some());
        assert!(other.handle_fault(ABSENT, Access::READ).is_err());
        drop(other);
    });
}
