//! The machine that a recording is replayed on, and what all its processes share.

use super::Options;
use super::image::{Image, Totals};
use super::length;
use super::opened::Opened;
use super::shmem_sizes::Recorded;
use super::workers::lock;
use freehold::counted::Counted;
use freehold::engine::{Blocks, Config, Engine, HugePages, SharedHuge};
use freehold::error::NoMemory;
use freehold::file::{File, ForeignFrames, Frames, Mapping, Segment, Special, Zeroes};
use freehold::hugetlb::HugePageSize;
use freehold::platform::Platform;
use freehold::space::limits::{Limits, UNLIMITED};
use freehold::space::{Placement, SpaceConfig};
use freehold::vma::flags::VmFlags;
use freehold::{
    Pfn,
    platform::{FramePurpose, FrameRequest},
};
use freehold_machine::{Machine, MachineConfig, Memory, Process};
use freehold_trace::plan::PlanFile;
use freehold_trace::{Recording, Thp, TmpfsHuge};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

const PAGE: u64 = 4096;
/// Memory of the machine, in bytes: more than any recording needs at once, and only what is used is touched.
pub(super) const MEMORY: u64 = 64 << 30;
/// Memory with contents that there is on any host.
const LEAST: u64 = 1 << 30;
/// Memory for page tables.
const TABLES: u64 = 1 << 30;
/// Pages of the kernel's own mappings: more than any has.
const SPECIAL_PAGES: usize = 16;
/// What part of the memory a pool of huge pages may take from the start.
const MOST_OF_POOL: u64 = 4;
/// Memory that any recorded machine has, in bytes.
const SOME_MEMORY: u64 = 64 << 20;
/// How the kernel names secret memory (memfd_secret).
const SECRET: &str = "/secretmem";
/// The device of zeroes.
pub(super) const ZEROES: &str = "/dev/zero";
/// Where files of shared memory have names.
const MOUNT: &str = "/dev/shm/";
/// How a plan names a file of which it only knows the descriptor.
pub(super) const UNNAMED: &str = "descriptor ";

/// A machine with an engine on it.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) engine: Counted<Engine<Machine>>,
    pub(super) options: Options,
    /// Bytes that Linux did not refuse to promise, whatever others had been promised (overcommit).
    pub(super) promises: u64,
    /// A process_vm_writev has written somewhere, where the recording does not say.
    pub(super) unseen_writes: bool,
    /// The recording tells where anonymous memory had huge pages, or is too old to.
    pub(super) tells_huge: bool,
    /// The recording tells what programs are given by personality(2).
    pub(super) tells_personalities: bool,
    /// The recording has calls of mseal.
    pub(super) shows_seals: bool,
    /// The recording has page faults; a text by strace has none.
    pub(super) has_faults: bool,
    /// What the recording says of the blocks of shared memory.
    pub(super) shared: Recorded,
    /// Mounts say that files of theirs have blocks.
    pub(super) mounts_have_blocks: bool,
    /// The sizes of pools of huge pages are not recorded, or are wrong. Tasks only ever set it; one that
    /// reads it too early reports a difference.
    pub(super) doubts_pools: AtomicBool,
    files: HashMap<u32, Mapped>,
    names: HashMap<String, u32>,
    /// Files by where the engine has them.
    homes: HashMap<usize, u32>,
    /// Pages of files by their names, where the recording tells.
    lengths: HashMap<String, u64>,
    /// Counts of address spaces that are gone.
    pub(super) totals: Arc<Totals>,
    /// What each task runs in: the image that a task had when it was made or did an exec.
    pub(super) images: Mutex<HashMap<u32, Weak<Image>>>,
    /// Tasks that were made in a segment where they have no steps.
    pub(super) newborn: Mutex<Vec<(u32, Option<Arc<Image>>)>>,
}

/// What stands behind a mapping.
pub(super) enum Mapped {
    File(Opened),
    Segment(Counted<Segment<Machine>>),
    Special(Counted<Special<Machine>>),
}

