//! Assembles events from the kernel's reports of their starts and ends.
//!
//! `write.rs` passes the reports ([`Raw`]) of all sources to [`Assembler::report`], ordered by time. An
//! [`Op`] is created at the start of a call or fault and completed at its end; a call that never returns has
//! no end. The time of an `Op` becomes the time at which the operation took effect: for a call that changes
//! VMAs, the acquisition of the mmap lock. `write.rs` sorts the finished `Op`s by that time.
//!
//! After a loss of reports, the next end that is reported for a thread may belong to a later operation, so
//! all operations in progress are marked as lost. The tests (`assemble_tests.rs`) list reports and the
//! expected lines of the recording; the mutant `record-loss-under-way` checks the handling of losses. A new
//! kind of report needs a variant of [`RawKind`], an arm in [`Assembler::report`], and such a test.

use super::mounts::Device;
use super::op::Op;
use super::raw::{Mapped, Raw, RawKind};
use freehold_trace::operation::{fcntl, personality, prctl, uffdio};
use freehold_trace::{Call, CallName, FaultCode, Kind, Returned, Snapshot, Transfer, Why};
use std::collections::HashMap;

/// `CLONE_VM`: parent and child share the address space.
const CLONE_VM: u64 = 0x100;
/// `CLONE_THREAD`: parent and child belong to one process.
const CLONE_THREAD: u64 = 0x1_0000;

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The path at the time of the mapping.
    pub path: String,
    /// The device of the file.
    pub device: Device,
    /// The time of the first mapping, in nanoseconds. `u64::MAX` until it is known.
    pub first: u64,
}

/// The assembled events.
#[derive(Debug, Default)]
pub struct Assembled {
    /// The events in the order of their starts. Their times are not in order.
    pub ops: Vec<Op>,
    /// The files, in the order of their numbers; the first one is number 1.
    pub files: Vec<File>,
    /// Number of tasks.
    pub tasks: u32,
}

/// The state of a task.
#[derive(Debug, Default)]
struct Task {
    /// The serial number in the recording.
    serial: u32,
    /// The process, by the serial number of its first thread.
    process: u32,
    /// The call in progress.
    call: Option<Pending>,
    /// The index of the task's last fault among the events.
    fault: Option<usize>,
    /// True if the last fault is also the last operation that the task began.
    in_fault: bool,
    /// True if the exit of the thread was reported.
    exited: bool,
    /// The ranges of the process_madvise that is in progress or about to begin.
    ranges: Option<Vec<(u64, u64)>>,
}

/// A call in progress.
#[derive(Debug)]
struct Pending {
    /// The index of its [`Op`] in `Assembled::ops`.
    op: usize,
    /// The name.
    name: CallName,
    /// The arguments.
    args: [u64; 6],
    /// The file mappings that the call has created so far.
    mapped: Vec<Mapped>,
    /// True if the arguments are not known, because their memory could not be read or reports were lost.
    unread: bool,
    /// True if the kernel took a fault during the call. If the call is an execve that fails, the fault
    /// belongs to the program that continues.
    faulted: bool,
    /// True for an execve after the point of no return: it can only succeed or end the process.
    commits: bool,
}

/// Assembles events from reports in the order of time.
pub struct Assembler<'a> {
    /// The threads, each under its number in the kernel.
    tasks: HashMap<i32, Task>,
    /// Number of living threads of each process.
    alive: HashMap<u32, u32>,
    /// The number of each file, by inode and path.
    files: HashMap<((u32, u32, u64), String), u32>,
    /// The snapshots to which reports refer by index.
    snapshots: &'a mut [Snapshot],
    /// The events so far.
    made: Assembled,
}

impl<'a> Assembler<'a> {
    /// Creates an assembler for a recording that begins with thread `root`. The assembler sets the process
    /// numbers of the snapshots.
    pub fn new(root: i32, snapshots: &'a mut [Snapshot]) -> Self {
        let (tasks, alive, files, made) = <_>::default();
        let mut assembler = Assembler { tasks, alive, files, snapshots, made };
        assembler.task(root, None);
        assembler
    }

    /// Returns the events, including calls that never returned.
    pub fn finish(mut self) -> Assembled {
        for pending in self.tasks.into_values().filter_map(|task| task.call) {
            let changes_nothing = makes_task(pending.name) || pending.name.is_of_limits() || pending.unread;
            if is_kept(pending.name, &pending.args) && !changes_nothing {
                let kind = &mut self.made.ops[pending.op].kind;
                kind.get_or_insert_with(|| call(&pending, Returned::Never, None));
            }
        }
        self.made
    }

