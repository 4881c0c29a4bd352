//! Follows the command and its descendants with ptrace, and takes snapshots while a process is stopped.
//!
//! `lib.rs` calls [`follow`], which returns when all followed processes have ended. `tracee.rs` has the
//! ptrace calls, `proc.rs` reads a snapshot. A process is stopped for a snapshot at each exec and exit; at
//! intervals all processes are stopped at once (a *freeze*). A thread is *standing* while it is stopped in a
//! freeze, or with its whole process (SIGSTOP).
//!
//! The recorder stops following a thread when the thread is about to exit. A parent that waits for its child
//! is therefore notified as soon as the child has ended, and not only after the recorder has waited for the
//! child. The recorder must never wait for a process without a time limit, or the command hangs.
//! `freehold-cli/tests/record.rs` tests this with real programs. A new kind of stop needs a variant of
//! [`Stop`] (`tracee.rs`) and an arm in `Follower::one`.

use super::mounts::Mounts;
use super::perf::Again;
use super::proc;
use super::tracee::{self, Stop, now};
use anyhow::Context;
use freehold_trace::{Limits, Snapshot, Why};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A snapshot, and the thread that was stopped for it.
#[derive(Debug)]
pub struct Taken {
    /// The kernel's number of the thread.
    pub thread: i32,
    /// The snapshot. Its process has no serial number yet.
    pub snapshot: Snapshot,
    /// The resource limits of its process. Only read after an exec.
    pub limits: Option<Limits>,
}

/// The results of following a command.
#[derive(Debug, Default)]
pub struct Followed {
    /// The snapshots, ordered by time.
    pub snapshots: Vec<Taken>,
    /// The periods in which all processes were stopped for snapshots: start, and duration in nanoseconds.
    pub frozen: Vec<(u64, u64)>,
    /// The command's exit status, as a shell would show it.
    pub status: u8,
    /// Number of snapshots that could not be taken, and the reason of the first failure.
    pub failed: Option<(u64, String)>,
    /// The mounts that the recorded processes have seen.
    pub mounts: Mounts,
}

/// The interval at which all processes are stopped for snapshots, and the maximum number of such stops.
#[derive(Clone, Copy, Debug)]
pub struct Freezes {
    /// Interval between two stops.
    pub every: Duration,
    /// Maximum number of stops.
    pub most: u32,
    /// True if the accessed bits are cleared at each stop, so that the next snapshot shows which part of each
    /// VMA was accessed in between.
    pub samples: bool,
}

/// Time limit for all threads to stop, in nanoseconds.
const PATIENCE: u64 = 100_000_000;
/// Maximum time in nanoseconds from the beginning of a process's exit to its end.
const EXITS_IN: u64 = 10_000_000_000;

/// A followed thread.
#[derive(Clone, Copy, Debug)]
struct Thread {
    /// The kernel's number of its process.
    process: i32,
    /// True if the thread is stopped for a freeze, or with its whole process.
    standing: bool,
}

/// The state of [`follow`].
struct Follower {
    /// The process of the command.
    root: i32,
    /// True if the command's own process has been waited for.
    root_gone: bool,
    /// The threads that are followed, each under its number in the kernel.
    threads: BTreeMap<i32, Thread>,
    /// Processes that are not followed any more and may not have exited yet.
    exiting: Vec<OwnedFd>,
    again: Again,
    /// True while all threads must stop: no thread is resumed.
    freezing: bool,
    /// True if a signal has requested the end of the recording.
    ending: bool,
    /// The results so far.
    found: Followed,
}

