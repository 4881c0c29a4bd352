//! The data types of a plan: segments, tasks, steps, calls and files. The planner creates them, and
//! `freehold-replay` reads them.
//!
//! A step contains everything that the replay needs to make the step and to compare its answer, so a replay
//! does not read the events of the recording. A new kind of step needs a variant of [`StepKind`] here and an
//! arm in `freehold-replay/src/perform.rs`. The words *unsure*, *doubtful* and *assumed* have the meaning in
//! the table of terms in `plan/mod.rs`.

pub use super::descriptors::Access;
use super::order::Stamp;
use crate::{Call, FaultCode, KnownLimits, Snapshot, TmpfsHuge};
use std::ops::Range;

/// A part of a recording, ready to run: each task's steps in order, with the steps that each step must wait
/// for. All tasks finish a segment before the next segment begins.
#[derive(Debug, Default)]
pub struct Segment {
    /// The tasks with steps in this segment, in ascending order.
    pub tasks: Vec<TaskSteps>,
    /// The waits of all steps: [`Step::waits`] is a range of this list.
    pub waits: Vec<Stamp>,
    /// The files and System V segments that are new since the last segment.
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
    /// The interval in nanoseconds at which accesses were sampled. `None` if they were not.
    pub samples: Option<u64>,
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

/// A mapped file or System V segment. If a number occurs a second time, the file is a memfd whose path is
/// known only now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// The number in the plan.
    pub id: u32,
    /// The path, or the name that Linux shows for a memfd or System V segment.
    pub path: String,
    /// The size in bytes, if known.
    pub size: Option<u64>,
    /// True for a segment of System V shared memory, which only shmat maps.
    pub segment: bool,
    /// Size in bytes of the pages, if they are huge pages from a pool.
    pub huge: Option<u64>,
    /// The huge-page policy of the file system, if the file is known to be on a mounted tmpfs.
    pub tmpfs: Option<TmpfsHuge>,
    /// The length in bytes at the creation of the file, if the recording contains every change of the length.
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
    /// Time of the event, in nanoseconds of the recording.
    pub time: u64,
    /// The steps of other tasks that must be done before this step, as a range of [`Segment::waits`].
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
        /// Its process: the serial number of its first thread.
        process: u32,
        /// True if the new task shares the address space; otherwise it gets a copy.
        shares: bool,
        /// Pages that are unsure in the copy: the recording does not show whether the copy contains them.
        unsure: Vec<Range<u64>>,
        /// True if the copy may inherit registrations with userfaultfds.
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
    /// Marks the pages of a file as doubtful: something unrecorded may have removed them.
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
    /// Marks pages of the address space as unsure.
    Unsure(Unsure),
    /// Sets the resource limits of the address space. An unknown limit gets the default of the replay.
    Limits(KnownLimits),
    /// Maps anonymous memory at *assumed* addresses: a later call shows that memory was mapped there before
    /// the recording began.
    Assume(Range<u64>),
    /// Makes this range executable: a brk has just added it to the heap.
    Execute(Range<u64>),
    /// Unmaps addresses: unknown memory that a later call found free, or memory that Linux unmapped in a call
    /// that it then refused.
    Clear(Range<u64>),
}

/// Unsure pages: the recording does not determine one property of these pages, because the order of two
/// events is not recorded. A comparison with a snapshot skips that property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsure {
    /// Pages that may or may not be present: another task mapped or unmapped them while a fork copied the
    /// address space.
    Pages(Range<u64>),
    /// Pages that may or may not be a huge page: another address space that shared the huge page ended while
    /// a task stored to the page.
    Size(Range<u64>),
}

/// The end of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The page was present afterwards.
    Resolved,
    /// The fault raised this signal with this code.
    Signal(u8, i32),
    /// The recording does not show how the fault ended. The replay does not make the fault.
    Interrupted,
    /// The kernel took the fault while it executed a call, and the fault failed.
    Refused,
}

/// The address space of a new image.
#[derive(Debug)]
pub enum Start {
    /// The snapshot shows the address space.
    Shown(Snapshot),
    /// All addresses are unknown. Steps of the plan map memory before the calls that need it
    /// ([`StepKind::Assume`]).
    Unknown,
}

/// A call to replay, with the data that the plan adds.
#[derive(Debug)]
pub struct PlannedCall {
    /// The recorded call.
    pub call: Call,
    /// The file that the call maps or changes, by its number in the plan.
    pub file: Option<u32>,
    /// The access mode of the file, if known.
    pub access: Option<Access>,
    /// Size in bytes of the System V segment that shmat attaches.
    pub segment: u64,
    /// The userfaultfd that an ioctl concerns, by its number in the plan.
    pub userfaultfd: Option<u32>,
    /// The features of the userfaultfd's `UFFDIO_API`, if recorded.
    pub features: Option<u64>,
    /// The userfaultfd of the registration, if this mremap moves memory that stays registered.
    pub stays_registered: Option<u32>,
    /// The start of the heap, if this is the first brk in the address space.
    pub heap: Option<u64>,
    /// Assumed memory of the other process: ranges that process_vm_readv or process_vm_writev accesses, and
    /// that were mapped before the recording began.
    pub assumed: Vec<Range<u64>>,
    /// The addresses of the bytes that process_vm_readv read and that recorded calls had written. Only these
    /// bytes are compared: the program may have stored all other bytes itself.
    pub written: Vec<Range<u64>>,
    /// True if the address space has unknown addresses, because its start is not recorded.
    pub partly: bool,
    /// True if the call may move another number of bytes in the replay than on Linux, because some of the
    /// memory is unknown. A different number is set aside instead of being reported.
    pub doubtful: bool,
    /// True if the result is unsure, because it depends on unknown memory or on an unrecorded process. The
    /// replay makes the call and does not compare the result.
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
