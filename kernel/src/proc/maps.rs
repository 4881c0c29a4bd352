//! The files of /proc/PID about mapped memory: maps, smaps, smaps_rollup, mem and pagemap. `proc/process.rs`
//! makes them. The text comes from the reports of the engine (`freehold::report`); this file adds the inodes
//! and paths of the kernel's files, and the format of lines.
//!
//! A file has a reference to its process and none to the address space, so the file is empty after the
//! process has ended. maps and smaps fail with ESRCH once the process has been waited for (`proc/subject.rs`).
//! No lock is held while text is made or copied. The program may change its mappings between two reads of a
//! file; as on Linux, a later read continues behind the last VMA. The program `usage.c` of the tests checks
//! smaps, `files.c` checks maps, and `pagemap.c` checks pagemap. The test `transcript` compares maps with
//! Linux's.

use super::query::{PROCMAP_QUERY, query};
use super::scan::{PAGEMAP_SCAN, scan};
use super::subject::Subject;
use crate::arch::lock::SpinLock;
use crate::errno;
use crate::files::{File, REGULAR, Stat, buffer::UserBuffer, tree};
use crate::platform::{Machine, Space};
use crate::proc::numa_maps;
use crate::process::Process;
use crate::sched::checkpoint;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file;
use freehold::remote::AccessMode;
use freehold::report::maps::{MapLine, MapName};
use freehold::report::pagemap::{EntryRun, MarkerKind, PageEntry, PageKind};
use freehold::vma::flags::VmFlags;

/// Column in which names begin.
const NAME: usize = 73;

/// Returns the inode and the path of a mapped file. If the path no longer leads to the file, marks the path
/// as deleted.
fn file_of(file: &file::File<Machine>) -> (u64, String) {
    let name = file.name();
    if name.ends_with(" (deleted)") {
        return (1, name.into());
    }
    let found = tree::lookup(&tree::root(), name.as_bytes(), true).ok();
    match found {
        Some(node) if node.mapping().is_some_and(|own| Counted::ptr_eq(own, file.mapping())) => {
            (node.inode, name.into())
        }
        Some(node) if matches!(node.kind, tree::Kind::Device(_)) => (node.inode, name.into()),
        _ => (1, format!("{name} (deleted)")),
    }
}

/// The last mapped file that a report has named, with its inode and its path. Consecutive VMAs usually map the
/// same file, and finding its path is slow.
#[derive(Default)]
pub struct LastFile(Option<(Counted<file::File<Machine>>, u64, String)>);

impl LastFile {
    /// Returns the device and the inode of the mapped file, 0 without a file, and the name of the mapping.
    pub fn identity<'l>(&'l mut self, line: &'l MapLine<Machine>) -> (u32, u64, &'l str) {
        let object = match &line.name {
            MapName::Object(object) => object,
            name => return (0, 0, name.as_str()),
        };
        let Some(file) = object.open_file() else { return (0, 0, object.name()) };
        let last = self.0.take().filter(|(last, ..)| Counted::ptr_eq(last, file));
        let (_, inode, path) = self.0.insert(last.unwrap_or_else(|| {
            let (inode, path) = file_of(file);
            (file.clone(), inode, path)
        }));
        (1, *inode, path)
    }
}

/// Writes a line of maps.
fn write_line(out: &mut String, line: &MapLine<Machine>, last: &mut LastFile) {
    let letter = |flag, letter| if line.flags.contains(flag) { letter } else { '-' };
    let (r, w, x) = (letter(VmFlags::READ, 'r'), letter(VmFlags::WRITE, 'w'), letter(VmFlags::EXEC, 'x'));
    let s = if line.flags.contains(VmFlags::MAYSHARE) { 's' } else { 'p' };
    let (device, inode, name) = last.identity(line);
    let begin = out.len();
    let _ = write!(
        out,
        "{:08x}-{:08x} {r}{w}{x}{s} {:08x} 00:{device:02x} {inode} ",
        line.start, line.end, line.offset
    );
    if !name.is_empty() {
        const SPACES: &str = match core::str::from_utf8(&[b' '; NAME]) {
            Ok(spaces) => spaces,
            Err(_) => "",
        };
        out.push_str(SPACES.get(out.len() - begin..).unwrap_or_default());
        match name.contains('\n') {
            true => out.push_str(&name.replace('\n', "\\012")),
            false => out.push_str(name),
        }
    }
    out.push('\n');
}

