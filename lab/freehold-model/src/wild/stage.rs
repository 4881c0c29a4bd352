//! The machine of a life, and the objects on which wild calls operate: spaces, files, segments, userfaultfds,
//! pins and regions.
//!
//! `space.rs`, `others.rs`, `user.rs` and `flat.rs` make the calls on these objects. The settings of the
//! engine and of spaces are wild, too. A thread, the [`Watcher`], serves the userfaultfds, so that no call
//! waits for ever. At the end of a life, the stage drops all objects and checks that no frame and no table is
//! leaked. A new kind of object is a field here, created in [`Stage::new`] and dropped in [`Stage::end`].

use super::values::{BASE, Values};
use crate::op::PAGE;
use freehold::{
    PageIndex,
    counted::Counted,
    engine::{Blocks, Config, Engine, HugePages, NodeWidth, SharedBlocks, SharedHuge},
    file::{File, FileAccess, Frames, IoError, Mapping, Pager, Segment, Special, Zeroes},
    hugetlb::HugePageSize,
    nommu::{NoMmuSpace, Regions},
    platform::Platform,
    remote::Pins,
    rmap::FileRmap,
    space::{
        FaultLock, HugetlbLock, Layout, Limits, Locking, MapFlags, Mdwe, Placement, Prot, SpaceConfig,
        ThpDisable, Unmap, Write,
    },
    uffd::{FaultReason, Features, FillMode, Message, ProtectMode, UffdConfig, Userfaultfd},
};
use freehold_machine::DefaultFormat;
use freehold_machine::{Cpu, Machine, MachineConfig, Process};
use freehold_pagetable::Pfn;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// The pager of a file whose pages each begin with their index.
struct Disk;

impl Pager<Machine> for Disk {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        platform.zero_frame(frame);
        platform.write_frame(frame, 0, &index.get().to_le_bytes());
        Ok(())
    }
}

type Uffd = Arc<Userfaultfd<Machine>>;

/// A machine and the objects on it.
pub struct Stage {
    pub(super) machine: Machine,
    pub(super) engine: Counted<Engine<Machine>>,
    pub(super) cpu: Cpu<DefaultFormat>,
    pub(super) spaces: Vec<Process>,
    pub(super) files: Vec<Counted<File<Machine>>>,
    pub(super) segments: Vec<Counted<Segment<Machine>>>,
    pub(super) special: Counted<Special<Machine>>,
    pub(super) uffds: Vec<Uffd>,
    pub(super) pins: Vec<Pins<Machine>>,
    pub(super) regions: Counted<Regions<Machine>>,
    pub(super) flat: Vec<Counted<NoMmuSpace<Machine>>>,
    pager: Watcher,
}

