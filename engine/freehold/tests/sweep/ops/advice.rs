//! Operations of the sweep: madvise with every advice, and process_madvise. A new `Advice` needs a line in
//! `OPS` of the form `advice!(Name)`; `complete.rs` fails without it.

use super::{Left, Op, PAGE, R, RW, errno, op};
use crate::sweep::scene::Scene;
use freehold::{call::Advice, error::Errno, remote::IoVec};

fn advise(s: &Scene, advice: Advice) -> Result<u64, Errno> {
    errno!(s.process.madvise(s.at(1), 4 * s.unit, advice))
}

macro_rules! advice {
    ($advice:ident) => {
        op("AddressSpace::madvise", concat!("madvise ", stringify!($advice)), |s| advise(s, Advice::$advice))
    };
}

pub const OPS: &[Op] = &[
    advice!(Normal).needs_nothing().leaves(Left::Layout),
    advice!(Random).leaves(Left::Layout),
    advice!(Sequential).leaves(Left::Layout),
    advice!(WillNeed),
    advice!(DontNeed).needs_nothing().leaves(Left::Pages),
    advice!(Free).needs_nothing(),
    advice!(Remove).needs_nothing().leaves(Left::Pages),
    advice!(DontFork).leaves(Left::Layout),
    advice!(DoFork).needs_nothing().leaves(Left::Layout),
    advice!(Mergeable).leaves(Left::Layout),
    advice!(Unmergeable).needs_nothing().leaves(Left::Layout),
    advice!(HugePage).leaves(Left::Layout),
    advice!(NoHugePage).leaves(Left::Layout),
    advice!(DontDump).leaves(Left::Layout),
    advice!(DoDump).needs_nothing().leaves(Left::Layout),
    advice!(WipeOnFork).leaves(Left::Layout),
    advice!(KeepOnFork).leaves(Left::Layout),
    advice!(Cold).needs_nothing(),
    advice!(PageOut).needs_nothing(),
    op("AddressSpace::drop_discardable", "drop_discardable", |s| Ok(s.process.drop_discardable()))
        .needs_nothing(),
    op("AddressSpace::age_pages", "age_pages", |s| Ok(s.process.age_pages(0, u64::MAX).accessed))
        .needs_nothing(),
    op("AddressSpace::reap", "reap", |s| s.process.reap().map_or(Err(Errno::EINTR), |()| Ok(0)))
        .leaves(Left::Pages),
    advice!(PopulateRead),
    advice!(PopulateWrite),
    advice!(DontNeedLocked).needs_nothing(),
    advice!(Collapse).needs_nothing(),
    op("AddressSpace::madvise", "madvise Collapse after a split", |s| {
        errno!(s.process.mprotect(s.at(1), PAGE, R))?;
        errno!(s.process.mprotect(s.at(1), PAGE, RW))?;
        advise(s, Advice::Collapse)
    })
    .leaves(Left::Anything),
    op("AddressSpace::process_madvise", "process_madvise", |s| {
        let parts = [1, 3].map(|unit| IoVec { base: s.at(unit), len: s.unit });
        errno!(s.process.process_madvise(&parts, Advice::PopulateWrite, true))
    })
    .partial(),
    // The call works page by page, and failed memory does not become usable again.
    advice!(HwPoison).leaves(Left::Losses).once(),
    advice!(SoftOffline),
    // Pages may have been discarded although no guard was installed in their place.
    advice!(GuardInstall).needs_nothing().leaves(Left::Pages),
    advice!(GuardRemove).needs_nothing(),
];
