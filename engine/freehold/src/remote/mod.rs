//! Access to the memory of an address space on behalf of another process: process_vm_readv and
//! process_vm_writev, ptrace, /proc/PID/mem, /proc/PID/cmdline; and pinned pages, for callers that need the
//! memory itself.
//!
//! | file | contents |
//! | --- | --- |
//! | `page.rs` | lookup of one page, on which every access is based |
//! | `process_vm.rs` | copies between two address spaces |
//! | `pin.rs` | pins of pages for devices and for the kernel |
//! | `pins.rs` | the pinned pages |
//! | `device.rs` | translations for devices that follow changes as listeners |
//! | `arguments.rs` | /proc/PID/cmdline and environ |
//!
//! Each page is processed separately. The page is looked up, or faulted in, under the VMA's lock, and gets a
//! reference under its page table's lock. The bytes are copied while the VMA's lock is still held, so that
//! fork cannot share the page during a write. No lock is held between two pages, so that a waiting task waits
//! for at most one page. A new loop over pages must call `Rounds::again`, so that a fatal signal ends it.
//! This file has the loops that read and write through a buffer of the kernel; a new [`AccessMode`] needs its
//! rule in `PageAccess::allowed` (`page.rs`). The tests are `access`, `pins` and `secret`
//! (`engine/freehold/tests`), and `pins` and `forced` (`shuttle_engine`).

mod arguments;
mod device;
mod page;
mod pin;
mod pins;
mod process_vm;

pub use pin::PinFlags;
pub use pins::Pins;

use crate::{
    PAGE_SIZE, Pfn, error::AccessError, fault::FaultError, platform::Platform, space::AddressSpace,
    wait::Rounds,
};
use core::ops::{ControlFlow, Range};
use freehold_pagetable::Format;

