//! What calls say in structures in the caller's memory, which no event of the kernel shows: ioctls of userfaultfds, new resource limits, and
//! new capabilities.
//!
//! Two programs run in the kernel where such a call begins and ends, in whatever process. The first reads the structure and remembers the call
//! by its thread. The second reads it again if its pages were not there yet: the kernel has read it meanwhile. Then it puts everything into a
//! queue. A call of another kind costs a comparison and a look into a table, some 600 ns in all.

use super::bpf::{
    ARRAY, END, HALF, HASH, Instruction, Map, QUEUE, R, WORD, add, call, copy, count, load, program, set,
    skip_if, skip_if_null, skip_unless_null, store, store_constant,
};
use super::raw::{Raw, What};
use super::tracee::now;
use super::tracefs::Instance;
use anyhow::Context;
use freehold_trace::CallName;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use std::os::fd::AsRawFd;

/// A call whose structure is read.
#[derive(Clone, Copy, Debug)]
struct Watched {
    call: CallName,
    /// Only where this argument is one of these.
    chosen: Option<(usize, &'static [u32])>,
    /// The argument that is the structure's address.
    pointer: usize,
    /// Bytes of the structure that are read, at least.
    bytes: i32,
}

/// `UFFDIO_REGISTER`: start, length and mode. `UFFDIO_UNREGISTER`: start and length.
const REGISTER: u32 = 0xc020_aa00;
const UNREGISTER: u32 = 0x8010_aa01;
/// Bytes of the longest structure.
const LONGEST: i32 = 24;
/// RLIMIT_DATA, _STACK, _MEMLOCK and _AS.
const RESOURCES: &[u32] = &[2, 3, 8, 9];

const WATCHED: [Watched; 4] = [
    Watched { call: CallName::Ioctl, chosen: Some((1, &[REGISTER, UNREGISTER])), pointer: 2, bytes: 16 },
    Watched { call: CallName::Prlimit64, chosen: Some((1, RESOURCES)), pointer: 2, bytes: 16 },
    Watched { call: CallName::Setrlimit, chosen: Some((0, RESOURCES)), pointer: 1, bytes: 16 },
    // The lower halves of the sets.
    Watched { call: CallName::Capset, chosen: None, pointer: 1, bytes: 12 },
];

/// Whether calls of this name are told of here.
pub fn is_watched(call: CallName) -> bool {
    WATCHED.iter().any(|watched| watched.call == call)
}

/// Calls under way at once.
const THREADS: u32 = 4096;
/// Bytes in the queue, as a part of the buffer of the kernel's tracing.
const PART_OF_BUFFER: u32 = 2;

/// What is told of a call, by words: its thread, when it began, processor, place in [`WATCHED`], arguments, the structure, whether that could not
/// be read, what the call returned, and when.
const THREAD_AT: i16 = at(0);
const BEGUN_AT: i16 = at(1);
const CPU_AT: i16 = at(2);
const WHICH_AT: i16 = at(3);
const ARGS: usize = 4;
const STRUCTURE: usize = 8;
const STRUCTURE_AT: i16 = at(STRUCTURE);
const UNREAD_AT: i16 = at(11);
const RESULT_AT: i16 = at(12);
const ENDED_AT: i16 = at(13);
const TOLD: usize = 14;
/// Of these, words 1 to 11 are remembered from the beginning.
const BEGUN: usize = 11;
/// Arguments that are kept.
const KEPT: usize = STRUCTURE - ARGS;

/// Functions of the kernel, by number.
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const TIME: i32 = 5;
const PROCESSOR: i32 = 8;
const THREAD: i32 = 14;
const PUSH: i32 = 87;
const READ_USER: i32 = 112;

/// The programs at work; no more when dropped.
pub struct Pointed {
    told: Map,
    /// Calls that the queue holds.
    room: u32,
    /// How many calls found no room.
    lost: Map,
    /// How many those were when that was last looked at, and when that was.
    lost_before: u64,
    looked: u64,
    _attached: Vec<Counter>,
    _begun: Map,
}

impl Pointed {
    /// From now on, on all processors, of which `cpu` is one, with a queue that suits a buffer of so many kilobytes.
    ///
    /// # Errors
    ///
    /// What is missing, for the user.
    pub fn new(instance: &Instance, kilobytes: u32, cpu: u16) -> anyhow::Result<Pointed> {
        const LEAVE: &str = "no leave for programs in the kernel (bpf)";
        let begun = Map::new(HASH, 8, 8 * BEGUN as u32, THREADS).context(LEAVE)?;
        let bytes = 8 * TOLD as u32;
        let room = (kilobytes.saturating_mul(1024) / PART_OF_BUFFER / bytes).max(1);
        let told = Map::new(QUEUE, 0, bytes, room).context(LEAVE)?;
        let lost = Map::new(ARRAY, 4, 8, 1).context(LEAVE)?;
        let attach = |event: &str, instructions: Vec<Instruction>| {
            let program = program(&instructions).context(LEAVE)?;
            let mut builder = Builder::new(Tracepoint::with_id(instance.number(event)?));
            // Wherever the event is counted: its program runs on all processors.
            let mut counter = builder.any_pid().one_cpu(cpu.into()).include_kernel().build()?;
            counter.set_bpf(program.as_raw_fd())?;
            counter.enable()?;
            anyhow::Ok(counter)
        };
        let mut attached = Vec::new();
        for (which, watched) in WATCHED.iter().enumerate() {
            let name = watched.call.as_str();
            attached
                .push(attach(&format!("syscalls/sys_exit_{name}"), leaves(watched, &begun, &told, &lost))?);
            attached
                .push(attach(&format!("syscalls/sys_enter_{name}"), enters(watched, which, &begun, &lost))?);
        }
        Ok(Pointed { told, room, lost, lost_before: 0, looked: now(), _attached: attached, _begun: begun })
    }

