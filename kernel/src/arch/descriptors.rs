//! Segments, gates, and the task state segment (TSS) with the stacks for severe exceptions.
//!
//! Each CPU has segments of its own. All CPUs share the gates, which the first CPU writes before the others
//! start. No lock is needed. A gate leads to a stub in `entry.s`, and `trap.rs` then finds the reason of the
//! trap. The selectors are also in `entry.s` and `frame.rs`; programs have the selectors of Linux.
//!
//! A vector in `OWN_STACK` must end the machine in `trap.rs`, because the next exception with this vector
//! would overwrite the stack. In the test `end-stack-overflow`, the double fault runs on such a stack.
//! `traced.c` compares the selectors with Linux's.

use crate::arch::cpu::{self, MAX_CPUS};
use core::cell::UnsafeCell;
use x86_64::PrivilegeLevel;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::{lgdt, lidt, load_tss};
use x86_64::registers::model_specific::Msr;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::SegmentSelector;
use x86_64::structures::tss::TaskStateSegment;

unsafe extern "C" {
    static trap_stubs: [[u8; 16]; 256];
    fn syscall_entry();
}

/// Size of the stack of each severe exception, in bytes.
const IST_BYTES: usize = 8192;
/// Vectors with a stack of their own: nonmaskable interrupt, double fault, machine check.
const OWN_STACK: [usize; 3] = [2, 8, 18];

/// The tables of one CPU, and its stacks for the vectors in `OWN_STACK`.
#[repr(C, align(16))]
struct Segments {
    gdt: [u64; 9],
    tss: TaskStateSegment,
    stacks: [[u8; IST_BYTES]; OWN_STACK.len()],
}

/// A [`Segments`] that only its own CPU uses.
#[repr(transparent)]
struct Own(UnsafeCell<Segments>);

// SAFETY: each CPU writes only its own `Segments`, and writes them before it uses them.
unsafe impl Sync for Own {}

/// The interrupt descriptor table: one gate for each vector.
#[repr(C, align(4096))]
struct Gates(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: the first CPU writes the gates before the other CPUs start.
unsafe impl Sync for Gates {}

/// The tables of all CPUs, by number.
static SEGMENTS: [Own; MAX_CPUS] = [const {
    Own(UnsafeCell::new(Segments {
        gdt: [0; 9],
        tss: TaskStateSegment::new(),
        stacks: [[0; IST_BYTES]; OWN_STACK.len()],
    }))
}; MAX_CPUS];
/// The gates, which all CPUs share.
static GATES: Gates = Gates(UnsafeCell::new([[0; 2]; 256]));

/// Writes the gates, once.
pub fn init_gates() {
    // SAFETY: no CPU has loaded the gates yet; the stubs are code.
    unsafe {
        for (vector, gate) in (*GATES.0.get()).iter_mut().enumerate() {
            let at = &raw const trap_stubs[vector] as u64;
            let ist = OWN_STACK.iter().position(|own| *own == vector).map_or(0, |n| n as u64 + 1);
            // Programs may raise only vector 3 themselves (`int3`).
            let rights = if vector == 3 { 0xee } else { 0x8e };
            let low = (at & 0xffff) | 8 << 16 | ist << 32 | rights << 40 | (at >> 16 & 0xffff) << 48;
            *gate = [low, at >> 32];
        }
    }
}

/// Loads segments and gates of the calling CPU, and sets the entry point of system calls.
pub fn load() {
    let own = SEGMENTS[cpu::number()].0.get();
    // SAFETY: the tables belong to this CPU and are in a static. The segments are those that entry.s and the
    // gates name.
    unsafe {
        for (index, stack) in (*own).stacks.iter().enumerate() {
            (*own).tss.interrupt_stack_table[index] = VirtAddr::new(stack.as_ptr_range().end as u64);
        }
        let tss = &raw const (*own).tss as u64;
        let size = size_of::<TaskStateSegment>() as u64 - 1;
        let low = size | (tss & 0xff_ffff) << 16 | 0x89 << 40 | (tss >> 24 & 0xff) << 56;
        let (code, data, user_data, user_code) =
            (0x00af_9a00_0000_ffff, 0x00cf_9200_0000_ffff, 0x00cf_f200_0000_ffff, 0x00af_fa00_0000_ffff);
        // Programs have the same selectors as on Linux: 0x2b and 0x33.
        (*own).gdt = [0, code, data, 0, 0, user_data, user_code, low, tss >> 32];
        lgdt(&pointer(&raw const (*own).gdt as u64, 9 * 8));
        lidt(&pointer(GATES.0.get() as u64, 256 * 16));
        CS::set_reg(SegmentSelector::new(1, PrivilegeLevel::Ring0));
        let data = SegmentSelector::new(2, PrivilegeLevel::Ring0);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(SegmentSelector::new(7, PrivilegeLevel::Ring0));
        // STAR: the selectors that `syscall` and `sysretq` load. LSTAR: the entry point.
        Msr::new(0xc000_0081).write(8 << 32 | 0x20 << 48);
        Msr::new(0xc000_0082).write(syscall_entry as *const () as u64);
        // FMASK, the flags cleared at entry: interrupts, single step, direction, alignment check, nested
        // task.
        Msr::new(0xc000_0084).write(0x4_7700);
    }
}

/// Sets the top of the stack on which the calling CPU pushes the frame of a trap from a program.
#[inline]
pub fn set_trap_stack(top: u64) {
    // SAFETY: the field belongs to this CPU, which reads it only at traps from programs.
    unsafe { (*SEGMENTS[cpu::number()].0.get()).tss.privilege_stack_table[0] = VirtAddr::new_unsafe(top) };
}

fn pointer(base: u64, bytes: u16) -> DescriptorTablePointer {
    DescriptorTablePointer { limit: bytes - 1, base: VirtAddr::new(base) }
}
