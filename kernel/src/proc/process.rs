//! The folders of processes and threads: /proc/PID and /proc/PID/task. Each text is generated when it is
//! read, from the state of the process at that time. Files about memory are in `proc/maps.rs`, and open files
//! are in `proc/descriptors.rs`. To add a file of text, add a line to [`TEXTS`]; a file of another kind needs
//! an arm in `child` and its name in `names`. The locks of a process are taken one at a time, so the numbers
//! of one text may be from slightly different times. Figures that the kernel does not count are 0 or fixed.
//!
//! Files that are not read-only text are made in `Of::child`. The programs `corners.c` and `usage.c` of the
//! tests check status, comm and the list of threads.

use crate::arch::{clock, cpu};
use crate::files::tree::{self, Jump, Listed, Listing, Node, listed};
use crate::files::{File, names};
use crate::proc::maps::{self, Form, Lines, Memory, Opened, Pages, Strings, space};
use crate::proc::text::{FOLDER, LINKED, PLAIN, number, setting, text, text_if};
use crate::proc::{clear_refs::clear_refs, descriptors::Folder, subject::Subject};
use crate::process::names::{auxv, short_name, up_to_zero};
use crate::process::signal::{self, IGNORE, bit};
use crate::process::{
    self, Process,
    ids::{Capabilities, Numbers},
    layout::Layout,
    limits::UNLIMITED,
};
use crate::sched::{charge, checkpoint, current, work};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::report::smaps::Smap;
use freehold::space::Arguments;
use linux_raw_sys::general::{RLIM_NLIMITS, RLIMIT_SIGPENDING};

/// A function that makes the text of a file.
type Text = fn(&Process) -> Result<Vec<u8>, Errno>;

/// The time for which a file of text can be used.
#[derive(Clone, Copy)]
enum Usable {
    /// The file can be read as long as the process or thread exists.
    WhileKnown,
    /// The file can be opened until the process ends; then, the open fails with this error. The open file can
    /// be read for ever.
    UntilEnd(Errno),
}

/// The files of text that cannot be written and are the same for all threads of a process.
const TEXTS: &[(&str, Usable, Text)] = &[
    ("smaps_rollup", Usable::UntilEnd(Errno::ESRCH), maps::rollup),
    ("statm", Usable::WhileKnown, |process| Ok(statm(process))),
    ("limits", Usable::WhileKnown, |process| Ok(limits(process))),
    ("mounts", Usable::UntilEnd(Errno::EINVAL), |_| mounts()),
    ("mountinfo", Usable::UntilEnd(Errno::EINVAL), |_| Ok(mountinfo())),
    ("auxv", Usable::UntilEnd(Errno::ESRCH), |process| Ok(auxv(process))),
    ("cgroup", Usable::WhileKnown, |_| Ok(b"0::/\n".to_vec())),
];

/// The symbolic links in a folder.
const LINKS: &[&str] = &["exe", "cwd", "root"];

/// Makes the folder of a process, or of a thread by its number.
///
/// # Errors
///
/// ENOENT if neither exists.
pub fn folder(pid: u32) -> Result<Arc<Node>, Errno> {
    let (process, thread) = match process::find(pid) {
        Some(process) => (process, None),
        None => process::find_thread(pid).map(|(process, _)| (process, Some(pid))).ok_or(Errno::ENOENT)?,
    };
    Ok(Node::listing(Box::new(Of(Subject { process, thread }))))
}

/// The folder of a process or a thread. The folder of a thread contains no `task`.
struct Of(Subject);

/// Makes a file of text that can be read as long as the process or thread exists.
fn known(of: Subject, make: impl Fn(&Subject) -> Vec<u8> + Send + Sync + 'static) -> Arc<Node> {
    text(move || of.exists().map(|()| make(&of)))
}

