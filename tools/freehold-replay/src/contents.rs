//! Stores words in the memory of a replay, and checks that no word reaches a wrong process. Only a replay
//! with the option `backed`, whose memory has contents, does this.
//!
//! After a write fault, `perform.rs` calls [`store`], which writes a word to the task's own place in the
//! page. The word contains the number of the address space, and how many times that address space was forked
//! before. Every word in a private page therefore comes from this address space, or from one of its ancestors
//! before the fork. `compare.rs` searches for other words at each snapshot ([`strangers`]): such a word shows
//! a page that leaked, was not zeroed, or was shared for too long.
//!
//! Words stored through a shared mapping belong to no process: a private copy of a file's page may hold such
//! a word from any process. `each_way` in `tests/small.rs` replays recordings with contents on every second
//! design.

use freehold::fault::FaultError;
use freehold::report::pagemap::PageKind;
use freehold::vma::flags::VmFlags;
use freehold_machine::{Cpu, Process};
use freehold_pagetable::X86_4;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const PAGE: u64 = 4096;
/// Words of a page.
const WORDS: u64 = PAGE / 8;

/// The address spaces from which words in this address space may come.
#[derive(Debug)]
pub(super) struct Lineage {
    /// Pairs of an address space and a limit: first this address space, then its ancestors. A word may be
    /// present here only if it comes from one of these address spaces, and was stored before the number of
    /// forks of that address space reached the limit.
    sources: Vec<(u32, u32)>,
    /// Number of forks of this address space. The plan orders each fork with all other steps in the address
    /// space.
    forks: AtomicU32,
}

/// The number in a word that was stored to shared memory, in place of the number of an address space.
const SHARED_MEMORY: u32 = 0;

/// Number of the next address space. Each number is unique and differs from [`SHARED_MEMORY`].
static NEXT: AtomicU32 = AtomicU32::new(1);

impl Lineage {
    /// Returns the lineage of an address space that an exec created.
    pub(super) fn fresh() -> Lineage {
        Lineage { sources: vec![(NEXT.fetch_add(1, Relaxed), u32::MAX)], forks: AtomicU32::new(0) }
    }

    /// Returns the lineage of an address space that was just forked from this one.
    pub(super) fn forked(&self) -> Lineage {
        let mut child = Lineage::fresh();
        // Relaxed: steps that wait for each other are ordered by `Slot::done`.
        let own = (self.sources[0].0, self.forks.fetch_add(1, Relaxed) + 1);
        child.sources.push(own);
        child.sources.extend(&self.sources[1..]);
        child
    }

    /// Returns the word that a task stores at this moment.
    fn word(&self) -> u64 {
        // Relaxed: ordered by `Slot::done`, as in `forked`.
        u64::from(self.sources[0].0) << 32 | u64::from(self.forks.load(Relaxed))
    }

    /// Returns true if a private page here may hold `word`. `copy` says that the page may be a copy of a
    /// file's page.
    fn may_hold(&self, word: u64, copy: bool) -> bool {
        let (number, forks) = ((word >> 32) as u32, word as u32);
        word == 0
            || number == SHARED_MEMORY && copy
            || self.sources.iter().any(|&(source, until)| source == number && forks < until)
    }
}

/// Stores the task's word in the page of `address`. `line` is the line of the recording, which is part of the
/// word in shared memory.
///
/// # Errors
///
/// Fails with the error of the fault.
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
    let word = if shared { u64::from(SHARED_MEMORY) << 32 | u64::from(line) } else { lineage.word() };
    process.store(cpu, at, word)
}

/// Searches every private page for a word that no address space of `lineage` can have stored there. Returns
/// the address and the word.
pub(super) fn strangers(process: &Process, lineage: &Lineage) -> Option<(u64, u64)> {
    let mut pages = Vec::new();
    process.pagemap(0..super::TASK_SIZE, |present| {
        if present.kind == PageKind::Anon {
            pages.push(present.range);
        }
    });
    let mut bytes = [0; PAGE as usize];
    for at in pages.into_iter().flat_map(|range| range.iter()) {
        // Pages without any access rights are read too.
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
    fn private_pages_hold_own_words_and_words_from_before_a_fork() {
        let parent = Lineage::fresh();
        let first = parent.word();
        let child = parent.forked();
        let (second, of_child) = (parent.word(), child.word());
        let grandchild = child.forked();
        let sibling = parent.forked();
        assert!([first, second, parent.word(), 0].iter().all(|word| parent.may_hold(*word, false)));
        assert!(!parent.may_hold(of_child, false), "a child's word is allowed in its parent");
        assert!(child.may_hold(first, false) && !child.may_hold(second, false));
        assert!(grandchild.may_hold(of_child, false) && !grandchild.may_hold(child.word(), false));
        assert!(grandchild.may_hold(first, false) && !grandchild.may_hold(second, false));
        assert!(sibling.may_hold(second, false) && !sibling.may_hold(parent.word(), false));
        assert!(!sibling.may_hold(of_child, false) && !Lineage::fresh().may_hold(first, false));
    }
    #[test]
    fn words_of_shared_memory_are_allowed_only_in_copies_of_file_pages() {
        let (one, word) = (Lineage::fresh(), u64::from(SHARED_MEMORY) << 32 | 7);
        assert!(one.may_hold(word, true) && !one.may_hold(word, false));
        assert!(!one.may_hold(Lineage::fresh().word(), true), "a private word of another space is allowed");
    }
}
