//! Files and segments that calls map, by their numbers in the plan.

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
/// How it calls the device of zeroes, and shared memory without a name.
const ZEROES: &str = "/dev/zero";
/// How the kernel calls memfds.
const MEMFD: &str = "/memfd:";

/// Files, segments and descriptors, as far as the recording tells.
#[derive(Default)]
pub(super) struct Files {
    /// Numbers of what is mapped, by path.
    pub(super) names: HashMap<String, u32>,
    /// How many there are.
    count: u32,
    /// The same, by the numbers that the recording has for files; and which of them are such.
    pub(super) records: HashMap<u32, u32>,
    recorded_files: HashSet<u32>,
    /// Memfds whose name is not known yet.
    nameless: HashMap<u32, PlanFile>,
    /// Which of them are files of huge pages, and how large those are, in bytes.
    pub(super) huge: HashMap<u32, u64>,
    pub(super) descriptors: Descriptors,
    pub(super) lengths: Lengths,
    /// Files of the recording, by path, and how many of them are in here.
    paths: HashMap<String, usize>,
    paths_known: usize,
    /// System V segments, by number.
    pub(super) segments: HashMap<u64, SystemV>,
    /// System V segments by their numbers in the plan.
    pub(super) segment_ids: HashMap<u32, u64>,
    /// New since the last segment of the plan.
    pub(super) new: Vec<PlanFile>,
}

/// A segment of System V shared memory.
#[derive(Clone, Copy, Default)]
pub(super) struct SystemV {
    /// The key that shmget found it by, which is in its name; none where no shmget is recorded.
    pub(super) key: Option<u32>,
    pub(super) bytes: u64,
    /// Bytes of its pages, if those are huge.
    pub(super) huge: Option<u64>,
}

impl Files {
    fn next_file(&mut self) -> u32 {
        self.count += 1;
        self.count
    }

