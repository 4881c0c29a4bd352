//! The buffer of a read or write: the memory of a program, in one range or in several consecutive ones.
//!
//! Files copy data only through [`UserBuffer`], which uses `platform/user.rs`. A copy may fault and sleep, so
//! the caller holds no spin lock. A copy also passes checkpoints (`sched/checkpoint.rs`), so a file that copies
//! bytes in a loop needs no checkpoint of its own. If a part of a range cannot be
//! accessed, the bytes before that part are copied and the call succeeds, as on Linux. The program `files.c`
//! of the tests checks such copies (`transfer_ends_at_unmapped_memory`).

use crate::platform::user;
use crate::sched::checkpoint;
use freehold::error::Errno;

/// A range of a program's memory, in the layout of `struct iovec`.
pub type Part = [u64; 2];

/// Ranges of a program's memory, and the position of a call in them. If the kernel itself reads or writes a
/// file, the buffer is kernel memory instead.
pub struct UserBuffer<'a> {
    parts: &'a [Part],
    /// Position within the first part, or within the kernel memory.
    offset: u64,
    own: Own<'a>,
    /// Number of bytes that may still be copied.
    room: usize,
}

/// Kernel memory that replaces a program's.
enum Own<'a> {
    /// No kernel memory: the buffer is the program's.
    None,
    /// A read of a file fills this memory.
    To(&'a mut [u8]),
    /// A write to a file takes its data from this memory.
    From(&'a [u8]),
}

impl<'a> UserBuffer<'a> {
    /// Returns a buffer for these ranges. The caller has checked that the sum of their lengths does not
    /// overflow.
    pub fn new(parts: &'a [Part]) -> Self {
        UserBuffer { parts, offset: 0, own: Own::None, room: usize::MAX }
    }

    /// Returns a buffer of kernel memory into which a file is read.
    pub fn to_kernel(memory: &'a mut [u8]) -> Self {
        UserBuffer { own: Own::To(memory), ..UserBuffer::new(&[]) }
    }

    /// Returns a buffer of kernel memory from which a file is written.
    pub fn from_kernel(memory: &'a [u8]) -> Self {
        UserBuffer { own: Own::From(memory), ..UserBuffer::new(&[]) }
    }

    /// Returns the number of remaining bytes.
    pub fn len(&self) -> usize {
        let all = match &self.own {
            Own::None => self.parts.iter().map(|part| part[1]).sum(),
            Own::To(memory) => memory.len() as u64,
            Own::From(memory) => memory.len() as u64,
        };
        ((all - self.offset) as usize).min(self.room)
    }

    /// Limits the number of remaining bytes to `room`.
    pub fn shorten(&mut self, room: usize) {
        self.room = self.room.min(room);
    }

    /// Copies as much of `data` to the program as fits. Returns the number of copied bytes.
    ///
    /// # Errors
    ///
    /// EFAULT if nothing could be copied; EINTR if the calling thread has to end.
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

    /// Copies all of `data` to the program. The buffer has room for it.
    ///
    /// # Errors
    ///
    /// EFAULT if not all of it could be copied.
    pub fn put_whole(&mut self, data: &[u8]) -> Result<usize, Errno> {
        match self.put(data)? {
            bytes if bytes == data.len() => Ok(bytes),
            _ => Err(Errno::EFAULT),
        }
    }

    /// Copies data from `next` to the program, part by part, until `next` returns 0 or the buffer is full.
    /// Returns the number of copied bytes. `next` gets the number of bytes copied so far and a buffer to
    /// fill, which keeps its contents between calls.
    ///
    /// # Errors
    ///
    /// Errors of `next`, and EFAULT. If some bytes were copied, the function succeeds instead.
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

    /// Copies from the program until `out` is full or the buffer is empty. Returns the number of copied
    /// bytes.
    ///
    /// # Errors
    ///
    /// EFAULT if nothing could be copied; EINTR if the calling thread has to end.
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

    /// Advances the position in kernel memory, which is a single range. Returns `bytes`.
    fn advance(&mut self, bytes: usize) -> usize {
        self.offset += bytes as u64;
        self.room -= bytes;
        bytes
    }

    /// Calls `f` for each range of the next `most` bytes, with three numbers: the address, the number of
    /// bytes that were copied before, and the length. `f` returns how many bytes it copied. Returns the sum.
    fn each(&mut self, most: usize, mut f: impl FnMut(u64, usize, usize) -> usize) -> Result<usize, Errno> {
        let mut done = 0;
        while let Some(([base, len], rest)) = self.parts.split_first() {
            let bytes = (len - self.offset).min((most - done) as u64);
            match checkpoint() {
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
                Ok(()) => {}
            }
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
