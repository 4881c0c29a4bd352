//! Reads the structures to which arguments of calls point. The structures are in the caller's memory, and no
//! event of the kernel shows them. They contain registrations with userfaultfds, new resource limits and
//! capabilities, and the ranges of process_madvise. The module also reports the capabilities after calls that
//! change credentials (`credentials.rs`).
//!
//! A BPF program runs when such a call begins, in any process. The program reads the structure to which the
//! argument points, and adds the structure to a queue. The caller has usually just written the structure, so
//! its page is nearly always present. The page of a constant that was never touched may be absent. If the
//! page was absent, another program reads the structure at the end of the call, when the kernel has faulted
//! the page in. The structure is reported with the time of the call's start. If the call writes to the same
//! place, or if the page is absent even at the end, the report says that the structure could not be read. The
//! kernel's own events report the ends of calls, and only for recorded processes: `assemble.rs` ignores
//! reports of other processes. For other processes, the two programs only cost time.
//!
//! The programs run from the start of the recording. It would be too late to attach them after a process has
//! created a userfaultfd: the recorder learns of the userfaultfd milliseconds later, and the process
//! registers memory immediately.
//!
//! [`Pointed`] is one of the sources of `collect.rs`. A new call with a structure needs an entry in
//! [`WATCHED`] and an arm in `enter`. `freehold-cli/tests/structures.rs` records programs whose structures
//! are in present and absent pages.

use super::bpf::{
    ARRAY, END, HALF, HASH, Instruction, Map, QUEUE, R, WORD, add, and, call, copy, count, load, program,
    set, shift_left, shift_right, skip, skip_if, skip_if_at_most, skip_if_more, skip_if_null,
    skip_unless_null, store, store_constant, subtract,
};
use super::credentials::{self, Layout};
use super::raw::{Raw, RawKind};
use super::tracee::now;
use super::tracefs::Instance;
use anyhow::Context;
use freehold_trace::CallName;
use freehold_trace::operation::{rlimit, uffdio};
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use std::collections::HashSet;
use std::os::fd::AsRawFd;

/// The size of a queue in bytes is the size of the buffer of the kernel's tracing divided by this number.
const PART_OF_BUFFER: u32 = 2;

/// A call whose structure is read.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// The name of the call.
    call: CallName,
    /// The call is watched only if this argument has one of these values.
    chosen: Option<(usize, &'static [u64])>,
    /// The index of the argument with the structure's address.
    pointer: usize,
    /// Number of bytes of the structure that are read.
    bytes: Bytes,
    /// The part of the structure that the call itself overwrites. A structure with such a part cannot be read
    /// at the end of the call.
    writes: Writes,
}

/// Bytes of a structure.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    /// This number of bytes.
    These(i32),
    /// For an ioctl: the size that the request number encodes, but at most the size of the available words.
    /// For an ioctl without a structure, the third argument itself is reported.
    Chosen,
}

/// The part of the structure that a call writes.
#[derive(Clone, Copy, Debug)]
enum Writes {
    /// The call writes no part.
    Nothing,
    /// The call writes the same number of bytes to the address in this argument.
    To(usize),
    /// The call writes the whole structure if the argument in `chosen` has this value.
    If(u64),
}

