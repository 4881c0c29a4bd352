//! The calls, what comes back, and what can execute them.

use crate::world::World;

/// Bytes in a page; every subject of this crate has pages of this size.
pub const PAGE: u64 = 4096;

/// Index of an open file: see [`World::FILES`].
pub type FileId = u8;
/// Index of a process; 0 is the first, each successful [`Call::Fork`] makes the next.
pub type Proc = u8;

/// One call by one process, with raw arguments exactly as a program passes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The calling process.
    pub proc: Proc,
    /// What it calls.
    pub call: Call,
}

/// A system call, or a touch of memory.
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
    /// `prctl(PR_SET_MDWE)`: nothing becomes executable that could be written.
    SetMdwe {
        bits: u64,
    },
    /// `prctl(PR_SET_MEMORY_MERGE)`: equal pages may become one, wherever that can be, or nowhere.
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
    /// Success yields one byte (0 or 1) per page.
    Mincore {
        addr: u64,
        len: u64,
    },
    /// Loads `len` bytes one by one; ends at the first that faults. At most a page.
    Read {
        addr: u64,
        len: u64,
    },
    /// Stores one byte.
    Write {
        addr: u64,
        value: u8,
    },
    /// Success yields the index of the new process.
    Fork,
    /// The process ends; its later calls yield `ESRCH`.
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
    /// Sets a soft limit, in pages. `As` and `Data` count what the arena holds; `Lock` and `Stack` are
    /// absolute.
    Setrlimit {
        limit: Limit,
        pages: u64,
    },
}

/// The limits that matter to an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Limit {
    As,
    Data,
    Lock,
    Stack,
}

/// What a call gave back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call's return value.
    Ok(u64),
    /// An errno.
    Err(i32),
    /// Memory or file contents, or residence bits.
    Bytes(Vec<u8>),
    /// The touch was answered by this signal.
    Signal(Signal),
    /// The process died or the subject cannot go on.
    Dead,
}

/// A signal as its handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// What was wrong.
    pub kind: SignalKind,
    /// The faulting address (`si_addr`).
    pub addr: u64,
}

/// `si_signo` and `si_code` of a failed touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SignalKind {
    SegvMapErr,
    SegvAccErr,
    BusAdrErr,
    Other(i32, i32),
}

/// Which file a line of `maps` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFile {
    /// The inode of that number in [`World::INODES`].
    Inode(u8),
    /// Shared anonymous memory: every mapping its own file.
    SharedAnon,
}

/// A line of `maps`, restricted to the arena, with the flags of `smaps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLine {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// [`vmflag`] bits, among them read, write, exec and "s" (`MAYSHARE`).
    pub flags: u32,
    /// Byte offset in the file; 0 without one.
    pub offset: u64,
    /// The file.
    pub file: Option<MapFile>,
}

/// Counters of an address space, in pages, less what lies outside the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    pub map_count: i64,
    pub total_vm: i64,
    pub locked_vm: i64,
    pub data_vm: i64,
    pub stack_vm: i64,
}

/// Something that executes calls: the model, a kernel, an engine.
pub trait Subject {
    /// Forgets everything; afterwards there is process 0 with an empty arena and the files are as in
    /// [`World`].
    fn reset(&mut self);
    /// The world the calls run in; the same for both sides of a comparison.
    fn world(&self) -> World;
    /// Executes one call.
    fn apply(&mut self, op: &Op) -> Outcome;
    /// Executes calls in order; a subject for which a single call is dear overrides this.
    fn apply_all(&mut self, ops: &[Op]) -> Vec<Outcome> {
        ops.iter().map(|op| self.apply(op)).collect()
    }
    /// What the arena of a living process holds, by address.
    fn maps(&mut self, proc: Proc) -> Vec<MapLine>;
    /// The [`vmflag`] bits that `maps` reports.
    fn known_flags(&self) -> u32 {
        u32::MAX
    }
    /// Panics when the subject's own invariants do not hold.
    fn check(&mut self) {}
    /// The counters, where the subject has them.
    fn counters(&mut self, _proc: Proc) -> Option<Counters> {
        None
    }
}

/// Attributes of a mapping, in the places where `VmFlags` of `smaps` has its two-letter names.
#[allow(missing_docs)]
pub mod vmflag {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const EXEC: u32 = 4;
    pub const SHARED: u32 = 8;
    /// The four `MAY` bits are the four bits above, shifted by this.
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
    /// Names in order of the bits.
    pub const NAMES: [&str; 25] = [
        "rd", "wr", "ex", "sh", "mr", "mw", "me", "ms", "gd", "lo", "lf", "sr", "rr", "dc", "de", "ac", "nr",
        "wf", "dd", "mg", "hg", "nh", "dp", "gu", "sl",
    ];
    /// The bit of a two-letter name.
    pub fn parse(name: &str) -> Option<u32> {
        NAMES.iter().position(|n| *n == name).map(|i| 1 << i)
    }
}

/// The errno values the calls can give, with their names.
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
