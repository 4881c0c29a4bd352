//! System calls with arbitrary arguments, and the list of the mappings that these calls must not touch.
//!
//! `outsider.rs` makes random calls with these functions. [`call`] bypasses the C library, so any number and
//! argument reaches the kernel. [`Own`] lists the mappings of this program. A call that touches one of these
//! mappings destroys the program, so a caller must first check every call with [`Own::meets`].
#![expect(unsafe_code, reason = "raw system calls")]

use std::arch::asm;

/// Maximum number of mappings of a process.
const MAX_MAPPINGS: usize = 128;
const PAGE: u64 = 4096;

/// Makes a system call, and returns the kernel's raw result: a negative value is an errno.
pub fn call(number: i64, a: [u64; 6]) -> i64 {
    let value: i64;
    // SAFETY: the caller has checked with `Own` that the call cannot reach memory that this program uses.
    unsafe {
        asm!("syscall", inlateout("rax") number => value, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], out("rcx") _, out("r11") _);
    }
    value
}

/// Calls clone with these flags. The child only exits. Returns the result of the call in the parent.
pub fn clone_and_exit(flags: u64) -> i64 {
    let value: i64;
    // SAFETY: the child may share the parent's memory and stack, but runs no code except the exit. If the
    // flags contain CLONE_VM, they also contain CLONE_VFORK.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "mov eax, 60", "xor edi, edi", "syscall", "ud2", "2:",
            inlateout("rax") libc::SYS_clone => value, inlateout("rdi") flags => _, in("rsi") 0, in("rdx") 0, in("r10") 0,
            in("r8") 0, out("rcx") _, out("r11") _);
    }
    value
}

/// Runs `work` in a child. Returns the child's exit status, or the negated number of the signal that ended
/// it.
pub fn in_a_child(work: impl FnOnce()) -> i32 {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        work();
        // SAFETY: _exit ends the child without running the exit handlers, which belong to the parent.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "cannot fork");
    let mut status = 0;
    // SAFETY: the child belongs to this process, and the status outlives the call.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// The memory that this program uses: code, stacks, heap.
pub struct Own {
    ranges: [(u64, u64); MAX_MAPPINGS],
    count: usize,
}

impl Own {
    /// Returns the current mappings.
    pub fn now() -> Own {
        let text = std::fs::read_to_string("/proc/self/maps").expect("cannot read the mappings");
        let mut own = Own { ranges: [(0, 0); MAX_MAPPINGS], count: 0 };
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let (start, end) = range.expect("START-END");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            // A stack may grow.
            let room = if line.ends_with("[stack]") { 2 << 20 } else { 0 };
            own.ranges[own.count] = (number(start) - room, number(end));
            own.count += 1;
        }
        own
    }

    /// Returns true if a call on `len` bytes at `addr` may reach this memory. Rounds to whole pages as the
    /// kernel does.
    pub fn meets(&self, addr: u64, len: u64) -> bool {
        let start = addr & !(PAGE - 1);
        let len = len.wrapping_add(addr - start).wrapping_add(PAGE - 1) & !(PAGE - 1);
        let Some(end) = start.checked_add(len.max(PAGE)) else { return false };
        self.ranges[..self.count].iter().any(|(from, to)| start < *to && *from < end)
    }
}
