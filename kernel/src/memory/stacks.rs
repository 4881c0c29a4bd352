//! Kernel stacks. Each stack lies in a slot of its own, and nothing is mapped below it. An overflow therefore
//! causes a double fault, which runs on a stack of its own and reports the overflow. A slot keeps its pages
//! for ever, so the translations of stacks never change. All stacks together have at most an eighth of memory,
//! which limits the number of threads, as on Linux.
//!
//! `sched/thread.rs` allocates a stack for each thread, and `boot/smp.rs` for each CPU except the first,
//! whose stack is in `boot.s`. One spin lock guards the slots and the page tables of this area. The test
//! `end-stack-overflow` checks the guard.

use crate::arch::{layout::direct, lock::SpinLock};
use crate::memory::{bytes_for_programs, frames};
use alloc::vec::Vec;
use freehold::PAGE_SIZE;

/// Start of the slots: entry 384 of the root, whose table is in `boot.s`.
const AREA: u64 = crate::arch::layout::DIRECT + 128 * (512 << 30);
/// Size of a slot in bytes.
const SLOT: u64 = 64 << 10;
/// Size of a stack in bytes. The stack is at the end of its slot. The engine needs at most 8.4 KiB.
pub const STACK: u64 = 32 << 10;
/// Number of slots below one entry of the kernel's root table.
const SLOTS: u64 = (512 << 30) / SLOT;
/// The part of the memory of programs that stacks may have.
const PART: u64 = 8;

unsafe extern "C" {
    static mut boot_pdpt_stacks: [u64; 512];
}

/// The slots that were used so far. A slot keeps its pages.
struct Slots {
    /// Slots that have pages and are not in use.
    free: Vec<u64>,
    /// Number of slots that have pages.
    made: u64,
}

/// The slots that have pages.
static SLOTS_USED: SpinLock<Slots> = SpinLock::new(Slots { free: Vec::new(), made: 0 });

/// A stack in use: the number of its slot. Dropping it makes the stack free.
pub struct Stack(u64);

impl Stack {
    /// Returns the address above the stack, where the stack begins to grow down.
    pub fn top(&self) -> u64 {
        AREA + (self.0 + 1) * SLOT
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        SLOTS_USED.lock().free.push(self.0);
        frames::thread_ended();
    }
}

/// Returns the maximum number of stacks, which is also the maximum number of processes.
pub fn most() -> u64 {
    (bytes_for_programs() / PART / STACK).min(SLOTS)
}

/// Returns true if as many stacks are in use as there may be.
pub fn all_in_use() -> bool {
    let slots = SLOTS_USED.lock();
    slots.free.is_empty() && slots.made >= most()
}

/// Allocates a stack. Returns `None` if memory runs out, or if all stacks are in use.
pub fn alloc() -> Option<Stack> {
    let mut slots = SLOTS_USED.lock();
    // The end of a thread must not need memory.
    let room = slots.made as usize + 1 - slots.free.len();
    slots.free.try_reserve(room).ok()?;
    if let Some(slot) = slots.free.pop() {
        return Some(in_use(slot));
    }
    let slot = slots.made;
    if slot >= most() {
        return None;
    }
    let top = AREA + (slot + 1) * SLOT;
    for at in (top - STACK..top).step_by(PAGE_SIZE as usize) {
        map(at)?;
    }
    slots.made += 1;
    Some(in_use(slot))
}

/// Returns the stack of a slot. The reserve grows with the number of stacks in use, because a thread may
/// allocate a bounded amount of memory in a call.
fn in_use(slot: u64) -> Stack {
    frames::reserve_for_thread();
    Stack(slot)
}

/// Returns the top of the stack that contains `at`, or `at` itself if no thread's stack contains it.
pub fn top_of(at: u64) -> u64 {
    let is_one = (AREA..AREA + SLOTS * SLOT).contains(&at) && at % SLOT >= SLOT - STACK;
    if is_one { at.next_multiple_of(SLOT) } else { at }
}

/// Returns true if the address is in the guard below a stack, where an overflow faults.
pub fn is_guard(at: u64) -> bool {
    (AREA..AREA + SLOTS * SLOT).contains(&at) && at % SLOT < SLOT - STACK
}

/// Maps the page at this address to a new frame, unless the page is mapped. Returns `None` if memory runs
/// out; a later call completes the mapping. The caller holds the lock of the slots.
fn map(at: u64) -> Option<()> {
    let mut table = direct::<u64>(&raw mut boot_pdpt_stacks as u64);
    for shift in [30, 21, 12] {
        // SAFETY: only this function changes the tables of this area, under the lock of the slots.
        let entry = unsafe { &mut *table.add((at >> shift & 511) as usize) };
        if *entry & 1 == 0 {
            let frame = frames::alloc_for_program(0)? * PAGE_SIZE;
            // SAFETY: the frame was just allocated.
            unsafe { direct::<u8>(frame).write_bytes(0, PAGE_SIZE as usize) };
            // The pages themselves are not executable.
            *entry = frame | 3 | if shift == 12 { 1 << 63 } else { 0 };
        }
        table = direct(*entry & 0x000f_ffff_ffff_f000);
    }
    Some(())
}
