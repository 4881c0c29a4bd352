//! madvise: what a program expects of a range, and what it does not need any more.
//!
//! The kinds of advice, by what they need:
//!
//! | advice | file | lock |
//! | --- | --- | --- |
//! | changes flags, and so may cut and merge VMAs | `flags.rs` | those of a [range writer](crate::space::locking#writers) |
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

mod advice;
mod collapse;
mod failure;
mod file;
mod flags;
mod guard;
mod pages;
mod process;

use crate::{
    error::{MadviseError, PopulateError},
    platform::Platform,
    space::{AddressSpace, change::split_merge::SplitMergeError},
};
use freehold_vmspace::UserRange;

pub use advice::Advice;

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
    /// By the kind of advice, killably where there is a wait for the mmap lock:
    ///
    /// | advice | locks |
    /// | --- | --- |
    /// | changes flags | those of a [range writer](crate::space::locking#writers) |
    /// | takes pages away, or puts guards in their place | the VMA's own for reading if the range lies in one VMA; else the mmap lock for reading |
    /// | [`Collapse`](Advice::Collapse) | the mmap lock for writing, 2 MiB at a time; of shared memory for reading |
    /// | [`WillNeed`](Advice::WillNeed), [`Remove`](Advice::Remove) | the mmap lock for reading to look; none of the address space while the file is at work |
    /// | [`PopulateRead`](Advice::PopulateRead), [`PopulateWrite`](Advice::PopulateWrite), [`HwPoison`](Advice::HwPoison), [`SoftOffline`](Advice::SoftOffline) | for each page those of a fault |
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
            HwPoison | SoftOffline => self.inject_failures(range, advice),
            WillNeed | Remove => self.advise_file(range, advice),
            Collapse => self.advise_collapse(range),
            _ => self.advise_flags(range, advice),
        }
    }
}