impl Watched {
    /// Creates a watched call. Argument `pointer` points to a structure of `bytes` bytes, which the call does
    /// not write.
    const fn new(
        call: CallName,
        chosen: Option<(usize, &'static [u64])>,
        pointer: usize,
        bytes: i32,
    ) -> Self {
        Watched { call, chosen, pointer, bytes: Bytes::These(bytes), writes: Writes::Nothing }
    }
}

/// The calls whose structures are read, except process_madvise.
const WATCHED: [Watched; 4] = [
    // For UFFDIO_REGISTER and UFFDIO_UNREGISTER: the start, the length and, if present, the mode. The call
    // writes only behind these fields. For UFFDIO_API: the number and the features, which the call
    // overwrites.
    Watched {
        bytes: Bytes::Chosen,
        writes: Writes::If(uffdio::API),
        ..Watched::new(CallName::Ioctl, Some((1, &uffdio::KEPT)), 2, 0)
    },
    // The old limits are written to the address in the last argument.
    Watched {
        writes: Writes::To(3),
        ..Watched::new(CallName::Prlimit64, Some((1, &rlimit::KEPT)), 2, LIMITS)
    },
    Watched::new(CallName::Setrlimit, Some((0, &rlimit::KEPT)), 1, LIMITS),
    // The 12 bytes are the lower halves of the three capability sets.
    Watched::new(CallName::Capset, None, 1, 12),
];

/// Size of a `struct rlimit64` in bytes.
const LIMITS: i32 = 16;

/// Returns true if this module reports the starts of calls with this name. `tracefs.rs` then does not enable
/// the kernel's own event.
pub fn is_watched(call: CallName) -> bool {
    WATCHED.iter().any(|watched| watched.call == call)
}

/// Words of a report, in this order: the time of the start, the processor, the thread, a number that is
/// nonzero if the memory could not be read, the index of the call in `WATCHED`, and the data. The constants
/// are the positions of the last three.
const UNREAD: usize = 3;
const WHICH: usize = 4;
const READ: usize = 5;
/// Number of words of a report about a watched call. Its data are two arguments and three words of the
/// structure.
const OF_CALL: usize = READ + 5;

/// Number of words of a report about a watched call that come before the words of the structure.
const BEFORE: usize = READ + 2;

/// Number of words of a report about a process_madvise. Its data are the number of ranges, and the address
/// and length of each range.
const OF_ADVICE: usize = READ + 1 + 2 * RANGES;

/// Number of words of a report about changed credentials. Its data are the effective set and the nesting
/// level of the user namespace.
const OF_CREDENTIALS: usize = READ + 2;

/// Maximum number of ranges of a process_madvise that are reported. Calls with more ranges are not reported,
/// because they would not fit on a program's stack.
const RANGES: usize = 16;

/// Number of additional words in an entry of `waiting`, for a call whose structure is read when the call
/// ends: the address, and the number of bytes.
const LATER: usize = 2;
/// Maximum number of entries in `waiting`: one for each thread in a call whose structure is read when the
/// call ends. A thread that is killed during the call leaves its entry behind.
const WAITING: u32 = 4096;

/// Numbers of kernel functions that BPF programs may call.
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const TIME: i32 = 5;
const PROCESSOR: i32 = 8;
const THREAD: i32 = 14;
const PUSH: i32 = 87;
const READ_USER: i32 = 112;

/// The message if programs cannot be loaded.
const LEAVE: &str = "no permission for programs in the kernel (bpf)";

/// The attached programs. Detached when dropped.
pub struct Pointed {
    /// Reports about the calls in `WATCHED`.
    calls: Queue<OF_CALL>,
    /// Reports about process_madvise.
    advice: Queue<OF_ADVICE>,
    /// Reports about changed credentials.
    credentials: Queue<OF_CREDENTIALS>,
    /// The events to which the programs are attached.
    _attached: Vec<Counter>,
}

impl Pointed {
    /// Attaches the programs, which run on all processors. `cpu` is any processor. The size of each queue is
    /// a part of `kilobytes`, the size of the kernel's trace buffer.
    ///
    /// # Errors
    ///
    /// Fails with a message for the user if a requirement is missing.
    pub fn new(instance: &Instance, kilobytes: u32, cpu: u16) -> anyhow::Result<Pointed> {
        let attach = |event: &str, call: &str, instructions: Vec<Instruction>| {
            let program = program(&instructions).context(LEAVE)?;
            let number = instance.number(&format!("syscalls/{event}_{call}"))?;
            let mut builder = Builder::new(Tracepoint::with_id(number));
            // The event is counted on one processor, but its program runs on all processors.
            let mut counter = builder.any_pid().one_cpu(cpu.into()).include_kernel().build()?;
            counter.set_bpf(program.as_raw_fd())?;
            counter.enable()?;
            anyhow::Ok(counter)
        };
        let (calls, advice) = (Queue::new(kilobytes)?, Queue::new(kilobytes)?);
        let (enter, exit) = ("sys_enter", "sys_exit");
        // The programs at the ends of calls are attached first, so that they remove every entry that the
        // programs at the starts add to `waiting`.
        let mut attached = vec![
            attach(exit, CallName::ProcessMadvise.as_str(), advice.at_end(READ + 1))?,
            attach(enter, CallName::ProcessMadvise.as_str(), advice.at_beginning(0, ranges()))?,
        ];
        let names: HashSet<_> = WATCHED.iter().map(|watched| watched.call).collect();
        for name in names {
            attached.push(attach(exit, name.as_str(), calls.at_end(BEFORE))?);
        }
        for (which, watched) in WATCHED.iter().enumerate() {
            attached.push(attach(
                enter,
                watched.call.as_str(),
                calls.at_beginning(which, structure(watched)),
            )?);
        }
        let credentials = Queue::new(kilobytes)?;
        // Without the layout, changes of credentials are not recorded. A replay then expects that processes
        // keep their capabilities.
        if let Ok(layout) = Layout::new() {
            let at = at::<OF_CREDENTIALS>;
            for call in credentials::CALLS {
                let mut read = layout.read(at(READ), at(READ + 1));
                // No memory is read at the end of these calls.
                read.extend([set(R[7], 0), set(R[8], 0)]);
                attached.push(attach(exit, call, credentials.at_beginning(0, read))?);
            }
        }
        Ok(Pointed { calls, advice, credentials, _attached: attached })
    }

