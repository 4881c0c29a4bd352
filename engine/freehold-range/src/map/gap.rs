//! The search for free addresses.
//!
//! The gap word that an inner node keeps for a child is an upper bound of the largest gap below the child. A
//! change that fills a gap does not lower the word, and so writes no node above its leaf. A search may
//! therefore visit a child and find no gap; the search then corrects the word. So a filled gap costs searches
//! at most one extra visit per level. If a gap is large enough, but the bounds of the search or the alignment
//! exclude it, the search does not correct the word.
//!
//! [`Reader::gap`] searches while no writer exists, and `ClaimWriter::gap` concurrently with other writers;
//! both use `find_gap`. A gap word must never be too small, or a search misses free addresses; the model in
//! `tests/map.rs` and `tests/claims/` would detect that. "Gaps" in [`claim_writer`](super::claim_writer) says
//! which writer raises the words. In this file, a *fit* is an address at which the requested range has room.

use freehold_sync::{Host, Rank};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::entry::Entry;
use super::node::{Node, Word};
use super::read::Reader;

/// The end of the bounds from which a gap is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Takes the highest address that fits.
    TopDown,
    /// Takes the lowest address that fits.
    BottomUp,
}

/// The parameters of a gap search. All numbers are bytes or byte addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapRequest {
    /// Number of bytes needed. Not zero.
    pub len: u64,
    /// Alignment of the result, a power of two.
    pub align: u64,
    /// The result is not below this address.
    pub low: u64,
    /// The end of the result is not above this address.
    pub high: u64,
    /// The end of the bounds at which the search starts.
    pub direction: Direction,
}

impl<'a, H: Host, const SLOTS: usize> Reader<'a, H, SLOTS> {
    /// Returns the highest (or lowest) address `a`, a multiple of `align`, with two properties.
    /// `[a, a + len)` lies inside `[low, high)` and overlaps no entry. The range ends at least `guard(entry)`
    /// bytes below the start of the next entry. The guard is a stack's guard gap, and 0 for most entries.
    /// Returns `None` if there is no such address.
    ///
    /// The result is exact. Some gaps are large enough, but lose too much to the alignment or to `guard`. The
    /// search tries such gaps one by one and skips them. A caller that must avoid this cost searches for
    /// `len` plus the maximum loss to the alignment, with `align` 1, and aligns the result itself.
    ///
    /// # Panics
    ///
    /// Panics if `len` is 0 or `align` is not a power of two.
    #[inline(always)]
    pub fn gap(&self, request: &GapRequest, guard: impl Fn(&Entry) -> u64) -> Option<u64> {
        // SAFETY: no writer exists that could unlink a node. Another reader may have a leaf latched to
        // correct a gap word, but does not change the leaf.
        let found = unsafe { self.map.find_gap::<false>(request, &guard) };
        found.unwrap_or_else(|Changed| unreachable!("no writer exists while a reader does"))
    }
}

/// The error of a search that found a node changed by a writer.
pub(super) struct Changed;

/// The checks of a search at each node. With `CONCURRENT`, writers may exist, and a value is used only after
/// the node was found unchanged.
struct Search<'r, F, const CONCURRENT: bool> {
    request: &'r GapRequest,
    guard: &'r F,
}

impl<F, const CONCURRENT: bool> Search<'_, F, CONCURRENT> {
    #[inline]
    fn begin<const SLOTS: usize>(&self, node: &Node<SLOTS>) -> Result<Word, Changed> {
        if CONCURRENT { node.begin().ok_or(Changed) } else { Ok(node.word()) }
    }

    #[inline]
    fn unchanged<const SLOTS: usize>(&self, node: &Node<SLOTS>, word: Word) -> Result<(), Changed> {
        if CONCURRENT && !node.unchanged(word) { Err(Changed) } else { Ok(()) }
    }
}

impl<H: Host, const SLOTS: usize> RangeMap<H, SLOTS> {
    /// Searches for a gap like [`Reader::gap`]. The result is a gap that existed during the search. With
    /// `CONCURRENT`, writers may exist.
    ///
    /// # Errors
    ///
    /// Fails with [`Changed`] if a node changed during the search.
    ///
    /// # Safety
    ///
    /// Nodes that are reachable at the time of the call are not freed before it returns.
    #[inline(always)]
    pub(super) unsafe fn find_gap<const CONCURRENT: bool>(
        &self,
        request: &GapRequest,
        guard: &impl Fn(&Entry) -> u64,
    ) -> Result<Option<u64>, Changed> {
        assert!(request.len > 0 && request.align.is_power_of_two());
        let GapRequest { len, low, high, .. } = *request;
        if high.checked_sub(low).is_none_or(|bounds| bounds < len) {
            return Ok(None);
        }
        let root = &self.root;
        let search = Search::<_, CONCURRENT> { request, guard };
        let word = search.begin(root)?;
        let behind = if word.count() == 0 { 0 } else { root.end(word.count() - 1) };
        let found = match request.direction {
            Direction::TopDown => match fit(request, behind, high) {
                None => self.top_down(root, word, 0, &search)?,
                tail => tail,
            },
            Direction::BottomUp => match self.bottom_up(root, word, 0, &search)? {
                None => fit(request, behind, high),
                found => found,
            },
        };
        search.unchanged(root, word)?;
        Ok(found)
    }

