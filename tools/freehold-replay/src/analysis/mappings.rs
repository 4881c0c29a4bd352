//! The mappings of a recording: which operation made each, what it maps, how often it faulted, what became of
//! it.
//!
//! A VMA of the kernel may be split and merged. A [`Mapping`] is what one operation mapped, and stays one
//! mapping however it is cut. `Pieces` has the parts of one address space that are mapped now, each with
//! the index of its mapping. A forked child shares the mappings of its parent, so their faults count
//! together.
//! `memory.rs` follows the calls; the tests are in `mod_tests.rs`.

use super::faults::{FaultCounts, FaultKind};
use freehold_trace::{Area, Call, FileInfo};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::Range;

/// Kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Kind {
    /// The heap of brk.
    Heap,
    /// Private anonymous memory.
    #[default]
    Anonymous,
    /// Stacks.
    Stack,
    /// Private mappings of files.
    FilePrivate,
    /// Shared mappings of files.
    FileShared,
    /// Shared memory: shared anonymous mappings, memfds, System V segments.
    SharedMemory,
    /// Memory that the kernel maps, such as the vDSO.
    Special,
    /// Page tables.
    PageTables,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 8;
    /// All kinds.
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Heap,
        Kind::Anonymous,
        Kind::Stack,
        Kind::FilePrivate,
        Kind::FileShared,
        Kind::SharedMemory,
        Kind::Special,
        Kind::PageTables,
    ];

    /// Returns the name for readers.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Heap => "heap",
            Kind::Anonymous => "anonymous",
            Kind::Stack => "stacks",
            Kind::FilePrivate => "files, private",
            Kind::FileShared => "files, shared",
            Kind::SharedMemory => "shared memory",
            Kind::Special => "special",
            Kind::PageTables => "page tables",
        }
    }

    /// Returns true if every page belongs to one address space, or is copied at the first write.
    pub(super) fn is_private(self) -> bool {
        !matches!(self, Kind::FileShared | Kind::SharedMemory)
    }

    /// Returns true if the pages come from a file.
    pub(super) fn is_file(self) -> bool {
        matches!(self, Kind::FilePrivate | Kind::FileShared)
    }

    /// Returns the kind of a VMA in a snapshot.
    pub(super) fn of_area(area: &Area) -> Kind {
        match area.name.as_str() {
            "[heap]" => Kind::Heap,
            "[stack]" => Kind::Stack,
            name if name.is_empty() || name.starts_with("[anon") => {
                if area.shared {
                    Kind::SharedMemory
                } else {
                    Kind::Anonymous
                }
            }
            name if name.starts_with('[') => Kind::Special,
            name => Kind::of_file(name, area.shared),
        }
    }

    /// Returns the kind of what an mmap maps.
    pub(super) fn of_mmap(call: &Call, file: Option<&FileInfo>) -> Kind {
        const SHARED: u64 = 1;
        const ANONYMOUS: u64 = 0x20;
        const STACK: u64 = 0x2_0100;
        let flags = call.args[3];
        let shared = flags & SHARED != 0;
        match file {
            Some(file) if flags & ANONYMOUS == 0 => Kind::of_file(&file.path, shared),
            _ if shared => Kind::SharedMemory,
            None if flags & ANONYMOUS == 0 => Kind::FilePrivate,
            _ if flags & STACK != 0 => Kind::Stack,
            _ => Kind::Anonymous,
        }
    }

    fn of_file(path: &str, shared: bool) -> Kind {
        let memory = ["/memfd:", "/dev/shm/", "/SYSV"].iter().any(|prefix| path.starts_with(prefix));
        match (path.starts_with("/dev/zero"), shared) {
            (true, false) => Kind::Anonymous,
            (true, true) => Kind::SharedMemory,
            (false, true) if memory => Kind::SharedMemory,
            (false, true) => Kind::FileShared,
            (false, false) => Kind::FilePrivate,
        }
    }
}

