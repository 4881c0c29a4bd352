//! Blocks of shared memory: which sizes the recorded machine permits, and for which pages the replay
//! therefore cannot determine whether they are present.
//!
//! A *block* is a large folio: pages of shared memory that the kernel allocates and maps together. Settings
//! of the machine decide which sizes the kernel may use; newer recordings contain these settings.
//! [`Recorded`] reads the settings; [`World::tells_blocks`] says if the replay can compare the present pages
//! of a mapping. `world.rs` keeps the settings; `opened.rs` calls [`allocate`] for fallocate, and
//! `perform.rs` calls [`World::cut_huge`] after each call. `blocks_of_shared_memory_match_linux`
//! (`tests/small.rs`) replays a recording with several sizes.

use super::image::Image;
use super::workers::lock;
use super::world::World;
use freehold::file::Mapping;
use freehold::{
    PageIndex,
    engine::{SharedBlocks, SharedHuge},
};
use freehold_machine::{Machine, Process};
use freehold_trace::CallName::{Madvise, Mlock, Mlock2, Mmap, Mprotect, Mremap, Munlock, Munmap};
use freehold_trace::{Call, Recording};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Weak;

const PAGE: u64 = 4096;
/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// Largest number of pages that a call is assumed to bring into a file.
const MAX_ALLOCATED: u64 = 1 << 18;

/// The recorded settings for blocks of shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    /// The settings, for each size and for all sizes together.
    pub(super) blocks: SharedBlocks,
    /// The recording contains the setting of each size.
    pub(super) is_known: bool,
}

impl Recorded {
    /// Reads the settings of a recording.
    pub(super) fn of(recording: &Recording) -> Recorded {
        Recorded::by(|name| recording.machine(name))
    }

    /// Reads the recorded settings. Without a setting per size, each size has its initial value.
    fn by<'r>(setting: impl Fn(&str) -> Option<&'r str>) -> Recorded {
        let all = match setting("thp-shmem") {
            Some("always") => SharedHuge::Always,
            Some("within_size") => SharedHuge::WithinSize,
            Some("advise") => SharedHuge::Advise,
            Some("deny") => SharedHuge::Deny,
            Some("force") => SharedHuge::Force,
            _ => SharedHuge::Never,
        };
        let mut blocks = SharedBlocks::new().all(all);
        let mut is_known = false;
        for bytes in (0..u64::BITS).map(|bit| 1 << bit).filter(|bytes| bytes & SharedBlocks::SIZES != 0) {
            let Some(word) = setting(&format!("thp-shmem-{}kB", bytes >> 10)) else { continue };
            is_known = true;
            match word {
                "always" => blocks.always |= bytes,
                "within_size" => blocks.within_size |= bytes,
                "advise" => blocks.advised |= bytes,
                "inherit" => blocks.inherit |= bytes,
                _ => {}
            }
        }
        if !is_known {
            blocks.inherit = HUGE;
        }
        Recorded { blocks, is_known }
    }
}

impl World {
    /// Returns true if the replay determines which pages of `mapping` are brought in together. The sizes of
    /// blocks that the kernel permits must be known. If any size is permitted, only one address space may
    /// have existed, because the recording does not show in which order several address spaces brought in
    /// pages.
    pub(super) fn tells_blocks(&self, mapping: &Mapping<Machine>) -> bool {
        let Recorded { blocks, is_known } = self.shared;
        let none = match mapping.mount_huge() {
            Some(mount) => matches!(by_mount(blocks, mount), SharedHuge::Never | SharedHuge::Deny),
            None => {
                blocks == SharedBlocks::new().all(blocks.all).inherit(blocks.inherit)
                    && matches!(blocks.all, SharedHuge::Never | SharedHuge::Deny)
            }
        };
        is_known && (none || self.spaces() <= 1)
    }

