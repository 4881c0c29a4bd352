//! process_madvise: one advice about several ranges.

use super::advice::Advice;
use crate::{error::MadviseError, platform::Platform, remote::IoVec, space::AddressSpace};

/// Ranges of one call, at most (Linux's UIO_MAXIOV).
const MAX_RANGES: usize = 1024;
/// Bytes that one call goes over, at most: as many as a read could return. What is beyond is left alone.
const MAX_BYTES: u64 = 0x7fff_f000;

impl<P: Platform> AddressSpace<P> {
    /// Follows an advice about each of `ranges`, in order, up to the first that fails; returns how many bytes
    /// were dealt with. `own`: the process gives the advice about itself; about another only that memory
    /// is wanted soon, is not, or is to be collapsed.
    ///
    /// # Errors
    ///
    /// Of the first range, as [`madvise`](Self::madvise). `Invalid`: too many ranges, too many bytes, or an
    /// advice that another process cannot give; `BadAccess`: a range beyond user space.
    ///
    /// # Locks
    ///
    /// As `madvise`, of one range at a time.
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
            // As on Linux: of empty ranges only the first is looked at.
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

/// What can be said of the ranges alone.
fn check<P: Platform>(ranges: &[IoVec]) -> Result<(), MadviseError> {
    if ranges.len() > MAX_RANGES || ranges.iter().any(|range| i64::try_from(range.len).is_err()) {
        return Err(MadviseError::Invalid);
    }
    // As on Linux: what lies beyond the most bytes of a call may lie anywhere if there is only one range.
    let most = if ranges.len() == 1 { MAX_BYTES } else { u64::MAX };
    let is_outside = |range: &IoVec| {
        range.base.checked_add(range.len.min(most)).is_none_or(|end| end > AddressSpace::<P>::TASK_SIZE)
    };
    if ranges.iter().any(is_outside) { Err(MadviseError::BadAccess) } else { Ok(()) }
}
