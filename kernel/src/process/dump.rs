//! Core dumps (core(5)): an ELF file with the memory of a process that a signal has ended, and the registers
//! of its threads.
//!
//! The thread that acts on the signal marks its process. All other threads of the process then start to end,
//! and wait in [`hold`] until the file is written. The registers of a waiting thread are in the frame at
//! the top of its stack. A SIGKILL during the dump cuts the file short.
//!
//! `signal/deliver.rs` calls [`dump`] before it ends the process, and `exit.rs` calls [`hold`] before it
//! releases anything. `Process::dumping` marks the process. The program `cores.c` of the tests checks the
//! contents.
//!
//! A new note belongs in `notes`. `Part::new` decides which memory the file contains.

use crate::arch::{frame::Frame, preempt};
use crate::files::{buffer::UserBuffer, names, node::NodeFile, open::Open, tree};
use crate::platform::{Machine, Space};
use crate::process::names::{auxv, short_name};
use crate::process::signal::{DUMPING, Info, bit};
use crate::process::{Process, renew, settings, status::Status, trace};
use crate::sched::wait::{self, Key, Sleep, Woken};
use crate::sched::{Thread, current, work};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::File;
use freehold::remote::AccessMode;
use freehold::report::maps::{MapLine, MapName};
use freehold::report::smaps::Smap;
use freehold::vma::flags::VmFlags;
use freehold::{PAGE_SIZE, PageIndex};
use linux_raw_sys::general::*;

/// Returns the key on which the ending threads wait for the end of the dump.
fn key(process: &Process) -> Key {
    Key::kernel(&raw const process.dumping as u64)
}

/// Makes the calling thread, which is about to end, wait while its process is dumped.
pub fn hold(here: &Thread) {
    let (process, mut counts) = (here.process(), 1);
    loop {
        let waiting = wait::enqueue(key(process), u32::MAX);
        let mut dumping = process.dumping.lock();
        let Some(held) = &mut *dumping else {
            drop(dumping);
            waiting.cancel();
            return;
        };
        *held += core::mem::take(&mut counts);
        drop(dumping);
        wait::wake(process.thread_key(), usize::MAX);
        waiting.sleep(Sleep::Deaf, u64::MAX);
    }
}

/// Writes a core file for the process of the calling thread, if the signal and the settings of the process
/// allow a core file. `info` is the signal that ends the process, and `frame` is the state of the calling
/// thread at the signal. Records the dump in the process's status.
pub fn dump(frame: &Frame, info: &Info) {
    let here = current();
    let process = here.process();
    let most = process.limits.lock().soft(RLIMIT_CORE);
    if bit(info.signal) & DUMPING == 0 || most < PAGE_SIZE || process.is_dumpable.load(Relaxed) != 1 {
        return;
    }
    let mut ending = process.ending.lock();
    if ending.is_some() || here.is_killed() {
        return;
    }
    let status = Status::by_signal(info.signal as u8);
    *ending = Some(status);
    *process.dumping.lock() = Some(0);
    drop(ending);
    for other in process.threads.lock().iter().filter(|other| other.tid() != here.tid()) {
        other.give_work(work::KILL);
    }
    if wait_for_others(process).is_ok()
        && let Ok(open) = open(process)
    {
        *process.ending.lock() = Some(status.with_core());
        let mut core = Core { open, at: 0, room: most };
        // If an error occurs, the file keeps what was written so far.
        let _ = core.write(here, frame, info);
        let _ = core.open.file.mapping().map(|mapping| mapping.truncate(core.at.max(mapping.size())));
    }
    *process.dumping.lock() = None;
    wait::wake(key(process), usize::MAX);
}

/// Waits until all other threads wait in [`hold`]. Fails with EINTR if the calling thread is killed.
fn wait_for_others(process: &Process) -> Result<(), Errno> {
    loop {
        let waiting = wait::enqueue(process.thread_key(), u32::MAX);
        let held = process.dumping.lock().unwrap_or(0);
        if held + 1 >= process.threads.lock().len() {
            waiting.cancel();
            return Ok(());
        }
        if waiting.sleep(Sleep::Killable, u64::MAX) == Woken::Signal {
            return Err(Errno::EINTR);
        }
    }
}

/// Returns the path that kernel.core_pattern produces: `%p` is the PID, and `%e` is the program. Returns
/// `None` if no file is written.
fn path(process: &Process) -> Option<String> {
    let (pattern, pid) = (settings::CORE_PATTERN.lock().clone(), format!("{}", process.pid));
    let name = String::from_utf8_lossy(&short_name(process)).replace('/', "!");
    let pieces = pattern.split("%%").map(|piece| piece.replace("%p", &pid).replace("%e", &name));
    let mut path = pieces.collect::<Vec<_>>().join("%");
    if settings::kept("kernel/core_uses_pid") != 0 && !pattern.contains("%p") {
        path = path + "." + &pid;
    }
    Some(path).filter(|path| !path.is_empty() && !path.starts_with('|'))
}

