//! The calls, their results, and the trait of their executors.
//!
//! [`Op`] is a call with raw arguments, [`Outcome`] its result. A [`Subject`] (the model, the engine, the
//! running kernel) executes calls and lists its VMAs and counters; `compare.rs` runs the same calls on two
//! subjects. `generate.rs` and `script.rs` make calls, `text.rs` writes and reads them as lines. Lengths and
//! addresses are in bytes, limits in pages. A new call needs a variant of [`Call`] and code in all of these
//! files, in the three subjects (`model/dispatch.rs`, `engine/calls.rs`, `linux/mod.rs`), and in `escape.rs`.

use crate::world::World;

/// Number of bytes in a page. Every subject of this crate has pages of this size.
pub const PAGE: u64 = 4096;

/// Index of an open file: see [`World::FILES`].
pub type FileId = u8;
/// Index of a process. The first process has index 0, and the child of each successful [`Call::Fork`] has the
/// next index.
pub type Proc = u8;

/// One call by one process, with the raw arguments that a program passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The calling process.
    pub proc: Proc,
    /// The call and its arguments.
    pub call: Call,
}

/// A system call, or an access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields carry the names of the manual pages.
pub enum Call {
    Mmap {
        addr: u64,
        len: u64,
        prot: u64,
        flags: u64,
        file: Option<FileId>,
        off: u64,
    },
    Munmap {
        addr: u64,
        len: u64,
    },
    Mprotect {
        addr: u64,
        len: u64,
        prot: u64,
    },
    Mremap {
        old: u64,
        old_len: u64,
        new_len: u64,
        flags: u64,
        new_addr: u64,
    },
    Madvise {
        addr: u64,
        len: u64,
        advice: u64,
    },
    Mlock {
        addr: u64,
        len: u64,
    },
    Mlock2 {
        addr: u64,
        len: u64,
        flags: u64,
    },
    Munlock {
        addr: u64,
        len: u64,
    },
    Mlockall {
        flags: u64,
    },
    Munlockall,
    Mseal {
        addr: u64,
        len: u64,
        flags: u64,
    },
    /// `prctl(PR_SET_MDWE)`: memory that could be written cannot become executable.
    SetMdwe {
        bits: u64,
    },
    /// `prctl(PR_SET_MEMORY_MERGE)`: permits or forbids the merging of equal pages, in all memory of the
    /// process.
    SetMerge {
        on: u64,
    },
    Brk {
        addr: u64,
    },
    Msync {
        addr: u64,
        len: u64,
        flags: u64,
    },
    /// Returns one byte (0 or 1) per page on success.
    Mincore {
        addr: u64,
        len: u64,
    },
    /// Loads `len` bytes, at most a page, one by one. Ends at the first byte whose load faults.
    Read {
        addr: u64,
        len: u64,
    },
    /// Stores one byte.
    Write {
        addr: u64,
        value: u8,
    },
    /// Returns the index of the new process on success.
    Fork,
    /// Ends the process. Later calls by the process return `ESRCH`.
    Exit,
    Ftruncate {
        file: FileId,
        len: u64,
    },
    /// `pwrite` of `len` bytes `seed, seed+1, ..`.
    FileWrite {
        file: FileId,
        off: u64,
        len: u64,
        seed: u8,
    },
    /// `pread`.
    FileRead {
        file: FileId,
        off: u64,
        len: u64,
    },
    /// Sets a soft limit, in pages. `As` and `Data` limit only the memory in the arena: a subject adds the
    /// memory that it has outside the arena. `Lock` and `Stack` are absolute.
    Setrlimit {
        limit: Limit,
        pages: u64,
    },
}

/// The resource limits that affect an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Limit {
    As,
    Data,
    Lock,
    Stack,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call's return value.
    Ok(u64),
    /// An errno.
    Err(i32),
    /// Memory or file contents, or residence bits.
    Bytes(Vec<u8>),
    /// The access raised this signal.
    Signal(Signal),
    /// The process died, or the subject cannot continue.
    Dead,
}

/// A signal as its handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The cause of the signal.
    pub kind: SignalKind,
    /// The faulting address (`si_addr`).
    pub addr: u64,
}

/// `si_signo` and `si_code` of the signal of a failed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SignalKind {
    SegvMapErr,
    SegvAccErr,
    BusAdrErr,
    Other(i32, i32),
}

/// The file of a line of `maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFile {
    /// The inode with this number in [`World::INODES`].
    Inode(u8),
    /// Shared anonymous memory. Every mapping has a file of its own.
    SharedAnon,
}

