//! What madvise can be told, and what all advice has in common.

use crate::{
    error::MadviseError,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};

macro_rules! advice {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What madvise can be told, with Linux's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Advice { $($(#[$doc])* $name = $number,)* }

        impl Advice {
            /// Every advice that is understood.
            pub const ALL: &[Advice] = &[$(Advice::$name,)*];

            /// The advice with this number.
            ///
            /// # Errors
            ///
            /// There is none.
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
    /// MADV_RANDOM: accesses in no order.
    Random = 1,
    /// MADV_SEQUENTIAL: accesses in order.
    Sequential = 2,
    /// MADV_WILLNEED: will be accessed soon; brings pages of files into their cache.
    WillNeed = 3,
    /// MADV_DONTNEED: pages go; private anonymous memory reads as zeroes afterwards. Not of locked memory.
    DontNeed = 4,
    /// MADV_FREE: the contents of pages are not needed unless they are written again. They count as clean and
    /// unused until then; no page is taken when memory is short.
    Free = 8,
    /// MADV_REMOVE: punches a hole into the file behind a shared mapping.
    Remove = 9,
    /// MADV_DONTFORK: absent in a forked child.
    DontFork = 10,
    /// MADV_DOFORK: undoes `DontFork`.
    DoFork = 11,
    /// MADV_MERGEABLE: equal pages may become one. Only noted, and not of shared memory.
    Mergeable = 12,
    /// MADV_UNMERGEABLE: undoes `Mergeable`.
    Unmergeable = 13,
    /// MADV_HUGEPAGE: huge pages wanted.
    HugePage = 14,
    /// MADV_NOHUGEPAGE: no huge pages.
    NoHugePage = 15,
    /// MADV_DONTDUMP: left out of core dumps.
    DontDump = 16,
    /// MADV_DODUMP: undoes `DontDump`.
    DoDump = 17,
    /// MADV_WIPEONFORK: empty in a forked child; only of private anonymous memory.
    WipeOnFork = 18,
    /// MADV_KEEPONFORK: undoes `WipeOnFork`.
    KeepOnFork = 19,
    /// MADV_COLD: not needed soon. Pages that one entry maps count as unused; nothing here takes them back.
    Cold = 20,
    /// MADV_PAGEOUT: not needed now. Checked, without effect.
    PageOut = 21,
    /// MADV_POPULATE_READ: makes every page readable without a fault.
    PopulateRead = 22,
    /// MADV_POPULATE_WRITE: makes every page writable without a fault.
    PopulateWrite = 23,
    /// MADV_DONTNEED_LOCKED: `DontNeed` of locked memory too.
    DontNeedLocked = 24,
    /// MADV_COLLAPSE: huge pages now, whatever [`HugePages`](crate::engine::HugePages) says. The pages of
    /// shared memory, which has no huge ones here, all come instead.
    Collapse = 25,
    /// MADV_HWPOISON: the memory of every page fails; see
    /// [`Engine::memory_failure`](crate::engine::Engine::memory_failure).
    HwPoison = 100,
    /// MADV_SOFT_OFFLINE: every page moves, and its frame is used no more.
    SoftOffline = 101,
    /// MADV_GUARD_INSTALL: pages go, and an access is a segmentation fault from now on.
    GuardInstall = 102,
    /// MADV_GUARD_REMOVE: undoes `GuardInstall`; the pages read as fresh ones.
    GuardRemove = 103,
}

/// Whether a sealed VMA lets itself be emptied: only where a store could do the same, or where there is a
/// file to read again.
pub(super) fn check_seal<P: Platform>(vma: &Vma<P>, advice: Advice) -> Result<(), MadviseError> {
    use Advice::*;
    let discards =
        matches!(advice, DontNeed | DontNeedLocked | Free | Remove | DontFork | WipeOnFork | GuardInstall);
    let flags = vma.flags();
    let refused = flags.contains(VmFlags::SEALED) && !flags.contains(VmFlags::WRITE) && vma.is_anonymous();
    if discards && refused { Err(MadviseError::Sealed) } else { Ok(()) }
}

/// How a call ends that went over all parts: holes are an error.
pub(super) fn fail_on_hole(no_holes: bool) -> Result<(), MadviseError> {
    if no_holes { Ok(()) } else { Err(MadviseError::NotMapped) }
}
