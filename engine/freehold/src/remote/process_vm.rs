//! process_vm_readv and process_vm_writev between two address spaces.
//!
//! Pages of the other space are pinned in small batches (`pin.rs`). Bytes are copied directly from frame to
//! frame, while the lock of the VMA in this space keeps the page of this space in place (`page.rs`). No two
//! VMAs are locked at the same time, even if both spaces are the same.
//!
//! Frames that are a file's storage are an exception. A task must not wait for a file while it holds a pin of
//! the file's storage, and the page in this space may belong to the same file. Such pages are copied through
//! a small buffer.
//!
//! `access::between` (`engine/freehold/tests`) tests this file. The length of a transfer is the caller's
//! choice, so every loop must end after a fatal signal
//! (`every_call::hostile::transfers_of_any_length_end_with_a_fatal_signal`).

use super::{AccessMode, IoVec, PageAccess, partial, pin::PinFlags, publish_code, within_page};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::{AccessError, PinError},
    platform::Platform,
    space::AddressSpace,
    wait::Rounds,
};

/// Number of pages that are pinned at a time.
const BATCH: u64 = 16;
/// Size of the buffer in bytes.
const BUFFER: usize = 512;

/// Direction of the copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the other space to this one: process_vm_readv.
    FromOther,
    /// From this space to the other one: process_vm_writev.
    ToOther,
}

impl<P: Platform> AddressSpace<P> {
    /// Implements process_vm_readv. Copies the ranges `remote` of `other`, in order, to the ranges `local` of
    /// this space, until one side is exhausted or a page is not available. Returns the number of bytes. Both
    /// spaces may be the same.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]. Fails only if no byte was copied.
    ///
    /// # Locks
    ///
    /// The locks of faults, in one space at a time. The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, remote::{AccessMode, IoVec}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let child = space.fork().unwrap();
    /// child.write_memory(at, b"child", AccessMode::Plain).unwrap();
    /// let (local, remote) = (IoVec { base: at + PAGE_SIZE, len: 5 }, IoVec { base: at, len: 9 });
    /// assert_eq!(space.process_vm_readv(&[local], &child, &[remote]), Ok(5));
    /// let mut found = [0; 5];
    /// space.read_memory(at + PAGE_SIZE, &mut found, AccessMode::Plain).unwrap();
    /// assert_eq!(&found, b"child");
    /// ```
    pub fn process_vm_readv(
        &self,
        local: &[IoVec],
        other: &Self,
        remote: &[IoVec],
    ) -> Result<usize, AccessError> {
        self.transfer(local, other, remote, Direction::FromOther)
    }

    /// Implements process_vm_writev: like [`process_vm_readv`](Self::process_vm_readv) in the opposite
    /// direction.
    ///
    /// # Errors
    ///
    /// The errors of [`process_vm_readv`](Self::process_vm_readv).
    ///
    /// # Locks
    ///
    /// The locks of [`process_vm_readv`](Self::process_vm_readv).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::AccessError, remote::{AccessMode, IoVec}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let child = space.fork().unwrap();
    /// let (local, remote) = ([IoVec { base: at, len: 64 }], [IoVec { base: at, len: 64 }]);
    /// assert_eq!(space.process_vm_writev(&local, &child, &remote), Ok(64));
    /// child.mprotect(at, PAGE_SIZE, Prot::READ).unwrap();
    /// let refused = space.process_vm_writev(&local, &child, &remote);
    /// assert_eq!(refused, Err(AccessError::BadAddress));
    /// ```
    pub fn process_vm_writev(
        &self,
        local: &[IoVec],
        other: &Self,
        remote: &[IoVec],
    ) -> Result<usize, AccessError> {
        self.transfer(local, other, remote, Direction::ToOther)
    }

    /// Copies between the ranges of both spaces until one side is exhausted or a page is not available.
    fn transfer(
        &self,
        local: &[IoVec],
        other: &Self,
        remote: &[IoVec],
        way: Direction,
    ) -> Result<usize, AccessError> {
        if !Counted::ptr_eq(&self.engine, &other.engine) {
            return Err(AccessError::OtherEngine);
        }
        let (mut own, mut theirs) = (Parts::new(local)?, Parts::new(remote)?);
        let (mut done, mut rounds) = (0, Rounds::new());
        while let (Some(here), Some(there)) = (own.first(), theirs.first()) {
            if let Err(killed) = rounds.again::<P>() {
                return partial(done, killed.into());
            }
            let most = BATCH * PAGE_SIZE - there.base % PAGE_SIZE;
            let len = here.len.min(there.len).min(most);
            let moved = match self.pinned(here.base, other, there.base, len, way) {
                Ok(moved) => moved,
                Err(PinError::Direct) => match self.buffered(here.base, other, there.base, len, way) {
                    Ok(moved) => moved,
                    Err(error) => return partial(done, error),
                },
                Err(error) => return partial(done, error.into()),
            };
            done += moved as usize;
            if moved < len {
                break;
            }
            own.advance(len);
            theirs.advance(len);
        }
        Ok(done)
    }

