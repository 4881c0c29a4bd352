//! What the kernel itself said of an address space at a moment.

use crate::Why;

/// An address space as the kernel listed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number.
    pub id: u32,
    /// Line of the file where it begins, from 1.
    pub line: u32,
    /// What led to it.
    pub why: Why,
    /// The process, by the serial number of its first thread.
    pub process: u32,
    /// When it was taken: from, to, in nanoseconds since the first event.
    pub taken: (u64, u64),
    /// Threads that were alive.
    pub threads: u32,
    /// Name of the command.
    pub comm: String,
    /// Path of the executable.
    pub exe: String,
    /// The `Vm` and `Rss` lines of `/proc/PID/status`: name and kB.
    pub status: Vec<(String, u64)>,
    /// Its VMAs, ascending.
    pub areas: Vec<Area>,
    /// The present pages, ascending.
    pub pages: Vec<Pages>,
}

/// One VMA of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// `PROT_READ` 1, `PROT_WRITE` 2, `PROT_EXEC` 4.
    pub prot: u8,
    /// `s` in the permissions: `VM_MAYSHARE`.
    pub shared: bool,
    /// Offset in the file in bytes; 0 for anonymous memory.
    pub offset: u64,
    /// What the list says is mapped; empty for unnamed anonymous memory (`-` in the file).
    pub name: String,
    /// Sizes in kB, where smaps was read: resident, and of it shared clean, shared dirty, private clean,
    /// private dirty, referenced, anonymous, huge anonymous, locked.
    pub sizes: Option<[u32; 9]>,
    /// The `VmFlags` codes, each two letters, where smaps was read.
    pub flags: Option<Vec<[u8; 2]>>,
    /// Could hold transparent huge pages (`!`).
    pub thp_eligible: bool,
}

/// A run of present pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Number of the first page (its address divided by 4096).
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Bits: 4 file or shared, 8 present, 16 swapped, 32 zero page, 64 huge.
    pub categories: u32,
}
