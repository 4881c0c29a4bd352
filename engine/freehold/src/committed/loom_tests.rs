//! Loom tests of [`CommittedMemory`]: tasks that commit memory concurrently under a limit on the sum.
//!
//! `model` runs each test with every interleaving of its two threads. The assertions are the oracle: the sum
//! stays within the limit, a refused request does not make another request fail, and no page stays committed
//! at the end. To add a case, write a test with `limited` and `commits`; a third thread makes the model much
//! slower.

use super::{CommittedMemory, Overcommit};
use freehold_sync::testing::{LoomHost, model};
use freehold_vmspace::PageCount;
use loom::{sync::Arc, thread};

/// Creates a count that allows `pages` committed pages in total.
fn limited(pages: u64) -> Arc<CommittedMemory<LoomHost>> {
    Arc::new(CommittedMemory::try_new(Overcommit::Never(PageCount::new(pages))).expect("memory"))
}

/// Commits `pages` while `then` runs, and then releases them. Returns false, without a call of `then`, if the
/// pages exceed the limit.
fn commits(commit: &CommittedMemory<LoomHost>, pages: u64, then: impl FnOnce()) -> bool {
    let charge = commit.charge(PageCount::new(pages));
    let fits = charge.is_ok();
    if fits {
        then();
    }
    fits
}

#[test]
fn concurrent_charges_stay_within_the_limit() {
    model(|| {
        let commit = limited(3);
        let within = |commit: &CommittedMemory<LoomHost>| assert!(commit.pages() <= PageCount::new(3));
        let other = {
            let commit = commit.clone();
            thread::spawn(move || commits(&commit, 2, || within(&commit)))
        };
        let ours = commits(&commit, 2, || within(&commit));
        let theirs = other.join().unwrap();
        assert!(ours || theirs, "at least one of the two requests fits");
        assert_eq!(commit.pages(), PageCount::ZERO);
    });
}

#[test]
fn refused_request_does_not_block_a_fitting_one() {
    model(|| {
        let commit = limited(3);
        let other = {
            let commit = commit.clone();
            thread::spawn(move || commits(&commit, 4, || ()))
        };
        assert!(commits(&commit, 3, || ()), "a refused request made another request fail");
        assert!(!other.join().unwrap());
    });
}

#[test]
fn committed_pages_stay_counted_when_the_policy_changes() {
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
