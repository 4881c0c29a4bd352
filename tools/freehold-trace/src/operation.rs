//! Numbers that select the operation of a call, with Linux's values for x86-64.
//!
//! Each call with operations or flags has a module: `fcntl`, `open`, `seal`, `fallocate`, `prctl`, `uffdio`,
//! `rlimit`, `personality`, `capability`. The list `KEPT` of a module names the operations that recordings
//! contain: the recorder (`freehold-record`) and the reader of strace output drop all other operations. The
//! values are those of Linux's public headers and must not change. The names in strace output are in
//! `strace/symbols.rs`. A new operation needs a constant here, and an entry in `KEPT` if recordings are to
//! contain it.

/// Operations of fcntl: the second argument. The kernel reads its lower 32 bits.
pub mod fcntl {
    /// `F_DUPFD`.
    pub const DUPFD: u32 = 0;
    /// `F_DUPFD_CLOEXEC`.
    pub const DUPFD_CLOEXEC: u32 = 1030;
    /// `F_ADD_SEALS`.
    pub const ADD_SEALS: u32 = 1033;
    /// `F_GET_SEALS`.
    pub const GET_SEALS: u32 = 1034;

    /// The operations that recordings keep: those that copy a descriptor, and those that set or query a
    /// file's seals.
    pub const KEPT: [u32; 4] = [DUPFD, DUPFD_CLOEXEC, ADD_SEALS, GET_SEALS];

    /// Returns true if the operation copies a descriptor.
    pub fn copies(operation: u64) -> bool {
        matches!(operation as u32, DUPFD | DUPFD_CLOEXEC)
    }
}

/// Flags of open and openat.
pub mod open {
    /// `O_CREAT`.
    pub const CREAT: u64 = 0o100;
    /// `O_TRUNC`.
    pub const TRUNC: u64 = 0o1000;
    /// `O_PATH`.
    pub const PATH: u64 = 0o1000_0000;
    /// `__O_TMPFILE`: the bit that only `O_TMPFILE` has.
    pub const TMPFILE: u64 = 0o2000_0000;

    /// The flags that creat implies: writing, `O_CREAT` and `O_TRUNC`.
    pub const CREAT_FLAGS: u64 = 1 | CREAT | TRUNC;
}

/// Seals of a file, as in the argument and the result of fcntl.
pub mod seal {
    /// `F_SEAL_SEAL`: no more seals.
    pub const SEAL: u64 = 1;
    /// `F_SEAL_SHRINK`.
    pub const SHRINK: u64 = 2;
    /// `F_SEAL_GROW`.
    pub const GROW: u64 = 4;
    /// `F_SEAL_WRITE`.
    pub const WRITE: u64 = 8;
    /// `F_SEAL_FUTURE_WRITE`.
    pub const FUTURE_WRITE: u64 = 0x10;
    /// `F_SEAL_EXEC`.
    pub const EXEC: u64 = 0x20;

    /// All seals.
    pub const ALL: u64 = SEAL | SHRINK | GROW | WRITE | FUTURE_WRITE | EXEC;
}

/// Modes of fallocate: the second argument, a set of bits.
pub mod fallocate {
    /// `FALLOC_FL_KEEP_SIZE`.
    pub const KEEP_SIZE: u64 = 1;
    /// `FALLOC_FL_PUNCH_HOLE`, which is valid only together with [`KEEP_SIZE`].
    pub const PUNCH_HOLE: u64 = 2;

    /// The mode that punches a hole.
    pub const HOLE: u64 = PUNCH_HOLE | KEEP_SIZE;
}