    /// Appends the available reports to `to`.
    ///
    /// # Errors
    ///
    /// Fails with the errors of bpf(2).
    pub fn drain(&mut self, to: &mut Vec<Raw>) -> std::io::Result<()> {
        self.calls.drain(to, |told| {
            let call = WATCHED.get(told[WHICH] as usize)?.call;
            match told[UNREAD] {
                0 => Some(enter(call, told)),
                // An unread UFFDIO_API is not reported. It changes no mapping, and without a report its
                // features count as unknown.
                _ if call == CallName::Ioctl && told[READ + 1] as u32 == uffdio::API as u32 => None,
                _ => Some(RawKind::Unread(call)),
            }
        })?;
        self.advice.drain(to, |told| {
            let [_, _, _, 0, _, count, ranges @ ..] = told else { return None };
            let ranges = ranges.chunks_exact(2).map(|range| (range[0], range[1]));
            Some(RawKind::Ranges(ranges.take(*count as usize).collect()))
        })?;
        self.credentials.drain(to, |told| {
            let [.., effective, level] = *told;
            (told[UNREAD] == 0).then(|| RawKind::Effective(credentials::in_effect(effective, level)))
        })
    }
}

/// Returns the event of the start of a watched call, decoded from the words of the report.
fn enter(call: CallName, told: &[u64; OF_CALL]) -> RawKind {
    let [.., first, second, third] = *told;
    // Descriptors, PIDs, operations and resources are ints.
    let [a, b] = [told[READ], told[READ + 1]].map(|word| u64::from(word as u32));
    let args = match call {
        CallName::Ioctl if matches!(b, uffdio::NEW | uffdio::API) => [a, b, first, second, 0, 0],
        CallName::Ioctl => [a, b, first, second, third, 0],
        CallName::Prlimit64 => [a, b, first, second, 0, 0],
        CallName::Setrlimit => [a, first, second, 0, 0, 0],
        _ => [u64::from(first as u32), 0, 0, 0, 0, 0],
    };
    RawKind::Enter(call, args)
}

/// The queue through which the programs report, with `WORDS` words per report.
struct Queue<const WORDS: usize> {
    /// The reports, oldest first.
    told: Map,
    /// Maximum number of reports in the queue.
    room: u32,
    /// Reports of calls whose structure is read when the call ends, by thread.
    waiting: Map,
    /// A counter of the reports that were lost because the queue was full.
    lost: Map,
    /// The value of `lost` at the last check, and the time of that check in nanoseconds.
    lost_before: u64,
    looked: u64,
}

impl<const WORDS: usize> Queue<WORDS> {
    /// Creates an empty queue. Its size is a part ([`PART_OF_BUFFER`]) of `kilobytes`, the size of the
    /// kernel's trace buffer.
    fn new(kilobytes: u32) -> anyhow::Result<Self> {
        let bytes = 8 * WORDS as u32;
        let room = (kilobytes.saturating_mul(1024) / PART_OF_BUFFER / bytes).max(1);
        let told = Map::new(QUEUE, 0, bytes, room).context(LEAVE)?;
        let waiting = Map::new(HASH, 8, bytes + 8 * LATER as u32, WAITING).context(LEAVE)?;
        let lost = Map::new(ARRAY, 4, 8, 1).context(LEAVE)?;
        Ok(Queue { told, room, waiting, lost, lost_before: 0, looked: now() })
    }