/// Rights of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// The access is limited by the VMA's rights. process_vm_readv and process_vm_writev use this mode.
    Plain,
    /// The access also has all rights that the VMA could be given (Linux's FOLL_FORCE). A debugger can read
    /// memory without rights, and can write to private copies of read-only memory. The access grows a stack.
    Forced,
    /// The access is limited by the VMA's rights and reaches only anonymous memory, so that a reader of
    /// another process's arguments never waits for a file (Linux's FOLL_ANON). The access grows a stack.
    Report,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoVec {
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Makes the contents of a frame that was written to visible to instruction fetches, because an entry may
/// permit fetches from the frame.
fn publish_code<P: Platform>(platform: &P, pfn: Pfn) {
    if !P::Format::COHERENT_FETCH {
        platform.publish_code(pfn, 1);
    }
}

/// Kind of access to pages.
#[derive(Clone, Copy)]
struct PageAccess {
    /// True for a write.
    write: bool,
    /// The rights of the access.
    manner: AccessMode,
    /// True if the calling thread accesses the memory of its own process. Only such an access reaches secret
    /// memory, and only such an access obeys the protection keys of the calling thread.
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

/// Returns the offset of `addr` in its page, and the number of bytes from there that lie in this page, at
/// most `left`.
fn within_page(addr: u64, left: usize) -> (usize, usize) {
    let offset = (addr % PAGE_SIZE) as usize;
    (offset, left.min(PAGE_SIZE as usize - offset))
}

/// Returns `done` if any bytes were processed, and `error` otherwise.
fn partial(done: usize, error: AccessError) -> Result<usize, AccessError> {
    if done > 0 { Ok(done) } else { Err(error) }
}

impl<P: Platform> AddressSpace<P> {
    /// Reads from `addr` on. Returns the number of bytes before the first byte that cannot be read.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]. Fails only if no byte was read.
    ///
    /// # Locks
    ///
    /// For each page the locks of a fault. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::AccessMode, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at + PAGE_SIZE - 2, b"across", AccessMode::Plain).unwrap();
    /// let mut found = [0; 6];
    /// assert_eq!(space.read_memory(at + PAGE_SIZE - 2, &mut found, AccessMode::Plain), Ok(6));
    /// assert_eq!(&found, b"across");
    /// ```
    pub fn read_memory(&self, addr: u64, out: &mut [u8], manner: AccessMode) -> Result<usize, AccessError> {
        self.read_as(addr, out, PageAccess { write: false, manner, own: false })
    }

    /// Implements [`read_memory`](Self::read_memory) for any kind of access.
    fn read_as(&self, addr: u64, out: &mut [u8], how: PageAccess) -> Result<usize, AccessError> {
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

    /// Writes from `addr` on. Returns the number of bytes before the first byte that cannot be written.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]. Fails only if no byte was written.
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
    /// space.mprotect(at + PAGE_SIZE, PAGE_SIZE, Prot::READ).unwrap();
    /// let data = [7; 2 * PAGE_SIZE as usize];
    /// assert_eq!(space.write_memory(at, &data, AccessMode::Plain), Ok(PAGE_SIZE as usize));
    /// assert_eq!(space.write_memory(at, &data, AccessMode::Forced), Ok(data.len()));
    /// ```
    pub fn write_memory(&self, addr: u64, data: &[u8], manner: AccessMode) -> Result<usize, AccessError> {
        self.write_as(addr, data, PageAccess { write: true, manner, own: false })
    }

    /// Implements [`write_memory`](Self::write_memory) for any kind of access.
    fn write_as(&self, addr: u64, data: &[u8], how: PageAccess) -> Result<usize, AccessError> {
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
            let write = |pfn| {
                self.platform().write_frame(pfn, offset, piece);
                publish_code(self.platform(), pfn);
            };
            if let Err(error) = self.with_page(at, how, write) {
                return partial(done, error);
            }
            done += len;
        }
        Ok(done)
    }

    /// Implements process_vm_readv into a kernel buffer. Reads the ranges in order into `local`, until
    /// `local` is full or a page cannot be read.
    ///
    /// # Errors
    ///
    /// The errors of [`read_memory`](Self::read_memory). Also fails if a range is longer than a call can
    /// report.
    ///
    /// # Locks
    ///
    /// The locks of [`read_memory`](Self::read_memory).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::{AccessMode, IoVec}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.write_memory(at, b"one and two", AccessMode::Plain).unwrap();
    /// let remote = [IoVec { base: at + 8, len: 3 }, IoVec { base: at, len: 3 }];
    /// let mut found = [0; 6];
    /// assert_eq!(space.read_vectored(&remote, &mut found), Ok(6));
    /// assert_eq!(&found, b"twoone");
    /// ```
    pub fn read_vectored(&self, remote: &[IoVec], local: &mut [u8]) -> Result<usize, AccessError> {
        for_each_iovec(remote, local.len(), |addr, part| {
            self.read_memory(addr, &mut local[part], AccessMode::Plain)
        })
    }

    /// Implements process_vm_writev from a kernel buffer. Writes `local` to the ranges in order, until all of
    /// `local` is written or a page cannot be written.
    ///
    /// # Errors
    ///
    /// The errors of [`read_vectored`](Self::read_vectored).
    ///
    /// # Locks
    ///
    /// The locks of [`read_memory`](Self::read_memory).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::{AccessMode, IoVec}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let remote = [IoVec { base: at, len: 2 }, IoVec { base: at + PAGE_SIZE, len: 2 }];
    /// assert_eq!(space.write_vectored(&remote, b"abcd"), Ok(4));
    /// let mut found = [0; 2];
    /// space.read_memory(at + PAGE_SIZE, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"cd");
    /// ```
    pub fn write_vectored(&self, remote: &[IoVec], local: &[u8]) -> Result<usize, AccessError> {
        for_each_iovec(remote, local.len(), |addr, part| {
            self.write_memory(addr, &local[part], AccessMode::Plain)
        })
    }

    /// Passes the bytes of `range` to `sink` in chunks of the size of `chunk`, until `sink` breaks or a byte
    /// cannot be read. Intended for readers of /proc/PID/cmdline. Returns the number of bytes that were read.
    ///
    /// # Errors
    ///
    /// The errors of [`read_memory`](Self::read_memory).
    ///
    /// # Locks
    ///
    /// The locks of [`read_memory`](Self::read_memory). No lock is held while `sink` runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let (mut chunk, mut lens) = ([0; 4], Vec::new());
    /// let read = space.read_chunks(at..at + 9, &mut chunk, |bytes| {
    ///     lens.push(bytes.len());
    ///     std::ops::ControlFlow::Continue(())
    /// });
    /// assert_eq!((read, lens), (Ok(9), vec![4, 4, 1]));
    /// ```
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

/// Calls `f` for each remote range in order, with the address of the range and the positions of its bytes in
/// the local buffer. Ends when the local buffer is exhausted, or when `f` fails or processes fewer bytes than
/// it got. Returns the number of processed bytes.
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
