//! The reports smaps, which shows the memory in use by each VMA, and smaps_rollup, which shows the sum.
//!
//! Each VMA is examined on its own, under a lock that keeps this VMA unchanged (`report/maps.rs`). A report
//! of several VMAs therefore does not show the space at one moment. The figures come from the page tables
//! (`freehold-vmspace/src/residency.rs`); this file formats them as Linux does.
//!
//! The rows (`ROWS`) must have Linux's names and order; rows for memory that the engine does not have, such
//! as merged pages (KSM), show zero. `reports::usage` (`engine/freehold/tests`) tests the figures.

use crate::report::maps::{MapLine, write_named};
use crate::space::AddressSpace;
use crate::{
    PAGE_SIZE, VirtAddr,
    file::Mapping,
    platform::Platform,
    vma::{Vma, flags::VmFlags},
    wait::Rounds,
};
use core::{
    fmt,
    ops::{ControlFlow, Range},
};
use freehold_pagetable::TableCount;
pub use freehold_vmspace::Usage;
use freehold_vmspace::{HugePageSize, PageRange, UsageSum, UserRange};

/// A VMA, or a part of a VMA, with its memory in use.
pub struct Smap<P: Platform> {
    /// The line of /proc/PID/maps.
    pub line: MapLine<P>,
    /// The memory in use.
    pub usage: Usage,
    /// Size of a page, in bytes.
    pub page_bytes: u64,
    /// True if the VMA is eligible for huge pages.
    pub huge_eligible: bool,
    /// The protection key, if the machine supports protection keys.
    pub protection_key: Option<u8>,
}

