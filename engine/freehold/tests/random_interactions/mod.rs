//! Interactions of features that are tested separately elsewhere: direct-access files, probes, memory
//! failures, migration, write-back, truncation and forced access. Calls are made in random order by a tree of
//! processes, on one thread, and compared with a model.
//!
//! The model has the expected contents of each file ([`Known`]) and the expected state of each page of each
//! process ([`Place`]). [`Run::step`] chooses the next call. A new call is one more arm there, and a method
//! that makes the call and updates the model. `storm.rs` makes similar calls on several threads without a
//! model.
//!
//! A failure names its design and seed. `FREEHOLD_SEED` chooses the first seed. `FREEHOLD_EFFORT=long` runs
//! thirty times as many seeds.

mod storm;

use crate::support::{storage::Storage, *};
use freehold::{
    PageIndex, PageRange,
    call::{Advice, RemapFlags},
    engine::HugePages,
    error::MadviseError,
    fault::FaultError,
    file::FillError,
    remote::AccessMode,
    rmap::{Damage, FileRmap, OfflineError},
    space::Limits,
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};
use std::{
    collections::BTreeMap,
    env,
    ops::Range,
    sync::{Arc, Mutex},
};

/// Largest number of pages of each file.
const PAGES: u64 = 6;
/// Number of pages in the window in which files are mapped. A huge page of anonymous memory is at [`HUGE`].
const WINDOW: u64 = 16;
const HUGE: u64 = BASE + (1 << 30);
const HUGE_PAGES: u64 = 512;
const MAX_PROCESSES: usize = 4;
const STEPS: u64 = 160;
/// Offset in a page of the word that holds the page's number. `PLACE` is the offset of the place for a
/// breakpoint.
const WORD: u64 = 0;
const PLACE: u64 = 100;
const TRAP: [u8; 8] = [0xcc; 8];
const TRAPPED: u64 = u64::from_le_bytes(TRAP);

/// A disk that stores written pages.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<u64, Vec<u8>>>>);

impl Pager<Machine> for Store {
    fn read_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        platform.zero_frame(frame);
        if let Some(bytes) = self.0.lock().unwrap().get(&index) {
            platform.write_frame(frame, 0, bytes);
        }
        Ok(())
    }

    fn write_page(&self, platform: &Machine, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let index = index.get();
        let mut bytes = vec![0; PAGE as usize];
        platform.read_frame(frame, 0, &mut bytes);
        self.0.lock().unwrap().insert(index, bytes);
        Ok(())
    }

    fn discard(&self, pages: PageRange) {
        self.0.lock().unwrap().retain(|index, _| !pages.numbers().contains(index));
    }
}

/// Kind of a file: a file on a disk, a program on a disk that may have probes, a memfd, or a file with direct
/// access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Cached,
    Text,
    Memory,
    Direct,
}

const KINDS: [Kind; 4] = [Kind::Cached, Kind::Text, Kind::Memory, Kind::Direct];

/// Expected contents of a file.
struct Known {
    kind: Kind,
    file: Counted<File<Machine>>,
    /// Size in pages.
    size: u64,
    words: BTreeMap<u64, u64>,
    /// Words of the pages as the disk has them.
    stored: BTreeMap<u64, u64>,
    /// Pages with a memory failure that had no other copy.
    lost: Vec<u64>,
    probes: Vec<u64>,
}

impl Known {
    fn word(&self, index: u64) -> u64 {
        self.words.get(&index).copied().unwrap_or_default()
    }

    fn cut(&mut self, pages: Range<u64>) {
        self.words.retain(|index, _| !pages.contains(index));
        self.stored.retain(|index, _| !pages.contains(index));
        self.lost.retain(|index| !pages.contains(index));
    }
}

/// Expected state of a page of a process.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// File and page number. `None` stands for anonymous memory.
    file: Option<(usize, u64)>,
    shared: bool,
    prot: Prot,
    own: Own,
}

/// Contents that differ from those of the file or from zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    Nothing,
    /// A private copy that contains this number.
    Copy(u64),
    /// A marker of failed memory.
    Failed,
}

/// Expected state of the pages of a process, by address.
type Places = BTreeMap<u64, Place>;

/// One run: a design, a seed, the files and the processes with their models.
struct Run {
    world: World,
    cpus: [Vcpu; 2],
    files: Vec<Known>,
    processes: Vec<(Process, Places)>,
    /// A device with translations of each process, in the same order. It must hear of every change.
    devices: Vec<Arc<Shadow>>,
    rng: Pcg64Mcg,
    failed: u64,
    story: String,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.story);
        }
    }
}