/// Follows `root` and its descendants until all have ended. [`tracee::seize`] must have attached to `root`.
/// If a program changes its credentials, the kernel closes its perf events, and `again` opens them again.
///
/// # Errors
///
/// Fails with the errors of waitpid(2).
pub fn follow(root: i32, freezes: Freezes, again: Again) -> anyhow::Result<Followed> {
    let mut follower = Follower {
        root,
        root_gone: false,
        threads: BTreeMap::new(),
        exiting: Vec::new(),
        again,
        freezing: false,
        ending: false,
        found: Followed::default(),
    };
    follower.add(root);
    let mut left = freezes.most;
    let mut next = now() + nanoseconds(freezes.every);
    while !(follower.root_gone && follower.threads.is_empty()) {
        match follower.one() {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("cannot follow the command"),
        }
        let time = now();
        if left > 0 && time >= next {
            follower.freeze(freezes.samples);
            left -= 1;
            next = now() + nanoseconds(freezes.every);
            continue;
        }
        let wait = if left > 0 { next - time } else { u64::MAX };
        follower.pause(Duration::from_nanos(wait).min(Duration::from_secs(1)));
    }
    let until = now() + EXITS_IN;
    follower.exiting.iter().for_each(|process| wait_for(process, until));
    Ok(follower.found)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

impl Follower {
    /// Adds a thread, unless it is already followed.
    fn add(&mut self, thread: i32) {
        let new = || Thread { process: process_of(thread).unwrap_or(thread), standing: false };
        self.threads.entry(thread).or_insert_with(new);
    }

    /// Waits for an event, for at most the time `most`. Forwards a signal that requests the end of the
    /// recording to the command. At a second such signal, kills all processes.
    fn pause(&mut self, most: Duration) {
        let Some(signal) = tracee::pause(most) else { return };
        match self.ending {
            false if !self.root_gone => tracee::tell(self.root, signal),
            false => self.threads.values().for_each(|thread| tracee::tell(thread.process, signal)),
            true => self.threads.values().for_each(|thread| tracee::tell(thread.process, libc::SIGKILL)),
        }
        self.ending = true;
    }

    /// Handles one stop or end of a thread. Returns false if there is none.
    fn one(&mut self) -> io::Result<bool> {
        let Some((thread, stop)) = tracee::next()? else { return Ok(false) };
        if let Stop::Gone(status) = stop {
            if thread == self.root {
                self.found.status = status;
                self.root_gone = true;
            }
            self.threads.remove(&thread);
            return Ok(true);
        }
        self.add(thread);
        match stop {
            Stop::Exec(before) => {
                // A thread other than the first may have called execve. That thread now has the number of the
                // first thread.
                if before != thread {
                    self.threads.remove(&before);
                }
                self.threads.insert(thread, Thread { process: thread, standing: false });
                if proc::is_privileged(thread)
                    && let Err(error) = self.again.begin(thread)
                {
                    self.fails(&error.context(
                        "the ends of faults are not recorded for a program with changed credentials",
                    ));
                }
                self.take(Why::Exec, thread, thread);
            }
            Stop::Exits => {
                self.exits(thread);
                return Ok(true);
            }
            Stop::Made(child) if child != 0 => self.add(child),
            _ => {}
        }
        match stop {
            Stop::Group => {
                tracee::leave_standing(thread);
                self.stands(thread);
            }
            Stop::Trap if self.freezing => self.stands(thread),
            _ => {
                tracee::go_on(thread, if let Stop::Signal(signal) = stop { signal } else { 0 });
                // Any stop makes the kernel forget a pending request to stop.
                if self.freezing {
                    tracee::interrupt(thread);
                }
            }
        }
        Ok(true)
    }

    /// Handles a thread that is about to exit. Takes a snapshot if the thread is the last of its process.
    fn exits(&mut self, thread: i32) {
        let Some(Thread { process, .. }) = self.threads.remove(&thread) else { return };
        if self.alive(process) == 0 {
            self.take(Why::Exit, process, thread);
            self.exiting.retain(|process| !is_gone(process));
            let process = Pid::from_raw(process).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            self.exiting.extend(process);
        }
        tracee::release(thread);
    }

    /// Notes that a thread is stopped.
    fn stands(&mut self, thread: i32) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.standing = true;
        }
    }

    /// Returns the number of threads of a process that are not exiting.
    fn alive(&self, process: i32) -> u32 {
        self.threads.values().filter(|thread| thread.process == process).count() as u32
    }

    /// Takes a snapshot of `process`. Its thread `thread` is stopped.
    fn take(&mut self, why: Why, process: i32, thread: i32) {
        let from = now();
        self.found.mounts.note(process);
        match proc::snapshot(process, thread, why) {
            Ok(mut snapshot) => {
                snapshot.id = self.found.snapshots.len() as u32;
                snapshot.taken = (from, now());
                snapshot.threads = self.alive(process);
                let limits = if why == Why::Exec { proc::limits_of(process).ok() } else { None };
                self.found.snapshots.push(Taken { thread, snapshot, limits });
            }
            Err(error) => self.fails(&error),
        }
    }

    /// Counts a failure. Only the first reason is kept.
    fn fails(&mut self, error: &anyhow::Error) {
        self.found.failed.get_or_insert_with(|| (0, format!("{error:#}"))).0 += 1;
    }

    /// Stops all threads, takes a snapshot of each process, and resumes all threads. If `samples`, also
    /// clears the accessed bits of each process. Takes no snapshots if a thread does not stop in time, for
    /// example because it waits in the kernel for its vfork child.
    fn freeze(&mut self, samples: bool) {
        let from = now();
        self.threads.values_mut().for_each(|thread| thread.standing = false);
        self.freezing = true;
        let all: Vec<i32> = self.threads.keys().copied().collect();
        all.iter().for_each(|thread| tracee::interrupt(*thread));
        let standing = loop {
            match self.one() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => break false,
            }
            if self.threads.values().all(|thread| thread.standing) {
                break true;
            }
            if now() > from + PATIENCE {
                break false;
            }
            self.pause(Duration::from_micros(200));
        };
        if standing {
            let mut last = BTreeMap::new();
            self.threads.iter().for_each(|(id, thread)| {
                last.entry(thread.process).or_insert(*id);
            });
            for (process, thread) in last {
                self.take(Why::Freeze, process, thread);
                if samples && let Err(error) = proc::clear_accessed(process) {
                    self.fails(&error);
                }
            }
            self.found.frozen.push((from, now() - from));
        }
        self.freezing = false;
        // A thread that is stopped with its whole process (SIGSTOP) stays stopped: the call has no effect on
        // it.
        self.threads.iter().filter(|(_, thread)| thread.standing).for_each(|(id, _)| tracee::go_on(*id, 0));
    }
}

/// Returns the process of a thread, or `None` if the thread has ended.
fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Returns true if a process has ended, so that its parent can wait for it.
fn is_gone(process: &OwnedFd) -> bool {
    ends_within(process, &Timespec { tv_sec: 0, tv_nsec: 0 })
}

/// Waits for the end of a process until the time `until`.
fn wait_for(process: &OwnedFd, until: u64) {
    let left = until.saturating_sub(now());
    let time = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
    // The result is ignored: the events of a process that has not ended by then are valid too.
    let _ = ends_within(process, &time);
}

/// Returns true if a process ends within `time`.
fn ends_within(process: &OwnedFd, time: &Timespec) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(time)).is_ok_and(|ready| ready > 0)
}
