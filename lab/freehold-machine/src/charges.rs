//! The owners of charged frames, page tables and huge pages, which the engine names in `Platform::charge`,
//! `TableMemory::alloc_table` and `Platform::charge_huge_page`, and the oracle of charges.
//!
//! With [oracles](crate::MachineConfig), the machine stores the owner of each charged frame, and panics if
//! the engine
//!
//! - charges a frame that is charged,
//! - ends the charge of a frame that is not charged,
//! - frees a charged frame, or
//! - names the owner of a frame that is not charged.
//!
//! Huge pages of pools obey the same rules; the first frame stands for the page. A table must be allocated
//! for the root of a space.
//!
//! A test may limit an owner by [`set_charge_limit`](Machine::set_charge_limit). Without oracles, all charges
//! are accepted and none is stored. The owners are the host's atomics, so the checker of schedules and the
//! simulation do not see them. `tests/oracles.rs` has a kernel for each panic.

use crate::{
    Machine, Mmu, exempt,
    host::{self, LazyArray, Lock},
    inner::Inner,
};
use freehold::platform::{FileId, PageOwner};
use freehold_pagetable::{Format, OutOfTables, Pfn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The owner of a charged frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The address space with this root table.
    Space(Pfn),
    /// The file with this identifier.
    File(FileId),
    /// A space without an MMU.
    Caller,
    /// The page tables of the address space with this root table, which is one of them.
    Tables(Pfn),
    /// The huge pages of pools in private memory of the address space with this root table.
    SpaceHugePages(Pfn),
    /// The huge pages of pools in the cache of this file.
    FileHugePages(FileId),
}

impl Owner {
    /// Returns the account of this owner's huge pages.
    fn of_huge_pages(self) -> Self {
        match self {
            Owner::Space(root) => Owner::SpaceHugePages(root),
            Owner::File(file) => Owner::FileHugePages(file),
            other => other,
        }
    }

    /// Returns true for an account of pages, and false for one of tables or huge pages.
    fn has_pages(&self) -> bool {
        matches!(self, Owner::Space(_) | Owner::File(_) | Owner::Caller)
    }
}

/// A function that decides whether an owner, which has a number of charged frames, may have more. The second
/// number is that of the additional frames.
pub type ChargeLimit = dyn Fn(Owner, u64, u64) -> bool + Send + Sync;

/// The charges of a machine.
pub(crate) struct Charges {
    /// For each frame, the number of its owner in `owners`, or 0. Empty without oracles.
    frames: LazyArray<AtomicU64>,
    /// For each table, the number of its owner, or 0. Empty without oracles.
    tables: LazyArray<AtomicU64>,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// The owners so far, and their numbers of frames.
    owners: Vec<(Owner, u64)>,
    numbers: BTreeMap<Owner, u64>,
    /// For the first frame of each charged huge page, the number of its owner, and the number of frames.
    huge_pages: BTreeMap<Pfn, (u64, u64)>,
    limit: Option<Arc<ChargeLimit>>,
}

impl State {
    /// Returns the number of an owner: its place in `owners` plus 1.
    fn number(&mut self, owner: Owner) -> u64 {
        let State { owners, numbers, .. } = self;
        *numbers.entry(owner).or_insert_with(|| {
            owners.push((owner, 0));
            owners.len() as u64
        })
    }

    /// Adds `frames` to the count of the owner with this number. Returns false if the limit refuses.
    fn add(&mut self, number: u64, frames: u64) -> bool {
        let (owner, count) = &mut self.owners[number as usize - 1];
        let is_allowed = self.limit.as_ref().is_none_or(|limit| limit(*owner, *count, frames));
        *count += if is_allowed { frames } else { 0 };
        is_allowed
    }

    /// Subtracts `frames` from the count of the owner with this number.
    fn subtract(&mut self, number: u64, frames: u64) {
        self.owners[number as usize - 1].1 -= frames;
    }
}