/// Returns the address space of a process, or `None` after its end.
pub fn space(process: &Process) -> Option<Space> {
    process.space.lock().clone()
}

/// The address space that a process had when a file of /proc was opened. An exec gives the process another
/// space, which the open file does not show.
pub struct Opened {
    process: Arc<Process>,
    /// The number of the program: see `Process::programs`.
    program: u32,
}

impl Opened {
    pub fn new(process: Arc<Process>) -> Self {
        let program = process.programs.load(Relaxed);
        Opened { process, program }
    }

    /// Returns the space, or `None` if the process has ended or executed another program.
    pub fn space(&self) -> Option<Space> {
        let space = self.process.space.lock();
        space.as_ref().filter(|_| self.process.programs.load(Relaxed) == self.program).cloned()
    }
}

/// The files that have a line or a paragraph for each VMA.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Maps,
    Smaps,
    NumaMaps,
}

/// A file of a [`Form`]. Its text is made in parts while it is read, because there may be very many lines.
pub struct Lines {
    of: Subject,
    opened: Opened,
    form: Form,
    made: SpinLock<Made>,
}

/// The part of the text that the last reads made.
#[derive(Default)]
struct Made {
    /// Offset of this part in the whole text.
    begin: u64,
    text: String,
    /// The line or paragraph that did not fit into this part.
    carried: String,
    /// Address from which the next line is made.
    next: u64,
    /// True if there are no further lines.
    over: bool,
}

/// Maximum size of a part of the text, in bytes. A part has at least one line of maps or paragraph of smaps.
const PART: usize = 4096;

impl Lines {
    /// Makes the file.
    pub fn new(of: Subject, form: Form) -> Self {
        let opened = Opened::new(of.process.clone());
        Lines { of, opened, form, made: SpinLock::new(Made::default()) }
    }
}

impl Made {
    /// Makes the next part.
    fn advance(&mut self, space: Option<&Space>, form: Form) {
        self.begin += self.text.len() as u64;
        self.text.clear();
        core::mem::swap(&mut self.text, &mut self.carried);
        let mut last = LastFile::default();
        self.over = space.is_none_or(|space| {
            loop {
                let before = self.text.len();
                if !self.add_line(space, form, &mut last) {
                    return true;
                }
                if before > 0 && self.text.len() > PART {
                    self.carried.push_str(&self.text[before..]);
                    self.text.truncate(before);
                    return false;
                }
            }
        });
    }

    /// Adds a line or a paragraph. Returns false if there is none.
    fn add_line(&mut self, space: &Space, form: Form, last: &mut LastFile) -> bool {
        if form == Form::Maps {
            let Some(line) = space.maps(self.next).next() else { return false };
            write_line(&mut self.text, &line, last);
            self.next = line.end;
            return true;
        }
        if form == Form::NumaMaps {
            let Some(line) = space.maps(self.next).next() else { return false };
            self.next = line.end;
            // A signal ends the text. The read then fails.
            let is_file = matches!(line.name, MapName::Object(_));
            let file = is_file.then(|| last.identity(&line).2);
            return numa_maps::write_line(&mut self.text, space, &line, file).is_ok();
        }
        let Some(smap) = space.smaps(self.next).next() else { return false };
        self.next = smap.line.end;
        write_line(&mut self.text, &smap.line, last);
        let _ = smap.write_details(&mut self.text);
        self.text.push('\n');
        true
    }
}

impl File for Lines {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        self.of.exists()?;
        let space = self.opened.space();
        // The part is moved out of `made`, so no lock is held while it is used. A task that reads
        // concurrently makes its own part.
        let mut made = core::mem::take(&mut *self.made.lock());
        if at < made.begin || at == 0 {
            made = Made::default();
        }
        // As on Linux, a read returns at most one new part, however much is requested.
        let (mut done, mut has_advanced) = (0, false);
        while to.len() > 0 {
            // A program may read behind the lines of all its VMAs.
            checkpoint()?;
            let from = (at + done as u64 - made.begin) as usize;
            if from < made.text.len() {
                match to.put(&made.text.as_bytes()[from..]) {
                    Err(error) if done == 0 => return Err(error),
                    Ok(bytes) if bytes > 0 => done += bytes,
                    _ => break,
                }
            } else if made.over || has_advanced && done > 0 {
                break;
            } else {
                made.advance(space.as_ref(), self.form);
                has_advanced = true;
            }
        }
        let before = core::mem::replace(&mut *self.made.lock(), made);
        drop(before);
        Ok(done)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 4, mode: REGULAR | 0o444, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        match request {
            PROCMAP_QUERY if self.form == Form::Maps => query(self.opened.space(), argument),
            _ => Err(errno::ENOTTY),
        }
    }
}

