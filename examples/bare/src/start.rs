//! The start of each CPU, its loop, and the end. Also the counts that the kernel prints at the end.

use crate::task::{self, Task};
use crate::{Board, arch, conformance, memory};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use freehold::platform::Host;
use freehold::platform::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use freehold::prelude::*;
use freehold_kit::{Qsbr, QsbrCpu};

/// Number of CPUs.
pub const CPUS: usize = 2;

/// The grace periods. A CPU is offline while it sleeps or runs a program.
pub static RCU: Qsbr<CPUS> = Qsbr::new([const { QsbrCpu::new() }; CPUS]);

/// A count of each CPU.
pub type Counts = [AtomicU64; CPUS];
/// Page faults that the engine has handled.
pub static FAULTS: Counts = [const { AtomicU64::new(0) }; CPUS];
/// Flushes that each CPU has done.
pub static FLUSHES: Counts = [const { AtomicU64::new(0) }; CPUS];

/// Adds one to this CPU's count.
pub fn count(counts: &Counts) {
    counts[arch::cpu()].fetch_add(1, Relaxed);
}

/// The reason why a program has stopped.
pub enum Trap {
    /// The program makes a system call.
    Call,
    /// The program accesses an address that has no translation for this access.
    Fault { addr: u64, access: Access },
    /// Another CPU interrupts this CPU.
    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "flushes are instructions"))]
    Interrupt,
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(arch::print);
        Ok(())
    }
}

/// Prints a line.
pub fn print(text: fmt::Arguments<'_>) {
    // Writing to the console does not fail.
    let _ = writeln!(Console, "{text}");
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    print(format_args!("FAILED: {info}"));
    arch::power_off(true)
}

/// Set when the last task has ended.
static DONE: AtomicBool = AtomicBool::new(false);

/// Starts a CPU. CPU 0 prepares the machine, starts CPU 1, runs the conformance suite, and creates the
/// first task. `hardware` is the number that the firmware gives to the CPU.
#[expect(unsafe_code, reason = "`boot.s` calls the function by its name")]
#[unsafe(no_mangle)]
extern "C" fn kernel_main(cpu: usize, hardware: u64) -> ! {
    arch::prepare_cpu(cpu, hardware);
    if cpu == 1 {
        RCU.online(cpu);
        conformance::serve();
        // Acquire: pairs with the release in `end`.
        run_tasks(|| DONE.load(Acquire));
        RCU.offline(cpu);
        loop {
            arch::sleep();
        }
    }
    memory::prepare();
    RCU.online(cpu);
    let free = memory::free_frames();
    print(format_args!("{}: {free} frames", arch::NAME));
    let engine = Engine::new(Board, Config::new()).expect("there is memory");
    arch::start_second_cpu();
    conformance::run(&engine);
    let status = task::start(&engine);
    run_tasks(|| task::count() == 0);
    end(engine, free, status.get())
}

/// Runs tasks until `done`, and sleeps while there is none.
fn run_tasks(done: impl Fn() -> bool) {
    let cpu = arch::cpu();
    while !done() {
        arch::answer();
        RCU.quiescent(cpu);
        RCU.advance();
        if let Some(task) = Task::next() {
            task.run();
        } else if !done() {
            RCU.offline(cpu);
            arch::sleep();
            RCU.online(cpu);
        }
    }
}

/// Destroys the engine, and compares the number of free frames with the number at the start.
fn end(engine: Counted<Engine<Board>>, free: u64, status: Option<u64>) -> ! {
    // Release: pairs with the acquire in `kernel_main`.
    DONE.store(true, Release);
    arch::wake(1);
    drop(engine);
    Board::rcu_barrier();
    let sum = |counts: &Counts| counts.each_ref().map(|count| count.load(Relaxed));
    let ([faults, others], [flushes, remote]) = (sum(&FAULTS), sum(&FLUSHES));
    print(format_args!("faults: {faults} + {others}, flushes: {flushes} + {remote}"));
    let leaked = free as i64 - memory::free_frames() as i64;
    print(format_args!("{leaked} frames leaked"));
    let both = others > 0 && faults > 0;
    assert!(status == Some(0) && both && leaked == 0, "the program ended with {status:?}");
    print(format_args!("passed"));
    arch::power_off(false)
}
