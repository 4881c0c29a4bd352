//! The boot after `boot.s`: [`kernel_main`] prepares the first CPU, starts the other CPUs and the engine,
//! makes the root file system, and creates process 1.
//!
//! The order in `kernel_main` matters. Nothing allocates before `memory::init`, and nothing reads the clock
//! before `apic::calibrate`, which also calibrates the clock. State that is written once and then read
//! without a lock (options, the table of handlers, clock rates, gates) is written before `smp::start_all`.
//! This file is the top layer, so it may use all other layers. [`HANDLERS`] is the only way for `arch` to
//! call the layers above it. The tests `end-panic` and `end-page-fault` in `kernel/tests/tests.toml` check
//! the report of a failure during the boot.
//!
//! A new part of the kernel is prepared in [`kernel_main`] after the parts that it uses. A step that every
//! CPU needs also belongs in `secondary_main` (`boot/smp.rs`).

use crate::arch::frame::Vectors;
use crate::arch::handlers::{self, Handlers};
use crate::arch::layout::direct;
use crate::arch::{
    apic, clock, cpu, descriptors, entry_work, features, halt, jitter, random, report, serial,
};
use crate::boot::smp;
use crate::files::console::{self, Console};
use crate::files::table::{self, FileTable};
use crate::files::tree::{self, Node};
use crate::files::{devices, open::Open, unpack};
use crate::memory::{self, frames, stacks, tlb};
use crate::platform::swap;
use crate::process::exec::{self, Loaded, Strings, Texts};
use crate::process::signal::frame::AlternateStack;
use crate::process::userfault;
use crate::process::{
    self, Process, fault, ids::Ids, limits::Limits, place::Place, renew, standstill, thread,
};
use crate::sched::{Thread, scheduler, timers};
use crate::start_info::StartInfo;
use crate::{errno, options, proc, record};
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize;
use freehold_kernel::{cpio, words};
use linux_raw_sys::general::O_RDWR;

/// Entry of the first CPU in Rust. `boot.s` jumps here with the address that the boot protocol gave.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: u64) -> ! {
    serial::init();
    report::report!("ready");
    apic::mask_old_controllers();
    cpu::init(0);
    descriptors::init_gates();
    descriptors::load();
    features::init();
    // SAFETY: the address comes from the boot protocol.
    let info = unsafe { StartInfo::at(info) };
    let (settings, program) = words::split(info.command_line());
    options::init(settings, |option| report::say!("unknown option {option}"));
    if options::watches() {
        entry_work::set(entry_work::WATCHED);
    }
    if options::jitter() != 0 {
        jitter::start(options::jitter());
    }
    if options::is_terminal() {
        console::is_terminal();
    }
    handlers::install(&HANDLERS);
    let module = info.module();
    memory::init(info, module);
    apic::init();
    apic::calibrate(clock::calibrate);
    clock::read_day();
    random::init();
    scheduler::init_cpu();
    smp::start_all(info.rsdp);
    start_engine();
    if options::is_verbose() {
        let (free, count) = ((frames::free_count() * PAGE_SIZE) >> 20, cpu::count());
        let total = memory::total_bytes() >> 20;
        report::say!("freehold: {count} CPUs, {free} of {total} MiB free, {} us", clock::now_ns() / 1000);
    }
    let Some(module) = module else { panic!("no initial file system: use -initrd") };
    // SAFETY: the module's memory was removed from the free memory, so nothing writes there.
    let module = unsafe {
        core::slice::from_raw_parts(direct::<u8>(module.start), (module.end - module.start) as usize)
    };
    unpack::unpack(module, &[(b"dev", dev), (b"proc", proc::root), (b"sys", proc::sys::root)]);
    run_first(strings(module, program));
    scheduler::idle()
}

/// Starts the engine, sets its limit on committed memory, fills the pool of huge pages and makes the swap
/// device.
fn start_engine() {
    crate::platform::engine::start();
    crate::proc::settings::commit();
    crate::proc::settings::set_huge_pages(HugePageSize::Mib2, options::huge_pages());
    if options::swap_mib() > 0 && swap::on(swap::USUAL_PRIORITY).is_err() {
        report::say!("there is no memory for the swap device");
    }
}

/// Makes the folder /dev, when `unpack` makes the root.
fn dev() -> Arc<Node> {
    devices::folder((b"userfaultfd", Node::device(Arc::new(userfault::Maker))))
}