impl Run {
    fn new(locking: Locking, file_rmap: FileRmap, seed: u64) -> Self {
        let config = Config::new().huge_pages(HugePages::Always).file_rmap(file_rmap);
        let world = World::with(24 << 20, config);
        let files = KINDS.into_iter().map(|kind| Known {
            kind,
            file: match kind {
                Kind::Direct => Storage::new(&world.machine).file(&world, PAGES),
                Kind::Memory => {
                    let mapping = Mapping::memfd(world.engine(), PAGES * PAGE).unwrap();
                    File::new(&mapping, FileAccess::READ_WRITE, "/memfd:m").unwrap()
                }
                Kind::Cached | Kind::Text => {
                    let mapping =
                        Mapping::new(world.engine(), Store::default(), PAGES * PAGE, false).unwrap();
                    File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap()
                }
            },
            size: PAGES,
            words: BTreeMap::new(),
            stored: BTreeMap::new(),
            lost: Vec::new(),
            probes: Vec::new(),
        });
        let files = files.collect();
        let limits = Limits::new().may_inject_failure(true);
        let config = SpaceConfig::new().locking(locking).limits(limits);
        let process = Process::new(world.engine(), &config).unwrap();
        let devices = vec![Shadow::attach(process.space()).unwrap().0];
        let processes = vec![(process, Places::new())];
        let cpus = [world.machine.cpu(0), world.machine.cpu(1)];
        let story = format!("{locking:?}, {file_rmap:?}, FREEHOLD_SEED={seed}");
        Run { world, cpus, files, processes, devices, rng: Pcg64Mcg::seed_from_u64(seed), failed: 0, story }
    }

