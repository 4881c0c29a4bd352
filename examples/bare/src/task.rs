//! Processes and threads: a task runs until it ends or waits for another task.
//!
//! | number | call | result |
//! | --- | --- | --- |
//! | 0 | print(address, bytes) | 0 |
//! | 1 | exit(status) ends the task | |
//! | 2 | mmap(address, bytes, protection, flags, file) | address |
//! | 3 | munmap(address, bytes) | 0 |
//! | 4 | mprotect(address, bytes, protection) | 0 |
//! | 5 | fork() | 0 in the child, 1 in the parent |
//! | 6 | wait() waits until a child or a thread has ended | its status |
//! | 7 | thread(pc, stack, argument) starts a thread | 0 |
//! | 8 | on_fault(pc): the thread continues at `pc` after a fault that has no page | 0 |
//!
//! The result of a call that fails is the negative errno number.

use crate::lock::Lock;
use crate::start::{FAULTS, RCU, Trap, count as count_event, print};
use crate::{Board, arch};
use alloc::{boxed::Box, collections::VecDeque, string::String, sync::Arc, vec, vec::Vec};
use freehold::platform::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use freehold::prelude::*;
use freehold::remote::AccessMode;

/// The image of the program (`bin/program.rs`).
static PROGRAM: &[u8] = include_bytes!(env!("BARE_PROGRAM"));
/// The address of the image, as in `program.ld`.
const PROGRAM_AT: u64 = 0x40_0000;
const STACK: u64 = 16 * PAGE_SIZE;
const RW: Prot = Prot::READ.union(Prot::WRITE);
const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

/// Statuses of tasks that have ended.
#[derive(Default)]
pub struct Statuses(Lock<Vec<u64>>);

impl Statuses {
    /// Removes and returns a status.
    pub fn get(&self) -> Option<u64> {
        self.0.with(Vec::pop)
    }
}

impl Default for Lock<Vec<u64>> {
    fn default() -> Self {
        Lock::new(Vec::new())
    }
}

struct Process {
    space: Counted<AddressSpace<Board>>,
    /// The statuses of the children and threads.
    ended: Arc<Statuses>,
    /// File 1 has the number of each page, plus one, in all bytes of the page. File 2 is shared memory.
    files: [Counted<File<Board>>; 2],
}

/// A thread of a process.
pub struct Task {
    registers: arch::Registers,
    process: Arc<Process>,
    /// Receives the status of the task.
    reports_to: Arc<Statuses>,
    /// The program continues at this address after a fault that has no page, unless the address is 0.
    on_fault: u64,
}

/// The tasks that no CPU runs.
static QUEUE: Lock<VecDeque<Box<Task>>> = Lock::new(VecDeque::new());
static TASKS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of tasks.
pub fn count() -> u64 {
    // Acquire: pairs with the release in `run`. The statuses are complete, and the tasks are dropped.
    TASKS.load(Acquire)
}

/// The action of a CPU after a trap.
enum Next {
    Continue,
    /// The CPU runs another task first.
    Wait,
    End(u64),
}

/// The bytes of the program's image.
struct Image;

impl Pager<Board> for Image {
    fn read_page(&self, board: &Board, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        let from = (index.get() * PAGE_SIZE) as usize;
        let bytes = PROGRAM.get(from..).ok_or(IoError)?;
        board.write_frame(frame, 0, &bytes[..bytes.len().min(PAGE_SIZE as usize)]);
        Ok(())
    }
}

/// File 1.
struct Numbers;

impl Pager<Board> for Numbers {
    fn read_page(&self, board: &Board, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        board.write_frame(frame, 0, &[index.get() as u8 + 1; PAGE_SIZE as usize]);
        Ok(())
    }
}

/// Creates the first task. Returns where its status will be.
pub fn start(engine: &Counted<Engine<Board>>) -> Arc<Statuses> {
    let space = AddressSpace::new(engine, &SpaceConfig::new()).expect("there is memory");
    let image = Mapping::new(engine, Image, PROGRAM.len() as u64, false).expect("there is memory");
    let image = File::new(&image, FileAccess::READ, "/program").expect("there is memory");
    let fixed = MapFlags::PRIVATE | MapFlags::FIXED;
    let bytes = (PROGRAM.len() as u64).next_multiple_of(PAGE_SIZE);
    space.mmap(PROGRAM_AT, bytes, Prot::READ | Prot::EXEC, fixed, Some(&image), 0).expect("the image fits");
    let stack = space.mmap(0, STACK, RW, ANON, None, 0).expect("the stack fits") + STACK;
    let numbers = Mapping::new(engine, Numbers, 64 * PAGE_SIZE, false).expect("there is memory");
    let shared = Mapping::memfd(engine, 16 * PAGE_SIZE).expect("there is memory");
    let files = [
        File::new(&numbers, FileAccess::READ, "/numbers").expect("there is memory"),
        File::new(&shared, FileAccess::READ_WRITE, "/shared").expect("there is memory"),
    ];
    let process = Arc::new(Process { space, ended: Arc::default(), files });
    let status: Arc<Statuses> = Arc::default();
    let registers = arch::Registers::new(PROGRAM_AT, stack, 0);
    Task { registers, process, reports_to: status.clone(), on_fault: 0 }.add();
    status
}

