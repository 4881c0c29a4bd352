//! userfaultfd (`src/uffd/`): calls of the pager, messages to the pager, and calls that wait for the pager.
//! The pager is the program that serves faults. `fill.rs`, `protect.rs`, `protect_async.rs`, `moving.rs` and
//! `register.rs` test its calls. `events.rs`, `polls.rs`, `sleepers.rs` and `changes_during_fills.rs` test messages and waits.
//! `pools.rs` tests huge pages of pools, and `oom.rs` tests failed allocations.
//!
//! The tests run a program on one thread and its pager on another ([`with_pager`]). The pager reads the
//! messages in order and answers them. Anonymous memory starts at `BASE`; [`page`] gives the address of a
//! page. The tests check the messages, the results of the calls and the loaded words.
//! `lab/freehold-machine/tests/shuttle_engine/uffd.rs` explores concurrent cases.

mod changes_during_fills;
mod events;
mod fill;
mod moving;
mod oom;
mod polls;
mod pools;
mod protect;
mod protect_async;
mod register;
mod sleepers;

use crate::support::{self, *};
use freehold::{
    error::{UffdError, UffdReadError},
    fault::{Access, FaultError},
    file::Zeroes,
    uffd::{FaultReason, Features, FillMode, Message, RegisterMode, UffdConfig, Userfaultfd},
};

/// A userfaultfd of the machine.
type Uffd = Userfaultfd<Machine>;

const MISSING: RegisterMode = RegisterMode::MISSING;
const WP: RegisterMode = RegisterMode::WP;
const MINOR: RegisterMode = RegisterMode::MINOR;
const WAKE: FillMode = FillMode::empty();

fn uffd(process: &Process, features: Features) -> Uffd {
    Userfaultfd::new(process.space(), UffdConfig::new().features(features)).unwrap()
}

/// Maps anonymous pages at `BASE` and registers them.
fn registered(process: &Process, pages: u64, mode: RegisterMode, features: Features) -> Uffd {
    anon(process, BASE, pages);
    let uffd = uffd(process, features);
    uffd.register(BASE, pages * PAGE, mode).unwrap();
    uffd
}

/// Returns the address of a page.
fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

/// Returns a page whose first word is this number.
fn bytes(first: u64) -> Vec<u8> {
    pages_of(first..first + 1)
}

/// Returns pages whose first words are these numbers.
fn pages_of(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers
        .flat_map(|number| {
            let mut page = vec![0; PAGE as usize];
            page[..8].copy_from_slice(&number.to_le_bytes());
            page
        })
        .collect()
}

/// Returns shared memory of `pages` pages.
fn shmem(world: &World, pages: u64) -> Counted<File<Machine>> {
    let mapping = Mapping::new(world.engine(), Zeroes, pages * PAGE, true).unwrap();
    File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap()
}

/// Maps `file` exactly at `at`.
fn map_shmem(process: &Process, at: u64, pages: u64, flags: MapFlags, file: &Counted<File<Machine>>) {
    let mapped = process.mmap(at, pages * PAGE, RW, flags | MapFlags::FIXED, Some(file), 0);
    assert_eq!(mapped, Ok(at));
}

/// Checks that the next message is a fault at `at` with the given reason.
#[track_caller]
fn assert_fault(uffd: &Uffd, at: u64, why: FaultReason, store: bool) {
    match uffd.read() {
        Ok(Message::Fault { addr, reason, write, .. }) => {
            assert_eq!((addr, reason, write), (at, why, store));
        }
        other => panic!("{other:?}"),
    }
}

/// Runs `program` on a thread with a CPU of its own, while `pager` runs on this thread.
fn with_pager<R: Send, S>(
    world: &World,
    program: impl FnOnce(&mut Vcpu) -> R + Send,
    pager: impl FnOnce() -> S,
) -> (R, S) {
    std::thread::scope(|scope| {
        let program = scope.spawn(|| program(&mut world.machine.cpu(1)));
        let done = pager();
        (program.join().unwrap(), done)
    })
}

/// Returns the result of a load of page 0. While the load waits for the pager, the pager reads the message of
/// the fault and calls `strike`, which signals or kills the loading task. After the load, `mend` undoes the
/// effect of `strike`.
fn load_in_disturbed_task(
    world: &World,
    process: &Process,
    uffd: &Uffd,
    strike: fn(&Task),
    mend: fn(&Task),
) -> Result<u64, FaultError> {
    let program = |cpu: &mut Vcpu| {
        let task = Task::current();
        let read = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The message was read, so the fault is queued, and its thread sleeps or is about to sleep.
                assert_fault(uffd, page(0), FaultReason::Missing, false);
                strike(&task);
            });
            process.load::<u64>(cpu, page(0))
        });
        mend(&task);
        read
    };
    with_pager(world, program, || ()).0
}
