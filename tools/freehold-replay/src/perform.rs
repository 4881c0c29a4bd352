//! Performs one step of a task on a virtual CPU, and compares its answer with Linux's.
//!
//! `run.rs` decides when a step may run, and calls [`Performer::step`] for it. A step is a fault, a call, the
//! creation of a task, an exec, an exit, a comparison with a snapshot, or a change that another event
//! implies, such as the length of a file. A step with a recorded answer runs in three parts:
//!
//! 1. The step is performed on the engine: by the virtual CPU (a fault) or by a call on the process.
//! 2. The answer is compared with the recorded answer of Linux. `refused.rs` and `grown.rs` say which
//!    answers the recording does not determine; such an answer is counted as set aside.
//! 3. A difference, the counts and the time of the step go to [`Findings`].
//!
//! A performer belongs to one worker thread, so its findings need no lock. Workers share an [`Image`], whose
//! parts have their own locks. A new kind of step needs an arm in [`Performer::step`].

use super::TASK_SIZE;
use super::answers::show_returned;
use super::calls;
use super::compare;
use super::contents::{self, Lineage};
use super::files;
use super::findings::{Findings, Other};
use super::grown;
use super::image::{Image, Task};
use super::layout;
use super::maps::{above, maps_around};
use super::outcome::Difference;
use super::pagers::Registered;
use super::place::{self, Chosen};
use super::prctl::Inherited;
use super::reached::Reached;
use super::refused::{self, Refused, is_of_unknown_length};
use super::short;
use super::start;
use super::touched::{self, Touch, Touched};
use super::transfer::{self, Moved};
use super::workers;
use super::world::World;
use freehold::fault::{Access, FaultError};
use freehold::space::Prot;
use freehold_machine::{Cpu, Process};
use freehold_pagetable::X86_4;
use freehold_trace::plan::{Ends, PlannedCall, Start, Step, StepKind, Unsure, aside, show_call};
use freehold_trace::{CallName, FaultCode, Returned};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bytes of a page.
const PAGE: u64 = 4096;
const SIGBUS: u8 = 7;
const SIGSEGV: u8 = 11;

/// A task that a step created: its number and its address space.
pub(super) type Made = (u32, Option<Arc<Image>>);

/// Performs consecutive steps of one task.
pub(super) struct Performer<'w, 'c> {
    /// The engine, the machine, and the files of the replay.
    world: &'w World,
    /// The virtual CPU of the worker.
    cpu: &'c mut Cpu<X86_4>,
    /// The results of the worker.
    pub(super) found: &'c mut Findings,
    /// Time of the last call of `lap`.
    clock: Duration,
}

impl<'w, 'c> Performer<'w, 'c> {
    /// Begins a task's steps: the CPU switches to the task's address space.
    pub(super) fn new(
        world: &'w World,
        cpu: &'c mut Cpu<X86_4>,
        found: &'c mut Findings,
        image: Option<&Image>,
    ) -> Performer<'w, 'c> {
        if let Some(image) = image {
            cpu.run(image.process().mmu());
        }
        Performer { world, cpu, found, clock: workers::now() }
    }

    /// Ends the task's steps: the CPU leaves the task's address space.
    pub(super) fn rest(self) {
        self.cpu.idle();
    }

    /// Returns the nanoseconds since the last call, or since the beginning.
    fn lap(&mut self) -> u64 {
        let now = workers::now();
        let ns = now.saturating_sub(self.clock).as_nanos() as u64;
        self.clock = now;
        ns
    }