impl World {
    /// A fresh machine.
    ///
    /// # Errors
    /// The host refused the address space or the memory.
    pub(super) fn new(options: &Options) -> io::Result<World> {
        let memory = match options.backed {
            true => Memory::Backed { bytes: contents() },
            false => Memory::Phantom { bytes: MEMORY },
        };
        let config = MachineConfig { memory, ..MachineConfig::phantom(0).tables(TABLES) };
        let config = config.cpus(options.cpus).fast();
        let config = if options.keys { config.pkeys() } else { config };
        let machine =
            Machine::new(if options.oracles { MachineConfig { oracles: true, ..config } } else { config })?;
        let engine = Engine::new(
            machine.clone(),
            Config { lock_stats: true, file_rmap: options.design.file_rmap, ..Config::default() },
        )
        .map_err(io::Error::other)?;
        // How many there were is not recorded.
        for size in [HugePageSize::Mib2, HugePageSize::Gib1] {
            engine.huge_pool(size).set_overcommit(u64::MAX);
        }
        Ok(World {
            machine,
            engine,
            options: options.clone(),
            promises: 0,
            unseen_writes: false,
            tells_huge: true,
            tells_personalities: true,
            shows_seals: false,
            has_faults: true,
            shared: Recorded::default(),
            mounts_have_blocks: false,
            doubts_pools: AtomicBool::new(true),
            files: HashMap::new(),
            names: HashMap::new(),
            homes: HashMap::new(),
            lengths: HashMap::new(),
            totals: Arc::default(),
            images: Mutex::default(),
            newborn: Mutex::default(),
        })
    }

    /// The machine gets the settings of the recorded one, as far as they are known; `shown`: what snapshots
    /// show of huge pages.
    pub(super) fn set_up(&mut self, recording: &Recording, shown: Option<Thp>) {
        self.set_thp(recording, shown);
        // A new recording lacks the setting only where it has changed.
        self.tells_huge = recording.machine("kernel").is_none() || recording.machine("thp").is_some();
        // Linux frees page tables that MADV_DONTNEED empties since 6.14. Of a text no version is known.
        let old = recording.machine("kernel").and_then(version).is_some_and(|version| version < (6, 14));
        self.engine.set_reclaims_tables(!old);
        self.promises = match recording.machine("overcommit") {
            Some("1") => u64::MAX,
            // What is more than all memory is refused, and nothing else.
            Some("0") => SOME_MEMORY,
            _ => 0,
        };
        for size in HugePageSize::ALL {
            let pool = recording.machine(&format!("pool-{}kB", size.bytes() >> 10));
            let mut numbers =
                pool.into_iter().flat_map(|pool| pool.split(' ')).map_while(|word| word.parse::<u64>().ok());
            if let (Some(free), Some(more)) = (numbers.next(), numbers.next()) {
                // A machine with less memory has them made when they are asked for.
                let fits = free == 0
                    || free.saturating_mul(size.bytes()) <= MEMORY / MOST_OF_POOL && !self.options.backed;
                let enough = fits && self.engine.resize_huge_pool(size, free, None) == free;
                self.engine.huge_pool(size).set_overcommit(if enough { more } else { u64::MAX });
                if size == HugePageSize::Mib2 {
                    self.doubts_pools.store(!enough, Relaxed);
                }
            }
        }
    }

    /// Memory has huge pages, and blocks, where it had them, if that is known.
    pub(super) fn set_thp(&mut self, recording: &Recording, shown: Option<Thp>) {
        let all = recording.machine("thp").and_then(Thp::of_name).or(shown);
        if let Some(thp) = recording.thp_of_size(Thp::LARGEST, all).or(all) {
            self.engine.set_huge_pages(match thp {
                Thp::Never => HugePages::Never,
                Thp::Madvise => HugePages::Madvise,
                Thp::Always => HugePages::Always,
            });
        }
        let mut blocks = Blocks::default();
        for bytes in (0..u64::BITS).map(|bit| 1 << bit).filter(|bytes| bytes & Blocks::SIZES != 0) {
            match recording.thp_of_size(bytes, all) {
                Some(Thp::Always) => blocks.always |= bytes,
                Some(Thp::Madvise) => blocks.advised |= bytes,
                Some(Thp::Never) | None => {}
            }
        }
        self.engine.set_blocks(blocks);
        self.shared = Recorded::of(recording);
        self.engine.set_shared_blocks(self.shared.blocks);
    }

    /// How every address space begins: as root's, as the recordings were made.
    pub(super) fn config(&self) -> SpaceConfig {
        SpaceConfig {
            // Where Linux puts things.
            placement: Placement::FirstFit,
            limits: Limits {
                memlock: UNLIMITED,
                may_lock: true,
                may_map_low: true,
                may_inject_failure: true,
                ..Limits::default()
            },
            locking: self.options.design.space,
            ..SpaceConfig::default()
        }
    }

