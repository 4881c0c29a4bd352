//! The file of each descriptor, as far as strace output shows it.
//!
//! With option -y, strace writes the path after each descriptor, and equal paths mean one file. Without the
//! option, strace writes only the number, and the file follows from the calls on the descriptor. `mapped.rs`
//! applies these rules, which hold within one process from one execve to the next; a fork inherits the state:
//!
//! - After memfd_create or ftruncate, all shared mappings of the descriptor map the same file, until the next
//!   memfd_create.
//! - A mapping with `MAP_FIXED` into the range of the descriptor's last mapping without `MAP_FIXED` maps the
//!   same file. Loaders map the segments of an object in this way.
//! - Any other mapping maps a new file.
//!
//! This state only decides which mappings belong to one file. The access modes of descriptors are in
//! `plan/descriptors.rs`. The test is `files_of_mappings_are_distinguished` (`tests.rs`).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Maximum number of descriptors that are kept for a process.
const MAX_DESCRIPTORS: usize = 64;

/// The known descriptors of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Descriptors {
    /// The known files by descriptor. Shared with forked children until one of them changes.
    known: Arc<BTreeMap<i32, Known>>,
}

/// The known files of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The file for shared mappings.
    pub(super) shared: Option<u32>,
    /// The file of the last mapping without `MAP_FIXED`, and the start and end of the mapping.
    pub(super) mapped: Option<(u32, u64, u64)>,
}

impl Descriptors {
    /// Returns the known files of `descriptor`.
    pub(super) fn get(&self, descriptor: i32) -> Known {
        self.known.get(&descriptor).copied().unwrap_or_default()
    }

    /// Forgets the descriptors in a range.
    pub(super) fn forget(&mut self, descriptors: RangeInclusive<u32>) {
        if self.known.keys().any(|descriptor| descriptors.contains(&(*descriptor as u32))) {
            Arc::make_mut(&mut self.known)
                .retain(|descriptor, _| !descriptors.contains(&(*descriptor as u32)));
        }
    }

    /// Sets the known files of a descriptor. If there are too many descriptors, the highest descriptor is
    /// forgotten.
    pub(super) fn set(&mut self, descriptor: i32, known: Known) {
        let all = Arc::make_mut(&mut self.known);
        all.insert(descriptor, known);
        if all.len() > MAX_DESCRIPTORS {
            all.pop_last();
        }
    }
}
