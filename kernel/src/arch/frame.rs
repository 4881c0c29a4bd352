//! The registers of an interrupted program, as `entry.s` pushes them, and the type of the addresses in them.
//!
//! A [`Frame`] is a record on a kernel stack, not a frame of memory (`memory/frames.rs`). The order of its
//! fields is the order of the pushes in `entry.s`: change both together. The sixteen vector registers lie
//! directly below the frame, at its address minus 256 ([`Vectors`]). No lock guards a frame: it belongs to
//! the thread on whose kernel stack it lies. The test `registers` checks [`Vectors`], and the test
//! `canonical` checks [`UserAddr`].

use super::layout::Tables;
use freehold::PAGE_SIZE;
use freehold::platform::Format;

/// The registers that `entry.s` pushes, lowest address first. [`Vectors`] lie directly below.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Frame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    pub vector: u64,
    /// The error code of a trap. In a frame of a system call and in a whole frame, the number of the call, or
    /// [`NO_CALL`](Self::NO_CALL).
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// The vector registers xmm0 to xmm15. They lie at the address of their [`Frame`] minus 256.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Vectors(pub [[u8; 16]; 16]);

/// Selectors of a program's segments, as on Linux.
pub const USER_CODE: u64 = 0x33;
pub const USER_DATA: u64 = 0x2b;

impl Frame {
    /// Value of `vector` for a system call, which returns by `sysretq`: the program's rcx and r11 are lost.
    #[allow(dead_code, reason = "entry.s writes it")]
    pub const SYSTEM_CALL: u64 = 0x100;
    /// Value of `vector` for a frame that is restored as a whole: after exec, or from a signal handler.
    pub const WHOLE: u64 = 0x101;
    /// Value of `error` if there is no system call.
    pub const NO_CALL: u64 = u64::MAX;

    /// Returns the frame of a program that begins at `begin`.
    pub fn of_program(begin: UserAddr, rsp: u64) -> Self {
        let rip = begin.get();
        Frame {
            vector: Self::WHOLE,
            error: Self::NO_CALL,
            rip,
            cs: USER_CODE,
            rflags: 0x202,
            rsp,
            ss: USER_DATA,
            ..Frame::default()
        }
    }

    /// Returns the number of the system call that the program has called, as tracers see it, or
    /// [`NO_CALL`](Self::NO_CALL).
    pub fn call(&self) -> u64 {
        if matches!(self.vector, Self::SYSTEM_CALL | Self::WHOLE) { self.error } else { Self::NO_CALL }
    }

    /// Makes the frame one that is restored as a whole. Tracers still see the number of the call.
    pub fn make_whole(&mut self) {
        self.error = self.call();
        self.vector = Self::WHOLE;
    }

    /// Returns the arguments of a system call.
    #[inline]
    pub fn args(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }

    /// Returns true if the frame interrupted a program, false if it interrupted the kernel.
    pub fn is_user(&self) -> bool {
        self.cs & 3 == 3
    }
}

/// An address below the end of a program's address space.
///
/// `iretq`, `sysretq` and `wrmsr` fault in the kernel if they load an instruction pointer or a segment base
/// that is not canonical. The kernel therefore gives these instructions only values of this type:
/// [`before_user`] returns the address of a program's next instruction, and a [`Thread`] has the bases of fs
/// and gs. A stack pointer needs no check: the processor loads any value, and the program's first use of the
/// stack faults.
///
/// [`before_user`]: super::handlers::Handlers::before_user
/// [`Thread`]: crate::sched::Thread
///
/// # Invariants
///
/// The address is below [`END`](Self::END). `END` lies in the lower half of the addresses that the page
/// tables of this kernel translate, so the address is canonical.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct UserAddr(u64);

impl UserAddr {
    /// The end of every address space: Linux's `TASK_SIZE_MAX`.
    pub const END: u64 = Tables::USER_END - PAGE_SIZE;
    /// The address 0, for example the base of fs in a new program.
    pub const ZERO: Self = UserAddr(0);

    /// Returns `None` if the address is not below [`END`](Self::END).
    #[inline(always)]
    pub fn new(at: u64) -> Option<Self> {
        const { assert!(Self::END <= Tables::USER_END) };
        (at < Self::END).then_some(UserAddr(at))
    }

    #[inline(always)]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Returns true if every untranslated upper bit equals the highest bit that page tables translate.
pub fn is_canonical(at: u64) -> bool {
    at < Tables::USER_END || at >= Tables::USER_END.wrapping_neg()
}