    /// Opens what a segment maps for the first time.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn open(&mut self, files: &[PlanFile]) -> Result<(), NoMemory> {
        for file in files {
            if file.segment {
                let (key, size) = (key(&file.path), file.size.unwrap_or(PAGE));
                let segment = match file.huge.and_then(HugePageSize::from_bytes) {
                    None => Segment::new(&self.engine, key, size)?,
                    Some(page) => {
                        let size = size.next_multiple_of(page.bytes());
                        // The recording does not say whether its pages were reserved.
                        Segment::of_huge_pages(&self.engine, key, page, size, false).map_err(|_| NoMemory)?
                    }
                };
                self.files.insert(file.id, Mapped::Segment(segment));
                continue;
            }
            let known = self.files.get_mut(&file.id);
            if let Some(Mapped::File(opened)) = known {
                opened.name.clone_from(&file.path);
                self.names.insert(file.path.clone(), file.id);
                continue;
            }
            let mapped = match special_name(&file.path) {
                Some(name) => Mapped::Special(self.special(name)?),
                None => Mapped::File(Opened::new(self.mapping(file)?, &file.path, file.memfd)),
            };
            if let Some(bytes) = file.size {
                self.lengths.insert(file.path.clone(), bytes.div_ceil(PAGE));
            }
            if let Mapped::File(opened) = &mapped {
                self.homes.insert(home(&opened.mapping), file.id);
            }
            self.names.insert(file.path.clone(), file.id);
            self.files.insert(file.id, mapped);
        }
        Ok(())
    }

    /// The pages of a file.
    fn mapping(&mut self, file: &PlanFile) -> Result<Counted<Mapping<Machine>>, NoMemory> {
        let bytes = length::to_size(file.length);
        if let Some(page) = file.huge.and_then(HugePageSize::from_bytes) {
            return Mapping::of_huge_pages(&self.engine, page, bytes, true).map_err(|_| NoMemory);
        }
        if plain_name(&file.path) == SECRET {
            let secret = Mapping::secret(&self.engine)?;
            // Its length is given once; where that is not recorded, it may be any.
            secret.truncate(bytes).map_err(|_| NoMemory)?;
            return Ok(secret);
        }
        if file.path == ZEROES {
            return Mapping::zeroes(&self.engine);
        }
        if file.memfd.is_some_and(Opened::may_be_sealed) {
            return Mapping::memfd(&self.engine, bytes);
        }
        let shmem = [MOUNT, "/memfd:", "/SYSV"];
        let shmem = file.memfd.is_some() || shmem.iter().any(|start| file.path.starts_with(start));
        // A file that has a name when it is mapped has what the mount says, and nothing at first. Without
        // huge pages a file of another tmpfs is like any file, most of whose pages were there before.
        let named = file.path.starts_with(MOUNT) && plain_name(&file.path) == file.path;
        let mount = file.tmpfs.or(named.then_some(TmpfsHuge::Never));
        let blocks = mount.is_some_and(|huge| huge != TmpfsHuge::Never);
        self.mounts_have_blocks |= blocks;
        let mapping = Mapping::new(&self.engine, Zeroes, bytes, shmem || blocks)?;
        mapping.set_mount_huge(mount.map(|huge| match huge {
            TmpfsHuge::Never => SharedHuge::Never,
            TmpfsHuge::Always => SharedHuge::Always,
            TmpfsHuge::WithinSize => SharedHuge::WithinSize,
            TmpfsHuge::Advise => SharedHuge::Advise,
        }));
        Ok(mapping)
    }

    /// The special mapping of this name, which consists of frames that nobody writes.
    #[expect(unsafe_code, reason = "says that frames of its own may be mapped")]
    fn special(&self, name: &'static str) -> Result<Counted<Special<Machine>>, NoMemory> {
        let mut frames = [Pfn::new(0); SPECIAL_PAGES];
        if self.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames) < frames.len() {
            return Err(NoMemory);
        }
        // SAFETY: from the machine, and never given back.
        let frames = frames.map(|frame| unsafe { ForeignFrames::new(frame, 1) });
        Special::new(&self.engine, Frames::new(name, &frames)?)
    }

    /// What is mapped under this number.
    pub(super) fn mapped(&self, id: u32) -> Option<&Mapped> {
        self.files.get(&id)
    }

    /// A System V segment is removed.
    pub(super) fn remove(&self, id: u32) {
        if let Some(Mapped::Segment(segment)) = self.mapped(id) {
            segment.remove();
        }
    }

    /// Returns whether Linux may let a program execute memory that it may only read here, by its personality,
    /// of which the recording does not tell.
    pub(super) fn may_execute(&self, process: &Process, address: u64) -> bool {
        const RIGHTS: VmFlags = VmFlags::READ.union(VmFlags::EXEC);
        let vma = process.find_vma(address).filter(|vma| vma.start() <= address);
        !self.tells_personalities && vma.is_some_and(|vma| vma.flags() & RIGHTS == VmFlags::READ)
    }

    /// Whether this is a file of which nothing is known, not even its name.
    pub(super) fn is_unnamed(&self, id: u32) -> bool {
        matches!(self.mapped(id), Some(Mapped::File(file)) if file.name.starts_with(UNNAMED))
    }

    /// The pages of a file: now, where that is recorded, else as it was found after the run; none where the
    /// recording does not tell.
    pub(super) fn length(&self, file: &File<Machine>) -> Option<u64> {
        let now = length::known(file.mapping()).map(|bytes| bytes.div_ceil(PAGE));
        now.or_else(|| self.lengths.get(file.name()).copied())
    }

    /// Whether the recording tells how this file was opened.
    pub(super) fn tells_opening(&self, file: &Counted<File<Machine>>) -> bool {
        let opened = self.homes.get(&home(file.mapping())).and_then(|id| self.files.get(id));
        matches!(opened, Some(Mapped::File(opened)) if opened.tells(file))
    }

    /// Makes pools as large as needed. Linux had more pages in one than the recording says, and how many is
    /// not known.
    pub(super) fn has_larger_pools(&self) {
        self.doubts_pools.store(true, Relaxed);
        for size in HugePageSize::ALL {
            self.engine.huge_pool(size).set_overcommit(u64::MAX);
        }
    }

    /// What a list of VMAs calls by this name; none for anonymous memory.
    pub(super) fn named(&self, name: &str) -> Option<&Mapped> {
        self.files.get(self.names.get(plain_name(name))?)
    }

    /// Everything that somebody runs in.
    pub(super) fn live(&self) -> Vec<Arc<Image>> {
        let images = lock(&self.images);
        let mut live: Vec<_> = images.values().filter_map(Weak::upgrade).collect();
        live.sort_by_key(|image| Arc::as_ptr(image) as usize);
        live.dedup_by_key(|image| Arc::as_ptr(image) as usize);
        live
    }

    /// What the process runs in of which `task` was the first.
    pub(super) fn image(&self, task: u32) -> Option<Arc<Image>> {
        let images = lock(&self.images);
        images.get(&task)?.upgrade()
    }

    /// `task` runs in `image` from now on.
    pub(super) fn runs(&self, task: u32, image: &Arc<Image>) {
        let mut images = lock(&self.images);
        images.insert(task, Arc::downgrade(image));
    }
}