/// Opens the core file and empties it. An existing file must have no other name.
fn open(process: &Process) -> Result<Arc<Open>, Errno> {
    let path = path(process).ok_or(Errno::EPERM)?.into_bytes();
    let from = current().place().directory.lock().clone();
    let node = match tree::lookup(&from, &path, false) {
        Err(Errno::ENOENT) => names::create(&from, &path, 0o600, false)?,
        found => found?,
    };
    let mapping = node.mapping().filter(|_| node.links.load(Relaxed) == 1).ok_or(Errno::EPERM)?;
    let file = NodeFile::new(node.clone());
    mapping.truncate(0).map_err(|error| error.errno())?;
    Ok(Open::new(Arc::new(file), O_WRONLY, &path))
}

/// A VMA, and the number of bytes from its start that the core file contains.
struct Part {
    start: u64,
    end: u64,
    /// Number of bytes from the start that are in the core file.
    kept: u64,
    flags: VmFlags,
    /// The file that the VMA maps with small pages, and the offset of its start.
    file: Option<(Counted<File<Machine>>, u64)>,
}

impl Part {
    /// Chooses the contents as for a process with the default filter: private memory that was written,
    /// anonymous shared memory, and the first page of each file, in which programs have their headers.
    fn new(smap: &Smap<Machine>) -> Self {
        let &MapLine { start, end, flags, offset, ref name, .. } = &smap.line;
        let (is_shared, is_huge) = (flags.contains(VmFlags::SHARED), smap.page_bytes > PAGE_SIZE);
        let file = match name {
            MapName::Object(object) => object.file().filter(|_| !is_huge),
            _ => None,
        };
        let kept = match file {
            _ if flags.intersects(VmFlags::DONTDUMP | VmFlags::IO | VmFlags::PFNMAP) => 0,
            None if is_huge && is_shared => 0,
            Some(file) if is_shared && !file.name().ends_with(" (deleted)") => 0,
            _ if is_shared || is_huge || smap.usage.anonymous > 0 => end - start,
            Some(_) if offset == 0 && flags.contains(VmFlags::READ) => PAGE_SIZE,
            _ => 0,
        };
        Part { start, end, kept, flags, file: file.map(|file| (file.clone(), offset)) }
    }

    /// Reads a page. Returns false if there is no page. Does not fault, because a thread that waits in
    /// [`hold`] might have to serve the fault (userfaultfd).
    fn read(&self, space: &Space, at: u64, out: &mut [u8]) -> bool {
        if space.frame_at(at).is_some() {
            return space.read_memory(at, out, AccessMode::Forced).is_ok();
        }
        let Some((file, offset)) = &self.file else { return false };
        let (mapping, from) = (file.mapping(), offset + (at - self.start));
        let is_hole =
            self.flags.contains(VmFlags::SHARED) && !mapping.has_data(PageIndex::new(from / PAGE_SIZE));
        !is_hole && mapping.read_at(from, out).is_ok_and(|bytes| bytes > 0)
    }
}

/// The core file while it is written.
struct Core {
    /// The core file.
    open: Arc<Open>,
    /// Offset of the next byte.
    at: u64,
    /// Number of bytes that may still be written (RLIMIT_CORE).
    room: u64,
}

