//! The report /proc/PID/maps: one line for each VMA.
//!
//! Each VMA is read under its own lock and found without any other lock. If the VMA lock is not available,
//! the report takes the mmap lock for reading, for this one VMA. The report holds no lock between two VMAs,
//! so the VMAs may change in between. The next line is the first VMA, or part of a VMA, at or above the end
//! of the last line. A mapping that exists during the whole report is reported, in one line or in several. A
//! gap between two lines existed at some moment (hazard C-70).
//!
//! `with_next_vma` is the iteration for smaps, pagemap, PROCMAP_QUERY and clear_refs too. The text must be
//! Linux's: `reports::maps::maps_text_matches_linux` (`engine/freehold/tests`) compares it.

use crate::space::{AddressSpace, locking::NeedMmapLock};
use crate::{
    PAGE_SIZE,
    file::Object,
    platform::Platform,
    space::locking::VmaRead,
    vma::{Vma, flags::VmFlags},
};
use core::fmt;
use freehold_range::Lookup;
use freehold_sync::atomic::Ordering::Relaxed;
use freehold_vmspace::UserRange;

/// Name of a VMA in reports.
#[non_exhaustive]
pub enum MapName<P: Platform> {
    /// Anonymous memory without a special role.
    None,
    /// The heap, which brk resizes.
    Heap,
    /// A stack that grows automatically.
    Stack,
    /// A file or a special mapping, with its own name.
    Object(Object<P>),
}

impl<P: Platform> MapName<P> {
    /// Returns the text at the end of the line without escapes; empty if the VMA has no name.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let heap = space.brk(0).unwrap();
    /// space.brk(heap + PAGE_SIZE).unwrap();
    /// assert_eq!(space.maps(heap).next().unwrap().name.as_str(), "[heap]");
    /// ```
    pub fn as_str(&self) -> &str {
        match self {
            MapName::None => "",
            MapName::Heap => "[heap]",
            MapName::Stack => "[stack]",
            MapName::Object(object) => object.name(),
        }
    }
}

/// One line of the report: a VMA, or a part of a VMA.
pub struct MapLine<P: Platform> {
    /// First address.
    pub start: u64,
    /// First address after the range of the line.
    pub end: u64,
    /// Access rights and properties.
    pub flags: VmFlags,
    /// Offset of the first byte in the file, in bytes; zero without a file.
    pub offset: u64,
    /// Name of the mapping.
    pub name: MapName<P>,
    /// True if stores to write-protected pages end the protection
    /// ([`Features::WP_ASYNC`](crate::uffd::Features::WP_ASYNC)).
    pub wp_async: bool,
}

impl<P: Platform> MapLine<P> {
    /// Returns the line for `part` of `vma`. The caller holds a lock that keeps the VMA stable.
    pub(super) fn of(space: &AddressSpace<P>, vma: &Vma<P>, part: UserRange) -> Self {
        let object = vma.object();
        let has_offset = object.open_file().is_some() || object.listed_by().is_some();
        let offset = if has_offset { vma.pgoff_of(part.start()).byte() } else { 0 };
        let name = match object {
            // The heap is any anonymous VMA that overlaps the range of the break.
            Object::Anonymous
                if vma.start() < space.brk.load(Relaxed) && space.start_brk.load(Relaxed) < vma.end() =>
            {
                MapName::Heap
            }
            Object::Anonymous if vma.flags().is_stack() => MapName::Stack,
            Object::Anonymous => MapName::None,
            object => MapName::Object(object.clone()),
        };
        let (flags, wp_async) = (vma.flags(), vma.is_wp_async());
        MapLine { start: part.start(), end: part.end(), flags, offset, name, wp_async }
    }

    /// Returns the four letters of the rights, such as `rw-p`.
    fn rights(&self) -> [u8; 4] {
        let letter = |flag, letter| if self.flags.contains(flag) { letter } else { b'-' };
        [
            letter(VmFlags::READ, b'r'),
            letter(VmFlags::WRITE, b'w'),
            letter(VmFlags::EXEC, b'x'),
            if self.flags.contains(VmFlags::MAYSHARE) { b's' } else { b'p' },
        ]
    }
}

/// Column at which names begin, counted from the start of the line.
const NAME_COLUMN: usize = 73;

/// A writer that counts the bytes that pass through it.
struct Measured<'w, W: ?Sized> {
    out: &'w mut W,
    written: usize,
}

impl<W: fmt::Write + ?Sized> fmt::Write for Measured<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.written += text.len();
        self.out.write_str(text)
    }
}

