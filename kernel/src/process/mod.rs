//! Processes: the state that the threads of a program share, and the tree of parents and children.
//!
//! | file | what |
//! | --- | --- |
//! | here | [`Process`], the list of all processes, [`FAMILY`] |
//! | [`clone`], [`exec`], [`exit`], [`reap`] | making processes, loading programs, ending, waiting |
//! | [`thread`] | the data of a program's thread, and its work before it returns to the program |
//! | [`signal`], [`itimers`], [`ring`] | signals, and the timers that send them |
//! | [`fault`], [`userfault`] | page faults and exceptions; userfaultfd |
//! | [`futex`] | futexes |
//! | [`trace`], [`dump`] | ptrace; core files |
//! | [`shortage`] | the end of the process with the most memory, if memory is used up |
//! | [`ids`], [`limits`], [`renew`], [`place`] | users, resource limits and their effects; the working directory |
//! | [`settings`], [`segments`], [`semaphores`] | settings of /proc/sys; System V segments and semaphores |
//! | [`status`], [`names`], [`layout`] | exit statuses; names and the layout of programs for reports |
//! | [`pidfd`], [`signalfd`] | descriptors of processes and of signals |
//! | [`observer`], [`standstill`] | events for a recording; the report of a machine that makes no progress |
//!
//! Most fields of a [`Process`] have a spin lock of their own or are atomic. Two locks are shared: [`FAMILY`]
//! orders changes of parents and children, and the lock of [`ALL`] guards the list of all processes.
//! [`FAMILY`] is taken before the locks of fields. [`signal`] has the order of the locks for signals, and
//! [`trace`] has the order of the locks for tracing. A reference to a process may be dropped in an interrupt,
//! so a process releases its memory, its files and its directory earlier, when it ends (`exit.rs`).
//!
//! A new field of [`Process`] gets its first value in `Process::first`. A field that fork copies is also set
//! in `Process::copy`, and a field that an exec resets is also set in `become_program`
//! (`calls/processes.rs`). If a field is not atomic and has no lock of its own, its comment says which lock
//! guards the field.

pub mod aging;
pub mod clone;
pub mod dump;
pub mod exec;
pub mod exit;
pub mod fault;
pub mod futex;
pub mod ids;
pub mod itimers;
pub mod layout;
pub mod limits;
pub mod names;
pub mod observer;
pub mod pidfd;
pub mod place;
pub mod reap;
pub mod renew;
pub mod ring;
pub mod segments;
pub mod semaphores;
pub mod settings;
pub mod shortage;
pub mod signal;
pub mod signalfd;
pub mod standstill;
pub mod status;
pub mod thread;
pub mod trace;
pub mod userfault;
pub mod victim;

use crate::arch::{lock::SpinLock, preempt::preempt_point};
use crate::files::access::Running;
use crate::files::table::Limit;
use crate::memory::{account::Account, stacks};
use crate::platform::Space;
use crate::process::layout::Layout;
use crate::process::signal::types::{Action, Actions, Signals};
use crate::process::{ids::Ids, itimers::Timers, limits::Limits, status::Status};
use crate::sched::charge::Charge;
use crate::sched::{Thread, wait::Key, work};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use freehold::error::Errno;
use linux_raw_sys::general::SIGKILL;

/// Bytes of kernel memory for which a process is charged, until it has been waited for: the process, its
/// actions and limits, the root of its page tables, and the kernel stack of a thread.
const COST: usize = size_of::<Process>() + size_of::<Actions>() + 4096 + stacks::STACK as usize;
/// The number of the next thread or process.
static NEXT_PID: AtomicU32 = AtomicU32::new(1);
/// Every process that no parent has waited for yet, by number.
static ALL: SpinLock<BTreeMap<u32, Arc<Process>>> = SpinLock::new(BTreeMap::new());

/// Returns all processes.
///
/// # Safety
///
/// No other CPU runs kernel code any more.
pub unsafe fn all_at_standstill() -> &'static BTreeMap<u32, Arc<Process>> {
    // SAFETY: by the caller's promise.
    unsafe { ALL.at_standstill() }
}

