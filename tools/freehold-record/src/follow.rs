//! Follows the command and all it forks, and takes snapshots while a process stands still.
//!
//! A thread is followed until it is about to exit, and is then let go: a parent that waits for its child
//! finds it as soon as it is gone, and not later, when the recorder has waited for it.

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

/// A snapshot, and which thread stood still for it.
#[derive(Debug)]
pub struct Taken {
    /// By the kernel's number.
    pub thread: i32,
    /// Number of the process still unknown.
    pub snapshot: Snapshot,
    /// Its process's resource limits, after an exec.
    pub limits: Option<Limits>,
}

/// What was found on the way.
#[derive(Debug, Default)]
pub struct Followed {
    /// In the order of time.
    pub snapshots: Vec<Taken>,
    /// When everything stood still for snapshots: from, for so many nanoseconds.
    pub frozen: Vec<(u64, u64)>,
    /// The command's exit status, as a shell would show it.
    pub status: u8,
    /// Snapshots that could not be taken, and why the first could not.
    pub failed: Option<(u64, String)>,
    /// What was mounted meanwhile.
    pub mounts: Mounts,
}

/// How often everything is stopped for snapshots, and how many times at most.
#[derive(Clone, Copy, Debug)]
pub struct Freezes {
    /// So long between two.
    pub every: Duration,
    /// So many.
    pub most: u32,
}

/// How long the threads get to stand still.
const PATIENCE: u64 = 100_000_000;
/// How long processes get to exit once they have begun to.
const EXITS_IN: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Thread {
    process: i32,
    standing: bool,
}

struct Follower {
    root: i32,
    /// The command's own process has been waited for.
    root_gone: bool,
    /// Those that are followed.
    threads: BTreeMap<i32, Thread>,
    /// Processes that were let go and may still exit.
    exiting: Vec<OwnedFd>,
    again: Again,
    /// Everybody is to stand still: nobody is let go on.
    freezing: bool,
    /// Somebody has asked for the end of it all.
    ending: bool,
    found: Followed,
}

/// Follows `root`, which was seized, to the end of everything it forked. `again`: for a program that changes
/// its credentials.
///
/// # Errors
///
/// Those of waitpid(2).
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
            Err(error) => return Err(error).context("the command cannot be followed"),
        }
        let time = now();
        if left > 0 && time >= next {
            follower.freeze();
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
    fn add(&mut self, thread: i32) {
        let new = || Thread { process: process_of(thread).unwrap_or(thread), standing: false };
        self.threads.entry(thread).or_insert_with(new);
    }

    /// Waits until something happens, or for so long. A signal that asks for the end is passed on to the
    /// command; a second one has all killed.
    fn pause(&mut self, most: Duration) {
        let Some(signal) = tracee::pause(most) else { return };
        match self.ending {
            false if !self.root_gone => tracee::tell(self.root, signal),
            false => self.threads.values().for_each(|thread| tracee::tell(thread.process, signal)),
            true => self.threads.values().for_each(|thread| tracee::tell(thread.process, libc::SIGKILL)),
        }
        self.ending = true;
    }

    /// Takes note of one thing that happened. No: nothing has.
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
                // Another thread than the first may have called execve; it has the first one's number now.
                if before != thread {
                    self.threads.remove(&before);
                }
                self.threads.insert(thread, Thread { process: thread, standing: false });
                if proc::is_privileged(thread)
                    && let Err(error) = self.again.begin(thread)
                {
                    self.fails(&error.context(
                        "a program with other credentials is recorded without the ends of its faults",
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
                // Any stop makes the kernel forget that another one was asked for.
                if self.freezing {
                    tracee::interrupt(thread);
                }
            }
        }
        Ok(true)
    }

    /// A thread is about to exit. As the last of its process it leaves a snapshot.
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

    fn stands(&mut self, thread: i32) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.standing = true;
        }
    }

    /// Threads of a process that do not exit.
    fn alive(&self, process: i32) -> u32 {
        self.threads.values().filter(|thread| thread.process == process).count() as u32
    }

    /// Takes a snapshot of `process`, of which `thread` stands still.
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

    fn fails(&mut self, error: &anyhow::Error) {
        self.found.failed.get_or_insert_with(|| (0, format!("{error:#}"))).0 += 1;
    }

    /// Stops everybody, takes a snapshot of each process, and lets all go on. Without a snapshot when
    /// somebody does not stop soon: a task that waits in the kernel for its vfork child, say.
    fn freeze(&mut self) {
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
            last.into_iter().for_each(|(process, thread)| self.take(Why::Freeze, process, thread));
            self.found.frozen.push((from, now() - from));
        }
        self.freezing = false;
        // A thread that stands still with its whole process takes no notice.
        self.threads.iter().filter(|(_, thread)| thread.standing).for_each(|(id, _)| tracee::go_on(*id, 0));
    }
}

/// The process of a thread; nothing when it is gone.
fn process_of(thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Whether a process is gone, so that its parent can wait for it.
fn is_gone(process: &OwnedFd) -> bool {
    ends_within(process, &Timespec { tv_sec: 0, tv_nsec: 0 })
}

fn wait_for(process: &OwnedFd, until: u64) {
    let left = until.saturating_sub(now());
    let time = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
    // One that hangs is not waited for: what is recorded of it is.
    let _ = ends_within(process, &time);
}

fn ends_within(process: &OwnedFd, time: &Timespec) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(time)).is_ok_and(|ready| ready > 0)
}
