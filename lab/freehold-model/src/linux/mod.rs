//! The running kernel as a subject ([`Subject`]): every process of a run is a child process that executes
//! calls on command.
//!
//! A *template* process is prepared once: its privileges are dropped, its heap is moved into the arena, and
//! huge pages are switched off. One inaccessible shared mapping fills all addresses outside the arena, so
//! that the addresses that the kernel chooses are determined. Each run begins with a fork of the template.
//! This file is the parent: it sends batches of calls to the child through shared memory (`wire.rs`), and
//! reads `smaps` and `status` of the child (`smaps.rs`, `query.rs`). The child executes the calls
//! (`child.rs`). A call that could leave the arena would destroy the child or this program, so only calls
//! that `escape.rs` permits may be sent. [`Linux::new`] fails where the environment forbids a step, and the
//! tests then end early. A new call gets an arm in `command`, or in `special` if the parent takes part. A
//! call that returns bytes also gets arms in `room` and `outcome`.
#![expect(unsafe_code, reason = "raw process creation and memory shared with the children")]

mod child;
mod instructions;
mod query;
mod smaps;
mod wire;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::model::MAX_PROCS;
use crate::op::*;
use crate::world::{GuardMark, Quirks, World};
use wire::{Answer, BATCH, BYTES, Channel, Cmd};

/// The setup of the processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// True if the processes may lock without limit.
    pub may_lock: bool,
    /// Fills the addresses outside the arena with small mappings until only this many more mappings are
    /// allowed. `maps` then reports only protection and sharing, because reading all flags of so many
    /// mappings takes too long.
    pub room: Option<u64>,
    /// The middle of the arena, for calls that request addresses in other ranges. Only for a program without
    /// address randomisation.
    pub around: Option<u64>,
}

/// Returns true if the kernel searches upwards for free addresses in this program and its children. Fails if
/// the layout is randomised.
fn goes_upwards() -> Result<bool, String> {
    // SAFETY: the call takes no pointer, and this number changes nothing.
    let persona = unsafe { libc::personality(0xffff_ffff) };
    match persona & libc::ADDR_NO_RANDOMIZE {
        0 => Err("this program's layout is randomised".into()),
        _ => Ok(persona & libc::ADDR_COMPAT_LAYOUT != 0),
    }
}

/// The kernel that this program runs on.
pub struct Linux {
    world: World,
    channels: *mut Channel,
    template: i32,
    /// Process ids by index; `None` after an exit.
    procs: Vec<Option<i32>>,
    text: Vec<u8>,
    options: Options,
}

/// Index of the template's channel.
const TEMPLATE: usize = MAX_PROCS;

