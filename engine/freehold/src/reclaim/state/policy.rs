//! The interface between the mechanism of reclaim and its policies: [`Policy`].
//!
//! The mechanism (`reclaim/sweep.rs`) visits the frames of memory in the order of their numbers, in a cycle.
//! A policy decides from the kind and the [`Age`] of each page whether the mechanism tests the page, and from
//! the result of the test whether the page goes. The mechanism checks whether a page can go at all. A policy
//! therefore decides only the order in which pages go, and the proportion of the kinds.
//!
//! `clock.rs`, `two_lists.rs` and `generations.rs` are the policies of this crate. An embedder supplies its
//! own by [`ReclaimPolicy::Custom`]. A policy is called by several CPUs at a time, so its state is atomic.
//! Its functions are called without locks of the engine, except [`refaulted`](Policy::refaulted),
//! [`old`](Policy::old) and [`walked`](Policy::walked).

use core::fmt;
use freehold_vmspace::RssKind;

/// The kind of a page, for reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum PageKind {
    /// A page of private memory, without a backing store except swap.
    Anonymous = 0,
    /// A page of shared memory, without a backing store except swap.
    Shared = 1,
    /// A page of a file with a backing store.
    File = 2,
}

impl PageKind {
    /// Number of kinds.
    pub const COUNT: usize = 3;

    /// Returns the kind of pages that a mapping counts as this kind.
    pub(crate) fn of(kind: RssKind) -> Self {
        match kind {
            RssKind::Anon => PageKind::Anonymous,
            RssKind::Shmem => PageKind::Shared,
            _ => PageKind::File,
        }
    }
}

/// The age of a page: a number from 0 to 15, which the policy gives to the page. [`NEW`](Self::NEW) is the
/// age of pages that the policy has not seen; the meaning of the other numbers is the policy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Age(u8);

impl Age {
    /// The age of a page that the policy has not seen yet.
    pub const NEW: Age = Age(0);
    /// Number of ages.
    pub const COUNT: usize = 16;

    /// Returns age number `number`.
    ///
    /// # Panics
    ///
    /// Panics if the number is more than 15.
    pub const fn new(number: u8) -> Self {
        assert!((number as usize) < Self::COUNT, "there are 16 ages");
        Age(number)
    }

    /// Returns the number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the age that the record of a frame has as this byte.
    pub(crate) fn of(byte: u8) -> Self {
        Age(byte.min(Self::COUNT as u8 - 1))
    }

    /// Returns the byte of this age in the record of a frame.
    pub(crate) fn byte(self) -> u8 {
        self.0
    }
}

/// Decision about a page before its test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The page stays and keeps its age.
    Skip,
    /// The page stays and gets this age.
    Keep(Age),
    /// The mechanism tests whether the page was accessed since its last test.
    Test,
}

/// Result of a test: the accesses to a page since its last test, or since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accessed {
    /// None.
    No,
    /// Only calls that read or write the file of the page have accessed it. The call for which the page was
    /// made does not count.
    ByCall,
    /// An entry of a page table has its accessed bit set. Also the result for a page whose locks are taken.
    ByEntry,
}

impl Accessed {
    /// Returns true unless the result is [`No`](Self::No).
    pub fn is_any(self) -> bool {
        self != Accessed::No
    }
}

/// Decision about a page after its test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The page stays and gets this age.
    Keep(Age),
    /// The page goes with this age, if it can.
    Evict(Age),
}

/// Numbers of pages by kind and age: the number for [`PageKind`] `kind` and [`Age`] `age` is at
/// `[kind][age]`.
pub type PagesByAge = [[u64; Age::COUNT]; PageKind::COUNT];

/// Numbers of pages that a visit of memory has found, and of refaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Population {
    /// Pages that stay.
    pub pages: PagesByAge,
    /// Pages that were evicted since the report before, by the age with which they went. A page that waits
    /// for a write is counted when it goes.
    pub evicted: PagesByAge,
    /// Pages that were needed again after their eviction, since the report before, by the age with which they
    /// went. A page that comes from a swap device is counted with [`Age::NEW`].
    pub refaulted: PagesByAge,
}

