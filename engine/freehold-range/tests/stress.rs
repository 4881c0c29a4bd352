//! Tests of lookups during changes, on real threads: the exclusive writer changes the map all the time, while
//! two readers look up addresses under RCU.
//!
//! Hazard C-1: a reader that reaches a freed node fails. For that purpose the map poisons every freed node,
//! and the allocator of this program delays the reuse of the node's memory. Some addresses are always mapped,
//! by *fixed* entries. A reader fails if it finds a hole at such an address, or if the next entry from any
//! address starts behind the next fixed entry. To test another change, add a case to `churn` that keeps the
//! fixed entries. `loom_map.rs` tries all schedules of short changes instead.
#![cfg(not(loom))]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_range::{Entry, Lookup, RangeMap};
use freehold_sync::Host;
use freehold_sync::testing::StdHost;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use support::model::entry;

/// An allocator that delays the reuse of freed blocks with a node's alignment, until a few thousand more such
/// blocks are freed. The contents of such a block stay as they were when it was freed.
struct Quarantine;

const KEPT: usize = 4096;
static QUEUE: Mutex<([usize; KEPT], usize)> = Mutex::new(([0; KEPT], 0));

// SAFETY: blocks come from the system's allocator and are returned to it, some of them late.
unsafe impl GlobalAlloc for Quarantine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.align() != 64 {
            // SAFETY: promised by the caller.
            return unsafe { System.dealloc(block, layout) };
        }
        let mut queue = QUEUE.lock().unwrap();
        let at = queue.1;
        let oldest = std::mem::replace(&mut queue.0[at], block.addr());
        queue.1 = (at + 1) % KEPT;
        drop(queue);
        block.expose_provenance();
        if oldest != 0 {
            // SAFETY: the block was freed before. All blocks of this alignment are nodes of the one fan-out
            // used here, so the layout is the same.
            unsafe { System.dealloc(std::ptr::with_exposed_provenance_mut(oldest), layout) };
        }
    }
}

#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine;

/// Number of slots, of 10 addresses each. Every eighth slot holds an entry that is never removed, but may be
/// replaced by an entry with another value. The writer fills, empties, splits and joins the ranges between
/// these entries, up to half the map at a time.
const SLOTS: u64 = 400;
const FIXED: u64 = 8;
const ROUNDS: u64 = 100_000;

fn fixed(at: u64, value: u64) -> Entry {
    entry(at * 10, at * 10 + 10, value)
}

#[test]
fn readers_find_entries_that_are_never_removed() {
    let map = RangeMap::<StdHost, 4>::new();
    let done = AtomicBool::new(false);
    let found = AtomicU64::new(0);
    // SAFETY: this is the only writer.
    let mut writer = unsafe { map.exclusive_writer() };
    for at in (0..SLOTS).step_by(FIXED as usize) {
        writer.preallocate(1).unwrap();
        writer.replace(at * 10, at * 10 + 10, &[fixed(at, 1)]);
    }
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (map, done, found) = (&map, &done, &found);
            scope.spawn(move || read(map, done, found, seed));
        }
        churn(&mut writer);
        // On a busy machine, wait until the readers have made enough lookups.
        while found.load(Ordering::Relaxed) < 10_000 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    writer.check();
    writer.clear();
    StdHost::rcu_barrier();
}

fn read(map: &RangeMap<StdHost, 4>, done: &AtomicBool, found: &AtomicU64, seed: u64) {
    let mut random = Pcg64Mcg::new(u128::from(seed) << 64 | 0xcafe_f00d);
    while !done.load(Ordering::Relaxed) {
        let rcu = StdHost::rcu_read();
        for _ in 0..32 {
            let at = random.next_u64() % (SLOTS / FIXED) * FIXED;
            let key = at * 10 + random.next_u64() % 10;
            match map.lookup(&rcu, key) {
                Lookup::Found(entry) => {
                    assert!(entry.start <= key && key < entry.end);
                    found.fetch_add(1, Ordering::Relaxed);
                }
                Lookup::Contended => {}
                Lookup::Hole => panic!("{key} is a hole, but is always mapped"),
            }
            // The next entry from any key starts at or before the next fixed entry.
            let key = random.next_u64() % ((SLOTS - FIXED) * 10);
            if let Lookup::Found(entry) = map.next(&rcu, key) {
                assert!(
                    entry.end > key && entry.start <= (key / 10 / FIXED + 1) * FIXED * 10,
                    "{entry:?} after {key}"
                );
            }
        }
    }
}

fn churn(writer: &mut freehold_range::ExclusiveWriter<'_, StdHost, 4>) {
    let mut random = Pcg64Mcg::new(0xdead_beef);
    for round in 0..ROUNDS {
        let from = random.next_u64() % SLOTS;
        let at = from / FIXED * FIXED;
        writer.preallocate(2).unwrap();
        let value = round + 1;
        match random.next_u64() % 8 {
            // The first three cases replace the entry of a fixed slot: by one entry, by three entries, or
            // together with all entries up to the next fixed slot.
            0 => writer.replace(at * 10, at * 10 + 10, &[fixed(at, value)]),
            1 => {
                let parts = [0, 3, 6]
                    .map(|part| entry(at * 10 + part, at * 10 + [3, 6, 10][part as usize / 3], value));
                writer.replace(at * 10, at * 10 + 10, &parts);
            }
            2 => writer.replace(at * 10, (at + FIXED) * 10, &[fixed(at, value)]),
            // Removes everything between two fixed entries.
            3 => writer.replace((at + 1) * 10, (at + FIXED) * 10, &[]),
            // Replaces many leaves by one entry that covers the fixed entries, and then replaces that one
            // entry by the fixed entries.
            4 if random.next_u64().is_multiple_of(16) => {
                let to = (at + FIXED * (1 + random.next_u64() % 24)).min(SLOTS);
                writer.replace(at * 10, to * 10, &[entry(at * 10, to * 10, value)]);
                carve(writer, at, to, value);
            }
            _ if from > at => {
                let with = [1, 4].map(|part| entry(from * 10 + part, from * 10 + part + 2, value));
                writer.replace(from * 10, from * 10 + 10, &with);
            }
            _ => {}
        }
        if round % 512 == 0 {
            writer.check();
        }
    }
}

/// Replaces the entry over the slots `[from, to)` by fixed entries. Each round splits one fixed entry off the
/// start of the remaining entry.
fn carve(writer: &mut freehold_range::ExclusiveWriter<'_, StdHost, 4>, from: u64, to: u64, value: u64) {
    for at in (from..to).step_by(FIXED as usize) {
        writer.preallocate(1).unwrap();
        let rest = (at + FIXED < to).then(|| entry((at + FIXED) * 10, to * 10, value));
        let with: Vec<Entry> = [Some(fixed(at, value)), rest].into_iter().flatten().collect();
        writer.replace(at * 10, to * 10, &with);
    }
}
