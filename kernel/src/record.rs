//! Option `record`: writes a recording of what programs do to their memory, in the project's format
//! (`docs/reference/trace-format.md`), to a port of its own (`PROTOCOL.md`).
//!
//! The thread that performs an operation writes the line when the operation is complete. A line for a call or
//! a fault contains its duration. The line of a new task is written before the task runs, and an exec is
//! followed by a list of the mapped memory. The number of a task in the recording is the number of its
//! thread.
//!
//! System calls come from `calls/mod.rs`, page faults through the table of handlers in `start.rs`, and the
//! other events through `process/observer.rs`. A system call that a replay needs has an entry in [`CALLS`].
//! The lock [`FILES`] is taken before [`PEN`]. The tests with `replayed` in `kernel/tests/tests.toml` fail if
//! a recording lacks an event or has a wrong event.

use crate::arch::{clock, cpu, frame::Frame, layout::Tables, lock::SpinLock};
use crate::files::tree;
use crate::options;
use crate::platform::{Machine, Space, engine, user::UserPtr};
use crate::process::observer::{self, Observer};
use crate::process::{Process, fault, limits::Limits};
use crate::sched::{Thread, current};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use freehold::counted::Counted;
use freehold::fault::{Access, FaultError};
use freehold::file::File;
use freehold::platform::Format;
use freehold::report::maps::MapName;
use freehold::report::pagemap::PageKind;
use freehold::report::smaps::{Smap, Usage};
use freehold::vma::flags::VmFlags;
use freehold::{PAGE_SHIFT, PAGE_SIZE};
use linux_raw_sys::general::*;
use x86_64::instructions::port::Port;

/// The recording port: a debug console of QEMU.
const PORT: u16 = 0xea;

/// The number of a file in the recording, and a reference to the file. The reference keeps the file alive, so
/// that no other file gets its address.
type Known = (u32, Counted<File<Machine>>);

/// Files that were mapped, by the address of their page cache.
static FILES: SpinLock<BTreeMap<usize, Known>> = SpinLock::new(BTreeMap::new());
/// Held while a line is written, so that the times of the lines ascend.
static PEN: SpinLock<()> = SpinLock::new(());
/// Number of snapshots so far, which is the number of the next one.
static SNAPSHOTS: AtomicU32 = AtomicU32::new(0);

/// Writes the text that `f` returns for the current time.
fn write(f: impl FnOnce(u64) -> String) {
    let _pen = PEN.lock();
    let text = f(clock::now_ns());
    // SAFETY: the port of QEMU's debug console; another machine has nothing there.
    text.bytes().for_each(|byte| unsafe { Port::<u8>::new(PORT).write(byte) });
}

/// Writes an event of the calling thread.
fn event(what: &str) {
    let (cpu, tid) = (cpu::number(), current().tid());
    write(|now| format!("{now} {cpu} {tid} {what}\n"));
}

/// The functions by which `process` reports events to this file.
static OBSERVER: Observer = Observer { task, signal, exit, leave };

/// Starts the recording. Writes the settings that affect how memory is mapped.
pub fn begin(thp: &str) {
    observer::watch(&OBSERVER);
    let most = engine().config().max_map_count;
    write(|_| {
        format!(
            "# machine kernel freehold\n# machine thp {thp}\n# machine thp-shmem never\n\
             # machine overcommit 0\n# machine min-addr {PAGE_SIZE}\n# machine max-maps {most}\n"
        )
    });
}

/// Writes a completed call: its arguments, the answer in `frame`, and the time since `began`.
pub fn call(number: u64, args: [u64; 6], frame: &Frame, began: u64) {
    let Some(call) = CALLS.iter().find(|call| u64::from(call.0) == number) else { return };
    let answer = frame.rax as i64;
    let failed = (-4095..0).contains(&answer);
    let Some(mut text) = arguments(call, args, failed) else { return };
    let file = match call.0 {
        number if number == __NR_mmap && !failed && args[3] & u64::from(MAP_ANONYMOUS) == 0 => {
            file_of(args[4])
        }
        _ => None,
    };
    let _ = match failed {
        true => write!(text, " = {answer}"),
        false => write!(text, " = {answer:x}"),
    };
    if let Some(file) = file {
        let _ = write!(text, " f{file}");
    }
    let (cpu, tid) = (cpu::number(), current().tid());
    write(|now| format!("{now} {cpu} {tid} {text} e{} x0\n", now - began));
}

