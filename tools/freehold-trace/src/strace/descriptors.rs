//! Which file a descriptor is, as far as the text tells.
//!
//! With option -y each descriptor is followed by its path, and files with one path are one file. Without, the
//! text gives the number alone, and which file it is follows from what is done with it. Then these rules
//! hold, within one process from one execve to the next (a fork passes them on):
//!
//! - memfd_create and ftruncate make a descriptor a file that shared mappings of it share, until the next
//!   memfd_create;
//! - a mapping put (`MAP_FIXED`) into the range that the same descriptor was last mapped to without it is one
//!   of the same file: so loaders map the segments of an object;
//! - any other mapping is one of a file of its own.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Most descriptors of a process that something is known of.
const MOST: usize = 64;

/// What is known of a process's descriptors.
#[derive(Clone, Debug, Default)]
pub(super) struct Descriptors {
    known: Arc<BTreeMap<i32, Known>>,
}

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The file it is for shared mappings.
    pub(super) shared: Option<u32>,
    /// The file it was last mapped as, and where to.
    pub(super) mapped: Option<(u32, u64, u64)>,
}

impl Descriptors {
    /// What is known of `descriptor`.
    pub(super) fn get(&self, descriptor: i32) -> Known {
        self.known.get(&descriptor).copied().unwrap_or_default()
    }

    /// Forgets what is known of those in a range.
    pub(super) fn forget(&mut self, descriptors: RangeInclusive<u32>) {
        if self.known.keys().any(|descriptor| descriptors.contains(&(*descriptor as u32))) {
            Arc::make_mut(&mut self.known)
                .retain(|descriptor, _| !descriptors.contains(&(*descriptor as u32)));
        }
    }

    /// Remembers what is known of it; of too many, that of the highest is forgotten.
    pub(super) fn set(&mut self, descriptor: i32, known: Known) {
        let all = Arc::make_mut(&mut self.known);
        all.insert(descriptor, known);
        if all.len() > MOST {
            all.pop_last();
        }
    }
}
