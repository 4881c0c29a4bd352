//! Tests of the tables of swap devices: which slots are allocated, and how free slots are found again.
//! `slot_loom_tests.rs` has the protocol of a word. The tests of one thread use the number of slots of a
//! cluster in the ordinary build.

extern crate std;

use super::*;
use alloc::{collections::BTreeSet, vec::Vec};
use freehold_machine::Machine;

type Table = SwapTable<Machine>;

const CLUSTER: u64 = SLOTS as u64;

fn table(slots: u64) -> Table {
    Table::try_new(slots).unwrap()
}

/// Allocates slots until the device is full. Returns them, in the order of the allocation.
fn fill(table: &Table, wanted: u32) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(batch) = table.allocate(wanted).unwrap() {
        assert!((1..=wanted.clamp(1, MAX_BATCH)).contains(&batch.count), "{batch:?}");
        assert_eq!(batch.first / CLUSTER, (batch.first + u64::from(batch.count) - 1) / CLUSTER, "{batch:?}");
        all.extend((batch.first..).take(batch.count as usize));
    }
    all
}

#[test]
fn every_slot_is_allocated_once() {
    for (slots, wanted) in [(1, 32), (2 * CLUSTER, 7), (2 * CLUSTER + 3, 32), (130 * CLUSTER + 1, 32)] {
        let table = table(slots);
        let all = fill(&table, wanted);
        assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), (0..slots).collect());
        assert_eq!((all.len() as u64, table.used(), table.bad()), (slots, slots, 0));
    }
}

#[test]
fn batches_are_consecutive_while_clusters_are_free() {
    let table = table(4 * CLUSTER);
    for n in 0..CLUSTER / 32 {
        let batch = table.allocate(1000).unwrap().unwrap();
        assert_eq!((batch.first % CLUSTER, batch.count), (n * 32, 32));
    }
}

#[test]
fn freed_slots_of_full_clusters_are_found_again() {
    let table = table(70 * CLUSTER);
    assert_eq!(fill(&table, 32).len() as u64, table.slots());
    for slot in [5, 6, 69 * CLUSTER + 1, 33 * CLUSTER] {
        table.free(slot, Unused::Free);
    }
    let found: BTreeSet<_> = fill(&table, 1).into_iter().collect();
    assert_eq!(found, [5, 6, 33 * CLUSTER, 69 * CLUSTER + 1].into());
    assert_eq!(table.allocate(1).unwrap(), None);
}

#[test]
fn bad_slots_are_not_allocated_again() {
    let table = table(8);
    fill(&table, 8);
    table.slot(3).unwrap().0.store(crate::swap::word::State::Bad.word(), Relaxed);
    table.free(3, Unused::Bad);
    table.free(4, Unused::Free);
    assert_eq!((table.used(), table.bad()), (6, 1));
    assert_eq!(fill(&table, 8), [4]);
}

/// A CPU that finds no available cluster allocates from the current clusters of other CPUs.
#[test]
fn cpu_uses_the_clusters_of_other_cpus_before_the_device_is_full() {
    let table = table(CLUSTER);
    let first = table.allocate(4).unwrap().unwrap();
    // The words of the CPUs are rotated: each CPU, this one included, sees the cluster as that of another.
    let words: Vec<_> = table.current.iter().map(|word| word.load(Relaxed)).collect();
    let owner = words.iter().position(|word| *word != 0).unwrap();
    table.current.iter().for_each(|word| word.store(0, Relaxed));
    let other = (owner + 1) % words.len();
    assert_ne!(other, owner, "the machine has several CPUs");
    table.current.iter().nth(other).unwrap().store(words[owner], Relaxed);
    let second = table.allocate(4).unwrap().unwrap();
    assert_eq!((first.first, second.first), (0, 4));
}

#[test]
fn words_behind_the_end_of_the_device_are_bad() {
    let table = table(CLUSTER + 1);
    fill(&table, 32);
    assert!(table.slot(CLUSTER).is_some());
    let word = table.slot(CLUSTER + 1).unwrap();
    assert_eq!(word.state(), crate::swap::word::State::Bad);
    assert!(table.slot(2 * CLUSTER).is_none());
}

#[test]
fn threads_get_different_slots() {
    let table = table(8 * CLUSTER);
    let (all, freed) = std::thread::scope(|scope| {
        let workers = [(); 4].map(|()| {
            scope.spawn(|| {
                let (mut held, mut freed) = (Vec::new(), 0);
                while let Some(batch) = table.allocate(5).unwrap() {
                    held.extend((batch.first..).take(batch.count as usize));
                    if held.len() % 3 == 0 && freed < 500 {
                        table.free(held.pop().unwrap(), Unused::Free);
                        freed += 1;
                    }
                }
                (held, freed)
            })
        });
        let mut all = (Vec::new(), 0);
        for (held, freed) in workers.map(|worker| worker.join().unwrap()) {
            all.0.extend(held);
            all.1 += freed;
        }
        all
    });
    assert_ne!(freed, 0);
    let left = fill(&table, 32);
    assert_eq!(all.iter().chain(&left).copied().collect::<BTreeSet<_>>(), (0..table.slots()).collect());
    assert_eq!((all.len() + left.len()) as u64, table.slots(), "a slot was allocated twice");
}

#[test]
fn search_for_clean_pages_skips_unused_clusters() {
    use crate::swap::word::{Copy, State};
    let table = table(3 * CLUSTER);
    let batch = table.allocate(8).unwrap().unwrap();
    let clean = State::Cached { pfn: crate::Pfn::new(1), count: 1, copy: Copy::Clean };
    let word = |slot| table.slot(slot).unwrap().0;
    word(batch.first + 2).store(clean.word(), Relaxed);
    assert_eq!(table.next_clean(0, u64::MAX), (Some(batch.first + 2), batch.first + 3));
    assert_eq!(table.next_clean(batch.first + 3, u64::MAX), (None, table.slots()));
    assert_eq!(table.next_clean(batch.first, 2), (None, batch.first + 2));
}
