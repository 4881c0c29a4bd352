//! A program's memory that a call reads into or writes from: one range, or several in turn.

use crate::arch::preempt;
use crate::platform::user;
use freehold::error::Errno;

/// A range of a program's memory, as `struct iovec` has it.
pub type Part = [u64; 2];

/// Ranges of a program's memory, and how far a call has come. Where the kernel itself reads or writes a file,
/// memory of its own.
pub struct UserBuffer<'a> {
    parts: &'a [Part],
    /// Within the first part, or the kernel's memory.
    offset: u64,
    own: Own<'a>,
    /// Bytes that may still be copied.
    room: usize,
}

/// Memory of the kernel's, in place of a program's.
enum Own<'a> {
    None,
    To(&'a mut [u8]),
    From(&'a [u8]),
}

impl<'a> UserBuffer<'a> {
    pub fn new(parts: &'a [Part]) -> Self {
        UserBuffer { parts, offset: 0, own: Own::None, room: usize::MAX }
    }

    /// A file is read into this.
    pub fn to_kernel(memory: &'a mut [u8]) -> Self {
        UserBuffer { own: Own::To(memory), ..UserBuffer::new(&[]) }
    }

    /// A file is written from this.
    pub fn from_kernel(memory: &'a [u8]) -> Self {
        UserBuffer { own: Own::From(memory), ..UserBuffer::new(&[]) }
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        let all = match &self.own {
            Own::None => self.parts.iter().map(|part| part[1]).sum(),
            Own::To(memory) => memory.len() as u64,
            Own::From(memory) => memory.len() as u64,
        };
        ((all - self.offset) as usize).min(self.room)
    }

    /// At most so many bytes are left from now on.
    pub fn shorten(&mut self, room: usize) {
        self.room = self.room.min(room);
    }

    /// Copies to the program, as much as fits; returns how much.
    ///
    /// # Errors
    ///
    /// EFAULT, where nothing could be copied.
    pub fn put(&mut self, data: &[u8]) -> Result<usize, Errno> {
        let data = &data[..data.len().min(self.room)];
        if let Own::To(memory) = &mut self.own {
            let to = &mut memory[self.offset as usize..];
            let bytes = to.len().min(data.len());
            to[..bytes].copy_from_slice(&data[..bytes]);
            return Ok(self.advance(bytes));
        }
        self.each(data.len(), |at, done, bytes| user::copy_out_some(at, &data[done..done + bytes]))
    }

    /// Copies all of it to the program, for which there is room.
    ///
    /// # Errors
    ///
    /// EFAULT: not all of it could be copied.
    pub fn put_whole(&mut self, data: &[u8]) -> Result<usize, Errno> {
        match self.put(data)? {
            bytes if bytes == data.len() => Ok(bytes),
            _ => Err(Errno::EFAULT),
        }
    }

    /// Copies to the program what `next` makes, part by part, until it makes no more or memory ends; returns
    /// how much. `next` is given how much came before, and room that it may fill, which is as it left it.
    ///
    /// # Errors
    ///
    /// Those of `next`, and EFAULT, where nothing could be copied.
    pub fn put_parts(
        &mut self,
        mut next: impl FnMut(usize, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let (mut part, mut done) = ([0; 2048], 0);
        while self.len() > 0 {
            let room = self.len().min(part.len());
            match next(done, &mut part[..room]).and_then(|bytes| self.put(&part[..bytes])) {
                Err(error) if done == 0 => return Err(error),
                Ok(bytes) if bytes > 0 => done += bytes,
                _ => break,
            }
        }
        Ok(done)
    }

    /// Copies from the program, as much as there is; returns how much.
    ///
    /// # Errors
    ///
    /// EFAULT, where nothing could be copied.
    pub fn get(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
        let most = out.len().min(self.room);
        let out = &mut out[..most];
        if let Own::From(memory) = self.own {
            let left = &memory[self.offset as usize..];
            let bytes = left.len().min(out.len());
            out[..bytes].copy_from_slice(&left[..bytes]);
            return Ok(self.advance(bytes));
        }
        self.each(out.len(), |at, done, bytes| user::copy_in_some(at, &mut out[done..done + bytes]))
    }

    /// Of the kernel's memory, which is one part.
    fn advance(&mut self, bytes: usize) -> usize {
        self.offset += bytes as u64;
        self.room -= bytes;
        bytes
    }

    fn each(&mut self, most: usize, mut f: impl FnMut(u64, usize, usize) -> usize) -> Result<usize, Errno> {
        let mut done = 0;
        while let Some(([base, len], rest)) = self.parts.split_first() {
            let bytes = (len - self.offset).min((most - done) as u64);
            preempt::preempt_point();
            let copied = f(base.wrapping_add(self.offset), done, bytes as usize);
            if (copied as u64) < bytes && done + copied == 0 {
                return Err(Errno::EFAULT);
            }
            done += copied;
            self.offset += copied as u64;
            if self.offset < *len {
                break;
            }
            (self.parts, self.offset) = (rest, 0);
        }
        self.room -= done;
        Ok(done)
    }
}