impl Linux {
    /// Prepares a template. Fails with a message that names the step that the environment forbids.
    pub fn new(options: Options) -> Result<Linux, String> {
        let len = size_of::<Channel>() * (MAX_PROCS + 1);
        // SAFETY: the call creates a new mapping. Zeroes are a valid `Channel`.
        let at = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, rw, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err("no shared memory".into());
        }
        let channels = at.cast::<Channel>();
        let mut world = World { may_lock: options.may_lock, ..World::bare() };
        if let Some(middle) = options.around {
            world = world.with_layout(goes_upwards()?).around(middle);
        }
        // SAFETY: the child runs only `child::run`, which neither allocates nor returns.
        let template = unsafe {
            let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                child::run(channels, TEMPLATE);
            }
            pid as i32
        };
        if template < 0 {
            return Err("cannot fork".into());
        }
        let mut linux = Linux { world, channels, template, procs: Vec::new(), text: Vec::new(), options };
        linux.prepare()?;
        Ok(linux)
    }

    /// Sets how a comparison treats the kernel's quirks. The kernel itself always has its quirks.
    pub fn treat_quirks(&mut self, quirks: Quirks) {
        self.world.quirks = quirks;
    }

    /// Prepares the template, and measures the world of its children.
    fn prepare(&mut self) -> Result<(), String> {
        let w = self.world.clone();
        let setup =
            Cmd { what: child::SETUP, args: [w.heap, w.may_lock as u64, w.task_size + PAGE, 0, 0, 0] };
        let done = self.template_call(setup)?;
        if done != 0 {
            return Err(format!("preparing the child failed with errno {}", -done));
        }
        for (start, end) in smaps::gaps(self.template, &w)? {
            let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
            let fd = child::FILLER_FD as u64;
            let fill = Cmd { what: libc::SYS_mmap as u64, args: [start, end - start, 0, flags, fd, start] };
            let done = self.template_call(fill)?;
            if done != start as i64 {
                return Err(format!("filling {start:#x}..{end:#x} failed with errno {}", -done));
            }
        }
        if let Some(room) = self.options.room {
            self.crowd(room)?;
        }
        self.start()?;
        let pid = self.procs[0].expect("just started");
        let (count, lockable) = smaps::outside(pid)?;
        self.world.outside = count;
        self.world.outside_lockable = lockable;
        self.probe_guards();
        self.probe_seals();
        self.start()
    }

    /// Maps pages with alternating protections far outside the arena until the limit is near.
    fn crowd(&mut self, room: u64) -> Result<(), String> {
        let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").map_err(|e| e.to_string())?;
        let limit: u64 = limit.trim().parse().map_err(|_| "max_map_count is not a number")?;
        if limit > 200_000 {
            return Err(format!("max_map_count is {limit}: too many mappings to create"));
        }
        self.world.max_map_count = limit;
        let have = smaps::outside(self.template)?.0.map_count as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
        let pages = limit - have - room;
        let base = self.world.start + (16 << 30);
        let map = |at: u64, len: u64, prot: u64| Cmd {
            what: libc::SYS_mmap as u64,
            args: [base + at * PAGE, len * PAGE, prot, flags, u64::MAX, 0],
        };
        // The first mapping splits the filler and therefore adds two mappings. Afterwards every second page
        // becomes readable.
        let pages = pages - 1;
        let mut cmds = vec![map(0, pages, 0)];
        cmds.extend((1..pages).step_by(2).map(|at| map(at, 1, 1)));
        for chunk in cmds.chunks(BATCH) {
            let answers = self.batch(TEMPLATE, chunk, &mut Vec::new()).ok_or("the child died")?;
            if let Some(bad) = answers.iter().find(|a| a.value < 0) {
                return Err(format!("cannot create mappings: errno {}", -bad.value));
            }
        }
        Ok(())
    }

    /// Installs a guard and reads how the kernel marks its VMA.
    fn probe_guards(&mut self) {
        let (addr, len) = (self.world.start, PAGE);
        let op = |call| Op { proc: 0, call };
        self.apply(&op(Call::Mmap { addr, len, prot: 3, flags: 0x32, file: None, off: 0 }));
        self.apply(&op(Call::Madvise { addr, len, advice: 102 }));
        let pid = self.pid(0);
        let maps = smaps::arena(pid, &self.world, &mut self.text);
        if maps.iter().any(|m| m.flags & vmflag::MAYBE_GUARD != 0) {
            return;
        }
        self.world.guards = GuardMark::AnonVma;
    }

    /// Checks whether the kernel supports mseal, PR_SET_MDWE and PR_SET_MEMORY_MERGE, with calls that change
    /// nothing.
    fn probe_seals(&mut self) {
        let (addr, len) = (self.world.start, 0);
        let calls =
            [Call::Mseal { addr, len, flags: 0 }, Call::SetMdwe { bits: 0 }, Call::SetMerge { on: 0 }];
        self.world.seals = calls.into_iter().all(|call| self.apply(&Op { proc: 0, call }) == Outcome::Ok(0));
    }

    /// Kills the processes of the last run, and starts the first process of a new run.
    fn start(&mut self) -> Result<(), String> {
        for pid in self.procs.drain(..).flatten() {
            // SAFETY: the number is that of a process of this subject, which shares only the channels with
            // this program. If the process has ended, the call fails.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let pid = self.fork_into(TEMPLATE, 0)?;
        self.procs.push(Some(pid));
        let files = Cmd { what: child::FILES, args: [0; 6] };
        let mut bytes = Vec::new();
        match self.batch(0, &[files], &mut bytes) {
            Some(a) if a[0].value == 0 => Ok(()),
            a => Err(format!("cannot open files: {:?}", a.map(|a| a[0].value))),
        }
    }

    /// Makes the template execute a command. Returns the value of the answer.
    fn template_call(&mut self, cmd: Cmd) -> Result<i64, String> {
        let mut bytes = Vec::new();
        let answers = self.batch(TEMPLATE, &[cmd], &mut bytes).ok_or("the child died")?;
        Ok(answers[0].value)
    }

    fn pid(&self, index: usize) -> i32 {
        if index == TEMPLATE { self.template } else { self.procs[index].unwrap_or(0) }
    }

    /// Forks the process of channel `from` into channel `to`.
    fn fork_into(&mut self, from: usize, to: usize) -> Result<i32, String> {
        // SAFETY: no living process uses channel `to`.
        let channel = unsafe { &*self.channels.add(to) };
        channel.asked.store(0, Ordering::Relaxed);
        channel.answered.store(0, Ordering::Relaxed);
        let mut bytes = Vec::new();
        let flags = if from == TEMPLATE { 0 } else { libc::CLONE_PARENT as u64 };
        let cmd = Cmd { what: child::FORK, args: [to as u64, flags, 0, 0, 0, 0] };
        let answers = self.batch(from, &[cmd], &mut bytes).ok_or("the child died")?;
        if answers[0].value <= 0 { Err("cannot fork".into()) } else { Ok(answers[0].value as i32) }
    }

    /// Makes a process execute commands. Returns `None` if the process died.
    fn batch(&mut self, index: usize, cmds: &[Cmd], bytes: &mut Vec<u8>) -> Option<Vec<Answer>> {
        let pid = self.pid(index);
        // SAFETY: the child touches the channel only between `post` and its answer.
        let channel = unsafe { &mut *self.channels.add(index) };
        channel.len = cmds.len() as u32;
        channel.cmds[..cmds.len()].copy_from_slice(cmds);
        let next = channel.asked.load(Ordering::Relaxed).wrapping_add(1);
        wire::post(&channel.asked, next);
        // Acquire: pairs with the release store in the child's `post`.
        while channel.answered.load(Ordering::Acquire) != next {
            let old = channel.answered.load(Ordering::Acquire);
            if old == next {
                break;
            }
            wire::wait(&channel.answered, old, Some(Duration::from_millis(200)));
            if channel.answered.load(Ordering::Acquire) != next && smaps::dead(pid) {
                return None;
            }
        }
        let answers = channel.answers[..cmds.len()].to_vec();
        let used: u64 = answers.iter().map(|a| a.bytes).sum();
        bytes.extend_from_slice(&channel.bytes[..used as usize]);
        Some(answers)
    }

    /// Executes calls of one process that are plain commands.
    fn run_batch(&mut self, proc: usize, ops: &[Op], out: &mut Vec<Outcome>) {
        let cmds: Vec<Cmd> = ops.iter().map(|op| command(&op.call).expect("a plain command")).collect();
        let mut bytes = Vec::new();
        match self.batch(proc, &cmds, &mut bytes) {
            None => {
                self.procs[proc] = None;
                out.extend(ops.iter().map(|_| Outcome::Dead));
            }
            Some(answers) => {
                let mut rest = &bytes[..];
                for (op, a) in ops.iter().zip(&answers) {
                    let (own, tail) = rest.split_at(a.bytes as usize);
                    rest = tail;
                    out.push(outcome(&op.call, a, own));
                }
            }
        }
    }

    /// Executes a call in which the parent takes part: fork, exit and setrlimit.
    fn special(&mut self, op: &Op) -> Outcome {
        let proc = op.proc as usize;
        let pid = self.pid(proc);
        match op.call {
            Call::Fork if self.procs.len() >= MAX_PROCS => Outcome::Err(libc::EAGAIN),
            Call::Fork => match self.fork_into(proc, self.procs.len()) {
                Ok(pid) => {
                    self.procs.push(Some(pid));
                    Outcome::Ok(self.procs.len() as u64 - 1)
                }
                Err(_) => Outcome::Dead,
            },
            Call::Exit => {
                // SAFETY: `pid` is a process of this subject; see `start`.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                while !smaps::dead(pid) {
                    std::thread::yield_now();
                }
                self.procs[proc] = None;
                Outcome::Ok(0)
            }
            Call::Setrlimit { limit, pages } => self.set_limit(pid, limit, pages),
            _ => unreachable!("a plain command"),
        }
    }

    /// Sets a resource limit of a child. Adds the memory outside the arena to the limits of address space and
    /// data.
    fn set_limit(&mut self, pid: i32, limit: Limit, pages: u64) -> Outcome {
        let out = self.world.outside;
        let (resource, extra) = match limit {
            Limit::As => (libc::RLIMIT_AS, out.total_vm),
            Limit::Data => (libc::RLIMIT_DATA, out.data_vm),
            Limit::Lock => (libc::RLIMIT_MEMLOCK, 0),
            Limit::Stack => (libc::RLIMIT_STACK, 0),
        };
        let value = pages.checked_add(extra as u64).and_then(|p| p.checked_mul(PAGE)).unwrap_or(u64::MAX);
        let mut new = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both pointers are valid or null.
        let done = unsafe {
            libc::prlimit(pid, resource, std::ptr::null(), &mut new);
            new.rlim_cur = value.min(new.rlim_max);
            libc::prlimit(pid, resource, &new, std::ptr::null_mut())
        };
        if done == 0 { Outcome::Ok(0) } else { Outcome::Err(libc::EPERM) }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        for pid in self.procs.drain(..).flatten() {
            // SAFETY: `pid` is a process of this subject; see `start`.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // SAFETY: the template is a child of this process, and no process uses the channels afterwards.
        unsafe {
            libc::kill(self.template, libc::SIGKILL);
            libc::waitpid(self.template, std::ptr::null_mut(), 0);
            libc::munmap(self.channels.cast(), size_of::<Channel>() * (MAX_PROCS + 1));
        }
    }
}

