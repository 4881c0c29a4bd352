//! Finding free addresses.
//!
//! What an inner node keeps of a child is no less than the largest gap below it, and may be more: a change
//! that fills a gap leaves it as it was, and so writes nothing above its leaf. A search finds what there is,
//! and may look into a child in vain; then it corrects what is kept of that child. So it pays for each gap
//! that was filled once a level at most. What is out of its bounds, or lost to the alignment, it corrects
//! nothing for.

use freehold_sync::{Host, Rank};

use super::RangeMap;
use super::busy_nodes::BusyNodes;
use super::entry::Entry;
use super::node::{Node, Word};
use super::read::Reader;

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
    /// high)` and meets no entry, and ends at least `guard(entry)` bytes below the start of the next
    /// entry (a stack's guard gap; 0 for nearly all). `None` if there is no such address.
    ///
    /// The answer is exact. Gaps that are large enough but lose too much to the alignment or to `guard` are
    /// tried and passed over one by one; a caller that cannot have that asks for `len` plus what
    /// alignment can cost, with `align` 1, and rounds the result itself.
    ///
    /// # Panics
    ///
    /// If `len` is 0 or `align` is no power of two.
    #[inline(always)]
    pub fn gap(&self, request: &GapRequest, guard: impl Fn(&Entry) -> u64) -> Option<u64> {
        // SAFETY: no writer exists that could unlink a node. Another reader may have a leaf latched, to
        // correct what is kept of it, but does not change that.
        let found = unsafe { self.map.find_gap::<false>(request, &guard) };
        found.unwrap_or_else(|Changed| unreachable!("nobody changes the map"))
    }
}

/// A node was changed while it was looked at.
pub(super) struct Changed;

/// What a search asks of each node. `CONCURRENT`: there may be writers, so that nothing counts before the
/// node was found unchanged.
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
    /// As [`Reader::gap`], of what was there while it looked.
    ///
    /// # Safety
    ///
    /// Nodes that are reachable when this is called are not freed before it returns.
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

    /// The highest fit in front of an entry of this subtree; `lo` is the end of the entry before it.
    fn top_down<F: Fn(&Entry) -> u64, const CONCURRENT: bool>(
        &self,
        node: &Node<SLOTS>,
        word: Word,
        lo: u64,
        search: &Search<'_, F, CONCURRENT>,
    ) -> Result<Option<u64>, Changed> {
        let request = search.request;
        // The gap that contains `high` is in front of the first entry that ends at or above it; gaps in front
        // of entries that end at or below `low` are out of bounds.
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

    /// The lowest fit in front of an entry of this subtree; `lo` is the end of the entry before it.
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

    /// What `look` finds in the child at `at`, if a gap that is large enough is kept of it. If there is none,
    /// what is kept is corrected. If there is one that does not fit for another reason, that is left alone:
    /// it would lead nobody past the child, and the writer that widens the gap would raise it again.
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
        // SAFETY: the node was unchanged after the slot was read, so this was its child; the caller of
        // `find_gap` keeps it allocated.
        let child = unsafe { &*child };
        let below = search.begin(child)?;
        search.unchanged(node, word)?;
        let fit = look(child, below)?;
        if fit.is_none() && child.max_gap(before) < len {
            self.correct_gap(end - 1, below.level(), len);
        }
        Ok(fit)
    }

    /// A search for `len` bytes was in vain in the node of this level on the way to `key`: less seems to be
    /// free below it than is kept. Nobody else touches what inner nodes keep meanwhile; a leaf is latched,
    /// so that a writer which makes a gap in it either made it before, or finds what is stored here, and
    /// raises it.
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

/// A fit between `before` and the leaf's entry `at`.
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
    // A slot that is torn between two versions may say anything.
    if start.saturating_sub(before) < search.request.len {
        return Ok(None);
    }
    search.unchanged(leaf, word)?;
    let guard = slot.entry().map_or(0, |entry| (search.guard)(&entry));
    Ok(fit(search.request, before, start.saturating_sub(guard)))
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
