//! What a plan consists of.

pub use super::descriptors::Access;
use super::order::Stamp;
use crate::{Call, FaultCode, KnownLimits, Snapshot, TmpfsHuge};
use std::ops::Range;

/// A part of a recording, ready to run: every task's steps in order, with what each must wait for. All tasks
/// finish a part before the next begins.
#[derive(Debug, Default)]
pub struct Segment {
    /// The tasks with steps in it, ascending.
    pub tasks: Vec<TaskSteps>,
    /// What `Step::waits` refers to.
    pub waits: Vec<Stamp>,
    /// What is mapped under which number, new since the last segment.
    pub files: Vec<PlanFile>,
    /// Snapshots of frozen processes, to be compared when all steps are done.
    pub frozen: Vec<Frozen>,
    /// Events of the recording that went into it.
    pub events: u64,
}

/// What a process was like while it was frozen.
#[derive(Debug)]
pub struct Frozen {
    /// Line of the recording.
    pub line: u32,
    /// A task of the process.
    pub task: u32,
    /// What the kernel said of it.
    pub snapshot: Snapshot,
}

/// The steps of one task in a segment.
#[derive(Debug)]
pub struct TaskSteps {
    /// The task.
    pub task: u32,
    /// The number of its first step here.
    pub first: u32,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The task was there when the segment began; else a step of another makes it.
    pub runs: bool,
}

/// Something mapped. A number that comes again is that of a memfd whose path is known now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// Its number in the plan.
    pub id: u32,
    /// Its path.
    pub path: String,
    /// Its size in bytes, where known.
    pub size: Option<u64>,
    /// It is a segment of System V shared memory, for shmat alone.
    pub segment: bool,
    /// Bytes of its pages, if those are huge ones from a pool.
    pub huge: Option<u64>,
    /// Where it has huge pages, if it is known to lie in a mounted tmpfs.
    pub tmpfs: Option<TmpfsHuge>,
    /// Its length in bytes when it is made, where every change of it is recorded.
    pub length: Option<u64>,
    /// The flags of memfd_create, if that made it.
    pub memfd: Option<u64>,
}

impl PlanFile {
    /// A file of which nothing is known but its path.
    pub(super) fn new(id: u32, path: &str) -> PlanFile {
        let path = path.to_owned();
        PlanFile { id, path, size: None, segment: false, huge: None, tmpfs: None, length: None, memfd: None }
    }
}

/// One thing that a task does.
#[derive(Debug)]
pub struct Step {
    /// Line of the recording.
    pub line: u32,
    /// What must be done before, as a range of `Segment::waits`.
    pub waits: Range<u32>,
    /// What it does.
    pub what: StepKind,
}

/// What a step does.
#[derive(Debug)]
pub enum StepKind {
    /// Touches memory where the recorded program faulted.
    Fault {
        /// The address.
        address: u64,
        /// How.
        code: FaultCode,
        /// How it ended.
        ends: Ends,
    },
    /// A system call.
    Call(Box<PlannedCall>),
    /// A new task begins.
    Clone {
        /// It.
        child: u32,
        /// It shares the address space; else it gets a copy.
        shares: bool,
        /// Pages that the copy may or may not have.
        unsure: Vec<Range<u64>>,
        /// Registrations with userfaultfds may be copied, too.
        copies_registrations: bool,
    },
    /// The process gets a new address space.
    Exec(Box<Start>),
    /// The task ends.
    Exit,
    /// The address space is compared with a snapshot.
    Compare(Box<Snapshot>),
    /// A file has this length from now on.
    Length {
        /// Its number in the plan.
        file: u32,
        /// Bytes; nothing: it is not known any more.
        bytes: Option<u64>,
    },
    /// Pages of a file may be gone.
    Doubt {
        /// Its number in the plan.
        file: u32,
    },
    /// A System V segment is removed: it goes with the last who has it attached.
    Remove {
        /// Its number in the plan.
        file: u32,
    },
    /// A userfaultfd ends: nothing is registered with it any more.
    EndUserfaultfd {
        /// Its number in the plan.
        userfaultfd: u32,
        /// A task of the address space that it is of.
        task: u32,
    },
    /// The recording leaves something open about the address space.
    Unsure(Unsure),
    /// The address space has these resource limits from now on; of those that are not known, none.
    Limits(KnownLimits),
    /// Maps anonymous memory that was there before the recording began, as a later call shows.
    Assume(Range<u64>),
    /// Lets the program execute what a brk has just added to its heap.
    Execute(Range<u64>),
    /// Unmaps what was not known to be there, where a later call found room.
    Clear(Range<u64>),
}

/// Pages about which the recording leaves something open, because it does not determine the order of two
/// events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsure {
    /// Pages that may or may not be present: another task brought or took them while a fork copied.
    Pages(Range<u64>),
    /// Pages that may or may not be a huge page: another address space lost it at the time of a store.
    Size(Range<u64>),
}

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The page was there afterwards.
    Resolved,
    /// With this signal and code.
    Signal(u8, i32),
    /// It did not: it was interrupted, and is not to be repeated here.
    Interrupted,
    /// The kernel wanted the page, for a call, and did not get it.
    Refused,
}

/// The address space that an exec makes.
#[derive(Debug)]
pub enum Start {
    /// As this snapshot shows.
    Shown(Snapshot),
    /// Nothing is known of it but that calls find what they expect.
    Unknown,
}

/// A call with what the plan adds to it.
#[derive(Debug)]
pub struct PlannedCall {
    /// As recorded.
    pub call: Call,
    /// What it maps or changes, by its number in the plan.
    pub file: Option<u32>,
    /// How that was opened, where known.
    pub access: Option<Access>,
    /// Bytes of the System V segment that shmat attaches.
    pub segment: u64,
    /// The userfaultfd that an ioctl is about, by its number in the plan.
    pub userfaultfd: Option<u32>,
    /// The features that its `UFFDIO_API` was given, where that is recorded.
    pub features: Option<u64>,
    /// The userfaultfd with which what an mremap moves stays registered.
    pub stays_registered: Option<u32>,
    /// The first call of brk in this address space: where the heap starts.
    pub heap: Option<u64>,
    /// Memory of the process that process_vm_readv or process_vm_writev moves from or to, mapped before the
    /// recording began.
    pub assumed: Vec<Range<u64>>,
    /// Of the bytes that process_vm_readv moved, the addresses of those that recorded calls had written
    /// there. Others the program may have stored itself.
    pub written: Vec<Range<u64>>,
    /// It is not known what its address space was like when that began.
    pub partly: bool,
    /// It may move another number of bytes here: some of the memory is such that nothing is known of it.
    pub doubtful: bool,
    /// Its answer rests on memory of which the recording does not say what it was.
    pub unsure: bool,
}

impl PlannedCall {
    /// A call with nothing added.
    pub(super) fn new(call: Call) -> PlannedCall {
        let (assumed, written) = Default::default();
        PlannedCall {
            call,
            file: None,
            access: None,
            segment: 0,
            userfaultfd: None,
            features: None,
            stays_registered: None,
            heap: None,
            assumed,
            written,
            partly: false,
            doubtful: false,
            unsure: false,
        }
    }
}
