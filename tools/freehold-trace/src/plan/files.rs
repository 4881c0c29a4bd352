//! Files and System V segments that calls map, by their numbers in the plan.
//!
//! [`Files`] is a part of the planner. The plan numbers files and segments together. `names` maps names to
//! numbers of the plan, and `records` maps the file numbers of the recording to numbers of the plan. The
//! replay creates one file per number from the [`PlanFile`]s in each segment of the plan. Two files with one
//! number would share pages that they do not share on Linux. One file with two numbers would not share its
//! pages. In both cases snapshots would differ.
//!
//! `syscall.rs` calls `mapped_file` for each call that may map a file. `descriptors.rs` has the open files of
//! each process, and `lengths.rs` the lengths. `memfds_are_distinguished_by_descriptor_and_not_by_name` and
//! other tests of `tests.rs` check the numbers.

use super::area::PAGE;
use super::descriptors::{Access, Descriptors, Open};
use super::lengths::Lengths;
use super::space::{HUGE, MAP_ANONYMOUS, MAP_HUGETLB};
use super::step::PlanFile;
use crate::{Call, CallName, FileInfo, Format, Recording, Returned};
use rustc_hash::FxHashMap as HashMap;
use std::collections::HashSet;

const SHM_HUGETLB: u64 = 0o4000;
const EBADF: u16 = 9;
/// The name of /dev/zero, which Linux also shows for shared memory without a name.
const ZEROES: &str = "/dev/zero";
/// The kernel's prefix for the names of memfds.
const MEMFD: &str = "/memfd:";

/// Files, segments and descriptors, as far as the recording shows them.
#[derive(Default)]
pub(super) struct Files {
    /// The plan's numbers of files and segments, by path or by `key`.
    pub(super) names: HashMap<String, u32>,
    /// The highest number so far.
    count: u32,
    /// The plan's number of each file of the recording, by the recording's number. `recorded_files` is the
    /// set of the plan's numbers that `file_of_record` has added.
    pub(super) records: HashMap<u32, u32>,
    recorded_files: HashSet<u32>,
    /// Memfds without a known name.
    nameless: HashMap<u32, PlanFile>,
    /// Page sizes in bytes of the files that have huge pages.
    pub(super) huge: HashMap<u32, u64>,
    /// The descriptors of each process.
    pub(super) descriptors: Descriptors,
    /// The known lengths, and the order of the steps that depend on them.
    pub(super) lengths: Lengths,
    /// Files of the recording by path, as indices of `Recording::files`. `paths_known` is the number of files
    /// that were added.
    paths: HashMap<String, usize>,
    paths_known: usize,
    /// System V segments by their identifiers.
    pub(super) segments: HashMap<u64, SystemV>,
    /// System V identifiers by the segments' numbers in the plan.
    pub(super) segment_ids: HashMap<u32, u64>,
    /// Files and System V segments that are new since the last segment of the plan.
    pub(super) new: Vec<PlanFile>,
}

/// A segment of System V shared memory.
#[derive(Clone, Copy, Default)]
pub(super) struct SystemV {
    /// The key of the shmget, which is part of the segment's name. `None` if no shmget is recorded.
    pub(super) key: Option<u32>,
    /// Size in bytes. If no shmget is recorded, one page stands for the unknown size.
    pub(super) bytes: u64,
    /// Size in bytes of the segment's huge pages, if it has huge pages.
    pub(super) huge: Option<u64>,
}

impl Files {
    /// Returns a new number.
    fn next_file(&mut self) -> u32 {
        self.count += 1;
        self.count
    }

    /// Returns the number of the file whose name in a list of VMAs is `name`. A new name gets a new number.
    /// Returns `None` for anonymous memory.
    pub(super) fn file_of(&mut self, recording: &Recording, name: &str) -> Option<u32> {
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        if matches!(name, "" | "-" | "[heap]" | "[stack]") || name.starts_with("[anon:") {
            return None;
        }
        if let Some(&id) = self.names.get(name) {
            return Some(id);
        }
        let id = self.next_file();
        self.names.insert(name.to_owned(), id);
        let known = self.recorded_file(recording, name);
        let (size, tmpfs) = (known.and_then(|file| file.size), known.and_then(|file| file.tmpfs));
        let huge = known.and_then(|file| file.huge).or(is_of_huge_pages(name).then_some(HUGE));
        self.huge.extend(huge.map(|bytes| (id, bytes)));
        let plain = PlanFile { size, huge, tmpfs, ..PlanFile::new(id, name) };
        self.new.push(plain);
        // strace output does not distinguish memfds with the same name that were opened by path, so these
        // memfds share one number.
        if is_memfd(name) && recording.format() == Format::Strace {
            self.lengths.blur(id);
        }
        Some(id)
    }

    /// Returns true if the file is /dev/zero, or shared memory without a name.
    pub(super) fn is_zeroes(&self, file: Option<u32>) -> bool {
        file.is_some() && file == self.names.get(ZEROES).copied()
    }