impl Charges {
    pub(crate) fn new(frames: usize, tables: usize, oracles: bool) -> std::io::Result<Self> {
        let words = |count| LazyArray::new(if oracles { count } else { 1 }, false);
        Ok(Charges { frames: words(frames)?, tables: words(tables)?, state: Lock::new(State::default()) })
    }
}

impl<F: Format> Inner<F> {
    /// The word of a frame in `Charges::frames`.
    fn charge_of(&self, pfn: Pfn) -> &AtomicU64 {
        self.charges.frames.get(self.frames.index_of(pfn)).expect("an element for each frame")
    }

    /// Charges frames. Returns false if the account, or the limit of the owner, refuses.
    #[inline(always)]
    pub(crate) fn charge(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
        !self.charges_pages || self.charge_now(owner, first, frames)
    }

    #[inline(never)]
    fn charge_now(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
        if let Some(account) = &self.account
            && !host::with_cpu(|cpu| account.charge(cpu, frames))
        {
            return false;
        }
        if !self.config.oracles {
            return true;
        }
        exempt(|| {
            let mut state = self.charges.state.lock();
            let number = match owner {
                PageOwner::Space(mmu) => state.number(Owner::Space(mmu.root())),
                PageOwner::File(file) => state.number(Owner::File(file)),
                PageOwner::SameAs(from) => {
                    let number = self.charge_of(from).load(SeqCst);
                    assert_ne!(number, 0, "{first:?} is charged to the owner of {from:?}, which has none");
                    number
                }
                _ => state.number(Owner::Caller),
            };
            if !state.add(number, frames) {
                return false;
            }
            let owner = state.owners[number as usize - 1].0;
            for pfn in (0..frames).map(|n| first.add(n)) {
                let before = self.charge_of(pfn).swap(number, SeqCst);
                assert_eq!(before, 0, "{pfn:?} is charged to {owner:?} although it is charged already");
            }
            true
        })
    }

    /// Ends charges.
    #[inline(always)]
    pub(crate) fn uncharge(&self, frames: &[Pfn]) {
        if self.charges_pages {
            self.uncharge_now(frames);
        }
    }

    #[inline(never)]
    fn uncharge_now(&self, frames: &[Pfn]) {
        if let Some(account) = &self.account {
            host::with_cpu(|cpu| account.uncharge(cpu, frames.len() as u64));
        }
        if !self.config.oracles {
            return;
        }
        let mut state = self.charges.state.lock();
        for pfn in frames {
            let number = self.charge_of(*pfn).swap(0, SeqCst);
            assert_ne!(number, 0, "the charge of {pfn:?} ends, but it is not charged");
            state.subtract(number, 1);
        }
    }

    /// The word of a table in `Charges::tables`.
    fn table_charge_of(&self, table: Pfn) -> &AtomicU64 {
        self.charges.tables.get(self.tables.index_of(table)).expect("an element for each table")
    }

    /// Charges a table to the space with this root, which may be the table itself. Fails if the limit of the
    /// space refuses.
    #[inline(always)]
    pub(crate) fn charge_table(&self, root: Pfn, table: Pfn) -> Result<(), OutOfTables> {
        if self.config.oracles { self.charge_table_now(root, table) } else { Ok(()) }
    }

    #[inline(never)]
    fn charge_table_now(&self, root: Pfn, table: Pfn) -> Result<(), OutOfTables> {
        exempt(|| {
            let mut state = self.charges.state.lock();
            let number = state.number(Owner::Tables(root));
            if root != table {
                let of_root = self.table_charge_of(root).load(SeqCst);
                assert_eq!(of_root, number, "a table is allocated for {root:?}, which is not a root");
            }
            if !state.add(number, 1) {
                return Err(OutOfTables);
            }
            let before = self.table_charge_of(table).swap(number, SeqCst);
            assert_eq!(before, 0, "{table:?} is charged to {root:?} although it is charged already");
            Ok(())
        })
    }

