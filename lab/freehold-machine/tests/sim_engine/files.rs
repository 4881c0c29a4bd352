//! Faults of many CPUs on pages of one file.
//!
//! Sixteen processes fault in cached pages of a file, either separate pages for each process, or the same
//! pages for all. Faults on separate pages must not transfer a cache line: they look pages up without a lock
//! and write only the records of their frames. Faults on the same pages transfer the counts of these frames.
//! These transfers show that the first test would detect a shared line. The locks of the file are measured by
//! `freehold reproduce` (`i-mmap`).

use crate::world::{More, PAGE, RW, World, more, ran_alone};
use freehold::PageIndex;
use freehold::fault::Access;
use freehold::file::{File, FileAccess, Mapping, Zeroes};
use freehold::space::{Locking, MapFlags};
use freehold_machine::Process;

const AT: u64 = 1 << 40;

/// Makes sixteen processes fault in cached pages of a file. If `same` is true, all processes use the same
/// pages; otherwise each process uses pages of its own.
fn faults(access: Access, sharing: MapFlags, same: bool) -> More {
    more(160, |pages| {
        let world = World::new(16);
        let all = if same { pages } else { 16 * pages };
        let mapping = Mapping::new(&world.engine, Zeroes, all * PAGE, false).expect("a file");
        (0..all).for_each(|index| mapping.fill(PageIndex::new(index)).expect("a page"));
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").expect("a file");
        let processes: Vec<Process> = (0..16)
            .map(|_| {
                let process = world.process(Locking::default());
                let flags = sharing | MapFlags::FIXED;
                process.mmap(AT, all * PAGE, RW, flags, Some(&file), 0).expect("a VMA");
                process
            })
            .collect();
        let report = world.all(|number| {
            let mut cpu = world.machine.cpu(number);
            let first = if same { 0 } else { number as u64 * pages };
            for page in first..first + pages {
                processes[number].touch(&mut cpu, AT + page * PAGE, access).expect("a page");
            }
        });
        (world, report)
    })
}

#[test]
fn faults_on_separate_pages_share_no_cache_line() {
    if ran_alone(faults_on_separate_pages_share_no_cache_line) {
        return;
    }
    // A store marks its page as dirty. The mark of the first page of a leaf, which has 64 pages, also sets a bit
    // that all CPUs share.
    for (access, sharing, most) in [
        (Access::READ, MapFlags::SHARED, 0.01),
        (Access::WRITE, MapFlags::SHARED, 2.0 / 64.0),
        (Access::WRITE, MapFlags::PRIVATE, 0.01),
    ] {
        let more = faults(access, sharing, false);
        assert!(more.most() < most, "{access:?}, {sharing:?}: {:?}", more.places);
    }
}

/// All processes that map a page write the counts of its frame. This test shows that the test above would
/// detect a shared line.
#[test]
fn faults_on_the_same_pages_transfer_their_counts() {
    if ran_alone(faults_on_the_same_pages_transfer_their_counts) {
        return;
    }
    let more = faults(Access::WRITE, MapFlags::SHARED, true);
    assert!(more.most() > 0.5, "{:?}", more.places);
}
