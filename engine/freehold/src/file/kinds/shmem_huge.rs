//! Settings for blocks of shared memory: how many pages the first access to shared memory allocates together
//! (multi-size THP).
//!
//! The settings are those of Linux's `shmem_enabled` files and of the mount option `huge` of tmpfs.
//! [`SharedBlocks`] is the setting of an engine. [`SharedHuge`] is a policy, which is a part of that setting
//! or belongs to a mount. [`Sizes`] is the answer for one mapping: the sizes of the blocks that are allowed
//! in it. This file only computes the answer. `fault/shmem_mthp.rs` uses the answer in a fault, and
//! `file/cache/mthp.rs` adds the blocks to the cache. `Files` keeps the settings in one word, which a fault
//! reads without a lock. `tests/huge/shared.rs` tests the settings of an engine and of a mount.
//!
//! A new set of sizes needs its bits in [`SharedBlocks::word`] and in `of`, in the same order, a rule in
//! `nameless` or `named`, a case in `tests/huge/shared.rs`, and a row in `docs/reference/replay.md`.

use crate::{
    PAGE_SIZE,
    file::mapping::{Mapping, NO_MOUNT},
    platform::Platform,
};
use freehold_pagetable::Level;
use freehold_sync::atomic::Ordering::Relaxed;

/// Policy that says where shared memory has huge pages. The values are those of
/// /sys/kernel/mm/transparent_hugepage/shmem_enabled and of the mount option `huge` of tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum SharedHuge {
    /// No huge pages.
    #[default]
    Never = 0,
    /// Huge pages wherever they fit into the mapping.
    Always = 1,
    /// Huge pages where they also fit into the file, or where MADV_HUGEPAGE requests them.
    WithinSize = 2,
    /// Huge pages where MADV_HUGEPAGE requests them.
    Advise = 3,
    /// Neither huge pages nor smaller blocks, regardless of all other settings. For a mount, acts like
    /// `Never`.
    Deny = 4,
    /// Like `Always`, regardless of the mount. For a mount, acts like `Always`.
    Force = 5,
}

impl SharedHuge {
    const ALL: [Self; 6] =
        [Self::Never, Self::Always, Self::WithinSize, Self::Advise, Self::Deny, Self::Force];

    /// Returns the policy with this number.
    pub(crate) fn of(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Returns the conditions under which blocks of the sizes `sizes` are allowed. `advised` says whether
    /// MADV_HUGEPAGE applies to the memory.
    fn sizes(self, sizes: u64, advised: bool) -> Sizes {
        let none = Sizes::default();
        match self {
            Self::Always | Self::Force => Sizes { always: sizes, ..none },
            Self::WithinSize | Self::Advise if advised => Sizes { always: sizes, ..none },
            Self::WithinSize => Sizes { within_huge: sizes, ..none },
            Self::Never | Self::Advise | Self::Deny => none,
        }
    }
}

settings! {
    /// Sizes of the blocks that the first access to shared memory allocates and maps.
    ///
    /// An access allocates the largest block of an allowed size that is aligned in the file and in memory,
    /// lies within the VMA, and has no page in the cache yet. If there is no such block, the access allocates
    /// a single page. Each field except the first is a sum of sizes in bytes. A field contains a size if the
    /// size's file /sys/kernel/mm/transparent_hugepage/hugepages-*kB/shmem_enabled contains the name of the
    /// field. Sizes that are not in [`SIZES`](Self::SIZES) are ignored.
    ///
    /// The sizes apply to memory without a name: memfds and shared anonymous memory. Segments of System V and
    /// files [of a mount](crate::file::Mapping::set_mount_huge) have blocks of 2 MiB or none.
    ///
    /// MADV_NOHUGEPAGE and `PR_SET_THP_DISABLE` disable all blocks. A block of 2 MiB is mapped by small
    /// pages. Pages beyond the end of the file are not allocated.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SharedBlocks {
        /// Policy of segments, and of the sizes in `inherit`.
        pub all: SharedHuge,
        /// Sizes that are allocated wherever they fit into the VMA.
        pub always: u64,
        /// Sizes that are allocated where they also fit into the file.
        pub within_size: u64,
        /// Sizes that are allocated where MADV_HUGEPAGE requests them.
        pub advised: u64,
        /// Sizes that are allocated where `all` allows huge pages. If `all` is [`Force`](SharedHuge::Force),
        /// no other size is allocated.
        pub inherit: u64,
    }
}

