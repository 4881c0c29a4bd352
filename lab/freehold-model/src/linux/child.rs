//! The child: executes commands with plain system calls, and reports results and signals.
//!
//! `mod.rs` is the parent. The child's own memory is outside the arena, and every command may change the
//! arena. The code here must therefore not allocate, lock, panic or return, and may use only its stack,
//! statics and the channel (`wire.rs`). An access to the arena that faults resumes at a known label
//! (`on_fault`); any other fault ends the child with status 99, and the parent then finds a dead process. A
//! command that is not a plain system call gets a number below and an arm in `own`.
#![expect(unsafe_code, reason = "raw system calls, signal handlers, faulting on purpose")]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::instructions::{self, call};
use super::wire::{Answer, BYTES, Channel, post, wait_change};
use crate::world::World;

/// Numbers of commands that are not system calls.
pub(super) const READ: u64 = 1 << 32;
pub(super) const WRITE: u64 = READ + 1;
pub(super) const FORK: u64 = READ + 2;
pub(super) const FILES: u64 = READ + 3;
pub(super) const PWRITE: u64 = READ + 4;
pub(super) const PREAD: u64 = READ + 5;
pub(super) const MINCORE: u64 = READ + 6;
pub(super) const SETUP: u64 = READ + 7;
/// Descriptor of file 0. The descriptors of the other files follow.
pub(super) const FIRST_FD: u64 = 200;
/// Descriptor of the file that is mapped over all addresses outside the arena.
pub(super) const FILLER_FD: i32 = 199;

// The resume label for the signal handler, and its results. Relaxed is sufficient, because the process has
// only one thread.
static RESUME: AtomicU64 = AtomicU64::new(0);
static SIGNO: AtomicI64 = AtomicI64::new(0);
static CODE: AtomicI64 = AtomicI64::new(0);
static ADDR: AtomicU64 = AtomicU64::new(0);

/// Signal handler: records the signal, and resumes the child at the label that the faulting access stored in
/// [`RESUME`].
extern "C" fn on_fault(signo: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let resume = RESUME.swap(0, Ordering::Relaxed);
    if resume == 0 {
        // No access of a command is in progress, so the fault is an error in this code. SAFETY: `_exit` ends
        // the process.
        unsafe { libc::_exit(99) };
    }
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler.
    unsafe {
        SIGNO.store(signo.into(), Ordering::Relaxed);
        CODE.store((*info).si_code.into(), Ordering::Relaxed);
        ADDR.store((*info).si_addr() as u64, Ordering::Relaxed);
        let context = &mut *context.cast::<libc::ucontext_t>();
        instructions::set_pc(context, resume);
    }
}

/// Returns the answer of an access that raised a signal.
fn signal() -> Answer {
    Answer {
        value: SIGNO.load(Ordering::Relaxed),
        code: CODE.load(Ordering::Relaxed),
        addr: ADDR.load(Ordering::Relaxed),
        bytes: 0,
    }
}

/// The main loop of a process. `index` is the index of its channel.
pub(super) fn run(channels: *mut Channel, mut index: usize) -> ! {
    let mut seen = 0;
    loop {
        // SAFETY: this process owns the channel until `post`.
        let channel = unsafe { &mut *channels.add(index) };
        let asked = wait_change(&channel.asked, seen);
        let mut used = 0;
        let mut forked = None;
        for n in 0..channel.len as usize {
            let cmd = channel.cmds[n];
            let room = &mut channel.bytes[used..];
            let mut answer = match cmd.what {
                FORK => match fork(cmd.args[1]) {
                    0 => {
                        forked = Some(cmd.args[0] as usize);
                        break;
                    }
                    pid => Answer { value: pid, ..Answer::default() },
                },
                what => own(what, &cmd.args, room),
            };
            answer.bytes = answer.bytes.min((BYTES - used) as u64);
            used += answer.bytes as usize;
            channel.answers[n] = answer;
        }
        if let Some(child) = forked {
            index = child;
            seen = 0;
            continue;
        }
        seen = asked;
        post(&channel.answered, asked);
    }
}

/// Forks with `CLONE_PARENT`, so that all processes are siblings. Each process is killed when its parent
/// ends.
fn fork(flags: u64) -> i64 {
    let pid = call(libc::SYS_clone as u64, &[flags | libc::SIGCHLD as u64, 0, 0, 0, 0, 0]);
    if pid == 0 {
        call(libc::SYS_prctl as u64, &[libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0]);
    }
    pid
}