    /// Performs a step. Returns the task that the step created.
    pub(super) fn step(&mut self, task: &mut Task<'_>, step: &Step) -> Option<Made> {
        short::begin_step(self.world, self.cpu, task, step);
        self.lap();
        match &step.what {
            StepKind::Fault { ends: Ends::Interrupted, .. } => {}
            StepKind::Fault { address, code, ends } => {
                self.recorded_fault(task, step.line, *address, *code, *ends);
            }
            StepKind::Call(planned) if planned.call.name == CallName::Ioctl => {
                self.register(task, step.line, planned);
            }
            StepKind::EndUserfaultfd { userfaultfd, task } => {
                let image = self.world.image(*task)?;
                self.cpu.call(|| image.pagers.end(*userfaultfd));
                self.lap();
            }
            StepKind::Call(planned) => self.recorded_call(task, step.line, planned),
            StepKind::Clone { child, shares, copies_registrations, unsure, .. } => {
                let image = self.new_task(task, step.line, *shares);
                if let Some(image) = &image {
                    image.pagers.doubt(*copies_registrations);
                    unsure.iter().for_each(|range| image.touched.is_unsure(&Unsure::Pages(range.clone())));
                    self.world.runs(*child, image);
                }
                return Some((*child, image));
            }
            StepKind::Exec(start) => self.exec(task, step.line, start),
            StepKind::Exit => {
                self.cpu.idle();
                let image = task.image.take();
                self.cpu.call(|| drop(image));
                let ns = self.lap();
                self.found.time_other(Other::Exit, ns);
            }
            StepKind::Compare(snapshot) => {
                let image = task.image.as_deref()?;
                let compared = compare::compare(self.world, image, snapshot);
                compare::report(self.found, task.number, snapshot, step.line, compared);
                let ns = self.lap();
                self.found.checking += Duration::from_nanos(ns);
            }
            StepKind::Length { file, bytes } => {
                self.cpu.call(|| self.world.set_length(*file, *bytes));
                self.lap();
            }
            StepKind::Doubt { file } => {
                self.world.doubt(*file);
                self.lap();
            }
            StepKind::Remove { file } => {
                self.cpu.call(|| self.world.remove(*file));
                self.lap();
            }
            StepKind::Execute(range) => {
                let image = task.image.as_deref()?;
                let prot = Prot::READ | Prot::WRITE | Prot::EXEC;
                // If the mprotect fails, a later comparison reports a difference.
                let _ =
                    self.cpu.call(|| image.process().mprotect(range.start, range.end - range.start, prot));
                self.lap();
            }
            StepKind::Clear(range) => {
                let image = task.image.as_deref()?;
                let _ = self.cpu.call(|| image.process().munmap(range.start, range.end - range.start));
                self.lap();
            }
            StepKind::Unsure(of) => task.image.as_deref()?.touched.is_unsure(of),
            StepKind::Limits(known) => {
                let image = task.image.as_deref()?;
                image.limit(known, self.world.config().limits);
            }
            StepKind::Assume(range) => {
                let image = task.image.as_deref()?;
                self.cpu.call(|| start::assume(image.process(), range));
                self.lap();
            }
        }
        None
    }

    /// Takes a recorded fault, and compares the result with Linux's.
    fn recorded_fault(&mut self, task: &Task<'_>, line: u32, address: u64, code: FaultCode, ends: Ends) {
        let Some(image) = task.image.as_deref() else { return };
        if ends == Ends::Signal(SIGSEGV, 4) {
            self.found.set_aside(aside::KEY_RIGHTS, 1);
            return;
        }
        if ends == Ends::Signal(SIGBUS, 2) && is_of_unknown_length(image.process(), address) {
            self.found.set_aside(aside::FILE_ENDS, 1);
            return;
        }
        if ends == Ends::Signal(SIGBUS, 2) && image.pagers.may_serve_copy(image.process(), address) {
            self.found.set_aside(aside::COPIED, 1);
            return;
        }
        let above = (ends == Ends::Signal(SIGSEGV, 1)).then(|| above(image.process(), address));
        let mut ended = self.fault(image, task.number, line, address, code);
        if (ends, ended) == (Ends::Resolved, Ends::Signal(SIGBUS, 2))
            && refused::huge_page(image.process(), address).is_some()
        {
            // Linux had a huge page for this fault, so the pools must be larger.
            self.world.has_larger_pools();
            ended = self.fault(image, task.number, line, address, code);
        }
        if let Some(Some(start)) = above
            && ended != ends
            && !refused::tells_growth(self.world, image, start)
        {
            self.cpu.call(|| refused::shrink(image.process(), address, start));
            self.found.set_aside(aside::GROWTH, 1);
            return;
        }
        if (ends, ended) == (Ends::Refused, Ends::Resolved) && is_of_unknown_length(image.process(), address)
        {
            self.found.set_aside(aside::FILE_ENDS, 1);
            return;
        }
        self.check_fault(task, line, address, code, ends, ended);
    }