/// Returns an unused number for a thread or process.
pub fn new_tid() -> u32 {
    NEXT_PID.fetch_add(1, Relaxed)
}

/// The actions for signals, which processes made with CLONE_SIGHAND share.
pub type SharedActions = Arc<SpinLock<Actions>>;

/// Counters of a process, for getrusage.
#[derive(Default)]
pub struct Usage {
    /// Run time of the threads that have ended, in nanoseconds.
    pub ended_ns: AtomicU64,
    /// Run time of children that were waited for, in nanoseconds.
    pub children_ns: AtomicU64,
    /// Minor and major faults of threads that have ended.
    pub ended_faults: [AtomicU64; 2],
    /// Minor and major faults of children that were waited for.
    pub children_faults: [AtomicU64; 2],
    /// Peak of resident pages of the process's earlier programs.
    pub most_pages: AtomicU64,
    /// Highest peak of resident pages of a child that was waited for.
    pub children_most_pages: AtomicU64,
    /// Peak of resident pages of the current program, at the times when [`note_peak`](Self::note_peak) was
    /// called.
    pub peak_resident: AtomicU64,
    /// Peak of mapped pages of the current program, at the same times.
    pub peak_mapped: AtomicU64,
}

impl Usage {
    /// Updates the peaks with the current numbers of pages. Called before a system call makes the program's
    /// space smaller, and before a report.
    pub fn note_peak(&self, space: &Space) {
        self.peak_resident.fetch_max(u64::try_from(space.rss().total()).unwrap_or_default(), Relaxed);
        self.peak_mapped.fetch_max(space.counts().total_vm, Relaxed);
    }

    /// Updates the peaks for the end of a program, or for an exec, and begins with new peaks.
    pub fn program_ends(&self, space: &Space) {
        self.note_peak(space);
        self.most_pages.fetch_max(self.peak_resident.swap(0, Relaxed), Relaxed);
        self.peak_mapped.store(0, Relaxed);
    }

    /// Returns the peak of resident pages of all the process's programs.
    pub fn most_resident(&self) -> u64 {
        self.most_pages.load(Relaxed).max(self.peak_resident.load(Relaxed))
    }

    /// Adds the counters of a thread that ends.
    pub fn thread_ends(&self, thread: &Thread) {
        self.ended_ns.fetch_add(thread.ran_ns.load(Relaxed), Relaxed);
        for (sum, count) in self.ended_faults.iter().zip(&thread.faults) {
            sum.fetch_add(count.load(Relaxed), Relaxed);
        }
    }
}

/// The threads that a process traces.
#[derive(Default)]
pub struct Tracees {
    /// Tracees that have not ended, with their processes.
    pub live: Vec<(Arc<Process>, Arc<Thread>)>,
    /// Tracees whose end no wait has reported yet: the thread's number, its process, and the status.
    pub ended: Vec<(u32, Arc<Process>, Status)>,
    /// True once the tracer ends; from then on the tracer traces no more threads.
    pub is_over: bool,
}

