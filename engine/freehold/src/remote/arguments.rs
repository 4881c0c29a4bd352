//! What /proc/PID/cmdline and /proc/PID/environ say: bytes, read page by page like any other access on behalf
//! of others; a writer of the address space waits for a page at most.

use super::AccessMode;
use crate::{
    PAGE_SIZE,
    error::AccessError,
    platform::Platform,
    space::{AddressSpace, Arguments},
};
use core::ops::Range;

impl<P: Platform> AddressSpace<P> {
    /// Reads /proc/PID/cmdline from `offset` on; returns how many bytes there were, none at its end.
    ///
    /// A program may have written over its arguments, as setproctitle does: if they do not end with a zero
    /// any more they go on, into the environment if that follows at once, up to the first zero, and are a
    /// page long at most.
    ///
    /// # Errors
    ///
    /// The first byte cannot be read, or is not anonymous memory.
    ///
    /// # Locks
    ///
    /// As [`read_memory`](Self::read_memory).
    pub fn read_cmdline(&self, offset: u64, out: &mut [u8]) -> Result<usize, AccessError> {
        let Arguments { args, env } = self.arguments();
        let mut last = [0];
        if !args.is_empty() {
            // If it cannot be read, neither can what lies before it be a title.
            let _ = self.read_memory(args.end - 1, &mut last, AccessMode::Report);
        }
        if last == [0] {
            return self.read_report(args, offset, out);
        }
        let end = if env.start == args.end { env.end.max(args.end) } else { args.end };
        let title = args.start..end.min(args.start.saturating_add(PAGE_SIZE));
        let ended = self.ends_before(args.start..title.end.min(args.start.saturating_add(offset)))?;
        if ended {
            return Ok(0);
        }
        let got = self.read_report(title, offset, out)?;
        let zero = out[..got].iter().position(|byte| *byte == 0);
        Ok(zero.map_or(got, |zero| zero + 1))
    }

    /// Reads /proc/PID/environ from `offset` on; returns how many bytes there were, none at its end.
    ///
    /// # Errors
    ///
    /// As [`read_cmdline`](Self::read_cmdline).
    ///
    /// # Locks
    ///
    /// As `read_cmdline`.
    pub fn read_environ(&self, offset: u64, out: &mut [u8]) -> Result<usize, AccessError> {
        self.read_report(self.arguments().env, offset, out)
    }

    fn read_report(&self, range: Range<u64>, offset: u64, out: &mut [u8]) -> Result<usize, AccessError> {
        let Some(left) = (range.end - range.start).checked_sub(offset).filter(|left| *left > 0) else {
            return Ok(0);
        };
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.read_memory(range.start + offset, &mut out[..len], AccessMode::Report)
    }

    /// Whether there is a zero in `range`, which is no longer than a page.
    fn ends_before(&self, range: Range<u64>) -> Result<bool, AccessError> {
        let mut bytes = [0; 128];
        let mut at = range.start;
        while at < range.end {
            let part = &mut bytes[..(range.end - at).min(128) as usize];
            let got = self.read_memory(at, part, AccessMode::Report)?;
            if part[..got].contains(&0) {
                return Ok(true);
            }
            at += got as u64;
        }
        Ok(false)
    }
}
