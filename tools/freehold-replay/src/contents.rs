//! What a replay on memory with contents writes, and what it must never find.
//!
//! A write fault stores a word that names the address space and how often that was forked before, at a place
//! in the page that is the task's own. So whatever word is found in a private page says where it comes from:
//! from this address space, or from one that it was forked from, before that fork. Anything else is a page
//! that leaked, was not zeroed, or was shared for too long. What is stored through a shared mapping is
//! everybody's: private copies of a file's pages may hold it, whichever process stored it.

use freehold::fault::FaultError;
use freehold::report::pagemap::PageKind;
use freehold::vma::flags::VmFlags;
use freehold_machine::{Cpu, Process};
use freehold_pagetable::X86_4;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const PAGE: u64 = 4096;
/// Words of a page.
const WORDS: u64 = PAGE / 8;

/// Where the words in an address space may come from.
#[derive(Debug)]
pub(super) struct Lineage {
    /// Itself first, then what it was forked from: the number of an address space, and the number of its
    /// forks from which on its words must not be seen here.
    sources: Vec<(u32, u32)>,
    /// Number of its own forks. The plan orders each of them with everything else in the address space.
    forks: AtomicU32,
}

/// In place of an address space: a word that was stored to shared memory.
const EVERYBODY: u32 = 0;

/// The number of the next address space. Unique is all it must be, and not [`EVERYBODY`]'s.
static NEXT: AtomicU32 = AtomicU32::new(1);

impl Lineage {
    /// Of an address space that an exec made.
    pub(super) fn fresh() -> Lineage {
        Lineage { sources: vec![(NEXT.fetch_add(1, Relaxed), u32::MAX)], forks: AtomicU32::new(0) }
    }

    /// Returns the lineage of an address space that was just forked from this one.
    pub(super) fn forked(&self) -> Lineage {
        let mut child = Lineage::fresh();
        // Relaxed: steps that wait for each other are synchronised by `Slot::done`.
        let own = (self.sources[0].0, self.forks.fetch_add(1, Relaxed) + 1);
        child.sources.push(own);
        child.sources.extend(&self.sources[1..]);
        child
    }

    /// Returns the word that a task stores now.
    fn word(&self) -> u64 {
        // Relaxed: as in `forked`.
        u64::from(self.sources[0].0) << 32 | u64::from(self.forks.load(Relaxed))
    }

    /// Whether a word may be seen in a private page here; `copy`: one that may be a copy of a file's page.
    fn may_hold(&self, word: u64, copy: bool) -> bool {
        let (number, forks) = ((word >> 32) as u32, word as u32);
        word == 0
            || number == EVERYBODY && copy
            || self.sources.iter().any(|&(source, until)| source == number && forks < until)
    }
}

/// Stores the task's word in the page of `address`.
///
/// # Errors
/// How the fault ended, if not well.
pub(super) fn store(
    process: &Process,
    cpu: &mut Cpu<X86_4>,
    address: u64,
    task: u32,
    lineage: &Lineage,
    line: u32,
) -> Result<(), FaultError> {
    let at = (address & !(PAGE - 1)) + u64::from(task) % WORDS * 8;
    let shared = process.find_vma(at).is_some_and(|vma| vma.flags().contains(VmFlags::MAYSHARE));
    let word = if shared { u64::from(EVERYBODY) << 32 | u64::from(line) } else { lineage.word() };
    process.store(cpu, at, word)
}

/// Looks at every private page; what was found that should not be there: its address and the word.
pub(super) fn strangers(process: &Process, lineage: &Lineage) -> Option<(u64, u64)> {
    let mut pages = Vec::new();
    process.pagemap(0..super::TASK_SIZE, |present| {
        if present.kind == PageKind::Anon {
            pages.push(present.range);
        }
    });
    let mut bytes = [0; PAGE as usize];
    for at in pages.into_iter().flat_map(|range| range.iter()) {
        // What has no rights at all is looked at too.
        if process.read_memory(at, &mut bytes, freehold::remote::AccessMode::Forced) != Ok(bytes.len()) {
            continue;
        }
        let copy = process.find_vma(at).is_some_and(|vma| vma.object().file().is_some());
        for (place, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if !lineage.may_hold(word, copy) {
                return Some((at + place as u64 * 8, word));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_from_oneself_and_from_before_a_fork() {
        let parent = Lineage::fresh();
        let first = parent.word();
        let child = parent.forked();
        let (second, of_child) = (parent.word(), child.word());
        let grandchild = child.forked();
        let sibling = parent.forked();
        assert!([first, second, parent.word(), 0].iter().all(|word| parent.may_hold(*word, false)));
        assert!(!parent.may_hold(of_child, false), "a child's word in its parent");
        assert!(child.may_hold(first, false) && !child.may_hold(second, false));
        assert!(grandchild.may_hold(of_child, false) && !grandchild.may_hold(child.word(), false));
        assert!(grandchild.may_hold(first, false) && !grandchild.may_hold(second, false));
        assert!(sibling.may_hold(second, false) && !sibling.may_hold(parent.word(), false));
        assert!(!sibling.may_hold(of_child, false) && !Lineage::fresh().may_hold(first, false));
    }
    #[test]
    fn what_is_stored_to_shared_memory_is_found_in_copies_of_files_alone() {
        let (one, word) = (Lineage::fresh(), u64::from(EVERYBODY) << 32 | 7);
        assert!(one.may_hold(word, true) && !one.may_hold(word, false));
        assert!(!one.may_hold(Lineage::fresh().word(), true), "a private word of another");
    }
}