/// A process.
pub struct Process {
    /// The number of the process.
    pub pid: u32,
    /// The parent; `None` for the first process, and once the process has no number any more ([`forget`]).
    parent: SpinLock<Option<Arc<Process>>>,
    /// The parent's number, 0 for none. Written under the lock of `parent`.
    parent_pid: AtomicU32,
    /// The children by number, including ended ones that were not waited for.
    pub children: SpinLock<BTreeMap<u32, Arc<Process>>>,
    /// The threads that the process traces.
    pub tracees: SpinLock<Tracees>,
    /// The threads that have not ended.
    pub threads: SpinLock<Vec<Arc<Thread>>>,
    /// Number of threads that still run or still have the address space. The thread that makes the number 0
    /// ends the process.
    pub unended: AtomicU32,
    /// The address space, for other processes; `None` once the last thread ends.
    pub space: SpinLock<Option<Space>>,
    /// The status with which the process ends; `None` if nothing has ended it yet. The first task that ends
    /// the process sets the status, and a core dump adds its flag.
    pub ending: SpinLock<Option<Status>>,
    /// Number of threads that wait for the end of a core dump; `None` if there is no dump.
    pub dumping: SpinLock<Option<usize>>,
    /// The exit status that the parent sees; `None` until the last thread has ended.
    pub status: SpinLock<Option<Status>>,
    /// True once the parent has waited for the process, or the process has ended without being waited for. Set
    /// under the lock of [`ALL`]. Relaxed: the flag publishes no other memory.
    is_forgotten: AtomicBool,
    /// The limit on descriptors, for the tables of the threads. [`renew`] sets it.
    pub descriptor_limit: Limit,
    /// The file of the program.
    pub exe: SpinLock<Option<Arc<Running>>>,
    /// The signal that the parent gets at the end of this process; 0 for none.
    pub exit_signal: AtomicU32,
    /// The number of the parent's thread that made this process, for __WNOTHREAD.
    pub maker: AtomicU32,
    /// True if the process has ended while its parent traced it.
    pub ended_traced: AtomicBool,
    /// The signal that this process gets at the end of its parent (PR_SET_PDEATHSIG); 0 for none.
    pub parent_signal: AtomicU32,
    /// A setting of prctl: exec grants no privileges. This field and the next two are 0 or 1.
    pub no_new_privs: AtomicU32,
    /// A setting of prctl: a signal may leave a core file of the process.
    pub is_dumpable: AtomicU32,
    /// A setting of prctl: the process adopts orphans among its descendants.
    pub is_subreaper: AtomicU32,
    /// True once the process has handed its children to an heir. Guarded by [`FAMILY`].
    pub is_childless: AtomicBool,
    /// The places of the program's parts, and its auxiliary vector.
    pub layout: SpinLock<Layout>,
    /// The commands of membarrier for which the process has registered.
    pub barriers: AtomicU64,
    /// The setting of personality(2).
    pub personality: AtomicU32,
    /// The actions that `rt_sigaction` sets.
    actions: SpinLock<SharedActions>,
    /// Pending signals and job control. The lock also guards parts of the threads: see [`signal`].
    pub signals: SpinLock<Signals>,
    /// Number of signals that were sent to the process and its threads. Relaxed: only epoll compares it.
    pub signals_sent: AtomicU64,
    /// The number of the process group, which is the number of the group's first process.
    pub group: AtomicU32,
    /// The number of the session, which is the number of the session's first process.
    pub session: AtomicU32,
    /// The users and groups.
    pub ids: SpinLock<Ids>,
    /// The resource limits.
    pub limits: SpinLock<Limits>,
    /// True if the end of the process may have to undo changes of semaphores.
    pub has_undo: AtomicBool,
    /// The timers that send signals.
    pub timers: SpinLock<Timers>,
    /// Counters for getrusage.
    pub usage: Usage,
    /// Number of programs that the process has executed. Changed under the lock of `space`, together with the
    /// space. If the number is not 0, the parent may no longer change the group of this process.
    pub programs: AtomicU32,
    /// The nice value, -20 to 19, plus 20.
    pub nice: AtomicU32,
    /// oom_score_adj: see [`shortage`].
    pub oom_score: AtomicI64,
    /// The kernel's memory that the process has caused.
    pub account: Arc<Account>,
    /// The charge for the process itself, to the process that made it.
    _charge: Charge,
    /// The program's path, for reports.
    pub name: SpinLock<Vec<u8>>,
}