/// Returns the sum of all entries of smaps.
///
/// # Errors
///
/// ESRCH if the process has ended.
pub fn rollup(process: &Process) -> Result<Vec<u8>, Errno> {
    let space = space(process).ok_or(Errno::ESRCH)?;
    Ok(format!("{}", space.smaps_rollup()).into_bytes())
}

/// The file cmdline or environ: the strings of the arguments, or of the environment. The program chooses
/// their place and their length, so each read copies them again.
pub struct Strings {
    of: Subject,
    opened: Opened,
    /// True for environ.
    environment: bool,
}

impl Strings {
    /// Makes the file cmdline or, with `environment`, environ.
    pub fn new(of: Subject, environment: bool) -> Self {
        let opened = Opened::new(of.process.clone());
        Strings { of, opened, environment }
    }
}

impl File for Strings {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let space = if self.environment {
            self.opened.space()
        } else {
            self.of.exists()?;
            space(&self.of.process)
        };
        let Some(space) = space else { return Ok(0) };
        let (mut part, mut done) = ([0; 512], 0);
        while to.len() > 0 {
            checkpoint()?;
            let room = to.len().min(part.len());
            let from = at.saturating_add(done as u64);
            let read = match self.environment {
                true => space.read_environ(from, &mut part[..room]),
                false => space.read_cmdline(from, &mut part[..room]),
            };
            match read {
                Ok(bytes) if bytes > 0 => done += to.put(&part[..bytes])?,
                _ => break,
            }
        }
        Ok(done)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 1, mode: REGULAR | 0o444, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }
}

/// The file mem: the memory of a process, accessed as a debugger accesses it.
pub struct Memory(pub Opened);

impl File for Memory {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let Some(space) = self.0.space() else { return Ok(0) };
        let (mut part, mut done) = ([0; 2048], 0);
        while to.len() > 0 {
            let room = to.len().min(part.len());
            let from = at.wrapping_add(done as u64);
            match space.read_memory(from, &mut part[..room], AccessMode::Forced) {
                Err(_) if done == 0 => return Err(Errno::EIO),
                Ok(bytes) if bytes > 0 => done += to.put(&part[..bytes])?,
                _ => break,
            }
        }
        Ok(done)
    }

    fn write(&self, at: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let Some(space) = self.0.space() else { return Ok(0) };
        let (mut part, mut done) = ([0; 2048], 0);
        while from.len() > 0 {
            let bytes = from.get(&mut part)?;
            let to = at.wrapping_add(done as u64);
            match space.write_memory(to, &part[..bytes], AccessMode::Forced) {
                Err(_) if done == 0 => return Err(Errno::EIO),
                Ok(written) if written > 0 => done += written,
                _ => break,
            }
        }
        Ok(done)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 2, mode: REGULAR | 0o600, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }
}

/// The file pagemap: a word of 8 bytes for each page, with its presence, its kind, and the number of its
/// frame or swap slot.
pub struct Pages(pub Opened);

/// Bits of a word, with Linux's meanings.
mod bit {
    /// The page was written since the soft-dirty bits were last cleared.
    pub const SOFT_DIRTY: u64 = 1 << 55;
    /// The page is mapped by one entry only.
    pub const EXCLUSIVE: u64 = 1 << 56;
    /// Userfaultfd write-protects the page.
    pub const WRITE_PROTECTED: u64 = 1 << 57;
    /// The page is guarded.
    pub const GUARD: u64 = 1 << 58;
    /// The page belongs to a file or to shared memory.
    pub const OF_FILE: u64 = 1 << 61;
    /// The entry holds something else than a page. Bits 0 to 4 are then the number of a swap device, and
    /// bits 5 to 54 a place on the device.
    pub const SWAPPED: u64 = 1 << 62;
    /// The page is present. Bits 0 to 54 are then the number of its frame.
    pub const PRESENT: u64 = 1 << 63;
}