/// The thread that serves userfaultfds, and the list of these userfaultfds.
struct Watcher {
    watched: Arc<(AtomicBool, Mutex<Vec<Uffd>>)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Returns settings of an engine, some of them wild.
fn config(values: &mut Values<'_>) -> Config {
    let tame = Config::new().huge_pages(HugePages::Madvise);
    let wild = values.below(4) == 0;
    Config::new()
        .max_map_count(if values.bit() { 65_530 } else { values.wild() })
        .mmap_min_addr(if wild { values.wild() } else { tame.mmap_min_addr })
        .stack_gap(if values.bit() { tame.stack_gap } else { values.wild() })
        .overcommit(if values.bit() { tame.overcommit } else { super::others::overcommit(values) })
        .huge_pages(values.of(&[HugePages::Never, HugePages::Madvise, HugePages::Always]))
        .blocks(Blocks::new().always(values.of(&[0, 1 << 16])).advised(values.of(&[0, 1 << 14, 1 << 18])))
        .shared_blocks(shared_blocks(values))
        .reclaims_tables(values.bit())
        .file_rmap(values.of(&FileRmap::ALL))
        .vma_nodes(values.of(&[NodeWidth::Wide, NodeWidth::Narrow]))
        .lock_stats(values.bit())
}

/// Returns any settings for blocks of shared memory.
pub(super) fn shared_blocks(values: &mut Values<'_>) -> SharedBlocks {
    use SharedHuge::{Advise, Always, Deny, Force, Never, WithinSize};
    SharedBlocks::new()
        .all(values.of(&[Never, Always, WithinSize, Advise, Deny, Force]))
        .always(if values.bit() { values.wild() } else { values.of(&[0, 1 << 14]) })
        .within_size(values.of(&[0, 1 << 15, 1 << 16]))
        .advised(values.of(&[0, 1 << 17]))
        .inherit(values.of(&[0, 1 << 21]))
}

/// Draws a setting of PR_SET_THP_DISABLE. Invalid settings become the default.
pub(super) fn thp_disable(values: &mut Values<'_>) -> ThpDisable {
    ThpDisable::from_raw(values.below(3), values.below(4)).unwrap_or_default()
}

/// Returns limits of an address space, some of them wild.
pub(super) fn limits(values: &mut Values<'_>) -> Limits {
    let mut limit = |tame: u64| if values.below(4) == 0 { values.wild() } else { tame };
    let tame = Limits::default();
    Limits::new()
        .address_space(limit(tame.address_space))
        .data(limit(tame.data))
        .data_hard(limit(tame.data_hard))
        .memlock(limit(tame.memlock))
        .stack(limit(tame.stack))
        .may_lock(values.bit())
        .may_map_low(values.bit())
        .may_inject_failure(values.bit())
}

/// Returns settings of an address space, some of them wild.
pub(super) fn space_config(values: &mut Values<'_>) -> SpaceConfig {
    let tame = SpaceConfig::default();
    let wild = values.below(2) == 0;
    let sections = if values.bit() { 2 << 20 } else { values.wild() };
    let unmap = values.of(&[
        Unmap::Exclusive,
        Unmap::Sectioned { bytes: sections },
        Unmap::Downgraded,
        Unmap::Released,
    ]);
    SpaceConfig::new()
        .mmap_base(wild.then(|| values.wild()))
        .layout(values.of(&[Layout::TopDown, Layout::BottomUp]))
        .placement(values.of(&[Placement::FirstFit, Placement::PerCpu]))
        .brk(values.bit().then(|| values.wild()))
        .data(if values.below(4) == 0 { values.range() } else { tame.data })
        .limits(limits(values))
        .mdwe(Mdwe::from_bits_retain(values.below(5) as u32))
        .thp_disable(thp_disable(values))
        .memory_merge(values.bit())
        .locking(
            Locking::default()
                .unmap(unmap)
                .fault(values.of(&FaultLock::ALL))
                .hugetlb(values.of(&[HugetlbLock::FileLock, HugetlbLock::VmaLock]))
                .write(values.of(&[Write::Whole, Write::Ranges, Write::RangesOnly])),
        )
        .lock_stats(values.bit())
}

impl Stage {
    /// Creates a machine with little memory. Returns `None` if the engine refuses the settings.
    pub(super) fn new(values: &mut Values<'_>) -> Option<Self> {
        let config_of_machine = MachineConfig::backed(24 << 20).tables(1 << 20).pkeys();
        let machine = Machine::new(config_of_machine).expect("a machine");
        let engine = Engine::new(machine.clone(), config(values)).ok()?;
        let mut stage = Stage {
            cpu: machine.cpu(0),
            spaces: Vec::new(),
            files: Vec::new(),
            segments: Vec::new(),
            special: Special::new(&engine, Frames::new("[it]", &[]).ok()?).ok()?,
            uffds: Vec::new(),
            pins: Vec::new(),
            regions: Regions::new(&engine).ok()?,
            flat: Vec::new(),
            pager: Watcher::new(),
            machine,
            engine,
        };
        stage.engine.resize_huge_pool(HugePageSize::Mib2, 3, None);
        stage.make_files();
        for _ in 0..2 {
            let config = space_config(values);
            let made = Process::new(&stage.engine, &config)
                .or_else(|_| Process::new(&stage.engine, &SpaceConfig::default()));
            stage.spaces.push(made.ok()?);
        }
        stage.flat.push(NoMmuSpace::new(&stage.regions).ok()?);
        stage.map_something();
        Some(stage)
    }

    fn make_files(&mut self) {
        let engine = &self.engine;
        let mappings = [
            Mapping::new(engine, Disk, 12 * PAGE + 5, false).ok(),
            Mapping::new(engine, Zeroes, 12 * PAGE, true).ok(),
            Mapping::memfd(engine, 12 * PAGE).ok(),
            Mapping::secret(engine).ok(),
            Mapping::zeroes(engine).ok(),
            Mapping::of_huge_pages(engine, HugePageSize::Mib2, 4 << 20, true).ok(),
        ];
        for mapping in mappings.into_iter().flatten() {
            if mapping.is_secret() {
                let _ = mapping.truncate(12 * PAGE);
            }
            self.files.extend(File::new(&mapping, FileAccess::READ_WRITE, "/a/file"));
        }
        self.segments.extend(Segment::new(engine, 5, 3 * PAGE));
    }

