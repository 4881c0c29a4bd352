//! /proc/PID/clear_refs: a write clears the record of how pages were used, or the peaks of memory use. The
//! engine clears the marks of pages (`clear_refs`, `clear_soft_dirty`); this file parses the number that a program
//! writes. The programs `usage.c` and `pagemap.c` of the tests check this file.

use crate::errno;
use crate::files::{File, REGULAR, Stat, buffer::UserBuffer, tree::Node};
use crate::proc::maps::space;
use crate::proc::subject::Subject;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use freehold::report::clear_refs::ClearRefs;

/// Makes the file for a process.
pub fn clear_refs(of: Subject) -> Arc<Node> {
    Node::made(0o200, Box::new(move || Ok(Arc::new(Switch(of.clone())) as Arc<dyn File>)))
}

/// The file clear_refs of a process.
struct Switch(Subject);

/// Maximum number of bytes of a write, as on Linux.
const MAX_WRITE: usize = 12;

/// Parses a decimal number with white space around it, like Linux's `kstrtoint`.
///
/// # Errors
///
/// EINVAL if the text is not a number, ERANGE if the number is too large.
fn number(text: &[u8]) -> Result<i32, Errno> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let number: i64 = text.trim_ascii().parse().map_err(|_| Errno::EINVAL)?;
    i32::try_from(number).map_err(|_| errno::ERANGE)
}

impl File for Switch {
    fn read(&self, _: u64, _: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mut text = [0; MAX_WRITE];
        let taken = from.get(&mut text)?;
        let clear = |which| {
            if let Some(space) = space(&self.0.process) {
                space.clear_refs(which);
            }
        };
        let number = number(&text[..taken])?;
        self.0.exists()?;
        match number {
            1 => clear(ClearRefs::All),
            2 => clear(ClearRefs::Anonymous),
            3 => clear(ClearRefs::Mapped),
            4 => space(&self.0.process)
                .map_or(Ok(()), |space| space.clear_soft_dirty())
                .map_err(|error| error.errno())?,
            5 => self.0.process.usage.peak_resident.store(0, Relaxed),
            _ => return Err(Errno::EINVAL),
        }
        Ok(taken)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 5, mode: REGULAR | 0o200, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }
}