    /// Handles a report. Reports must arrive in the order of their times.
    pub fn report(&mut self, raw: Raw) {
        let Raw { time, cpu, thread, what } = raw;
        if let RawKind::Lost(events) = what {
            self.mark_open_operations_lost();
            self.made.ops.push(Op::new(time, None, 0, Some(Kind::Lost { events })));
            return;
        }
        if let RawKind::Exec { thread, before } = what {
            self.renumber(thread, before);
        }
        // Reports of unknown threads are ignored.
        let Some(task) = self.tasks.get_mut(&thread) else { return };
        // Work of the kernel for an exiting thread does not count as an operation of the thread.
        if task.exited && what != RawKind::TornDown {
            return;
        }
        let (serial, process) = (task.serial, task.process);
        let ops = &mut self.made.ops;
        match what {
            RawKind::Fault { address, code } => {
                task.call.iter_mut().for_each(|call| call.faulted = true);
                let in_exec = task.call.as_ref().is_some_and(|call| is_exec(call.name));
                let kind = Kind::Fault { address, code: FaultCode(code as u8), in_exec };
                task.fault = Some(ops.len());
                task.in_fault = true;
                ops.push(Op::new(time, cpu, serial, Some(kind)));
            }
            RawKind::Resolved { address: resolved, major } => {
                let Some(op) = task.fault.and_then(|fault| ops.get_mut(fault)) else { return };
                if matches!(op.kind, Some(Kind::Fault { address, .. }) if address == resolved)
                    && op.ended.is_none()
                {
                    op.ended = Some(time);
                    op.major = major;
                }
            }
            RawKind::Enter(name, args) => self.enter(thread, Op::new(time, cpu, serial, None), name, args),
            RawKind::Unread(name) => {
                self.enter(thread, Op::new(time, cpu, serial, None), name, [0; 6]);
                let pending = self.tasks.get_mut(&thread).and_then(|task| task.call.as_mut());
                pending.into_iter().for_each(|call| call.unread = true);
            }
            RawKind::Ranges(ranges) => task.ranges = Some(ranges),
            RawKind::Effective(set) => {
                let args = [set, 0, 0, 0, 0, 0];
                let returned = Returned::Value(0);
                let (name, file, transfer, beside) = (CallName::Capset, None, None, Vec::new());
                let call = Call { name, args, returned, file, transfer, beside };
                ops.push(Op::new(time, cpu, serial, Some(Kind::Call(Box::new(call)))));
            }
            RawKind::Leave(name, value) => self.leave(thread, name, value, time),
            RawKind::Lock { step, space, write } => {
                let by_fault = task.in_fault && !(write && task.call.is_some());
                let of = if by_fault { task.fault } else { task.call.as_ref().map(|call| call.op) };
                if let Some(op) = of.and_then(|op| ops.get_mut(op)) {
                    op.lock(step, space, write, time);
                }
            }
            RawKind::NewTask { thread: child, flags } => self.new_task(thread, child, flags, time, cpu),
            RawKind::Exec { .. } => {
                if let Some(op) = task.call.as_ref().and_then(|call| ops.get_mut(call.op)) {
                    op.time = time;
                    op.kind = Some(Kind::Exec { snapshot: None });
                }
            }
            RawKind::Exit { last } => {
                task.exited = true;
                let alive = self.alive.entry(process).or_insert(1);
                *alive = alive.saturating_sub(1);
                let last = last.unwrap_or(*alive == 0);
                ops.push(Op::new(time, cpu, serial, Some(Kind::Exit { last })));
            }
            RawKind::TornDown => {
                task.call.iter_mut().for_each(|call| call.commits |= is_exec(call.name));
                ops.push(Op::new(time, cpu, serial, Some(Kind::TornDown { process })));
            }
            RawKind::Signal { signal, code } => {
                // The kernel sends SIGSEGV with SI_KERNEL to a process whose execve fails after the point of
                // no return.
                let ends = (signal, code) == (libc::SIGSEGV, libc::SI_KERNEL);
                task.call.iter_mut().for_each(|call| call.commits |= ends && is_exec(call.name));
                ops.push(Op::new(time, cpu, serial, Some(Kind::Signal { signal: signal as u8, code })));
            }
            RawKind::Interrupt => {
                let of = task.call.as_ref().map(|call| call.op).or(task.fault);
                if let Some(op) = of.and_then(|op| ops.get_mut(op)) {
                    op.interrupts += 1;
                }
            }
            RawKind::Mapped(mapped) => {
                if let Some(call) = task.call.as_mut().filter(|call| maps(call.name)) {
                    call.mapped.push(*mapped);
                }
            }
            RawKind::Snapshot(index) => self.snapshot(thread, index, time),
            RawKind::Limits(limits) => ops.push(Op::new(time, cpu, serial, Some(Kind::Limits(limits)))),
            RawKind::Lost(_) => {}
        }
    }

