//! A process with one stretch of memory of some kind, everything that calls need beside it, and what of all
//! that can be seen.

use super::{ops::Op, stage::Stage, support::failure::Point, *};
use freehold::{
    fault::FaultError,
    file::{Segment, Zeroes},
    remote::Pins,
    space::{Counts, Limits, limits::UNLIMITED},
    uffd::{FaultReason, FillMode, Message, ProtectMode, UffdConfig, Userfaultfd},
    vma::flags::VmFlags,
};
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

pub type Uffd = Userfaultfd<Machine>;

/// Units of the stretch.
pub const UNITS: u64 = 8;
/// Where another stretch can go that needs tables of its own, in units.
const FAR: u64 = 4 << 30;

pub struct Scene<'s> {
    stage: &'s mut Stage,
    pub process: Process,
    pub cpu: Vcpu,
    /// Bytes of what the stretch is counted in.
    pub unit: u64,
    /// Twelve units, of the kind that the stretch maps if that is a file's.
    pub file: Counted<File<Machine>>,
    pub uffd: Arc<Uffd>,
    pub pins: Vec<Pins<Machine>>,
    /// What is attached in the stretch.
    pub attached: Option<Counted<Segment<Machine>>>,
    /// A copy from before the call, which must not notice anything.
    pub child: Option<Process>,
}

impl Deref for Scene<'_> {
    type Target = Stage;
    fn deref(&self) -> &Stage {
        self.stage
    }
}

/// What is at an address.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Seen {
    Loaded(Result<u64, FaultError>),
    /// Of memory whose pager would have to be asked: the page that is there, or zero.
    Peeked(u64),
}

/// What a program sees.
#[derive(Debug, PartialEq)]
pub struct View {
    /// Start, end, flags, offset and name; VMAs that could be one are one.
    pub maps: Vec<(u64, u64, VmFlags, u64, String)>,
    /// But for the number of VMAs.
    counts: Counts,
    brk: u64,
    contents: Vec<(u64, Seen)>,
    child: Vec<(u64, Seen)>,
}

impl Left {
    /// Whether `found` may be what is left where `expected` would be right.
    pub fn allows(self, found: &View, expected: &View) -> bool {
        match self {
            Left::Nothing => false,
            Left::Layout => found.contents == expected.contents && found.child == expected.child,
            Left::Pages => found.maps == expected.maps && found.child == expected.child,
            Left::Anything => found.child == expected.child,
            Left::Losses => found.maps == expected.maps,
        }
    }
}

impl<'s> Scene<'s> {
    pub fn new(stage: &'s mut Stage, locking: Locking) -> Self {
        stage.renew();
        let (state, engine) = (stage.state, stage.world.engine());
        let limits = Limits { may_break_memory: true, memlock: UNLIMITED, ..Limits::default() };
        let config = SpaceConfig { locking, limits, ..SpaceConfig::default() };
        let process = Process::new(engine, &config).unwrap();
        let cpu = stage.world.machine.cpu(0);
        let mapping = Mapping::new(engine, Disk, 12 * state.unit, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let config = UffdConfig { features: state.features.unwrap_or_default(), user_mode_only: false };
        let uffd = Arc::new(Userfaultfd::new(process.space(), config).unwrap());
        let heap = process.brk(0).unwrap();
        assert_eq!(process.brk(heap + 4 * PAGE), Ok(heap + 4 * PAGE));
        let (pins, attached, child) = (Vec::new(), None, None);
        let unit = state.unit;
        let mut scene = Scene { stage, process, cpu, unit, file, uffd, pins, attached, child };
        (state.build)(&mut scene);
        scene.use_up_stores();
        scene
    }

    /// The address of a unit of the stretch, or behind it.
    pub fn at(&self, unit: u64) -> u64 {
        BASE + unit * self.unit
    }

    /// A place for the `unit`th unit elsewhere.
    pub fn far(&self, unit: u64) -> u64 {
        BASE + FAR + unit * self.unit
    }

    pub fn shmem(&self, units: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(self.world.engine(), Zeroes, units * self.unit, true).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap()
    }

    /// Makes the call, while memory fails as told.
    pub fn run(&mut self, op: &Op, point: Option<&Point>) -> Result<u64, Errno> {
        let run = |scene: &mut Self| match point {
            Some(point) => point.fail(|| (op.run)(scene)),
            None => (op.run)(scene),
        };
        if self.state.features.is_none() {
            return run(self);
        }
        let (over, uffd) = (AtomicBool::new(false), self.uffd.clone());
        // Of small memory and of pools a unit is a page.
        let bytes = self.unit;
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&uffd, bytes, &over));
            let _over = Over(&over);
            run(self)
        })
    }

    pub fn check(&self) {
        assert!(self.process.try_read().is_some(), "a lock is still held");
        self.process.check();
        self.file.mapping().check();
        self.child.iter().for_each(|child| child.check());
    }

    pub fn view(&mut self) -> View {
        let maps = joined(&self.process);
        let counts = Counts { map_count: 0, ..self.process.counts() };
        let brk = self.process.brk(0).unwrap();
        let mut places: Vec<u64> = (0..UNITS + 3).map(|unit| self.at(unit)).collect();
        places.extend((0..UNITS).map(|unit| self.far(unit)));
        places.extend((1..4).map(|page| brk - page * PAGE));
        let contents = places.iter().map(|&at| (at, self.look(&self.process.clone(), at))).collect();
        let child = self.child.clone();
        let child = child.map(|child| places.iter().map(|&at| (at, self.look(&child, at))).collect());
        View { maps, counts, brk, contents, child: child.unwrap_or_default() }
    }

    fn look(&mut self, process: &Process, at: u64) -> Seen {
        let flags = process.find_vma(at).map(|vma| vma.flags());
        if flags.is_none_or(|flags| !flags.intersects(VmFlags::UFFD)) {
            return Seen::Loaded(process.load(&mut self.cpu, at));
        }
        let mut bytes = [0; 8];
        if let Some(frame) = process.frame_at(at) {
            self.world.machine.read_frame(frame, 0, &mut bytes);
        }
        Seen::Peeked(u64::from_le_bytes(bytes))
    }

    pub fn end(self) {
        self.check();
        self.uffd.close();
        let Scene { stage, process, cpu, file, uffd, pins, attached, child, .. } = self;
        drop((pins, process, child, cpu, file, uffd, attached));
        stage.check_that_all_is_back();
    }
}

