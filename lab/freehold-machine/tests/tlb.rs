//! Translations that TLBs cache, and the operations that flush them.
//!
//! A TLB of this machine (`src/tlb.rs`) keeps a stale translation until a flush (`src/mmu.rs`), as a real TLB
//! may. The tests use the minimal kernel of `common`, which writes page table entries directly. A typical
//! test changes an entry, shows that a CPU still uses the old translation, flushes, and shows that the CPU
//! uses the new translation. If stale translations were not kept, the tests of the engine could not detect a
//! missing flush. Counts of walks and visits come from `Machine::stats`. Rules of the TLB alone are tested in
//! `src/tlb_tests.rs`. Mistakes that an oracle detects are tested in `oracles.rs`.

use crate::common::*;
use freehold::platform::{FramePurpose, FrameRequest, Platform};
use freehold_machine::{Machine, MachineConfig};
use freehold_pagetable::{Access, Format, Kind, Level, PteFlags, X86_4};
use freehold_sync::atomic::{AtomicU32, Ordering::SeqCst};

const AT: u64 = 0x7f00_0000_0000;

#[test]
fn removed_translation_is_used_until_a_flush() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RW);
        put(&mut cpu, &toy, AT, 5);
        toy.clear(AT, Level::Pte);
        assert_eq!(get(&mut cpu, &toy, AT), 5);
        put(&mut cpu, &toy, AT, 6);
        toy.flush(AT + PAGE, AT + 2 * PAGE, true);
        assert_eq!(get(&mut cpu, &toy, AT), 6, "a flush of the next page keeps the translation");
        toy.flush(AT, AT + 1, false);
        assert!(faults(&mut cpu, &toy, AT, Access::READ));
        toy.free(frame);
        toy.finish();
    });
}

#[test]
fn removed_rights_are_valid_until_a_flush() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RW);
        put(&mut cpu, &toy, AT, 1);
        toy.set_leaf(AT, Level::Pte, frame, RO);
        put(&mut cpu, &toy, AT, 2);
        toy.flush_all(false);
        assert!(faults(&mut cpu, &toy, AT, Access::WRITE));
        assert_eq!(get(&mut cpu, &toy, AT), 2);
        toy.finish();
    });
}

#[test]
fn added_rights_take_effect_after_a_spurious_fault() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RO);
        get(&mut cpu, &toy, AT);
        toy.set_leaf(AT, Level::Pte, frame, RW);
        let mut spurious = 0;
        cpu.store(&toy.mmu, AT, 3u32, |_, access| {
            spurious += 1;
            assert_eq!(access, Access::WRITE);
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(spurious, 1);
        put(&mut cpu, &toy, AT, 4);
        toy.finish();
    });
}

#[test]
fn first_store_sets_the_dirty_bit_in_memory() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        toy.map(AT, RW);
        let table = toy.table(AT, Level::Pte);
        let flags = || X86_4::flags(toy.entry_of(table, AT, Level::Pte));
        assert!(!flags().intersects(PteFlags::ACCESSED | PteFlags::DIRTY));
        get(&mut cpu, &toy, AT);
        assert_eq!(flags() & (PteFlags::ACCESSED | PteFlags::DIRTY), PteFlags::ACCESSED);
        put(&mut cpu, &toy, AT, 1);
        assert!(flags().contains(PteFlags::DIRTY));
        toy.finish();
    });
}

#[test]
fn walk_cache_keeps_a_table_until_tables_are_flushed() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        toy.map(AT, RW);
        let hidden = toy.map(AT + PAGE, RW);
        machine.write_frame(hidden, 0, &[7]);
        get(&mut cpu, &toy, AT);
        // Another table replaces the first table, but the walk cache still has the first table.
        let old = toy.clear(AT, Level::Pmd);
        let fresh = toy.map(AT + PAGE, RW);
        toy.flush(AT, AT + 2 * PAGE, false);
        assert_eq!(get(&mut cpu, &toy, AT + PAGE), 7);
        toy.flush(AT, AT + 2 * PAGE, true);
        assert_eq!(get(&mut cpu, &toy, AT + PAGE), 0);
        assert_ne!(hidden, fresh);

        let Kind::Table { pfn: old } = X86_4::kind(old, Level::Pmd) else { panic!("not a table") };
        for page in [AT, AT + PAGE] {
            let leaf = toy.entry_of(old, page, Level::Pte);
            toy.write(old, page, Level::Pte, 0);
            toy.free(X86_4::pfn(leaf));
        }
        toy.free_table(old);
        toy.finish();
        machine.accounting().assert_clean();
    });
}

