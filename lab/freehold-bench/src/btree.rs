//! A simple implementation for comparison: a map of areas by start behind a reader/writer lock.
//!
//! [`LockedTree`] is the code that a kernel would write first. Lookups take the lock for reading, changes for
//! writing; there is no page table. The operations are those of [`Subject`] (`lib.rs`). The code must stay
//! simple, because the benches show what the engine costs and gains compared with this code.

use crate::{BASE, LENGTH, PAGE, STACK, STRIDE, Subject};
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// An area: its end and its rights.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Area {
    /// The address after the last byte.
    end: u64,
    /// The access rights.
    rights: u32,
}

/// `BTreeMap` behind parking_lot's `RwLock`. The map has no gap index: the search for free space goes from
/// the top down.
pub struct LockedTree(RwLock<BTreeMap<u64, Area>>);

impl Subject for LockedTree {
    const NAME: &'static str = "BTreeMap in RwLock";

    fn with_areas(areas: u64) -> Self {
        let area =
            |n: u64| (BASE + n * STRIDE, Area { end: BASE + n * STRIDE + LENGTH, rights: 3 + n as u32 % 2 });
        let stack = (STACK, Area { end: STACK + LENGTH, rights: 3 });
        LockedTree(RwLock::new((0..areas).map(area).chain([stack]).collect()))
    }

    fn lookup(&self, address: u64) -> Option<u64> {
        let map = self.0.read();
        let (start, area) = map.range(..=address).next_back()?;
        (address < area.end).then_some(*start)
    }

    fn map_unmap(&self, _: u64) {
        let at = {
            let mut map = self.0.write();
            let mut high = STACK + LENGTH;
            for (start, area) in map.iter().rev() {
                if high - area.end >= PAGE {
                    break;
                }
                high = *start;
            }
            map.insert(high - PAGE, Area { end: high, rights: 0 });
            high - PAGE
        };
        self.0.write().remove(&at);
    }

    fn split_merge(&self, address: u64) {
        let page = address + 2 * PAGE;
        {
            let mut map = self.0.write();
            let (start, whole) = map.range(..=page).next_back().map(|(s, a)| (*s, *a)).expect("an area");
            map.insert(start, Area { end: page, ..whole });
            map.insert(page, Area { end: page + PAGE, rights: 1 });
            map.insert(page + PAGE, whole);
        }
        let mut map = self.0.write();
        let high = map.remove(&(page + PAGE)).expect("the upper part");
        map.remove(&page);
        let (_, low) = map.range_mut(..page).next_back().expect("the lower part");
        *low = high;
    }
}