/// Executes a command that needs no fork. `room` is the space for returned bytes.
fn own(what: u64, a: &[u64; 6], room: &mut [u8]) -> Answer {
    let plain = |value: i64| Answer { value, ..Answer::default() };
    match what {
        READ => {
            let mut n = 0;
            while n < a[1] {
                let at = a[0] + n;
                let to = n as usize;
                let done = if at.is_multiple_of(8) && a[1] - n >= 8 {
                    n += 8;
                    instructions::load_word(&RESUME, at)
                        .map(|word| room[to..to + 8].copy_from_slice(&word.to_le_bytes()))
                } else {
                    n += 1;
                    instructions::load(&RESUME, at).map(|byte| room[to] = byte)
                };
                if done.is_err() {
                    return signal();
                }
            }
            Answer { bytes: a[1], ..Answer::default() }
        }
        WRITE => instructions::store(&RESUME, a[0], a[1] as u8).map_or_else(|()| signal(), |()| plain(0)),
        PWRITE => {
            for (n, byte) in room[..a[2] as usize].iter_mut().enumerate() {
                *byte = (a[3] as u8).wrapping_add(n as u8);
            }
            plain(call(libc::SYS_pwrite64 as u64, &[a[0], room.as_ptr() as u64, a[2], a[1], 0, 0]))
        }
        PREAD => {
            let value = call(libc::SYS_pread64 as u64, &[a[0], room.as_mut_ptr() as u64, a[2], a[1], 0, 0]);
            Answer { value, bytes: value.max(0) as u64, ..Answer::default() }
        }
        MINCORE => {
            let value = call(libc::SYS_mincore as u64, &[a[0], a[1], room.as_mut_ptr() as u64, 0, 0, 0]);
            let pages = if value == 0 { a[1].div_ceil(4096) } else { 0 };
            room[..pages as usize].iter_mut().for_each(|b| *b &= 1);
            Answer { value, bytes: pages, ..Answer::default() }
        }
        FILES => plain(files(room)),
        SETUP => plain(setup(a)),
        number => plain(call(number, a)),
    }
}

/// Prepares the process: installs signal handlers, disables huge pages, moves the heap into the arena, opens
/// the filler file, and drops privileges.
fn setup(a: &[u64; 6]) -> i64 {
    let [heap, may_lock, filler_len, ..] = *a;
    // SAFETY: plain system calls on values that live through the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        call(libc::SYS_prctl as u64, &[libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0]);
        let map = mm_map(heap);
        let moved = call(
            libc::SYS_prctl as u64,
            &[libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64, map.as_ptr() as u64, 104, 0, 0],
        );
        if moved < 0 {
            return moved;
        }
        // The break is requested once, so that a recording shows the heap's address.
        call(libc::SYS_brk as u64, &[0; 6]);
        let filler = call(libc::SYS_memfd_create as u64, &[c"filler".as_ptr() as u64, 0, 0, 0, 0, 0]);
        call(libc::SYS_ftruncate as u64, &[filler as u64, filler_len, 0, 0, 0, 0]);
        call(libc::SYS_dup3 as u64, &[filler as u64, FILLER_FD as u64, 0, 0, 0, 0]);
        call(libc::SYS_close as u64, &[filler as u64, 0, 0, 0, 0, 0]);
        // Version 3 of the capability sets has three words for each half.
        let header: [u32; 2] = [0x2008_0522, 0];
        let lock = (may_lock as u32) << 14;
        let sets: [u32; 6] = [lock, lock, 0, 0, 0, 0];
        call(libc::SYS_capset as u64, &[header.as_ptr() as u64, sets.as_ptr() as u64, 0, 0, 0, 0])
    }
}

/// Returns a `struct prctl_mm_map`: eleven addresses, the auxiliary vector (absent), its size, and no new
/// executable. Code, data, arguments and environment are placed in the page before the heap. Nothing is read
/// or written at these addresses.
fn mm_map(heap: u64) -> [u64; 13] {
    let low = heap - 4096;
    let none = u64::from(u32::MAX) << 32;
    [low, low + 8, low, low, heap, heap, low, low, low, low, low, 0, none]
}

/// Opens the files of [`World::FILES`] with their initial contents. `room` is a buffer for the contents.
fn files(room: &mut [u8]) -> i64 {
    for (inode, &size) in World::INODES.iter().enumerate() {
        let fd = call(
            libc::SYS_memfd_create as u64,
            &[[c"model0", c"model1"][inode].as_ptr() as u64, 0, 0, 0, 0, 0],
        );
        let mut done = 0;
        while done < size {
            let len = (size - done).min(room.len() as u64) as usize;
            for (n, byte) in room[..len].iter_mut().enumerate() {
                *byte = World::initial(inode as u8, done + n as u64);
            }
            call(libc::SYS_pwrite64 as u64, &[fd as u64, room.as_ptr() as u64, len as u64, done, 0, 0]);
            done += len as u64;
        }
        let mut path = *b"/proc/self/fd/00000\0";
        let mut digits = fd as u64;
        for at in (14..19).rev() {
            path[at] = b'0' + (digits % 10) as u8;
            digits /= 10;
        }
        // Moves the digits to the front: the path is "/proc/self/fd/7", not "/proc/self/fd/00007".
        let zeros = path[14..18].iter().take_while(|b| **b == b'0').count();
        path.copy_within(14 + zeros..20, 14);
        for (id, file) in World::FILES.iter().enumerate() {
            if file.inode as usize != inode {
                continue;
            }
            let mode = match (file.read, file.write) {
                (true, true) => libc::O_RDWR,
                (true, false) => libc::O_RDONLY,
                _ => libc::O_WRONLY,
            };
            let mode = mode | if file.append { libc::O_APPEND } else { 0 };
            let at = libc::AT_FDCWD as u64;
            let new = call(libc::SYS_openat as u64, &[at, path.as_ptr() as u64, mode as u64, 0, 0, 0]);
            if new < 0 {
                return new;
            }
            call(libc::SYS_dup3 as u64, &[new as u64, FIRST_FD + id as u64, 0, 0, 0, 0]);
            call(libc::SYS_close as u64, &[new as u64, 0, 0, 0, 0, 0]);
        }
        call(libc::SYS_close as u64, &[fd as u64, 0, 0, 0, 0, 0]);
    }
    0
}
