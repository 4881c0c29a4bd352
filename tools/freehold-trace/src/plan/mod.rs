//! Makes a plan of a recording: each task's steps in order, and between tasks only the order that addresses
//! and forks require.
//!
//! The order in which events took effect on Linux is an exact order. That order is the order of the
//! recording, except where events of tasks in one address space overlap (`effect.rs`). Steps may run in
//! another order or concurrently if the results stay the same:
//!
//! | step | waits for earlier steps of other tasks in the same address space that |
//! | --- | --- |
//! | a fault | last changed the mapping of its page (for a huge page: anywhere in it; for a file: in the pages around it that a fault may map); a write to private memory: also the first write that gave the VMA its family of anonymous pages |
//! | a call that changes VMAs, a first write | changed, or examined, any VMA that it overlaps or touches; faulted in the changed range |
//! | a call that removes pages or brings them in | changed the mappings there; faulted there |
//! | fork, a snapshot, mlockall, a change of resource limits, the end of a userfaultfd | did anything |
//! | a call that changes an amount that a limit in force counts | also changed such an amount |
//! | a call that removes a System V segment | in any address space: attached or detached the segment. A later step that attaches or detaches the segment waits for the removal and for the previous such step |
//! | a store to a huge page that a fork has shared, and a step that removes that page from an address space | in any address space of the same kin: stored to or removed such a page; see `kin.rs` |
//! | a step that may use a pool of huge pages of known size | in any address space: may also have used the pool; see `pools.rs` |
//! | a call that changes a file's length | in any address space: faulted in that file, or compared its contents |
//!
//! Every step also waits for the last fork, snapshot, mlockall, change of limits or end of a userfaultfd. To
//! find the VMAs that a call touches, the planner keeps a sequential model of each address space (`area.rs`,
//! `calls.rs`), without pages.
//!
//! | file | contents |
//! | --- | --- |
//! | `area.rs`, `space.rs`, `calls.rs`, `mremap.rs`, `registered.rs`, `touch.rs`, `unknown.rs` | the model of one address space, and the effects of calls and faults on it |
//! | `processes.rs`, `files.rs`, `segment.rs`, `losses.rs`, `kin.rs`, `pools.rs`, `removals.rs` | the parts of a planner, each with its own fields |
//! | `planner.rs` | the planner, which contains the parts |
//! | `events.rs`, `syscall.rs`, `file_calls.rs` and others | the steps that each kind of event adds to the plan |
//! | `run.rs` | reads the recording and plans event by event |
//!
//! A plan consists of [segments](Segment) of bounded size, so that its memory does not grow with the
//! recording. A segment also ends where the recorded program was frozen: address spaces are compared there,
//! while no task runs.

mod address_set;
mod area;
pub mod aside;
mod bytes;
mod calls;
mod descriptors;
mod effect;
mod events;
mod file_calls;
mod files;
mod kin;
mod lengths;
mod limited;
mod losses;
mod mremap;
mod order;
mod overlaps;
mod personality;
mod planner;
mod pools;
mod processes;
mod queries;
mod recorded;
mod refused;
mod registered;
mod removals;
mod removed;
mod run;
mod segment;
mod space;
mod step;
mod syscall;
mod touch;
mod transfers;
mod unknown;
mod userfaultfds;
mod vmas;

#[cfg(test)]
mod tests;

pub use area::Purpose;
pub use order::Stamp;
pub use planner::Planner;
pub use recorded::{Recorded, kind_name, show_call};
pub use segment::SEGMENT;
pub use step::{
    Access, Ends, Frozen, PlanFile, PlannedCall, Segment, Start, Step, StepKind, TaskSteps, Unsure,
};
pub use vmas::{Vma, Vmas};
