//! The part of the kernel for riscv64, on the machine `virt` of QEMU with the firmware OpenSBI.
//!
//! The upper half of every address space has the memory at [`DIRECT`] plus its physical address. Flushes are
//! interrupts between CPUs, which `Shootdown` of `freehold-kit` organises. The hardware may or may not set
//! accessed and dirty bits: the format without Svadu is correct on both.
#![expect(unsafe_code, reason = "executes instructions of the kernel")]

use crate::Board;
use core::arch::{asm, global_asm};
use freehold::platform::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::platform::{Flush, Host, Pfn, Table, TableMemory};
use freehold::prelude::*;
use freehold_kit::{Processors, ShootCpu, Shootdown, SpaceCpus};

#[cfg(feature = "sv57")]
pub type Format = freehold::platform::Sv57;
#[cfg(all(feature = "sv48", not(feature = "sv57")))]
pub type Format = freehold::platform::Sv48;
#[cfg(not(any(feature = "sv48", feature = "sv57")))]
pub type Format = freehold::platform::Sv39;
const LEVELS: usize = <Format as freehold::platform::Format>::LEVELS;

pub const NAME: &str = ["riscv64, Sv39", "riscv64, Sv48", "riscv64, Sv57"][LEVELS - 3];
/// The virtual address of the physical address 0. Fits the upper half of every format.
pub const DIRECT: u64 = 0xffff_ffc0_0000_0000;
/// The end of the memory, as a physical address: QEMU's option `-m 128M`.
pub const MEMORY_END: u64 = 0x8800_0000;
/// The value of `satp` without the number of the root table.
const MODE: u64 = (LEVELS as u64 + 5) << 60;
const ROOT_ENTRIES: core::ops::Range<usize> = 256..512;

global_asm!(include_str!("boot.s"), levels = const LEVELS, offset = const DIRECT, mode = const MODE);

unsafe extern "C" {
    fn load_word(address: u64) -> Word;
    fn run_program(registers: *mut Registers) -> Cause;
    static kernel_root: Table;
    static start_second: u8;
}

/// The result of `load_word`.
#[repr(C)]
struct Word {
    value: u64,
    is_loaded: u64,
}

/// The result of `run_program`: the registers scause and stval.
#[repr(C)]
struct Cause {
    cause: u64,
    value: u64,
}

/// The registers of a program. `boot.s` knows the layout.
#[repr(C)]
#[derive(Clone, Default)]
pub struct Registers {
    pc: u64,
    /// Registers x1 to x31.
    x: [u64; 31],
    kernel_stack: u64,
}

impl Registers {
    /// Returns the registers of a program that begins at `pc`.
    pub fn new(pc: u64, stack: u64, argument: u64) -> Self {
        let mut new = Registers { pc, ..Registers::default() };
        new.x[1] = stack;
        new.x[9] = argument;
        new
    }

    /// Returns the number and the arguments of a system call: registers a7, and a0 to a4.
    pub fn call(&self) -> (u64, [u64; 5]) {
        (self.x[16], core::array::from_fn(|n| self.x[9 + n]))
    }

    /// Sets the result of a system call.
    pub fn set_result(&mut self, result: u64) {
        self.x[9] = result;
    }

