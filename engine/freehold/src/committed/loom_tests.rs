//! Tasks that commit memory concurrently under a limit on the sum.

use super::{CommittedMemory, Overcommit};
use freehold_sync::testing::{LoomHost, model};
use freehold_vmspace::PageCount;
use loom::{sync::Arc, thread};

fn limited(pages: u64) -> Arc<CommittedMemory<LoomHost>> {
    Arc::new(CommittedMemory::try_new(Overcommit::Never(PageCount::new(pages))).expect("memory"))
}

/// Commits `pages` for as long as `then` runs; returns false if they are beyond the limit.
fn commits(commit: &CommittedMemory<LoomHost>, pages: u64, then: impl FnOnce()) -> bool {
    let charge = commit.charge(PageCount::new(pages));
    let fits = charge.is_ok();
    if fits {
        then();
    }
    fits
}

#[test]
fn the_limit_is_never_passed() {
    model(|| {
        let commit = limited(3);
        let within = |commit: &CommittedMemory<LoomHost>| assert!(commit.pages() <= PageCount::new(3));
        let other = {
            let commit = commit.clone();
            thread::spawn(move || commits(&commit, 2, || within(&commit)))
        };
        let ours = commits(&commit, 2, || within(&commit));
        let theirs = other.join().unwrap();
        assert!(ours || theirs, "one of two that exclude each other fits");
        assert_eq!(commit.pages(), PageCount::ZERO);
    });
}

#[test]
fn a_request_that_is_refused_does_not_refuse_another() {
    model(|| {
        let commit = limited(3);
        let other = {
            let commit = commit.clone();
            thread::spawn(move || commits(&commit, 4, || ()))
        };
        assert!(commits(&commit, 3, || ()), "it fits, whatever else was refused");
        assert!(!other.join().unwrap());
    });
}

#[test]
fn pages_counted_under_another_policy_stay_counted() {
    model(|| {
        let commit = limited(3);
        commit.set_policy(Overcommit::Always);
        let other = {
            let commit = commit.clone();
            thread::spawn(move || commit.set_policy(Overcommit::Never(PageCount::new(3))))
        };
        assert!(commits(&commit, 2, || assert_eq!(commit.pages(), PageCount::new(2))));
        other.join().unwrap();
        assert_eq!(commit.pages(), PageCount::ZERO);
    });
}