    /// Returns the number that the model uses for the file that an mmap maps. A shared mapping of /dev/zero
    /// gets a number of its own, because no other mapping shares its memory.
    pub(super) fn own_memory(&mut self, call: &Call, file: Option<u32>) -> Option<u32> {
        let shared = call.name == CallName::Mmap && matches!(call.args[3] & 0xf, 1 | 3);
        if shared && self.is_zeroes(file) { Some(self.next_file()) } else { file }
    }

    /// Returns the number in the plan of file `record` of the recording. Two records with one path have two
    /// numbers, because the first file was deleted or replaced. The exception is /dev/zero: every shared
    /// mapping has its own record, although all are files of one device.
    pub(super) fn file_of_record(&mut self, recording: &Recording, record: u32) -> Option<u32> {
        if let Some(&id) = self.records.get(&record) {
            return Some(id);
        }
        let path = recording.file(record)?.path.clone();
        let name = path.strip_suffix(" (deleted)").unwrap_or(&path);
        if name != ZEROES && self.names.get(name).is_some_and(|id| self.recorded_files.contains(id)) {
            self.names.remove(name);
        }
        let id = self.file_of(recording, &path)?;
        self.recorded_files.insert(id);
        self.records.insert(record, id);
        Some(id)
    }

    /// Adds the memfd that a memfd_create with these flags made. Returns its number.
    pub(super) fn memfd(&mut self, recording: &Recording, flags: u64, record: Option<u32>) -> u32 {
        const MFD_HUGETLB: u64 = 4;
        let id = self.next_file();
        let path = record.and_then(|record| recording.file(record)).map_or(MEMFD, |file| &file.path);
        let huge = (flags & MFD_HUGETLB != 0).then(|| page_bytes(flags));
        let file = PlanFile { length: Some(0), memfd: Some(flags), huge, ..PlanFile::new(id, path) };
        self.huge.extend(huge.map(|bytes| (id, bytes)));
        self.new.push(file.clone());
        self.nameless.insert(id, file);
        if let Some(record) = record {
            self.records.insert(record, id);
        }
        id
    }

    /// Returns the number of the file that an mmap with a descriptor maps. `path` is the file's path in the
    /// recording.
    fn opened_file(
        &mut self,
        recording: &Recording,
        task: u32,
        call: &Call,
        path: Option<&str>,
    ) -> Option<u32> {
        let open = self.descriptors.get(task, call.args[4]);
        let memfd = open.filter(|open| open.memfd && path.is_none_or(is_memfd)).and_then(|open| open.file);
        // If the record already has another number, another process has sent this descriptor. strace output
        // identifies files by names, which several memfds may share.
        let known = call.file.filter(|_| recording.format() != Format::Strace);
        let known = known.and_then(|record| self.records.get(&record).copied());
        if let Some(id) = memfd.filter(|id| known.is_none_or(|known| known == *id)) {
            self.call_by_name(id, path);
            self.records.extend(call.file.map(|record| (record, id)));
            return Some(id);
        }
        match (path, call.file) {
            (Some(path), Some(record)) if recording.follows_descriptors() => {
                let id = self.file_of_record(recording, record).or_else(|| self.file_of(recording, path));
                self.note_mapped(task, call, id);
                id
            }
            (Some(path), _) => {
                let file = self.file_of(recording, path);
                self.descriptors.set(task, call.args[4], Some(Open { file, ..Open::default() }));
                file
            }
            (None, _) => self.file_of(recording, &format!("descriptor {}", call.args[4] as i64)),
        }
    }

    /// Sets the name of a memfd, which the first mapping shows.
    fn call_by_name(&mut self, id: u32, path: Option<&str>) {
        let Some(path) = path.filter(|path| is_memfd(path)) else { return };
        if let Some(file) = self.nameless.remove(&id) {
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            self.new.push(PlanFile { path: path.to_owned(), ..file });
        }
    }

    /// Notes that the descriptor of an mmap refers to file `id`. If the descriptor referred to another file
    /// before, an unrecorded open has replaced that file, and the properties of the descriptor are forgotten.
    fn note_mapped(&mut self, task: u32, call: &Call, id: Option<u32>) {
        let Some(open) = self.descriptors.get(task, call.args[4]) else { return };
        let same = !open.memfd && open.file.is_none_or(|file| Some(file) == id);
        self.descriptors.set(task, call.args[4], same.then_some(Open { file: id, ..open }));
    }

    /// Returns the access mode of the file that an mmap maps, if known.
    pub(super) fn access(&self, task: u32, call: &Call) -> Option<Access> {
        let of_file = call.name == CallName::Mmap && call.args[3] & MAP_ANONYMOUS == 0;
        if of_file { self.descriptors.get(task, call.args[4])?.access } else { None }
    }

