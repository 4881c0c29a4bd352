//! Pages that recorded faults and calls have touched, in an address space or in that which it was forked from.
//!
//! The kernel also takes faults itself, on behalf of O_DIRECT, futexes, vmsplice or /proc/PID/mem, which are not recorded. So a page
//! that Linux has and the engine has not is a difference only if something recorded has touched it:
//!
//! | a page | a difference if |
//! | --- | --- |
//! | of anonymous memory | a fault has touched it, here or before the fork |
//! | private, in a mapping of a file | a fault has written to it, here or before the fork |
//! | of a file | a fault has touched it or may have brought it along, here: a fork leaves them behind |
//! | any | a call was to bring it in |
//!
//! And where a process_madvise has taken pages, of which the recording does not say where, any may be gone.

use freehold_trace::{Call, CallName};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;
/// Pages of a block, which has a bit for each.
const BLOCK: u64 = 64;
const MAP_LOCKED: u64 = 0x2000;
const MAP_POPULATE: u64 = 0x8000;
const POPULATE: [u64; 2] = [22, 23];
/// Advice by which pages go at once.
const DISCARD: [u64; 2] = [4, 24];

/// How a page was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Read,
    Written,
    /// It came along with another, or may have.
    Along,
}

/// What kind of page is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Anonymous,
    Copy,
    File,
}

/// The pages.
#[derive(Default)]
pub(super) struct Touched(Mutex<Both>);

#[derive(Default)]
struct Both {
    here: Pages,
    before: Pages,
}

#[derive(Clone, Default)]
struct Pages {
    /// Blocks of pages by their numbers, with those that were touched, by how.
    blocks: BTreeMap<u64, [u64; 3]>,
    /// Pages, by their numbers, that a call was to bring in.
    ranges: Vec<Range<u64>>,
    /// A call was to bring in all that was mapped.
    all: bool,
    /// A call has taken pages, nobody knows where.
    lacks: bool,
}

impl Touched {
    /// A fault ended well that has touched the pages of these addresses, of which there are few.
    pub(super) fn pages(&self, addresses: Range<u64>, how: How) {
        let blocks = &mut self.lock().here.blocks;
        for page in addresses.start / PAGE..addresses.end.div_ceil(PAGE) {
            blocks.entry(page / BLOCK).or_default()[how as usize] |= 1 << (page % BLOCK);
        }
    }

    /// A call was made: what it was to bring in counts as touched.
    pub(super) fn called(&self, call: &Call) {
        let Some(value) = call.returned.value() else { return };
        let args = &call.args;
        let start = match call.name {
            CallName::Mmap if args[3] & (MAP_LOCKED | MAP_POPULATE) != 0 => value,
            CallName::Mlock | CallName::Mlock2 => args[0],
            CallName::Madvise if POPULATE.contains(&args[2]) => args[0],
            CallName::Mlockall => return self.lock().here.all = true,
            CallName::ProcessMadvise if call.transfer.is_none() && DISCARD.contains(&args[3]) => {
                return self.lock().here.lacks = true;
            }
            _ => return,
        };
        self.lock().here.ranges.push(start / PAGE..start.saturating_add(args[1]).div_ceil(PAGE));
    }

    /// What a child has that was just forked.
    pub(super) fn forked(&self) -> Touched {
        let parent = self.lock();
        let mut before = parent.before.clone();
        before.add(&parent.here);
        Touched(Mutex::new(Both { here: Pages::default(), before }))
    }

    /// Whether something recorded has touched `page`, by its number, in a way that it should be there as what is asked.
    pub(super) fn contains(&self, page: u64, of: Of) -> bool {
        let both = self.lock();
        both.here.contains(page, of) || of != Of::File && both.before.contains(page, of)
    }

    /// Whether pages may be gone, by a call of which the recording does not say which.
    pub(super) fn may_lack_pages(&self) -> bool {
        let both = self.lock();
        both.here.lacks || both.before.lacks
    }

    fn lock(&self) -> MutexGuard<'_, Both> {
        // Whoever panicked takes the whole run down.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn contains(&self, page: u64, of: Of) -> bool {
        let ways: &[How] = match of {
            Of::Anonymous => &[How::Read, How::Written],
            Of::Copy => &[How::Written],
            Of::File => &[How::Read, How::Written, How::Along],
        };
        let block = self.blocks.get(&(page / BLOCK));
        let touched =
            block.is_some_and(|block| ways.iter().any(|&how| block[how as usize] >> (page % BLOCK) & 1 != 0));
        self.all || touched || self.ranges.iter().any(|range| range.contains(&page))
    }

    fn add(&mut self, other: &Pages) {
        for (block, pages) in &other.blocks {
            let own = self.blocks.entry(*block).or_default();
            own.iter_mut().zip(pages).for_each(|(own, pages)| *own |= pages);
        }
        self.ranges.extend_from_slice(&other.ranges);
        self.all |= other.all;
        self.lacks |= other.lacks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fork_leaves_behind() {
        let parent = Touched::default();
        parent.pages(0..PAGE, How::Read);
        parent.pages(PAGE..2 * PAGE, How::Written);
        parent.pages(2 * PAGE..4 * PAGE, How::Along);
        let has =
            |touched: &Touched, of| (0..5).filter(|&page| touched.contains(page, of)).collect::<Vec<_>>();
        assert_eq!(has(&parent, Of::Anonymous), [0, 1]);
        assert_eq!(has(&parent, Of::Copy), [1]);
        assert_eq!(has(&parent, Of::File), [0, 1, 2, 3]);
        let grandchild = parent.forked().forked();
        assert_eq!(has(&grandchild, Of::Anonymous), [0, 1]);
        assert_eq!(has(&grandchild, Of::File), [0; 0]);
        assert!(!grandchild.may_lack_pages());
        parent.lock().here.lacks = true;
        assert!(parent.forked().forked().may_lack_pages() && !grandchild.may_lack_pages());
        grandchild.pages(4 * PAGE..4 * PAGE + 1, How::Read);
        assert_eq!(has(&grandchild, Of::File), [4]);
    }
}