    /// Ends the charge of a table that is freed. A root that never became a space is not charged.
    pub(crate) fn uncharge_table(&self, table: Pfn) {
        if self.config.oracles {
            let number = self.table_charge_of(table).swap(0, SeqCst);
            if number != 0 {
                self.charges.state.lock().subtract(number, 1);
            }
        }
    }

    /// Charges a huge page. Returns false if the limit of the owner refuses.
    pub(crate) fn charge_huge_page(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
        if !self.config.oracles {
            return true;
        }
        exempt(|| {
            let mut state = self.charges.state.lock();
            let number = match owner {
                PageOwner::Space(mmu) => state.number(Owner::Space(mmu.root()).of_huge_pages()),
                PageOwner::File(file) => state.number(Owner::File(file).of_huge_pages()),
                PageOwner::SameAs(from) => {
                    state.huge_pages.get(&from).unwrap_or_else(|| panic!("{from:?} has no owner")).0
                }
                other => panic!("a huge page of {other:?}"),
            };
            if !state.add(number, frames) {
                return false;
            }
            let before = state.huge_pages.insert(first, (number, frames));
            assert_eq!(before, None, "the huge page {first:?} is charged although it is charged already");
            true
        })
    }

    /// Ends the charge of a huge page.
    pub(crate) fn uncharge_huge_page(&self, first: Pfn, frames: u64) {
        if self.config.oracles {
            exempt(|| {
                let mut state = self.charges.state.lock();
                let charged = state.huge_pages.remove(&first);
                let (number, count) =
                    charged.unwrap_or_else(|| panic!("the charge of {first:?} ends, but it is not charged"));
                assert_eq!(count, frames, "frames of the huge page {first:?}");
                state.subtract(number, frames);
            });
        }
    }

    /// Checks that frames that are freed are not charged.
    pub(crate) fn assert_uncharged(&self, frames: &[Pfn]) {
        let state = self.charges.state.lock();
        for pfn in frames {
            assert_eq!(self.charge_of(*pfn).load(SeqCst), 0, "{pfn:?} is freed while it is charged");
            let below = state.huge_pages.range(..=*pfn).next_back();
            let inside = below.filter(|(first, (_, frames))| pfn.get() - first.get() < *frames);
            assert_eq!(inside, None, "{pfn:?} is freed while its huge page is charged");
        }
    }
}

impl<F: Format> Machine<F> {
    /// Returns the number of frames that are charged to an owner.
    ///
    /// # Panics
    ///
    /// Panics if the machine has no oracles.
    pub fn charged(&self, owner: Owner) -> u64 {
        let inner = self.inner();
        assert!(inner.config.oracles, "a machine with oracles");
        let state = inner.charges.state.lock();
        state.numbers.get(&owner).map_or(0, |number| state.owners[*number as usize - 1].1)
    }

    /// Returns the number of frames that are charged to any owner, without tables and huge pages of pools.
    ///
    /// # Panics
    ///
    /// Panics if the machine has no oracles.
    pub fn charged_in_all(&self) -> u64 {
        let inner = self.inner();
        assert!(inner.config.oracles, "a machine with oracles");
        let state = inner.charges.state.lock();
        state.owners.iter().filter(|(owner, _)| owner.has_pages()).map(|(_, count)| count).sum()
    }

    /// Returns the number of tables that are charged to any space.
    ///
    /// # Panics
    ///
    /// Panics if the machine has no oracles.
    pub fn charged_tables(&self) -> u64 {
        let inner = self.inner();
        assert!(inner.config.oracles, "a machine with oracles");
        let state = inner.charges.state.lock();
        let of_tables = |(owner, _): &&(Owner, u64)| matches!(owner, Owner::Tables(_));
        state.owners.iter().filter(of_tables).map(|(_, count)| count).sum()
    }

    /// Sets the function that limits the charges of owners, or removes it. It must not call the engine.
    pub fn set_charge_limit(&self, limit: Option<Arc<ChargeLimit>>) {
        let before = exempt(|| std::mem::replace(&mut self.inner().charges.state.lock().limit, limit));
        drop(before);
    }
}
