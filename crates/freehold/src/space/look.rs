//! Looks at the tree of VMAs by a task that holds nothing: what was there at some instant during the call.
#![expect(unsafe_code, reason = "turns words of the tree back into references, within a read section")]

use super::{
    AddressSpace,
    locking::LOOKS,
    tree_entry::{TreeEntry, decode},
};
use crate::{platform::Platform, vma::flags::VmFlags};
use freehold_range::{Entry, Lookup};

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Something is mapped there.
    Mapped,
    /// Nothing is, and nothing above grows down to it.
    Nothing,
    /// Nothing is, and the next VMA above grows down.
    BelowStack {
        /// Where that VMA starts.
        start: u64,
    },
    /// There, or above it, something is being mapped or unmapped.
    Unclear,
}

impl<P: Platform> AddressSpace<P> {
    /// The bounds of the VMA at `addr`.
    pub(super) fn mapped_at(&self, addr: u64) -> Option<(u64, u64)> {
        let rcu = P::rcu_read();
        loop {
            match self.tree.lookup(&rcu, addr) {
                Lookup::Hole => return None,
                Lookup::Contended => P::relax(),
                Lookup::Found(found) => {
                    // SAFETY: found within `rcu`.
                    let mapped = unsafe { decode::<P>(&found) }.vma().is_some();
                    return mapped.then_some((found.start, found.end));
                }
            }
        }
    }

    /// What lies at `addr`.
    pub(crate) fn peek_at(&self, addr: u64) -> Look {
        let rcu = P::rcu_read();
        let mut seen: Option<(Entry, VmFlags)> = None;
        for _ in 0..LOOKS {
            let found = match self.tree.next(&rcu, addr) {
                Lookup::Found(found) => found,
                Lookup::Hole => return Look::Nothing,
                Lookup::Contended => return Look::Unclear,
            };
            // SAFETY: found within `rcu`.
            let TreeEntry::Vma(above) = (unsafe { decode::<P>(&found) }) else { return Look::Unclear };
            if found.start <= addr {
                return Look::Mapped;
            }
            match seen {
                // The VMA is there still, so the flags are its own: one that has left the tree may have become
                // another. Whether it grows is the same all its life.
                Some((before, flags)) if before == found => {
                    return match flags.contains(VmFlags::GROWSDOWN) {
                        true => Look::BelowStack { start: found.start },
                        false => Look::Nothing,
                    };
                }
                _ => seen = Some((found, above.flags())),
            }
        }
        Look::Unclear
    }
}
