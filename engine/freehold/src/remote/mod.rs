//! Reading and writing the memory of an address space on behalf of somebody else: process_vm_readv and
//! process_vm_writev, ptrace, /proc/PID/mem, /proc/PID/cmdline; and pages pinned, for callers that want the
//! memory itself.
//!
//! Page by page: the page is found, or faulted in, under the VMA's lock; it gets a reference under its
//! table's lock; and the bytes are copied with the VMA's lock still held, so that no fork can share the page
//! half-way through a write. No lock is held from one page to the next, so nobody waits longer than for a
//! page.

mod arguments;
mod page;
mod pin;
mod process_vm;

pub use pin::{PinFlags, Pins};

use crate::{
    PAGE_SIZE, error::AccessError, fault::FaultError, platform::Platform, space::AddressSpace, wait::Rounds,
};
use core::ops::{ControlFlow, Range};

/// What the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// What the VMA allows: process_vm_readv and process_vm_writev.
    Plain,
    /// Also what the VMA could be made to allow (Linux's FOLL_FORCE): a debugger reads what has no rights at
    /// all, and writes private copies of what is read-only. A stack grows where it is touched.
    Forced,
    /// What the VMA allows, of anonymous memory only: a reader of another process's arguments must not be
    /// made to wait for a file (Linux's FOLL_ANON). A stack grows.
    Report,
}

/// A part of the other address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoVec {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

/// What is to be done with pages.
#[derive(Clone, Copy)]
struct How {
    write: bool,
    manner: AccessMode,
    /// By the process itself, which alone comes to secret memory; its thread may have denied itself keys.
    own: bool,
}

impl From<FaultError> for AccessError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::Segv { .. } | FaultError::Bus { .. } | FaultError::MemoryFailed { .. } => {
                AccessError::BadAddress
            }
            FaultError::OutOfMemory => AccessError::OutOfMemory,
            FaultError::Killed | FaultError::Interrupted => AccessError::Killed,
        }
    }
}

/// What one copy moves at most: the part of a page from `addr` on, of `left` bytes.
fn within_page(addr: u64, left: usize) -> (usize, usize) {
    let offset = (addr % PAGE_SIZE) as usize;
    (offset, left.min(PAGE_SIZE as usize - offset))
}

/// An error counts only if nothing was done before it.
fn partial(done: usize, error: AccessError) -> Result<usize, AccessError> {
    if done > 0 { Ok(done) } else { Err(error) }
}

impl<P: Platform> AddressSpace<P> {
    /// Reads from `addr` on; returns how many bytes there were before the first that cannot be read.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]: not a byte could be read.
    ///
    /// # Locks
    ///
    /// For each page those of a fault; none on entry.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, remote::AccessMode, space::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at + PAGE_SIZE - 2, b"across", AccessMode::Plain).unwrap();
    /// let mut found = [0; 6];
    /// assert_eq!(space.read_memory(at + PAGE_SIZE - 2, &mut found, AccessMode::Plain), Ok(6));
    /// assert_eq!(&found, b"across");
    /// ```
    pub fn read_memory(&self, addr: u64, out: &mut [u8], manner: AccessMode) -> Result<usize, AccessError> {
        self.read_as(addr, out, How { write: false, manner, own: false })
    }

    fn read_as(&self, addr: u64, out: &mut [u8], how: How) -> Result<usize, AccessError> {
        let (mut done, mut rounds) = (0, Rounds::new());
        while done < out.len() {
            if let Err(killed) = rounds.again::<P>() {
                return partial(done, killed.into());
            }
            let Some(at) = addr.checked_add(done as u64) else {
                return partial(done, AccessError::BadAddress);
            };
            let (offset, len) = within_page(at, out.len() - done);
            let piece = &mut out[done..done + len];
            if let Err(error) = self.with_page(at, how, |pfn| self.platform().read_frame(pfn, offset, piece))
            {
                return partial(done, error);
            }
            done += len;
        }
        Ok(done)
    }

