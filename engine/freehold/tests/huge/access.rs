//! Access to huge pages on behalf of another process (`src/remote/`): process_vm_readv and process_vm_writev,
//! and debuggers. The tests check the words on both sides and whether the huge page stays whole: a write to a
//! shared page copies one small page, and a forced write splits a read-only huge page.

use super::*;
use freehold::remote::AccessMode;

/// Reads a word of the memory of a process.
fn look(process: &Process, addr: u64, mode: AccessMode) -> u64 {
    let mut word = [0; 8];
    assert_eq!(process.read_memory(addr, &mut word, mode), Ok(8));
    u64::from_le_bytes(word)
}

/// Writes a word of the memory of a process.
fn put(process: &Process, addr: u64, value: u64, mode: AccessMode) {
    assert_eq!(process.write_memory(addr, &value.to_le_bytes(), mode), Ok(8));
}

#[test]
fn remote_access_reads_and_writes_huge_pages() {
    each_way(HugePages::Always, |_, process, cpu| {
        map(process, BASE, 3);
        write_sample(process, cpu, BASE, 1);
        for page in SAMPLE {
            assert_eq!(look(process, BASE + page * PAGE, AccessMode::Plain), value(1, page));
            put(process, BASE + page * PAGE, value(2, page), AccessMode::Plain);
        }
        assert_sample(process, cpu, BASE, 2, all);
        // A read of unpopulated memory maps the huge zero page, and a write replaces it by memory.
        assert_eq!(look(process, BASE + HUGE + 5, AccessMode::Plain), 0);
        assert_eq!(present(process, BASE + HUGE, 1), [(0, PAGES, PageKind::Zero, true)]);
        put(process, BASE + HUGE, 3, AccessMode::Plain);
        put(process, BASE + 2 * HUGE, 4, AccessMode::Plain);
        for huge in 0..3 {
            assert_eq!(present(process, BASE + huge * HUGE, 1), ONE);
        }
        // A transfer across the border of two huge pages.
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!(process.write_memory(BASE + HUGE - 50, &bytes, AccessMode::Plain), Ok(100));
        let mut found = [0; 100];
        process.read(cpu, BASE + HUGE - 50, &mut found).unwrap();
        assert_eq!(found.as_slice(), bytes);
    });
}

#[test]
fn remote_write_copies_one_page_of_a_shared_huge_page() {
    each_way(HugePages::Always, |_, process, cpu| {
        map(process, BASE, 1);
        write_sample(process, cpu, BASE, 1);
        let child = Process::of(process.fork().unwrap());
        put(&child, BASE + 100 * PAGE, 7, AccessMode::Plain);
        assert_sample(process, cpu, BASE, 1, all);
        assert_eq!(present(process, BASE, 1), ONE);
        assert_eq!(child.load(cpu, BASE + 100 * PAGE), Ok(7u64));
        assert_sample(&child, cpu, BASE, 1, |page| page != 100);
        child.check();
    });
}

#[test]
fn forced_write_splits_a_read_only_huge_page() {
    for prot in [R, Prot::empty()] {
        each_way(HugePages::Always, |_, process, cpu| {
            // Three huge pages: one was written before, one was read before, one was never accessed.
            map(process, BASE, 3);
            write_sample(process, cpu, BASE, 1);
            assert_eq!(process.load::<u64>(cpu, BASE + HUGE), Ok(0));
            process.mprotect(BASE, 3 * HUGE, prot).unwrap();
            for at in [BASE, BASE + HUGE, BASE + 2 * HUGE] {
                put(process, at + 100 * PAGE, 7, AccessMode::Forced);
                assert_eq!(look(process, at + 100 * PAGE, AccessMode::Forced), 7);
                // The program itself has no right to write.
                assert!(process.store(cpu, at + 100 * PAGE, 8u64).is_err());
                assert!(process.store(cpu, at + 101 * PAGE, 8u64).is_err());
                assert_eq!(
                    look(process, at + 101 * PAGE, AccessMode::Forced),
                    if at == BASE { value(1, 101) } else { 0 }
                );
                process.check();
            }
            process.mprotect(BASE, 3 * HUGE, RW).unwrap();
            assert_sample(process, cpu, BASE, 1, |page| page != 100);
            write_sample(process, cpu, BASE + HUGE, 2);
            assert_sample(process, cpu, BASE + HUGE, 2, all);
        });
    }
}
