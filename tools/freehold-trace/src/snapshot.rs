//! Snapshots: the kernel's description of an address space at one time.
//!
//! The recorder takes a snapshot at the end of each execve, at each exit of a process, and when it stops all
//! processes; `snap.rs` reads the snapshots from `NAME.snap`. The planner starts its model from the snapshot
//! of an execve (`plan/events.rs`), and `freehold-replay` compares all other snapshots with the engine's
//! address space. The contents of pages are not recorded. This file has only the data types. A new field also
//! needs its source in `freehold-record/src/proc.rs`.

use crate::Why;

/// An address space as the kernel listed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The number of the snapshot.
    pub id: u32,
    /// Number of the snapshot's first line in the file, from 1.
    pub line: u32,
    /// The reason for the snapshot.
    pub why: Why,
    /// The process, by the serial number of its first thread.
    pub process: u32,
    /// Start and end of the time when the snapshot was taken, in nanoseconds since the first event.
    pub taken: (u64, u64),
    /// Number of live threads.
    pub threads: u32,
    /// Name of the command.
    pub comm: String,
    /// Path of the executable.
    pub exe: String,
    /// The `Vm` and `Rss` lines of `/proc/PID/status`: name and kB.
    pub status: Vec<(String, u64)>,
    /// The VMAs in ascending order.
    pub areas: Vec<Area>,
    /// The present pages in ascending order.
    pub pages: Vec<Pages>,
}

/// A VMA of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// `PROT_READ` 1, `PROT_WRITE` 2, `PROT_EXEC` 4.
    pub prot: u8,
    /// True if the permissions contain `s`: `VM_MAYSHARE`.
    pub shared: bool,
    /// Offset in the file in bytes; 0 for anonymous memory.
    pub offset: u64,
    /// The name in the kernel's list; empty for unnamed anonymous memory (`-` in the file).
    pub name: String,
    /// Sizes in kB, if smaps was read. In this order: resident memory, and its parts that are shared clean,
    /// shared dirty, private clean, private dirty, referenced, anonymous, huge anonymous, locked.
    pub sizes: Option<[u32; 9]>,
    /// The two-letter `VmFlags` codes, if smaps was read.
    pub flags: Option<Vec<[u8; 2]>>,
    /// True if the VMA may contain transparent huge pages (`!`).
    pub thp_eligible: bool,
}

/// A run of present pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Number of the first page (its address divided by 4096).
    pub first: u64,
    /// Number of pages.
    pub count: u64,
    /// Bits: 4 file or shared, 8 present, 16 swapped, 32 zero page, 64 huge.
    pub categories: u32,
}