/// Writes the line of /proc/PID/maps without the newline. Device and inode numbers belong to the embedding
/// kernel; they are zero here.
impl<P: Platform> fmt::Display for MapLine<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rights = self.rights();
        let rights = core::str::from_utf8(&rights).unwrap_or_default();
        let fields =
            format_args!("{:08x}-{:08x} {rights} {:08x} 00:00 0 ", self.start, self.end, self.offset);
        write_named(f, fields, self.name.as_str())
    }
}

/// Writes the fields of a line, and the name in its column.
pub(super) fn write_named(f: &mut fmt::Formatter<'_>, fields: fmt::Arguments<'_>, name: &str) -> fmt::Result {
    use fmt::Write;
    let mut out = Measured { out: f, written: 0 };
    out.write_fmt(fields)?;
    if name.is_empty() {
        return Ok(());
    }
    let pad = NAME_COLUMN.saturating_sub(out.written);
    write!(out, "{:pad$}", "")?;
    // A newline in a name must not look like the end of the line.
    for part in name.split_inclusive('\n') {
        match part.strip_suffix('\n') {
            Some(part) => write!(out, "{part}\\012")?,
            None => out.write_str(part)?,
        }
    }
    Ok(())
}

/// An iterator over the VMAs of an address space. The [module](self) describes the effect of concurrent
/// changes.
pub struct Maps<'s, P: Platform> {
    space: &'s AddressSpace<P>,
    at: u64,
}

impl<P: Platform> Iterator for Maps<'_, P> {
    type Item = MapLine<P>;

    fn next(&mut self) -> Option<MapLine<P>> {
        let space = self.space;
        let line = space.with_next_vma(self.at, |vma, part| MapLine::of(space, vma, part))?;
        self.at = line.end;
        Some(line)
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Returns an iterator over the mappings from address `from` on.
    ///
    /// # Locks
    ///
    /// Each step takes one VMA's lock for reading, or the mmap lock for reading. No lock is held between
    /// steps.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.mprotect(at, PAGE_SIZE, Prot::READ).unwrap();
    /// let lens: Vec<u64> = space.maps(at).map(|line| line.end - line.start).collect();
    /// assert_eq!(lens, [PAGE_SIZE, 3 * PAGE_SIZE]);
    /// ```
    pub fn maps(&self, from: u64) -> Maps<'_, P> {
        Maps { space: self, at: from }
    }

    /// Writes the text of /proc/PID/maps.
    ///
    /// # Errors
    ///
    /// Returns the errors of `out`.
    ///
    /// # Locks
    ///
    /// The locks of [`maps`](Self::maps). No lock is held while `out` is written to.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let mut maps = String::new();
    /// space.write_maps(&mut maps).unwrap();
    /// assert!(maps.starts_with(&format!("{at:x}-")) && maps.contains(" rw-p 00000000 "));
    /// ```
    pub fn write_maps(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.maps(0).try_for_each(|line| writeln!(out, "{line}"))
    }

    /// Calls `f` with the first VMA that ends above `at`, and with the part of that VMA from the page of `at`
    /// on. A lock keeps the VMA stable during the call.
    pub(super) fn with_next_vma<R>(&self, at: u64, f: impl FnOnce(&Vma<P>, UserRange) -> R) -> Option<R> {
        P::cond_resched();
        let at = at & !(PAGE_SIZE - 1);
        let part = |vma: &Vma<P>| UserRange::new(vma.start().max(at), vma.end());
        match self.lock_next_vma(at) {
            Ok(Some(vma)) => {
                let _kept = self.keep_tables(&vma);
                Some(f(&vma, part(&vma)))
            }
            Ok(None) => None,
            Err(_) => {
                let guard = self.read();
                let vma = guard.next(at)?;
                let _kept = self.keep_tables(vma);
                Some(f(vma, part(vma)))
            }
        }
    }

    /// Locks the first VMA that ends above `at`, without the mmap lock. Returns `None` if there is none.
    fn lock_next_vma(&self, at: u64) -> Result<Option<VmaRead<'_, P>>, NeedMmapLock> {
        if !self.tries_vma_lock() {
            return Err(NeedMmapLock::Busy);
        }
        let rcu = P::rcu_read();
        let found = match self.tree.next(&rcu, at) {
            Lookup::Found(found) => found,
            Lookup::Hole => return Ok(None),
            Lookup::Contended => return Err(NeedMmapLock::Busy),
        };
        drop(rcu);
        self.lock_vma(found.start.max(at)).map(Some)
    }
}