    /// Returns the number of the segment that a shmat attached or tried to attach. Returns `None` if the
    /// shmat failed and the segment is unknown.
    fn attached(&mut self, recording: &Recording, call: &Call) -> Option<u32> {
        // A segment without a recorded shmget was created before the recording began. Its size is unknown.
        let unknown = call.returned.value().map(|_| SystemV { bytes: PAGE, ..SystemV::default() });
        let known = self.segments.get(&call.args[0]).copied().or(unknown)?;
        let path = call.file.and_then(|id| recording.file(id)).map(|file| file.path.clone());
        Some(self.segment_file(call.args[0], known, path))
    }

    /// Returns the number of a segment. `known` has its properties. A new segment gets this path.
    pub(super) fn segment_file(&mut self, segment: u64, known: SystemV, path: Option<String>) -> u32 {
        let (SystemV { key: found_by, bytes, huge }, name) = (known, key(segment));
        if let Some(&id) = self.names.get(&name) {
            return id;
        }
        let path = path.unwrap_or_else(|| format!("/SYSV{:08x}", found_by.unwrap_or(0)));
        let id = self.next_file();
        self.names.insert(name, id);
        self.segment_ids.insert(id, segment);
        self.lengths.follow(id);
        let segment = PlanFile { size: Some(bytes), segment: true, huge, ..PlanFile::new(id, &path) };
        self.new.push(segment);
        id
    }

    /// Returns the recording's entry for the file at `path`.
    fn recorded_file<'r>(&mut self, recording: &'r Recording, path: &str) -> Option<&'r FileInfo> {
        let files = recording.files();
        for (index, file) in files.iter().enumerate().skip(self.paths_known) {
            let path = file.path.strip_suffix(" (deleted)").unwrap_or(&file.path);
            self.paths.entry(path.to_owned()).or_insert(index);
        }
        self.paths_known = files.len();
        self.paths.get(path).and_then(|index| files.get(*index))
    }

    /// Returns the number of the file or segment that a call maps. For a shmget, notes the properties of the
    /// segment and returns `None`.
    pub(super) fn mapped_file(&mut self, recording: &Recording, task: u32, call: &Call) -> Option<u32> {
        match call.name {
            CallName::Shmget => {
                if let Some(id) = call.returned.value() {
                    // A shmget of an existing segment may pass a smaller size, so the largest size counts.
                    let segment = self.segments.entry(id).or_default();
                    segment.bytes = segment.bytes.max(call.args[1]);
                    segment.key = Some(call.args[0] as u32);
                    if call.args[2] & SHM_HUGETLB != 0 {
                        segment.huge = Some(page_bytes(call.args[2]));
                    }
                }
                None
            }
            // EBADF: the descriptor does not exist.
            CallName::Mmap if call.returned == Returned::Error(EBADF) => None,
            CallName::Shmat => self.attached(recording, call),
            CallName::Mmap => {
                let anonymous = call.args[3] & MAP_ANONYMOUS != 0;
                let shared = matches!(call.args[3] & 0xf, 1 | 3);
                let path = call.file.and_then(|id| recording.file(id)).map(|file| file.path.clone());
                match (path, anonymous, shared) {
                    (_, true, false) => None,
                    (None, true, true) => self.file_of(recording, ZEROES),
                    (Some(path), true, true) => self.file_of(recording, &path),
                    (path, false, _) => self.opened_file(recording, task, call, path.as_deref()),
                }
            }
            _ => None,
        }
    }

    /// Returns the size in bytes of the huge pages that an mmap maps. Returns `None` if the call maps no huge
    /// pages of a pool.
    pub(super) fn maps_huge_pages(&self, call: &Call, file: Option<u32>) -> Option<u64> {
        match (call.name, call.args[3] & MAP_ANONYMOUS != 0) {
            (CallName::Mmap, true) => (call.args[3] & MAP_HUGETLB != 0).then(|| page_bytes(call.args[3])),
            (CallName::Mmap, false) => self.huge.get(&file?).copied(),
            _ => None,
        }
    }
}

/// Returns the key of `Files::names` for a segment. No path has this form.
pub(super) fn key(segment: u64) -> String {
    format!("segment {segment}")
}

/// Returns true if the path is that of a memfd, in a list of VMAs or in strace output.
fn is_memfd(path: &str) -> bool {
    path.starts_with(MEMFD) || path.starts_with("memfd of line ")
}

/// Returns the size in bytes of the huge pages that the flags of mmap, shmget or memfd_create request. Bits
/// 26 to 31 are the base-2 logarithm of the size; 0 selects the default size.
pub(super) fn page_bytes(flags: u64) -> u64 {
    match flags >> 26 & 0x3f {
        0 => HUGE,
        shift => 1 << shift,
    }
}

/// Returns true if the path belongs to a hugetlbfs at a usual mount point. Used if the recording does not
/// contain the page size.
fn is_of_huge_pages(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "hugetlbfs" | "hugepages" | "anon_hugepage"))
}

/// Rounds the length of an mmap up to whole pages of `page` bytes.
pub(super) fn in_whole_pages(call: Call, page: u64) -> Call {
    let mut call = call;
    call.args[1] = call.args[1].checked_next_multiple_of(page).unwrap_or(call.args[1]);
    call
}
