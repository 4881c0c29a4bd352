//! The functions that the kernel provides, and the structures that they receive.
//!
//! The documentation of each field is the comment in the header, so it speaks to authors in C. The letters in
//! the documentation are those of `docs/guide/platform.md`. A field must not be moved or removed, because
//! [`size`](PlatformOps::size) tells kernels with an older header apart by the length of the table.

use core::ffi::{c_char, c_void};

/// A request for frames.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FrameRequest {
    /// Each block has 2^order frames, and begins at a multiple of its size. 0 means single frames.
    pub order: u32,
    /// The use of the frames, FH_FRAMES_ANONYMOUS and so on.
    pub purpose: u32,
    /// The space that the pages are for, as space_created has recorded it. NULL for other owners.
    pub space: *mut c_void,
    /// True if a failure costs only speed, so that the kernel should not wait or reclaim.
    pub opportunistic: bool,
}

/// The translations that a flush removes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FlushRequest {
    /// The root table of the space.
    pub root: u64,
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// True if all addresses are flushed. Then start and end have no meaning.
    pub all: bool,
    /// True if page tables were removed. The flush then also empties the caches of table walks.
    pub tables_freed: bool,
}

/// The storage of a deferred function, inside of an object of the library.
#[derive(Debug)]
#[repr(C)]
pub struct DeferredHead {
    /// For lists of the kernel, from rcu_defer until fh_rcu_run.
    pub next: *mut DeferredHead,
    /// Belongs to the library.
    pub function: *const c_void,
}

