//! The machine on which a recording is replayed, and the state that all its processes share: files, segments,
//! settings and address spaces.
//!
//! `lib.rs` creates a [`World`] for each replay, applies the recorded settings ([`World::set_up`]), and adds
//! the files of each segment of the plan ([`World::open`]). Changes of files are in `opened.rs`, settings of
//! blocks in `shmem_sizes.rs`.
//!
//! Workers share the world by reference. Between segments the replay has exclusive access to the world. While
//! a segment runs, only state behind a lock or in an atomic changes. The fields `tells_*` and `shows_*` say
//! what the recording contains; comparisons leave out answers that depend on something that the recording
//! lacks. A new recorded setting is applied in [`World::set_up`]; a new kind of mapped object is a variant of
//! [`Mapped`].

use super::Options;
use super::image::{Image, Totals};
use super::length;
use super::opened::Opened;
use super::shmem_sizes::Recorded;
use super::short::{ShortMemory, Stored, SwapFile};
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
/// Memory of the machine in bytes. More than any recording needs at once; only memory in use is touched.
pub(super) const MEMORY: u64 = 64 << 30;
/// Size in bytes of the memory with contents that every host can provide.
const LEAST: u64 = 1 << 30;
/// Memory for page tables, in bytes.
const TABLES: u64 = 1 << 30;
/// Largest number of pages of the kernel's own mappings.
const SPECIAL_PAGES: usize = 16;
/// Largest initial size of a pool of huge pages: the memory divided by this number.
const MAX_OF_POOL: u64 = 4;
/// Memory in bytes that any recorded machine has.
const SOME_MEMORY: u64 = 64 << 20;
/// The kernel's name for secret memory (memfd_secret).
const SECRET: &str = "/secretmem";
/// Name of the device of zeroes.
pub(super) const ZEROES: &str = "/dev/zero";
/// Directory of named files of shared memory.
const MOUNT: &str = "/dev/shm/";
/// Prefix of the plan's name for a file of which only the descriptor is known.
pub(super) const UNNAMED: &str = "descriptor ";

/// A machine with an engine.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) engine: Counted<Engine<Machine>>,
    pub(super) options: Options,
    /// Size in bytes of the largest call that Linux never refuses because of overcommit, however much memory
    /// is already committed.
    pub(super) promises: u64,
    /// A process_vm_writev has written to addresses that are not recorded.
    pub(super) unseen_writes: bool,
    /// The recording shows where anonymous memory had huge pages, or is too old to show it.
    pub(super) tells_huge: bool,
    /// The recording shows the effect of personality(2).
    pub(super) tells_personalities: bool,
    /// The recording contains calls of mseal.
    pub(super) shows_seals: bool,
    /// The recording has page faults. strace output has none.
    pub(super) has_faults: bool,
    /// The recorded settings for blocks of shared memory.
    pub(super) shared: Recorded,
    /// The options of some mount permit blocks in its files.
    pub(super) mounts_have_blocks: bool,
    /// The sizes of pools of huge pages are not recorded, or are wrong. Tasks only set this flag, and nothing
    /// orders their accesses: a task that reads the flag too early reports a difference.
    pub(super) doubts_pools: AtomicBool,
    files: HashMap<u32, Mapped>,
    names: HashMap<String, u32>,
    /// File numbers by the address of the engine's mapping.
    homes: HashMap<usize, u32>,
    /// Lengths of files in pages by name, where recorded.
    lengths: HashMap<String, u64>,
    /// The clock and the device of a replay in limited memory.
    pub(super) short: Option<Arc<ShortMemory>>,
    /// Fault counts of address spaces that have ended.
    pub(super) totals: Arc<Totals>,
    /// Address space of each task: the image that the task got when it was created or at its last exec.
    pub(super) images: Mutex<HashMap<u32, Weak<Image>>>,
    /// Tasks that were created in a segment in which they have no steps.
    pub(super) newborn: Mutex<Vec<(u32, Option<Arc<Image>>)>>,
}

/// The object behind a mapping.
pub(super) enum Mapped {
    /// A file, or shared memory that is mapped like a file.
    File(Opened),
    /// A segment of System V shared memory.
    Segment(Counted<Segment<Machine>>),
    /// A mapping that the kernel makes, such as the vDSO.
    Special(Counted<Special<Machine>>),
}