    /// Makes a recorded call and compares its answer, if the answer can be checked.
    fn recorded_call(&mut self, task: &Task<'_>, line: u32, planned: &PlannedCall) {
        let Some(image) = task.image.clone() else { return };
        if self.world.has_faults && self.cpu.call(|| grown::before(&image, &planned.call)) {
            self.found.set_aside(aside::GROWN, 1);
        }
        let refused = refused::refused(self.world, &image, planned);
        if let Some(Refused::Leave(why)) = refused {
            self.found.set_aside(why, 1);
            return;
        }
        let moved = image.pagers.moved(image.process(), planned);
        self.lap();
        let mut answer = self.call(task.number, line, &image, planned);
        let ns = self.lap();
        self.cpu.call(|| image.pagers.register_moved(image.process(), planned, moved));
        self.found.time_call(planned.call.name, ns);
        image.reached.called(image.process(), &planned.call);
        image.heat.called(&planned.call);
        self.world.cut_huge(&image, &planned.call);
        image.touched.called(&planned.call, |range| touched::locked(image.process(), range));
        if answer.as_mut().is_some_and(|moved| moved.falls_short(planned, image.process()).is_none()) {
            self.found.set_aside(aside::OWN_MEMORY, 1);
            return;
        }
        self.lap();
        if let (Some(Refused::Undo(before, why)), Some(Moved { returned, .. })) = (refused, &answer)
            && *returned != planned.call.returned
        {
            let call = &planned.call;
            // A refused mlock has locked memory up to a hole, so its effect is undone too.
            let locks = matches!(call.name, CallName::Mlock | CallName::Mlock2);
            if let Some(value) = returned.value().or(locks.then_some(0)) {
                self.cpu.call(|| before.restore(image.process(), call, value));
            }
            self.lap();
            self.found.set_aside(why, 1);
            return;
        }
        if self.lacks_pages(&image, planned, answer.as_ref()) {
            self.found.set_aside(aside::UNSERVED, 1);
            return;
        }
        self.check_call(task, line, planned, answer);
    }

    /// Makes an ioctl of a userfaultfd.
    fn register(&mut self, task: &Task<'_>, line: u32, planned: &PlannedCall) {
        let Some(image) = task.image.as_deref() else { return };
        self.lap();
        let registered = self.cpu.call(|| image.pagers.call(image.process(), planned));
        let ns = self.lap();
        match registered {
            Registered::Made(returned) => {
                self.found.time_call(planned.call.name, ns);
                self.check_call(task, line, planned, Some(Moved::nothing(returned)));
            }
            Registered::Aside(why) => self.found.set_aside(why, 1),
        }
    }

    /// Returns true if the answer differs from Linux's because Linux did not get all pages that a userfaultfd
    /// serves.
    fn lacks_pages(&self, image: &Image, planned: &PlannedCall, answer: Option<&Moved>) -> bool {
        let call = &planned.call;
        if answer.is_none_or(|moved| moved.returned == call.returned) {
            return false;
        }
        let Some(transfer) = call.transfer.as_ref().filter(|_| call.name != CallName::ProcessMadvise) else {
            return image.pagers.may_lack(image.process(), call);
        };
        let other = transfer.process.and_then(|task| self.world.image(task));
        let asked = transfer.remote.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        call.returned != Returned::Value(asked)
            && other.is_some_and(|other| other.pagers.serve(other.process(), &transfer.remote))
    }