/// The functions of the kernel. A field that is not marked as optional must not be NULL.
///
/// Letters in parentheses name the context of the call, with the letters of docs/guide/platform.md. L: the
/// caller may hold sleeping locks of the library. T and S: also spin locks. R: also a read section. C: inside
/// of cpu_enter. D: inside of a deferred function. A function may sleep if the description says so; it must
/// not wait for a task that waits for the library. Only memory_short may call the library.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PlatformOps {
    /// Size of this structure in bytes: sizeof(struct fh_platform_ops).
    pub size: usize,

    /// Allocates memory of the kernel. Returns NULL if there is none; the call of the library then fails with
    /// -ENOMEM. (L; may sleep)
    pub alloc: Option<unsafe extern "C" fn(size: usize, align: usize) -> *mut c_void>,
    /// Frees memory of alloc. The numbers are those of the allocation. (L, D)
    pub free: Option<unsafe extern "C" fn(memory: *mut c_void, size: usize, align: usize)>,
    /// Ends the kernel: the library has found a bug, in itself or in its use. The message is a string in
    /// UTF-8. Must not return; the calling task stays in an endless loop if it does. (everywhere)
    pub panic: Option<unsafe extern "C" fn(message: *const c_char)>,

    /// Sleeps while the word has the expected value, until wake is called for this address. The comparison
    /// and the start of the sleep are one step with respect to wake. May return early. (L; sleeps)
    pub wait: Option<unsafe extern "C" fn(word: *const u32, expected: u32)>,
    /// Wakes one task that sleeps on this address, or all of them. Does not read the word. (L, R)
    pub wake: Option<unsafe extern "C" fn(word: *const u32, all: bool)>,
    /// Turns preemption off and returns the number of this CPU. The library calls cpu_exit before it sleeps.
    /// Sections overlap, so the kernel counts them: preemption stays off until the last one ends. Interrupts
    /// may stay on. (L, T, S, R, C, D)
    pub cpu_enter: Option<unsafe extern "C" fn() -> u32>,
    /// Ends a section of cpu_enter on the same CPU. (L, T, S, R, C, D)
    pub cpu_exit: Option<unsafe extern "C" fn()>,

    /// Takes up to count blocks of frames. Writes the number of the first frame of each block to frames, and
    /// returns how many blocks it took. 0 means that there is no such block. A kernel without blocks of
    /// several frames returns 0 for every order but 0. The contents of the frames may be anything. (L; may
    /// sleep)
    pub alloc_frames:
        Option<unsafe extern "C" fn(request: *const FrameRequest, frames: *mut u64, count: usize) -> usize>,
    /// Frees frames, which may have come in blocks, one by one. (L)
    pub free_frames: Option<unsafe extern "C" fn(frames: *const u64, count: usize)>,
    /// Returns only when no CPU can use a translation that the request covers. If tables were freed, no CPU
    /// may read a table of the range any more, either. space is the record of space_created. Must not wait
    /// for a CPU that spins for a spin lock. (L, T, R)
    pub flush: Option<unsafe extern "C" fn(space: *mut c_void, request: *const FlushRequest)>,

    /// Optional. Like wait, but ends early if a fatal signal is pending for the task, also if there is
    /// nothing to wait for. Returns true in this case; the call of the library then fails with -EINTR. By
    /// default, wait is called, and calls are not interrupted. (L; sleeps)
    pub wait_killable: Option<unsafe extern "C" fn(word: *const u32, expected: u32) -> bool>,
    /// Optional. Like wait_killable, for any signal that the program must handle. By default, wait_killable
    /// is called. (L; sleeps)
    pub wait_interruptible: Option<unsafe extern "C" fn(word: *const u32, expected: u32) -> bool>,
    /// Optional. Turns preemption off until spin_exit, because the task spins for a lock or holds one.
    /// Sections overlap. Interrupts stay on, unless relax answers the interrupts of flushes. By default,
    /// cpu_enter is called. Set both or none. (L, T, S, R)
    pub spin_enter: Option<unsafe extern "C" fn()>,
    /// Optional. Ends a section of spin_enter. (L, T, S, R)
    pub spin_exit: Option<unsafe extern "C" fn()>,
    /// Optional. Pauses briefly, in loops that wait for another CPU. By default, executes the instruction
    /// that pauses a CPU. (L, T, S, R)
    pub relax: Option<unsafe extern "C" fn()>,
    /// Optional. Lets another task run if it is time, for kernels without preemption. (L, S, R)
    pub cond_resched: Option<unsafe extern "C" fn()>,
    /// Optional. Returns the time in nanoseconds, from a clock that does not go back. By default 0.
    /// (everywhere)
    pub now_ns: Option<unsafe extern "C" fn() -> u64>,

    /// Optional. Begins a read section of the kernel's own RCU. Sections nest. By default, the library has
    /// grace periods of its own: a section is one of cpu_enter, and the kernel calls fh_tick from time to
    /// time. Set all four functions of RCU, or none. (L, T, R)
    pub rcu_read_enter: Option<unsafe extern "C" fn()>,
    /// Optional. Ends a read section. (L, T, R)
    pub rcu_read_exit: Option<unsafe extern "C" fn()>,
    /// Optional. Arranges that fh_rcu_run(head) is called once, after all read sections that are open now
    /// have ended. Until then, the kernel may use the field next of the head. Does not fail. (L, R, D)
    pub rcu_defer: Option<unsafe extern "C" fn(head: *mut DeferredHead)>,
    /// Optional. Returns when the functions of all earlier calls of rcu_defer have run. (L; sleeps)
    pub rcu_barrier: Option<unsafe extern "C" fn()>,

    /// Optional. Takes a frame for a page table of the space with this root, and fills it with zeroes. root
    /// is FH_NO_FRAME for the root of a new space. Returns false if there is no memory. By default, the
    /// library takes a frame of alloc_frames. Set both functions for tables, or none. (L; may sleep)
    pub alloc_table: Option<unsafe extern "C" fn(root: u64, table: *mut u64) -> bool>,
    /// Optional. Frees a table of alloc_table. The table contains zeroes. The memory stays readable. (L)
    pub free_table: Option<unsafe extern "C" fn(table: u64)>,
    /// Optional. Makes the contents of frames visible to the instruction fetches of all CPUs. Must be set on
    /// processors whose fetches do not see earlier stores, which are RISC-V and Arm. (L, T)
    pub publish_code: Option<unsafe extern "C" fn(first: u64, count: u64)>,
    /// Optional. Returns false for a number between first_frame and the last frame that has no memory. By
    /// default, there are no holes. (everywhere)
    pub has_frame: Option<unsafe extern "C" fn(frame: u64) -> bool>,
    /// Optional. Takes count consecutive frames, and writes the number of the first one to frame. Returns
    /// false if there are none. By default, there are none. (L; may sleep)
    pub alloc_run: Option<unsafe extern "C" fn(count: u64, frame: *mut u64) -> bool>,
    /// Optional. Fills a frame with zeroes. (L, T, R)
    pub zero_frame: Option<unsafe extern "C" fn(frame: u64)>,
    /// Optional. Copies a frame. Programs may store to both frames during the copy. (L, T, R)
    pub copy_frame: Option<unsafe extern "C" fn(to: u64, from: u64)>,
    /// Optional. Makes memory free for a call that has found none, and returns true if the call should try
    /// again. order is that of the block that was not found, and round counts the earlier questions for this
    /// call, from 0. Nothing is held, so the function may call the library. By default, the call fails.
    /// (nothing held; may sleep)
    pub memory_short: Option<unsafe extern "C" fn(order: u32, round: u32) -> bool>,

    /// Optional. Begins the life of a space or a stage with this root table, which is empty. May fill the
    /// kernel's half of the root. Writes the kernel's record of the space to space; it is an argument of the
    /// other functions. Returns false if there is no memory. By default, the record is NULL. (nothing held;
    /// may sleep)
    pub space_created: Option<unsafe extern "C" fn(root: u64, space: *mut *mut c_void) -> bool>,
    /// Optional. Ends the life of a space. When it returns, no CPU has the root in its register. (nothing
    /// held; may sleep)
    pub space_ending: Option<unsafe extern "C" fn(space: *mut c_void, root: u64)>,
    /// Optional. Returns false if no CPU but this one may have translations of the space. By default true.
    /// (L)
    pub runs_elsewhere: Option<unsafe extern "C" fn(space: *mut c_void) -> bool>,
}