/// Ends the other thread, whatever becomes of the call.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The pager, for which memory does not fail.
fn serve(uffd: &Uffd, bytes: u64, over: &AtomicBool) {
    static ZEROES: [u8; 2 << 20] = [0; 2 << 20];
    while !over.load(SeqCst) {
        let Some(Message::Fault { addr, reason, .. }) = uffd.try_read() else {
            std::thread::yield_now();
            continue;
        };
        let page = addr & !(bytes - 1);
        let _ = match reason {
            FaultReason::Missing if bytes == PAGE => uffd.zeropage(page, PAGE, FillMode::empty()).map(drop),
            FaultReason::Missing => uffd.copy(page, &ZEROES[..bytes as usize], FillMode::empty()).map(drop),
            FaultReason::Minor => uffd.continue_with(page, bytes, FillMode::empty()).map(drop),
            FaultReason::WriteProtect => uffd.write_protect(page, bytes, ProtectMode::empty()),
        };
        let _ = uffd.wake(page, bytes);
    }
}

impl View {
    /// What differs, a line for each thing.
    pub fn differences(&self, expected: &Self) -> String {
        fn lines(view: &View) -> Vec<String> {
            let mut lines: Vec<String> = view.maps.iter().map(|line| format!("{line:x?}")).collect();
            lines.push(format!("{:?}, break {:#x}", view.counts, view.brk));
            lines.extend(view.contents.iter().map(|page| format!("{page:x?}")));
            lines.extend(view.child.iter().map(|page| format!("child {page:x?}")));
            lines
        }
        let (found, expected) = (lines(self), lines(expected));
        let missing =
            expected.iter().filter(|line| !found.contains(line)).map(|line| format!("\n  - {line}"));
        let added = found.iter().filter(|line| !expected.contains(line)).map(|line| format!("\n  + {line}"));
        missing.chain(added).collect()
    }
}

/// The lines of maps, those that continue each other as one.
fn joined(process: &Process) -> Vec<(u64, u64, VmFlags, u64, String)> {
    let mut lines: Vec<(u64, u64, VmFlags, u64, String)> = Vec::new();
    for line in process.maps(0) {
        // Whether guards may be there stays noted where they could not be put, or were taken away.
        let flags = line.flags - VmFlags::MAYBE_GUARD;
        let name = line.name.as_str();
        match lines.last_mut() {
            Some((start, end, last, offset, its_name))
                if *end == line.start
                    && *last == flags
                    && its_name == name
                    && (line.offset == 0 || *offset + (*end - *start) == line.offset) =>
            {
                *end = line.end;
            }
            _ => lines.push((line.start, line.end, flags, line.offset, name.to_owned())),
        }
    }
    lines
}