impl Listing for Of {
    fn search(&self) -> Result<(), Errno> {
        // The folder of a thread that has ended has no names instead.
        if self.0.thread.is_some() { Ok(()) } else { self.0.exists() }
    }

    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        let of = self.0.clone();
        of.exists().map_err(|_| Errno::ENOENT)?;
        if let Some((_, usable, make)) = TEXTS.iter().find(|(file, ..)| file.as_bytes() == name) {
            let admitted = of.clone();
            return Ok(match *usable {
                Usable::WhileKnown => text(move || of.exists().and_then(|()| make(&of.process))),
                Usable::UntilEnd(error) => {
                    text_if(move || admitted.has_memory().map_err(|_| error), move || make(&of.process))
                }
            });
        }
        let opened = |mode, make: fn(Subject) -> Result<Arc<dyn File>, Errno>| {
            let of = of.clone();
            Ok(Node::made(mode, Box::new(move || make(of.clone()))))
        };
        let link = |what| Ok(Node::jump(Box::new(Link { of: of.clone(), what })));
        match name {
            b"status" => Ok(known(of, |of| status(&of.process, of.tid()))),
            b"stat" => Ok(known(of, |of| stat(&of.process, of.tid()))),
            b"comm" => Ok(name_of(of)),
            b"oom_score_adj" => Ok(score(of)),
            b"maps" => opened(0o444, |of| Ok(Arc::new(Lines::new(of, Form::Maps)))),
            b"smaps" => opened(0o444, |of| Ok(Arc::new(Lines::new(of, Form::Smaps)))),
            b"numa_maps" => opened(0o444, |of| Ok(Arc::new(Lines::new(of, Form::NumaMaps)))),
            b"cmdline" => opened(0o444, |of| Ok(Arc::new(Strings::new(of, false)))),
            b"environ" => opened(0o444, |of| {
                of.has_memory()?;
                Ok(Arc::new(Strings::new(of, true)))
            }),
            b"mem" => opened(0o600, |of| {
                of.has_memory()?;
                Ok(Arc::new(Memory(Opened::new(of.process))))
            }),
            b"pagemap" => opened(0o400, |of| {
                of.has_memory()?;
                Ok(Arc::new(Pages(Opened::new(of.process))))
            }),
            b"clear_refs" => Ok(clear_refs(of)),
            b"coredump_filter" => Ok(dump_filter(of)),
            b"exe" => link("exe"),
            b"cwd" => link("cwd"),
            b"root" => link("root"),
            b"fd" => Ok(Node::listing(Box::new(Folder { of, infos: false }))),
            b"fdinfo" => Ok(Node::listing(Box::new(Folder { of, infos: true }))),
            b"task" if of.thread.is_none() => Ok(Node::listing(Box::new(Threads(of)))),
            _ => Err(Errno::ENOENT),
        }
    }

    fn names(&self, from: u64) -> Result<Vec<Listed>, Errno> {
        self.0.exists().map_err(|_| Errno::ENOENT)?;
        let mut names: Vec<(Vec<u8>, u8)> = Vec::new();
        names.extend(TEXTS.iter().map(|(name, ..)| ((*name).into(), PLAIN)));
        let files = [
            "maps",
            "smaps",
            "numa_maps",
            "cmdline",
            "environ",
            "status",
            "stat",
            "comm",
            "oom_score_adj",
            "mem",
            "pagemap",
            "clear_refs",
            "coredump_filter",
        ];
        names.extend(files.map(|name| (name.into(), PLAIN)));
        names.extend(LINKS.iter().map(|name| ((*name).into(), LINKED)));
        for name in ["fd", "fdinfo", "task"] {
            if name != "task" || self.0.thread.is_none() {
                names.push((name.into(), FOLDER));
            }
        }
        Ok(listed(names, from))
    }
}

/// Makes oom_score_adj: see [`process::shortage`].
fn score(of: Subject) -> Arc<Node> {
    let other = of.clone();
    let read = move || {
        of.exists()?;
        Ok(format!("{}\n", of.process.oom_score.load(Relaxed)).into_bytes())
    };
    setting(read, move |text| {
        let score = Some(number(text)?).filter(|score| (-1000..=1000).contains(score));
        let score = score.ok_or(Errno::EINVAL)?;
        other.exists()?;
        other.process.oom_score.store(score, Relaxed);
        Ok(())
    })
}

/// Makes coredump_filter. The filter has no effect, and is empty once the process has no memory.
fn dump_filter(of: Subject) -> Arc<Node> {
    let other = of.clone();
    let read = move || {
        of.exists()?;
        Ok(of.has_memory().map_or(Vec::new(), |()| b"00000033\n".to_vec()))
    };
    setting(read, move |_| other.has_memory())
}

/// The folder task of a process.
struct Threads(Subject);

