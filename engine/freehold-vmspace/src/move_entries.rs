//! Moving page-table entries from one place of an address space to another.
//!
//! A move has two passes. [`prepare_entries`](VmSpace::prepare_entries) allocates every table that will be
//! needed and may fail; [`move_entries`](VmSpace::move_entries) cannot fail. No task may fault in either
//! range during the move. The caller therefore holds the mmap lock for writing and has the source's VMA
//! locked for writing. Nothing is mapped at the target yet, or the target is also locked for writing.
//!
//! For each pair of tables, both locks are taken in the order of addresses. Every entry leaves the source by
//! an exchange, so that no accessed or dirty bit is lost, and enters the target. The old translations are
//! flushed before the locks are released (hazard C-39): afterwards another task may find the entry at its new
//! place, remove it, and free the frame.
//!
//! If source and target have the same alignment and cover whole tables, the tables themselves move, under the
//! locks of the tables above. Walkers of the reverse map are excluded during such a move, because a walker
//! could hold a table that it found at the old place (hazard C-40). `tests/mremap/` of `freehold` tests
//! moves, and `lab/freehold-machine/tests/shuttle_engine/mremap.rs` explores moves concurrent with faults and
//! truncation.

use crate::{NoMemory, PAGE_SIZE, SwapMark, UserRange, VmGather, VmSpace, platform::Platform};
use freehold_pagetable::{Kind, Level, MarkerKind, Pte, PteFlags, PteTable, VaRange, VirtAddr};

/// A gather for moved entries. It holds only one frame, because a move frees no frames.
pub type MoveGather<'v, P> = VmGather<'v, P, 1>;

/// Span of one table of the lowest level.
const TABLE: u64 = Level::Pte.table_span();

/// The permission to move whole tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TableMoves {
    /// Tables that fit may move.
    Allowed,
    /// Tables stay, and their entries move.
    Never,
}

impl TableMoves {
    /// Returns true if the first table of `from` may move to `to`.
    fn may_move(self, from: UserRange, to: u64) -> bool {
        self == TableMoves::Allowed
            && from.start().is_multiple_of(TABLE)
            && to.is_multiple_of(TABLE)
            && from.end() - from.start() >= TABLE
    }
}