#[test]
fn large_leaf_is_cached_and_flushed_as_a_whole() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let mut frames = vec![toy.frame(); 512];
        assert_eq!(machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames[1..]), 511);
        toy.set_leaf(AT, Level::Pmd, frames[0], RW);
        put(&mut cpu, &toy, AT + 77 * PAGE + 16, 9);
        let mut word = [0; 8];
        machine.read_frame(frames[77], 16, &mut word);
        assert_eq!(u64::from_le_bytes(word), 9);
        toy.clear(AT, Level::Pmd);
        machine.zero_frame(frames[500]);
        assert_eq!(get(&mut cpu, &toy, AT + 500 * PAGE), 0, "one walk served the whole span");
        toy.flush(AT + 3 * PAGE, AT + 4 * PAGE, false);
        assert!(faults(&mut cpu, &toy, AT + 500 * PAGE, Access::READ));
        frames.into_iter().for_each(|frame| toy.free(frame));
        toy.finish();
        machine.accounting().assert_clean();
    });
}

#[test]
fn translations_of_spaces_are_separate() {
    run(|| {
        let machine = backed();
        let (one, two) = (Toy::new(&machine), Toy::new(&machine));
        let mut cpu = machine.cpu(0);
        one.map(AT, RW);
        two.map(AT, RW);
        put(&mut cpu, &one, AT, 1);
        put(&mut cpu, &two, AT, 2);
        assert_eq!(get(&mut cpu, &one, AT), 1);
        let walks = machine.stats().walks;
        assert_eq!(get(&mut cpu, &two, AT), 2);
        assert_eq!(machine.stats().walks, walks, "the translations of both spaces stay cached");
        one.finish();
        assert_eq!(get(&mut cpu, &two, AT), 2);
        // The next space may get the number of the first space, but none of that space's cached translations.
        let three = Toy::new(&machine);
        assert!(faults(&mut cpu, &three, AT, Access::READ));
        two.finish();
        three.finish();
        machine.accounting().assert_clean();
    });
}

#[test]
fn flush_visits_exactly_the_cpus_that_ran_the_space() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let (mut zero, mut one, two) = (machine.cpu(0), machine.cpu(1), machine.cpu(2));
        toy.map(AT, RW);
        assert!(!zero.call(|| machine.runs_elsewhere(&toy.mmu)));
        get(&mut zero, &toy, AT);
        assert!(!zero.call(|| machine.runs_elsewhere(&toy.mmu)));
        assert!(two.call(|| machine.runs_elsewhere(&toy.mmu)));
        assert!(machine.runs_elsewhere(&toy.mmu), "a thread without a CPU counts as another CPU");
        get(&mut one, &toy, AT);
        assert!(zero.call(|| machine.runs_elsewhere(&toy.mmu)));

        zero.call(|| toy.flush(AT, AT + PAGE, false));
        let stats = machine.stats();
        assert_eq!((stats.local_visits, stats.remote_visits, stats.entries_flushed), (1, 1, 2));
        // A CPU that has stopped running the space keeps its translations and its mark until a flush of the
        // whole space with its tables.
        get(&mut one, &toy, AT);
        one.idle();
        assert!(zero.call(|| machine.runs_elsewhere(&toy.mmu)));
        zero.call(|| toy.flush_all(true));
        assert!(!zero.call(|| machine.runs_elsewhere(&toy.mmu)));
        let stats = machine.stats();
        assert_eq!((stats.range_flushes, stats.full_flushes, stats.table_flushes), (1, 1, 1));
        toy.finish();
    });
}

#[test]
fn walks_start_at_the_lowest_cached_table() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        for page in 0..8 {
            toy.map(AT + page * PAGE, RW);
            get(&mut cpu, &toy, AT + page * PAGE);
        }
        let stats = machine.stats();
        assert_eq!((stats.walks, stats.walk_cache_hits), (8, 7));
        toy.finish();
    });
}

#[test]
fn fault_drops_cached_entries_of_its_address() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        toy.map(AT, RW);
        get(&mut cpu, &toy, AT);
        // The whole table is replaced without a flush of the walk cache. An access through the old table
        // faults. After the fault it uses the new table.
        let old = toy.clear(AT, Level::Pmd);
        toy.map(AT + PAGE, RW);
        let mut taken = 0;
        let settled = |_, _| {
            taken += 1;
            Ok::<(), ()>(())
        };
        let value: u64 = cpu.load(&toy.mmu, AT + PAGE, settled).unwrap();
        assert_eq!((value, taken), (0, 1));
        let Kind::Table { pfn: old } = X86_4::kind(old, Level::Pmd) else { panic!("not a table") };
        let leaf = toy.entry_of(old, AT, Level::Pte);
        toy.write(old, AT, Level::Pte, 0);
        toy.flush_all(true);
        toy.free(X86_4::pfn(leaf));
        toy.free_table(old);
        toy.finish();
        machine.accounting().assert_clean();
    });
}