impl Listing for Threads {
    fn search(&self) -> Result<(), Errno> {
        self.0.exists()
    }

    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        let tid = number(name).map_err(|_| Errno::ENOENT)? as u32;
        let of = Subject { process: self.0.process.clone(), thread: Some(tid) };
        of.exists().map_err(|_| Errno::ENOENT)?;
        Ok(Node::listing(Box::new(Of(of))))
    }

    fn names(&self, from: u64) -> Result<Vec<Listed>, Errno> {
        self.0.exists().map_err(|_| Errno::ENOENT)?;
        let tids = self.0.process.tids().into_iter();
        Ok(listed(tids.map(|tid| (format!("{tid}").into_bytes(), FOLDER)).collect(), from))
    }
}

/// A link in the folder of a process.
struct Link {
    of: Subject,
    what: &'static str,
}

impl Jump for Link {
    fn text(&self) -> Result<Vec<u8>, Errno> {
        tree::short_path_of(&self.node()?)
    }

    fn node(&self) -> Result<Arc<Node>, Errno> {
        if self.of.process.status.lock().is_some() {
            return Err(Errno::ENOENT);
        }
        match self.what {
            "cwd" => {
                let thread = self.of.process.thread(self.of.tid()).ok_or(Errno::ENOENT)?;
                Ok(thread.place().directory.lock().clone())
            }
            "root" => Ok(tree::root()),
            _ => self.of.process.exe.lock().as_ref().map(|exe| (**exe).clone()).ok_or(Errno::ENOENT),
        }
    }
}

/// Makes comm: the thread's name, which threads of the same process can write.
fn name_of(of: Subject) -> Arc<Node> {
    let named = of.clone();
    setting(
        move || {
            of.exists()?;
            match of.process.thread(of.tid()) {
                Some(thread) => Ok([up_to_zero(&*thread.comm.lock()), b"\n"].concat()),
                None => Ok([&*short_name(&of.process), b"\n"].concat()),
            }
        },
        move |text| {
            named.exists()?;
            if !is_here(&named.process) {
                return Err(Errno::EINVAL);
            }
            // The name of a first thread that has ended is lost.
            let Some(thread) = named.process.thread(named.tid()) else { return Ok(()) };
            let (text, mut name) = (up_to_zero(text), [0; 16]);
            let kept = text.len().min(15);
            name[..kept].copy_from_slice(&text[..kept]);
            *thread.comm.lock() = name;
            Ok(())
        },
    )
}

/// Returns true if this is the calling process.
fn is_here(process: &Process) -> bool {
    core::ptr::eq(&raw const **current().process(), process)
}

/// Sizes of a process's memory, in pages.
struct Sizes {
    total: u64,
    resident: u64,
    anonymous: u64,
    file: u64,
    shared: u64,
    text: u64,
    data: u64,
    stack: u64,
    locked: u64,
    swapped: u64,
}

/// Returns the sizes of a process's memory, or `None` after its end.
fn sizes(process: &Process) -> Option<Sizes> {
    let space = space(process)?;
    let (counts, rss) = (space.counts(), space.rss());
    let [anonymous, file, shared] = [rss.anon, rss.file, rss.shmem].map(|pages| pages.max(0) as u64);
    Some(Sizes {
        total: counts.total_vm,
        resident: anonymous + file + shared,
        anonymous,
        file,
        shared,
        text: counts.exec_vm,
        data: counts.data_vm,
        stack: counts.stack_vm,
        locked: counts.locked_vm,
        swapped: rss.swap.max(0) as u64,
    })
}

/// Makes statm.
fn statm(process: &Process) -> Vec<u8> {
    match sizes(process) {
        None => b"0 0 0 0 0 0 0\n".to_vec(),
        Some(s) => {
            let (file, data) = (s.file + s.shared, s.data + s.stack);
            format!("{} {} {file} {} 0 {data} 0\n", s.total, s.resident, s.text).into_bytes()
        }
    }
}

/// Returns the state of a thread, as `ps` shows it.
fn state(process: &Process, tid: u32) -> (char, &'static str) {
    if process.status.lock().is_some() {
        return ('Z', "zombie");
    }
    match process.thread(tid) {
        Some(thread) if thread.is_parked() && thread.trace.is_stopped() => ('t', "tracing stop"),
        Some(thread) if thread.is_parked() && process.signals.lock().job.is_stopping() => ('T', "stopped"),
        Some(thread) if !thread.is_parked() => ('R', "running"),
        // A signal that does not kill the thread wakes it only from some sleeps.
        Some(thread) if thread.ends_by.load(Relaxed) & work::SIGNAL == 0 => ('D', "disk sleep"),
        Some(_) => ('S', "sleeping"),
        // The first thread has ended, and other threads have not.
        None => ('Z', "zombie"),
    }
}