    /// Adds to the page cache the pages that `files.rs` assumes there, and then takes a recorded fault.
    /// Returns how the fault ended.
    fn fault(&mut self, image: &Image, task: u32, line: u32, address: u64, code: FaultCode) -> Ends {
        let process = image.process();
        let access = match (code.write(), code.exec()) {
            (true, _) => Access::WRITE,
            // An x86 kernel checks the right to execute only if the page is present. This fault brings in the
            // page, and the next fault ends in a signal.
            (false, true) if !code.present() && refused::is_readable(process, address) => Access::READ,
            (false, true) => Access::EXEC,
            (false, false) => Access::READ,
        };
        let waited = short::waited(self.world);
        let around = self.cpu.call(|| files::read_ahead(self.world, process, address, access));
        self.lap();
        let (ended, mut faulted) = self.touch(image, task, line, address, access);
        let ns = self.lap();
        self.found.time_other(Other::Fault, ns);
        short::add_fault(self.world, image, address, ns, waited);
        if let Some(around) = around.filter(|_| ended == Ends::Resolved) {
            faulted = faulted || around.map_rest(process, self.cpu, address);
            image.reached.fault(address, &around);
            image.reached.with_blocks(process, &around.blocks);
            image.touched.pages(around.window(), Touch::Along);
        }
        if ended == Ends::Resolved {
            let how = if access.write { Touch::Written } else { Touch::Read };
            image.touched.pages(address..address + 1, how);
        }
        self.found.already_there += u64::from(!faulted);
        self.lap();
        ended
    }

    /// Touches memory as the recorded program did. Returns how the access ended, and whether the engine
    /// handled a fault.
    fn touch(&mut self, image: &Image, task: u32, line: u32, address: u64, access: Access) -> (Ends, bool) {
        let process = image.process();
        let mut faulted = false;
        let result = self.cpu.touch(process.mmu(), address, access, |at, access| {
            faulted = true;
            let handled = process.handle_fault(at.get(), access).map(drop);
            if !matches!(handled, Err(FaultError::Bus { .. })) || image.pagers.is_empty() {
                return handled;
            }
            image.pagers.supply_page(process, at.get());
            process.handle_fault(at.get(), access).map(drop)
        });
        let result = match self.world.options.backed && access.write {
            true => {
                result.and_then(|()| contents::store(process, self.cpu, address, task, &image.lineage, line))
            }
            false => result,
        };
        let ended = match result {
            Ok(()) => Ends::Resolved,
            Err(error) => match error.signal() {
                Some(signal) => Ends::Signal(signal.number as u8, signal.code),
                None => Ends::Interrupted,
            },
        };
        (ended, faulted)
    }

    /// Compares the end of a fault with its end on Linux. Counts the fault as equal, as set aside, or as a
    /// difference.
    fn check_fault(
        &mut self,
        task: &Task<'_>,
        line: u32,
        address: u64,
        code: FaultCode,
        linux: Ends,
        ours: Ends,
    ) {
        let same = match linux {
            Ends::Refused => matches!(ours, Ends::Signal(..)),
            linux => linux == ours,
        };
        self.found.faults.count(same);
        if same {
            return;
        }
        let maps = task.image.as_deref().map(|image| maps_around(image.process(), address));
        let access = match (code.write(), code.exec()) {
            (true, _) => "write",
            (false, true) => "fetch",
            (false, false) => "read",
        };
        self.found.differ(|| Difference {
            line,
            task: task.number,
            what: format!("fault at {address:#x} ({access})"),
            linux: show_end(linux),
            freehold: show_end(ours),
            maps: maps.unwrap_or_default(),
        });
    }

