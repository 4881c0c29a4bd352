//! Finding free addresses.
//!
//! What an inner node keeps of a child is no less than the largest gap below it, and may be more: a change
//! that fills a gap leaves it as it was, and so writes nothing above its leaf. A search finds what there is,
//! and may look into a child in vain; then it corrects what is kept of that child. So it pays for each gap
//! that was filled once a level at most.

use freehold_sync::Host;

use super::node::Node;
use super::read::Reader;
use super::{Entry, RangeMap};

/// From which end of the bounds to take a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The highest address that fits.
    TopDown,
    /// The lowest address that fits.
    BottomUp,
}

/// What to look for. All numbers are bytes or byte addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapRequest {
    /// Bytes wanted; not zero.
    pub len: u64,
    /// The result is a multiple of this power of two.
    pub align: u64,
    /// The result is not below this.
    pub low: u64,
    /// The result's end is not above this.
    pub high: u64,
    /// From which end.
    pub direction: Direction,
}

impl<'a, H: Host, const SLOTS: usize> Reader<'a, H, SLOTS> {
    /// The highest (lowest) address `a`, a multiple of `align`, such that `[a, a + len)` lies inside `[low,
    /// high)` and meets no entry, and ends at least `below(entry)` bytes below the start of the next
    /// entry (a stack's guard gap; 0 for nearly all). `None` if there is no such address.
    ///
    /// The answer is exact. Gaps that are large enough but lose too much to the alignment or to `below` are
    /// tried and passed over one by one; a caller that cannot have that asks for `len` plus what
    /// alignment can cost, with `align` 1, and rounds the result itself.
    ///
    /// # Panics
    ///
    /// If `len` is 0 or `align` is no power of two.
    pub fn gap(&self, request: &GapRequest, below: impl Fn(&Entry) -> u64) -> Option<u64> {
        assert!(request.len > 0 && request.align.is_power_of_two());
        let GapRequest { len, low, high, .. } = *request;
        if high.checked_sub(low)? < len {
            return None;
        }
        let map: &RangeMap<H, SLOTS> = self.map;
        let behind = map.root.last_end();
        let tail = || fit(request, behind, high);
        match request.direction {
            Direction::TopDown => tail().or_else(|| self.top_down(&map.root, 0, request, &below)),
            Direction::BottomUp => self.bottom_up(&map.root, 0, request, &below).or_else(tail),
        }
    }

    /// The highest fit in front of an entry of this subtree; `lo` is the end of the entry before it.
    fn top_down(
        &self,
        node: &Node<SLOTS>,
        lo: u64,
        request: &GapRequest,
        below: &impl Fn(&Entry) -> u64,
    ) -> Option<u64> {
        let word = node.word();
        // The gap that contains `high` is in front of the first entry that ends at or above it; gaps in front
        // of entries that end at or below `low` are out of bounds.
        let last = node.search(request.high - 1).min(word.count().checked_sub(1)?);
        let leaf = word.is_leaf();
        for at in (0..last + 1).rev() {
            if node.end(at) <= request.low {
                break;
            }
            let before = if at == 0 { lo } else { node.end(at - 1) };
            let fit = match leaf {
                true => fit_in_front(node, at, before, request, below),
                false => self.in_child(node, at, before, request, |child| {
                    self.top_down(child, before, request, below)
                }),
            };
            if fit.is_some() {
                return fit;
            }
        }
        None
    }

    /// The lowest fit in front of an entry of this subtree; `lo` is the end of the entry before it.
    fn bottom_up(
        &self,
        node: &Node<SLOTS>,
        lo: u64,
        request: &GapRequest,
        below: &impl Fn(&Entry) -> u64,
    ) -> Option<u64> {
        let word = node.word();
        let leaf = word.is_leaf();
        for at in node.search(request.low)..word.count() {
            let before = if at == 0 { lo } else { node.end(at - 1) };
            if before >= request.high {
                break;
            }
            let fit = match leaf {
                true => fit_in_front(node, at, before, request, below),
                false => self.in_child(node, at, before, request, |child| {
                    self.bottom_up(child, before, request, below)
                }),
            };
            if fit.is_some() {
                return fit;
            }
        }
        None
    }

    /// What `search` finds in the child at `at`, if a gap that is large enough is kept of it. If there is
    /// none, what is kept is corrected.
    #[inline(always)]
    fn in_child(
        &self,
        node: &Node<SLOTS>,
        at: usize,
        lo: u64,
        request: &GapRequest,
        search: impl FnOnce(&Node<SLOTS>) -> Option<u64>,
    ) -> Option<u64> {
        if node.datum(at) < request.len {
            return None;
        }
        let child = self.child(node, at);
        let fit = search(child);
        if fit.is_none() {
            correct(node, at, child, lo);
        }
        fit
    }
}

/// A search was in vain in this child, perhaps because less is free below it than is kept. Several readers
/// may do so at once: what each stores is no less than what there is.
#[cold]
fn correct<const SLOTS: usize>(node: &Node<SLOTS>, at: usize, child: &Node<SLOTS>, lo: u64) {
    let now = child.max_gap(lo);
    if now < node.datum(at) {
        node.set_gap(at, now);
    }
}

/// A fit between `before` and the leaf's entry `at`.
#[inline(always)]
fn fit_in_front<const SLOTS: usize>(
    leaf: &Node<SLOTS>,
    at: usize,
    before: u64,
    request: &GapRequest,
    below: &impl Fn(&Entry) -> u64,
) -> Option<u64> {
    let start = leaf.start(at);
    if start - before < request.len {
        return None;
    }
    let guard = below(&leaf.slot(at).entry()?);
    fit(request, before, start.saturating_sub(guard))
}

/// The highest (lowest) fit between two addresses, within the bounds of the request.
#[inline(always)]
fn fit(request: &GapRequest, from: u64, to: u64) -> Option<u64> {
    let GapRequest { len, align, low, high, direction } = *request;
    let (from, to) = (from.max(low), to.min(high));
    if to.checked_sub(from)? < len {
        return None;
    }
    match direction {
        Direction::TopDown => Some((to - len) & !(align - 1)).filter(|&found| found >= from),
        Direction::BottomUp => from.checked_next_multiple_of(align).filter(|&found| found <= to - len),
    }
}
