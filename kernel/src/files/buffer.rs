//! A program's memory that a call reads into or writes from: one range, or several in turn.

use crate::arch::{preempt, user};
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
}

/// Memory of the kernel's, in place of a program's.
enum Own<'a> {
    None,
    To(&'a mut [u8]),
    From(&'a [u8]),
}

impl<'a> UserBuffer<'a> {
    pub fn new(parts: &'a [Part]) -> Self {
        UserBuffer { parts, offset: 0, own: Own::None }
    }

    /// A file is read into this.
    pub fn to_kernel(memory: &'a mut [u8]) -> Self {
        UserBuffer { parts: &[], offset: 0, own: Own::To(memory) }
    }

    /// A file is written from this.
    pub fn from_kernel(memory: &'a [u8]) -> Self {
        UserBuffer { parts: &[], offset: 0, own: Own::From(memory) }
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        match &self.own {
            Own::None => {}
            Own::To(memory) => return memory.len() - self.offset as usize,
            Own::From(memory) => return memory.len() - self.offset as usize,
        }
        let all: u64 = self.parts.iter().map(|part| part[1]).sum();
        (all - self.offset) as usize
    }

    /// Copies to the program, as much as fits; returns how much.
    ///
    /// # Errors
    ///
    /// EFAULT, where nothing could be copied.
    pub fn put(&mut self, data: &[u8]) -> Result<usize, Errno> {
        if let Own::To(memory) = &mut self.own {
            let room = &mut memory[self.offset as usize..];
            let bytes = room.len().min(data.len());
            room[..bytes].copy_from_slice(&data[..bytes]);
            self.offset += bytes as u64;
            return Ok(bytes);
        }
        self.each(data.len(), |at, done, bytes| user::copy_out(at, &data[done..done + bytes]))
    }

    /// Copies from the program, as much as there is; returns how much.
    ///
    /// # Errors
    ///
    /// EFAULT, where nothing could be copied.
    pub fn get(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
        if let Own::From(memory) = self.own {
            let left = &memory[self.offset as usize..];
            let bytes = left.len().min(out.len());
            out[..bytes].copy_from_slice(&left[..bytes]);
            self.offset += bytes as u64;
            return Ok(bytes);
        }
        self.each(out.len(), |at, done, bytes| user::copy_in(at, &mut out[done..done + bytes]))
    }

    fn each(
        &mut self,
        most: usize,
        mut f: impl FnMut(u64, usize, usize) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while let Some(([base, len], rest)) = self.parts.split_first() {
            let bytes = (len - self.offset).min((most - done) as u64);
            if bytes > 0 {
                preempt::look();
                match f(base.wrapping_add(self.offset), done, bytes as usize) {
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                    Ok(()) => {}
                }
            }
            done += bytes as usize;
            self.offset += bytes;
            if self.offset < *len {
                break;
            }
            (self.parts, self.offset) = (rest, 0);
        }
        Ok(done)
    }
}