/// Sizes of blocks that are allowed in some memory, by condition. Each field is a sum of sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Sizes {
    /// Sizes that are allowed regardless of the file's length.
    pub always: u64,
    /// Sizes that are allowed if the file contains the whole block.
    pub within: u64,
    /// Sizes that are allowed if the file contains the whole 2 MiB around the block.
    pub within_huge: u64,
}

impl Sizes {
    /// Returns the union of all sizes.
    pub fn all(self) -> u64 {
        self.always | self.within | self.within_huge
    }
}

impl SharedBlocks {
    /// Returns settings without blocks.
    #[must_use]
    pub const fn new() -> Self {
        SharedBlocks { all: SharedHuge::Never, always: 0, within_size: 0, advised: 0, inherit: 0 }
    }

    /// The sum of all sizes: powers of two from 8 KiB to 2 MiB.
    pub const SIZES: u64 = 2 * Self::LARGEST - Self::SMALLEST;
    /// The largest size in bytes.
    pub(crate) const LARGEST: u64 = Level::Pmd.span();
    /// The smallest size in bytes.
    const SMALLEST: u64 = 2 * PAGE_SIZE;
    /// Number of bits that a set of sizes takes in a word.
    const BITS: u32 = (Self::SIZES / Self::SMALLEST).count_ones();

    /// Packs all fields into a word. The default is 0.
    pub(crate) fn word(self) -> u64 {
        let sums = [self.always, self.within_size, self.advised, self.inherit];
        let bits = sums
            .into_iter()
            .fold(0, |word, sum| (word << Self::BITS) | ((sum & Self::SIZES) / Self::SMALLEST));
        bits << u8::BITS | u64::from(self.all as u8)
    }

    /// Returns the settings that [`word`](Self::word) packed.
    pub(crate) fn of(word: u64) -> Self {
        let sum = |n: u32| ((word >> (u8::BITS + n * Self::BITS)) * Self::SMALLEST) & Self::SIZES;
        let all = SharedHuge::of(word as u8);
        SharedBlocks { all, always: sum(3), within_size: sum(2), advised: sum(1), inherit: sum(0) }
    }

    /// Returns the sizes that are allowed in memory without a name. `advised` says whether MADV_HUGEPAGE
    /// applies.
    pub(crate) fn nameless(self, advised: bool) -> Sizes {
        let inherited = self.all.sizes(self.inherit, advised);
        match self.all {
            SharedHuge::Deny | SharedHuge::Force => inherited,
            _ => Sizes {
                always: inherited.always | self.always | if advised { self.advised } else { 0 },
                within: self.within_size,
                within_huge: inherited.within_huge,
            },
        }
    }

    /// Returns the sizes that are allowed in a segment, or in a file whose mount has its own policy.
    pub(crate) fn named(self, mount: Option<SharedHuge>, advised: bool) -> Sizes {
        let decides = match (self.all, mount) {
            (SharedHuge::Deny | SharedHuge::Force, _) | (_, None) => self.all,
            (_, Some(mount)) => mount,
        };
        decides.sizes(Self::LARGEST, advised)
    }
}

/// Iterates over the sizes in the sum `sizes`, largest first.
pub(crate) fn largest_first(mut sizes: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let largest = 1 << sizes.checked_ilog2()?;
        sizes -= largest;
        Some(largest)
    })
}

impl<P: Platform> Mapping<P> {
    /// Sets the huge page policy of the mount that shared memory belongs to (the option `huge` of tmpfs).
    /// `None`, the initial value, says that the memory has no name: the engine's
    /// [`SharedBlocks`](crate::engine::SharedBlocks) then apply. Pages in the cache are not affected.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::SharedHuge, file::Mapping};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::memfd(&engine, 4 << 20).unwrap();
    /// file.set_mount_huge(Some(SharedHuge::Always));
    /// assert_eq!(file.mount_huge(), Some(SharedHuge::Always));
    /// ```
    pub fn set_mount_huge(&self, huge: Option<SharedHuge>) {
        // Relaxed, here and below: a concurrent fault may see either value.
        self.mount_huge.store(huge.map_or(NO_MOUNT, |huge| huge as u8), Relaxed);
    }

    /// Returns the huge page policy of the mount that the file belongs to.
    pub fn mount_huge(&self) -> Option<SharedHuge> {
        let number = self.mount_huge.load(Relaxed);
        (number != NO_MOUNT).then(|| SharedHuge::of(number))
    }
}