    /// Returns the highest fit in front of an entry of this subtree. `lo` is the end of the entry before the
    /// subtree.
    fn top_down<F: Fn(&Entry) -> u64, const CONCURRENT: bool>(
        &self,
        node: &Node<SLOTS>,
        word: Word,
        lo: u64,
        search: &Search<'_, F, CONCURRENT>,
    ) -> Result<Option<u64>, Changed> {
        let request = search.request;
        // The gap that contains `high` is in front of the first entry that ends at or above `high`. Gaps in
        // front of entries that end at or below `low` are out of bounds.
        let behind = node.search(request.high - 1).saturating_add(1).min(word.count());
        for at in (0..behind).rev() {
            if node.end(at) <= request.low {
                break;
            }
            let before = if at == 0 { lo } else { node.end(at - 1) };
            let fit = match word.is_leaf() {
                true => fit_in_front(node, word, at, before, search)?,
                false => self.search_child(node, word, at, before, search, |child, word| {
                    self.top_down(child, word, before, search)
                })?,
            };
            if fit.is_some() {
                return Ok(fit);
            }
        }
        search.unchanged(node, word)?;
        Ok(None)
    }

    /// Returns the lowest fit in front of an entry of this subtree. `lo` is the end of the entry before the
    /// subtree.
    fn bottom_up<F: Fn(&Entry) -> u64, const CONCURRENT: bool>(
        &self,
        node: &Node<SLOTS>,
        word: Word,
        lo: u64,
        search: &Search<'_, F, CONCURRENT>,
    ) -> Result<Option<u64>, Changed> {
        let request = search.request;
        for at in node.search(request.low)..word.count() {
            let before = if at == 0 { lo } else { node.end(at - 1) };
            if before >= request.high {
                break;
            }
            let fit = match word.is_leaf() {
                true => fit_in_front(node, word, at, before, search)?,
                false => self.search_child(node, word, at, before, search, |child, word| {
                    self.bottom_up(child, word, before, search)
                })?,
            };
            if fit.is_some() {
                return Ok(fit);
            }
        }
        search.unchanged(node, word)?;
        Ok(None)
    }

    /// Returns the result of `look` in the child at `at`, if the child's gap word is large enough. If the
    /// child has no gap of that size, corrects the word. If the child has such a gap, but no fit, the word is
    /// not changed, because a correction would not save work. The corrected word would still be at least
    /// `len`, so searches would still visit the child. A writer that widens the gap would have to raise the
    /// word again.
    #[inline]
    fn search_child<F, const CONCURRENT: bool>(
        &self,
        node: &Node<SLOTS>,
        word: Word,
        at: usize,
        before: u64,
        search: &Search<'_, F, CONCURRENT>,
        look: impl FnOnce(&Node<SLOTS>, Word) -> Result<Option<u64>, Changed>,
    ) -> Result<Option<u64>, Changed> {
        if node.datum(at) < search.request.len {
            return Ok(None);
        }
        let (child, end) = (node.child(at), node.end(at));
        search.unchanged(node, word)?;
        let GapRequest { len, low, high, .. } = *search.request;
        if end.min(high).saturating_sub(before.max(low)) < len {
            return Ok(None);
        }
        // SAFETY: the node was unchanged after the slot was read, so the pointer led to a child of the node.
        // The caller of `find_gap` keeps the child allocated.
        let child = unsafe { &*child };
        let below = search.begin(child)?;
        search.unchanged(node, word)?;
        let fit = look(child, below)?;
        if fit.is_none() && child.max_gap(before) < len {
            self.correct_gap(end - 1, below.level(), len);
        }
        Ok(fit)
    }

    /// Corrects the gap word of the node at `level` on the path to `key`, after a search found no gap of
    /// `len` bytes there. Under the structure lock, no other thread changes the gap words. The leaf is
    /// latched. So a writer that makes a gap in the leaf either made the gap before, or sees the word stored
    /// here and raises the word.
    #[cold]
    fn correct_gap(&self, key: u64, level: usize, len: u64) {
        let Some(structure) = self.structure.try_lock::<H>(Rank::VmaMap) else { return };
        let mut busy = BusyNodes::new();
        let path = self.latched_path_to(&mut busy, key);
        if level < path.top {
            let (below, above) = (path.step(level), path.step(level + 1));
            let now = below.node.max_gap(below.lo);
            if now < len && len <= above.node.datum(above.at) {
                above.node.set_gap(above.at, now);
            }
        }
        let no_dead = busy.release();
        drop(structure);
        no_dead.retire::<H>();
    }
}

/// Returns a fit between the address `before` and the entry in slot `at` of the leaf.
#[inline]
fn fit_in_front<const SLOTS: usize, F: Fn(&Entry) -> u64, const CONCURRENT: bool>(
    leaf: &Node<SLOTS>,
    word: Word,
    at: usize,
    before: u64,
    search: &Search<'_, F, CONCURRENT>,
) -> Result<Option<u64>, Changed> {
    let slot = leaf.slot(at);
    let start = slot.link.addr() as u64;
    // A slot that is torn between two versions may have any value.
    if start.saturating_sub(before) < search.request.len {
        return Ok(None);
    }
    search.unchanged(leaf, word)?;
    let guard = slot.entry().map_or(0, |entry| (search.guard)(&entry));
    Ok(fit(search.request, before, start.saturating_sub(guard)))
}

/// Returns the highest or lowest fit between two addresses, as the direction of the request says.
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
