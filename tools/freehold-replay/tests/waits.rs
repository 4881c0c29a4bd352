//! The waits of replays name their holders, and sum to what the statistics of the locks say.

use freehold::space::Locking;
use freehold_replay::analysis::waits::Sum;
use freehold_replay::locking::Design;
use freehold_replay::{Options, replay};
use std::path::Path;

/// Replays a recording on three CPUs, compares its waits with the statistics, and returns their number.
fn check(name: &str, space: Locking) -> u64 {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings")).join(name);
    let options = Options { cpus: 3, design: Design::from(space), ..Options::default() };
    let outcome = replay(path.as_path(), &options, &()).expect("a recording");
    let (waits, counted) = (&outcome.waits, outcome.mmap_lock_wait.freehold);
    assert_eq!((waits.all.count, waits.all.longest_ns), (counted.count, counted.max), "{name}");
    let groups = waits.groups.iter().map(|group| group.sum);
    let parts: Vec<Sum> = groups.chain(waits.without_holder.iter().map(|waits| waits.sum)).collect();
    assert_eq!(parts.iter().map(|sum| sum.count).sum::<u64>(), waits.all.count, "{name}");
    assert_eq!(parts.iter().map(|sum| sum.total_ns).sum::<u64>(), waits.all.total_ns, "{name}");
    for wait in &waits.longest {
        let Some(holder) = &wait.holder else { continue };
        assert_ne!(wait.task, holder.task);
        assert!(holder.from_ns < wait.from_ns + wait.ns && wait.from_ns < holder.from_ns + holder.ns);
    }
    waits.all.count
}

#[test]
fn waits_of_a_replay_sum_to_the_statistics_of_the_locks() {
    for name in ["git.trace.zst", "programs/memcached.trace.xz", "programs/mt-tools.trace.xz"] {
        for space in [Locking::ALL[0], Locking::default()] {
            check(name, space);
        }
    }
    // With one mmap lock for all, the tasks of this recording wait sooner or later.
    while check("programs/mt-tools.trace.xz", Locking::ALL[0]) == 0 {}
}