/// Returns the rows of users and groups in status.
fn users(process: &Process) -> String {
    let ids = *process.ids.lock();
    let row = |name: &str, n: &Numbers| {
        format!("{name}:\t{}\t{}\t{}\t{}\n", n.real, n.effective, n.saved, n.effective)
    };
    row("Uid", &ids.user) + &row("Gid", &ids.group)
}

/// Returns the rows of status with sets of capabilities, as hexadecimal numbers of 64 bits.
fn capabilities(process: &Process) -> String {
    let sets = process.ids.lock().capabilities;
    format!(
        "CapInh:\t{:016x}\nCapPrm:\t{:016x}\nCapEff:\t{:016x}\nCapBnd:\t{:016x}\nCapAmb:\t{:016x}\n",
        sets.inheritable,
        sets.permitted,
        sets.effective,
        Capabilities::ALL,
        0,
    )
}

/// Returns the rows of status with sets of signals, as hexadecimal numbers of 64 bits.
fn signals(process: &Process, tid: u32) -> String {
    let (own, blocked) =
        process.thread(tid).map_or((0, 0), |thread| (thread.pending.lock().signals(), thread.blocked()));
    let shared = process.signals.lock().pending.signals();
    let actions = *process.actions().lock();
    let set = |is: fn(u64) -> bool| {
        let meant = (1..actions.len()).filter(|n| is(actions[*n].handler));
        meant.fold(0u64, |set, n| set | bit(n as u32))
    };
    let (ignored, caught) = (set(|handler| handler == IGNORE), set(|handler| handler > IGNORE));
    format!(
        "SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
         SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
    )
}

/// Makes status.
fn status(process: &Process, tid: u32) -> Vec<u8> {
    use core::fmt::Write;
    let name = short_name(process);
    let (letter, word) = state(process, tid);
    let (pid, parent) = (process.pid, process.parent_pid());
    let tracer = process.thread(tid).map_or(0, |thread| thread.trace.tracer_pid());
    let mut out = format!(
        "Name:\t{}\nUmask:\t{:04o}\nState:\t{letter} ({word})\nTgid:\t{pid}\nNgid:\t0\nPid:\t{tid}\n\
         PPid:\t{parent}\nTracerPid:\t{tracer}\n{}FDSize:\t{}\nGroups:\t\n",
        String::from_utf8_lossy(&name),
        process.thread(tid).map_or(0, |thread| thread.place().umask.load(Relaxed)),
        users(process),
        process.thread(tid).map_or(0, |thread| thread.files.room()),
    );
    if let Some(s) = sizes(process) {
        let bytes_of = |part: Smap<_>| part.usage.shared_hugetlb + part.usage.private_hugetlb;
        let huge = space(process).map_or(0, |space| {
            space.smaps(0).take_while(|_| checkpoint().is_ok()).map(bytes_of).sum::<u64>() / PAGE_SIZE
        });
        let tables = space(process).map_or(0, |space| space.page_table_bytes() / PAGE_SIZE);
        let rows = [
            ("VmPeak", s.total.max(process.usage.peak_mapped.load(Relaxed))),
            ("VmSize", s.total),
            ("VmLck", s.locked),
            ("VmPin", 0),
            ("VmHWM", s.resident.max(process.usage.peak_resident.load(Relaxed))),
            ("VmRSS", s.resident),
            ("RssAnon", s.anonymous),
            ("RssFile", s.file),
            ("RssShmem", s.shared),
            ("VmData", s.data),
            ("VmStk", s.stack),
            ("VmExe", s.text),
            ("VmLib", 0),
            ("VmPTE", tables),
            ("VmSwap", s.swapped),
            ("HugetlbPages", huge),
        ];
        for (name, pages) in rows {
            let _ = writeln!(out, "{name}:\t{:>8} kB", (pages * PAGE_SIZE) >> 10);
        }
    }
    let threads = process.thread_count();
    let cpus = u64::MAX >> (64 - cpu::count());
    let most_queued = process.limits.lock().soft(RLIMIT_SIGPENDING);
    let _ = write!(
        out,
        "CoreDumping:\t0\nTHP_enabled:\t1\nThreads:\t{threads}\nSigQ:\t{}/{}\n{}{}NoNewPrivs:\t{}\nSeccomp:\t0\n\
         Cpus_allowed:\t{cpus:x}\nCpus_allowed_list:\t0-{}\nMems_allowed:\t1\nMems_allowed_list:\t0\n\
         voluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n",
        signal::queued(),
        most_queued,
        signals(process, tid),
        capabilities(process),
        process.no_new_privs.load(Relaxed),
        cpu::count() - 1,
    );
    out.into_bytes()
}