    /// Makes a call. Returns `None` if the engine has no such call.
    fn call(&mut self, task: u32, line: u32, image: &Image, planned: &PlannedCall) -> Option<Moved> {
        if planned.call.name == CallName::ProcessMadvise {
            planned.assumed.iter().for_each(|range| start::assume(image.process(), range));
        } else if let Some(transfer) = &planned.call.transfer {
            let other = transfer.process.and_then(|task| self.world.image(task))?;
            return self.cpu.call(|| {
                let theirs = other.process();
                planned.assumed.iter().for_each(|range| start::assume(theirs, range));
                let bytes = planned.call.returned.value().unwrap_or(0);
                other.pagers.supply_pieces(theirs, &transfer.remote, bytes);
                let moved = transfer::transfer(planned, transfer, image.process(), theirs);
                other.reached.follow(theirs, 0, TASK_SIZE);
                moved
            });
        }
        if !image.pagers.is_empty() {
            self.cpu.call(|| image.pagers.supply(image.process(), &planned.call));
        }
        let chosen = place::chosen(image, planned);
        if Chosen::is_random(planned) {
            self.found.set_aside(aside::SOMEWHERE, chosen.iter().count() as u64);
        }
        let returned = match chosen.filter(|_| !Chosen::is_random(planned)) {
            Some(chosen) => self.place(task, line, image.process(), planned, chosen)?,
            None => self.cpu.call(|| calls::answer(self.world, image.process(), planned, false))?,
        };
        Some(Moved::nothing(returned))
    }

    /// Makes a call for which Linux chose an address. The engine first chooses an address itself, and then
    /// maps at Linux's address.
    fn place(
        &mut self,
        task: u32,
        line: u32,
        process: &Process,
        planned: &PlannedCall,
        chosen: Chosen,
    ) -> Option<Returned> {
        let answer = self.cpu.call(|| chosen.make(self.world, process, planned))?;
        let Some(ours) = answer.value() else { return Some(answer) };
        if ours != chosen.linux && chosen.is_aligned_shared_memory(self.world, planned, ours) {
            self.found.set_aside(aside::SETTING, 1);
            return self.cpu.call(|| chosen.follow(self.world, process, planned, ours));
        }
        self.found.placed.count(ours == chosen.linux);
        if ours == chosen.linux {
            return Some(answer);
        }
        self.found.differ(|| Difference {
            line,
            task,
            what: format!("placement of {}", show_call(&planned.call)),
            linux: format!("{:#x}", chosen.linux),
            freehold: format!("{ours:#x}"),
            maps: maps_around(process, chosen.linux),
        });
        self.cpu.call(|| chosen.follow(self.world, process, planned, ours))
    }

    /// Compares the answer of a call with the answer of Linux. Counts the call as equal, as set aside, or as
    /// a difference. `answer` is `None` if the engine has no such call.
    fn check_call(&mut self, task: &Task<'_>, line: u32, planned: &PlannedCall, answer: Option<Moved>) {
        let call = &planned.call;
        let Some(Moved { returned: ours, other, strange, .. }) = answer else {
            let ranges = call.name == CallName::ProcessMadvise;
            return self.found.set_aside(if ranges { aside::RANGES } else { aside::NO_SUCH_CALL }, 1);
        };
        if planned.unsure {
            return;
        }
        if ours != call.returned && !self.world.has_faults && refused::collapses(call) {
            return self.found.set_aside(aside::COLLAPSED, 1);
        }
        let told = |image: &Image| refused::tells_own_memory(image.process(), call);
        if ours != call.returned && !task.image.as_deref().is_none_or(told) {
            return self.found.set_aside(aside::FILE_ENDS, 1);
        }
        if planned.doubtful && ours != call.returned {
            return self.found.set_aside(aside::OWN_MEMORY, 1);
        }
        self.found.set_aside(aside::OWN_BYTES, strange.into());
        let same = ours == call.returned && other.is_none();
        self.found.calls.count(same);
        if same {
            return;
        }
        let at = call.returned.value().filter(|_| call.name == CallName::Mmap).unwrap_or(call.args[0]);
        let maps = task.image.as_deref().map(|image| maps_around(image.process(), at));
        let (mut linux, mut freehold) = (show_returned(call.returned), show_returned(ours));
        if let Some((address, theirs, ours)) = other {
            linux += &format!(", byte {theirs:#04x} at {address:#x}");
            freehold += &format!(", byte {ours:#04x} at {address:#x}");
        }
        self.found.differ(|| Difference {
            line,
            task: task.number,
            what: show_call(call),
            linux,
            freehold,
            maps: maps.unwrap_or_default(),
        });
    }