impl Process {
    /// Makes a process without threads, and adds it to the list of processes.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn new(pid: u32, parent: Option<&Arc<Process>>) -> Result<Arc<Process>, Errno> {
        let process = Arc::new(match parent {
            Some(parent) => parent.copy(pid)?,
            None => Self::first(pid),
        });
        ALL.lock().insert(pid, process.clone());
        Ok(process)
    }

    /// Makes the first process, which has no parent. [`copy`](Self::copy) takes the fields that fork does not
    /// copy from the result of this function.
    fn first(pid: u32) -> Self {
        Process {
            pid,
            parent: SpinLock::new(None),
            parent_pid: AtomicU32::new(0),
            children: SpinLock::new(BTreeMap::new()),
            tracees: SpinLock::new(Tracees::default()),
            threads: SpinLock::new(Vec::new()),
            unended: AtomicU32::new(0),
            space: SpinLock::new(None),
            ending: SpinLock::new(None),
            dumping: SpinLock::new(None),
            status: SpinLock::new(None),
            is_forgotten: AtomicBool::new(false),
            descriptor_limit: Arc::new(AtomicUsize::new(usize::MAX)),
            exe: SpinLock::new(None),
            exit_signal: AtomicU32::new(17),
            maker: AtomicU32::new(0),
            ended_traced: AtomicBool::new(false),
            parent_signal: AtomicU32::new(0),
            no_new_privs: AtomicU32::new(0),
            is_dumpable: AtomicU32::new(1),
            is_subreaper: AtomicU32::new(0),
            is_childless: AtomicBool::new(false),
            layout: SpinLock::new(Layout::default()),
            barriers: AtomicU64::new(0),
            personality: AtomicU32::new(0),
            actions: SpinLock::new(Arc::new(SpinLock::new([Action::default(); 65]))),
            signals: SpinLock::new(Signals::default()),
            signals_sent: AtomicU64::new(0),
            group: AtomicU32::new(pid),
            session: AtomicU32::new(pid),
            ids: SpinLock::new(Ids::default()),
            limits: SpinLock::new(Limits::first()),
            has_undo: AtomicBool::new(false),
            timers: SpinLock::new(Timers::default()),
            usage: Usage::default(),
            programs: AtomicU32::new(0),
            nice: AtomicU32::new(20),
            oom_score: AtomicI64::new(0),
            account: Arc::default(),
            _charge: Charge::new(COST),
            name: SpinLock::new(Vec::new()),
        }
    }

    /// Makes a copy of the process, as fork does.
    fn copy(self: &Arc<Self>, pid: u32) -> Result<Self, Errno> {
        let actions = *self.actions().lock();
        Ok(Process {
            parent: SpinLock::new(Some(self.clone())),
            parent_pid: AtomicU32::new(self.pid),
            descriptor_limit: Arc::new(AtomicUsize::new(self.descriptor_limit.load(Relaxed))),
            exe: SpinLock::new(self.exe.lock().clone()),
            no_new_privs: AtomicU32::new(self.no_new_privs.load(Relaxed)),
            is_dumpable: AtomicU32::new(self.is_dumpable.load(Relaxed)),
            layout: SpinLock::new(self.layout.lock().clone()),
            barriers: AtomicU64::new(self.barriers.load(Relaxed)),
            personality: AtomicU32::new(self.personality.load(Relaxed)),
            actions: SpinLock::new(Arc::new(SpinLock::new(actions))),
            group: AtomicU32::new(self.group.load(Relaxed)),
            session: AtomicU32::new(self.session.load(Relaxed)),
            ids: SpinLock::new(*self.ids.lock()),
            limits: SpinLock::new(self.limits.lock().clone()),
            nice: AtomicU32::new(self.nice.load(Relaxed)),
            oom_score: AtomicI64::new(self.oom_score.load(Relaxed)),
            name: SpinLock::new(self.name.lock().clone()),
            ..Self::first(pid)
        })
    }

    /// Makes every thread of the process end when it next checks its pending work. If several calls end the
    /// process, the status of the first call counts. During a core dump all other threads already end, and
    /// only SIGKILL stops the thread that dumps.
    pub fn end(&self, status: Status) {
        if self.dumping.lock().is_some() && status != Status::by_signal(SIGKILL as u8) {
            return;
        }
        self.ending.lock().get_or_insert(status);
        self.end_threads();
    }

    /// Makes every thread of the process, which has to end, end when it next checks its pending work.
    pub fn end_threads(&self) {
        for thread in self.threads.lock().iter() {
            thread.give_work(work::KILL);
        }
    }

    /// Returns the key that is woken when the process leaves the space of its parent.
    pub fn vfork_key(&self) -> Key {
        Key::kernel(&raw const self.space as u64)
    }

    /// Adds a thread. Signals and other processes can find the thread from now on.
    pub fn add(&self, thread: Arc<Thread>) {
        self.unended.fetch_add(1, Relaxed);
        self.threads.lock().push(thread);
    }

    /// Returns the thread with this number, if it has not ended.
    pub fn thread(&self, tid: u32) -> Option<Arc<Thread>> {
        self.threads.lock().iter().find(|thread| thread.tid() == tid).cloned()
    }

    /// Returns true once the parent has waited for the process: the process has no number any more.
    pub fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Relaxed)
    }

    /// Returns true if the number belongs to a thread of the process. The first thread keeps its number after its
    /// end, until the parent has waited for the process.
    pub fn has_thread(&self, tid: u32) -> bool {
        if tid == self.pid { !self.is_forgotten() } else { self.thread(tid).is_some() }
    }

    /// Returns the numbers of the threads, as [`has_thread`](Self::has_thread) counts them. The first number is
    /// that of the process.
    pub fn tids(&self) -> Vec<u32> {
        let threads = self.threads.lock();
        let others = threads.iter().map(|thread| thread.tid()).filter(|tid| *tid != self.pid);
        let first = (!self.is_forgotten()).then_some(self.pid);
        first.into_iter().chain(others).collect()
    }

    /// Returns the number of the threads that [`tids`](Self::tids) lists.
    pub fn thread_count(&self) -> usize {
        let threads = self.threads.lock();
        let others = threads.iter().filter(|thread| thread.tid() != self.pid).count();
        others + usize::from(!self.is_forgotten())
    }

    /// Returns the parent's number, or 0.
    pub fn parent_pid(&self) -> u32 {
        self.parent_pid.load(Relaxed)
    }

    /// Returns the parent.
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.parent.lock().clone()
    }

    /// Changes the parent. The caller holds [`FAMILY`].
    pub fn set_parent(&self, parent: Arc<Process>) {
        let mut place = self.parent.lock();
        self.parent_pid.store(parent.pid, Relaxed);
        let before = place.replace(parent);
        drop(place);
        drop(before);
    }

    /// Returns the actions for signals, which other processes may share.
    pub fn actions(&self) -> SharedActions {
        self.actions.lock().clone()
    }

    /// Makes the process share these actions.
    pub fn share_actions(&self, with: SharedActions) {
        let before = core::mem::replace(&mut *self.actions.lock(), with);
        drop(before);
    }

    /// Returns the action for a signal.
    pub fn action(&self, signal: u32) -> Action {
        self.actions().lock()[signal as usize]
    }

    /// Returns the run time of all threads, in nanoseconds.
    pub fn ran_ns(&self) -> u64 {
        let now: u64 = self.threads.lock().iter().map(|thread| thread.ran_ns.load(Relaxed)).sum();
        now + self.usage.ended_ns.load(Relaxed)
    }

    /// Returns the minor and major faults of all threads.
    pub fn faults(&self) -> [u64; 2] {
        let threads = self.threads.lock();
        core::array::from_fn(|kind| {
            let now: u64 = threads.iter().map(|thread| thread.faults[kind].load(Relaxed)).sum();
            now + self.usage.ended_faults[kind].load(Relaxed)
        })
    }

    /// Returns the key that is woken when a thread ends.
    pub fn thread_key(&self) -> Key {
        Key::kernel(&raw const self.threads as u64)
    }

    /// Returns the key that is woken when the process has ended.
    pub fn end_key(&self) -> Key {
        Key::kernel(&raw const self.status as u64)
    }

    /// Returns the key that is woken when a signal was sent to the process or to one of its threads.
    pub fn signal_key(&self) -> Key {
        Key::kernel(self.signals_sent.as_ptr() as u64)
    }

    /// Returns the key on which the process sleeps while it waits for children.
    pub fn child_key(&self) -> Key {
        Key::kernel(&raw const self.children as u64)
    }
}