    fn pick(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Returns a random address of a file page or in the huge page.
    fn at(&mut self) -> u64 {
        match self.pick(5) {
            0 => HUGE + [0, 1, 7, HUGE_PAGES - 1][self.pick(4) as usize] * PAGE,
            _ => BASE + self.pick(WINDOW) * PAGE,
        }
    }

    fn step(&mut self, step: u64) {
        let who = self.pick(self.processes.len() as u64) as usize;
        let at = self.at();
        let kind = self.pick(26);
        self.story += &format!("\n{step}: {kind} by {who} at {at:#x}");
        let pages = (0..WINDOW).map(|n| BASE + n * PAGE);
        let places: Vec<u64> = pages.chain([0, 1, 7, HUGE_PAGES - 1].map(|n| HUGE + n * PAGE)).collect();
        for ((process, _), device) in self.processes.iter().zip(&self.devices) {
            device.fill(process, places.iter().copied());
        }
        match kind {
            0..3 => self.map(who),
            3..7 => self.store(who, at, step + 1),
            7 => self.force(who, at, step + 1),
            8 => self.fork(who),
            9 if self.processes.len() > 1 => {
                drop(self.processes.swap_remove(who));
                self.devices.swap_remove(who).assert_released();
            }
            9 | 10 => self.carry(who, at),
            11 => self.protect(who, at),
            12 => self.discard(who, at),
            13 => self.resize(),
            14 => self.punch(),
            15 => self.write_back(),
            16 | 17 => self.walk_back(who, at),
            18 => self.fail(who, at),
            19 | 20 => self.probe(),
            21 => self.write(step + 1),
            _ => {}
        }
        for ((process, _), device) in self.processes.iter().zip(&self.devices) {
            process.check();
            device.check(process);
        }
        self.files.iter().for_each(|known| known.file.mapping().check());
        self.look();
    }

    fn map(&mut self, who: usize) {
        let (which, first, len) = (self.pick(6) as usize, self.pick(PAGES), 1 + self.pick(4));
        let to = BASE + self.pick(WINDOW - len) * PAGE;
        let (process, places) = &mut self.processes[who];
        if which == 5 {
            let done = process.mmap(HUGE, HUGE_PAGES * PAGE, RW, ANON | MapFlags::FIXED, None, 0);
            assert_eq!(done, Ok(HUGE));
            for n in 0..HUGE_PAGES {
                let place = Place { file: None, shared: false, prot: RW, own: Own::Nothing };
                places.insert(HUGE + n * PAGE, place);
            }
            return;
        }
        let shared = which < 4 && KINDS[which] != Kind::Text && self.rng.next_u64().is_multiple_of(2);
        let prot = match KINDS.get(which) {
            Some(Kind::Text) => R,
            _ => RW,
        };
        let flags = MapFlags::FIXED | if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let done = match self.files.get(which) {
            Some(known) => process.mmap(to, len * PAGE, prot, flags, Some(&known.file), first * PAGE),
            None => process.mmap(to, len * PAGE, prot, ANON | MapFlags::FIXED, None, 0),
        };
        assert_eq!(done, Ok(to));
        for n in 0..len {
            let file = (which < 4).then_some((which, first + n));
            places.insert(to + n * PAGE, Place { file, shared, prot, own: Own::Nothing });
        }
    }

    /// Returns the expected result of an access to a mapped page.
    fn expected(files: &[Known], at: u64, place: &Place) -> Result<u64, FaultError> {
        match (place.own, place.file) {
            (Own::Copy(word), _) => Ok(word),
            (Own::Failed, _) => Err(FaultError::MemoryFailed { addr: at }),
            (Own::Nothing, None) => Ok(0),
            (Own::Nothing, Some((which, index))) => match &files[which] {
                known if index >= known.size => Err(FaultError::Bus { addr: at }),
                known if known.lost.contains(&index) => Err(FaultError::MemoryFailed { addr: at }),
                known => Ok(known.word(index)),
            },
        }
    }

    fn store(&mut self, who: usize, at: u64, value: u64) {
        let cpu = self.pick(2) as usize;
        let (process, places) = &mut self.processes[who];
        let done = process.store(&mut self.cpus[cpu], at + WORD, value);
        let Some(place) = places.get_mut(&at) else {
            assert!(matches!(done, Err(FaultError::Segv { .. })), "{done:?}");
            return;
        };
        if !place.prot.contains(Prot::WRITE) {
            assert!(matches!(done, Err(FaultError::Segv { .. })), "{done:?}");
            return;
        }
        assert_eq!(done, Self::expected(&self.files, at, place).map(|_| ()));
        if done.is_ok() {
            self.stored(who, at, value);
        }
    }

    /// Records a successful store of this process.
    fn stored(&mut self, who: usize, at: u64, value: u64) {
        let place = self.processes[who].1.get_mut(&at).unwrap();
        match place.file {
            Some((which, index)) if place.shared => drop(self.files[which].words.insert(index, value)),
            _ => place.own = Own::Copy(value),
        }
    }

    /// Writes as a debugger.
    fn force(&mut self, who: usize, at: u64, value: u64) {
        let (process, places) = &mut self.processes[who];
        let done = process.write_memory(at, &value.to_le_bytes(), AccessMode::Forced);
        let allowed = places.get(&at).filter(|place| !place.shared || place.prot.contains(Prot::WRITE));
        let able = allowed.is_some_and(|place| Self::expected(&self.files, at, place).is_ok());
        assert_eq!(done.is_ok(), able, "{done:?}");
        if able {
            self.stored(who, at, value);
        }
    }

    fn fork(&mut self, who: usize) {
        if self.processes.len() < MAX_PROCESSES {
            let (process, places) = &self.processes[who];
            let child = Process::of(process.fork().unwrap());
            let mut places = places.clone();
            // fork copies no entries of a VMA without private pages, so the child looks up a failed page in
            // the file again.
            for (at, place) in &mut places {
                if place.own == Own::Failed && child.load::<u64>(&mut self.cpus[0], *at).is_ok() {
                    assert!(place.file.is_some(), "{at:#x}");
                    place.own = Own::Nothing;
                }
            }
            self.devices.push(Shadow::attach(child.space()).unwrap().0);
            self.processes.push((child, places));
        }
    }

    fn carry(&mut self, who: usize, at: u64) {
        let to = BASE + self.pick(WINDOW) * PAGE;
        let (process, places) = &mut self.processes[who];
        if to == at {
            return;
        }
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let done = process.mremap(at, PAGE, PAGE, flags, to);
        assert_eq!(done.is_ok(), places.contains_key(&at), "{done:?}");
        if let Some(place) = places.remove(&at) {
            places.insert(to, place);
        }
    }

    fn protect(&mut self, who: usize, at: u64) {
        let prot = if self.pick(2) == 0 { R } else { RW };
        let (process, places) = &mut self.processes[who];
        let done = process.mprotect(at, PAGE, prot);
        assert_eq!(done.is_ok(), places.contains_key(&at), "{done:?}");
        if let Some(place) = places.get_mut(&at) {
            place.prot = prot;
        }
    }

    fn discard(&mut self, who: usize, at: u64) {
        let (process, places) = &mut self.processes[who];
        let done = process.madvise(at, PAGE, Advice::DontNeed);
        assert_eq!(done.is_ok(), places.contains_key(&at), "{done:?}");
        if let Some(place) = places.get_mut(&at) {
            place.own = Own::Nothing;
        }
    }

    fn resize(&mut self) {
        let (which, size) = (self.pick(4) as usize, self.pick(PAGES + 1));
        let known = &mut self.files[which];
        if known.kind == Kind::Text && known.probes.iter().any(|index| *index >= size) {
            return;
        }
        known.file.mapping().truncate(size * PAGE).unwrap();
        known.cut(size..PAGES);
        known.size = size;
        for place in self.processes.iter_mut().flat_map(|(_, places)| places.values_mut()) {
            if place.file.is_some_and(|(file, index)| file == which && index >= size) {
                place.own = Own::Nothing;
            }
        }
    }

    fn punch(&mut self) {
        let (which, index) = (self.pick(4) as usize, self.pick(PAGES));
        let known = &mut self.files[which];
        if !known.probes.contains(&index) {
            known.file.mapping().punch(index * PAGE..(index + 1) * PAGE).unwrap();
            if index < known.size {
                known.cut(index..index + 1);
            }
        }
    }

    fn write(&mut self, value: u64) {
        let (which, index) = (self.pick(4) as usize, self.pick(PAGES));
        let known = &mut self.files[which];
        // The write would not change the private copies of a page with a breakpoint, so such a page is not
        // written.
        if index < known.size && !known.probes.contains(&index) {
            let done = known.file.mapping().write_at(index * PAGE, &value.to_le_bytes());
            if known.lost.contains(&index) {
                assert_eq!(done, Err(FillError::Lost));
            } else {
                assert_eq!(done, Ok(8));
                known.words.insert(index, value);
            }
        }
    }

    fn write_back(&mut self) {
        let which = self.pick(4) as usize;
        let known = &mut self.files[which];
        // Lost pages are reported here; the model knows them already.
        let _ = known.file.mapping().write_back(PageRange::ALL);
        known.stored.clone_from(&known.words);
    }

    /// Applies an operation to all entries of a page. No operation changes contents.
    fn walk_back(&mut self, who: usize, at: u64) {
        let Some(pfn) = self.processes[who].0.frame_at(at) else { return };
        let engine = self.world.engine();
        let place = self.processes[who].1[&at];
        let direct =
            place.own == Own::Nothing && place.file.is_some_and(|(which, _)| KINDS[which] == Kind::Direct);
        match self.rng.next_u64() % 5 {
            0 => assert_eq!(engine.migrate(pfn).is_ok(), !direct),
            1 => match engine.soft_offline(pfn) {
                Ok(()) => self.failed += 1,
                Err(error) => assert!(direct || self.is_zero(who, at), "{error}"),
            },
            2 => drop(engine.try_to_unmap(pfn)),
            3 => drop(engine.mkclean(pfn)),
            _ => drop(engine.referenced(pfn)),
        }
    }

    /// Returns true if the shared zero page may be mapped at the address.
    fn is_zero(&self, who: usize, at: u64) -> bool {
        let place = &self.processes[who].1[&at];
        place.file.is_none() && place.own == Own::Nothing
    }

    fn fail(&mut self, who: usize, at: u64) {
        let Some(pfn) = self.processes[who].0.frame_at(at) else { return };
        let place = self.processes[who].1[&at];
        let everybody: Vec<(usize, u64)> = (0..self.processes.len())
            .flat_map(|who| self.processes[who].1.keys().map(move |at| (who, *at)))
            .filter(|(who, at)| self.processes[*who].0.frame_at(*at) == Some(pfn))
            .collect();
        let cached = |run: &Self| {
            place
                .file
                .is_some_and(|(which, index)| run.files[which].file.mapping().has_page(PageIndex::new(index)))
        };
        let before = cached(self);
        let advised = self.pick(2) == 0;
        let done = match advised {
            true => self.advise_to_fail(who, at),
            false => self.world.engine().memory_failure(pfn),
        };
        let gone = before && !cached(self);
        // madvise does not return whether contents were lost.
        let (process, cpu) = (&self.processes[who].0, &mut self.cpus[0]);
        let done = match advised && process.load::<u64>(cpu, at).is_ok() {
            true => done.map(|_| Damage::Dropped),
            false => done,
        };
        self.story += &format!(": {done:?} for {everybody:x?}");
        // A private copy may hold the contents of the file's page, except for breakpoints.
        let direct = place.file.is_some_and(|(which, _)| KINDS[which] == Kind::Direct);
        let own = place.own != Own::Nothing;
        let of_file = place.file.filter(|_| !own && (direct || gone));
        match (done, of_file) {
            (Err(OfflineError::Busy), Some((which, _))) if KINDS[which] == Kind::Direct => return,
            (Err(OfflineError::Busy), _) if self.is_zero(who, at) => return,
            (Ok(Damage::Dropped), Some((which, index))) => {
                let known = &self.files[which];
                let stored = known.stored.get(&index).copied().unwrap_or_default();
                assert_eq!(known.word(index), stored, "a dropped page differs from the disk");
            }
            (Ok(Damage::Lost), Some((which, index))) => {
                let known = &mut self.files[which];
                match known.kind {
                    Kind::Memory => known.lost.push(index),
                    _ => match known.stored.get(&index).copied() {
                        Some(word) => drop(known.words.insert(index, word)),
                        None => drop(known.words.remove(&index)),
                    },
                }
            }
            (Ok(Damage::Lost), None) => {}
            other => panic!("{other:?}"),
        }
        self.failed += 1;
        let reported = self.world.machine.take_lost_pages().len();
        if done == Ok(Damage::Lost) {
            assert_eq!(reported, everybody.len());
            for (who, at) in everybody {
                self.processes[who].1.get_mut(&at).unwrap().own = Own::Failed;
            }
        } else {
            assert_eq!(reported, 0);
        }
    }

    /// Fails the page at an address by madvise, which does not return whether contents were lost.
    fn advise_to_fail(&self, who: usize, at: u64) -> Result<Damage, OfflineError> {
        let (failed, place) = (self.world.engine().failed_frames(), self.processes[who].1[&at]);
        let done = self.processes[who].0.madvise(at, PAGE, Advice::HwPoison);
        assert_eq!(self.world.engine().failed_frames() - failed, u64::from(done.is_ok()));
        match done {
            Ok(()) => Ok(Damage::Lost),
            Err(MadviseError::Busy) => Err(OfflineError::Busy),
            Err(error) => panic!("{error} at {place:?}"),
        }
    }

    fn probe(&mut self) {
        let index = self.pick(PAGES);
        let known = &mut self.files[1];
        let mapping = known.file.mapping();
        let offset = index * PAGE + PLACE;
        if let Some(nth) = known.probes.iter().position(|probe| *probe == index) {
            mapping.remove_probe(offset).unwrap();
            known.probes.swap_remove(nth);
        } else if index < known.size {
            mapping.add_probe(offset, &TRAP).unwrap();
            known.probes.push(index);
        }
    }

    /// Checks some pages of every process.
    fn look(&mut self) {
        for who in 0..self.processes.len() {
            for at in (0..WINDOW).map(|n| BASE + n * PAGE).chain([HUGE, HUGE + PAGE, HUGE + 7 * PAGE]) {
                if !self.rng.next_u64().is_multiple_of(3) {
                    continue;
                }
                let cpu = &mut self.cpus[(self.rng.next_u64() % 2) as usize];
                let (process, places) = &self.processes[who];
                let found = process.load::<u64>(cpu, at + WORD);
                let Some(place) = places.get(&at) else {
                    assert!(matches!(found, Err(FaultError::Segv { .. })), "{found:?}");
                    continue;
                };
                let expected = Self::expected(&self.files, at, place);
                assert_eq!(found, expected, "process {who}, {at:#x}: {place:?}");
                let probed = place.file.is_some_and(|(which, index)| {
                    self.files[which].kind == Kind::Text && self.files[which].probes.contains(&index)
                });
                if found.is_ok() {
                    let shown = process.load::<u64>(cpu, at + PLACE).unwrap();
                    // In a writable mapping, existing breakpoints stay and no new breakpoints are made.
                    let either = probed && place.prot.contains(Prot::WRITE);
                    assert!(
                        shown == if probed { TRAPPED } else { 0 } || either && shown == 0,
                        "process {who}, {at:#x}: {place:?} shows {shown:#x}"
                    );
                }
            }
        }
    }

    fn end(mut self) {
        assert_eq!(self.world.engine().failed_frames(), self.failed);
        self.processes.clear();
        for cpu in &mut self.cpus {
            cpu.idle();
        }
        self.files.clear();
        self.world.engine = None;
        let left = self.world.machine.accounting();
        assert_eq!((left.frames as u64, left.tables, left.spaces), (self.failed, 0, 0), "{left}");
    }
}

#[test]
fn random_interactions_match_the_model() {
    let first: u64 = env::var("FREEHOLD_SEED").map_or(1, |seed| seed.parse().unwrap());
    let runs = Effort::of(1, 2, 60);
    for seed in first..first + runs {
        for file_rmap in FileRmap::ALL {
            for locking in Locking::ALL {
                let mut run = Run::new(locking, file_rmap, seed);
                (0..STEPS).for_each(|step| run.step(step));
                run.end();
            }
        }
    }
}