    /// Returns the program for the start of the watched call with index `which`. The instructions `read`
    /// either end the program, or store the data in the words from [`READ`] on. In the second case they set
    /// register 0 to nonzero if the memory could not be read, register 7 to the number of bytes to read, and
    /// register 8 to their address. Register 8 is 0 if the memory must not be read at the end of the call.
    /// Register 6 points to the event.
    fn at_beginning(&self, which: usize, read: Vec<Instruction>) -> Vec<Instruction> {
        let at = at::<WORDS>;
        let mut all = vec![copy(R[6], R[1])];
        all.extend(read);
        all.extend([
            store(WORD, R[10], at(UNREAD), R[0]),
            call(TIME),
            store(WORD, R[10], at(0), R[0]),
            call(PROCESSOR),
            store(WORD, R[10], at(1), R[0]),
            call(THREAD),
            store(WORD, R[10], at(2), R[0]),
            store_constant(R[10], at(WHICH), which as i32),
            store(WORD, R[10], at(WORDS), R[8]),
            store(WORD, R[10], at(WORDS + 1), R[7]),
        ]);
        let mut wait = Vec::new();
        wait.extend(address(R[2], at(2)));
        wait.extend(address(R[3], at(0)));
        wait.extend(self.waiting.address(R[1]));
        wait.extend([set(R[4], 0), call(UPDATE), skip_unless_null(R[0], 2), set(R[0], 0), END]);
        all.extend([load(WORD, R[1], R[10], at(UNREAD)), skip_if_null(R[1], wait.len() as i16 + 1)]);
        all.push(skip_if_null(R[8], wait.len() as i16));
        all.extend(wait);
        all.extend(address(R[2], at(0)));
        all.extend(self.push());
        all.extend([set(R[0], 0), END]);
        all
    }

    /// Returns the program for the end of a call. If the call has an entry in `waiting`, the program reads
    /// the memory into the words from `first` on, and reports the entry.
    fn at_end(&self, first: usize) -> Vec<Instruction> {
        const THREAD_AT: i16 = -16;
        let mut find = address(R[2], THREAD_AT).to_vec();
        find.extend(self.waiting.address(R[1]));
        let mut all = vec![call(THREAD), store(WORD, R[10], THREAD_AT, R[0])];
        all.extend(&find);
        all.extend([call(LOOKUP), skip_unless_null(R[0], 2), set(R[0], 0), END, copy(R[6], R[0])]);
        all.extend([copy(R[1], R[6]), add(R[1], word(first).into())]);
        all.push(load(WORD, R[2], R[6], word(WORDS + 1)));
        // The size never exceeds this limit, but the kernel's verifier requires the check.
        all.extend([skip_if_at_most(R[2], word(WORDS - first).into(), 2), set(R[0], 0), END]);
        all.extend([load(WORD, R[3], R[6], word(WORDS)), call(READ_USER)]);
        all.extend([store(WORD, R[6], word(UNREAD), R[0]), copy(R[2], R[6])]);
        all.extend(self.push());
        all.extend(&find);
        all.extend([call(DELETE), set(R[0], 0), END]);
        all
    }

    /// Returns instructions that add the words at register 2 to the queue, or count a lost report if the
    /// queue is full. The instructions overwrite the word at the end of the stack.
    fn push(&self) -> Vec<Instruction> {
        const FIRST: i16 = -8;
        let mut all = vec![set(R[3], 0)];
        all.extend(self.told.address(R[1]));
        let mut count_it = vec![store_constant(R[10], FIRST, 0)];
        count_it.extend(address(R[2], FIRST));
        count_it.extend(self.lost.address(R[1]));
        count_it.extend([call(LOOKUP), skip_if_null(R[0], 2), set(R[1], 1), count(R[0], 0, R[1])]);
        all.extend([call(PUSH), skip_if_null(R[0], count_it.len() as i16)]);
        all.extend(count_it);
        all
    }

