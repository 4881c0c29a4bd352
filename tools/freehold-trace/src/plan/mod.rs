//! From a recording to a plan: every task's steps in order, and between tasks just the order that addresses
//! and forks force.
//!
//! The order in which events took effect on Linux is one exact order. It is that of the recording, except
//! where tasks of one address space overlap (`effect.rs`). What may be done in another order, or at once, is
//! what would come out the same:
//!
//! | step | waits for earlier steps of other tasks in the same address space that |
//! | --- | --- |
//! | a fault | last changed what is mapped at its page (of a huge page: anywhere in it; of a file: in the pages around it that may come along); a write to private memory: also the first write that gave the VMA its family of anonymous pages |
//! | a call that changes VMAs, a first write | changed, or looked at, any VMA that it overlaps or touches; faulted where it changes |
//! | a call that takes or brings pages | changed what is mapped there; faulted there |
//! | fork, a snapshot, mlockall, a change of resource limits, the end of a userfaultfd | did anything |
//! | a call that changes what a limit in force counts | is such a call |
//! | a call that removes a System V segment | in any address space: attached or detached it; a step that does so later waits for it, and each for the one before |
//! | a store to a huge page that a fork has shared, and what takes that page from an address space | in any address space of the same kin: did either; see `kin.rs` |
//! | a step that may use a pool of huge pages of known size | in any address space: is such a step; see `pools.rs` |
//! | a call that makes a file shorter or longer | in any address space: faulted in that file, or compared what is there |
//!
//! and everybody waits for the last fork, snapshot, mlockall, change of limits or end of a userfaultfd. To
//! know which VMAs a call touches, the planner keeps a sequential model of each address space (`area.rs`,
//! `calls.rs`), without pages.
//!
//! | file | what |
//! | --- | --- |
//! | `area.rs`, `space.rs`, `calls.rs`, `mremap.rs`, `registered.rs`, `touch.rs`, `unknown.rs` | the model of one address space, and what calls and faults do to it |
//! | `processes.rs`, `files.rs`, `segment.rs`, `losses.rs`, `kin.rs`, `pools.rs`, `removals.rs` | the parts of a planner, each with its own fields |
//! | `planner.rs` | the planner, which has the parts |
//! | `events.rs`, `syscall.rs`, `file_calls.rs` and others | what each kind of event adds to the plan |
//! | `run.rs` | reads the recording and plans event by event |
//!
//! A plan comes in [segments](Segment) of bounded size, so its memory does not grow with the recording. A
//! segment also ends where the recorded program was frozen: the address spaces are compared then, while
//! nobody runs.

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
mod told;
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
