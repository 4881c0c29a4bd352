//! The contents of /proc/PID/cmdline and /proc/PID/environ: the bytes of a program's arguments and
//! environment, read from its memory.
//!
//! `space/arguments.rs` has their location. The program may change the location at any time, and may map
//! anything there. Both files are read page by page with `AccessMode::Report`, like all other memory of
//! another process: a writer of the address space waits for at most one page, and a reader never waits for a
//! file. The rules for overwritten arguments are Linux's. `reports::readers` (`engine/freehold/tests`) tests
//! this file.

use super::AccessMode;
use crate::{
    PAGE_SIZE,
    error::AccessError,
    platform::Platform,
    space::{AddressSpace, Arguments},
};
use core::ops::Range;

impl<P: Platform> AddressSpace<P> {
    /// Reads /proc/PID/cmdline from `offset` on. Returns the number of bytes read, which is zero at the end.
    ///
    /// A program may overwrite its arguments, as setproctitle does. If the last byte of the arguments is not
    /// zero any more, the result ends at the first zero byte. In this case the result may extend into the
    /// environment, if the environment follows immediately, and is at most one page long.
    ///
    /// # Errors
    ///
    /// Fails if the first byte cannot be read or is not anonymous memory.
    ///
    /// # Locks
    ///
    /// The locks of [`read_memory`](Self::read_memory).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"ls\0-l\0", AccessMode::Plain).unwrap();
    /// space.set_arguments(&Arguments { args: at..at + 6, env: at + 6..at + 6 }).unwrap();
    /// let mut found = [0; 16];
    /// assert_eq!(space.read_cmdline(3, &mut found), Ok(3));
    /// assert_eq!(&found[..3], b"-l\0");
    /// ```
    pub fn read_cmdline(&self, offset: u64, out: &mut [u8]) -> Result<usize, AccessError> {
        let Arguments { args, env } = self.arguments();
        let mut last = [0];
        if !args.is_empty() {
            // If the last byte cannot be read, the arguments are treated as not overwritten.
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

    /// Reads /proc/PID/environ from `offset` on. Returns the number of bytes read, which is zero at the end.
    ///
    /// # Errors
    ///
    /// The errors of [`read_cmdline`](Self::read_cmdline).
    ///
    /// # Locks
    ///
    /// The locks of [`read_memory`](Self::read_memory).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"sh\0HOME=/\0", AccessMode::Plain).unwrap();
    /// space.set_arguments(&Arguments { args: at..at + 3, env: at + 3..at + 10 }).unwrap();
    /// let mut found = [0; 7];
    /// assert_eq!(space.read_environ(0, &mut found), Ok(7));
    /// assert_eq!((&found, space.read_environ(7, &mut [0])), (b"HOME=/\0", Ok(0)));
    /// ```
    pub fn read_environ(&self, offset: u64, out: &mut [u8]) -> Result<usize, AccessError> {
        self.read_report(self.arguments().env, offset, out)
    }

    /// Reads `range` from its byte `offset` on. Returns 0 at or beyond the end of the range.
    fn read_report(&self, range: Range<u64>, offset: u64, out: &mut [u8]) -> Result<usize, AccessError> {
        let Some(left) = (range.end - range.start).checked_sub(offset).filter(|left| *left > 0) else {
            return Ok(0);
        };
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.read_memory(range.start + offset, &mut out[..len], AccessMode::Report)
    }

    /// Returns true if `range` contains a zero byte. The range is at most one page long.
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