/// The option of prctl for `Call::SetMdwe`.
const PR_SET_MDWE: u64 = 65;
/// The option of prctl for `Call::SetMerge`.
const PR_SET_MEMORY_MERGE: u64 = 67;

/// Converts a call to a command. Returns `None` for the calls that the parent must handle itself.
fn command(call: &Call) -> Option<Cmd> {
    let fd = |file: FileId| child::FIRST_FD + u64::from(file);
    let (what, args): (i64, [u64; 6]) = match *call {
        Call::Mmap { addr, len, prot, flags, file, off } => {
            (libc::SYS_mmap, [addr, len, prot, flags, file.map_or(u64::MAX, fd), off])
        }
        Call::Munmap { addr, len } => (libc::SYS_munmap, [addr, len, 0, 0, 0, 0]),
        Call::Mprotect { addr, len, prot } => (libc::SYS_mprotect, [addr, len, prot, 0, 0, 0]),
        Call::Mremap { old, old_len, new_len, flags, new_addr } => {
            (libc::SYS_mremap, [old, old_len, new_len, flags, new_addr, 0])
        }
        Call::Madvise { addr, len, advice } => (libc::SYS_madvise, [addr, len, advice, 0, 0, 0]),
        Call::Mlock { addr, len } => (libc::SYS_mlock, [addr, len, 0, 0, 0, 0]),
        Call::Mlock2 { addr, len, flags } => (libc::SYS_mlock2, [addr, len, flags, 0, 0, 0]),
        Call::Munlock { addr, len } => (libc::SYS_munlock, [addr, len, 0, 0, 0, 0]),
        Call::Mlockall { flags } => (libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]),
        Call::Munlockall => (libc::SYS_munlockall, [0; 6]),
        Call::Mseal { addr, len, flags } => (libc::SYS_mseal, [addr, len, flags, 0, 0, 0]),
        Call::SetMdwe { bits } => (libc::SYS_prctl, [PR_SET_MDWE, bits, 0, 0, 0, 0]),
        Call::SetMerge { on } => (libc::SYS_prctl, [PR_SET_MEMORY_MERGE, on, 0, 0, 0, 0]),
        Call::Brk { addr } => (libc::SYS_brk, [addr, 0, 0, 0, 0, 0]),
        Call::Msync { addr, len, flags } => (libc::SYS_msync, [addr, len, flags, 0, 0, 0]),
        Call::Ftruncate { file, len } => (libc::SYS_ftruncate, [fd(file), len, 0, 0, 0, 0]),
        Call::Mincore { addr, len } => (child::MINCORE as i64, [addr, len, 0, 0, 0, 0]),
        Call::Read { addr, len } => (child::READ as i64, [addr, len.min(PAGE), 0, 0, 0, 0]),
        Call::Write { addr, value } => (child::WRITE as i64, [addr, value.into(), 0, 0, 0, 0]),
        Call::FileWrite { file, off, len, seed } => {
            (child::PWRITE as i64, [fd(file), off, len, seed.into(), 0, 0])
        }
        Call::FileRead { file, off, len } => (child::PREAD as i64, [fd(file), off, len, 0, 0, 0]),
        Call::Fork | Call::Exit | Call::Setrlimit { .. } => return None,
    };
    Some(Cmd { what: what as u64, args })
}

