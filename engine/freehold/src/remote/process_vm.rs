//! process_vm_readv and process_vm_writev between two address spaces.
//!
//! The other side's pages are pinned, some at a time, and copied from frame to frame while the own side's
//! page is held by its VMA's lock: the bytes are moved once, and no two VMAs are locked at a time, of one
//! space or two. Frames that are a file's storage are the exception: while one is pinned nobody may wait for
//! that file, and the own side may be a page of it. Such pages go through a small buffer.

use super::{AccessMode, How, IoVec, partial, pin::PinFlags, within_page};
use crate::{
    PAGE_SIZE,
    counted::Counted,
    error::{AccessError, PinError},
    platform::Platform,
    space::AddressSpace,
    wait::Rounds,
};

/// Pages pinned at a time.
const BATCH: u64 = 16;
/// Bytes of the buffer.
const BUFFER: usize = 512;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    FromOther,
    ToOther,
}

impl<P: Platform> AddressSpace<P> {
    /// process_vm_readv: copies what the parts `remote` of `other` hold, one after the other, to the parts
    /// `local` of this space, until one side is used up or a page cannot be had; returns how many bytes.
    /// Both may be the same space.
    ///
    /// # Errors
    ///
    /// See [`AccessError`]: not a byte was copied.
    ///
    /// # Locks
    ///
    /// Those of faults, of one space at a time; none on entry.
    pub fn process_vm_readv(
        &self,
        local: &[IoVec],
        other: &Self,
        remote: &[IoVec],
    ) -> Result<usize, AccessError> {
        self.transfer(local, other, remote, Way::FromOther)
    }

    /// process_vm_writev: as [`process_vm_readv`](Self::process_vm_readv), the other way.
    ///
    /// # Errors
    ///
    /// As `process_vm_readv`.
    ///
    /// # Locks
    ///
    /// As `process_vm_readv`.
    pub fn process_vm_writev(
        &self,
        local: &[IoVec],
        other: &Self,
        remote: &[IoVec],
    ) -> Result<usize, AccessError> {
        self.transfer(local, other, remote, Way::ToOther)
    }

    fn transfer(
        &self,
        local: &[IoVec],
        other: &Self,
        remote: &[IoVec],
        way: Way,
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

    /// Copies between `here` and `there`, whose pages are pinned; an error if that is not one byte.
    fn pinned(&self, here: u64, other: &Self, there: u64, len: u64, way: Way) -> Result<u64, PinError> {
        let first = there % PAGE_SIZE;
        let mut flags = PinFlags::empty();
        flags.set(PinFlags::WRITE, way == Way::ToOther);
        let pins = other.pin_unless_storage(there, (first + len).div_ceil(PAGE_SIZE) as usize, flags)?;
        let end = (first + len).min(pins.len() as u64 * PAGE_SIZE);
        let how = How { write: way == Way::FromOther, manner: AccessMode::Plain, own: true };
        let (mut at, mut failed) = (first, None);
        while at < end && failed.is_none() {
            let (offset, part) = within_page(at, (end - at) as usize);
            let frame = pins.frames()[(at / PAGE_SIZE) as usize];
            let Some(own) = here.checked_add(at - first) else {
                failed = Some(AccessError::BadAddress);
                break;
            };
            let (own_offset, part) = within_page(own, part);
            let copied = self.with_page(own, how, |pfn| match way {
                Way::FromOther => self.platform().copy_part((pfn, own_offset), (frame, offset), part),
                Way::ToOther => self.platform().copy_part((frame, offset), (pfn, own_offset), part),
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

    /// The same through a buffer.
    fn buffered(&self, here: u64, other: &Self, there: u64, len: u64, way: Way) -> Result<u64, AccessError> {
        let mut buffer = [0; BUFFER];
        let mut done = 0;
        while done < len {
            let part = &mut buffer[..(len - done).min(BUFFER as u64) as usize];
            let (from, source, to, target) = match way {
                Way::FromOther => (other, there, self, here),
                Way::ToOther => (self, here, other, there),
            };
            let read = How { write: false, manner: AccessMode::Plain, own: way == Way::ToOther };
            let write = How { write: true, manner: AccessMode::Plain, own: way == Way::FromOther };
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

/// What is left of a list of parts.
struct Parts<'p> {
    parts: &'p [IoVec],
    /// Bytes of the first that are done.
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

    /// The rest of the first part that has one.
    fn first(&mut self) -> Option<IoVec> {
        while let [first, rest @ ..] = self.parts {
            if self.done < first.len {
                return Some(IoVec { base: first.base.wrapping_add(self.done), len: first.len - self.done });
            }
            (self.parts, self.done) = (rest, 0);
        }
        None
    }

    fn advance(&mut self, by: u64) {
        self.done += by;
    }
}