/// Returns the call with its arguments, or `None` if the recording does not need it.
fn arguments(call: &Recorded, args: [u64; 6], failed: bool) -> Option<String> {
    let Recorded(number, name, count, kind) = *call;
    let mut text = String::from(name);
    match kind {
        Kind::Always => {}
        Kind::Succeeded if failed => return None,
        Kind::Failed if !failed => return None,
        Kind::Limit => {
            let (resource, new) =
                if number == __NR_setrlimit { (args[0], args[1]) } else { (args[1], args[2]) };
            let counts = [RLIMIT_DATA, RLIMIT_STACK, RLIMIT_MEMLOCK, RLIMIT_AS].map(u64::from);
            let own = number == __NR_setrlimit || matches!(args[0] as u32, 0) || args[0] == own_number();
            if failed || new == 0 || !own || !counts.contains(&resource) {
                return None;
            }
            let [soft, hard] = UserPtr::<[u64; 2]>::new(new).read().ok()?;
            let whose = if number == __NR_setrlimit { "" } else { " 0" };
            let _ = write!(text, "{whose} {resource:x} {soft:x} {hard:x}");
            return Some(text);
        }
        Kind::Control => match args[1] as u32 {
            F_DUPFD | F_DUPFD_CLOEXEC if !failed => {}
            F_ADD_SEALS | F_GET_SEALS => {}
            _ => return None,
        },
        Kind::Succeeded | Kind::Failed => {}
    }
    for (at, arg) in args.iter().take(count).enumerate() {
        let _ = match (number, at) {
            (number, 4) if number == __NR_mmap => write!(text, " {}", *arg as i32),
            _ => write!(text, " {arg:x}"),
        };
    }
    if count == 0 {
        text.push(' ');
    }
    Some(text)
}

fn own_number() -> u64 {
    current().process().pid.into()
}

/// Returns the number of the file behind a descriptor. The first time, also writes a line that introduces the
/// file.
fn file_of(descriptor: u64) -> Option<u32> {
    let open = current().files.get(descriptor & 0xffff_ffff).ok()?;
    Some(number_of(&open.mapped().ok()?))
}

fn number_of(file: &Counted<File<Machine>>) -> u32 {
    let place = core::ptr::from_ref(&**file.mapping()) as usize;
    let mut files = FILES.lock();
    if let Some((number, _)) = files.get(&place) {
        return *number;
    }
    let number = files.len() as u32 + 1;
    files.insert(place, (number, file.clone()));
    let (size, path) = (file.mapping().size(), file.name().replace('\n', "\\012"));
    // The files' lock is still held, so no earlier line mentions the number.
    write(|_| format!("# file {number} {size} {path}\n"));
    number
}

/// Serves a page fault and records it. Stores of the kernel to a new program's stack, in an exec, do not come
/// here and are not recorded.
///
/// # Errors
///
/// Fails like [`fault::page`].
pub fn page(at: u64, access: Access, from_program: bool) -> Result<(), FaultError> {
    let began = clock::now_ns();
    // Bit 0 of the processor's error code: a page was present.
    let there = u64::from(at < Tables::USER_END && current().space().frame_at(at).is_some());
    let rest = [(access.write, 2), (from_program, 4), (access.exec, 0x10)];
    let code = rest.iter().filter(|(is, _)| *is).fold(there, |code, (_, bit)| code | bit);
    let served = fault::page(at, access, from_program);
    let (cpu, tid) = (cpu::number(), current().tid());
    write(|now| {
        let resolved = if served.is_ok() { " x0" } else { "" };
        format!("{now} {cpu} {tid} F {at:x} {code:x} e{}{resolved}\n", now - began)
    });
    served
}

/// Writes a signal that a fault caused.
pub fn signal(number: u32, code: i32) {
    if matches!(number, SIGSEGV | SIGBUS) {
        event(&format!("G {number} {code}"));
    }
}

/// Writes the line of a task that is about to run for the first time. `began` is the time at which the fork
/// began to copy the address space; it has no meaning for a task that shares its creator's space.
pub fn task(tid: u32, process: u32, flags: u64, began: u64) {
    if options::records() {
        let (cpu, own) = (cpu::number(), current().tid());
        let flags = flags & !u64::from(CSIGNAL);
        write(|now| format!("{now} {cpu} {own} N {tid} {process} {flags:x} e{} x0\n", now - began));
    }
}