/// A table of the lowest level, and the part of the requested range that the table translates.
pub type TableInRange<'s, P> = (PteTable<'s, <P as Platform>::Format, P>, UserRange);

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// Returns the first table of the lowest level under `range`. Splits large leaves on the way. A span
    /// without tables costs one lookup, however large the span is.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory to split a large leaf.
    pub fn next_table(&self, range: UserRange) -> Result<Option<TableInRange<'_, P>>, NoMemory> {
        let mut at = VirtAddr::new(range.start());
        while at.get() < range.end() {
            if let Some(table) = self.pte_table(at) {
                let end = table.span().end().get().min(range.end());
                return Ok(Some((table, UserRange::new(at.get(), end))));
            }
            let (pte, level) = self.peek(at);
            match pte.kind(level) {
                Kind::Leaf { .. } if level > Level::Pte => self.split_leaf(at, level)?,
                // Only huge pages of pools have markers above the lowest level.
                Kind::None if level == Level::Pmd => match self.skip_empty(at, range.end()) {
                    Some(next) => at = next,
                    None => break,
                },
                Kind::None | Kind::Leaf { .. } | Kind::Marker { .. } | Kind::Table { .. } => {
                    match at.next_span(level) {
                        Some(next) => at = next,
                        None => break,
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns the next address that is not translated by the empty entry for `at` or by empty entries after
    /// it, in one table of the second level. Reads a word for each entry. Stops at `end`.
    fn skip_empty(&self, at: VirtAddr, end: u64) -> Option<VirtAddr> {
        let mut next = at.next_span(Level::Pmd)?;
        if let Some(table) = self.pmd_table(at) {
            let end = table.span().end().get().min(end);
            while next.get() < end && table.peek(next).is_none() {
                next = next.next_span(Level::Pmd)?;
            }
        }
        Some(next)
    }

    /// Splits the huge page around `at`, if there is one.
    ///
    /// # Errors
    ///
    /// Fails like [`split_huge`](Self::split_huge).
    pub fn split_huge_around(&self, at: u64) -> Result<(), NoMemory> {
        self.split_leaf(VirtAddr::new(at), Level::Pmd)
    }

    /// Splits the leaf of `level` that covers `at`, if there is one. Fails like
    /// [`split_huge`](Self::split_huge).
    pub fn split_leaf(&self, at: VirtAddr, level: Level) -> Result<(), NoMemory> {
        let split = match level {
            Level::Pmd => self.pmd_table(at).map(|table| self.split_pmd_leaf(table, at)),
            _ => self.pud_table(at).map(|table| self.split_pud_leaf(table, at)),
        };
        match split {
            Some(Err(_)) => Err(NoMemory),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Splits the huge page that covers `at`, unless `at` is its start.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory. Cannot fail if a table was deposited for the split.
    pub fn split_huge(&self, at: u64) -> Result<(), NoMemory> {
        let address = VirtAddr::new(at);
        match address.span_down(Level::Pmd) == address {
            true => Ok(()),
            false => self.split_leaf(address, Level::Pmd),
        }
    }

    /// Allocates the tables in which [`move_entries`](Self::move_entries) will put the entries of `from`.
    /// Calls `again` for each table of `from`.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if `again` fails; some tables may have been allocated.
    pub fn prepare_entries<E: From<NoMemory>>(
        &self,
        from: UserRange,
        to: u64,
        tables: TableMoves,
        mut again: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = from.start();
        while let Some((_, part)) = self.next_table(from.rest(at))? {
            again()?;
            let target = to + (part.start() - from.start());
            at = part.end();
            if tables.may_move(from.rest(part.start()), target) {
                // The table itself moves, so the target needs only the table above. If the slot in the table
                // above holds an empty table, the entries move to that table instead.
                let above = self.pmd_table_alloc(VirtAddr::new(target));
                above.map_err(|_| NoMemory)?;
                continue;
            }
            // The entries of one table may move to two tables.
            for address in [target, target + (part.end() - part.start()) - PAGE_SIZE] {
                let table = self.pte_table_alloc(VirtAddr::new(address));
                table.map_err(|_| NoMemory)?;
            }
        }
        Ok(())
    }

    /// Moves every entry of `from`, of any kind, to the same offset in the range that starts at `to`.
    ///
    /// `exclude` is called before each pair of tables. Its argument says whether the tables themselves move.
    /// The value that it returns is held until that pair is done. `exclude` excludes two kinds of walkers of
    /// the reverse map: walkers that could reach the target before the source, and would then miss an entry
    /// at both places, and walkers that could be in a table that moves.
    pub fn move_entries<L>(
        &self,
        from: UserRange,
        to: u64,
        tables: TableMoves,
        gather: &mut MoveGather<'_, P>,
        exclude: impl Fn(TableMoves) -> L,
    ) {
        let mut at = from.start();
        while let Some((source, part)) =
            self.next_table(from.rest(at)).expect("large leaves were split before")
        {
            let address = VirtAddr::new(to + (part.start() - from.start()));
            if tables.may_move(from.rest(part.start()), address.get()) {
                let excluded = exclude(TableMoves::Allowed);
                at = self.move_tables(from.rest(part.start()), address.get(), gather);
                drop(excluded);
                if at > part.start() {
                    continue;
                }
            }
            let reach = VaRange::entry(address, Level::Pmd).end().get() - address.get();
            let part = part.with_end(part.end().min(part.start() + reach));
            at = part.end();
            let Some(target) = self.pte_table(address) else {
                // A fault on a neighbour that shares the source's table created the table after the targets
                // were prepared. The table then contains no entries of the moved range.
                debug_assert!(self.is_unmapped(part.va()), "entries without a target");
                continue;
            };
            let excluded = exclude(TableMoves::Never);
            Self::move_part(source, target, part, address, gather);
            drop(excluded);
        }
    }

    /// Moves the tables at the start of `from`, as many as one pair of upper tables covers. Returns the
    /// address where it stopped. Moves nothing if the target's slot is occupied.
    fn move_tables(&self, from: UserRange, to: u64, gather: &mut MoveGather<'_, P>) -> u64 {
        let above = |address| self.pmd_table(VirtAddr::new(address));
        let (Some(source), Some(target)) = (above(from.start()), above(to)) else { return from.start() };
        let left = |span: VaRange, at: u64| span.end().get() - at;
        let len =
            left(source.span(), from.start()).min(left(target.span(), to)).min(from.end() - from.start());
        let (mut source, mut target) = source.lock_two(target);
        let mut done = 0;
        while done + TABLE <= len {
            let (old, new) = (VirtAddr::new(from.start() + done), VirtAddr::new(to + done));
            let stays = !source.move_table(old, target.as_mut(), new, gather);
            if stays && !source.get(old).is_none() {
                break;
            }
            done += TABLE;
        }
        // Flush while both locks are held. The flush covers the walk caches too.
        gather.flush();
        from.start() + done
    }

    /// Moves the entries of a part of one table to a part of another table, or of the same table.
    fn move_part(
        source: PteTable<'_, P::Format, P>,
        target: PteTable<'_, P::Format, P>,
        part: UserRange,
        to: VirtAddr,
        gather: &mut MoveGather<'_, P>,
    ) {
        let place = |address: VirtAddr| VirtAddr::new(to.get() + (address.get() - part.start()));
        let (mut source, target) = source.lock_two(target);
        match target {
            Some(mut target) => {
                source.zap_each(part.va(), gather, |address, slot, _| {
                    target.set(place(address), moved(slot.take()));
                });
                // Flush while both locks are held.
                gather.flush();
                drop(target);
            }
            None => {
                for page in (part.start()..part.end()).step_by(PAGE_SIZE as usize) {
                    let address = VirtAddr::new(page);
                    if !source.get(address).is_none() {
                        let old = source.take(address, gather);
                        source.set(place(address), moved(old));
                    }
                }
                gather.flush();
            }
        }
        drop(source);
    }
}

/// Returns the entry for the new address. A moved page counts as written, for tools that watch soft-dirty
/// bits, also if it is swapped out. Other markers are unchanged.
fn moved<F: freehold_pagetable::Format>(pte: Pte<F>) -> Pte<F> {
    match pte.kind(Level::Pte) {
        Kind::Leaf { flags, .. } => pte.with_flags(Level::Pte, flags | PteFlags::SOFT_DIRTY),
        Kind::Marker { kind: MarkerKind::Swap, payload } => {
            SwapMark { soft_dirty: true, ..SwapMark::of(payload) }.entry()
        }
        Kind::None | Kind::Marker { .. } | Kind::Table { .. } => pte,
    }
}