/// What tells one file from all others.
fn home(mapping: &Mapping<Machine>) -> usize {
    std::ptr::from_ref(mapping).addr()
}

/// The key of the segment that lists call by this name.
fn key(name: &str) -> u32 {
    let digits = plain_name(name).strip_prefix("/SYSV");
    digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Memory with contents, in bytes: no more than half of what the host has left, since a recording may fill
/// it.
fn contents() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map_or(MEMORY, |kilobytes| kilobytes.saturating_mul(512)).clamp(LEAST, MEMORY)
}

/// A name without what says that it is gone from its directory.
pub(super) fn plain_name(name: &str) -> &str {
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

/// Whether a driver decides what a mapping of the file of this name is like, which no recording tells.
pub(super) fn is_of_driver(name: &str) -> bool {
    let device = name.strip_prefix("/dev/").filter(|_| plain_name(name) != ZEROES);
    let is_device = device.is_some_and(|name| !name.starts_with("shm/") && !name.starts_with("hugepages"));
    is_device || name.starts_with("anon_inode:") || name.starts_with("socket:")
}

/// What the kernel maps by itself, if `name` is such.
pub(super) fn special_name(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 5] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];
    NAMES.into_iter().find(|known| *known == name)
}

/// The first two numbers of a kernel's release, such as `6.18.4-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    numbers.next()?.ok().zip(numbers.next()?.ok())
}
