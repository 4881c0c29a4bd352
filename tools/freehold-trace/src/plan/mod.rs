//! Makes a *plan* of a recording: each task's steps in order, and between tasks only the order that addresses
//! and forks require.
//!
//! `freehold-replay` runs a plan on the engine. On Linux, events took effect in one exact order. That order
//! is the order of the recording, except where events of tasks in one address space overlap (`effect.rs`).
//! Steps may run in another order or concurrently if the results stay the same:
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
//! Every step also waits for the last fork, snapshot, mlockall, change of limits or end of a userfaultfd.
//!
//! # Terms of this folder
//!
//! | term | meaning |
//! | --- | --- |
//! | model | the VMAs of one address space as the recording shows them, without pages (`Space` in `space.rs`). The planner updates the model in the order of the recording |
//! | area | a VMA in the model (`Area`) |
//! | family | the number that the planner gives to the anonymous pages of a VMA at the first write. It stands for Linux's anon_vma and decides which VMAs may merge |
//! | stamp, wait | a stamp is the name of a step ([`Stamp`]). The waits of a step are the stamps of the steps that must be done before it |
//! | gather, note | to gather is to collect the waits of the next step. To note is to store the stamp of a step in the model, so that later steps gather it |
//! | reach | the addresses that a call concerns (`Reach`) |
//! | chunk, block | aligned 2 MiB of addresses, the size of a huge page. A block may also be a smaller aligned range |
//! | kin | address spaces that descend from one address space by fork and may share huge pages (`kin.rs`) |
//! | unknown | of addresses: neither a snapshot nor a recorded call determines the mapping. Only strace output leaves addresses unknown, because it does not show the mappings at the start (`unknown.rs`) |
//! | assumed | of unknown addresses: a call that succeeded shows that memory is mapped, but not which memory. The replay maps anonymous memory there ([`StepKind::Assume`]) |
//! | unsure | not determined by the recording. The replay performs an unsure call and does not compare its result ([`PlannedCall::unsure`]). A comparison with a snapshot skips unsure pages ([`Unsure`]) |
//! | doubtful | recorded earlier, and possibly wrong now because something unrecorded may have changed it |
//! | set aside | left out of the plan or of a comparison, and counted under a reason (`aside.rs`) |
//! | to place, to hold | to place an event is to decide its position in the order. A call that waits for its place is held (`removals.rs`) |
//! | beside | of events: so close in time to an event of another task that either may have taken effect first (`effect.rs`) |
//!
//! # Files
//!
//! | file | contents |
//! | --- | --- |
//! | `area.rs`, `space.rs`, `calls.rs`, `mremap.rs`, `registered.rs`, `touch.rs`, `unknown.rs`, `bytes.rs` | the model of one address space, and the effects of calls and faults on it |
//! | `processes.rs`, `files.rs`, `segment.rs`, `losses.rs`, `kin.rs`, `pools.rs`, `removals.rs` | the parts of a planner, each with its own fields |
//! | `planner.rs` | the planner, which contains the parts |
//! | `events.rs`, `syscall.rs`, `file_calls.rs` and others | the steps that each kind of event adds to the plan |
//! | `run.rs` | reads the recording and plans event by event |
//! | `step.rs` | the finished plan, as data |
//!
//! A plan consists of [segments](Segment) of bounded size. The memory of a plan therefore does not grow with
//! the recording. A segment also ends where the recorded program was frozen: address spaces are compared
//! there, while no task runs. One thread owns a planner, so this folder has no locks.
//!
//! A missing wait may show as a difference only in some replays of a recording, because the two steps may
//! still run in the right order. An unneeded wait only reduces concurrency. `tests.rs` checks the waits of
//! small recordings, and compares the model with recorded snapshots. `freehold-replay/tests/suites.rs` and
//! `freehold-replay/tests/corpus.rs` replay these recordings.

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
