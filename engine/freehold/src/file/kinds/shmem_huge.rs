//! How much shared memory a first access brings: what the files that Linux calls `shmem_enabled` say.

use crate::PAGE_SIZE;
use freehold_pagetable::Level;

/// Where shared memory has huge pages, as /sys/kernel/mm/transparent_hugepage/shmem_enabled and the mount
/// option `huge` of a tmpfs say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum SharedHuge {
    /// Nowhere.
    #[default]
    Never = 0,
    /// Wherever they fit into the mapping.
    Always = 1,
    /// Where they fit into the file, too; or MADV_HUGEPAGE asked for them.
    WithinSize = 2,
    /// Where MADV_HUGEPAGE asked for them.
    Advise = 3,
    /// Nowhere, whatever anybody else says: no blocks either. Of the engine alone.
    Deny = 4,
    /// As `Always`, whatever a mount says. Of the engine alone.
    Force = 5,
}

impl SharedHuge {
    const ALL: [Self; 6] =
        [Self::Never, Self::Always, Self::WithinSize, Self::Advise, Self::Deny, Self::Force];

    /// What is stored as this number.
    pub(crate) fn of(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Where something of size `sizes` may come, in memory that asked for it or not.
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

/// How much shared memory a first access brings into the file's cache, and maps, where it brings more than a
/// page: the largest block of these sizes that lies at a multiple of its size in the file and in memory,
/// within the VMA, and of which nothing is in the cache yet. Each field but the first is a sum of sizes in
/// bytes, those whose file /sys/kernel/mm/transparent_hugepage/hugepages-*kB/shmem_enabled has this
/// word; what is none of [`SIZES`](Self::SIZES) counts for nothing. They are for memory without a name:
/// memfds and shared anonymous memory. Segments of System V, and files [of a
/// mount](crate::file::Mapping::set_mount_huge), have blocks of 2 MiB or none.
///
/// MADV_NOHUGEPAGE and `PR_SET_THP_DISABLE` keep all of them away. A block of 2 MiB is mapped by small pages.
/// What lies behind the end of the file does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SharedBlocks {
    /// What segments get, and sizes that inherit it.
    pub all: SharedHuge,
    /// Sizes that come wherever they fit into the VMA.
    pub always: u64,
    /// Those that come where they fit into the file, too.
    pub within_size: u64,
    /// Those that come where MADV_HUGEPAGE asked for them.
    pub advised: u64,
    /// Those that come where huge pages do by `all`. If that forces them, no other size comes.
    pub inherit: u64,
}

/// Sizes in bytes, added up, of blocks that may come at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Sizes {
    /// Without a look at the file's length.
    pub always: u64,
    /// If the file has all of the block.
    pub within: u64,
    /// If it has all of the 2 MiB around it.
    pub within_huge: u64,
}

impl Sizes {
    /// All of them, added up.
    pub fn all(self) -> u64 {
        self.always | self.within | self.within_huge
    }
}

impl SharedBlocks {
    /// All sizes, added up: powers of two from 8 KiB to 2 MiB.
    pub const SIZES: u64 = 2 * Self::LARGEST - Self::SMALLEST;
    /// The largest, in bytes.
    pub(crate) const LARGEST: u64 = Level::Pmd.span();
    /// The smallest, in bytes.
    const SMALLEST: u64 = 2 * PAGE_SIZE;
    /// Bits of a word that a set of sizes takes.
    const BITS: u32 = (Self::SIZES / Self::SMALLEST).count_ones();

    /// All in a word; 0 for none.
    pub(crate) fn word(self) -> u64 {
        let sums = [self.always, self.within_size, self.advised, self.inherit];
        let bits = sums
            .into_iter()
            .fold(0, |word, sum| (word << Self::BITS) | ((sum & Self::SIZES) / Self::SMALLEST));
        bits << u8::BITS | u64::from(self.all as u8)
    }

    pub(crate) fn of(word: u64) -> Self {
        let sum = |n: u32| ((word >> (u8::BITS + n * Self::BITS)) * Self::SMALLEST) & Self::SIZES;
        let all = SharedHuge::of(word as u8);
        SharedBlocks { all, always: sum(3), within_size: sum(2), advised: sum(1), inherit: sum(0) }
    }

    /// What may come in memory without a name that asked for huge pages or not.
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

    /// What may come in a segment, or in a file whose mount says something of its own.
    pub(crate) fn named(self, mount: Option<SharedHuge>, advised: bool) -> Sizes {
        let decides = match (self.all, mount) {
            (SharedHuge::Deny | SharedHuge::Force, _) | (_, None) => self.all,
            (_, Some(mount)) => mount,
        };
        decides.sizes(Self::LARGEST, advised)
    }
}

/// The sizes of which `sizes` is the sum.
pub(crate) fn largest_first(mut sizes: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let largest = 1 << sizes.checked_ilog2()?;
        sizes -= largest;
        Some(largest)
    })
}
