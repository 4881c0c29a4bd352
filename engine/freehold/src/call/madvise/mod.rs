//! madvise: hints about the expected use of a range, and requests to discard its pages. This file dispatches
//! each advice to the file that implements it.
//!
//! The kinds of advice, by implementation:
//!
//! | advice | file | lock |
//! | --- | --- | --- |
//! | changes flags, and may split and merge VMAs | `flags.rs` | those of a [range writer](crate::space::locking#writers) |
//! | unmaps pages or replaces them by guards | `pages.rs`, `guard.rs` | the VMA's own lock if the range lies in one VMA; otherwise the mmap lock for reading |
//! | takes pages away that the program can do without | `pageout.rs` | mmap lock for reading, for a part of the range at a time; none while pages leave the cache of a file |
//! | injects memory failures | `failure.rs` | none is held; each page is looked up as for a read |
//! | collapses small pages | `collapse.rs` | mmap lock for reading while VMAs are checked, and for writing for each 2 MiB; pages of shared memory are mapped under the lock held for reading |
//! | concerns pages of files | `file.rs` | mmap lock for reading during the lookup; none during operations on the file |
//! | faults in pages | `fault/populate.rs` | the VMA's own lock or the mmap lock for reading, per batch of pages |
//!
//! Most kinds skip holes and report them at the end. Advice that populates pages or injects failures stops at
//! the first hole. Any other error ends the call immediately. The part of the range below the failing address
//! is then already processed.
//!
//! A new advice needs these changes, here and in other crates. The test `every_advice_is_swept`
//! (`tests/sweep/complete.rs`) fails if the line for the sweep is missing.
//!
//! - A line in `advice!` (`advice.rs`) with Linux's number, and an arm in `AddressSpace::madvise` that calls
//!   the file of its kind. A new kind also needs a row in the table above and in
//!   `docs/reference/operations.md`.
//! - An entry in `check_seal` if the advice discards pages, and in `process.rs` if a process may give the
//!   advice about the memory of another process.
//! - Tests: a case in `tests/files/advice.rs`, `tests/guards.rs` or a similar file, and a line in
//!   `tests/sweep/ops/advice.rs`, by which the sweep makes the allocations of the advice fail.
//! - For the model: the rule of the advice in `freehold-model/src/model/madvise.rs`, and in
//!   `freehold-model/src/model/seal.rs` if the advice discards pages; the number of the advice in
//!   `freehold-model/src/generate.rs` and `freehold-model/src/script.rs`, which generate random calls, and in
//!   `freehold-model/src/escape.rs`, which permits them. The model is then compared with the engine and with
//!   the running kernel.
//! - For recordings: the name of the advice in `freehold-trace/src/strace/symbols.rs`; its effect on VMAs and
//!   bytes in `plan/calls.rs`, `plan/bytes.rs` and `plan/unknown.rs` of that crate, and in
//!   `freehold-replay/src/files.rs`.

mod advice;
mod collapse;
mod failure;
mod file;
mod flags;
mod guard;
mod pageout;
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
    /// Applies an advice to `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// See [`MadviseError`]. If only a hole is reported, all mapped parts were processed.
    ///
    /// # Locks
    ///
    /// The locks depend on the kind of advice. Waits for the mmap lock are killable.
    ///
    /// | advice | locks |
    /// | --- | --- |
    /// | changes flags | those of a [range writer](crate::space::locking#writers) |
    /// | unmaps pages, or replaces them by guards | the VMA's own lock for reading if the range lies in one VMA; otherwise the mmap lock for reading |
    /// | [`PageOut`](Advice::PageOut) | the mmap lock for reading, for a part of the range at a time; the locks of [`Mapping::drop_clean`](crate::file::Mapping::drop_clean) afterwards |
    /// | [`Collapse`](Advice::Collapse) | the mmap lock for reading while a VMA is checked, and for writing for each 2 MiB; pages of shared memory are mapped under the lock held for reading |
    /// | [`WillNeed`](Advice::WillNeed), [`Remove`](Advice::Remove) | the mmap lock for reading during the lookup; no lock of the address space during operations on the file |
    /// | [`PopulateRead`](Advice::PopulateRead), [`PopulateWrite`](Advice::PopulateWrite), [`HwPoison`](Advice::HwPoison), [`SoftOffline`](Advice::SoftOffline) | for each page those of a fault |
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
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
            DontNeed | DontNeedLocked | Free | Cold | GuardInstall | GuardRemove => {
                self.advise_pages(range, advice)
            }
            PageOut => self.page_out(range),
            HwPoison | SoftOffline => self.inject_failures(range, advice),
            WillNeed | Remove => self.advise_file(range, advice),
            Collapse => self.advise_collapse(range),
            _ => self.advise_flags(range, advice),
        }
    }
}