    /// Copies between `here` and `there`, and pins the pages of `there`. Fails only if no byte was copied.
    fn pinned(&self, here: u64, other: &Self, there: u64, len: u64, way: Direction) -> Result<u64, PinError> {
        let first = there % PAGE_SIZE;
        let mut flags = PinFlags::empty();
        flags.set(PinFlags::WRITE, way == Direction::ToOther);
        let pins = other.pin_unless_storage(there, (first + len).div_ceil(PAGE_SIZE) as usize, flags)?;
        let end = (first + len).min(pins.len() as u64 * PAGE_SIZE);
        let how = PageAccess { write: way == Direction::FromOther, manner: AccessMode::Plain, own: true };
        let (mut at, mut failed) = (first, None);
        while at < end && failed.is_none() {
            let (offset, part) = within_page(at, (end - at) as usize);
            let frame = pins.frames()[(at / PAGE_SIZE) as usize];
            let Some(own) = here.checked_add(at - first) else {
                failed = Some(AccessError::BadAddress);
                break;
            };
            let (own_offset, part) = within_page(own, part);
            let copied = self.with_page(own, how, |pfn| {
                let (to, from) = match way {
                    Direction::FromOther => ((pfn, own_offset), (frame, offset)),
                    Direction::ToOther => ((frame, offset), (pfn, own_offset)),
                };
                self.platform().copy_part(to, from, part);
                publish_code(self.platform(), to.0);
            });
            match copied {
                Ok(()) => at += part as u64,
                Err(error) => failed = Some(error),
            }
        }
        pins.unpin_dirty();
        match failed {
            Some(error) if at == first => Err(error.into()),
            _ => Ok(at - first),
        }
    }

    /// Copies between `here` and `there` through a buffer. Fails only if no byte was copied.
    fn buffered(
        &self,
        here: u64,
        other: &Self,
        there: u64,
        len: u64,
        way: Direction,
    ) -> Result<u64, AccessError> {
        let mut buffer = [0; BUFFER];
        let mut done = 0;
        while done < len {
            let part = &mut buffer[..(len - done).min(BUFFER as u64) as usize];
            let (from, source, to, target) = match way {
                Direction::FromOther => (other, there, self, here),
                Direction::ToOther => (self, here, other, there),
            };
            let read = PageAccess { write: false, manner: AccessMode::Plain, own: way == Direction::ToOther };
            let write =
                PageAccess { write: true, manner: AccessMode::Plain, own: way == Direction::FromOther };
            let address = |base: u64| base.checked_add(done).ok_or(AccessError::BadAddress);
            let moved = address(source)
                .and_then(|at| from.read_as(at, part, read))
                .and_then(|got| to.write_as(address(target)?, &part[..got], write));
            match moved {
                Ok(moved) if moved == part.len() => done += moved as u64,
                Ok(moved) => return Ok(done + moved as u64),
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(done)
    }
}

impl From<PinError> for AccessError {
    fn from(error: PinError) -> Self {
        match error {
            PinError::BadAddress | PinError::Tracked | PinError::Direct => AccessError::BadAddress,
            PinError::TooMany | PinError::OutOfMemory => AccessError::OutOfMemory,
            PinError::Killed => AccessError::Killed,
        }
    }
}

/// The remaining ranges of a list.
struct Parts<'p> {
    parts: &'p [IoVec],
    /// Number of bytes of the first range that are already copied.
    done: u64,
}

impl<'p> Parts<'p> {
    fn new(parts: &'p [IoVec]) -> Result<Self, AccessError> {
        let sum = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.len));
        match sum.map(i64::try_from) {
            Some(Ok(_)) => Ok(Parts { parts, done: 0 }),
            _ => Err(AccessError::TooLong),
        }
    }

    /// Returns the rest of the first range that is not empty.
    fn first(&mut self) -> Option<IoVec> {
        while let [first, rest @ ..] = self.parts {
            if self.done < first.len {
                return Some(IoVec { base: first.base.wrapping_add(self.done), len: first.len - self.done });
            }
            (self.parts, self.done) = (rest, 0);
        }
        None
    }

    /// Skips `by` bytes of the first range.
    fn advance(&mut self, by: u64) {
        self.done += by;
    }
}