/// A line of `maps`, restricted to the arena, with the flags of `smaps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLine {
    /// First byte.
    pub start: u64,
    /// The address after the last byte.
    pub end: u64,
    /// [`vmflag`] bits, among them read, write, exec and "s" (`MAYSHARE`).
    pub flags: u32,
    /// Byte offset in the file; 0 without a file.
    pub offset: u64,
    /// The file.
    pub file: Option<MapFile>,
}

/// Counters of an address space, in pages, without the mappings outside the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    pub map_count: i64,
    pub total_vm: i64,
    pub locked_vm: i64,
    pub data_vm: i64,
    pub stack_vm: i64,
}

/// An executor of calls: the model, a kernel or an engine.
pub trait Subject {
    /// Returns to the initial state: process 0 with an empty arena, and the files of [`World`].
    fn reset(&mut self);
    /// Returns the world in which the calls run. Both sides of a comparison have the same world.
    fn world(&self) -> World;
    /// Executes one call.
    fn apply(&mut self, op: &Op) -> Outcome;
    /// Executes calls in order. A subject for which a single call is expensive overrides this method.
    fn apply_all(&mut self, ops: &[Op]) -> Vec<Outcome> {
        ops.iter().map(|op| self.apply(op)).collect()
    }
    /// Returns the mappings in the arena of a living process, ordered by address.
    fn maps(&mut self, proc: Proc) -> Vec<MapLine>;
    /// Returns the [`vmflag`] bits that `maps` reports.
    fn known_flags(&self) -> u32 {
        u32::MAX
    }
    /// Panics if an invariant of the subject does not hold.
    fn check(&mut self) {}
    /// Returns the counters, if the subject has them.
    fn counters(&mut self, _proc: Proc) -> Option<Counters> {
        None
    }
}

/// Flags of a mapping, as bits in the order of [`NAMES`](vmflag::NAMES), the two-letter names in `VmFlags` of
/// `smaps`.
#[allow(missing_docs)]
pub mod vmflag {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const EXEC: u32 = 4;
    pub const SHARED: u32 = 8;
    /// Shift from the four bits above to the four `MAY` bits.
    pub const MAY_SHIFT: u32 = 4;
    pub const MAYREAD: u32 = 0x10;
    pub const MAYWRITE: u32 = 0x20;
    pub const MAYEXEC: u32 = 0x40;
    pub const MAYSHARE: u32 = 0x80;
    pub const GROWSDOWN: u32 = 0x100;
    pub const LOCKED: u32 = 0x200;
    pub const LOCKONFAULT: u32 = 0x400;
    pub const SEQUENTIAL: u32 = 0x800;
    pub const RANDOM: u32 = 0x1000;
    pub const DONTFORK: u32 = 0x2000;
    pub const DONTEXPAND: u32 = 0x4000;
    pub const ACCOUNT: u32 = 0x8000;
    pub const NORESERVE: u32 = 0x1_0000;
    pub const WIPEONFORK: u32 = 0x2_0000;
    pub const DONTDUMP: u32 = 0x4_0000;
    pub const MERGEABLE: u32 = 0x8_0000;
    pub const HUGEPAGE: u32 = 0x10_0000;
    pub const NOHUGEPAGE: u32 = 0x20_0000;
    pub const DROPPABLE: u32 = 0x40_0000;
    pub const MAYBE_GUARD: u32 = 0x80_0000;
    pub const SEALED: u32 = 0x100_0000;
    /// Read, write and execute.
    pub const ACCESS: u32 = READ | WRITE | EXEC;
    /// Both lock bits.
    pub const LOCK_MASK: u32 = LOCKED | LOCKONFAULT;
    /// Names in the order of the bits.
    pub const NAMES: [&str; 25] = [
        "rd", "wr", "ex", "sh", "mr", "mw", "me", "ms", "gd", "lo", "lf", "sr", "rr", "dc", "de", "ac", "nr",
        "wf", "dd", "mg", "hg", "nh", "dp", "gu", "sl",
    ];
    /// Returns the bit of a two-letter name.
    pub fn parse(name: &str) -> Option<u32> {
        NAMES.iter().position(|n| *n == name).map(|i| 1 << i)
    }
}

/// The errno values that the calls can return, with their names.
pub const ERRNOS: [(i32, &str); 19] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::EFBIG, "EFBIG"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ENOSPC, "ENOSPC"),
];