    /// Makes the program continue at `pc`.
    pub fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
    }

    /// Makes the program repeat its system call.
    pub fn repeat_call(&mut self) {
        self.pc -= 4;
    }

    /// Runs the program until its next trap. After a system call, the program continues behind the call.
    pub fn run(&mut self) -> crate::Trap {
        // SAFETY: `boot.s` saves and restores the kernel's registers. The program runs in user mode, where it
        // can only access pages that the engine maps.
        let Cause { cause, value: addr } = unsafe { run_program(self) };
        match cause {
            8 => {
                self.pc += 4;
                crate::Trap::Call
            }
            12 => crate::Trap::Fault { addr, access: Access::EXEC },
            13 => crate::Trap::Fault { addr, access: Access::READ },
            15 => crate::Trap::Fault { addr, access: Access::WRITE },
            cause if cause >> 63 == 1 => crate::Trap::Interrupt,
            cause => panic!("scause {cause:#x} at {:#x}", self.pc),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn unexpected_trap(cause: u64, value: u64, pc: u64) -> ! {
    panic!("scause {cause:#x}, stval {value:#x} in the kernel at {pc:#x}");
}

/// Number of the hart that acts as each CPU.
static HARTS: [AtomicU64; crate::CPUS] = [const { AtomicU64::new(0) }; crate::CPUS];

/// Calls the firmware. Returns its error code, 0 for success.
fn firmware(extension: u64, arguments: [u64; 3]) -> u64 {
    let error;
    let [first, second, third] = arguments;
    // SAFETY: the calls below change no memory of the kernel.
    unsafe {
        asm!("ecall", inout("a0") first => error, inout("a1") second => _, in("a2") third,
             in("a6") 0, in("a7") extension);
    }
    error
}

/// Prepares this CPU. `hart` is the number that the firmware gives to the CPU.
pub fn prepare_cpu(cpu: usize, hart: u64) {
    HARTS[cpu].store(hart, Relaxed);
    // SAFETY: the bits SPP and SPIE of sstatus choose user mode, and no interrupt in the kernel. SSIE of sie
    // permits interrupts of other CPUs in user mode.
    unsafe { asm!("csrc sstatus, {}", "csrw sie, {}", "fence.i", in(reg) 0x120, in(reg) 1 << 1) };
}

/// Starts CPU 1.
pub fn start_second_cpu() {
    let hart = 1 - HARTS[0].load(Relaxed);
    HARTS[1].store(hart, Relaxed);
    let entry = &raw const start_second as u64 - DIRECT;
    assert_eq!(firmware(0x48_534d, [hart, entry, 1]), 0, "the firmware does not start hart {hart}");
}

/// Returns the number of this CPU.
pub fn cpu() -> usize {
    let cpu: usize;
    // SAFETY: reads a register that only `boot.s` writes.
    unsafe { asm!("mv {}, tp", out(reg) cpu, options(nomem, nostack)) };
    cpu
}

/// Prints a byte.
pub fn print(byte: u8) {
    // SAFETY: the address is the register of the UART.
    unsafe { ((DIRECT + 0x1000_0000) as *mut u8).write_volatile(byte) };
}

/// Turns the machine off.
pub fn power_off(failed: bool) -> ! {
    // SAFETY: the address is the register of QEMU's test device, which ends QEMU with an exit status.
    unsafe { ((DIRECT + 0x10_0000) as *mut u32).write_volatile(if failed { 0x1_3333 } else { 0x5555 }) };
    loop {
        sleep();
    }
}

/// Waits for an interrupt, which stays pending.
pub fn sleep() {
    // SAFETY: only waits.
    unsafe { asm!("wfi") };
}

/// Ends the sleep of another CPU.
pub fn wake(cpu: usize) {
    assert_eq!(firmware(0x73_5049, [1, HARTS[cpu].load(Relaxed), 0]), 0, "no interrupt to CPU {cpu}");
}

/// Returns the time in nanoseconds.
pub fn now_ns() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
    ticks * 100
}

/// Makes earlier stores visible to instruction fetches of all CPUs.
pub fn publish_code(_: Pfn, _: u64) {
    // SAFETY: orders the stores before the call, and fetches of this CPU after the stores.
    unsafe { asm!("fence rw, rw", "fence.i") };
    // The mask's base -1 names all harts.
    assert_eq!(firmware(0x5246_4e43, [0, u64::MAX, 0]), 0, "no remote fence");
}

static TLBS: Shootdown<{ crate::CPUS }> = Shootdown::new([const { ShootCpu::new() }; crate::CPUS]);

/// The instructions that the flusher needs.
struct Cpus;

impl Processors for Cpus {
    fn interrupt(&self, cpu: usize) {
        wake(cpu);
    }

    fn flush_here(&self, _: usize, _: Pfn, what: &Flush) {
        crate::count(&crate::FLUSHES);
        if what.all || what.visits().len() > 64 {
            // SAFETY: removing translations is always correct.
            unsafe { asm!("sfence.vma") };
        } else {
            // The instruction removes a translation of any size that contains the address.
            what.visits().for_each(|addr| flush_page(addr.get()));
        }
    }

    fn switch_away(&self, _: usize, _: Pfn) {
        // CPUs are never lazy.
    }

    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// The record of an address space: the CPUs that may have translations.
pub type Mmu = SpaceCpus;

/// Creates the record of an address space, and fills the kernel's half of its root table.
pub fn space_created(root: Pfn) -> Mmu {
    for index in ROOT_ENTRIES {
        // SAFETY: the table never changes after the boot.
        let kernel = unsafe { kernel_root.entry(index) };
        Board.table(root).entry(index).store(kernel.load(Relaxed), Relaxed);
    }
    TLBS.space(root)
}

/// Ends the last use of the root table.
pub fn space_ending(mmu: &Mmu) {
    TLBS.end(cpu(), mmu, &Cpus);
}

/// Loads a root table. Translations have the number `asid`, of this hart only, except the kernel's.
fn load_root(root: u64, asid: u64) {
    // SAFETY: the table contains the kernel's half.
    unsafe { asm!("csrw satp, {}", in(reg) MODE | asid << 44 | root) };
}

/// Loads the root table of an address space. The number 0 belongs to the kernel's root table.
pub fn enter(mmu: &Mmu) {
    if let Some(load) = TLBS.enter(cpu(), mmu) {
        let asid = load.context as u64 + 1;
        load_root(mmu.root().get(), asid);
        if !load.keeps {
            // SAFETY: removing translations is always correct.
            unsafe { asm!("sfence.vma x0, {}", in(reg) asid) };
        }
    }
}

/// Loads the kernel's root table.
pub fn leave(mmu: &Mmu) {
    let table = &raw const kernel_root as u64 - DIRECT;
    load_root(table / PAGE_SIZE, 0);
    TLBS.leave(cpu(), mmu);
}

/// Permits or forbids [`load`]. The bit SUM of sstatus lets the kernel load from pages of programs. QEMU empties
/// the TLB when the bit changes, so the bit keeps its value during the suite.
pub fn permit_loads(permitted: bool) {
    // SAFETY: the kernel accesses pages of programs in `load` only.
    unsafe {
        match permitted {
            true => asm!("csrs sstatus, {}", in(reg) 1 << 18),
            false => asm!("csrc sstatus, {}", in(reg) 1 << 18),
        }
    }
}

/// Loads a word of the program whose address space this CPU runs. Returns `None` if the load faults.
pub fn load(address: u64) -> Option<u64> {
    // SAFETY: `boot.s` handles the fault of the load, which only reads memory of a program.
    let Word { value, is_loaded } = unsafe { load_word(address) };
    (is_loaded != 0).then_some(value)
}

/// Removes translations from the TLBs of all CPUs.
pub fn flush(mmu: &Mmu, what: &Flush) {
    TLBS.flush(cpu(), mmu, what, &Cpus);
}

/// Runs a walk of the tables that holds no lock, if this CPU runs the space: flushes then wait for the walk.
pub fn walk_tables<R>(mmu: &Mmu, walk: impl FnOnce() -> R) -> Option<R> {
    TLBS.runs(cpu(), mmu).then(walk)
}

/// Does the flushes that other CPUs have requested. Returns the interrupt.
pub fn answer() {
    // The bit is cleared first: a request that comes later sets the bit again.
    // SAFETY: clears the bit of the interrupt.
    unsafe { asm!("csrc sip, {}", in(reg) 1 << 1) };
    TLBS.answer(cpu(), &Cpus);
}

/// Removes the translation of an address from the TLB of this CPU.
pub fn flush_page(addr: u64) {
    // SAFETY: removing translations is always correct.
    unsafe { asm!("sfence.vma {}", in(reg) addr) };
}

/// Waits a moment in a loop, and does the flushes that other CPUs wait for.
pub fn relax() {
    TLBS.answer(Board::with_cpu(|cpu| cpu), &Cpus);
    core::hint::spin_loop();
}
