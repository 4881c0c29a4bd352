//! process_madvise: one advice about several ranges, for the calling process or another one.
//!
//! This file checks and limits the ranges, and calls `madvise` for each of them, one after the other. The
//! checks come in Linux's order. `about_others` lists the advice that one process may give about the memory
//! of another. The embedder finds the address space of the other process and checks the right to access it.
//! `overflowing_lengths_get_the_answers_of_linux` in `tests/every_call/lengths.rs` tests the checks, and
//! `tests/files/advice.rs` the effect.

use super::advice::Advice;
use crate::{error::MadviseError, platform::Platform, remote::IoVec, space::AddressSpace};

/// Maximum number of ranges of one call (Linux's UIO_MAXIOV).
const MAX_RANGES: usize = 1024;
/// Maximum number of bytes that one call processes, which is also the maximum of a read. Bytes beyond this
/// number are ignored.
const MAX_BYTES: u64 = 0x7fff_f000;

impl<P: Platform> AddressSpace<P> {
    /// Applies an advice to each of `ranges` in order, until one fails. Returns the number of processed
    /// bytes. `own` is true if the process gives the advice about its own memory. For the memory of another
    /// process, only `Cold`, `PageOut`, `WillNeed` and `Collapse` are allowed.
    ///
    /// # Errors
    ///
    /// Returns the error of [`madvise`](Self::madvise) if the first range fails. Fails with `Invalid` if
    /// there are too many ranges or bytes, or if the advice is not allowed about another process. Fails with
    /// `BadAccess` if a range lies beyond user space.
    ///
    /// # Locks
    ///
    /// The locks of [`madvise`](Self::madvise), for one range at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, remote::IoVec, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let ranges = [0, 2].map(|page| IoVec { base: at + page * PAGE_SIZE, len: PAGE_SIZE });
    /// assert_eq!(space.process_madvise(&ranges, Advice::PopulateWrite, true), Ok(2 * PAGE_SIZE));
    /// assert_eq!(space.rss().anon, 2);
    /// assert!(space.process_madvise(&ranges, Advice::DontNeed, false).is_err(), "not for another process");
    /// ```
    pub fn process_madvise(&self, ranges: &[IoVec], advice: Advice, own: bool) -> Result<u64, MadviseError> {
        check::<P>(ranges)?;
        let about_others =
            matches!(advice, Advice::Cold | Advice::PageOut | Advice::WillNeed | Advice::Collapse);
        if ranges.is_empty() {
            return Ok(0);
        }
        if !own && !about_others {
            return Err(MadviseError::Invalid);
        }
        if ranges.iter().all(|range| range.len == 0) {
            return Ok(0);
        }
        let mut done = 0;
        for (n, range) in ranges.iter().enumerate() {
            let len = range.len.min(MAX_BYTES - done);
            // As on Linux, an empty range is checked only if it is the first range.
            if len == 0 && n > 0 {
                continue;
            }
            match self.madvise(range.base, len, advice) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += len;
        }
        Ok(done)
    }
}

/// Checks the ranges without looking at the address space.
fn check<P: Platform>(ranges: &[IoVec]) -> Result<(), MadviseError> {
    if ranges.len() > MAX_RANGES || ranges.iter().any(|range| i64::try_from(range.len).is_err()) {
        return Err(MadviseError::Invalid);
    }
    // As on Linux, bytes beyond the maximum of a call may lie anywhere if there is only one range.
    let most = if ranges.len() == 1 { MAX_BYTES } else { u64::MAX };
    let is_outside = |range: &IoVec| {
        range.base.checked_add(range.len.min(most)).is_none_or(|end| end > AddressSpace::<P>::TASK_SIZE)
    };
    if ranges.iter().any(is_outside) { Err(MadviseError::BadAccess) } else { Ok(()) }
}