/// Returns the process with this number.
pub fn find(pid: u32) -> Option<Arc<Process>> {
    ALL.lock().get(&pid).cloned()
}

/// Returns the number of all processes, including ended ones that were not waited for.
pub fn count() -> usize {
    ALL.lock().len()
}

/// Returns all processes by number, including ended ones that were not waited for. Processes that are made
/// during the iteration are not returned. No lock is held between two elements.
pub fn all() -> impl Iterator<Item = Arc<Process>> {
    let end = NEXT_PID.load(Relaxed);
    all_and_new().take_while(move |process| process.pid < end)
}

/// Returns all processes in the order of their numbers, also those that are made during the iteration. The
/// number of a process is larger than its parent's, so a signal to a group reaches the parent first. Each element
/// is a preemption point.
pub fn all_and_new() -> impl Iterator<Item = Arc<Process>> {
    let mut from = 0;
    core::iter::from_fn(move || {
        preempt_point();
        let all = ALL.lock();
        let (pid, process) = all.range(from..).next()?;
        from = pid + 1;
        Some(process.clone())
    })
}

/// Returns the thread with this number, and its process.
pub fn find_thread(tid: u32) -> Option<(Arc<Process>, Arc<Thread>)> {
    let in_process = |process: Arc<Process>| {
        let found = process.threads.lock().iter().find(|thread| thread.tid() == tid).cloned();
        found.map(|thread| (process, thread))
    };
    find(tid).and_then(in_process).or_else(|| all().find_map(in_process))
}