    /// Writes from `addr` on; returns how many bytes were written before the first that cannot be.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]: not a byte was written.
    ///
    /// # Locks
    ///
    /// As [`read_memory`](Self::read_memory).
    pub fn write_memory(&self, addr: u64, data: &[u8], manner: AccessMode) -> Result<usize, AccessError> {
        self.write_as(addr, data, How { write: true, manner, own: false })
    }

    fn write_as(&self, addr: u64, data: &[u8], how: How) -> Result<usize, AccessError> {
        let (mut done, mut rounds) = (0, Rounds::new());
        while done < data.len() {
            if let Err(killed) = rounds.again::<P>() {
                return partial(done, killed.into());
            }
            let Some(at) = addr.checked_add(done as u64) else {
                return partial(done, AccessError::BadAddress);
            };
            let (offset, len) = within_page(at, data.len() - done);
            let piece = &data[done..done + len];
            if let Err(error) = self.with_page(at, how, |pfn| self.platform().write_frame(pfn, offset, piece))
            {
                return partial(done, error);
            }
            done += len;
        }
        Ok(done)
    }

    /// process_vm_readv: reads the parts one after the other into `local`, until that is full or a page
    /// cannot be read.
    ///
    /// # Errors
    ///
    /// As [`read_memory`](Self::read_memory), or a length that no call can report.
    ///
    /// # Locks
    ///
    /// As [`read_memory`](Self::read_memory).
    pub fn read_vectored(&self, remote: &[IoVec], local: &mut [u8]) -> Result<usize, AccessError> {
        for_each_iovec(remote, local.len(), |addr, part| {
            self.read_memory(addr, &mut local[part], AccessMode::Plain)
        })
    }

    /// process_vm_writev: writes `local` to the parts one after the other, until it is used up or a page
    /// cannot be written.
    ///
    /// # Errors
    ///
    /// As [`read_vectored`](Self::read_vectored).
    ///
    /// # Locks
    ///
    /// As [`read_memory`](Self::read_memory).
    pub fn write_vectored(&self, remote: &[IoVec], local: &[u8]) -> Result<usize, AccessError> {
        for_each_iovec(remote, local.len(), |addr, part| {
            self.write_memory(addr, &local[part], AccessMode::Plain)
        })
    }

    /// Shows `sink` the bytes of `range` in chunks as large as `chunk`, until it breaks or a byte cannot be
    /// read, as readers of /proc/PID/cmdline want it. Returns how many bytes there were.
    ///
    /// # Errors
    ///
    /// As [`read_memory`](Self::read_memory).
    ///
    /// # Locks
    ///
    /// As [`read_memory`](Self::read_memory); none while `sink` runs.
    pub fn read_chunks(
        &self,
        range: Range<u64>,
        chunk: &mut [u8],
        mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<u64, AccessError> {
        let mut at = range.start;
        while at < range.end && !chunk.is_empty() {
            let want = chunk.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
            let got = match self.read_memory(at, &mut chunk[..want], AccessMode::Report) {
                Ok(got) => got,
                Err(error) if at == range.start => return Err(error),
                Err(_) => break,
            };
            at += got as u64;
            if sink(&chunk[..got]).is_break() || got < want {
                break;
            }
        }
        Ok(at - range.start)
    }
}

/// Calls `f` with each remote address and the part of the local bytes that belongs there, until one is done
/// only partly.
fn for_each_iovec(
    remote: &[IoVec],
    local: usize,
    mut f: impl FnMut(u64, Range<usize>) -> Result<usize, AccessError>,
) -> Result<usize, AccessError> {
    if remote.iter().any(|part| i64::try_from(part.len).is_err()) {
        return Err(AccessError::TooLong);
    }
    let mut done = 0;
    for part in remote {
        let len = usize::try_from(part.len).unwrap_or(usize::MAX).min(local - done);
        let got = match f(part.base, done..done + len) {
            Ok(got) => got,
            Err(error) => return partial(done, error),
        };
        done += got;
        if got < len || done == local {
            break;
        }
    }
    Ok(done)
}
