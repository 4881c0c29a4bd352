//! A program's memory that a call reads into or writes from: one range, or several in turn.

use crate::arch::user;
use freehold::error::Errno;

/// A range of a program's memory, as `struct iovec` has it.
pub type Part = [u64; 2];

/// Ranges of a program's memory, and how far a call has come.
pub struct UserBuffer<'a> {
    parts: &'a [Part],
    /// Within the first part.
    offset: u64,
}

impl<'a> UserBuffer<'a> {
    pub fn new(parts: &'a [Part]) -> Self {
        UserBuffer { parts, offset: 0 }
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        let all: u64 = self.parts.iter().map(|part| part[1]).sum();
        (all - self.offset) as usize
    }

    /// Copies to the program, as much as fits; returns how much.
    ///
    /// # Errors
    ///
    /// EFAULT, where nothing could be copied.
    pub fn put(&mut self, data: &[u8]) -> Result<usize, Errno> {
        self.each(data.len(), |at, done, bytes| user::copy_out(at, &data[done..done + bytes]))
    }

    /// Copies from the program, as much as there is; returns how much.
    ///
    /// # Errors
    ///
    /// EFAULT, where nothing could be copied.
    pub fn get(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
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