    /// Takes away what there is.
    ///
    /// # Errors
    ///
    /// Those of bpf(2).
    pub fn drain(&mut self, to: &mut Vec<Raw>) -> std::io::Result<()> {
        let looked = now();
        let [lost] = self.lost.first()?;
        if lost > self.lost_before {
            to.extend(Raw::losses(lost - self.lost_before, self.looked..now()));
        }
        (self.lost_before, self.looked) = (lost, looked);
        // No more than the queue holds: others may fill it as fast as it is emptied.
        for _ in 0..self.room {
            let Some(told) = self.told.take()? else { break };
            to.extend(reports(told));
        }
        Ok(())
    }
}

/// Beginning and end of a call; nothing of one whose structure was nowhere.
fn reports(told: [u64; TOLD]) -> Vec<Raw> {
    let [thread, begun, cpu, which, a, b, .., unread, result, ended] = told;
    let (cpu, thread, result) = (Some(cpu as u16), thread as i32, result as i64);
    let Some(watched) = WATCHED.get(which as usize) else { return Vec::new() };
    if unread != 0 {
        // The kernel has read it, if the call succeeded: another thread has taken it away meanwhile.
        let lost = Raw { time: begun, cpu, thread, what: What::Missed };
        return if result >= 0 { vec![lost] } else { Vec::new() };
    }
    let [first, second, third] = [0, 1, 2].map(|word| told[STRUCTURE + word]);
    // Descriptors, PIDs, operations and resources are ints.
    let (a, b) = (a & u64::from(u32::MAX), b & u64::from(u32::MAX));
    let args = match watched.call {
        CallName::Ioctl => [a, b, first, second, if b as u32 == REGISTER { third } else { 0 }, 0],
        CallName::Prlimit64 => [a, b, first, second, 0, 0],
        CallName::Setrlimit => [a, first, second, 0, 0, 0],
        _ => [first & u64::from(u32::MAX), 0, 0, 0, 0, 0],
    };
    let (enter, leave) = (What::Enter(watched.call, args), What::Leave(watched.call, result));
    [(begun, enter), (ended, leave)].map(|(time, what)| Raw { time, cpu, thread, what }).into()
}

/// Where the word of this number lies below the end of the stack.
const fn at(word: usize) -> i16 {
    (word as i16 - TOLD as i16) * 8
}

/// Where the arguments of an event lie, or what it returned.
const fn argument(number: usize) -> i16 {
    16 + 8 * number as i16
}

/// `register = the address of a word on the stack`.
fn address(register: u8, at: i16) -> [Instruction; 2] {
    [copy(register, R[10]), add(register, at.into())]
}

/// Reads the structure whose address is in register 8, and notes whether that failed.
fn read(watched: &Watched) -> Vec<Instruction> {
    let mut all = vec![set(R[2], watched.bytes)];
    if let Some((number, [REGISTER, ..])) = watched.chosen {
        let longer =
            [load(WORD, R[4], R[10], at(ARGS + number)), skip_if(R[4], UNREGISTER, 1), set(R[2], LONGEST)];
        all.extend(longer);
    }
    all.extend(address(R[1], STRUCTURE_AT));
    all.extend([copy(R[3], R[8]), call(READ_USER), store(WORD, R[10], UNREAD_AT, R[0])]);
    all
}

/// At the beginning of a call: remembers all that is known by then by the thread.
fn enters(watched: &Watched, which: usize, begun: &Map, lost: &Map) -> Vec<Instruction> {
    let mut all = vec![copy(R[6], R[1])];
    if let Some((number, values)) = watched.chosen {
        all.push(load(HALF, R[7], R[6], argument(number)));
        let over = |index: usize| (values.len() - index + 1) as i16;
        all.extend(values.iter().enumerate().map(|(index, value)| skip_if(R[7], *value, over(index))));
        all.extend([set(R[0], 0), END]);
    }
    // Without a structure it only asks.
    all.push(load(WORD, R[8], R[6], argument(watched.pointer)));
    all.extend([skip_unless_null(R[8], 2), set(R[0], 0), END]);
    all.extend([
        call(THREAD),
        store(WORD, R[10], THREAD_AT, R[0]),
        call(TIME),
        store(WORD, R[10], BEGUN_AT, R[0]),
        call(PROCESSOR),
        store(WORD, R[10], CPU_AT, R[0]),
        store_constant(R[10], WHICH_AT, which as i32),
    ]);
    let arguments = watched.pointer + 1;
    for number in 0..KEPT {
        match number < arguments {
            true => all.extend([
                load(WORD, R[1], R[6], argument(number)),
                store(WORD, R[10], at(ARGS + number), R[1]),
            ]),
            false => all.push(store_constant(R[10], at(ARGS + number), 0)),
        }
    }
    all.extend((0..3).map(|word| store_constant(R[10], at(STRUCTURE + word), 0)));
    all.extend(read(watched));
    all.extend(address(R[2], THREAD_AT));
    all.extend(address(R[3], BEGUN_AT));
    all.push(set(R[4], 0));
    all.extend(begun.address(R[1]));
    all.extend([call(UPDATE), copy(R[8], R[0])]);
    all.extend(end(lost));
    all
}

/// At its end: if the thread's call was remembered, hands all of it over.
fn leaves(watched: &Watched, begun: &Map, told: &Map, lost: &Map) -> Vec<Instruction> {
    let mut all = vec![copy(R[6], R[1]), call(THREAD), store(WORD, R[10], THREAD_AT, R[0])];
    all.extend(address(R[2], THREAD_AT));
    all.extend(begun.address(R[1]));
    // Most are not remembered.
    all.extend([call(LOOKUP), skip_unless_null(R[0], 2), set(R[0], 0), END]);
    for word in 0..BEGUN {
        all.push(load(WORD, R[7], R[0], 8 * word as i16));
        all.push(store(WORD, R[10], at(1 + word), R[7]));
    }
    let mut again = vec![load(WORD, R[8], R[10], at(ARGS + watched.pointer))];
    again.extend(read(watched));
    all.push(load(WORD, R[1], R[10], UNREAD_AT));
    all.push(skip_if_null(R[1], again.len() as i16));
    all.extend(again);
    all.extend([
        load(WORD, R[1], R[6], argument(0)),
        store(WORD, R[10], RESULT_AT, R[1]),
        call(TIME),
        store(WORD, R[10], ENDED_AT, R[0]),
    ]);
    all.extend(address(R[2], THREAD_AT));
    all.push(set(R[3], 0));
    all.extend(told.address(R[1]));
    all.extend([call(PUSH), copy(R[8], R[0])]);
    all.extend(address(R[2], THREAD_AT));
    all.extend(begun.address(R[1]));
    all.push(call(DELETE));
    all.extend(end(lost));
    all
}

/// Counts a loss unless register 8 is 0, and ends.
fn end(lost: &Map) -> Vec<Instruction> {
    let mut count_it =
        vec![store_constant(R[10], THREAD_AT, 0), copy(R[2], R[10]), add(R[2], THREAD_AT.into())];
    count_it.extend(lost.address(R[1]));
    count_it.extend([call(LOOKUP), skip_if_null(R[0], 2), set(R[1], 1), count(R[0], 0, R[1])]);
    let mut all = vec![skip_if_null(R[8], count_it.len() as i16)];
    all.extend(count_it);
    all.extend([set(R[0], 0), END]);
    all
}