/// Maximum number of bytes that a call returns or needs.
fn room(call: &Call) -> usize {
    match *call {
        Call::Read { len, .. } => len.min(PAGE) as usize,
        Call::FileRead { len, .. } | Call::FileWrite { len, .. } => len as usize,
        Call::Mincore { len, .. } => (len / PAGE + 1).min(World::PAGES + 1) as usize,
        _ => 0,
    }
}

/// Converts the answer of a child to the result of the call.
fn outcome(call: &Call, a: &Answer, bytes: &[u8]) -> Outcome {
    let touch = matches!(call, Call::Read { .. } | Call::Write { .. });
    if touch && a.value != 0 {
        let kind = match (a.value as i32, a.code) {
            (libc::SIGSEGV, 1) => SignalKind::SegvMapErr,
            (libc::SIGSEGV, 2) => SignalKind::SegvAccErr,
            (libc::SIGBUS, 2) => SignalKind::BusAdrErr,
            (signo, code) => SignalKind::Other(signo, code as i32),
        };
        return Outcome::Signal(Signal { kind, addr: a.addr });
    }
    if (-4095..0).contains(&a.value) {
        return Outcome::Err(-a.value as i32);
    }
    match call {
        Call::Read { .. } | Call::Mincore { .. } | Call::FileRead { .. } => Outcome::Bytes(bytes.to_vec()),
        _ => Outcome::Ok(a.value as u64),
    }
}

