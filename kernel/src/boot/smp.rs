//! Starts the other CPUs, one after another.
//!
//! The first CPU starts one CPU at a time and waits for it, because all CPUs use the same trampoline page and
//! the same field for the top of their stack. The code of the trampoline is in `boot.s`. Programs run on a
//! CPU only after all CPUs have started. `start.rs` calls [`start_all`] once.
//!
//! A step that every CPU needs belongs in [`secondary_main`] and in `kernel_main` (`start.rs`). If a CPU does
//! not start within `PATIENCE_NS`, the boot ends with a panic.

use crate::arch::{apic, clock, cpu, descriptors, features, layout::direct, lock};
use crate::boot::madt;
use crate::memory::{self, stacks};
use crate::sched::scheduler;
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Release},
};
use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr4, Cr4Flags};

unsafe extern "C" {
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
    static mut ap_stack_top: u64;
}

/// Physical address at which a CPU starts: the page that the start-up interrupt names.
const TRAMPOLINE: u64 = 0x8000;
/// The INIT command, which resets a CPU.
const INIT: u32 = 0x4500;
/// The start-up command, which names the page of the trampoline.
const START_UP: u32 = 0x4600 | (TRAMPOLINE >> 12) as u32;
/// Maximum time that a CPU may take to start.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The number of the CPU that is being started.
static STARTING: AtomicUsize = AtomicUsize::new(0);
/// The number of the CPU that started last.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// True once all CPUs run and the identity map is removed. From then on programs may run, and use low
/// addresses.
static TOGETHER: AtomicBool = AtomicBool::new(false);

/// Starts all CPUs that the firmware lists, up to `MAX_CPUS`. Panics if a CPU does not start in time.
pub fn start_all(rsdp: u64) {
    let from = &raw const ap_trampoline;
    // SAFETY: copies the trampoline's exact length; nothing else uses this page below 64 KiB.
    unsafe {
        let bytes = (&raw const ap_trampoline_end).offset_from_unsigned(from);
        direct::<u8>(TRAMPOLINE).copy_from_nonoverlapping(direct(from as u64), bytes);
    }
    let (mut count, mut first) = (1, true);
    madt::processors(rsdp, |id| match first {
        true => {
            apic::set_id(0, id);
            first = false;
        }
        false if count < cpu::MAX_CPUS => {
            start(count, id);
            count += 1;
        }
        false => {}
    });
    cpu::set_count(count);
    memory::forget_low_memory();
    forget_global();
    // Release pairs with the acquire of `secondary_main`.
    TOGETHER.store(true, Release);
}

/// Starts one CPU and waits until it runs.
fn start(number: usize, id: u32) {
    apic::set_id(number, id);
    let stack = stacks::alloc().expect("memory for a stack");
    // SAFETY: no other CPU is being started. The new CPU reads the field through the identity map.
    unsafe { direct::<u64>((&raw mut ap_stack_top) as u64).write_volatile(stack.top()) };
    core::mem::forget(stack);
    // Release pairs with the acquire of `secondary_main`.
    STARTING.store(number, Release);
    apic::command(id, INIT);
    clock::spin_us(200);
    apic::command(id, START_UP);
    let patience = clock::now_ns() + PATIENCE_NS;
    // Acquire pairs with the release of `secondary_main`.
    while STARTED.load(Acquire) != number {
        assert!(clock::now_ns() < patience, "CPU {number} does not start");
        core::hint::spin_loop();
    }
}

/// Drops global TLB entries, such as those of the identity map of low memory.
fn forget_global() {
    let flags = Cr4::read();
    // SAFETY: clears the flag and restores it.
    unsafe {
        Cr4::write(flags - Cr4Flags::PAGE_GLOBAL);
        Cr4::write(flags);
    }
    tlb::flush_all();
}

/// Entry of the other CPUs in Rust. `boot.s` jumps here.
#[unsafe(no_mangle)]
extern "C" fn secondary_main() -> ! {
    let number = STARTING.load(Acquire);
    cpu::init(number);
    descriptors::load();
    features::init();
    apic::init();
    scheduler::init_cpu();
    // Release pairs with the acquire of `start`.
    STARTED.store(number, Release);
    // Acquire pairs with the release of `start_all`.
    while !TOGETHER.load(Acquire) {
        lock::relax();
    }
    forget_global();
    scheduler::idle()
}