/// The functions that `arch` calls.
static HANDLERS: Handlers = Handlers {
    answer_flushes: tlb::answer,
    page_fault: fault::page,
    watched_page_fault: |at, access, from_program| match options::records() {
        true => record::page(at, access, from_program),
        false => fault::page(at, access, from_program),
    },
    refused: fault::refused,
    exception: fault::exception,
    before_user: thread::before_user,
    tick: timers::tick,
    preempt: scheduler::preempt,
    give_way: scheduler::give_way,
    nonmaskable: standstill::tell,
    is_stack_guard: stacks::is_guard,
};

/// Returns the arguments and environment that the archive has for the first program. If the archive has no
/// arguments, they are the words of the command line.
fn strings(module: &'static [u8], line: &str) -> Strings {
    let listed = |name: &[u8]| {
        let entry = cpio::entries(module).find(|entry| entry.name == name)?;
        let ended = entry.contents.strip_suffix(&[0]).unwrap_or_default();
        Some(ended.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let usual = || alloc::vec![b"PATH=/bin:/usr/bin:/sbin:/usr/sbin".to_vec(), b"HOME=/".to_vec()];
    let arguments =
        listed(b".boot/args").unwrap_or_else(|| words::words(line).map(Iterator::collect).collect());
    let environment = listed(b".boot/env").unwrap_or_else(usual);
    Strings { arguments: Texts(arguments), environment: Texts(environment) }
}

/// Ends the machine because the first program cannot run. The status is that of a shell: 127 if a file is
/// missing, 126 otherwise.
fn refuse(path: &[u8], error: Errno) -> ! {
    let (why, status) = match error {
        Errno::ENOENT => ("it, or a file that it names, is missing", 127),
        Errno::EACCES => ("it is no executable file", 126),
        errno::ENOEXEC => ("it is neither a program for this machine nor a script", 126),
        Errno::ENOMEM => ("memory is insufficient", 126),
        errno::ELOOP => ("too many scripts or links lead to each other", 126),
        _ => ("the program is invalid", 126),
    };
    let name = alloc::string::String::from_utf8_lossy(path).into_owned();
    report::report!("refused {}: {why}", name.escape_debug());
    halt::exit(status)
}

/// Makes process 1 and its thread, and queues the thread. If QEMU got a single program instead of an archive,
/// the program is `/program` and all words are its arguments. Otherwise the first word is the path of the
/// program in the archive, or `/init` if there is no word.
fn run_first(mut strings: Strings) {
    let root = tree::root();
    let alone = root.child(b"program").ok();
    let path = match (&alone, strings.arguments.0.first()) {
        (Some(_), _) => b"/program".to_vec(),
        (None, Some(path)) => path.clone(),
        (None, None) => b"/init".to_vec(),
    };
    if strings.arguments.0.is_empty() {
        strings.arguments.0.push(path.clone());
    }
    let found = tree::lookup(&root, &path, true);
    let node = found.and_then(exec::begin);
    let node = node.and_then(|node| exec::interpret(node, &path, &root, &mut strings));
    let loaded = node.and_then(|node| {
        let program = exec::open(node, &root)?;
        let loaded = exec::load(&program, &path, &strings, &Limits::first(), &Ids::default())?;
        Ok((program.into_file(), loaded))
    });
    let (node, Loaded { space, frame, layout }) = loaded.unwrap_or_else(|error| refuse(&path, error));
    let process = Process::new(process::new_tid(), None);
    let process = process.expect("memory for a process");
    let console = Open::new(Arc::new(Console), O_RDWR, b"/dev/console");
    // The ends of threads use these.
    drop((table::of_ended(), Place::of_ended()));
    let files = FileTable::new(Default::default(), &process.descriptor_limit);
    for _ in 0..3 {
        files.add(console.clone(), 0, false).expect("room for a descriptor");
    }
    let comm = exec::short_name(&path);
    *process.name.lock() = path;
    *process.layout.lock() = layout;
    *process.exe.lock() = Some(Arc::new(node));
    *process.space.lock() = Some(space.clone());
    renew::renew(&process);
    let (first, descriptors) = (space.clone(), files.fork(true).expect("shared descriptors"));
    let thread = Thread::of_program(
        process.pid,
        &process,
        descriptors,
        Place::first(),
        space,
        &frame,
        &Vectors([[0; 16]; 16]),
    );
    let thread = Arc::new(thread.expect("memory for a thread"));
    *thread.comm.lock() = comm;
    thread.alternate_stack.set(AlternateStack::UNSET);
    process.add(thread.clone());
    if options::records() {
        record::begin(proc::huge::mode());
    }
    record::of_exec(&thread, &process, &first, clock::now_ns());
    scheduler::enqueue_new(thread);
}