/// Writes the new memory of the calling thread's process, after an execve that began at `began` to replace
/// the old memory.
pub fn exec(began: u64) {
    if options::records() {
        let thread = current();
        of_exec(thread, thread.process(), thread.space(), began);
    }
}

/// Writes the memory of a process after an exec: a snapshot and the limits. `thread` is the calling thread,
/// or the first thread of the machine, which does not run yet. The exec began at `began`.
pub fn of_exec(thread: &Thread, process: &Process, space: &Space, began: u64) {
    if !options::records() {
        return;
    }
    let id = SNAPSHOTS.fetch_add(1, Relaxed);
    let lines = snapshot(space);
    let (cpu, tid, pid) = (cpu::number(), thread.tid(), process.pid);
    let name = name_of(process);
    let limits = limits(&process.limits.lock().clone());
    write(|now| {
        format!(
            "s @ {id} exec {pid} {now} {now} 1 {name}\n{lines}\
             {now} {cpu} {tid} E {id} e{} x0\n{now} - {tid} S {id} exec {pid}\n{now} {cpu} {tid} R{limits}\n",
            now - began
        )
    });
}

/// Writes the event that the calling thread ends. If the thread is the last one of its process, also writes a
/// snapshot of what is still mapped.
pub fn exit(last: bool) {
    if !options::records() {
        return;
    }
    let thread = current();
    let process = thread.process();
    if !last {
        return event("X");
    }
    // After vfork the space may be the parent's; `leave` then does not write the end of the space.
    let id = SNAPSHOTS.fetch_add(1, Relaxed);
    let lines = snapshot(thread.space());
    let (cpu, tid, pid, name) = (cpu::number(), thread.tid(), process.pid, name_of(process));
    write(|now| {
        format!(
            "s @ {id} exit {pid} {now} {now} 1 {name}\n{lines}{now} - {tid} S {id} exit {pid}\n\
             {now} {cpu} {tid} X g\n"
        )
    });
}

/// Drops the address space that the calling thread has left. Writes the end of the space, unless another
/// process still uses it.
pub fn leave(space: Option<Space>) {
    let left = space.as_ref().filter(|_| options::records()).map(Counted::downgrade);
    drop(space);
    if left.is_some_and(|left| left.upgrade().is_none()) {
        event(&format!("D {}", own_number()));
    }
}

/// Returns the name and path of a process's program, in the form of a snapshot.
fn name_of(process: &Process) -> String {
    let exe = process.exe.lock().clone();
    let path = exe.map(|node| tree::path_of(&node)).unwrap_or_default();
    let path = String::from_utf8_lossy(&path).replace('\n', "\\012");
    let base = path.rsplit('/').next().unwrap_or_default();
    format!("{} | {path} | ", &base[..base.len().min(15)])
}

fn limits(limits: &Limits) -> String {
    let [data, data_hard] = limits.get(RLIMIT_DATA.into()).unwrap_or([u64::MAX; 2]);
    let (space, stack, locked) =
        (limits.soft(RLIMIT_AS), limits.soft(RLIMIT_STACK), limits.soft(RLIMIT_MEMLOCK));
    format!(" {space:x} {data:x} {data_hard:x} {stack:x} {locked:x} c")
}

/// Returns the lines of a snapshot: first the VMAs, then the runs of present pages. Each line begins with `s
/// `, which marks it as part of a snapshot.
fn snapshot(space: &Space) -> String {
    let mut text = String::new();
    let mut pages = String::new();
    let mut end = 0;
    for smap in space.smaps(0) {
        area(&mut text, &smap);
        space.pagemap(smap.line.start..smap.line.end, |run| {
            let kind = match run.kind {
                PageKind::File | PageKind::Special => 0xc,
                PageKind::Anon => 8,
                PageKind::Zero => 0x28,
            };
            let kind = if run.huge { kind | 0x40 } else { kind };
            let (first, behind) = (run.range.start() >> PAGE_SHIFT, run.range.end() >> PAGE_SHIFT);
            let _ = writeln!(pages, "s P {:x} {:x} {kind:x}", first - end, behind - first);
            end = behind;
        });
    }
    text + &pages
}

