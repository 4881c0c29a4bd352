//! What a userfaultfd's ioctls say, whose numbers stand in the caller's memory: no event of the kernel shows them.
//!
//! Two programs run in the kernel where ioctl begins and ends, in whatever process. The first remembers a call that is of interest, by
//! its thread. The second reads the structure, whose pages are there now that the kernel has read it too, and puts everything into
//! a queue. An ioctl of another kind costs a comparison and a look into a table, some 600 ns in all.

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

/// `UFFDIO_REGISTER`: start, length and mode. `UFFDIO_UNREGISTER`: start and length.
const REGISTER: u32 = 0xc020_aa00;
const UNREGISTER: u32 = 0x8010_aa01;

/// Calls under way at once.
const THREADS: u32 = 4096;
/// Bytes in the queue, as a part of the buffer of the kernel's tracing.
const PART_OF_BUFFER: u32 = 2;

/// Words of what is remembered of a call, and of what is told of it.
const BEGUN: usize = 5;
const TOLD: usize = 12;

/// Functions of the kernel, by number.
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const TIME: i32 = 5;
const PROCESSOR: i32 = 8;
const THREAD: i32 = 14;
const PUSH: i32 = 87;
const READ_USER: i32 = 112;

/// The two programs at work; no more when dropped.
pub struct Ioctls {
    told: Map,
    /// Calls that the queue holds.
    room: u32,
    /// How many calls found no room.
    lost: Map,
    /// How many those were when that was last looked at, and when that was.
    lost_before: u64,
    looked: u64,
    _attached: [Counter; 2],
    _begun: Map,
}

impl Ioctls {
    /// From now on, on all processors, of which `cpu` is one, with a queue that suits a buffer of so many kilobytes.
    ///
    /// # Errors
    ///
    /// What is missing, for the user.
    pub fn new(instance: &Instance, kilobytes: u32, cpu: u16) -> anyhow::Result<Ioctls> {
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
        let leaves = attach("syscalls/sys_exit_ioctl", leaves(&begun, &told, &lost))?;
        let enters = attach("syscalls/sys_enter_ioctl", enters(&begun, &lost))?;
        Ok(Ioctls {
            told,
            room,
            lost,
            lost_before: 0,
            looked: now(),
            _attached: [enters, leaves],
            _begun: begun,
        })
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
            to.extend(reports(told).into_iter().flatten());
        }
        Ok(())
    }
}

/// Beginning and end of a call; nothing of one whose structure was nowhere.
fn reports(told: [u64; TOLD]) -> Option<[Raw; 2]> {
    let [thread, begun, cpu, fd, command, _, start, len, mode, unread, result, ended] = told;
    if unread != 0 {
        // The kernel has read it, if the call succeeded: another thread has taken it away meanwhile.
        return (result as i64 >= 0).then(|| Raw::losses(1, begun..ended));
    }
    let enter = What::Enter(CallName::Ioctl, [fd, command, start, len, mode, 0]);
    let leave = What::Leave(CallName::Ioctl, result as i64);
    let (cpu, thread) = (Some(cpu as u16), thread as i32);
    Some([(begun, enter), (ended, leave)].map(|(time, what)| Raw { time, cpu, thread, what }))
}

/// Where the word of this number lies below the end of the stack.
const fn at(word: usize) -> i16 {
    (word as i16 - TOLD as i16) * 8
}

/// Where the arguments of an event lie, or what it returned.
const fn argument(number: usize) -> i16 {
    16 + 8 * number as i16
}

/// At the beginning of an ioctl: remembers time, processor, descriptor, command and the structure's address by the thread.
fn enters(begun: &Map, lost: &Map) -> Vec<Instruction> {
    let remember = [
        copy(R[6], R[1]),
        call(THREAD),
        store(WORD, R[10], at(0), R[0]),
        call(TIME),
        store(WORD, R[10], at(1), R[0]),
        call(PROCESSOR),
        store(WORD, R[10], at(2), R[0]),
        load(HALF, R[1], R[6], argument(0)),
        store(WORD, R[10], at(3), R[1]),
        store(WORD, R[10], at(4), R[7]),
        load(WORD, R[1], R[6], argument(2)),
        store(WORD, R[10], at(5), R[1]),
        copy(R[2], R[10]),
        add(R[2], at(0).into()),
        copy(R[3], R[10]),
        add(R[3], at(1).into()),
        set(R[4], 0),
    ];
    let mut all = vec![
        load(HALF, R[7], R[1], argument(1)),
        skip_if(R[7], REGISTER, 3),
        skip_if(R[7], UNREGISTER, 2),
        set(R[0], 0),
        END,
    ];
    all.extend(remember);
    all.extend(begun.address(R[1]));
    all.extend([call(UPDATE), copy(R[8], R[0])]);
    all.extend(end(lost));
    all
}

/// At its end: if the thread's call was remembered, reads the structure and hands all of it over.
fn leaves(begun: &Map, told: &Map, lost: &Map) -> Vec<Instruction> {
    let mut all = vec![
        copy(R[6], R[1]),
        call(THREAD),
        store(WORD, R[10], at(0), R[0]),
        copy(R[2], R[10]),
        add(R[2], at(0).into()),
    ];
    all.extend(begun.address(R[1]));
    // Most are not remembered.
    all.extend([call(LOOKUP), skip_unless_null(R[0], 2), set(R[0], 0), END]);
    for word in 0..BEGUN {
        all.push(load(WORD, R[7], R[0], 8 * word as i16));
        all.push(store(WORD, R[10], at(1 + word), R[7]));
    }
    all.extend([
        // The last of these words was the address.
        copy(R[3], R[7]),
        store_constant(R[10], at(6), 0),
        store_constant(R[10], at(7), 0),
        store_constant(R[10], at(8), 0),
        copy(R[1], R[10]),
        add(R[1], at(6).into()),
        load(WORD, R[4], R[10], at(4)),
        set(R[2], 16),
        skip_if(R[4], UNREGISTER, 1),
        set(R[2], 24),
        call(READ_USER),
        store(WORD, R[10], at(9), R[0]),
        load(WORD, R[1], R[6], argument(0)),
        store(WORD, R[10], at(10), R[1]),
        call(TIME),
        store(WORD, R[10], at(11), R[0]),
        copy(R[2], R[10]),
        add(R[2], at(0).into()),
        set(R[3], 0),
    ]);
    all.extend(told.address(R[1]));
    all.extend([call(PUSH), copy(R[8], R[0]), copy(R[2], R[10]), add(R[2], at(0).into())]);
    all.extend(begun.address(R[1]));
    all.push(call(DELETE));
    all.extend(end(lost));
    all
}

/// Counts a loss unless register 8 is 0, and ends.
fn end(lost: &Map) -> Vec<Instruction> {
    let mut count_it = vec![store_constant(R[10], at(0), 0), copy(R[2], R[10]), add(R[2], at(0).into())];
    count_it.extend(lost.address(R[1]));
    count_it.extend([call(LOOKUP), skip_if_null(R[0], 2), set(R[1], 1), count(R[0], 0, R[1])]);
    let mut all = vec![skip_if_null(R[8], count_it.len() as i16)];
    all.extend(count_it);
    all.extend([set(R[0], 0), END]);
    all
}