impl World {
    /// Creates a machine.
    ///
    /// # Errors
    /// Fails if the host refuses the address space or the memory.
    pub(super) fn new(options: &Options) -> io::Result<World> {
        let mut options = options.clone();
        let limit = options.memory;
        if limit.is_some() {
            // The clock belongs to the task of the current step.
            options.cpus = 1;
        }
        let memory = match options.backed {
            true => Memory::Backed { bytes: limit.map_or_else(contents, |limit| limit.bytes) },
            false => Memory::Phantom { bytes: limit.map_or(MEMORY, |limit| limit.bytes) },
        };
        // A page of phantom memory must not look like a page full of zeroes, which needs no slot.
        let config = MachineConfig { memory, ..MachineConfig::phantom(0).tables(TABLES).fill(1) };
        let config = config.cpus(options.cpus).fast();
        let config = if options.keys { config.pkeys() } else { config };
        let machine =
            Machine::new(if options.oracles { MachineConfig { oracles: true, ..config } } else { config })?;
        let engine = Engine::new(machine.clone(), config_of(&options)).map_err(io::Error::other)?;
        let short = limit.map(|limit| Arc::new(ShortMemory::new(&limit, options.backed)));
        if let (Some(short), Some(limit)) = (&short, limit) {
            if limit.swap >= PAGE {
                let device = SwapFile { memory: short.clone(), slots: limit.swap / PAGE };
                engine.swap_on(device, 0).map_err(io::Error::other)?;
            }
            let (short, engine) = (short.clone(), engine.clone());
            machine.set_memory_short(Some(Arc::new(move |_| short.answer(&engine))));
        }
        // Until `set_up` applies a recorded size, the pools have no limit. Old recordings contain no sizes.
        for size in [HugePageSize::Mib2, HugePageSize::Gib1] {
            engine.huge_pool(size).set_overcommit(u64::MAX);
        }
        Ok(World {
            machine,
            engine,
            short,
            promises: 0,
            unseen_writes: false,
            tells_huge: limit.is_none(),
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
            options,
        })
    }

    /// Applies the recorded settings to the machine, as far as they are known. `shown` is the setting for
    /// huge pages that snapshots show.
    pub(super) fn set_up(&mut self, recording: &Recording, shown: Option<Thp>) {
        self.set_thp(recording, shown);
        // A new recording lacks this setting only if the setting changed during the run.
        self.tells_huge = self.short.is_none()
            && (recording.machine("kernel").is_none() || recording.machine("thp").is_some());
        // Since 6.14 Linux frees page tables that MADV_DONTNEED empties. strace output does not show the
        // version of the kernel; the replay then assumes 6.14 or later.
        let old = recording.machine("kernel").and_then(version).is_some_and(|version| version < (6, 14));
        self.engine.set_reclaims_tables(!old);
        self.promises = match recording.machine("overcommit") {
            Some("1") => u64::MAX,
            // In this mode Linux refuses only a call that asks for more than the whole memory.
            Some("0") => SOME_MEMORY,
            _ => 0,
        };
        for size in HugePageSize::ALL {
            let pool = recording.machine(&format!("pool-{}kB", size.bytes() >> 10));
            let mut numbers =
                pool.into_iter().flat_map(|pool| pool.split(' ')).map_while(|word| word.parse::<u64>().ok());
            if let (Some(free), Some(more)) = (numbers.next(), numbers.next()) {
                // If the machine has too little memory for the pool, huge pages are allocated on demand
                // instead.
                let fits = free == 0
                    || free.saturating_mul(size.bytes()) <= MEMORY / MAX_OF_POOL
                        && !self.options.backed
                        && self.short.is_none();
                let enough = fits && self.engine.resize_huge_pool(size, free, None) == free;
                self.engine.huge_pool(size).set_overcommit(if enough { more } else { u64::MAX });
                if size == HugePageSize::Mib2 {
                    self.doubts_pools.store(!enough, Relaxed);
                }
            }
        }
    }