/// The memory that one operation mapped. Times are in nanoseconds without freezes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mapping {
    /// The process for which it was made: the serial number of its first thread.
    pub process: u32,
    /// The operation that made it: a call, `exec`, or `snapshot` if a snapshot shows it first.
    pub made_by: String,
    /// Line of that operation in the recording.
    pub line: u32,
    /// The task.
    pub task: u32,
    /// Time at which it was made.
    pub from_ns: u64,
    /// Time at which its last part was unmapped, or at which the address space ended.
    pub to_ns: u64,
    /// True if its last part was unmapped before the address space ended.
    pub unmapped: bool,
    /// Its first address, hexadecimal.
    #[serde(serialize_with = "hexadecimal")]
    pub start: u64,
    /// Its size when it was largest.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: Kind,
    /// Path of the file, or the kernel's name; empty for unnamed memory.
    pub name: String,
    /// True if it was made without access rights.
    pub reserved: bool,
    /// Its faults by kind.
    pub faults: FaultCounts,
    /// Time of its last fault.
    pub last_fault_ns: Option<u64>,
    /// Bytes that were present when the address space ended.
    pub left_bytes: u64,
    /// Bytes that are mapped now, in the address space for which it was made.
    #[serde(skip)]
    pub(super) mapped: u64,
    /// The address space for which it was made.
    #[serde(skip)]
    pub(crate) space: usize,
    /// A call made its pages present.
    #[serde(skip)]
    pub(super) populated: bool,
    /// MADV_HUGEPAGE was called for a part of it.
    #[serde(skip)]
    pub(super) huge: bool,
}

impl Mapping {
    /// Adds a fault.
    pub(super) fn fault(&mut self, kind: FaultKind, now: u64) {
        self.faults.add(kind);
        self.last_fault_ns = Some(now);
    }

    /// Returns true if a call of the program made it: not the start of the program.
    pub fn is_called(&self) -> bool {
        !matches!(self.made_by.as_str(), "exec" | "snapshot")
    }
}

/// Serialises an address as the kernel prints it.
pub(super) fn hexadecimal<S: Serializer>(address: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{address:x}"))
}

/// The mapped parts of an address space, in bytes: start to end and index of the mapping.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(BTreeMap<u64, (u64, usize)>);

impl Pieces {
    /// Returns the mapping at an address, with the addresses of its part.
    pub(super) fn find(&self, address: u64) -> Option<(Range<u64>, usize)> {
        let (start, (end, mapping)) = self.0.range(..=address).next_back()?;
        (address < *end).then_some((*start..*end, *mapping))
    }

    /// Returns the part that begins at or behind an address.
    pub(super) fn next(&self, address: u64) -> Option<(Range<u64>, usize)> {
        let (start, (end, mapping)) = self.0.range(address..).next()?;
        Some((*start..*end, *mapping))
    }

    /// Returns all parts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Range<u64>, usize)> {
        self.0.iter().map(|(start, (end, mapping))| (*start..*end, *mapping))
    }

    /// Returns the parts of a range.
    pub(super) fn within(&self, range: Range<u64>) -> Vec<(Range<u64>, usize)> {
        let from = self.find(range.start).map_or(range.start, |(part, _)| part.start);
        let parts = self.0.range(from..range.end.max(from));
        parts
            .map(|(start, (end, mapping))| ((*start).max(range.start)..(*end).min(range.end), *mapping))
            .collect()
    }

    /// Adds a part to a free range.
    pub(super) fn put(&mut self, range: Range<u64>, mapping: usize) {
        if range.start < range.end {
            self.0.insert(range.start, (range.end, mapping));
        }
    }

    /// Removes a range. Returns the removed parts.
    pub(super) fn cut(&mut self, range: Range<u64>) -> Vec<(Range<u64>, usize)> {
        let cut = self.within(range.clone());
        for (part, _) in &cut {
            let Some((whole, mapping)) = self.find(part.start) else { continue };
            self.0.remove(&whole.start);
            self.put(whole.start..part.start, mapping);
            self.put(part.end..whole.end, mapping);
        }
        cut
    }
}