impl Core {
    /// Appends bytes. Fails with ENOSPC if the limit or the memory does not suffice.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.room = self.room.checked_sub(bytes.len() as u64).ok_or(Errno::ENOSPC)?;
        let written =
            self.open.write(Some(self.at), &mut UserBuffer::from_kernel(bytes), renew::file_room)?;
        self.at += written as u64;
        if written == bytes.len() { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// Writes the headers, the notes and the contents of all VMAs.
    fn write(&mut self, here: &Thread, frame: &Frame, info: &Info) -> Result<(), Errno> {
        let space = here.space();
        let mut parts = Vec::new();
        for smap in space.smaps(0).take(MAX_PARTS) {
            parts.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            parts.push(Part::new(&smap));
        }
        let notes = notes(here, frame, info)?;
        let count = parts.len() as u64 + 1;
        // The headers (System V ABI, "Object files"): of the file, of the notes, and of each VMA.
        let from = 64 + 56 * count;
        self.put(&bytes_of(&[0x0001_0102_464c_457f, 0, 0x1_003e_0004, 0, 64, 0, 0x0038_0040 << 32, count]))?;
        self.put(&bytes_of(&[4, from, 0, 0, notes.len() as u64, 0, 4]))?;
        let mut to = (from + notes.len() as u64).next_multiple_of(PAGE_SIZE);
        for part in &parts {
            let right = |flag, bit: u64| if part.flags.contains(flag) { bit << 32 } else { 0 };
            let rights = right(VmFlags::READ, 4) | right(VmFlags::WRITE, 2) | right(VmFlags::EXEC, 1);
            let bytes = part.end - part.start;
            self.put(&bytes_of(&[1 | rights, to, part.start, 0, part.kept, bytes, PAGE_SIZE]))?;
            to += part.kept;
        }
        self.put(&notes)?;
        self.at = self.at.next_multiple_of(PAGE_SIZE);
        parts.iter().try_for_each(|part| self.put_part(space, part))
    }

    /// Writes the contents of a VMA. Absent pages become holes of the file.
    fn put_part(&mut self, space: &Space, part: &Part) -> Result<(), Errno> {
        let (begin, whole) = (self.at, part.start..part.start + part.kept);
        let (mut page, mut result) = ([0; PAGE_SIZE as usize], Ok(()));
        let mut put = |at: u64| {
            preempt::preempt_point();
            if current().is_killed() {
                return Err(Errno::EINTR);
            }
            page.fill(0);
            self.at = begin + (at - part.start);
            if part.read(space, at, &mut page) { self.put(&page) } else { Ok(()) }
        };
        match part.file {
            Some(_) => result = whole.step_by(PAGE_SIZE as usize).try_for_each(put),
            None => space.pagemap(whole.clone(), |present| {
                let Range { start, end } = whole;
                let pages = present.range.start().max(start)..present.range.end().min(end);
                let mut pages = pages.step_by(PAGE_SIZE as usize);
                result = result.and_then(|()| pages.try_for_each(&mut put));
            }),
        }
        self.at = begin + part.kept;
        result
    }
}

/// Maximum number of VMAs that the header can count.
const MAX_PARTS: usize = 0xfff0;

/// Returns the bytes of the words.
fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the notes: `struct elf_prstatus` of each thread, beginning with the thread of the signal;
/// `struct elf_prpsinfo`; the signal's information; the auxiliary vector.
fn notes(here: &Thread, frame: &Frame, info: &Info) -> Result<Vec<u8>, Errno> {
    let process = here.process();
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let ids = process.ids.lock().user.real;
    let family = pair(process.group.load(Relaxed), process.session.load(Relaxed));
    let status = |thread: &Thread, frame: &Frame| {
        let mut words = [0; 42];
        words[0] = pair(info.signal, info.code as u32);
        words[1] = pair(info.errno as u32, info.signal);
        words[2] = thread.pending.lock().set;
        words[3] = thread.blocked();
        words[4] = pair(thread.tid(), process.parent_pid());
        words[5] = family;
        words[14..41].copy_from_slice(&trace::registers(frame, [thread.fs_base.get(), thread.gs_base.get()]));
        words
    };
    let mut out = Vec::new();
    note(&mut out, 1, &bytes_of(&status(here, frame)))?;
    let mut about =
        bytes_of(&[u64::from(b'R') << 8, 0, pair(ids, ids), pair(process.pid, process.parent_pid()), family]);
    about.extend(short_name(process));
    about.resize(56, 0);
    let mut arguments = [0; 79];
    let _ = here.space().read_cmdline(0, &mut arguments);
    about.extend(arguments.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }));
    about.resize(136, 0);
    note(&mut out, 3, &about)?;
    note(&mut out, 0x5349_4749, &bytes_of(&info.words()))?;
    note(&mut out, 6, &auxv(process))?;
    let others = process.threads.lock().clone();
    for other in others.iter().filter(|other| other.tid() != here.tid()) {
        // SAFETY: the thread waits in `hold` until the dump is over.
        let frame = unsafe { other.frame() };
        note(&mut out, 1, &bytes_of(&status(other, &frame)))?;
    }
    Ok(out)
}

/// Appends a note of this type.
fn note(out: &mut Vec<u8>, kind: u32, text: &[u8]) -> Result<(), Errno> {
    // Memory may run out if the process has many threads.
    out.try_reserve(20 + text.len()).map_err(|_| Errno::ENOMEM)?;
    [5, text.len() as u32, kind].iter().for_each(|word| out.extend(word.to_le_bytes()));
    out.extend(b"CORE\0\0\0\0");
    out.extend(text);
    Ok(())
}
