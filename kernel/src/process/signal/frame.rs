//! The frame of a signal handler on the program's stack, and the return from the handler (`rt_sigreturn`).
//! The frame is the `struct rt_sigframe` of x86-64, lowest address first:
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | the restorer's address, to which the handler returns |
//! | 304 | `ucontext_t`: flags, link, alternate stack, registers (`sigcontext`), mask |
//! | 128 | `siginfo_t` |
//! | | from the next multiple of 64: x87, SSE and AVX registers and PKRU, in the layout of FXSAVE or XSAVE |
//!
//! `deliver.rs` calls [`push`], and `calls/signals.rs` calls [`pop`]. Linux fixes the layout, which the
//! constants below give in words of 8 bytes. A program may have changed anything in the frame before it
//! returns. [`pop`] therefore takes only flags that a program may set, and vector state that the processor
//! accepts. An invalid rip is left to `fault::beyond_end`. The test programs `signals.c`, `registers.c` and
//! `keys.c` check the frame.

use crate::arch::features::{self, VectorState};
use crate::arch::frame::{Frame, USER_CODE, USER_DATA, Vectors};
use crate::platform::user::{self, UserPtr, copy_in};
use crate::process::signal::{Action, Info, force};
use crate::sched::{Thread, current};
use freehold::error::Errno;
use linux_raw_sys::general::*;

/// Indices of the parts of the frame, in words of 8 bytes.
const RESTORER: usize = 0;
const FLAGS: usize = 1;
const STACK: usize = 3;
const REGISTERS: usize = 6;
const SEGMENTS: usize = 24;
const ERROR: usize = 25;
const TRAP: usize = 26;
const OLD_MASK: usize = 27;
const ADDRESS: usize = 28;
const VECTORS: usize = 29;
const MASK: usize = 38;
const INFO: usize = 39;
const WORDS: usize = 55;

/// Bits of `uc_flags`: the frame has XSAVE state; the stack segment is saved; the stack segment is restored
/// unchanged.
const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// Bytes below the stack pointer that functions may use (the red zone of the ABI).
const RED_ZONE: u64 = 128;
const TRAP_FLAG: u64 = 0x100;
const DIRECTION: u64 = 0x400;
const RESUME: u64 = 0x1_0000;
/// Flags that a program may change: AC, OF, DF, TF, SF, ZF, AF, PF, CF, RF.
const OWN_FLAGS: u64 = 0x5_0dd5;

/// An alternate stack for handlers, set by sigaltstack.
#[derive(Clone, Copy, Debug)]
pub struct AlternateStack {
    /// The lowest address of the stack.
    pub at: u64,
    /// The flags of the last call of sigaltstack. Only SS_AUTODISARM has an effect; a frame shows all of them.
    pub flags: u32,
    /// The size in bytes; 0 if there is no alternate stack.
    pub bytes: u64,
}

impl AlternateStack {
    /// No alternate stack, before the first program has called sigaltstack.
    pub const UNSET: Self = AlternateStack { at: 0, flags: 0, bytes: 0 };
    /// No alternate stack.
    pub const NONE: Self = AlternateStack { at: 0, flags: SS_DISABLE, bytes: 0 };

    /// Returns true if a stack pointer is on this stack.
    pub fn contains(&self, sp: u64) -> bool {
        self.flags & SS_AUTODISARM == 0 && sp > self.at && sp - self.at <= self.bytes
    }

    /// Returns the stack as sigaltstack reports it (`stack_t`), for a program whose stack pointer is `sp`.
    pub fn words(&self, sp: u64) -> [u64; 3] {
        let now = match (self.bytes, self.contains(sp)) {
            (0, _) => SS_DISABLE,
            (_, true) => SS_ONSTACK,
            (_, false) => 0,
        };
        [self.at, u64::from(self.flags & SS_AUTODISARM | now), self.bytes]
    }
}

/// Returns the maximum size of a handler's frame on a stack, in bytes (AT_MINSIGSTKSZ).
pub fn most_bytes() -> u64 {
    (VectorState::size_for_program() as u64 + 63 + WORDS as u64 * 8 + 15 + 8).next_multiple_of(16)
}

