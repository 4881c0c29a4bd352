//! The data types of a plan: segments, tasks, steps, calls and files. The planner creates them, and a replay
//! reads them.
//!
//! A step contains everything that the replay needs to make the step and to compare its answer, so a replay
//! does not read the events of the recording.

pub use super::descriptors::Access;
use super::order::Stamp;
use crate::{Call, FaultCode, KnownLimits, Snapshot, TmpfsHuge};
use std::ops::Range;

/// A part of a recording, ready to run: each task's steps in order, with the steps that each must wait for.
/// All tasks finish a segment before the next one begins.
#[derive(Debug, Default)]
pub struct Segment {
    /// The tasks with steps in this segment, in ascending order.
    pub tasks: Vec<TaskSteps>,
    /// The waits to which `Step::waits` refers.
    pub waits: Vec<Stamp>,
    /// The files that are new since the last segment.
    pub files: Vec<PlanFile>,
    /// Snapshots of frozen processes, to be compared after all steps.
    pub frozen: Vec<Frozen>,
    /// Number of the recording's events in this segment.
    pub events: u64,
}

/// The state of a process while it was frozen.
#[derive(Debug)]
pub struct Frozen {
    /// Line of the recording.
    pub line: u32,
    /// A task of the process.
    pub task: u32,
    /// The kernel's snapshot of the process.
    pub snapshot: Snapshot,
}

/// The steps of one task in a segment.
#[derive(Debug)]
pub struct TaskSteps {
    /// The task.
    pub task: u32,
    /// The number of the task's first step in this segment.
    pub first: u32,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// True if the task existed when the segment began. Otherwise a step of another task creates it.
    pub runs: bool,
}

/// A mapped file or segment. If a number occurs again, it is a memfd whose path is known now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// The number in the plan.
    pub id: u32,
    /// The path.
    pub path: String,
    /// The size in bytes, if known.
    pub size: Option<u64>,
    /// True for a segment of System V shared memory, which only shmat maps.
    pub segment: bool,
    /// Size in bytes of the pages, if they are huge pages from a pool.
    pub huge: Option<u64>,
    /// The huge-page policy of the file system, if the file is known to be on a mounted tmpfs.
    pub tmpfs: Option<TmpfsHuge>,
    /// The length in bytes at the creation, if every change of the length is recorded.
    pub length: Option<u64>,
    /// The flags of memfd_create, if that call created the file.
    pub memfd: Option<u64>,
}

impl PlanFile {
    /// Returns a file with a path and no other known properties.
    pub(super) fn new(id: u32, path: &str) -> PlanFile {
        let path = path.to_owned();
        PlanFile { id, path, size: None, segment: false, huge: None, tmpfs: None, length: None, memfd: None }
    }
}

/// A step of a task.
#[derive(Debug)]
pub struct Step {
    /// Line of the recording.
    pub line: u32,
    /// The steps that must be done before, as a range of `Segment::waits`.
    pub waits: Range<u32>,
    /// The action.
    pub what: StepKind,
}

/// The actions of steps.
#[derive(Debug)]
pub enum StepKind {
    /// Accesses memory where the recorded program faulted.
    Fault {
        /// The address.
        address: u64,
        /// The kind of access.
        code: FaultCode,
        /// The end of the fault.
        ends: Ends,
    },
    /// A system call.
    Call(Box<PlannedCall>),
    /// Creates a task.
    Clone {
        /// The new task.
        child: u32,
        /// True if the new task shares the address space; otherwise it gets a copy.
        shares: bool,
        /// Pages that the copy may or may not contain.
        unsure: Vec<Range<u64>>,
        /// True if the copy may also inherit registrations with userfaultfds.
        copies_registrations: bool,
    },
    /// Gives the process a new address space.
    Exec(Box<Start>),
    /// Ends the task.
    Exit,
    /// Compares the address space with a snapshot.
    Compare(Box<Snapshot>),
    /// Sets the length of a file.
    Length {
        /// The number of the file in the plan.
        file: u32,
        /// The length in bytes, or `None` if it is unknown from now on.
        bytes: Option<u64>,
    },
    /// Marks pages of a file as possibly removed.
    Doubt {
        /// The number of the file in the plan.
        file: u32,
    },
    /// Removes a System V segment, which is then freed with its last mapping.
    Remove {
        /// The number of the segment in the plan.
        file: u32,
    },
    /// Ends a userfaultfd and all its registrations.
    EndUserfaultfd {
        /// The number of the userfaultfd in the plan.
        userfaultfd: u32,
        /// A task of the userfaultfd's address space.
        task: u32,
    },
    /// Marks a property of the address space as not determined by the recording.
    Unsure(Unsure),
    /// Sets the resource limits of the address space. Unknown limits are set to unlimited.
    Limits(KnownLimits),
    /// Maps anonymous memory that was mapped before the recording began, as a later call shows.
    Assume(Range<u64>),
    /// Makes the part executable that a brk has just added to the heap.
    Execute(Range<u64>),
    /// Unmaps memory at addresses of unknown contents, which a later call found free.
    Clear(Range<u64>),
}

/// Pages with a property that the recording does not determine, because it does not determine the order of
/// two events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsure {
    /// Pages that may or may not be present: another task mapped or unmapped them during a fork.
    Pages(Range<u64>),
    /// Pages that may or may not be a huge page: another address space unmapped it at the time of a store.
    Size(Range<u64>),
}

/// The end of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The page was present afterwards.
    Resolved,
    /// The fault raised this signal with this code.
    Signal(u8, i32),
    /// The fault was interrupted. The replay does not repeat the fault.
    Interrupted,
    /// The kernel needed the page for a call, and the fault failed.
    Refused,
}

/// The address space of a new image.
#[derive(Debug)]
pub enum Start {
    /// The snapshot shows the address space.
    Shown(Snapshot),
    /// The contents are unknown. Steps of the plan map memory before the calls that need it.
    Unknown,
}

/// A call with the data that the plan adds.
#[derive(Debug)]
pub struct PlannedCall {
    /// The recorded call.
    pub call: Call,
    /// The number in the plan of the file that the call maps or changes.
    pub file: Option<u32>,
    /// The access mode of the file, if known.
    pub access: Option<Access>,
    /// Size in bytes of the System V segment that shmat attaches.
    pub segment: u64,
    /// The number in the plan of the userfaultfd that an ioctl concerns.
    pub userfaultfd: Option<u32>,
    /// The features of the userfaultfd's `UFFDIO_API`, if recorded.
    pub features: Option<u64>,
    /// The userfaultfd with which the memory moved by this mremap stays registered.
    pub stays_registered: Option<u32>,
    /// The start of the heap, if this is the first brk in the address space.
    pub heap: Option<u64>,
    /// Memory of the process that process_vm_readv or process_vm_writev accesses, and that was mapped before
    /// the recording began.
    pub assumed: Vec<Range<u64>>,
    /// The addresses of the bytes read by process_vm_readv that recorded calls had written. The program may
    /// have stored all other bytes itself.
    pub written: Vec<Range<u64>>,
    /// True if the contents of the address space at its start are unknown.
    pub partly: bool,
    /// True if the call may move another number of bytes in the replay, because some of the memory is
    /// unknown.
    pub doubtful: bool,
    /// True if the result depends on memory whose contents the recording does not show.
    pub unsure: bool,
}

impl PlannedCall {
    /// Returns a call with no data added.
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
