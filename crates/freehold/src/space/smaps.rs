//! What /proc/PID/smaps says: each VMA with what of it is in memory.

use super::{AddressSpace, maps::MapLine};
use crate::{
    PAGE_SIZE, Pfn,
    hugetlb::HugePageSize,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
};
use core::{
    fmt,
    ops::{ControlFlow, Range},
};
use freehold_pagetable::{Kind, LeafGuard, Level, PteFlags, PteGuard, VaRange, Visitor};

/// Fractional bits of proportional sizes: shares of pages are added up with these, and dropped in the end.
const FRACTION: u32 = 12;

/// Bytes of a VMA in memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of them.
    pub rss: u64,
    /// Each page divided by the number of entries that map it.
    pub pss: u64,
    /// The dirty part of `pss`.
    pub pss_dirty: u64,
    /// Mapped more than once, not written.
    pub shared_clean: u64,
    /// Mapped more than once, written.
    pub shared_dirty: u64,
    /// Mapped once, not written.
    pub private_clean: u64,
    /// Mapped once, written.
    pub private_dirty: u64,
    /// Used since that was last asked for.
    pub referenced: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// Of these, in huge pages.
    pub anonymous_huge: u64,
    /// The proportional size, if the VMA is locked.
    pub locked: u64,
    /// Huge pages of a pool, which no other number counts, that others may map as well.
    pub shared_hugetlb: u64,
    /// Likewise, mapped here alone.
    pub private_hugetlb: u64,
}

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
            usage: space.usage(vma, part.clone()),
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
    fn usage(&self, vma: &Vma<P>, part: Range<u64>) -> Usage {
        let mut meter = Meter { platform: self.platform(), sum: Usage::default() };
        // The meter makes no table and splits no leaf, so it cannot run out of memory.
        let _ = self.table.walk(self.platform(), VaRange::of(part.start, part.end), &mut meter);
        let mut usage = meter.sum;
        usage.pss >>= FRACTION;
        usage.pss_dirty >>= FRACTION;
        usage.locked = if vma.flags().contains(VmFlags::LOCKED) { usage.pss } else { 0 };
        usage
    }
}

struct Meter<'p, P: Platform> {
    platform: &'p P,
    /// Proportional sizes with their fraction.
    sum: Usage,
}

impl<P: Platform> Meter<'_, P> {
    fn add(&mut self, pfn: Pfn, flags: PteFlags) {
        let frame = self.platform.frame(pfn);
        let maps = u64::from(frame.maps().max(1));
        let dirty = flags.contains(PteFlags::DIRTY) || frame.is_dirty();
        let share = (PAGE_SIZE << FRACTION) / maps;
        let sum = &mut self.sum;
        let kind = match (maps > 1, dirty) {
            (true, false) => &mut sum.shared_clean,
            (true, true) => &mut sum.shared_dirty,
            (false, false) => &mut sum.private_clean,
            (false, true) => &mut sum.private_dirty,
        };
        *kind += PAGE_SIZE;
        sum.rss += PAGE_SIZE;
        sum.pss += share;
        sum.pss_dirty += if dirty { share } else { 0 };
        sum.anonymous += if frame.is_anon() { PAGE_SIZE } else { 0 };
        sum.referenced += if flags.contains(PteFlags::ACCESSED) { PAGE_SIZE } else { 0 };
    }
}

impl<P: Platform> Visitor<P::Format, P> for Meter<'_, P> {
    const LARGE: freehold_pagetable::Large = freehold_pagetable::Large::Visit;

    fn table(&mut self, table: PteGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        table.for_each(range, |_, pte| {
            match pte.kind(Level::Pte) {
                // What has no record, like the zero page, is nobody's memory.
                Kind::Leaf { pfn, flags } if !flags.contains(PteFlags::SPECIAL) => self.add(pfn, flags),
                Kind::Leaf { .. } | Kind::None | Kind::Marker { .. } | Kind::Table { .. } => {}
            }
            ControlFlow::Continue(())
        })
    }

    fn large(&mut self, leaf: LeafGuard<'_, P::Format, P>, range: VaRange) -> ControlFlow<()> {
        if let Kind::Leaf { pfn, flags } = leaf.kind()
            && !flags.contains(PteFlags::SPECIAL)
        {
            let frame = self.platform.frame(pfn);
            if frame.hugetlb().is_some() {
                match leaf.is_shared() || frame.maps() > 1 {
                    true => self.sum.shared_hugetlb += range.len(),
                    false => self.sum.private_hugetlb += range.len(),
                }
                return ControlFlow::Continue(());
            }
            let first = range.start().frame_in_leaf(leaf.level());
            let before = self.sum.anonymous;
            (first..first + range.len() / PAGE_SIZE).for_each(|n| self.add(pfn.add(n), flags));
            self.sum.anonymous_huge += self.sum.anonymous - before;
        }
        ControlFlow::Continue(())
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