    /// Returns the address space of a new task.
    fn new_task(&mut self, task: &Task<'_>, line: u32, shares: bool) -> Option<Arc<Image>> {
        if shares {
            let ns = self.lap();
            self.found.time_other(Other::Clone, ns);
            return task.image.clone();
        }
        let parent = task.image.as_deref()?;
        let forked = self.cpu.call(|| parent.process().fork());
        let ns = self.lap();
        self.found.time_other(Other::Fork, ns);
        match forked {
            Ok(space) => {
                let child = Process::of(space);
                let reached = parent.reached.forked(&child);
                let touched = parent.touched.forked();
                let image = Image::new(
                    &self.world.totals,
                    child,
                    parent.places,
                    parent.lineage.forked(),
                    reached,
                    touched,
                );
                image.limited.store(parent.limited.load(Relaxed), Relaxed);
                image.pagers.doubt(parent.pagers.are_doubted());
                image.holes.inherit(&parent.holes);
                image.heat.inherit(&parent.heat);
                Some(image)
            }
            Err(error) => {
                self.found.differ(|| Difference {
                    line,
                    task: task.number,
                    what: "fork".to_owned(),
                    linux: "a child".to_owned(),
                    freehold: error.to_string(),
                    maps: Vec::new(),
                });
                None
            }
        }
    }

    /// Gives the task a new address space with the mappings of `start`, and touches the pages that were
    /// present. Attributes that an exec inherits are taken from the old address space.
    fn exec(&mut self, task: &mut Task<'_>, line: u32, start: &Start) {
        self.cpu.idle();
        let old = task.image.take();
        let inherited = Inherited::of(old.as_ref().map(|old| old.process()));
        let made = self.cpu.call(|| {
            drop(old);
            let made = start::start(self.world, start)?;
            // The attributes are set after the mappings of the start exist, so that these mappings do not
            // change.
            inherited.give(&made.0, start)?;
            anyhow::Ok(made)
        });
        match made {
            Ok((process, present)) => {
                self.cpu.run(process.mmu());
                for (pages, access) in present {
                    for page in pages {
                        let _ = process.touch(self.cpu, page * PAGE, access);
                    }
                }
                let (reached, touched) = (Reached::default(), Touched::default());
                let places = self.world.options.places && layout::base(start).is_some();
                let image =
                    Image::new(&self.world.totals, process, places, Lineage::fresh(), reached, touched);
                self.world.runs(task.number, &image);
                task.image = Some(image);
            }
            Err(why) => self.found.differ(|| Difference {
                line,
                task: task.number,
                what: "exec".to_owned(),
                linux: "the address space in the snapshot".to_owned(),
                freehold: why.to_string(),
                maps: Vec::new(),
            }),
        }
        let ns = self.lap();
        self.found.time_other(Other::Exec, ns);
    }
}

/// Formats the end of a fault for a report of a difference.
fn show_end(ends: Ends) -> String {
    match ends {
        Ends::Resolved => "resolved".to_owned(),
        Ends::Signal(SIGBUS, _) => "SIGBUS".to_owned(),
        Ends::Signal(SIGSEGV, 1) => "SIGSEGV (SEGV_MAPERR)".to_owned(),
        Ends::Signal(SIGSEGV, 2) => "SIGSEGV (SEGV_ACCERR)".to_owned(),
        Ends::Signal(signal, code) => format!("signal {signal}, code {code}"),
        Ends::Interrupted | Ends::Refused => "not resolved".to_owned(),
    }
}