/// Returns the thread with this number, and its process. The thread is `None` if it is a first thread that has
/// ended and whose process has not been waited for.
pub fn find_task(tid: u32) -> Option<(Arc<Process>, Option<Arc<Thread>>)> {
    match find_thread(tid) {
        Some((process, thread)) => Some((process, Some(thread))),
        None => find(tid).map(|process| (process, None)),
    }
}

/// Returns the process of the thread with this number. The first thread of a process keeps its number after its
/// end, until the parent has waited for the process.
pub fn of_thread(tid: u32) -> Option<Arc<Process>> {
    find(tid).or_else(|| find_thread(tid).map(|(process, _)| process))
}

/// Returns the numbers of all processes.
pub fn pids() -> Vec<u32> {
    ALL.lock().keys().copied().collect()
}

/// Removes a process from the list of processes. Its number is not used again. The process gives up its parent:
/// a pidfd or a file of /proc that keeps the process would otherwise keep all its ancestors, and the drop of a
/// long chain would need more than a kernel stack. The caller holds a reference to the parent.
pub fn forget(pid: u32) {
    let mut all = ALL.lock();
    let gone = all.remove(&pid);
    if let Some(process) = &gone {
        process.is_forgotten.store(true, Relaxed);
    }
    drop(all);
    let parent = gone.as_ref().and_then(|process| process.parent.lock().take());
    drop((parent, gone));
}

/// Guards the relation of parents and children. Held while a process gets a parent, notifies its parent of
/// its end, or hands its children to an heir.
pub static FAMILY: SpinLock<()> = SpinLock::new(());

/// Returns the process that inherits the children of an ending process: the nearest ancestor that is a
/// subreaper, or the first process. The caller holds [`FAMILY`].
pub fn heir_of(process: &Process) -> Option<Arc<Process>> {
    let mut above = process.parent();
    while let Some(next) = above {
        if next.is_subreaper.load(Relaxed) != 0 && !next.is_childless.load(Relaxed) {
            return Some(next);
        }
        above = next.parent();
    }
    find(1)
}