    /// Maps some memory, so that not every call hits a hole.
    fn map_something(&self) {
        let both = Prot::READ | Prot::WRITE;
        let fixed = MapFlags::FIXED | MapFlags::PRIVATE;
        for space in &self.spaces {
            let _ = space.mmap(BASE, 24 * PAGE, both, fixed | MapFlags::ANONYMOUS, None, 0);
            let _ = space.mmap(BASE + 24 * PAGE, 8 * PAGE, both, fixed, self.files.first(), 0);
        }
    }

    /// Returns one of the spaces.
    pub(super) fn space(&self, values: &mut Values<'_>) -> Process {
        self.spaces[values.below(self.spaces.len() as u64) as usize].clone()
    }

    /// Returns one of the files.
    pub(super) fn file(&self, values: &mut Values<'_>) -> Counted<File<Machine>> {
        self.files[values.below(self.files.len() as u64) as usize].clone()
    }

    /// Adds a space. Keeps at most four spaces.
    pub(super) fn add_space(&mut self, space: Process) {
        if self.spaces.len() >= 4 {
            self.spaces.remove(1);
        }
        self.spaces.push(space);
    }

    /// Adds a file. Keeps at most eight files.
    pub(super) fn add_file(&mut self, file: Counted<File<Machine>>) {
        if self.files.len() >= 8 {
            self.files.remove(4);
        }
        self.files.push(file);
    }

    /// Creates a userfaultfd of a space. If there are four already, closes the oldest. Returns true if the
    /// creation succeeded.
    pub(super) fn add_uffd(&mut self, space: &Process, features: u64, user_mode_only: bool) -> bool {
        let config =
            UffdConfig::new().features(Features::from_bits_retain(features)).user_mode_only(user_mode_only);
        let Ok(uffd) = Userfaultfd::new(space.space(), config) else { return false };
        let uffd = Arc::new(uffd);
        if self.uffds.len() >= 4 {
            let old = self.uffds.remove(0);
            old.close();
            self.pager.watched.1.lock().unwrap().retain(|other| !Arc::ptr_eq(other, &old));
        }
        self.pager.watched.1.lock().unwrap().push(uffd.clone());
        self.uffds.push(uffd);
        true
    }

    /// Checks the invariants of all spaces, files and regions.
    pub(super) fn check(&self) {
        self.spaces.iter().for_each(|space| space.check());
        self.files.iter().for_each(|file| file.mapping().check());
        self.flat.iter().for_each(|space| space.check());
        self.regions.check();
    }

    /// Drops everything, and checks that all frames and tables are free.
    pub(super) fn end(mut self) {
        self.check();
        self.uffds.iter().for_each(|uffd| uffd.close());
        self.pager.end();
        let failed = self.engine.failed_frames();
        let Stage {
            machine, engine, cpu, spaces, files, segments, special, uffds, pins, regions, flat, ..
        } = self;
        drop((pins, spaces, flat, regions, files, segments, special, uffds, cpu, engine));
        let left = machine.accounting();
        assert_eq!((left.frames as u64, left.tables, left.spaces), (failed, 0, 0), "leaked: {left}");
    }
}

impl Watcher {
    fn new() -> Self {
        let watched: Arc<(AtomicBool, Mutex<Vec<Uffd>>)> = Arc::default();
        let theirs = watched.clone();
        let thread = std::thread::spawn(move || {
            while !theirs.0.load(SeqCst) {
                let uffds = theirs.1.lock().unwrap().clone();
                uffds.iter().for_each(serve);
                drop(uffds);
                std::thread::yield_now();
            }
        });
        Watcher { watched, thread: Some(thread) }
    }

    fn end(&mut self) {
        self.watched.0.store(true, SeqCst);
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
        if let Ok(mut uffds) = self.watched.1.lock() {
            uffds.clear();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end();
    }
}

/// Serves one fault, so that no task waits forever. Closes the userfaultfd if the fault cannot be served.
fn serve(uffd: &Uffd) {
    let Some(Message::Fault { addr, reason, .. }) = uffd.try_read() else { return };
    // The message does not tell the size of the page: 4 KiB, or a huge page of a pool.
    let served = [PAGE, HugePageSize::Mib2.bytes()].into_iter().any(|bytes| {
        let page = addr & !(bytes - 1);
        match reason {
            FaultReason::Missing if bytes == PAGE => uffd.zeropage(page, PAGE, FillMode::empty()).is_ok(),
            FaultReason::Missing => uffd.copy(page, &vec![0; bytes as usize], FillMode::empty()).is_ok(),
            FaultReason::Minor => uffd.continue_with(page, bytes, FillMode::empty()).is_ok(),
            FaultReason::WriteProtect => uffd.write_protect(page, bytes, ProtectMode::empty()).is_ok(),
        }
    });
    if !served {
        uffd.close();
    }
}
