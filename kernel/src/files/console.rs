//! The console, behind descriptors 0 to 2 of the first program.

use super::buffer::UserBuffer;
use super::{CHARACTER, File, Stat};
use crate::arch::serial;
use freehold::error::Errno;

pub struct Console;

/// Bytes that are written in one go.
const PART: usize = 512;

impl File for Console {
    fn read(&self, _: u64, _: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        // Input is not there yet: the end of the file.
        Ok(0)
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mut part = [0; PART];
        let mut done = 0;
        while from.len() > 0 {
            match from.get(&mut part) {
                Ok(0) => break,
                Ok(bytes) => {
                    serial::write(&part[..bytes]);
                    done += bytes;
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 1, mode: CHARACTER | 0o620, links: 1, size: 0, device: 5 << 8 | 1 }
    }
}