/// The number of the swap device that Linux reserves for markers.
const MARKERS: u64 = 31;
/// Number of words that one step of a read generates.
const WORDS: usize = 256;

impl File for Pages {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        if !at.is_multiple_of(8) || !to.len().is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let Some(space) = self.0.space() else { return Ok(0) };
        let mut done = 0;
        while to.len() > 0 {
            let count = (to.len() / 8).min(WORDS);
            let first = (at + done as u64) / 8;
            let last = first.saturating_add(count as u64).min(1 << 35);
            if first >= last {
                break;
            }
            let words = words(&space, first, last);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            // As on Linux, the call fails even if it has copied some bytes.
            done += to.put_whole(&bytes)?;
        }
        Ok(done)
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        match request {
            PAGEMAP_SCAN => scan(&self.0.space().ok_or(Errno::ESRCH)?, argument),
            _ => Err(Errno::EINVAL),
        }
    }

    fn stat(&self) -> Stat {
        Stat { inode: 3, mode: REGULAR | 0o400, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }
}

/// Returns the words of the pages from `first` to before `last`. The entries of pages of drivers are not
/// shown.
fn words(space: &Space, first: u64, last: u64) -> Vec<u64> {
    let mut words = alloc::vec![0; (last - first) as usize];
    let (start, end) = (first * PAGE_SIZE, last * PAGE_SIZE);
    let lines = space.maps(start).take_while(|line| line.start < end);
    for line in lines {
        let part = line.start.max(start)..line.end.min(end);
        let places = |pages: Range<u64>| {
            (pages.start / PAGE_SIZE - first) as usize..(pages.end / PAGE_SIZE - first) as usize
        };
        if line.flags.contains(VmFlags::SOFTDIRTY) {
            words[places(part.clone())].fill(bit::SOFT_DIRTY);
        }
        if line.flags.contains(VmFlags::PFNMAP) {
            continue;
        }
        // Linux does not show the bits of entries of huge pages of pools.
        let shown = if line.flags.contains(VmFlags::HUGETLB) { !bit::SOFT_DIRTY } else { !0 };
        space.page_entries(part, |run| {
            let word = word(&run) & shown;
            words[places(run.range.addresses())].iter_mut().for_each(|entry| *entry |= word);
            ControlFlow::Continue(())
        });
    }
    for (word, page) in words.iter_mut().zip(first..) {
        if *word & bit::PRESENT != 0 {
            *word |= space.frame_at(page * PAGE_SIZE).map_or(0, |frame| frame.get());
        } else if *word & (bit::SWAPPED | MARKERS) == bit::SWAPPED {
            // The kernel has one device, so no device has the number `MARKERS`.
            let slot = space.swap_slot_at(page * PAGE_SIZE);
            *word |= slot.map_or(0, |(device, slot)| device.number() as u64 | slot << 5);
        }
    }
    words
}

/// Returns the word of each page of a run, without the number of a frame or slot.
fn word(run: &EntryRun) -> u64 {
    let word = match run.entry {
        PageEntry::Empty => 0,
        PageEntry::Page { kind, exclusive } => {
            // On Linux the huge page of zeroes counts as a page of a file, and the small one does not.
            let of_file = kind == PageKind::File || kind == PageKind::Zero && run.huge;
            let exclusive = if exclusive { bit::EXCLUSIVE } else { 0 };
            bit::PRESENT | exclusive | if of_file { bit::OF_FILE } else { 0 }
        }
        // A marker of a huge page of a pool is shown only as write-protected.
        PageEntry::Marker(MarkerKind::UffdWp) if run.huge => 0,
        PageEntry::Marker(MarkerKind::UffdWp) => bit::SWAPPED | MARKERS | 1 << 5,
        PageEntry::Marker(MarkerKind::Poison) => bit::SWAPPED | MARKERS | 2 << 5,
        PageEntry::Marker(MarkerKind::Guard) => bit::SWAPPED | bit::GUARD | MARKERS | 4 << 5,
        PageEntry::Marker(MarkerKind::Migration | MarkerKind::Swap) => bit::SWAPPED,
    };
    let word = if run.soft_dirty { word | bit::SOFT_DIRTY } else { word };
    if run.write_protected { word | bit::WRITE_PROTECTED } else { word }
}
