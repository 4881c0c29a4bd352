//! The scene of the sweep: a process with one range of memory of some kind, the other objects that calls
//! need, and a view of the memory.
//!
//! `states.rs` fills the range with one kind of memory, and `ops/` has the operations that are tried on it.
//! The harness (`support/oom.rs`) takes the view before and after a call whose allocations fail, and compares
//! the two views. A scene is used for one call; `stage.rs` has the part that outlives it. If the range is
//! registered with a userfaultfd, another thread answers the pager's messages during the call ([`serve`]).

use super::{
    ops::Op,
    stage::Stage,
    support::{failure::Point, oom, view::View},
    *,
};
use freehold::{
    file::{Segment, Zeroes},
    remote::Pins,
    space::{Limits, limits::UNLIMITED},
    uffd::{FaultReason, FillMode, Message, ProtectMode, UffdConfig, Userfaultfd},
};
use std::{ops::Deref, sync::Arc};

/// A userfaultfd of the machine.
pub type Uffd = Userfaultfd<Machine>;

/// Number of units in the range.
pub const UNITS: u64 = 8;
/// Distance in bytes to another range that needs page tables of its own.
const FAR: u64 = 4 << 30;

/// A process with a range of [`UNITS`] units at `BASE`, and the objects that operations need.
pub struct Scene {
    stage: Stage,
    /// Name of the current operation.
    doing: &'static str,
    pub process: Process,
    pub cpu: Vcpu,
    /// Bytes of a unit. The range is measured in units.
    pub unit: u64,
    /// A file of twelve units. If the range maps a file, this file is of the same kind.
    pub file: Counted<File<Machine>>,
    pub uffd: Arc<Uffd>,
    pub pins: Vec<Pins<Machine>>,
    /// The segment that the range attaches.
    pub attached: Option<Counted<Segment<Machine>>>,
    /// A child that was forked before the call. The child must not see a change.
    pub child: Option<Process>,
}

impl Deref for Scene {
    type Target = Stage;
    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Scene {
    /// Returns the address of a unit. The unit may lie behind the end of the range.
    pub fn at(&self, unit: u64) -> u64 {
        BASE + unit * self.unit
    }

    /// Returns the address of the `unit`th unit of another range.
    pub fn far(&self, unit: u64) -> u64 {
        BASE + FAR + unit * self.unit
    }

    /// Returns shared memory of `units` units.
    pub fn shmem(&self, units: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(self.world.engine(), Zeroes, units * self.unit, true).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/dev/shm/it").unwrap()
    }
}

impl oom::Scene for Scene {
    type Stage = Stage;

    fn new(stage: Stage, op: &Op, locking: Locking) -> Self {
        let stage = stage.renewed();
        let (state, engine) = (stage.state, stage.world.engine());
        let limits = Limits::new().may_inject_failure(true).memlock(UNLIMITED);
        let config = SpaceConfig::new().locking(locking).limits(limits);
        let process = Process::new(engine, &config).unwrap();
        let cpu = stage.world.machine.cpu(0);
        let mapping = Mapping::new(engine, Disk, 12 * state.unit, false).unwrap();
        let file = File::new(&mapping, FileAccess::READ_WRITE, "/a/file").unwrap();
        let config = UffdConfig::new().features(state.features.unwrap_or_default());
        let uffd = Arc::new(Userfaultfd::new(process.space(), config).unwrap());
        let heap = process.brk(0).unwrap();
        assert_eq!(process.brk(heap + 4 * PAGE), Ok(heap + 4 * PAGE));
        let (pins, attached, child) = (Vec::new(), None, None);
        let (unit, doing) = (state.unit, op.name);
        let mut scene = Scene { stage, doing, process, cpu, unit, file, uffd, pins, attached, child };
        (state.build)(&mut scene);
        scene.stage.use_up_stores();
        scene
    }

    fn run(&mut self, op: &Op, point: Option<&Point>) -> Result<u64, Errno> {
        let run = |scene: &mut Self| match point {
            Some(point) => point.fail(|| (op.run)(scene)),
            None => (op.run)(scene),
        };
        if self.state.features.is_none() {
            return run(self);
        }
        let uffd = self.uffd.clone();
        // For small memory and for pools, a unit is a page, so the pager fills one unit at a time.
        let bytes = self.unit;
        while_repeating(|| serve(&uffd, bytes), || run(self))
    }

    fn check(&self) {
        oom::check(&self.process, self.child.as_ref());
        self.file.mapping().check();
    }

    fn view(&mut self) -> View {
        let units = (0..UNITS + 3).map(|unit| self.at(unit)).chain((0..UNITS).map(|unit| self.far(unit)));
        let places: Vec<u64> = units.collect();
        View::new(&self.stage.world.machine, &mut self.cpu, &self.process, self.child.as_ref(), places)
    }

    fn end(self) -> Stage {
        self.check();
        self.uffd.close();
        let Scene { mut stage, doing, process, cpu, file, uffd, pins, attached, child, .. } = self;
        drop((pins, process, child, cpu, file, uffd, attached));
        stage.check_that_all_is_back(doing);
        stage
    }
}

/// Answers the next message for the pager, if there is one. Memory does not fail for this thread.
fn serve(uffd: &Uffd, bytes: u64) {
    static ZEROES: [u8; 2 << 20] = [0; 2 << 20];
    let Some(Message::Fault { addr, reason, .. }) = uffd.try_read() else { return };
    let page = addr & !(bytes - 1);
    let _ = match reason {
        FaultReason::Missing if bytes == PAGE => uffd.zeropage(page, PAGE, FillMode::empty()).map(drop),
        FaultReason::Missing => uffd.copy(page, &ZEROES[..bytes as usize], FillMode::empty()).map(drop),
        FaultReason::Minor => uffd.continue_with(page, bytes, FillMode::empty()).map(drop),
        FaultReason::WriteProtect => uffd.write_protect(page, bytes, ProtectMode::empty()),
    };
    let _ = uffd.wake(page, bytes);
}