impl Subject for Linux {
    fn reset(&mut self) {
        self.start().expect("a run could be started when the template was created");
    }
    fn world(&self) -> World {
        self.world.clone()
    }
    fn apply(&mut self, op: &Op) -> Outcome {
        self.apply_all(std::slice::from_ref(op)).pop().expect("one outcome for each call")
    }
    fn apply_all(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let mut out = Vec::with_capacity(ops.len());
        while out.len() < ops.len() {
            let rest = &ops[out.len()..];
            let proc = rest[0].proc;
            if self.procs.get(proc as usize).is_none_or(|p| p.is_none()) {
                out.push(Outcome::Err(libc::ESRCH));
                continue;
            }
            let mut bytes = 0;
            let fits = rest.iter().take(BATCH).take_while(|op| {
                bytes += room(&op.call);
                op.proc == proc && command(&op.call).is_some() && bytes <= BYTES
            });
            match fits.count() {
                0 => out.push(self.special(&rest[0])),
                n => self.run_batch(proc as usize, &rest[..n], &mut out),
            }
        }
        out
    }
    fn maps(&mut self, proc: Proc) -> Vec<MapLine> {
        match self.procs.get(proc as usize) {
            Some(Some(pid)) if self.options.room.is_some() => query::arena(*pid, &self.world),
            Some(Some(pid)) => smaps::arena(*pid, &self.world, &mut self.text),
            _ => Vec::new(),
        }
    }
    fn known_flags(&self) -> u32 {
        match self.options.room {
            Some(_) => vmflag::ACCESS | vmflag::MAYSHARE,
            None => u32::MAX,
        }
    }
    fn counters(&mut self, proc: Proc) -> Option<Counters> {
        let pid = (*self.procs.get(proc as usize)?)?;
        let mut now = smaps::status(pid).ok()?;
        let out = self.world.outside;
        now.total_vm -= out.total_vm;
        now.locked_vm -= out.locked_vm;
        now.data_vm -= out.data_vm;
        now.stack_vm -= out.stack_vm;
        now.map_count = self.maps(proc).len() as i64;
        Some(now)
    }
}