    /// Applies the recorded settings for huge pages and blocks, as far as they are known. `shown` is the
    /// setting for huge pages that snapshots show.
    pub(super) fn set_thp(&mut self, recording: &Recording, shown: Option<Thp>) {
        let all = recording.machine("thp").and_then(Thp::of_name).or(shown);
        // Reclaim leaves huge pages in memory, so a replay in limited memory has none.
        let largest = recording.thp_of_size(Thp::LARGEST, all).or(all);
        if let Some(thp) = largest.map(|thp| if self.short.is_some() { Thp::Never } else { thp }) {
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

    /// Returns the initial settings of an address space. The settings are those of a process of root, because
    /// recorded processes usually run as root.
    pub(super) fn config(&self) -> SpaceConfig {
        SpaceConfig::new()
            // Linux uses the first fit.
            .placement(Placement::FirstFit)
            .limits(
                Limits::new().memlock(UNLIMITED).may_lock(true).may_map_low(true).may_inject_failure(true),
            )
            .locking(self.options.design.space)
    }

    /// Creates the files and segments that a segment of the plan uses for the first time.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(super) fn open(&mut self, files: &[PlanFile]) -> Result<(), NoMemory> {
        for file in files {
            if file.segment {
                let (key, size) = (key(&file.path), file.size.unwrap_or(PAGE));
                let segment = match file.huge.and_then(HugePageSize::from_bytes) {
                    None => Segment::new(&self.engine, key, size)?,
                    Some(page) => {
                        let size = size.next_multiple_of(page.bytes());
                        // The recording does not show whether the segment reserved its pages.
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

    /// Creates the page cache of a file.
    fn mapping(&mut self, file: &PlanFile) -> Result<Counted<Mapping<Machine>>, NoMemory> {
        let bytes = length::to_size(file.length);
        if let Some(page) = file.huge.and_then(HugePageSize::from_bytes) {
            return Mapping::of_huge_pages(&self.engine, page, bytes, true).map_err(|_| NoMemory);
        }
        if plain_name(&file.path) == SECRET {
            let secret = Mapping::secret(&self.engine)?;
            // The length is set only once. If the call that sets it is not recorded, any length is possible.
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
        // A file of /dev/shm that still has a name when it is mapped follows the setting of the mount, and is
        // initially empty. A file of another tmpfs without huge pages is treated like a file of a disk: most
        // of its pages existed before.
        let named = file.path.starts_with(MOUNT) && plain_name(&file.path) == file.path;
        let mount = file.tmpfs.or(named.then_some(TmpfsHuge::Never));
        let blocks = mount.is_some_and(|huge| huge != TmpfsHuge::Never);
        self.mounts_have_blocks |= blocks;
        let mapping = match &self.short {
            Some(short) if !shmem && !blocks => {
                let stored = Stored { memory: short.clone(), file: file.id };
                Mapping::new(&self.engine, stored, bytes, false)?
            }
            _ => Mapping::new(&self.engine, Zeroes, bytes, shmem || blocks)?,
        };
        mapping.set_mount_huge(mount.map(|huge| match huge {
            TmpfsHuge::Never => SharedHuge::Never,
            TmpfsHuge::Always => SharedHuge::Always,
            TmpfsHuge::WithinSize => SharedHuge::WithinSize,
            TmpfsHuge::Advise => SharedHuge::Advise,
        }));
        Ok(mapping)
    }

    /// Creates the special mapping of this name. Its frames are never written.
    #[expect(unsafe_code, reason = "declares that frames of the machine may be mapped")]
    fn special(&self, name: &'static str) -> Result<Counted<Special<Machine>>, NoMemory> {
        let mut frames = [Pfn::new(0); SPECIAL_PAGES];
        if self.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frames) < frames.len() {
            return Err(NoMemory);
        }
        // SAFETY: the frames come from the machine and are never freed, so they stay valid while they are
        // mapped.
        let frames = frames.map(|frame| unsafe { ForeignFrames::new(frame, 1) });
        Special::new(&self.engine, Frames::new(name, &frames)?)
    }

    /// Returns the object with this number in the plan.
    pub(super) fn mapped(&self, id: u32) -> Option<&Mapped> {
        self.files.get(&id)
    }

    /// Removes a System V segment.
    pub(super) fn remove(&self, id: u32) {
        if let Some(Mapped::Segment(segment)) = self.mapped(id) {
            segment.remove();
        }
    }

    /// Returns true if the VMA at `address` is readable and not executable, and if a personality that the
    /// recording does not show may have made the VMA executable on Linux.
    pub(super) fn may_execute(&self, process: &Process, address: u64) -> bool {
        const RIGHTS: VmFlags = VmFlags::READ.union(VmFlags::EXEC);
        let vma = process.find_vma(address).filter(|vma| vma.start() <= address);
        !self.tells_personalities && vma.is_some_and(|vma| vma.flags() & RIGHTS == VmFlags::READ)
    }

    /// Returns true if nothing is known about the file, including its name.
    pub(super) fn is_unnamed(&self, id: u32) -> bool {
        matches!(self.mapped(id), Some(Mapped::File(file)) if file.name.starts_with(UNNAMED))
    }

    /// Returns the length of a file in pages: the current length if it is recorded, otherwise the length
    /// found after the run. Returns `None` if neither is recorded.
    pub(super) fn length(&self, file: &File<Machine>) -> Option<u64> {
        let now = length::known(file.mapping()).map(|bytes| bytes.div_ceil(PAGE));
        now.or_else(|| self.lengths.get(file.name()).copied())
    }

    /// Returns true if the recording shows how this file was opened.
    pub(super) fn tells_opening(&self, file: &Counted<File<Machine>>) -> bool {
        let opened = self.homes.get(&home(file.mapping())).and_then(|id| self.files.get(id));
        matches!(opened, Some(Mapped::File(opened)) if opened.tells(file))
    }

    /// Makes the pools as large as needed. Linux had more pages than the recording says, and their number is
    /// not known.
    pub(super) fn has_larger_pools(&self) {
        self.doubts_pools.store(true, Relaxed);
        for size in HugePageSize::ALL {
            self.engine.huge_pool(size).set_overcommit(u64::MAX);
        }
    }

    /// Returns the object with this name in a list of VMAs. Returns `None` for anonymous memory.
    pub(super) fn named(&self, name: &str) -> Option<&Mapped> {
        self.files.get(self.names.get(plain_name(name))?)
    }

    /// Returns all address spaces in which tasks run.
    pub(super) fn live(&self) -> Vec<Arc<Image>> {
        let images = lock(&self.images);
        let mut live: Vec<_> = images.values().filter_map(Weak::upgrade).collect();
        live.sort_by_key(|image| Arc::as_ptr(image) as usize);
        live.dedup_by_key(|image| Arc::as_ptr(image) as usize);
        live
    }

    /// Returns the address space of the process whose first task is `task`.
    pub(super) fn image(&self, task: u32) -> Option<Arc<Image>> {
        let images = lock(&self.images);
        images.get(&task)?.upgrade()
    }

    /// Records that `task` runs in `image` from now on.
    pub(super) fn runs(&self, task: u32, image: &Arc<Image>) {
        let mut images = lock(&self.images);
        images.insert(task, Arc::downgrade(image));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The function refers to the engine, which refers to the machine.
        self.machine.set_memory_short(None);
    }
}

/// Returns the configuration of the engine.
fn config_of(options: &Options) -> Config {
    let config = Config::new().lock_stats(true).file_rmap(options.design.file_rmap);
    options.memory.iter().fold(config, |config, memory| config.reclaim(memory.policy))
}

/// Returns a value that identifies a file.
fn home(mapping: &Mapping<Machine>) -> usize {
    std::ptr::from_ref(mapping).addr()
}

/// Returns the key of the System V segment that lists of VMAs show with this name.
fn key(name: &str) -> u32 {
    let digits = plain_name(name).strip_prefix("/SYSV");
    digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Returns the size of memory with contents in bytes: half of the host's available memory, but at least
/// [`LEAST`] and at most [`MEMORY`].
fn contents() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map_or(MEMORY, |kilobytes| kilobytes.saturating_mul(512)).clamp(LEAST, MEMORY)
}

/// Returns a name without the suffix that marks a deleted file.
pub(super) fn plain_name(name: &str) -> &str {
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

/// Returns true if a driver determines the mappings of the file with this name. Recordings do not show how
/// the driver sets up its mappings.
pub(super) fn is_of_driver(name: &str) -> bool {
    let device = name.strip_prefix("/dev/").filter(|_| plain_name(name) != ZEROES);
    let is_device = device.is_some_and(|name| !name.starts_with("shm/") && !name.starts_with("hugepages"));
    is_device || name.starts_with("anon_inode:") || name.starts_with("socket:")
}

/// Returns the name of the kernel's own mapping, if `name` is one.
pub(super) fn special_name(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 5] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];
    NAMES.into_iter().find(|known| *known == name)
}

/// Returns the first two numbers of a kernel release such as `6.18.4-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    numbers.next()?.ok().zip(numbers.next()?.ok())
}