/// An iterator over the VMAs of an address space and their memory in use.
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
            protection_key: space.has_pkeys().then(|| vma.flags().pkey()),
            line: MapLine::of(space, vma, part),
        })?;
        self.at = smap.line.end;
        Some(smap)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns an iterator over the mappings from address `from` on and their memory in use.
    ///
    /// # Locks
    ///
    /// The locks of [`maps`](Self::maps), and under them each page table's lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// let usage = space.smaps(at).next().unwrap().usage;
    /// assert_eq!((usage.rss, usage.private_dirty), (PAGE_SIZE, PAGE_SIZE));
    /// let child = space.fork().unwrap();
    /// assert_eq!(child.smaps(at).next().unwrap().usage.pss, PAGE_SIZE / 2);
    /// ```
    pub fn smaps(&self, from: u64) -> Smaps<'_, P> {
        Smaps { space: self, at: from }
    }

    /// Writes the text of /proc/PID/smaps.
    ///
    /// # Errors
    ///
    /// Returns the errors of `out`.
    ///
    /// # Locks
    ///
    /// The locks of [`smaps`](Self::smaps). No lock is held while `out` is written to.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let mut text = String::new();
    /// space.write_smaps(&mut text).unwrap();
    /// assert!(text.lines().any(|line| line.starts_with("Size:") && line.ends_with(" 16 kB")));
    /// ```
    pub fn write_smaps(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.smaps(0).try_for_each(|smap| writeln!(out, "{smap}"))
    }

    /// Returns the memory in use by all VMAs together. After a fatal signal the result covers only a part of
    /// the VMAs.
    ///
    /// # Locks
    ///
    /// The locks of [`smaps`](Self::smaps).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mprotect(at, PAGE_SIZE, Prot::READ).unwrap();
    /// space.madvise(at + PAGE_SIZE, 2 * PAGE_SIZE, Advice::PopulateWrite).unwrap();
    /// let rollup = space.smaps_rollup();
    /// assert_eq!((rollup.range, rollup.usage.anonymous), (at..at + 4 * PAGE_SIZE, 2 * PAGE_SIZE));
    /// ```
    pub fn smaps_rollup(&self) -> Rollup {
        let (mut range, mut sum) = (None::<Range<u64>>, UsageSum::default());
        let mut add = |at| {
            self.with_next_vma(at, |vma, part| {
                self.add_usage(vma, part, &mut sum);
                range.get_or_insert(vma.start()..vma.end()).end = vma.end();
                vma.end()
            })
        };
        let (mut at, mut rounds) = (0, Rounds::new());
        while let Some(end) = add(at) {
            at = end;
            if rounds.again::<P>().is_err() {
                break;
            }
        }
        Rollup { range: range.unwrap_or(0..0), usage: sum.usage() }
    }

    /// Returns the number of bytes in page tables of all mappings, without the root (VmPTE of
    /// /proc/PID/status). Tables that are kept for splitting huge pages are included.
    ///
    /// Visits all tables, but does not read the entries of the lowest level. After a fatal signal of the
    /// calling task the result covers only a part of the mappings.
    ///
    /// # Locks
    ///
    /// The locks of [`smaps`](Self::smaps).
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(space.page_table_bytes(), 0);
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// assert_eq!(space.page_table_bytes(), 3 * PAGE_SIZE, "three levels below the root");
    /// ```
    pub fn page_table_bytes(&self) -> u64 {
        let (mut at, mut count) = (0, TableCount::default());
        let mut add = |at| {
            self.with_next_vma(at, |vma, part| {
                self.vm.count_tables(part, &mut count);
                vma.end()
            })
        };
        while let Some(end) = add(at) {
            at = end;
        }
        count.get() * PAGE_SIZE
    }

    /// Returns the memory in use by `part`. The caller holds a lock that keeps the VMA stable.
    fn usage(&self, vma: &Vma<P>, part: UserRange) -> Usage {
        let mut sum = UsageSum::default();
        self.add_usage(vma, part, &mut sum);
        sum.usage()
    }

    /// Adds the memory in use by `part` to `sum`. The caller holds a lock that keeps the VMA stable.
    fn add_usage(&self, vma: &Vma<P>, part: UserRange, sum: &mut UsageSum) {
        self.vm.add_usage(part, vma.flags().contains(VmFlags::LOCKED), sum);
        if let Some(file) = vma.object().file() {
            sum.add_swapped(self.swapped_of_file(vma, file.mapping(), part));
        }
    }

    /// Returns the number of pages of a file in `part` that are swapped out and have no private copy.
    fn swapped_of_file(&self, vma: &Vma<P>, mapping: &Mapping<P>, part: UserRange) -> u64 {
        let first = vma.pgoff_of(part.start());
        let may_have_copies = vma.flags() & (VmFlags::SHARED | VmFlags::WRITE) == VmFlags::WRITE;
        let mut pages = 0;
        let _: ControlFlow<()> = mapping.each_swapped(PageRange::at(first, part.pages()), |index, _| {
            let at = VirtAddr::new(part.start() + (index - first).bytes());
            pages += u64::from(!may_have_copies || self.vm.peek(at).0.is_none());
            ControlFlow::Continue(())
        });
        pages
    }
}

/// The memory in use by all VMAs of an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollup {
    /// From the start of the first VMA to the end of the last.
    pub range: Range<u64>,
    /// The memory in use.
    pub usage: Usage,
}

