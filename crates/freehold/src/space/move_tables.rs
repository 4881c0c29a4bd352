//! Moving page-table entries from one place of an address space to another.
//!
//! Two passes: [`prepare_entries`](AddressSpace::prepare_entries) makes every table that will be needed and may fail;
//! [`move_entries`](AddressSpace::move_entries) cannot. Nobody may fault in either range meanwhile: the caller has the
//! mmap lock for writing and the source's VMA locked for writing, and nothing is mapped at the target yet, or it is
//! locked for writing as well.
//!
//! For each pair of tables both locks are taken, in the order of addresses; every entry leaves the source by an exchange,
//! so that no accessed or dirty bit is lost, and enters the target; and the source's old translations are flushed before
//! the locks are let go (hazard C-39): from then on somebody else may find the entry at its new place, take it away, and
//! give the frame to others.

use super::{AddressSpace, zap::SpaceTlb};
use crate::{PAGE_SIZE, error::NoMemory, platform::Platform};
use core::ops::Range;
use freehold_pagetable::{Gather, Kind, Level, Pte, PteFlags, PteTable, VaRange, VirtAddr};

/// What a gather for moved entries holds: no frame goes away.
pub(super) type MoveGather<'g, 's, P> = Gather<'g, SpaceTlb<'s, P>, 1>;

/// A table of the lowest level, and the part of the range in question that it translates.
pub(super) type Found<'s, P> = (PteTable<'s, <P as Platform>::Format, P>, Range<u64>);

impl<P: Platform> AddressSpace<P> {
    /// The first table of the lowest level under `range`. Large leaves on the way are split; spans without tables cost one
    /// look each, however large they are.
    ///
    /// # Errors
    ///
    /// No memory to split a large leaf.
    pub(super) fn next_table(&self, range: Range<u64>) -> Result<Option<Found<'_, P>>, NoMemory> {
        let mut at = VirtAddr::new(range.start);
        while at.get() < range.end {
            if let Some(table) = self.table.pte_table(self.platform(), at) {
                let end = table.span().end().get().min(range.end);
                return Ok(Some((table, at.get()..end)));
            }
            let (pte, level) = self.table.peek(self.platform(), at);
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

    fn split_leaf(&self, at: VirtAddr, level: Level) -> Result<(), NoMemory> {
        let platform = self.platform();
        let split = match level {
            Level::Pmd => self.table.pmd_table(platform, at).map(|table| table.split(at)),
            _ => self.table.pud_table(platform, at).map(|table| table.split(at)),
        };
        match split {
            Some(Err(_)) => Err(NoMemory),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Makes the tables into which [`move_entries`](Self::move_entries) will put what is mapped in `from`.
    ///
    /// # Errors
    ///
    /// No memory; some tables may have been made.
    pub(super) fn prepare_entries(&self, from: Range<u64>, to: u64) -> Result<(), NoMemory> {
        let mut at = from.start;
        while let Some((_, part)) = self.next_table(at..from.end)? {
            let target = to + (part.start - from.start);
            // What one table holds may end up in two.
            for address in [target, target + (part.end - part.start) - PAGE_SIZE] {
                self.table.pte_table_alloc(self.platform(), VirtAddr::new(address)).map_err(|_| NoMemory)?;
            }
            at = part.end;
        }
        Ok(())
    }

    /// Moves every entry of `from`, of whatever kind, to the same place of the range that starts at `to`.
    ///
    /// `exclude` is called around each pair of tables, to keep walkers of a file's interval tree out where they could come
    /// to the target before the source and so miss an entry at both (linux-locking A.6); what it returns is held meanwhile.
    pub(super) fn move_entries<L>(
        &self,
        from: Range<u64>,
        to: u64,
        gather: &mut MoveGather<'_, '_, P>,
        exclude: impl Fn() -> L,
    ) {
        let mut at = from.start;
        while let Some((source, mut part)) =
            self.next_table(at..from.end).expect("large leaves were split before")
        {
            let address = VirtAddr::new(to + (part.start - from.start));
            let target = self.table.pte_table(self.platform(), address).expect("the table was made before");
            part.end = part.end.min(part.start + (target.span().end().get() - address.get()));
            at = part.end;
            let excluded = exclude();
            Self::move_part(source, target, part, address, gather);
            drop(excluded);
        }
    }

    /// Moves the entries of one part of one table to one part of one table, which may be the same table.
    fn move_part(
        source: PteTable<'_, P::Format, P>,
        target: PteTable<'_, P::Format, P>,
        part: Range<u64>,
        to: VirtAddr,
        gather: &mut MoveGather<'_, '_, P>,
    ) {
        let place = |address: VirtAddr| VirtAddr::new(to.get() + (address.get() - part.start));
        let (mut source, target) = source.lock_two(target);
        match target {
            Some(mut target) => {
                source.zap_each(VaRange::of(part.start, part.end), gather, |address, slot, _| {
                    target.set(place(address), moved(slot.take()));
                });
                // With both locks held still.
                gather.flush();
                drop(target);
            }
            None => {
                for page in (part.start..part.end).step_by(PAGE_SIZE as usize) {
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

/// What an entry becomes at its new address: a page counts as written there, for who watches by soft-dirty bits; a
/// marker stays what it is.
fn moved<F: freehold_pagetable::Format>(pte: Pte<F>) -> Pte<F> {
    match pte.kind(Level::Pte) {
        Kind::Leaf { flags, .. } => pte.with_flags(Level::Pte, flags | PteFlags::SOFT_DIRTY),
        Kind::None | Kind::Marker { .. } | Kind::Table { .. } => pte,
    }
}