impl Population {
    /// Returns the number of pages with this kind and age.
    pub fn with(&self, kind: PageKind, age: Age) -> u64 {
        self.pages[kind as usize][age.0 as usize]
    }

    /// Returns the number of pages with this kind.
    pub fn of(&self, kind: PageKind) -> u64 {
        self.pages[kind as usize].iter().sum()
    }

    /// Returns the number of refaults of pages with this kind.
    pub fn refaults_of(&self, kind: PageKind) -> u64 {
        self.refaulted[kind as usize].iter().sum()
    }
}

/// Numbers of pages that a call of `Engine::reclaim` has tested so far, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tested {
    /// The number of tested pages with [`PageKind`] `kind`, at `[kind]`.
    pub pages: [u64; PageKind::COUNT],
}

/// A policy of reclaim.
///
/// # Examples
///
/// A policy that takes pages of files in the order of memory, and nothing else:
///
/// ```
/// use freehold::reclaim::{Accessed, Age, PageKind, Policy, Step, Tested, Verdict};
///
/// #[derive(Debug)]
/// struct FilesFirst;
/// impl Policy for FilesFirst {
///     fn step(&self, kind: PageKind, _: Age, _: &Tested) -> Step {
///         if kind == PageKind::File { Step::Test } else { Step::Skip }
///     }
///     fn tested(&self, _: PageKind, age: Age, accessed: Accessed) -> Verdict {
///         if accessed.is_any() { Verdict::Keep(age) } else { Verdict::Evict(age) }
///     }
/// }
/// ```
pub trait Policy: fmt::Debug + Send + Sync {
    /// Decides about a page before its test. Called for each page that reclaim visits.
    fn step(&self, kind: PageKind, age: Age, tested: &Tested) -> Step;

    /// Decides about a page after its test.
    fn tested(&self, kind: PageKind, age: Age, accessed: Accessed) -> Verdict;

    /// Returns the age of a page that the policy gave up, and that stays because it is in use or has no place
    /// to go. By default the age of a page that was accessed, so that it does not stand in for pages that can
    /// go.
    fn kept(&self, kind: PageKind, age: Age) -> Age {
        match self.tested(kind, age, Accessed::ByEntry) {
            Verdict::Keep(new) | Verdict::Evict(new) => new,
        }
    }

    /// Returns the age of a page that was evicted with `age` and is read again, `distance` evictions later.
    /// `age` is [`Age::NEW`] if the page comes from a swap device. Called by the fault or the read. May be
    /// called with locks of the engine held. Should write no word, because faults on several CPUs would share
    /// it: the engine counts refaults for [`swept`](Self::swept).
    fn refaulted(&self, kind: PageKind, age: Age, distance: u64) -> Age {
        let _ = (kind, age, distance);
        Age::NEW
    }

    /// Returns the age of a page that goes soon: its program does not expect to use it (MADV_COLD) or does
    /// not need its contents (MADV_FREE), or the policy gave it up and its write has begun. By default the
    /// age of a page that the policy has not seen. May be called with locks of the engine held.
    fn old(&self, kind: PageKind) -> Age {
        let _ = kind;
        Age::NEW
    }

    /// Returns true if the policy uses walks of page tables, which find many accessed pages at a time. The
    /// answer is always the same.
    fn walks(&self) -> bool {
        false
    }

    /// Returns the age of a page that a walk has found accessed. Its next test reports only later accesses.
    /// Called with locks of page tables held.
    fn walked(&self, kind: PageKind, age: Age) -> Age {
        let _ = kind;
        age
    }

    /// Reports that all frames were visited since the last call, and the pages that were found.
    fn swept(&self, population: &Population) {
        let _ = population;
    }
}

/// Choice of the [`Policy`] of an engine.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum ReclaimPolicy {
    /// The clock algorithm: a page goes if it was not accessed since the last visit.
    Clock,
    /// An active and an inactive list for each kind of pages, as Linux's classic reclaim.
    #[default]
    TwoLists,
    /// Generations, as Linux's multi-generational LRU.
    Generations,
    /// A policy of the embedder.
    Custom(&'static dyn Policy),
}
