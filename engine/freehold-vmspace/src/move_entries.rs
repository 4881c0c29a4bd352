//! Moving page-table entries from one place of an address space to another.
//!
//! Two passes: [`prepare_entries`](VmSpace::prepare_entries) makes every table that will be needed and may
//! fail; [`move_entries`](VmSpace::move_entries) cannot. Nobody may fault in either range meanwhile: the
//! caller has the mmap lock for writing and the source's VMA locked for writing, and nothing is mapped at the
//! target yet, or it is locked for writing as well.
//!
//! For each pair of tables both locks are taken, in the order of addresses; every entry leaves the source by
//! an exchange, so that no accessed or dirty bit is lost, and enters the target; and the source's old
//! translations are flushed before the locks are let go (hazard C-39): from then on somebody else may find
//! the entry at its new place, take it away, and give the frame to others.
//!
//! Where source and target lie alike in spans of whole tables, the tables themselves move, under the locks of
//! the tables above, and with walkers of the reverse map kept out: one could hold a table that it found at
//! the old place (hazard C-40).

use crate::{NoMemory, PAGE_SIZE, UserRange, VmGather, VmSpace, platform::Platform};
use freehold_pagetable::{Kind, Level, Pte, PteFlags, PteTable, VaRange, VirtAddr};

/// What a gather for moved entries holds: no frame goes away.
pub type MoveGather<'v, P> = VmGather<'v, P, 1>;

/// What a table of the lowest level spans.
const TABLE: u64 = Level::Pte.table_span();

/// Whether whole tables may move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TableMoves {
    /// They may, where they fit.
    Allowed,
    /// They stay, and their entries move.
    Never,
}

impl TableMoves {
    /// Whether the first table of `from` may move to `to`.
    fn may_move(self, from: UserRange, to: u64) -> bool {
        self == TableMoves::Allowed
            && from.start().is_multiple_of(TABLE)
            && to.is_multiple_of(TABLE)
            && from.end() - from.start() >= TABLE
    }
}

/// A table of the lowest level, and the part of the range in question that it translates.
pub type TableInRange<'s, P> = (PteTable<'s, <P as Platform>::Format, P>, UserRange);

#[doc(hidden)]
impl<P: Platform> VmSpace<P> {
    /// The first table of the lowest level under `range`. Large leaves on the way are split; spans without
    /// tables cost one look each, however large they are.
    ///
    /// # Errors
    ///
    /// No memory to split a large leaf.
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
                // Nothing puts a marker above the lowest level.
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

    /// Splits the huge page around `at`, if there is one.
    ///
    /// # Errors
    ///
    /// As [`split_huge`](Self::split_huge).
    pub fn split_huge_around(&self, at: u64) -> Result<(), NoMemory> {
        self.split_leaf(VirtAddr::new(at), Level::Pmd)
    }

    pub fn split_leaf(&self, at: VirtAddr, level: Level) -> Result<(), NoMemory> {
        let split = match level {
            Level::Pmd => self.pmd_table(at).map(|table| table.split(at)),
            _ => self.pud_table(at).map(|table| table.split(at)),
        };
        match split {
            Some(Err(_)) => Err(NoMemory),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Splits the huge page that `at` lies inside of, if it is one.
    ///
    /// # Errors
    ///
    /// No memory; not where a table was kept for the split.
    pub fn split_huge(&self, at: u64) -> Result<(), NoMemory> {
        let address = VirtAddr::new(at);
        match address.span_down(Level::Pmd) == address {
            true => Ok(()),
            false => self.split_leaf(address, Level::Pmd),
        }
    }

    /// Makes the tables into which [`move_entries`](Self::move_entries) will put what is mapped in `from`.
    ///
    /// # Errors
    ///
    /// No memory; some tables may have been made.
    pub fn prepare_entries(&self, from: UserRange, to: u64, tables: TableMoves) -> Result<(), NoMemory> {
        let mut at = from.start();
        while let Some((_, part)) = self.next_table(from.rest(at))? {
            let target = to + (part.start() - from.start());
            at = part.end();
            if tables.may_move(from.rest(part.start()), target) {
                // What lies there may still be an empty table; then its entries will be filled.
                let above = self.pmd_table_alloc(VirtAddr::new(target));
                above.map_err(|_| NoMemory)?;
                continue;
            }
            // What one table holds may end up in two.
            for address in [target, target + (part.end() - part.start()) - PAGE_SIZE] {
                let table = self.pte_table_alloc(VirtAddr::new(address));
                table.map_err(|_| NoMemory)?;
            }
        }
        Ok(())
    }

    /// Moves every entry of `from`, of whatever kind, to the same place of the range that starts at `to`.
    ///
    /// `exclude` is called around each pair of tables, and whether they move themselves, to keep walkers of
    /// the reverse map out where they could come to the target before the source and so miss an entry at
    /// both, or be in a table that moves (linux-locking A.6); what it returns is held meanwhile.
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
                // The source's table was made after the targets were, by a fault on a neighbour that shares
                // it.
                debug_assert!(self.is_unmapped(part.va()), "entries without a target");
                continue;
            };
            let excluded = exclude(TableMoves::Never);
            Self::move_part(source, target, part, address, gather);
            drop(excluded);
        }
    }

    /// Moves the tables at the start of `from`, as many as hang below one pair of tables; returns where it
    /// stopped: at once if there is something at the target.
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
        // With both locks held still, and the walk caches too.
        gather.flush();
        from.start() + done
    }

    /// Moves the entries of one part of one table to one part of one table, which may be the same table.
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
                // With both locks held still.
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

/// What an entry becomes at its new address: a page counts as written there, for tools that watch soft-dirty
/// bits; a marker stays what it is.
fn moved<F: freehold_pagetable::Format>(pte: Pte<F>) -> Pte<F> {
    match pte.kind(Level::Pte) {
        Kind::Leaf { flags, .. } => pte.with_flags(Level::Pte, flags | PteFlags::SOFT_DIRTY),
        Kind::None | Kind::Marker { .. } | Kind::Table { .. } => pte,
    }
}
