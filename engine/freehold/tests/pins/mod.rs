//! Pinned pages (`src/remote/pin.rs`): which pages can be pinned, and what the holder of a pin, the program
//! and its children see. The holder is a device or the kernel; in the tests it reads and writes the frames
//! through `Pins` ([`word`], [`put`]), past the page tables.
//!
//! There are two ways to pin: the ordinary call, and a fast call without a lock ([`fast`]) for pages that are
//! present. [`refused`] checks that both calls refuse with the same error. A *long-term* pin may last for any
//! time, so pages that the engine must be able to take back are refused.
//! `lab/freehold-machine/tests/shuttle_engine/pins.rs` and `pinned.rs` explore pins concurrent with other
//! calls.
//!
//! The subjects of the files: which pages can be pinned (`pinning.rs`), pages of files (`files.rs`), fork
//! (`fork.rs`), frames that stay allocated (`pinned_frames.rs`), the limit of references
//! (`reference_limit.rs`), and failed allocations (`oom.rs`). A new kind of memory needs a test that pins it,
//! or a test that calls [`refused`].

mod files;
mod fork;
mod oom;
mod pinned_frames;
mod pinning;
mod reference_limit;

use crate::support::{
    self, ANON, BASE, Config, Counted, Disk, File, FileAccess, HUGE, IoError, Locking, Machine, MapFlags,
    Mapping, PAGE, Pager, Pfn, Platform, Process, R, RW, Vcpu, World, anon, everywhere, failure::Failure,
    fill,
};
use freehold::{
    error::PinError,
    remote::{PinFlags, Pins},
};

const READ: PinFlags = PinFlags::empty();
const WRITE: PinFlags = PinFlags::WRITE;
const LONG: PinFlags = PinFlags::LONGTERM;

/// Returns the first word of a page.
#[track_caller]
fn word(pins: &Pins<Machine>, page: u64) -> u64 {
    let mut bytes = [0; 8];
    pins.read(page * PAGE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn put(pins: &Pins<Machine>, page: u64, word: u64) {
    pins.write(page * PAGE, &word.to_le_bytes()).unwrap();
}

/// Pins pages without a lock, as a task that runs the process on this CPU.
fn fast(process: &Process, cpu: &mut Vcpu, at: u64, pages: usize, flags: PinFlags) -> Pins<Machine> {
    cpu.run(process.mmu());
    cpu.call(|| process.pin_user_pages_fast_only(at, pages, flags)).unwrap()
}

/// Returns the error of an attempt to pin. The error must be the same with and without the lock-free path.
#[track_caller]
fn refused(process: &Process, cpu: &mut Vcpu, at: u64, flags: PinFlags) -> PinError {
    cpu.run(process.mmu());
    let slow = process.pin_user_pages(at, 2, flags).err().expect("the pages were pinned");
    let fast = cpu.call(|| process.pin_user_pages_fast(at, 2, flags)).err();
    assert_eq!(fast, Some(slow));
    slow
}
