//! Kernel stacks. Each lies in a slot of its own, with nothing mapped below it: an overflow is a double
//! fault, which has a stack of its own and says so. Pages of a slot stay with it, so no translation of one
//! ever changes.

use crate::arch::{layout::direct, lock::SpinLock};
use crate::memory::frames;
use alloc::vec::Vec;
use freehold::PAGE_SIZE;

/// Where the slots begin: entry 384 of the root, for which `boot.s` has the table.
const AREA: u64 = crate::arch::layout::DIRECT + 128 * (512 << 30);
const SLOT: u64 = 64 << 10;
/// Of which so much, at the end, is there. The engine needs 8.4 KiB at most.
pub const STACK: u64 = 32 << 10;
/// Slots that fit below one entry of the kernel's root table.
const SLOTS: u64 = (512 << 30) / SLOT;

unsafe extern "C" {
    static mut boot_pdpt_stacks: [u64; 512];
}

struct Slots {
    /// Those that have pages and no user.
    free: Vec<u64>,
    /// How many have pages.
    made: u64,
}

static SLOTS_USED: SpinLock<Slots> = SpinLock::new(Slots { free: Vec::new(), made: 0 });

/// A stack that somebody uses; free again when dropped.
pub struct Stack(u64);

impl Stack {
    /// Where it begins: the address behind it.
    pub fn top(&self) -> u64 {
        AREA + (self.0 + 1) * SLOT
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        SLOTS_USED.lock().free.push(self.0);
    }
}

/// A stack. None: no memory.
pub fn alloc() -> Option<Stack> {
    let mut slots = SLOTS_USED.lock();
    if let Some(slot) = slots.free.pop() {
        return Some(Stack(slot));
    }
    let slot = slots.made;
    if slot >= SLOTS {
        return None;
    }
    let top = AREA + (slot + 1) * SLOT;
    for at in (top - STACK..top).step_by(PAGE_SIZE as usize) {
        map(at)?;
    }
    slots.made += 1;
    Some(Stack(slot))
}

/// The top of the stack that an address is in; an address of no thread's stack itself.
pub fn top_of(at: u64) -> u64 {
    let is_one = (AREA..AREA + SLOTS * SLOT).contains(&at) && at % SLOT >= SLOT - STACK;
    if is_one { at.next_multiple_of(SLOT) } else { at }
}

/// Whether an address is one where an overflow of a stack ends up.
pub fn is_guard(at: u64) -> bool {
    (AREA..AREA + SLOTS * SLOT).contains(&at) && at % SLOT < SLOT - STACK
}

/// Puts a frame behind a page, unless there is one. Under the lock of the slots.
fn map(at: u64) -> Option<()> {
    let mut table = direct::<u64>(&raw mut boot_pdpt_stacks as u64);
    for shift in [30, 21, 12] {
        // SAFETY: tables of this area are changed here alone.
        let entry = unsafe { &mut *table.add((at >> shift & 511) as usize) };
        if *entry & 1 == 0 {
            let frame = frames::alloc_for_program(0)? * PAGE_SIZE;
            // SAFETY: a frame of ours.
            unsafe { direct::<u8>(frame).write_bytes(0, PAGE_SIZE as usize) };
            // The last level's pages may not be executed.
            *entry = frame | 3 | if shift == 12 { 1 << 63 } else { 0 };
        }
        table = direct(*entry & 0x000f_ffff_ffff_f000);
    }
    Some(())
}
