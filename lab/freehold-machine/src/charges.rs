//! The owners of charged frames, which the engine names in `Platform::charge`, and the oracle of charges.
//!
//! With [oracles](crate::MachineConfig), the machine stores the owner of each charged frame, and panics if
//! the engine
//!
//! - charges a frame that is charged,
//! - ends the charge of a frame that is not charged,
//! - frees a charged frame, or
//! - names the owner of a frame that is not charged.
//!
//! A test may limit an owner by [`set_charge_limit`](Machine::set_charge_limit). Without oracles, all charges
//! are accepted and none is stored. The owners are the host's atomics, so the checker of schedules and the
//! simulation do not see them. `tests/oracles.rs` has a kernel for each panic.

use crate::{
    Machine, Mmu, exempt,
    host::{LazyArray, Lock},
    inner::Inner,
};
use freehold::platform::{FileId, PageOwner};
use freehold_pagetable::{Format, Pfn};
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
}

/// A function that decides whether an owner, which has a number of charged frames, may have more. The second
/// number is that of the additional frames.
pub type ChargeLimit = dyn Fn(Owner, u64, u64) -> bool + Send + Sync;

/// The charges of a machine.
pub(crate) struct Charges {
    /// For each frame, the number of its owner in `owners`, or 0. Empty without oracles.
    frames: LazyArray<AtomicU64>,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// The owners so far, and their numbers of frames.
    owners: Vec<(Owner, u64)>,
    numbers: BTreeMap<Owner, u64>,
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
}

impl Charges {
    pub(crate) fn new(frames: usize, oracles: bool) -> std::io::Result<Self> {
        let frames = LazyArray::new(if oracles { frames } else { 1 }, false)?;
        Ok(Charges { frames, state: Lock::new(State::default()) })
    }
}

impl<F: Format> Inner<F> {
    /// The word of a frame in `Charges::frames`.
    fn charge_of(&self, pfn: Pfn) -> &AtomicU64 {
        self.charges.frames.get(self.frames.index_of(pfn)).expect("an element for each frame")
    }

    /// Charges frames. Returns false if the limit of the owner refuses.
    #[inline(always)]
    pub(crate) fn charge(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
        !self.config.oracles || self.charge_now(owner, first, frames)
    }

    #[inline(never)]
    fn charge_now(&self, owner: PageOwner<'_, Mmu<F>>, first: Pfn, frames: u64) -> bool {
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
            let (owner, count) = state.owners[number as usize - 1];
            if let Some(limit) = &state.limit
                && !limit(owner, count, frames)
            {
                return false;
            }
            state.owners[number as usize - 1].1 += frames;
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
        if self.config.oracles {
            self.uncharge_now(frames);
        }
    }

    #[inline(never)]
    fn uncharge_now(&self, frames: &[Pfn]) {
        let mut state = self.charges.state.lock();
        for pfn in frames {
            let number = self.charge_of(*pfn).swap(0, SeqCst);
            assert_ne!(number, 0, "the charge of {pfn:?} ends, but it is not charged");
            state.owners[number as usize - 1].1 -= 1;
        }
    }

    /// Checks that frames that are freed are not charged.
    pub(crate) fn assert_uncharged(&self, frames: &[Pfn]) {
        for pfn in frames {
            assert_eq!(self.charge_of(*pfn).load(SeqCst), 0, "{pfn:?} is freed while it is charged");
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

    /// Returns the number of frames that are charged to any owner.
    ///
    /// # Panics
    ///
    /// Panics if the machine has no oracles.
    pub fn charged_in_all(&self) -> u64 {
        let inner = self.inner();
        assert!(inner.config.oracles, "a machine with oracles");
        inner.charges.state.lock().owners.iter().map(|(_, count)| count).sum()
    }

    /// Sets the function that limits the charges of owners, or removes it. It must not call the engine.
    pub fn set_charge_limit(&self, limit: Option<Arc<ChargeLimit>>) {
        let before = exempt(|| std::mem::replace(&mut self.inner().charges.state.lock().limit, limit));
        drop(before);
    }
}
