//! Tests of the tables of swap devices under loom. A cluster has 4 slots there.
//!
//! - Two tasks never get the same slot.
//! - A free slot is found: an allocation that begins after a slot became free does not find the device full.

use super::*;
use freehold_sync::testing::{LoomHost, model_bounded};
use loom::{sync::Arc, thread};

type Table = SwapTable<LoomHost>;

fn table(slots: u64) -> Arc<Table> {
    Arc::new(Table::try_new(slots).unwrap())
}

/// Allocates one slot, if there is a free one.
fn one(table: &Table) -> Option<u64> {
    table.allocate(1).unwrap().map(|batch| batch.first)
}

#[test]
fn two_tasks_get_different_slots() {
    model_bounded(3, || {
        let table = table(2);
        let other = {
            let table = table.clone();
            thread::spawn(move || one(&table))
        };
        let ours = one(&table);
        let theirs = other.join().unwrap();
        assert!(ours.is_some() || theirs.is_some());
        let mut found: alloc::vec::Vec<_> = [ours, theirs].into_iter().flatten().collect();
        found.extend(core::iter::from_fn(|| one(&table)));
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
        assert_eq!(table.used(), 2);
    });
}

/// One task frees a slot of a cluster while its CPU leaves the cluster. The slot is found again.
#[test]
fn slot_freed_while_a_cpu_leaves_its_cluster_is_found() {
    model_bounded(3, || {
        let table = table(u64::from(SLOTS) + 1);
        // The first cluster is the current one of this CPU, and is full.
        let first = table.allocate(SLOTS).unwrap().unwrap();
        assert_eq!((first.first, first.count), (0, SLOTS));
        let other = {
            let table = table.clone();
            thread::spawn(move || table.free(1, Unused::Free))
        };
        // Leaves the first cluster, unless the slot is already free.
        let ours = one(&table);
        other.join().unwrap();
        assert!(ours.is_some());
        let again = one(&table);
        assert!(again.is_some() && again != ours, "{again:?} after {ours:?}");
        assert_eq!(one(&table), None);
    });
}