    /// Marks the calls and faults in progress as lost, at the beginning and at the end of a loss. After a
    /// loss, the next end that is reported for a thread may belong to a later call or fault. If a thread has
    /// a call or fault in progress, its events therefore count as lost from the start of that call or fault.
    fn mark_open_operations_lost(&mut self) {
        for task in self.tasks.values_mut() {
            task.ranges = None;
            let fault = task.fault.take().filter(|_| std::mem::take(&mut task.in_fault));
            let fault = fault.filter(|fault| self.made.ops[*fault].ended.is_none());
            // An exec that succeeds has a snapshot, so its end is certain.
            let exec = task.call.take_if(|call| is_exec(call.name));
            let call =
                task.call.take().filter(|call| is_kept(call.name, &call.args) && !makes_task(call.name));
            task.call = exec.map(|exec| Pending { unread: true, ..exec });
            let call = call.map(|call| call.op).filter(|op| self.made.ops[*op].kind.is_none());
            for op in fault.into_iter().chain(call) {
                self.made.ops[op].kind = Some(Kind::Lost { events: 1 });
            }
        }
    }

    /// Gives a serial number to a new thread, in `process` or in a new process. Returns the numbers of the
    /// thread and of its process.
    fn task(&mut self, thread: i32, process: Option<u32>) -> (u32, u32) {
        self.made.tasks += 1;
        let serial = self.made.tasks;
        let process = process.unwrap_or(serial);
        *self.alive.entry(process).or_insert(0) += 1;
        self.tasks.insert(thread, Task { serial, process, ..Task::default() });
        (serial, process)
    }

    /// Handles an execve of the thread with number `before`. That thread becomes the first of its process,
    /// and gets the number `thread`.
    fn renumber(&mut self, thread: i32, before: i32) {
        if thread == before {
            return;
        }
        if let Some(by) = self.tasks.remove(&before) {
            self.tasks.insert(thread, by);
        }
    }

    /// Handles the start of a call.
    fn enter(&mut self, thread: i32, mut op: Op, name: CallName, args: [u64; 6]) {
        let Some(task) = self.tasks.get_mut(&thread) else { return };
        let pending = Pending {
            op: self.made.ops.len(),
            name,
            args,
            mapped: Vec::new(),
            unread: false,
            faulted: false,
            commits: false,
        };
        if matches!(name, CallName::Exit | CallName::ExitGroup) {
            op.kind = Some(call(&pending, Returned::Never, None));
        }
        self.made.ops.push(op);
        task.call = Some(pending);
        task.in_fault = false;
    }

    /// Handles the return of a call: sets the kind and the time of its event, or leaves the event out.
    fn leave(&mut self, thread: i32, name: CallName, value: i64, time: u64) {
        let Some(task) = self.tasks.get_mut(&thread) else { return };
        task.in_fault = false;
        let ranges = task.ranges.take();
        let serial = task.serial;
        let Some(mut pending) = task.call.take().filter(|pending| pending.name == name) else { return };
        let other = self.tasks.get(&(pending.args[0] as i32)).map(|other| other.process);
        let failed = (-4095..0).contains(&value);
        let names_process = name == CallName::Prlimit64 && pending.args[0] != 0;
        let is_elsewhere = names_process && other.is_none();
        if names_process {
            pending.args[0] = other.unwrap_or(0).into();
        }
        let op = &mut self.made.ops[pending.op];
        op.ended = Some(time);
        if op.kind.is_some() || !is_kept(name, &pending.args) {
            // The event of a new task or image was set when the task or image was created.
        } else if pending.unread {
            op.kind = (!failed).then_some(Kind::Lost { events: 1 });
        } else if name.is_of_descriptors()
            && failed
            && !(name == CallName::Fcntl && pending.args[1] as u32 == fcntl::ADD_SEALS)
        {
            // The call had no effect.
        } else if name.is_of_limits() && (failed || is_elsewhere) {
            // The call changed no recorded state.
        } else if is_exec(name) {
            // The execve takes effect after the faults that the kernel takes during the call.
            op.time = time;
            op.kind = match failed {
                false => Some(Kind::Exec { snapshot: None }),
                true if pending.commits => Some(call(&pending, Returned::Never, None)),
                true => pending.faulted.then(|| call(&pending, Returned::Error(-value as u16), None)),
            };
        } else {
            let returned =
                if failed { Returned::Error(-value as u16) } else { Returned::Value(value as u64) };
            let file = if maps(name) && !failed { self.file(&pending, value as u64) } else { None };
            let op = &mut self.made.ops[pending.op];
            op.time = op.first_write().filter(|_| !makes_task(name)).unwrap_or(op.time);
            if makes_descriptor(name) || name == CallName::Ioctl && pending.args[1] == uffdio::NEW {
                // No other task can have closed or mapped the descriptor before the call returned.
                op.time = time;
            }
            if let Some(file) = file.and_then(|file| self.made.files.get_mut(file as usize - 1)) {
                file.first = file.first.min(op.time);
            }
            op.kind = (!makes_task(name) || failed).then(|| call(&pending, returned, file));
            if let (Some(Kind::Call(call)), Some(remote)) = (&mut op.kind, ranges)
                && name == CallName::ProcessMadvise
            {
                let process = call.advises_itself().then_some(serial);
                call.transfer = Some(Box::new(Transfer { process, remote, ..Transfer::default() }));
            }
        }
    }

