//! The mappings of the engine outside the arena. These mappings occupy all addresses there, so a mapping
//! without a fixed address is placed in the arena.
//!
//! ```text
//! min_addr           start        end                            task_size
//!    |---- nothing ----|--- arena ---|---- nothing ----|---- data ----|
//! ```
//!
//! "Nothing" is an inaccessible shared mapping. "Data" stands for the private writable memory that the
//! processes of the world have outside the arena; the processes of `linux` have such memory. "Data" counts
//! towards RLIMIT_DATA, and maps an empty file, so that no page can be faulted in. `mod.rs` subtracts all
//! these mappings from the counters that it reports.

use freehold::counted::Counted;
use freehold::engine::Engine;
use freehold::file::{File, FileAccess, Mapping, Zeroes};
use freehold::space::{MapFlags, Prot};
use freehold::vma::flags::VmFlags;
use freehold_machine::{Machine, Process};
use freehold_pagetable::Format;

use crate::op::PAGE;
use crate::world::World;

/// The sizes of the parts, in pages.
pub(super) struct Outside {
    total: u64,
    data: u64,
    /// First mapped address outside the arena.
    first: u64,
}

impl Outside {
    /// Returns the sizes for the world `w`.
    pub(super) fn of(w: &World) -> Outside {
        Outside { total: Outside::pages(w) as u64, data: w.outside.data_vm as u64, first: w.min_addr }
    }

    /// Number of pages outside the arena.
    pub(super) fn pages(w: &World) -> i64 {
        ((w.task_size - w.min_addr - (w.end - w.start)) / PAGE) as i64
    }

    /// Returns the number of mappings outside the arena.
    pub(super) fn mappings(&self) -> u64 {
        2 + u64::from(self.data > 0)
    }

    /// Returns the number of pages outside the arena.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of pages outside the arena that count as data.
    pub(super) fn data(&self) -> u64 {
        self.data
    }

    /// Creates the mappings.
    pub(super) fn fill<F: Format>(
        &self,
        kernel: &Counted<Engine<Machine<F>>>,
        process: &Process<F>,
        w: &World,
    ) {
        let empty = Mapping::new(kernel, Zeroes, 0, true).expect("memory for a file");
        let file = File::new(&empty, FileAccess::READ_WRITE, "outside").expect("memory for a file");
        let data = w.task_size - self.data * PAGE;
        for (start, end, prot, kind) in [
            (w.min_addr, w.start, Prot::empty(), MapFlags::SHARED),
            (w.end, data, Prot::empty(), MapFlags::SHARED),
            (data, w.task_size, Prot::WRITE, MapFlags::PRIVATE),
        ] {
            if start < end {
                let at = process.mmap(start, end - start, prot, kind | MapFlags::FIXED, Some(&file), 0);
                assert_eq!(at, Ok(start), "there is room outside the arena");
            }
        }
    }

    /// Returns true if `mlockall` has locked the outside mappings.
    pub(super) fn is_locked<F: Format>(&self, process: &Process<F>) -> bool {
        let first = process.maps(self.first).next().expect("it is never unmapped");
        first.flags.contains(VmFlags::LOCKED)
    }
}