/// Appends the line of a VMA.
fn area(text: &mut String, smap: &Smap<Machine>) {
    let line = &smap.line;
    let letter = |flag, letter| if line.flags.contains(flag) { letter } else { '-' };
    let (r, w, x) = (letter(VmFlags::READ, 'r'), letter(VmFlags::WRITE, 'w'), letter(VmFlags::EXEC, 'x'));
    let s = if line.flags.contains(VmFlags::MAYSHARE) { 's' } else { 'p' };
    let name = match &line.name {
        MapName::Object(object) => String::from(object.name()),
        name => String::from(name.as_str()),
    };
    let name = if name.is_empty() { "-".into() } else { name.replace('\n', "\\012") };
    let _ = write!(text, "s {:08x}-{:08x} {r}{w}{x}{s} {:x} {name}", line.start, line.end, line.offset);
    let _ = write!(text, " | {} | ", sizes(&smap.usage));
    // The flag `sd` (soft-dirty) is left out: some builds of Linux do not show it, and a replay does not set
    // it.
    line.flags.smaps_names().filter(|name| *name != "sd").for_each(|name| text.push_str(name));
    text.push_str(if smap.huge_eligible { "!\n" } else { "\n" });
}

/// Returns nine numbers of kB separated by commas. A number that is 0 is left out between its commas. If all
/// numbers are 0, returns a single 0.
fn sizes(usage: &Usage) -> String {
    let all = [
        usage.rss,
        usage.shared_clean,
        usage.shared_dirty,
        usage.private_clean,
        usage.private_dirty,
        usage.referenced,
        usage.anonymous,
        usage.anonymous_huge,
        usage.locked,
    ];
    if all == [0; 9] {
        return "0".into();
    }
    let mut text = String::new();
    for (at, bytes) in all.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "," });
        if *bytes != 0 {
            let _ = write!(text, "{}", bytes >> 10);
        }
    }
    text
}

/// The condition under which a call is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Written whether the call succeeds or fails.
    Always,
    /// Written if the call succeeds: calls on descriptors.
    Succeeded,
    /// Written if the call fails. Success writes another line.
    Failed,
    /// Written if the call sets a limit of the calling process, and the limit affects mapping. The line has
    /// the new limits.
    Limit,
    /// Written if the fcntl copies a descriptor, seals a file, or reads its seals.
    Control,
}

/// A call: its number, its name, the number of its arguments, and when it is written.
struct Recorded(u32, &'static str, usize, Kind);

macro_rules! recorded {
    ($($kind:ident: $($number:ident $name:ident $count:literal),*;)*) => {
        &[$($(Recorded($number, stringify!($name), $count, Kind::$kind),)*)*]
    };
}

/// The recorded system calls. All other calls are left out.
const CALLS: &[Recorded] = recorded! {
    Always: __NR_mmap mmap 6, __NR_munmap munmap 2, __NR_mprotect mprotect 3, __NR_mremap mremap 5,
        __NR_madvise madvise 3, __NR_brk brk 1, __NR_mincore mincore 3, __NR_msync msync 3, __NR_mlock mlock 2,
        __NR_mlock2 mlock2 3, __NR_munlock munlock 2, __NR_mlockall mlockall 1, __NR_munlockall munlockall 0,
        __NR_remap_file_pages remap_file_pages 5, __NR_mseal mseal 3, __NR_pkey_alloc pkey_alloc 2,
        __NR_pkey_free pkey_free 1, __NR_pkey_mprotect pkey_mprotect 4, __NR_mbind mbind 6, __NR_prctl prctl 5,
        __NR_process_vm_readv process_vm_readv 6, __NR_process_vm_writev process_vm_writev 6,
        __NR_shmget shmget 3, __NR_shmat shmat 3, __NR_shmdt shmdt 1, __NR_shmctl shmctl 3,
        __NR_memfd_create memfd_create 2, __NR_ftruncate ftruncate 2, __NR_fallocate fallocate 4,
        __NR_truncate truncate 2;
    Succeeded: __NR_open open 3, __NR_openat openat 4, __NR_creat creat 2, __NR_close close 1,
        __NR_close_range close_range 3, __NR_dup dup 1, __NR_dup2 dup2 2, __NR_dup3 dup3 3;
    Failed: __NR_clone clone 5, __NR_clone3 clone3 2, __NR_fork fork 0, __NR_vfork vfork 0,
        __NR_execve execve 3, __NR_execveat execveat 5;
    Limit: __NR_prlimit64 prlimit64 4, __NR_setrlimit setrlimit 2;
    Control: __NR_fcntl fcntl 3;
};
