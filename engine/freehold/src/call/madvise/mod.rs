//! madvise: what a program expects of a range, and what it does not need any more.
//!
//! The kinds of advice, by what they need:
//!
//! | advice | file | lock |
//! | --- | --- | --- |
//! | changes flags, and so may cut and merge VMAs | `flags.rs` | mmap lock for writing |
//! | takes pages away or puts guards in their place | `pages.rs`, `guard.rs` | the VMA's own lock where the range lies in one VMA; else mmap lock for reading |
//! | makes memory fail | `failure.rs` | none at entry; each page is found as if to be read |
//! | makes huge pages of small ones | `collapse.rs` | mmap lock for writing, 2 MiB at a time; of shared memory for reading |
//! | concerns the pages of files | `file.rs` | mmap lock for reading to look; none while the file is at work |
//! | brings pages as faults would | `fault/populate.rs` | the same |
//!
//! All pass over holes and report them at the end; a real error ends the call at once, with what lies before
//! it done.
//!
//! A new advice needs, here and in other crates:
//!
//! - a line in `advice!` with Linux's number, and an arm in `AddressSpace::madvise` that leads to the file of
//!   its kind (a new kind: a row above and one in `docs/operations.md`);
//! - a word in `check_seal` if it discards, and in `process.rs` if it may be given to others;
//! - tests: a case in `tests/files/advice.rs`, `tests/guards.rs` or their like, and a line in
//!   `tests/sweep/ops/advice.rs`, which makes its allocations fail (a test asks for that line);
//! - in `freehold-model`: its rule (`model/madvise.rs`; `model/seal.rs` if it discards), and its number where
//!   random calls are drawn (`generate.rs`, `script.rs`) and let through (`escape.rs`). They then compare it
//!   with the engine and with the running kernel;
//! - for recordings: its name in `freehold-trace/src/strace/symbols.rs`; what it does to VMAs and bytes in
//!   `plan/calls.rs`, `plan/bytes.rs` and `plan/unknown.rs` there, and in `freehold-replay/src/files.rs`.

mod collapse;
mod failure;
mod file;
mod flags;
mod guard;
mod pages;
mod process;

use crate::space::{AddressSpace, change::split_merge::SplitMergeError};
use crate::{
    error::{MadviseError, PopulateError},
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::UserRange;

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

impl From<SplitMergeError> for MadviseError {
    fn from(error: SplitMergeError) -> Self {
        match error {
            SplitMergeError::TooManyVmas | SplitMergeError::NoMemory => MadviseError::NotCut,
            SplitMergeError::NotSplittable => MadviseError::Invalid,
        }
    }
}

impl From<PopulateError> for MadviseError {
    fn from(error: PopulateError) -> Self {
        match error {
            PopulateError::NotMapped => MadviseError::NotMapped,
            PopulateError::NotPermitted => MadviseError::Invalid,
            PopulateError::BadAccess => MadviseError::BadAccess,
            PopulateError::MemoryFailed => MadviseError::MemoryFailed,
            PopulateError::OutOfMemory => MadviseError::OutOfMemory,
            PopulateError::Killed => MadviseError::Killed,
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Follows an advice about `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// See [`MadviseError`]. What is mapped has been dealt with when only a hole is reported.
    ///
    /// # Locks
    ///
    /// By the kind of advice: see the table at the top of `madvise/mod.rs`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, engine::{Config, Engine}, remote::AccessMode, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"scratch", AccessMode::Plain).unwrap();
    /// space.madvise(at, PAGE_SIZE, Advice::DontNeed).unwrap();
    /// let mut found = [1; 7];
    /// space.read_memory(at, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(found, [0; 7]);
    /// ```
    pub fn madvise(&self, addr: u64, len: u64, advice: Advice) -> Result<(), MadviseError> {
        use Advice::*;
        let range = UserRange::decode(addr, len).ok_or(MadviseError::Invalid)?;
        if range.is_empty() {
            return Ok(());
        }
        match advice {
            PopulateRead | PopulateWrite => Ok(self.populate_with(range, advice == PopulateWrite)?),
            DontNeed | DontNeedLocked | Free | Cold | PageOut | GuardInstall | GuardRemove => {
                self.advise_pages(range, advice)
            }
            HwPoison | SoftOffline => self.break_pages(range, advice),
            WillNeed | Remove => self.advise_file(range, advice),
            Collapse => self.advise_collapse(range),
            _ => self.advise_flags(range, advice),
        }
    }
}

/// Whether a sealed VMA lets itself be emptied: only where a store could do the same, or where there is a
/// file to read again.
fn check_seal<P: Platform>(vma: &Vma<P>, advice: Advice) -> Result<(), MadviseError> {
    use Advice::*;
    let discards =
        matches!(advice, DontNeed | DontNeedLocked | Free | Remove | DontFork | WipeOnFork | GuardInstall);
    let flags = vma.flags();
    let refused = flags.contains(VmFlags::SEALED) && !flags.contains(VmFlags::WRITE) && vma.is_anonymous();
    if discards && refused { Err(MadviseError::Sealed) } else { Ok(()) }
}

/// How a call ends that went over all parts: holes are an error.
fn whole(no_holes: bool) -> Result<(), MadviseError> {
    if no_holes { Ok(()) } else { Err(MadviseError::NotMapped) }
}
