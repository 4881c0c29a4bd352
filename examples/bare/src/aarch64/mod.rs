//! The part of the kernel for aarch64, on the machine `virt` of QEMU.
//!
//! The kernel has the upper half of the addresses, which the register TTBR1 translates, so the tables of
//! address spaces belong to programs only. Flushes are instructions that the hardware broadcasts to all CPUs;
//! they name the ASID of an address space, which `Asids` of `freehold-kit` assigns.
//! Without the feature `hafdbs`, software sets accessed and dirty bits.
#![expect(unsafe_code, reason = "executes instructions of the kernel")]

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use freehold::platform::{Flush, Pfn};
use freehold::prelude::*;
use freehold_kit::asid::set;
use freehold_kit::{AsidCpu, Asids, SpaceAsid, Walker, Walkers};

#[cfg(feature = "hafdbs")]
pub type Format = freehold::platform::Aarch64<2>;
#[cfg(not(feature = "hafdbs"))]
pub type Format = freehold::platform::Aarch64<0>;
/// True if the hardware sets accessed and dirty bits.
const SETS_BITS: bool = !<Format as freehold::platform::Format>::HARDWARE_FLAGS.is_empty();

pub const NAME: &str = if SETS_BITS {
    "aarch64, accessed and dirty bits by hardware"
} else {
    "aarch64, accessed and dirty bits by software"
};
/// The virtual address of the physical address 0.
pub const DIRECT: u64 = 0xffff_0000_0000_0000;
/// The end of the memory, as a physical address: QEMU's option `-m 128M`.
pub const MEMORY_END: u64 = 0x4800_0000;
/// TCR_EL1: halves of 2^48 bytes, granules of 4 KiB, cached tables, physical addresses of 40 bits; bits 39
/// and 40 let the hardware set accessed and dirty bits.
const CONTROL: u64 = 0x2_b510_3510 | if SETS_BITS { 3 << 39 } else { 0 };

global_asm!(include_str!("boot.s"), control = const CONTROL);

unsafe extern "C" {
    fn load_word(address: u64) -> Word;
    fn run_program(registers: *mut Registers) -> Syndrome;
    static empty_root: u8;
    static start_second: u8;
}

/// The result of `load_word`.
#[repr(C)]
struct Word {
    value: u64,
    is_loaded: u64,
}

/// The result of `run_program`: the registers ESR_EL1 and FAR_EL1.
#[repr(C)]
struct Syndrome {
    esr: u64,
    far: u64,
}

/// The registers of a program. `boot.s` knows the layout.
#[repr(C)]
#[derive(Clone, Default)]
pub struct Registers {
    x: [u64; 31],
    pc: u64,
    stack: u64,
    kernel_stack: u64,
}

impl Registers {
    /// Returns the registers of a program that begins at `pc`.
    pub fn new(pc: u64, stack: u64, argument: u64) -> Self {
        let mut new = Registers { pc, stack, ..Registers::default() };
        new.x[0] = argument;
        new
    }

    /// Returns the number and the arguments of a system call: registers x8, and x0 to x4.
    pub fn call(&self) -> (u64, [u64; 5]) {
        (self.x[8], core::array::from_fn(|n| self.x[n]))
    }

    /// Sets the result of a system call.
    pub fn set_result(&mut self, result: u64) {
        self.x[0] = result;
    }