/// A row of the reports: name, bytes, and the reports that contain it. Values that the engine does not
/// support are zero.
struct Row(&'static str, fn(&Usage) -> u64, In);

/// The reports that contain a row.
#[derive(PartialEq, Eq)]
enum In {
    /// smaps and smaps_rollup.
    Both,
    /// Only smaps_rollup.
    Rollup,
}

const ROWS: &[Row] = &[
    Row("Rss:", |usage| usage.rss, In::Both),
    Row("Pss:", |usage| usage.pss, In::Both),
    Row("Pss_Dirty:", |usage| usage.pss_dirty, In::Both),
    Row("Pss_Anon:", |usage| usage.pss_anon, In::Rollup),
    Row("Pss_File:", |usage| usage.pss_file, In::Rollup),
    Row("Pss_Shmem:", |usage| usage.pss_shmem, In::Rollup),
    Row("Shared_Clean:", |usage| usage.shared_clean, In::Both),
    Row("Shared_Dirty:", |usage| usage.shared_dirty, In::Both),
    Row("Private_Clean:", |usage| usage.private_clean, In::Both),
    Row("Private_Dirty:", |usage| usage.private_dirty, In::Both),
    Row("Referenced:", |usage| usage.referenced, In::Both),
    Row("Anonymous:", |usage| usage.anonymous, In::Both),
    Row("KSM:", |_| 0, In::Both),
    Row("LazyFree:", |usage| usage.lazy_free, In::Both),
    Row("AnonHugePages:", |usage| usage.anonymous_huge, In::Both),
    Row("ShmemPmdMapped:", |_| 0, In::Both),
    Row("FilePmdMapped:", |_| 0, In::Both),
    Row("Shared_Hugetlb:", |usage| usage.shared_hugetlb, In::Both),
    Row("Private_Hugetlb:", |usage| usage.private_hugetlb, In::Both),
    Row("Swap:", |usage| usage.swap, In::Both),
    Row("SwapPss:", |usage| usage.swap_pss, In::Both),
    Row("Locked:", |usage| usage.locked, In::Both),
];

fn write_row(out: &mut impl fmt::Write, name: &str, bytes: u64) -> fmt::Result {
    write_number(out, name, bytes >> 10, " kB\n")
}

/// Writes a name in 16 columns, a number in at least 8 columns, and the end of the line. Does not use the
/// padding of `fmt`, which takes several times longer: a paragraph has more than twenty of these lines, and a
/// program may have tens of thousands of VMAs.
fn write_number(out: &mut impl fmt::Write, name: &str, number: u64, end: &str) -> fmt::Result {
    const NAME: usize = 16;
    const LINE: usize = NAME + 8;
    let mut line = [b' '; LINE];
    let (mut rest, mut at) = (number, LINE);
    while at > NAME && (rest > 0 || at == LINE) {
        at -= 1;
        line[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let text = match line.get_mut(..name.len()) {
        Some(start) if rest == 0 && name.len() <= NAME => {
            start.copy_from_slice(name.as_bytes());
            core::str::from_utf8(&line).ok()
        }
        _ => None,
    };
    match text {
        Some(text) => out.write_str(text)?,
        None => write!(out, "{name:<NAME$}{number}")?,
    }
    out.write_str(end)
}

impl<P: Platform> Smap<P> {
    /// Writes the paragraph of /proc/PID/smaps without its first line, which is the line of maps, and without
    /// the last newline. For an embedder that writes the line of maps itself, for example with the inodes of
    /// its files.
    ///
    /// # Errors
    ///
    /// Returns the errors of `out`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let mut text = String::new();
    /// space.smaps(at).next().unwrap().write_details(&mut text).unwrap();
    /// assert!(text.starts_with("Size:                 16 kB\n"));
    /// ```
    pub fn write_details(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Smap { line, usage, page_bytes, huge_eligible, protection_key } = self;
        write_row(out, "Size:", line.end - line.start)?;
        write_row(out, "KernelPageSize:", *page_bytes)?;
        write_row(out, "MMUPageSize:", *page_bytes)?;
        for Row(name, bytes, _) in ROWS.iter().filter(|row| row.2 == In::Both) {
            write_row(out, name, bytes(usage))?;
        }
        write_number(out, "THPeligible:", u64::from(*huge_eligible), "\n")?;
        if let Some(pkey) = protection_key {
            write_number(out, "ProtectionKey:", u64::from(*pkey), "\n")?;
        }
        out.write_str("VmFlags: ")?;
        line.flags.smaps_names().try_for_each(|name| {
            out.write_str(name)?;
            out.write_str(" ")
        })
    }
}

/// Writes the paragraph of /proc/PID/smaps without the last newline.
impl<P: Platform> fmt::Display for Smap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.line)?;
        self.write_details(f)
    }
}

/// Writes the text of /proc/PID/smaps_rollup, including the last newline.
impl fmt::Display for Rollup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rollup { range: Range { start, end }, usage } = self;
        write_named(f, format_args!("{start:08x}-{end:08x} ---p 00000000 00:00 0 "), "[rollup]")?;
        f.write_str("\n")?;
        ROWS.iter().try_for_each(|Row(name, bytes, _)| write_row(f, name, bytes(usage)))
    }
}