    /// The number of what a list calls `name`; none for anonymous memory.
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
        // All memfds of this name that were opened again are one file in a text.
        if is_memfd(name) && recording.format() == Format::Strace {
            self.lengths.blur(id);
        }
        Some(id)
    }

    /// Whether this is /dev/zero, or memory without a name.
    pub(super) fn is_zeroes(&self, file: Option<u32>) -> bool {
        file.is_some() && file == self.names.get(ZEROES).copied()
    }

    /// What an mmap maps: if it is shared memory of /dev/zero, nothing that anything else maps.
    pub(super) fn own_memory(&mut self, call: &Call, file: Option<u32>) -> Option<u32> {
        let shared = call.name == CallName::Mmap && matches!(call.args[3] & 0xf, 1 | 3);
        if shared && self.is_zeroes(file) { Some(self.next_file()) } else { file }
    }

    /// The number of file `record` of the recording. Two of one path are two: one was deleted, or another put
    /// in its place. But every shared mapping of /dev/zero is recorded as a file of its own, and the
    /// device is one.
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

    /// A new memfd, by the flags of memfd_create.
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

    /// The file that an mmap with a descriptor maps. `path` is what the recording calls it.
    fn opened_file(
        &mut self,
        recording: &Recording,
        task: u32,
        call: &Call,
        path: Option<&str>,
    ) -> Option<u32> {
        let open = self.descriptors.get(task, call.args[4]);
        let memfd = open.filter(|open| open.memfd && path.is_none_or(is_memfd)).and_then(|open| open.file);
        // Known as another file, it is one that another process has sent. A text knows files by their names,
        // which many memfds share.
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

    /// A memfd's name is known when it is first mapped.
    fn call_by_name(&mut self, id: u32, path: Option<&str>) {
        let Some(path) = path.filter(|path| is_memfd(path)) else { return };
        if let Some(file) = self.nameless.remove(&id) {
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            self.new.push(PlanFile { path: path.to_owned(), ..file });
        }
    }

    /// A descriptor is file `id`: so a mapping shows. One that was another file was opened again, nobody
    /// knows how.
    fn note_mapped(&mut self, task: u32, call: &Call, id: Option<u32>) {
        let Some(open) = self.descriptors.get(task, call.args[4]) else { return };
        let same = !open.memfd && open.file.is_none_or(|file| Some(file) == id);
        self.descriptors.set(task, call.args[4], same.then_some(Open { file: id, ..open }));
    }

    /// How the file was opened that an mmap maps, if that is known.
    pub(super) fn access(&self, task: u32, call: &Call) -> Option<Access> {
        let of_file = call.name == CallName::Mmap && call.args[3] & MAP_ANONYMOUS == 0;
        if of_file { self.descriptors.get(task, call.args[4])?.access } else { None }
    }

    /// The number of the segment that shmat attaches, or was to attach; none if nothing is known of it.
    fn attached(&mut self, recording: &Recording, call: &Call) -> Option<u32> {
        // Made before the recording began, of a size that is not known.
        let unknown = call.returned.value().map(|_| SystemV { bytes: PAGE, ..SystemV::default() });
        let known = self.segments.get(&call.args[0]).copied().or(unknown)?;
        let path = call.file.and_then(|id| recording.file(id)).map(|file| file.path.clone());
        Some(self.segment_file(call.args[0], known, path))
    }

    /// The number of a segment, which has this path if it is new.
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

    /// What the recording tells of the file at `path`.
    fn recorded_file<'r>(&mut self, recording: &'r Recording, path: &str) -> Option<&'r FileInfo> {
        let files = recording.files();
        for (index, file) in files.iter().enumerate().skip(self.paths_known) {
            let path = file.path.strip_suffix(" (deleted)").unwrap_or(&file.path);
            self.paths.entry(path.to_owned()).or_insert(index);
        }
        self.paths_known = files.len();
        self.paths.get(path).and_then(|index| files.get(*index))
    }

    /// What a call maps, by its number in the plan.
    pub(super) fn mapped_file(&mut self, recording: &Recording, task: u32, call: &Call) -> Option<u32> {
        match call.name {
            CallName::Shmget => {
                if let Some(id) = call.returned.value() {
                    // A call that only asks for the identifier may say any size up to the true one.
                    let segment = self.segments.entry(id).or_default();
                    segment.bytes = segment.bytes.max(call.args[1]);
                    segment.key = Some(call.args[0] as u32);
                    if call.args[2] & SHM_HUGETLB != 0 {
                        segment.huge = Some(page_bytes(call.args[2]));
                    }
                }
                None
            }
            // There was no such descriptor.
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

    /// Bytes of the huge pages that an mmap maps, if it maps such.
    pub(super) fn maps_huge_pages(&self, call: &Call, file: Option<u32>) -> Option<u64> {
        match (call.name, call.args[3] & MAP_ANONYMOUS != 0) {
            (CallName::Mmap, true) => (call.args[3] & MAP_HUGETLB != 0).then(|| page_bytes(call.args[3])),
            (CallName::Mmap, false) => self.huge.get(&file?).copied(),
            _ => None,
        }
    }
}

/// By what the planner finds a segment's number.
pub(super) fn key(segment: u64) -> String {
    format!("segment {segment}")
}

fn is_memfd(path: &str) -> bool {
    path.starts_with(MEMFD) || path.starts_with("memfd of line ")
}

/// Bytes of the huge pages that flags of mmap or shmget ask for: the logarithm stands at bit 26.
pub(super) fn page_bytes(flags: u64) -> u64 {
    match flags >> 26 & 0x3f {
        0 => HUGE,
        shift => 1 << shift,
    }
}

/// Whether the file at `path` is one of huge pages, where the recording does not say so: file systems of
/// those are taken to be mounted where they usually are.
fn is_of_huge_pages(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "hugetlbfs" | "hugepages" | "anon_hugepage"))
}

/// The same mmap of as many bytes as it maps, in pages of so many.
pub(super) fn in_whole_pages(call: Call, page: u64) -> Call {
    let mut call = call;
    call.args[1] = call.args[1].checked_next_multiple_of(page).unwrap_or(call.args[1]);
    call
}
