//! Which bytes of an address space recorded calls have determined: what process_vm_writev moved there, until
//! the addresses are mapped anew or emptied. Whatever else is there the program may have stored itself, which
//! no recording shows.

use super::Planner;
use super::area::{PAGE, page_of};
use super::calls::{Reach, Space, span};
use super::told::Told;
use crate::{Call, CallName, Returned, Transfer};
use std::ops::Range;

/// Whether a call about pieces of memory rests on some of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partial {
    /// All of it is known.
    No,
    /// It did less than it was asked for, for what may have been there: its answer tells nothing.
    Unsure,
    /// It may move another number of bytes here.
    Doubtful,
}

impl Planner {
    /// Of a call in a space of unknown start, and its other side.
    pub(super) fn partial(&self, call: &Call, number: u32) -> Partial {
        let Some(about) = &call.transfer else { return Partial::No };
        let told = |space: Option<u32>| space.and_then(|number| self.spaces.get(&number)?.told.as_ref());
        let asked = about.remote.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        let short = call.returned != Returned::Value(asked);
        if call.name == CallName::ProcessMadvise {
            let is_known =
                |told: &Told| about.remote.iter().all(|&(at, len)| told.missing(&span(at, len)).is_empty());
            let known = told(Some(number)).is_none_or(is_known);
            return if short && !known { Partial::Unsure } else { Partial::No };
        }
        // Where a piece is that is shown by what it holds, the recording does not tell.
        let known = |told: &Told, &(at, len): &(u64, u64)| {
            at == 0 || told.missing(&span(at, len.saturating_add(at % PAGE))).is_empty()
        };
        let is_known = |space: Option<u32>, pieces: &[(u64, u64)]| {
            told(space).is_none_or(|told| pieces.iter().all(|piece| known(told, piece)))
        };
        let other = about.process.and_then(|process| self.space_of(process));
        match is_known(other, &about.remote) && (!short || is_known(Some(number), &about.local)) {
            true => Partial::No,
            false => Partial::Doubtful,
        }
    }
}

impl Space {
    /// Of the bytes that a process_vm_readv moves from here, the addresses of those that recorded calls
    /// wrote.
    pub(super) fn written_among(&self, transfer: &Transfer) -> Vec<Range<u64>> {
        let pieces = transfer.remote.iter().map(|&(at, len)| at..at.saturating_add(len));
        pieces.flat_map(|piece| self.written.within(&piece)).collect()
    }

    /// A call has moved `count` bytes from or to here. What of that memory was mapped before the recording
    /// began, as this call alone shows, in whole pages.
    pub(super) fn note_mapped(&mut self, transfer: &Transfer, mut count: u64) -> Vec<Range<u64>> {
        self.forget_growth();
        let Some(told) = &mut self.told else { return Vec::new() };
        let mut assumed = Vec::new();
        for &(at, len) in &transfer.remote {
            let len = len.min(count);
            count -= len;
            if len > 0 {
                let pages = page_of(at)..page_of(at.saturating_add(len - 1)).saturating_add(PAGE);
                assumed.extend(told.missing(&pages));
                told.add(pages);
            }
        }
        assumed
    }

    /// A process_vm_writev has moved `count` bytes to here, of which the recording shows some.
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

    /// A call with this reach may have changed what is there.
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

/// The call changes what is mapped, or nothing, but no byte.
fn leaves_contents(call: &Call) -> bool {
    match call.name {
        CallName::Mprotect
        | CallName::PkeyMprotect
        | CallName::Mbind
        | CallName::Msync
        | CallName::Mincore => true,
        // A userfaultfd's: none of those that supply pages is recorded.
        CallName::Ioctl => true,
        CallName::Mlock | CallName::Mlock2 | CallName::Munlock | CallName::Mseal => true,
        // Not DONTNEED, FREE, REMOVE, WIPEONFORK and what is not known.
        CallName::Madvise => matches!(call.args[2], 0..=3 | 14..=17 | 20..=23),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shown_and_moved_is_known() {
        let mut space = Space::default();
        let transfer = Transfer {
            process: Some(1),
            local: vec![(0, 10), (0, 10)],
            remote: vec![(0x1000, 4), (0x2000, 16)],
            shown: vec![b"0123456".to_vec(), b"0123456789".to_vec()],
        };
        space.note_written(&transfer, 20);
        // |0123456---|0123456789| lies at |1000..1004|2000...............2010|
        let at = |start: u64, len: u64| Transfer { remote: vec![(start, len)], ..Transfer::default() };
        assert_eq!(space.written_among(&at(0, u64::MAX)), [0x1000..0x1004, 0x2000..0x2003, 0x2006..0x2010]);
        assert_eq!(space.written_among(&at(0x2002, 6)), [0x2002..0x2003, 0x2006..0x2008]);
        // A call that moved less than it was asked to.
        space.note_written(
            &Transfer { remote: vec![(0x2000, 20)], shown: vec![vec![], vec![]], ..transfer },
            2,
        );
        assert_eq!(space.written_among(&at(0x1fff, 10)), [0x2002..0x2003, 0x2006..0x2009]);
    }
}
