//! What /proc/PID/smaps says: each VMA with what of it is in memory.

use super::{AddressSpace, maps::MapLine};
use crate::{
    PAGE_SIZE,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use core::fmt;
pub use freehold_vmspace::Usage;
use freehold_vmspace::{HugePageSize, UserRange};

/// One VMA, or a part of one, with its memory.
pub struct Smap<P: Platform> {
    /// The line of /proc/PID/maps.
    pub line: MapLine<P>,
    /// What is in memory.
    pub usage: Usage,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Huge pages may come here.
    pub huge_eligible: bool,
    /// Its protection key, where the machine has any.
    pub protection_key: Option<u8>,
}

/// The VMAs of an address space with their memory, one at a time.
pub struct Smaps<'s, P: Platform> {
    space: &'s AddressSpace<P>,
    at: u64,
}

impl<P: Platform> Iterator for Smaps<'_, P> {
    type Item = Smap<P>;

    fn next(&mut self) -> Option<Smap<P>> {
        let space = self.space;
        let smap = space.with_next_vma(self.at, |vma, part| Smap {
            usage: space.usage(vma, part),
            page_bytes: vma.huge_page_size().map_or(PAGE_SIZE, HugePageSize::bytes),
            huge_eligible: space.may_hold_huge(vma),
            protection_key: space.platform().has_pkeys().then(|| vma.flags().pkey()),
            line: MapLine::of(space, vma, part),
        })?;
        self.at = smap.line.end;
        Some(smap)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// What is mapped, from address `from` on, with what of it is in memory.
    ///
    /// # Locks
    ///
    /// As [`maps`](Self::maps), and under them each table's.
    pub fn smaps(&self, from: u64) -> Smaps<'_, P> {
        Smaps { space: self, at: from }
    }

    /// Writes the text of /proc/PID/smaps.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    ///
    /// # Locks
    ///
    /// As [`smaps`](Self::smaps); none while `out` is written to.
    pub fn write_smaps(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.smaps(0).try_for_each(|smap| writeln!(out, "{smap}"))
    }

    /// What of `part` is in memory; a lock keeps the VMA still.
    fn usage(&self, vma: &Vma<P>, part: UserRange) -> Usage {
        let mut usage = self.vm.usage(part);
        usage.locked = if vma.flags().contains(VmFlags::LOCKED) { usage.pss } else { 0 };
        usage
    }
}

/// The paragraph as /proc/PID/smaps has it, without the last newline. What the engine does not have is zero.
impl<P: Platform> fmt::Display for Smap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Smap { line, usage, page_bytes, huge_eligible, protection_key } = self;
        writeln!(f, "{line}")?;
        let rows = [
            ("Size:", line.end - line.start),
            ("KernelPageSize:", *page_bytes),
            ("MMUPageSize:", *page_bytes),
            ("Rss:", usage.rss),
            ("Pss:", usage.pss),
            ("Pss_Dirty:", usage.pss_dirty),
            ("Shared_Clean:", usage.shared_clean),
            ("Shared_Dirty:", usage.shared_dirty),
            ("Private_Clean:", usage.private_clean),
            ("Private_Dirty:", usage.private_dirty),
            ("Referenced:", usage.referenced),
            ("Anonymous:", usage.anonymous),
            ("KSM:", 0),
            ("LazyFree:", 0),
            ("AnonHugePages:", usage.anonymous_huge),
            ("ShmemPmdMapped:", 0),
            ("FilePmdMapped:", 0),
            ("Shared_Hugetlb:", usage.shared_hugetlb),
            ("Private_Hugetlb:", usage.private_hugetlb),
            ("Swap:", 0),
            ("SwapPss:", 0),
            ("Locked:", usage.locked),
        ];
        for (name, bytes) in rows {
            writeln!(f, "{name:<16}{:>8} kB", bytes >> 10)?;
        }
        writeln!(f, "{:<16}{:>8}", "THPeligible:", u8::from(*huge_eligible))?;
        if let Some(pkey) = protection_key {
            writeln!(f, "{:<16}{pkey:>8}", "ProtectionKey:")?;
        }
        f.write_str("VmFlags: ")?;
        line.flags.smaps_names().try_for_each(|name| write!(f, "{name} "))
    }
}