/// Operations of prctl that concern memory: the first argument.
pub mod prctl {
    /// `PR_SET_MM`.
    pub const SET_MM: u64 = 35;
    /// `PR_SET_THP_DISABLE`.
    pub const SET_THP_DISABLE: u64 = 41;
    /// `PR_GET_THP_DISABLE`.
    pub const GET_THP_DISABLE: u64 = 42;
    /// `PR_SET_VMA`: sets the name of anonymous memory.
    pub const SET_VMA: u64 = 0x5356_4d41;
    /// `PR_SET_MDWE`.
    pub const SET_MDWE: u64 = 65;
    /// `PR_GET_MDWE`.
    pub const GET_MDWE: u64 = 66;
    /// `PR_SET_MEMORY_MERGE`.
    pub const SET_MEMORY_MERGE: u64 = 67;
    /// `PR_GET_MEMORY_MERGE`.
    pub const GET_MEMORY_MERGE: u64 = 68;

    /// `PR_SET_MM_START_BRK`, an operation of [`SET_MM`]: the second argument of prctl.
    pub const MM_START_BRK: u64 = 6;
    /// `PR_SET_MM_BRK`.
    pub const MM_BRK: u64 = 7;
    /// `PR_SET_MM_MAP`.
    pub const MM_MAP: u64 = 14;

    /// The operations that recordings keep: all of the above.
    pub const KEPT: [u64; 8] = [
        SET_MM,
        SET_THP_DISABLE,
        GET_THP_DISABLE,
        SET_VMA,
        SET_MDWE,
        GET_MDWE,
        SET_MEMORY_MERGE,
        GET_MEMORY_MERGE,
    ];
}

/// Operations of ioctl on a userfaultfd: the second argument. The kernel reads its lower 32 bits.
pub mod uffdio {
    /// `UFFDIO_API`: negotiates the features.
    pub const API: u64 = 0xc018_aa3f;
    /// `USERFAULTFD_IOC_NEW` on /dev/userfaultfd: creates a userfaultfd.
    pub const NEW: u64 = 0xaa00;
    /// `UFFDIO_REGISTER`.
    pub const REGISTER: u64 = 0xc020_aa00;
    /// `UFFDIO_UNREGISTER`.
    pub const UNREGISTER: u64 = 0x8010_aa01;

    /// The operations that recordings keep.
    pub const KEPT: [u64; 4] = [REGISTER, UNREGISTER, API, NEW];

    /// `UFFD_FEATURE_EVENT_FORK`: forked children inherit registrations.
    pub const EVENT_FORK: u64 = 2;
    /// `UFFD_FEATURE_EVENT_REMAP`: moved memory stays registered.
    pub const EVENT_REMAP: u64 = 4;

    /// Returns true if the operation registers or unregisters memory.
    pub fn registers(operation: u64) -> bool {
        matches!(operation, REGISTER | UNREGISTER)
    }

    /// `UFFDIO_REGISTER_MODE_MISSING`.
    pub const MISSING: u64 = 1;
    /// `UFFDIO_REGISTER_MODE_WP`.
    pub const WP: u64 = 2;
    /// `UFFDIO_REGISTER_MODE_MINOR`.
    pub const MINOR: u64 = 4;
}

/// Resources of prlimit64 and setrlimit.
pub mod rlimit {
    /// `RLIMIT_DATA`.
    pub const DATA: u64 = 2;
    /// `RLIMIT_STACK`.
    pub const STACK: u64 = 3;
    /// `RLIMIT_MEMLOCK`.
    pub const MEMLOCK: u64 = 8;
    /// `RLIMIT_AS`.
    pub const AS: u64 = 9;

    /// The resources that recordings keep: those that limit memory.
    pub const KEPT: [u64; 4] = [DATA, STACK, MEMLOCK, AS];
}

/// Values of personality's argument. The kernel reads its lower 32 bits.
pub mod personality {
    /// Queries the personality without changing it.
    pub const QUERY: u32 = u32::MAX;
    /// `READ_IMPLIES_EXEC`: readable mappings are also executable.
    pub const READ_IMPLIES_EXEC: u64 = 0x40_0000;
}

/// Capabilities, as bits of capset's sets.
pub mod capability {
    /// `CAP_IPC_LOCK`: the right to lock more than RLIMIT_MEMLOCK.
    pub const IPC_LOCK: u64 = 1 << 14;
}
