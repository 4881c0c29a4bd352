//! The messages of the cargo feature `log`, which `tests/Cargo.toml` enables. Each test makes a call fail, or
//! prolongs a grace period, and compares the messages that its own thread has sent to the logger.
//!
//! The messages are in `src/fault/mod.rs` and `src/wait/grace_period.rs`, and in `src/error.rs` and
//! `src/memory/cache.rs` of `engine/freehold-vmspace`. A new message needs a test here, and a word in the
//! table of features in `src/lib.rs`. `every_call/messages.rs` tests the texts of errors.

use super::support::{
    failure::Failure,
    gate::{Gated, prolong_barriers},
    *,
};
use freehold::{
    engine::Config,
    fault::{Access, FaultError},
    file::Seals,
    space::{AddressSpace, SpaceConfig},
};
use freehold_machine::{example_engine, exempt};
use log::{LevelFilter, Log, Metadata, Record};
use std::{cell::RefCell, sync::Once};

thread_local! {
    /// The messages of the thread, if a test collects them.
    static COLLECTED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The logger of this program. Passes each message to the test that runs on the sending thread.
struct Collector;

impl Log for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        COLLECTED.try_with(|messages| messages.borrow().is_some()).unwrap_or(false)
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            exempt(|| {
                let message = format!("{}: {}", record.level(), record.args());
                COLLECTED.with_borrow_mut(|messages| messages.as_mut().unwrap().push(message));
            });
        }
    }

    fn flush(&self) {}
}

/// Returns the messages that this thread sends during `call`.
fn messages_of(call: impl FnOnce()) -> Vec<String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&Collector).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
    COLLECTED.set(Some(Vec::new()));
    call();
    COLLECTED.take().unwrap()
}

#[test]
fn page_fault_that_fails_is_reported() {
    let engine = example_engine(1 << 20);
    let space = AddressSpace::new(&engine, &SpaceConfig::new()).unwrap();
    let messages = messages_of(|| {
        assert!(matches!(space.handle_fault(0x12345, Access::READ), Err(FaultError::Segv { .. })));
    });
    let [message] = &messages[..] else { panic!("{messages:?}") };
    assert!(message.starts_with("DEBUG: page fault at 0x12345 (Access {"), "{message}");

    let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    let at = space.mmap(0, PAGE, rw, private, None, 0).unwrap();
    let messages = messages_of(|| {
        space.handle_fault(at, Access::WRITE).unwrap();
    });
    assert_eq!(messages, [""; 0], "a fault that succeeds");
}

#[test]
fn lack_of_frames_is_reported() {
    let engine = example_engine(1 << 20);
    let space = AddressSpace::new(&engine, &SpaceConfig::new()).unwrap();
    let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    let at = space.mmap(0, 1 << 21, rw, private, None, 0).unwrap();
    let messages = messages_of(|| {
        let pages = (at..at + (1 << 21)).step_by(PAGE as usize);
        let results: Vec<_> = pages.map(|page| space.handle_fault(page, Access::WRITE)).collect();
        assert!(results.contains(&Err(FaultError::OutOfMemory)));
    });
    let expected = "WARN: the platform has no frame for memory of the kind Anonymous";
    assert!(messages.iter().any(|message| message == expected), "{messages:?}");
}

#[test]
fn lack_of_heap_and_of_page_tables_is_reported() {
    let engine = example_engine(1 << 20);
    for (failure, expected) in [
        (Failure::Heap, "WARN: the global allocator is out of memory"),
        (Failure::Memory, "WARN: the platform has no frame for a page table"),
    ] {
        let messages = messages_of(|| {
            failure.arm(1);
            let space = AddressSpace::new(&engine, &SpaceConfig::new());
            failure.stop();
            assert!(space.is_err());
        });
        assert_eq!(messages, [expected]);
    }
}

/// A fault converts the failure of a table to its own error, which gets a second message.
#[test]
fn lack_of_a_page_table_in_a_fault_is_reported() {
    let engine = example_engine(1 << 20);
    let space = AddressSpace::new(&engine, &SpaceConfig::new()).unwrap();
    let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    let at = space.mmap(0, PAGE, rw, private, None, 0).unwrap();
    // A fault that finds no table is tried again if the cache of this CPU has frames.
    engine.trim();
    let messages = messages_of(|| {
        Failure::Memory.arm(1);
        assert_eq!(space.handle_fault(at, Access::WRITE), Err(FaultError::OutOfMemory));
        Failure::Memory.stop();
    });
    let [table, fault] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(table, "WARN: the platform has no frame for a page table");
    assert!(fault.starts_with("DEBUG: page fault at "), "{fault}");
}

#[test]
fn long_grace_period_is_reported() {
    let machine: Machine = Machine::new(MachineConfig::backed(1 << 20)).unwrap();
    let engine = Engine::new(Gated::new(&machine), Config::new()).unwrap();
    let file = Mapping::memfd(&engine, PAGE).unwrap();
    let messages = messages_of(|| {
        prolong_barriers(1_500_000_000);
        file.add_seals(Seals::WRITE).unwrap();
        prolong_barriers(0);
    });
    let [message] = &messages[..] else { panic!("{messages:?}") };
    let length = message.strip_prefix("WARN: a grace period took ").and_then(|rest| rest.strip_suffix(" ms"));
    assert!(length.unwrap().parse::<u64>().unwrap() >= 1500, "{message}");
}
