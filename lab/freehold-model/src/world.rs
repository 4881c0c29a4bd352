//! The world in which calls run: an arena of addresses, a heap, a few files, and the mappings outside the
//! arena.
//!
//! Two subjects can be compared only if they have the same [`World`]: the same addresses, limits and
//! treatment of quirks. The kernel's world is measured (`linux/mod.rs`); the engine and the model can run in
//! any world. A rule of Linux that changed between versions, or that the engine does not follow, is a field
//! here, and the model obeys it. The reason and the meaning of each difference between engine and kernel are
//! at [`Quirks`]. A new inode is an entry of [`World::INODES`], with a name in `linux/child.rs`,
//! `linux/smaps.rs` and `linux/query.rs`; a new descriptor is an entry of [`World::FILES`].

use crate::op::{Counters, PAGE};

/// The way in which a guard page marks its VMA. The mark changed between kernel versions and affects later
/// merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMark {
    /// Linux 6.13 to 6.18: the VMA gets an anon_vma.
    AnonVma,
    /// Later versions: the VMA gets a flag that stays and does not prevent merging. Private anonymous memory
    /// also gets an anon_vma.
    Flag,
}

/// The treatment of the kernel's quirks. Quirks are bugs of Linux that the engine does not have:
///
/// - `MREMAP_DONTUNMAP` of a locked VMA leaves the source's pages in `locked_vm` permanently. The engine
///   subtracts the pages when it unlocks the VMA: its counters equal a recount at all times.
/// - A program can store bytes through a mapping behind the end of a memory file. On Linux, the bytes become
///   visible when the file grows. POSIX requires zeroes there. The engine has zeroes, like other file systems
///   and later kernels.
/// - A call may need two splits of a VMA when the limit of mappings permits only one. On Linux, the call
///   fails after the first split. In the engine, the call fails and leaves the VMA whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirks {
    /// The model has the quirks, like the kernel.
    Kept,
    /// The model has no quirks, like the engine.
    Cured,
    /// The generator draws no calls that meet a quirk, so that the kernel can be compared with the engine.
    Avoided,
}

/// The direction and the bounds of the search for free addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Start of the search.
    pub base: u64,
    /// True if the search continues upwards from `base`: the legacy layout.
    pub upwards: bool,
    /// End of the search, except for a call with a hint above this address.
    pub window_end: u64,
    /// True if the layout of the processes is not randomised, so that calls may request addresses in other
    /// ranges (`MAP_32BIT`, `MAP_ABOVE4G`).
    pub fixed: bool,
}

/// The parameters that two subjects must share so that they can be compared call by call.
///
/// All user addresses outside the arena are occupied by mappings that never merge and that no call of a test
/// may touch. So the addresses that the kernel chooses are always in the arena.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// First address of the arena.
    pub start: u64,
    /// The address after the last address of the arena.
    pub end: u64,
    /// End of user space.
    pub task_size: u64,
    /// The placement of mappings without a fixed address.
    pub layout: Layout,
    /// Lowest address that a process may map.
    pub min_addr: u64,
    /// Start of the heap, and initial value of the break.
    pub heap: u64,
    /// Maximum number of mappings of one address space.
    pub max_map_count: u64,
    /// Number of pages that are kept free below a stack.
    pub stack_gap: u64,
    /// Counters of the process's mappings outside the arena.
    pub outside: Counters,
    /// Number of pages outside the arena that `mlockall` can lock.
    pub outside_lockable: i64,
    /// True if the processes may lock without limit (`CAP_IPC_LOCK`).
    pub may_lock: bool,
    /// The way in which guard pages mark their VMA.
    pub guards: GuardMark,
    /// True if the kernel can seal mappings (`mseal`, since 6.10), keep writable memory from becoming
    /// executable (`PR_SET_MDWE`), and merge equal pages (`PR_SET_MEMORY_MERGE`).
    pub seals: bool,
    /// The treatment of the kernel's quirks.
    pub quirks: Quirks,
}

/// An open file: its inode, and the accesses that its descriptor allows.
#[derive(Clone, Copy, Debug)]
pub struct FileDesc {
    /// Index in [`World::INODES`].
    pub inode: u8,
    /// Opened for reading.
    pub read: bool,
    /// Opened for writing.
    pub write: bool,
    /// `O_APPEND`.
    pub append: bool,
}

/// Start of the search in the legacy layout: a third of 2^47, in whole pages.
pub const LEGACY_BASE: u64 = 0x2aaa_aaaa_b000;

impl World {
    /// Number of pages of the arena.
    pub const PAGES: u64 = 1024;
    /// Initial sizes of the two inodes, in bytes.
    pub const INODES: [u64; 2] = [20 * PAGE + 123, 2 * PAGE];
    /// The descriptors.
    pub const FILES: [FileDesc; 6] = [
        FileDesc { inode: 0, read: true, write: true, append: false },
        FileDesc { inode: 0, read: true, write: false, append: false },
        FileDesc { inode: 0, read: false, write: true, append: false },
        FileDesc { inode: 0, read: true, write: true, append: true },
        FileDesc { inode: 1, read: true, write: true, append: false },
        FileDesc { inode: 1, read: true, write: false, append: false },
    ];

    /// Returns the initial value of byte `at` of an inode.
    pub fn initial(inode: u8, at: u64) -> u8 {
        ((at / 5) % 251) as u8 ^ (inode.wrapping_add(1) * 37)
    }

    /// Returns a world for subjects that have nothing outside the arena.
    pub fn bare() -> World {
        let start = 0x10_0000_0000;
        let task_size = (1 << 47) - PAGE;
        World {
            start,
            end: start + Self::PAGES * PAGE,
            task_size,
            layout: Layout { base: task_size, upwards: false, window_end: task_size, fixed: false },
            min_addr: PAGE,
            heap: start + 400 * PAGE,
            max_map_count: 65530,
            stack_gap: 256,
            outside: Counters::default(),
            outside_lockable: 0,
            may_lock: false,
            guards: GuardMark::Flag,
            seals: true,
            quirks: Quirks::Kept,
        }
    }

    /// Returns this world with the middle of the arena, which contains the heap, at `middle`.
    #[must_use]
    pub fn around(self, middle: u64) -> World {
        let start = middle - Self::PAGES / 2 * PAGE;
        let heap = start + (self.heap - self.start);
        World { start, end: start + Self::PAGES * PAGE, heap, ..self }
    }

    /// Returns this world with a layout in which calls may request other addresses. Mappings are placed
    /// upwards from a third of the address space if `upwards` is true, otherwise downwards.
    #[must_use]
    pub fn with_layout(self, upwards: bool) -> World {
        let base = if upwards { LEGACY_BASE } else { self.layout.base };
        World { layout: Layout { base, upwards, fixed: true, ..self.layout }, ..self }
    }

    /// Returns true if `[start, end)` is in the arena.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        self.start <= start && start <= end && end <= self.end
    }
}
