//! The stage: an arena of addresses, a heap, a few files, and what lies around them.

use crate::op::{Counters, PAGE};

/// How a guard region marks its VMA; this changed between kernel versions and decides later merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMark {
    /// 6.13 to 6.18: installing guards prepares the VMA's anon_vma.
    AnonVma,
    /// Later: a sticky flag that does not hinder merging; only private anonymous memory gets an anon_vma too.
    Flag,
}

/// What becomes of the kernel's slips, where the engine does better:
///
/// - `MREMAP_DONTUNMAP` of a locked VMA leaves the source's pages in `locked_vm` for good. The engine takes
///   them off with the lock: its counters equal a recount at all times.
/// - Memory files keep what was stored through a mapping behind their end, and show it when they grow. POSIX
///   wants zeroes there, and the engine, like other file systems (and later kernels), has them.
/// - A call that needs two cuts of a VMA where the limit of mappings allows one fails after the first. The
///   engine leaves the VMA whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirks {
    /// As on the kernel.
    Kept,
    /// As in the engine.
    Cured,
    /// Such calls are not drawn: for a comparison of the kernel with the engine.
    Avoided,
}

/// Where room is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where it begins.
    pub base: u64,
    /// It goes on upwards from there: the legacy layout.
    pub upwards: bool,
    /// Where it ends for calls without a hint above.
    pub window_end: u64,
    /// Calls may ask for other places (`MAP_32BIT`, `MAP_ABOVE4G`): nothing is drawn at random.
    pub fixed: bool,
}

/// Everything a subject must be told so that two subjects can be compared call by call.
///
/// All user addresses outside the arena are occupied by mappings that never merge and that no call of a
/// test may touch, so that the kernel's own choice of addresses can only fall into the arena.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// First address of the arena.
    pub start: u64,
    /// One past its last address.
    pub end: u64,
    /// End of user space.
    pub task_size: u64,
    /// Where mappings go that have no fixed place.
    pub layout: Layout,
    /// Lowest address a process may map.
    pub min_addr: u64,
    /// Where the heap starts (and `brk` stands at first).
    pub heap: u64,
    /// Mappings one address space may have.
    pub max_map_count: u64,
    /// Pages kept free below a stack.
    pub stack_gap: u64,
    /// What the process holds outside the arena.
    pub outside: Counters,
    /// Pages outside the arena that `mlockall` can lock.
    pub outside_lockable: i64,
    /// The processes may lock without limit (`CAP_IPC_LOCK`).
    pub may_lock: bool,
    /// How guards mark their VMA.
    pub guards: GuardMark,
    /// Mappings can be sealed, and writable memory kept from being executed (`mseal`, since 6.10;
    /// `PR_SET_MDWE`), equal pages merged (`PR_SET_MEMORY_MERGE`).
    pub seals: bool,
    /// How the kernel's slips are treated.
    pub quirks: Quirks,
}

/// An open file: which inode, and what its descriptor allows.
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

/// Where the legacy layout begins: a third of 2^47, in whole pages.
pub const LEGACY_BASE: u64 = 0x2aaa_aaaa_b000;

impl World {
    /// Pages of the arena.
    pub const PAGES: u64 = 1024;
    /// Sizes in bytes of the two inodes at the start.
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

    /// What byte `at` of an inode is at the start.
    pub fn initial(inode: u8, at: u64) -> u8 {
        ((at / 5) % 251) as u8 ^ (inode.wrapping_add(1) * 37)
    }

    /// A world for subjects that have nothing outside the arena.
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

    /// The same with the middle of its arena, in which the heap is, at `middle`.
    #[must_use]
    pub fn around(self, middle: u64) -> World {
        let start = middle - Self::PAGES / 2 * PAGE;
        let heap = start + (self.heap - self.start);
        World { start, end: start + Self::PAGES * PAGE, heap, ..self }
    }

    /// The same where calls may ask for other places, and mappings go upwards from a third of the way, or
    /// down.
    #[must_use]
    pub fn with_layout(self, upwards: bool) -> World {
        let base = if upwards { LEGACY_BASE } else { self.layout.base };
        World { layout: Layout { base, upwards, fixed: true, ..self.layout }, ..self }
    }

    /// Whether `[start, end)` lies in the arena.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        self.start <= start && start <= end && end <= self.end
    }
}
