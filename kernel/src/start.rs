//! What happens when the kernel boots, in order.

use crate::arch::trap::Vectors;
use crate::arch::{apic, clock, cpu, descriptors, features, report, serial};
use crate::boot::smp;
use crate::boot::start_info::StartInfo;
use crate::files::console::Console;
use crate::files::open::Open;
use crate::files::tree::{self, Node};
use crate::memory::platform::Machine;
use crate::memory::{self, direct, frames};
use crate::task::exec::{self, Strings};
use crate::task::process::{self, Process};
use crate::task::{Thread, limits, scheduler};
use crate::{options, record};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::engine::{Config, Engine};
use freehold::hugetlb::HugePageSize;
use freehold_kernel::{cpio, words};
use linux_raw_sys::general::O_RDWR;

/// The engine; from `Box::into_raw`, and never given back.
static ENGINE: AtomicPtr<Counted<Engine<Machine>>> = AtomicPtr::new(core::ptr::null_mut());

/// What all address spaces share.
pub fn engine() -> &'static Counted<Engine<Machine>> {
    // Acquire pairs with the release of `start_engine`.
    // SAFETY: set before the first program, and kept for ever.
    unsafe { ENGINE.load(Acquire).as_ref() }.expect("the engine")
}

/// Where the first processor begins in Rust: `boot.s` jumps here with the boot protocol's address.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: u64) -> ! {
    serial::init();
    report::report!("ready");
    apic::mask_old_controllers();
    cpu::init(0);
    descriptors::init_gates();
    descriptors::load();
    features::init();
    // SAFETY: the boot protocol's address.
    let info = unsafe { StartInfo::at(info) };
    let (settings, program) = words::split(info.command_line());
    options::init(settings);
    let module = info.module();
    memory::init(info, module);
    apic::init();
    clock::calibrate();
    clock::read_day();
    scheduler::init_cpu();
    smp::start_all(info.rsdp);
    start_engine();
    if options::is_verbose() {
        let (free, count) = ((frames::free_count() * PAGE_SIZE) >> 20, cpu::count());
        let total = memory::total_bytes() >> 20;
        report::say!(
            "freehold: {count} processors, {free} of {total} MiB free, {} us",
            clock::now_ns() / 1000
        );
    }
    let Some(module) = module else { panic!("there is no initial file system: -initrd") };
    // SAFETY: the module's memory was taken out of what is free, and nobody writes there.
    let module = unsafe {
        core::slice::from_raw_parts(direct::<u8>(module.start), (module.end - module.start) as usize)
    };
    tree::unpack(module);
    run_first(strings(module, program));
    scheduler::idle()
}

fn start_engine() {
    // Linux's default where a distribution sets no other: programs may map all but the first page.
    let config = Config { mmap_min_addr: PAGE_SIZE, ..Config::default() };
    let engine = Engine::new(Machine, config).expect("memory for the engine");
    // Release pairs with the acquire of `engine`.
    ENGINE.store(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(engine)), Release);
    crate::files::proc::settings::commit();
    crate::files::proc::settings::set_huge_pages(HugePageSize::Mib2, options::huge_pages());
}

/// What the first program is given: the archive says it, or else the words of the command line.
fn strings(module: &'static [u8], line: &str) -> Strings {
    let listed = |name: &[u8]| {
        let entry = cpio::entries(module).find(|entry| entry.name == name)?;
        let ended = entry.contents.strip_suffix(&[0]).unwrap_or_default();
        Some(ended.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let usual = || alloc::vec![b"PATH=/bin:/usr/bin:/sbin:/usr/sbin".to_vec(), b"HOME=/".to_vec()];
    Strings {
        arguments: listed(b".boot/args")
            .unwrap_or_else(|| words::words(line).map(Iterator::collect).collect()),
        environment: listed(b".boot/env").unwrap_or_else(usual),
    }
}

/// Makes the first process. An archive's program is named by its path; a program that was booted alone gets
/// all the words as its arguments.
fn run_first(mut strings: Strings) {
    let root = tree::root();
    let alone = root.child(b"program").ok();
    let path = match (&alone, strings.arguments.first()) {
        (Some(_), _) => b"/program".to_vec(),
        (None, Some(path)) => path.clone(),
        (None, None) => b"/init".to_vec(),
    };
    if strings.arguments.is_empty() {
        strings.arguments.push(path.clone());
    }
    let name = |path: &[u8]| alloc::string::String::from_utf8_lossy(path).into_owned();
    let node: Arc<Node> = match tree::lookup(&root, &path, true) {
        Ok(node) => node,
        Err(error) => panic!("the first program {}: {error:?}", name(&path)),
    };
    let process = Process::new(process::new_tid(), None, Default::default());
    let console = Open::new(Arc::new(Console), O_RDWR, b"/dev/console");
    for _ in 0..3 {
        process.files.add(console.clone(), 0, false).expect("room for a descriptor");
    }
    let (space, frame) =
        match exec::open(node.clone()).and_then(|program| exec::load(&program, &path, &strings)) {
            Ok(loaded) => loaded,
            Err(error) => panic!("the first program {}: {error:?}", name(&path)),
        };
    let comm = exec::short_name(&path);
    *process.name.lock() = path;
    process.auxv_at.store(strings.auxv_at(frame.rsp), Relaxed);
    *process.exe.lock() = Some(node);
    *process.space.lock() = Some(space.clone());
    limits::renew(&process);
    let first = space.clone();
    let thread = Thread::new(process.pid, &process, space, &frame, &Vectors([[0; 16]; 16]));
    let thread = Arc::new(thread.expect("memory for a thread"));
    *thread.comm.lock() = comm;
    process.add(thread.clone());
    record::begin();
    record::of_exec(&thread, &process, &first, clock::now_ns());
    scheduler::enqueue(thread);
}