    /// Returns true if some shared memory may have blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.shared.blocks != SharedBlocks::default() || self.mounts_have_blocks
    }

    /// Returns the number of address spaces that have existed.
    fn spaces(&self) -> usize {
        let images = lock(&self.images);
        images.values().map(Weak::as_ptr).collect::<HashSet<_>>().len()
    }

    /// Handles a call that may have split a block of 2 MiB behind one PMD entry on Linux. Linux unmaps the
    /// whole block, and maps the pages of the block when they are touched again. The engine maps the block by
    /// small pages.
    pub(super) fn cut_huge(&self, image: &Image, call: &Call) {
        if !matches!(call.name, Munmap | Mprotect | Madvise | Mlock | Mlock2 | Munlock | Mmap | Mremap)
            || !self.has_blocks()
        {
            return;
        }
        let at = if call.name == Mmap { call.returned.value().unwrap_or(0) } else { call.args[0] };
        for edge in [at, at.saturating_add(call.args[1])] {
            let block = edge & !(HUGE - 1)..(edge & !(HUGE - 1)).saturating_add(HUGE);
            if !edge.is_multiple_of(HUGE) && has_shared(image.process(), edge) {
                image.reached.doubt(&block);
            }
        }
    }
}

/// Returns the setting for files of a mount. If the machine's setting denies or forces blocks, it overrides
/// the setting of the mount.
fn by_mount(blocks: SharedBlocks, mount: SharedHuge) -> SharedHuge {
    if matches!(blocks.all, SharedHuge::Deny | SharedHuge::Force) { blocks.all } else { mount }
}

/// Returns true if shared memory lies on either side of `edge`.
fn has_shared(process: &Process, edge: u64) -> bool {
    [edge - 1, edge].into_iter().any(|at| {
        let vma = process.find_vma(at);
        vma.is_some_and(|vma| vma.object().file().is_some_and(|file| file.mapping().is_shmem()))
    })
}

/// Adds small pages to a file of shared memory, without a fault. The pages prevent blocks around them.
pub(super) fn allocate(mapping: &Mapping<Machine>, bytes: Range<u64>) {
    let blocks = mapping.files().shared_blocks();
    let decides = mapping.mount_huge().map_or(blocks.all, |mount| by_mount(blocks, mount));
    let small = matches!(decides, SharedHuge::Never | SharedHuge::Advise | SharedHuge::Deny);
    let some = blocks != SharedBlocks::default() || decides != blocks.all;
    if mapping.is_shmem() && small && some {
        let end = bytes.end.div_ceil(PAGE).min(mapping.pages());
        for index in (bytes.start / PAGE..end).take(MAX_ALLOCATED as usize) {
            // If a page cannot be allocated, it stays absent, and the comparison reports it.
            let _ = mapping.fill(PageIndex::new(index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_the_settings() {
        let settings = |name: &str| {
            Some(match name {
                "thp-shmem" => "advise",
                "thp-shmem-16kB" => "always",
                "thp-shmem-64kB" => "within_size",
                "thp-shmem-128kB" => "advise",
                "thp-shmem-256kB" => "always",
                "thp-shmem-2048kB" => "inherit",
                "thp-shmem-4kB" => "always",
                _ => return None,
            })
        };
        let blocks = SharedBlocks::new()
            .all(SharedHuge::Advise)
            .always((16 + 256) << 10)
            .within_size(64 << 10)
            .advised(128 << 10)
            .inherit(HUGE);
        assert_eq!(Recorded::by(settings), Recorded { blocks, is_known: true });
    }

    #[test]
    fn sizes_that_are_not_recorded_have_initial_values() {
        let blocks = |all| SharedBlocks::new().all(all).inherit(HUGE);
        for (word, all) in [
            (None, SharedHuge::Never),
            (Some("never"), SharedHuge::Never),
            (Some("always"), SharedHuge::Always),
            (Some("deny"), SharedHuge::Deny),
            (Some("force"), SharedHuge::Force),
            (Some("within_size"), SharedHuge::WithinSize),
        ] {
            let found = Recorded::by(|name| word.filter(|_| name == "thp-shmem"));
            assert_eq!(found, Recorded { blocks: blocks(all), is_known: false });
        }
    }
}