/// Makes the calling thread's program continue in a signal handler: saves the registers in `frame` on the
/// program's stack, and sets `frame` to the start of the handler. A return from the handler restores the
/// saved registers.
///
/// # Errors
///
/// EFAULT if the stack cannot be written or the action has no restorer.
pub fn push(frame: &mut Frame, info: &Info, action: &Action, mask: u64) -> Result<(), Errno> {
    let here = current();
    if !action.has(SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let stack = here.alternate_stack.get();
    let was_on = stack.contains(frame.rsp);
    let switches = action.has(SA_ONSTACK) && stack.bytes != 0 && !was_on;
    let top = if switches { stack.at.wrapping_add(stack.bytes) } else { frame.rsp.wrapping_sub(RED_ZONE) };
    let image = VectorState::of_program(Thread::user_vectors(frame));
    let image_bytes = image.bytes_for_program();
    let vectors = top.wrapping_sub(image_bytes.len() as u64) & !63;
    // At a function's entry, the return address lies 8 bytes below a multiple of 16.
    let at = (vectors.wrapping_sub(WORDS as u64 * 8) & !15).wrapping_sub(8);
    if (was_on || switches) && at <= stack.at {
        return Err(Errno::EFAULT);
    }
    features::with_all_keys(|| {
        user::copy_out(vectors, image_bytes)?;
        UserPtr::<[u64; WORDS]>::new(at).write(&contents(frame, info, action, mask, vectors))
    })?;
    if stack.flags & SS_AUTODISARM != 0 {
        here.alternate_stack.set(AlternateStack::NONE);
    }
    frame.rip = action.handler;
    frame.rsp = at;
    (frame.rdi, frame.rsi, frame.rdx) = (info.signal.into(), at + INFO as u64 * 8, at + 8);
    frame.rax = 0;
    frame.rflags &= !(TRAP_FLAG | DIRECTION | RESUME);
    (frame.cs, frame.ss) = (USER_CODE, USER_DATA);
    frame.make_whole();
    // The handler begins with the vector registers, and the rights by protection keys, of a new program.
    VectorState::new().load();
    *Thread::user_vectors_mut(frame) = Vectors([[0; 16]; 16]);
    Ok(())
}

/// Returns the words of the frame. `vectors` is the address of the vector registers' image.
fn contents(frame: &Frame, info: &Info, action: &Action, mask: u64, vectors: u64) -> [u64; WORDS] {
    let here = current();
    let (trap, error, address) = here.last_fault.get();
    let extended = if VectorState::is_extended() { UC_FP_XSTATE } else { 0 };
    let f = frame;
    let mut words = [0; WORDS];
    words[RESTORER] = action.restorer;
    words[FLAGS] = extended | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
    let stack = here.alternate_stack.get();
    words[STACK..STACK + 3].copy_from_slice(&[stack.at, stack.flags.into(), stack.bytes]);
    words[REGISTERS..SEGMENTS].copy_from_slice(&[
        f.r8, f.r9, f.r10, f.r11, f.r12, f.r13, f.r14, f.r15, f.rdi, f.rsi, f.rbp, f.rbx, f.rdx, f.rax,
        f.rcx, f.rsp, f.rip, f.rflags,
    ]);
    words[SEGMENTS] = USER_CODE | USER_DATA << 48;
    (words[ERROR], words[TRAP], words[ADDRESS]) = (error, trap, address);
    words[OLD_MASK] = mask;
    words[VECTORS] = vectors;
    words[MASK] = mask;
    words[INFO..].copy_from_slice(&info.words());
    words
}

/// Returns from a handler: restores the registers in `frame` from the stack. Returns the restored rax. If the
/// stack cannot be read, raises SIGSEGV.
pub fn pop(frame: &mut Frame) -> u64 {
    match restore(frame) {
        Ok(rax) => rax,
        Err(_) => {
            force(Info::kernel(SIGSEGV));
            0
        }
    }
}

/// Reads the frame of the handler that returns, and restores registers, mask and alternate stack from it.
/// Returns rax.
fn restore(frame: &mut Frame) -> Result<u64, Errno> {
    let here = current();
    let at = frame.rsp.wrapping_sub(8);
    let (words, image) = features::with_all_keys(|| {
        let words = UserPtr::<[u64; INFO]>::new(at).read()?;
        let image = match words[VECTORS] {
            0 => VectorState::new(),
            at => VectorState::read_from_program(at, copy_in)?,
        };
        Ok::<_, Errno>((words, image))
    })?;
    let f = &mut *frame;
    let general = [
        &mut f.r8, &mut f.r9, &mut f.r10, &mut f.r11, &mut f.r12, &mut f.r13, &mut f.r14, &mut f.r15,
        &mut f.rdi, &mut f.rsi, &mut f.rbp, &mut f.rbx, &mut f.rdx, &mut f.rax, &mut f.rcx, &mut f.rsp,
        &mut f.rip,
    ];
    general.into_iter().zip(&words[REGISTERS..]).for_each(|(register, value)| *register = *value);
    f.rflags = f.rflags & !OWN_FLAGS | words[SEGMENTS - 1] & OWN_FLAGS;
    (f.vector, f.error, f.cs, f.ss) = (Frame::WHOLE, Frame::NO_CALL, USER_CODE, USER_DATA);
    let (rax, rsp) = (f.rax, f.rsp);
    image.load();
    *Thread::user_vectors_mut(frame) = image.vectors();
    here.restart.set(None);
    crate::process::signal::set_blocked(words[MASK]);
    let [at, flags, bytes] = words[STACK..STACK + 3] else { unreachable!("three words") };
    let _ = set_alternate_stack(rsp, at, flags as u32, bytes);
    Ok(rax)
}

/// Sets the alternate stack of the calling thread. `sp` is the stack pointer of the thread's program.
///
/// # Errors
///
/// EPERM if the stack is in use; EINVAL if the flags are invalid; ENOMEM if the stack is too small.
pub fn set_alternate_stack(sp: u64, at: u64, flags: u32, bytes: u64) -> Result<(), Errno> {
    let here = current();
    if here.alternate_stack.get().contains(sp) {
        return Err(Errno::EPERM);
    }
    let stack = match flags & !SS_AUTODISARM {
        SS_DISABLE => AlternateStack { flags, ..AlternateStack::NONE },
        0 | SS_ONSTACK if bytes < MINSIGSTKSZ.into() => return Err(Errno::ENOMEM),
        0 | SS_ONSTACK => AlternateStack { at, flags, bytes },
        _ => return Err(Errno::EINVAL),
    };
    here.alternate_stack.set(stack);
    Ok(())
}