    /// Returns the number of the file that the call mapped at `address`. A new file gets a number.
    fn file(&mut self, pending: &Pending, address: u64) -> Option<u32> {
        let around =
            |mapped: &&Mapped| address.checked_sub(mapped.start).is_some_and(|offset| offset < mapped.len);
        let Mapped { inode, path, .. } = pending.mapped.iter().rfind(around)?;
        let next = self.files.len() as u32 + 1;
        let number = *self.files.entry((*inode, path.clone())).or_insert(next);
        if number == next {
            let device = (inode.0, inode.1);
            self.made.files.push(File { path: path.clone(), device, first: u64::MAX });
        }
        Some(number)
    }

    /// Handles the creation of a thread or process.
    fn new_task(&mut self, parent: i32, child: i32, flags: u64, time: u64, cpu: Option<u16>) {
        let Some(task) = self.tasks.get(&parent) else { return };
        let (serial, process) = (task.serial, task.process);
        let called = task.call.as_ref().filter(|call| makes_task(call.name)).map(|call| call.op);
        let (child, process) = self.task(child, (flags & CLONE_THREAD != 0).then_some(process));
        let op = called.unwrap_or_else(|| {
            self.made.ops.push(Op::new(time, cpu, serial, None));
            self.made.ops.len() - 1
        });
        let op = &mut self.made.ops[op];
        op.kind = Some(Kind::Clone { child, process, flags });
        // A fork copies the address space under the mmap lock, so the fork takes effect when the lock is
        // acquired.
        op.time = op.first_write().filter(|_| flags & CLONE_VM == 0).unwrap_or(time);
    }

    /// Handles a snapshot that was taken while `thread` was stopped.
    fn snapshot(&mut self, thread: i32, index: usize, time: u64) {
        let Some(task) = self.tasks.get(&thread) else { return };
        let snapshot = &mut self.snapshots[index];
        snapshot.process = task.process;
        let Snapshot { id, why, process, .. } = *snapshot;
        let exec = task.call.as_ref().filter(|call| why == Why::Exec && is_exec(call.name));
        if let Some(op) = exec.and_then(|call| self.made.ops.get_mut(call.op)) {
            op.time = time - 1;
            op.kind = Some(Kind::Exec { snapshot: Some(id) });
        }
        self.made.ops.push(Op::new(time, None, task.serial, Some(Kind::Snapshot { id, why, process })));
    }
}

/// Returns the event of a call.
fn call(pending: &Pending, returned: Returned, file: Option<u32>) -> Kind {
    let Pending { name, args, .. } = *pending;
    Kind::Call(Box::new(Call { name, args, returned, file, transfer: None, beside: Vec::new() }))
}

fn is_exec(name: CallName) -> bool {
    matches!(name, CallName::Execve | CallName::Execveat)
}

fn makes_task(name: CallName) -> bool {
    matches!(name, CallName::Fork | CallName::Vfork | CallName::Clone | CallName::Clone3)
}

fn maps(name: CallName) -> bool {
    matches!(name, CallName::Mmap | CallName::Shmat)
}

fn makes_descriptor(name: CallName) -> bool {
    matches!(name, CallName::MemfdCreate | CallName::Userfaultfd)
        || name.is_of_descriptors() && !matches!(name, CallName::Close | CallName::CloseRange)
}

/// Returns true if recordings contain calls with this name and these arguments.
fn is_kept(name: CallName, args: &[u64; 6]) -> bool {
    match name {
        CallName::Prctl => prctl::KEPT.contains(&args[0]),
        // The argument is an int.
        CallName::Fcntl => fcntl::KEPT.contains(&(args[1] as u32)),
        CallName::Personality => args[0] as u32 != personality::QUERY,
        _ => true,
    }
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
