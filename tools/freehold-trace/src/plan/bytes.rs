//! The bytes of an address space that recorded calls determine. A process_vm_writev determines the bytes that
//! it stores, until their addresses are remapped or discarded.
//!
//! The bytes are in `Space::written`. `transfers.rs` notes the bytes that a call moves, and `syscall.rs`
//! forgets bytes after each call that may have changed them. The replay compares the bytes of a
//! process_vm_readv only at these addresses. The program may have changed any other bytes with plain stores,
//! which a recording does not contain. A call that changes contents must not be listed in `leaves_contents`,
//! because the replay would then report a false difference.

use super::area::{PAGE, page_of};
use super::space::{Reach, Space};
use crate::{Call, CallName, Transfer};
use std::ops::Range;

impl Space {
    /// Returns the addresses of the bytes that a process_vm_readv reads from this address space and that
    /// recorded calls wrote.
    pub(super) fn written_among(&self, transfer: &Transfer) -> Vec<Range<u64>> {
        let pieces = transfer.remote.iter().map(|&(at, len)| at..at.saturating_add(len));
        pieces.flat_map(|piece| self.written.within(&piece)).collect()
    }

    /// Notes that a call moved `count` bytes from or to this address space. Returns those pages of the moved
    /// bytes that were unknown until now. These pages must have been mapped before the call.
    pub(super) fn note_mapped(&mut self, transfer: &Transfer, mut count: u64) -> Vec<Range<u64>> {
        self.forget_growth();
        let Some(known_ranges) = &mut self.known_ranges else { return Vec::new() };
        let mut assumed = Vec::new();
        for &(at, len) in &transfer.remote {
            let len = len.min(count);
            count -= len;
            if len > 0 {
                let pages = page_of(at)..page_of(at.saturating_add(len - 1)).saturating_add(PAGE);
                assumed.extend(known_ranges.missing(&pages));
                known_ranges.add(pages);
            }
        }
        assumed
    }

    /// Notes a process_vm_writev that stored `count` bytes into this address space. The recording shows some
    /// of the bytes.
    pub(super) fn note_written(&mut self, transfer: &Transfer, count: u64) {
        let mut shown = Vec::new();
        let mut from = 0_u64;
        for ((_, len), text) in transfer.local.iter().zip(&transfer.shown) {
            shown.push(from..from.saturating_add((*len).min(text.len() as u64)));
            from = from.saturating_add(*len);
        }
        let mut from = 0_u64;
        for &(at, len) in &transfer.remote {
            let len = len.min(count - from);
            self.written.remove(&(at..at.saturating_add(len)));
            for part in &shown {
                let (start, end) = (part.start.clamp(from, from + len), part.end.clamp(from, from + len));
                self.written.add(at.saturating_add(start - from)..at.saturating_add(end - from));
            }
            from += len;
        }
    }

    /// Forgets the bytes that `call`, with this reach, may have changed.
    pub(super) fn forget_written(&mut self, call: &Call, reach: &Reach) {
        if leaves_contents(call) {
            return;
        }
        match reach {
            Reach::Vmas(ranges) => ranges.iter().for_each(|range| self.written.remove(range)),
            Reach::Pages(range) => self.written.remove(range),
            Reach::Whole => {}
        }
    }
}

/// Returns true if the call leaves all bytes of memory unchanged. The call may still change properties of
/// mappings.
fn leaves_contents(call: &Call) -> bool {
    match call.name {
        CallName::Mprotect
        | CallName::PkeyMprotect
        | CallName::Mbind
        | CallName::Msync
        | CallName::Mincore => true,
        // UFFDIO_REGISTER and UFFDIO_UNREGISTER. The operations that supply pages are not recorded.
        CallName::Ioctl => true,
        CallName::Mlock | CallName::Mlock2 | CallName::Munlock | CallName::Mseal => true,
        // NORMAL, RANDOM, SEQUENTIAL, WILLNEED, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP, COLD, PAGEOUT,
        // POPULATE_READ, POPULATE_WRITE. Other advice counts as changing contents.
        CallName::Madvise => matches!(call.args[2], 0..=3 | 14..=17 | 20..=23),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_were_moved_and_shown_are_known() {
        let mut space = Space::default();
        let transfer = Transfer {
            process: Some(1),
            local: vec![(0, 10), (0, 10)],
            remote: vec![(0x1000, 4), (0x2000, 16)],
            shown: vec![b"0123456".to_vec(), b"0123456789".to_vec()],
        };
        space.note_written(&transfer, 20);
        // |0123456---|0123456789| is stored at |1000..1004|2000...............2010|
        let at = |start: u64, len: u64| Transfer { remote: vec![(start, len)], ..Transfer::default() };
        assert_eq!(space.written_among(&at(0, u64::MAX)), [0x1000..0x1004, 0x2000..0x2003, 0x2006..0x2010]);
        assert_eq!(space.written_among(&at(0x2002, 6)), [0x2002..0x2003, 0x2006..0x2008]);
        // This call moved fewer bytes than requested.
        space.note_written(
            &Transfer { remote: vec![(0x2000, 20)], shown: vec![vec![], vec![]], ..transfer },
            2,
        );
        assert_eq!(space.written_among(&at(0x1fff, 10)), [0x2002..0x2003, 0x2006..0x2009]);
    }
}