#[test]
fn protection_keys_are_checked_on_hits_and_walks() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        let frame = toy.map(AT, RW);
        let keyed = X86_4::with_pkey(X86_4::leaf(Level::Pte, frame, RW), 3);
        toy.write(toy.table(AT, Level::Pte), AT, Level::Pte, keyed);
        let deny_write = |access: Access| Access { pkru: 2 << 6, ..access };
        let deny_all = |access: Access| Access { pkru: 1 << 6, ..access };
        for primed in [false, true] {
            assert!(!faults(&mut cpu, &toy, AT, deny_write(Access::READ)), "primed: {primed}");
            assert!(faults(&mut cpu, &toy, AT, deny_write(Access::WRITE)), "primed: {primed}");
            assert!(faults(&mut cpu, &toy, AT, deny_all(Access::READ)), "primed: {primed}");
            assert!(!faults(&mut cpu, &toy, AT, Access::WRITE), "primed: {primed}");
        }
        toy.finish();
    });
}

#[test]
fn address_outside_the_format_faults() {
    run(|| {
        let machine = backed();
        let toy = Toy::new(&machine);
        let mut cpu = machine.cpu(0);
        for address in [1 << 47, !0, 0x8000_0000_0000_0000] {
            assert!(faults(&mut cpu, &toy, address, Access::READ), "{address:#x}");
        }
        toy.finish();
    });
}

/// Hazard C-39, and the promise of every TLB shootdown: after the flush no store reaches the frame, even if
/// another CPU was making an access.
#[test]
fn c39_no_access_is_in_progress_when_a_flush_returns() {
    run(|| {
        let machine = Machine::new(MachineConfig::backed(1 << 20).tables(1 << 20)).unwrap();
        let toy = std::sync::Arc::new(Toy::new(&machine));
        let control = toy.map(AT + PAGE, RW);
        let rounds: u64 = if cfg!(shuttle) { 2 } else { 300 };
        let writer = thread::spawn({
            let (toy, machine) = (toy.clone(), machine.clone());
            move || {
                let mut cpu = machine.cpu(1);
                let mut seen = 0;
                while seen < rounds {
                    let stored = cpu.store(&toy.mmu, AT, 1u64, |_, _| Err(()));
                    seen = cpu.load::<u64, ()>(&toy.mmu, AT + PAGE, |_, _| Err(())).unwrap();
                    if stored.is_err() {
                        thread::yield_now();
                    }
                }
            }
        });
        for round in 1..=rounds {
            let frame = toy.map(AT, RW);
            thread::yield_now();
            toy.clear(AT, Level::Pte);
            toy.flush(AT, AT + PAGE, false);
            machine.zero_frame(frame);
            thread::yield_now();
            let mut word = [1; 8];
            machine.read_frame(frame, 0, &mut word);
            assert_eq!(word, [0; 8], "a store reached the frame after the flush");
            toy.free(frame);
            machine.write_frame(control, 0, &round.to_le_bytes());
        }
        writer.join().unwrap();
        std::sync::Arc::into_inner(toy).unwrap().finish();
        machine.accounting().assert_clean();
    });
}

/// When a flush returns, every lock-free walk that began before the flush has ended. Only a CPU that runs the
/// space may walk its tables.
#[test]
fn flush_waits_for_lock_free_walks() {
    run(|| {
        let machine = backed();
        let (toy, other) = (Toy::new(&machine), Toy::new(&machine));
        let mut cpu = machine.cpu(0);
        cpu.run(&toy.mmu);
        assert_eq!(machine.walk_tables(&toy.mmu, || ()), None, "the thread is not on a CPU");
        assert_eq!(cpu.call(|| machine.walk_tables(&other.mmu, || ())), None, "another space");
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let walk = || {
                    (0..20).for_each(|_| inside.store(1, SeqCst));
                    inside.store(2, SeqCst);
                };
                assert_eq!(cpu.call(|| machine.walk_tables(&toy.mmu, walk)), Some(()));
            });
            scope.spawn(|| {
                let before = inside.load(SeqCst);
                toy.flush(AT, AT + PAGE, true);
                let after = inside.load(SeqCst);
                assert!(before != 1 || after == 2, "a flush returned during a walk");
            });
        });
        toy.finish();
        other.finish();
    });
}