impl Task {
    /// Adds a new task to the queue.
    fn add(self) {
        TASKS.fetch_add(1, Relaxed);
        Box::new(self).wait();
    }

    /// Adds the task to the queue.
    fn wait(self: Box<Self>) {
        QUEUE.with(|queue| queue.push_back(self));
        arch::wake(1 - arch::cpu());
    }

    /// Takes the next task from the queue.
    pub fn next() -> Option<Box<Task>> {
        QUEUE.with(VecDeque::pop_front)
    }

    /// Runs the task until it ends or waits.
    pub fn run(mut self: Box<Self>) {
        let cpu = arch::cpu();
        arch::enter(self.process.space.mmu());
        let status = loop {
            RCU.offline(cpu);
            let trap = self.registers.run();
            RCU.online(cpu);
            let next = match trap {
                Trap::Interrupt => {
                    arch::answer();
                    Next::Continue
                }
                Trap::Fault { addr, access } => self.fault(addr, access),
                Trap::Call => self.call(),
            };
            RCU.advance();
            match next {
                Next::Continue => {}
                Next::Wait => break None,
                Next::End(status) => break Some(status),
            }
        };
        arch::leave(self.process.space.mmu());
        let Some(status) = status else { return self.wait() };
        let reports_to = self.reports_to.clone();
        drop(self);
        reports_to.0.with(|statuses| statuses.push(status));
        // Release: pairs with the acquire in `count`.
        TASKS.fetch_sub(1, Release);
        arch::wake(1 - cpu);
    }

    fn fault(&mut self, addr: u64, access: Access) -> Next {
        count_event(&FAULTS);
        match self.process.space.handle_fault(addr, access) {
            Ok(_) => arch::flush_page(addr),
            Err(_) if self.on_fault != 0 => self.registers.set_pc(self.on_fault),
            Err(error) => panic!("{access:?} at {addr:#x}: {error}"),
        }
        Next::Continue
    }

    fn call(&mut self) -> Next {
        let (number, arguments) = self.registers.call();
        let [first, second, third, fourth, fifth] = arguments;
        let process = &self.process;
        let result = match number {
            0 => {
                let mut text = vec![0; second.min(PAGE_SIZE) as usize];
                let read = process.space.read_memory(first, &mut text, AccessMode::Plain);
                read.map(|_| print(format_args!("  {}", String::from_utf8_lossy(&text)))).map_err(errno)
            }
            .map(|()| 0),
            1 => return Next::End(first),
            2 => {
                let file = fifth.checked_sub(1).and_then(|file| process.files.get(file as usize));
                let (prot, flags) =
                    (Prot::from_bits_truncate(third as _), MapFlags::from_bits_truncate(fourth as _));
                process.space.mmap(first, second, prot, flags, file, 0).map_err(errno)
            }
            3 => process.space.munmap(first, second).map(|()| 0).map_err(errno),
            4 => process
                .space
                .mprotect(first, second, Prot::from_bits_truncate(third as _))
                .map(|()| 0)
                .map_err(errno),
            5 => self.fork(),
            6 => match process.ended.get() {
                Some(status) => Ok(status),
                None => {
                    self.registers.repeat_call();
                    return Next::Wait;
                }
            },
            7 => {
                let registers = arch::Registers::new(first, second, third);
                let (process, reports_to) = (process.clone(), process.ended.clone());
                Task { registers, process, reports_to, on_fault: self.on_fault }.add();
                Ok(0)
            }
            8 => {
                self.on_fault = first;
                Ok(0)
            }
            number => panic!("there is no system call {number}"),
        };
        self.registers.set_result(result.unwrap_or_else(|errno| -errno as u64));
        Next::Continue
    }

    fn fork(&self) -> Result<u64, i64> {
        let space = self.process.space.fork().map_err(errno)?;
        let process = Arc::new(Process { space, ended: Arc::default(), files: self.process.files.clone() });
        let mut registers = self.registers.clone();
        registers.set_result(0);
        let reports_to = self.process.ended.clone();
        Task { registers, process, reports_to, on_fault: self.on_fault }.add();
        Ok(1)
    }
}

/// Returns the errno number of an error.
fn errno(error: impl ToErrno) -> i64 {
    error.to_errno().number() as i64
}
