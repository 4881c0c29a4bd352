//! Pages pinned from outside: what is pinned and what is refused, and that a pin, its program, and the
//! program's children each see what they should.

mod crowded;
mod files;
mod fork;
mod kept;
mod oom;
mod taken;

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

/// The first word of a page.
#[track_caller]
fn word(pins: &Pins<Machine>, page: u64) -> u64 {
    let mut bytes = [0; 8];
    pins.read(page * PAGE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn put(pins: &Pins<Machine>, page: u64, word: u64) {
    pins.write(page * PAGE, &word.to_le_bytes()).unwrap();
}

/// As a task that runs the process on this CPU.
fn fast(process: &Process, cpu: &mut Vcpu, at: u64, pages: usize, flags: PinFlags) -> Pins<Machine> {
    cpu.run(process.mmu());
    cpu.call(|| process.pin_user_pages_fast_only(at, pages, flags)).unwrap()
}

/// Why nothing is pinned, by either way.
#[track_caller]
fn refused(process: &Process, cpu: &mut Vcpu, at: u64, flags: PinFlags) -> PinError {
    cpu.run(process.mmu());
    let slow = process.pin_user_pages(at, 2, flags).err().expect("nothing to pin");
    let fast = cpu.call(|| process.pin_user_pages_fast(at, 2, flags)).err();
    assert_eq!(fast, Some(slow));
    slow
}