    /// Reads the available reports, converts them with `means`, and appends them to `to`. Also appends
    /// losses.
    fn drain(
        &mut self,
        to: &mut Vec<Raw>,
        means: impl Fn(&[u64; WORDS]) -> Option<RawKind>,
    ) -> std::io::Result<()> {
        let looked = now();
        let [lost] = self.lost.first()?;
        if lost > self.lost_before {
            to.extend(Raw::losses(lost - self.lost_before, self.looked..now()));
        }
        (self.lost_before, self.looked) = (lost, looked);
        // Reads at most as many reports as the queue holds, because other processes may fill the queue as
        // fast as this loop empties it.
        for _ in 0..self.room {
            let Some(told) = self.told.take()? else { break };
            let [time, cpu, thread] = [0, 1, 2].map(|word| told[word]);
            let raw = |what| Raw { time, cpu: Some(cpu as u16), thread: thread as i32, what };
            to.extend(means(&told).map(raw));
        }
        Ok(())
    }
}

/// Returns the offset of a word from the end of the stack, a negative number. The stack has `WORDS` words and
/// [`LATER`] more.
const fn at<const WORDS: usize>(number: usize) -> i16 {
    word(number) - word(WORDS + LATER)
}

/// Returns the offset of a word in bytes.
const fn word(number: usize) -> i16 {
    8 * number as i16
}

/// Returns the offset of an argument in an event, in bytes.
const fn argument(number: usize) -> i16 {
    16 + 8 * number as i16
}

/// Returns instructions for `register = the address of a word on the stack`.
fn address(register: u8, at: i16) -> [Instruction; 2] {
    [copy(register, R[10]), add(register, at.into())]
}

/// Returns instructions that read the first two arguments of a watched call and its structure. The
/// instructions end the program if the arguments of the call are not among the watched values.
fn structure(watched: &Watched) -> Vec<Instruction> {
    const WORDS: i32 = 8 * (OF_CALL - BEFORE) as i32;
    let at = at::<OF_CALL>;
    let mut all = Vec::new();
    if let Some((number, values)) = watched.chosen {
        all.push(load(HALF, R[9], R[6], argument(number)));
        let over = |index: usize| (values.len() - index + 1) as i16;
        all.extend(values.iter().enumerate().map(|(index, value)| skip_if(R[9], *value as u32, over(index))));
        all.extend([set(R[0], 0), END]);
    }
    all.push(load(WORD, R[8], R[6], argument(watched.pointer)));
    for number in 0..2 {
        all.push(load(WORD, R[1], R[6], argument(number)));
        all.push(store(WORD, R[10], at(READ + number), R[1]));
    }
    all.extend((BEFORE..OF_CALL).map(|word| store_constant(R[10], at(word), 0)));
    match watched.bytes {
        // A call without a structure only queries, and is not reported.
        Bytes::These(bytes) => {
            all.extend([skip_unless_null(R[8], 2), set(R[0], 0), END, set(R[7], bytes)]);
        }
        Bytes::Chosen => {
            all.push(store(WORD, R[10], at(BEFORE), R[8]));
            all.extend([copy(R[7], R[9]), shift_right(R[7], 16), and(R[7], 0x3fff)]);
            all.extend([skip_if_at_most(R[7], WORDS, 1), set(R[7], WORDS)]);
        }
    }
    all.extend(address(R[1], at(BEFORE)));
    all.extend([copy(R[2], R[7]), copy(R[3], R[8]), call(READ_USER)]);
    // If the call writes to the structure, the structure must not be read at the end.
    match (watched.writes, watched.bytes) {
        (Writes::To(other), Bytes::These(bytes)) => {
            let most = 2 * (bytes - 1);
            all.extend([load(WORD, R[1], R[6], argument(other)), subtract(R[1], R[8]), add(R[1], most / 2)]);
            all.extend([skip_if_more(R[1], most, 1), set(R[8], 0)]);
        }
        (Writes::If(value), _) => {
            all.extend([skip_if(R[9], value as u32, 1), skip(1), set(R[8], 0)]);
        }
        _ => {}
    }
    all
}

/// Returns instructions that read the ranges of a process_madvise. The instructions end the program if there
/// are too many ranges.
fn ranges() -> Vec<Instruction> {
    let at = at::<OF_ADVICE>;
    let mut all = vec![
        load(WORD, R[7], R[6], argument(2)),
        skip_if_at_most(R[7], RANGES as i32, 2),
        set(R[0], 0),
        END,
        store(WORD, R[10], at(READ), R[7]),
    ];
    all.extend((1..=2 * RANGES).map(|word| store_constant(R[10], at(READ + word), 0)));
    all.extend(address(R[1], at(READ + 1)));
    all.extend([shift_left(R[7], 4), copy(R[2], R[7]), load(WORD, R[8], R[6], argument(1))]);
    all.extend([copy(R[3], R[8]), call(READ_USER)]);
    all
}
