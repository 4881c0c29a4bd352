//! The advice numbers of madvise ([`Advice`]), and two checks that the kinds of advice share.
//!
//! `mod.rs` dispatches each advice to the file that implements it, and lists the changes that a new advice
//! needs. The checks of this file read the flags of a VMA and change nothing. The caller holds a lock that
//! keeps the VMA unchanged. `lab/freehold-model/cases/seal.txt` tests the rule for sealed memory.

use crate::{
    error::MadviseError,
    platform::{PkeyRights, Platform},
    vma::{Vma, flags::VmFlags},
};

macro_rules! advice {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Advice of madvise, with Linux's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Advice { $($(#[$doc])* $name = $number,)* }

        impl Advice {
            /// All kinds of advice that the engine supports.
            pub const ALL: &[Advice] = &[$(Advice::$name,)*];

            /// Returns the advice with this number.
            ///
            /// # Errors
            ///
            /// Fails with [`MadviseError::Invalid`] if the number is unknown.
            ///
            /// # Examples
            ///
            /// ```
            /// # use freehold::{call::Advice, error::MadviseError};
            /// assert_eq!(Advice::from_raw(4), Ok(Advice::DontNeed));
            /// assert_eq!(Advice::from_raw(5), Err(MadviseError::Invalid));
            /// ```
            pub fn from_raw(number: u32) -> Result<Self, MadviseError> {
                match number {
                    $($number => Ok(Advice::$name),)*
                    _ => Err(MadviseError::Invalid),
                }
            }
        }
    };
}

advice! {
    /// MADV_NORMAL: no particular order of access.
    Normal = 0,
    /// MADV_RANDOM: random order of access.
    Random = 1,
    /// MADV_SEQUENTIAL: ascending order of access.
    Sequential = 2,
    /// MADV_WILLNEED: the range will be accessed soon. Reads pages of files into the page cache.
    WillNeed = 3,
    /// MADV_DONTNEED: unmaps pages; private anonymous memory reads as zero afterwards. Refused for locked
    /// memory.
    DontNeed = 4,
    /// MADV_FREE: the contents of pages are not needed until the program writes to them again. Until then the
    /// pages count as clean and as not accessed, and `PageOut` and
    /// [`drop_discardable`](crate::space::AddressSpace::drop_discardable) free them. Allowed only for private
    /// anonymous memory.
    Free = 8,
    /// MADV_REMOVE: punches a hole into the file of a shared mapping.
    Remove = 9,
    /// MADV_DONTFORK: a forked child does not get the mapping.
    DontFork = 10,
    /// MADV_DOFORK: undoes `DontFork`.
    DoFork = 11,
    /// MADV_MERGEABLE: equal pages may be merged. Only recorded, and ignored for shared memory.
    Mergeable = 12,
    /// MADV_UNMERGEABLE: undoes `Mergeable`.
    Unmergeable = 13,
    /// MADV_HUGEPAGE: huge pages are wanted.
    HugePage = 14,
    /// MADV_NOHUGEPAGE: huge pages are not allowed.
    NoHugePage = 15,
    /// MADV_DONTDUMP: core dumps omit the mapping.
    DontDump = 16,
    /// MADV_DODUMP: undoes `DontDump`.
    DoDump = 17,
    /// MADV_WIPEONFORK: the mapping is empty in a forked child. Allowed only for private anonymous memory.
    WipeOnFork = 18,
    /// MADV_KEEPONFORK: undoes `WipeOnFork`.
    KeepOnFork = 19,
    /// MADV_COLD: the range is not needed soon. Clears the accessed bit of pages that only one entry maps.
    Cold = 20,
    /// MADV_PAGEOUT: the range is not needed now. Takes away the pages that only one entry maps: pages freed
    /// by `Free` and not written since, pages of droppable memory, other anonymous pages if there is a
    /// [swap device](crate::swap), and pages of files that
    /// [show their cache](crate::file::FileAccess::shows_cache). Written pages of a file, and pages of shared
    /// memory, are unmapped and stay in the cache. Private copies of pages of files stay.
    PageOut = 21,
    /// MADV_POPULATE_READ: faults in all pages for reading.
    PopulateRead = 22,
    /// MADV_POPULATE_WRITE: faults in all pages for writing.
    PopulateWrite = 23,
    /// MADV_DONTNEED_LOCKED: like `DontNeed`, but also allowed for locked memory.
    DontNeedLocked = 24,
    /// MADV_COLLAPSE: collapses small pages into huge pages immediately, regardless of
    /// [`HugePages`](crate::engine::HugePages). Shared memory has no huge pages here; all of its small pages
    /// are mapped instead.
    Collapse = 25,
    /// MADV_HWPOISON: injects a memory failure into every page; see
    /// [`Engine::memory_failure`](crate::engine::Engine::memory_failure).
    HwPoison = 100,
    /// MADV_SOFT_OFFLINE: moves every page to another frame and stops using the old frames.
    SoftOffline = 101,
    /// MADV_GUARD_INSTALL: replaces pages by guards. Accesses to guards cause segmentation faults.
    GuardInstall = 102,
    /// MADV_GUARD_REMOVE: undoes `GuardInstall`; the pages become new pages on the next access.
    GuardRemove = 103,
}

/// Fails if the advice would discard pages of a sealed VMA. A VMA to which the calling thread may write is
/// exempt, because stores could have the same effect. A VMA of a file is exempt, because its contents can be
/// read again.
pub(super) fn check_seal<P: Platform>(
    platform: &P,
    vma: &Vma<P>,
    advice: Advice,
) -> Result<(), MadviseError> {
    use Advice::*;
    let discards =
        matches!(advice, DontNeed | DontNeedLocked | Free | Remove | DontFork | WipeOnFork | GuardInstall);
    let flags = vma.flags();
    let is_protected = discards && flags.contains(VmFlags::SEALED) && vma.is_anonymous();
    let denies = PkeyRights::DISABLE_ACCESS | PkeyRights::DISABLE_WRITE;
    let may_write =
        || flags.contains(VmFlags::WRITE) && !platform.pkey_rights(flags.pkey()).intersects(denies);
    if is_protected && !may_write() { Err(MadviseError::Sealed) } else { Ok(()) }
}

/// Returns the result of a call that has processed all mapped parts: `NotMapped` if there was a hole.
pub(super) fn fail_on_hole(no_holes: bool) -> Result<(), MadviseError> {
    if no_holes { Ok(()) } else { Err(MadviseError::NotMapped) }
}