/// Makes stat. Most fields are not counted and are 0.
fn stat(process: &Process, tid: u32) -> Vec<u8> {
    let name = short_name(process);
    let (letter, _) = state(process, tid);
    let (parent, threads) = (process.parent_pid(), process.thread_count());
    let (total, resident) = sizes(process).map_or((0, 0), |s| (s.total * PAGE_SIZE, s.resident));
    let ticks = clock::now_ns() / 10_000_000;
    let space = process.space.lock().clone();
    let heap = space.as_ref().map_or(0, |space| space.heap().start);
    let arguments = space.map(|space| space.arguments());
    let Arguments { args, env } = arguments.unwrap_or(Arguments { args: 0..0, env: 0..0 });
    let Layout { code, data, stack, .. } = process.layout.lock().clone();
    let (group, session) = (process.group.load(Relaxed), process.session.load(Relaxed));
    format!(
        "{tid} ({}) {letter} {parent} {group} {session} 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 {threads} 0 {ticks} {total} \
         {resident} 18446744073709551615 {} {} {stack} 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 {} {} {heap} {} {} {} {} 0\n",
        String::from_utf8_lossy(&name),
        code.start,
        code.end,
        data.start,
        data.end,
        args.start,
        args.end,
        env.start,
        env.end
    )
    .into_bytes()
}

/// The rows of limits: name and unit of each resource, by the number of the resource.
const LIMITS: [(&str, &str); RLIM_NLIMITS as usize] = [
    ("cpu time", "seconds"),
    ("file size", "bytes"),
    ("data size", "bytes"),
    ("stack size", "bytes"),
    ("core file size", "bytes"),
    ("resident set", "bytes"),
    ("processes", "processes"),
    ("open files", "files"),
    ("locked memory", "bytes"),
    ("address space", "bytes"),
    ("file locks", "locks"),
    ("pending signals", "signals"),
    ("msgqueue size", "bytes"),
    ("nice priority", ""),
    ("realtime priority", ""),
    ("realtime timeout", "us"),
];

/// Makes limits.
fn limits(process: &Process) -> Vec<u8> {
    use core::fmt::Write;
    let mut out = format!("{:<26}{:<21}{:<21}{:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    let limits = process.limits.lock().clone();
    let word = |limit| if limit == UNLIMITED { "unlimited".into() } else { format!("{limit}") };
    for (resource, (name, unit)) in (0..).zip(LIMITS) {
        let [soft, hard] = limits.get(resource).unwrap_or([UNLIMITED; 2]);
        let width = if unit.is_empty() { 0 } else { 10 };
        let _ = writeln!(out, "Max {name:<22}{:<21}{:<21}{unit:<width$}", word(soft), word(hard));
    }
    out.into_bytes()
}

/// Makes mounts. Fails with ENOMEM.
fn mounts() -> Result<Vec<u8>, Errno> {
    let mut out = b"tmpfs / tmpfs rw 0 0\nproc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n\
        tmpfs /dev/shm tmpfs rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
        .to_vec();
    names::each_mount(|path, kind| {
        let line = [b"none ", &*escaped(path), format!(" {kind} rw 0 0\n").as_bytes()].concat();
        charge::reserve(&mut out, line.len())?;
        out.extend_from_slice(&line);
        Ok(())
    })?;
    Ok(out)
}

/// Replaces bytes that would end a field or the line by `\` and their octal digits.
fn escaped(path: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => [*byte].to_vec(),
    };
    path.iter().flat_map(escape).collect()
}

/// Makes mountinfo. Lists only the mounts that always exist.
fn mountinfo() -> Vec<u8> {
    b"1 0 0:1 / / rw - tmpfs tmpfs rw\n2 1 0:2 / /proc rw - proc proc rw\n3 1 0:3 / /sys rw - sysfs sysfs rw\n"
        .to_vec()
}