    /// Makes the program continue at `pc`.
    pub fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
    }

    /// Makes the program repeat its system call.
    pub fn repeat_call(&mut self) {
        self.pc -= 4;
    }

    /// Runs the program until its next exception. After a system call, the program continues behind the call.
    pub fn run(&mut self) -> crate::Trap {
        // SAFETY: `boot.s` saves and restores the kernel's registers. The program runs in user mode, where it
        // can only access pages that the engine maps.
        let Syndrome { esr, far: addr } = unsafe { run_program(self) };
        // The class of the exception; bit 6 says that a store caused a data abort.
        match esr >> 26 {
            0x15 => crate::Trap::Call,
            0x20 => crate::Trap::Fault { addr, access: Access::EXEC },
            0x24 if esr & 1 << 6 != 0 => crate::Trap::Fault { addr, access: Access::WRITE },
            0x24 => crate::Trap::Fault { addr, access: Access::READ },
            _ => panic!("ESR {esr:#x} at {:#x}", self.pc),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn unexpected_exception(esr: u64, far: u64, pc: u64) -> ! {
    panic!("ESR {esr:#x}, FAR {far:#x} in the kernel at {pc:#x}");
}

/// Calls the firmware (PSCI). Returns its error code, 0 for success.
fn firmware(function: u64, arguments: [u64; 3]) -> u64 {
    let error;
    let [first, second, third] = arguments;
    // SAFETY: the calls below change no memory of the kernel.
    unsafe {
        asm!("hvc #0", inout("x0") function => error, inout("x1") first => _, inout("x2") second => _,
             inout("x3") third => _);
    }
    error
}

/// True if the CPUs have FEAT_TTL. Both CPUs are alike, and store the same value.
static HAS_LEVEL_HINT: AtomicBool = AtomicBool::new(false);

/// Prepares this CPU.
pub fn prepare_cpu(_cpu: usize, _: u64) {
    let features: u64;
    // SAFETY: only reads a register, which is 0 on CPUs that do not define it.
    unsafe { asm!("mrs {}, id_aa64mmfr2_el1", out(reg) features, options(nomem, nostack)) };
    HAS_LEVEL_HINT.store(features >> 48 & 0xf != 0, Relaxed);
    load_root(no_root(), 0);
    flush_all();
}

/// Starts CPU 1.
pub fn start_second_cpu() {
    let entry = &raw const start_second as u64 - DIRECT;
    assert_eq!(firmware(0xc400_0003, [1, entry, 1]), 0, "the firmware does not start CPU 1");
}

/// Returns the number of this CPU.
pub fn cpu() -> usize {
    let cpu: usize;
    // SAFETY: reads a register that only `boot.s` writes.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) cpu, options(nomem, nostack)) };
    cpu
}

/// Prints a byte.
pub fn print(byte: u8) {
    // SAFETY: the address is the data register of the UART.
    unsafe { ((DIRECT + 0x900_0000) as *mut u8).write_volatile(byte) };
}

/// Turns the machine off.
pub fn power_off(_failed: bool) -> ! {
    firmware(0x8400_0008, [0; 3]);
    loop {
        sleep();
    }
}

/// Waits for an event, which stays pending.
pub fn sleep() {
    // SAFETY: only waits.
    unsafe { asm!("wfe") };
}

/// Ends the sleep of another CPU.
pub fn wake(_cpu: usize) {
    // SAFETY: sends an event to all CPUs, after all earlier stores.
    unsafe { asm!("dsb ish", "sev") };
}

/// Returns the time in nanoseconds.
pub fn now_ns() -> u64 {
    let (ticks, frequency): (u64, u64);
    // SAFETY: reads a counter.
    unsafe {
        asm!("mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) ticks, out(reg) frequency,
             options(nomem, nostack));
    }
    ticks * 1000 / (frequency / 1_000_000)
}

/// Makes the bytes of frames visible to instruction fetches of all CPUs.
pub fn publish_code(first: Pfn, frames: u64) {
    let start = DIRECT + first.get() * PAGE_SIZE;
    // The smallest line of a data cache has 16 bytes.
    for line in (start..start + frames * PAGE_SIZE).step_by(16) {
        // SAFETY: writes a line of the frames back.
        unsafe { asm!("dc cvau, {}", in(reg) line) };
    }
    // SAFETY: instruction caches may be emptied at any time.
    unsafe { asm!("dsb ish", "ic ialluis", "dsb ish", "isb") };
}

/// ASIDs of 8 bits, which every processor has.
static ASIDS: Asids<{ crate::CPUS }, 4> =
    Asids::new([const { AsidCpu::new() }; crate::CPUS], [const { set() }; 4]);
static WALKERS: Walkers<{ crate::CPUS }> = Walkers::new([const { Walker::new() }; crate::CPUS]);

/// The record of an address space: the root table and the ASID.
pub struct Mmu {
    root: Pfn,
    asid: SpaceAsid,
}

/// Creates the record of an address space.
pub fn space_created(root: Pfn) -> Mmu {
    Mmu { root, asid: SpaceAsid::new() }
}

/// Ends the last use of the root table. A CPU that leaves a space loads another root at once.
pub fn space_ending(_: &Mmu) {}

/// Returns the empty root table, as a physical address.
fn no_root() -> u64 {
    &raw const empty_root as u64 - DIRECT
}

/// Loads a root table. Translations of program addresses are not global, so they have this ASID.
fn load_root(root: u64, asid: u16) {
    // SAFETY: the tables of TTBR0 do not translate the kernel's addresses.
    unsafe { asm!("msr ttbr0_el1, {}", "isb", in(reg) u64::from(asid) << 48 | root) };
}

/// Permits or forbids [`load`], whose instruction needs no permission here.
pub fn permit_loads(_permitted: bool) {}

/// Loads a word of the program whose address space this CPU runs. Returns `None` if the load faults.
pub fn load(address: u64) -> Option<u64> {
    // SAFETY: `boot.s` handles the fault of the load, which only reads memory of a program.
    let Word { value, is_loaded } = unsafe { load_word(address) };
    (is_loaded != 0).then_some(value)
}

/// Removes all translations from the TLB of this CPU.
fn flush_all() {
    // SAFETY: removing translations is always correct.
    unsafe { asm!("tlbi vmalle1", "dsb nsh", "isb") };
}

/// Loads the root table of an address space.
pub fn enter(mmu: &Mmu) {
    let load = ASIDS.enter(cpu(), &mmu.asid, relax);
    if load.flushes {
        flush_all();
    }
    load_root(mmu.root.get() * PAGE_SIZE, load.asid);
}

/// Loads the empty root table. The translations of the space stay in the TLB.
pub fn leave(_: &Mmu) {
    load_root(no_root(), 0);
}

/// Returns the field TTL of a flush by address: the granule of 4 KiB and the level of the only translations
/// that the instruction removes, from 1 for 1 GiB to 3 for 4 KiB. If the levels differ, or if the CPUs do not
/// know the field, returns 0, and the instruction removes translations of every size.
fn level_hint(what: &Flush) -> u64 {
    match what.levels.only() {
        Some(level) if HAS_LEVEL_HINT.load(Relaxed) => (0b0111 - level as u64) << 44,
        _ => 0,
    }
}

/// Removes translations from the TLBs of all CPUs.
pub fn flush(mmu: &Mmu, what: &Flush) {
    crate::count(&crate::FLUSHES);
    // SAFETY: completes the stores to tables.
    unsafe { asm!("dsb ishst") };
    // A space that never ran has no translations, but other CPUs may walk its tables.
    let asid = u64::from(ASIDS.to_flush(&mmu.asid).unwrap_or(0)) << 48;
    if what.all || what.visits().len() > 64 {
        // SAFETY: removing translations is always correct.
        unsafe { asm!("tlbi aside1is, {}", in(reg) asid) };
    } else if what.tables_freed {
        for addr in what.visits() {
            // SAFETY: as above. The instruction also removes cached entries of tables.
            unsafe { asm!("tlbi vae1is, {}", in(reg) asid | addr.get() / PAGE_SIZE) };
        }
    } else {
        let operand = asid | level_hint(what);
        for addr in what.visits() {
            // SAFETY: as above. The instruction removes translations, and may keep cached entries of tables.
            unsafe { asm!("tlbi vale1is, {}", in(reg) operand | addr.get() / PAGE_SIZE) };
        }
    }
    // SAFETY: waits until all CPUs have removed the translations.
    unsafe { asm!("dsb ish", "isb") };
    if what.tables_freed {
        WALKERS.wait(relax);
    }
}

/// Runs a walk of the tables that holds no lock.
pub fn walk_tables<R>(_: &Mmu, walk: impl FnOnce() -> R) -> Option<R> {
    Some(WALKERS.walk(cpu(), walk))
}

/// Does nothing: no CPU requests a flush from another CPU.
pub fn answer() {}

/// Removes the translation of an address from the TLB of this CPU, and completes stores to tables.
pub fn flush_page(addr: u64) {
    // SAFETY: removing translations is always correct.
    unsafe { asm!("dsb ishst", "tlbi vaae1, {}", "dsb nsh", "isb", in(reg) addr / PAGE_SIZE) };
}

/// Waits a moment in a loop.
pub fn relax() {
    core::hint::spin_loop();
}