impl PlatformOps {
    /// Returns a table without functions.
    pub const fn none() -> Self {
        PlatformOps {
            size: size_of::<Self>(),
            alloc: None,
            free: None,
            panic: None,
            wait: None,
            wake: None,
            cpu_enter: None,
            cpu_exit: None,
            alloc_frames: None,
            free_frames: None,
            flush: None,
            wait_killable: None,
            wait_interruptible: None,
            spin_enter: None,
            spin_exit: None,
            relax: None,
            cond_resched: None,
            now_ns: None,
            rcu_read_enter: None,
            rcu_read_exit: None,
            rcu_defer: None,
            rcu_barrier: None,
            alloc_table: None,
            free_table: None,
            publish_code: None,
            has_frame: None,
            alloc_run: None,
            zero_frame: None,
            copy_frame: None,
            memory_short: None,
            space_created: None,
            space_ending: None,
            runs_elsewhere: None,
        }
    }

    /// Returns true if all mandatory functions are present, and the optional ones are complete.
    pub(crate) fn is_complete(&self, needs_publish_code: bool) -> bool {
        let mandatory = [
            self.alloc.is_some(),
            self.free.is_some(),
            self.panic.is_some(),
            self.wait.is_some(),
            self.wake.is_some(),
            self.cpu_enter.is_some(),
            self.cpu_exit.is_some(),
            self.alloc_frames.is_some(),
            self.free_frames.is_some(),
            self.flush.is_some(),
            self.publish_code.is_some() || !needs_publish_code,
        ];
        let rcu = [
            self.rcu_read_enter.is_some(),
            self.rcu_read_exit.is_some(),
            self.rcu_defer.is_some(),
            self.rcu_barrier.is_some(),
        ];
        let all_or_none = |set: &[bool]| set.iter().all(|is| *is == set[0]);
        mandatory.iter().all(|is| *is)
            && all_or_none(&rcu)
            && all_or_none(&[self.spin_enter.is_some(), self.spin_exit.is_some()])
            && all_or_none(&[self.alloc_table.is_some(), self.free_table.is_some()])
    }
}
