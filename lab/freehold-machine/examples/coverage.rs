//! Compares two lists of the cache lines that an operation touches: one from a trace of the program's memory
//! accesses, and one from the simulation. The operations are a fault, a mapping that is created and unmapped,
//! and a fork. `cargo xtask coverage` runs the program.
//!
//! The program runs itself under valgrind, whose tool lackey prints every access: `traced` is the traced
//! program, and `compare` reads the trace. Both lists come from one process, so records have the same
//! addresses in both. The layout of the records is that of any other build. The accesses of the simulation
//! itself are left out by its [marks](freehold_sim::trace). The program prints a Markdown table for each
//! operation; `docs/results/coverage.md` records the tables. The program fails if the simulation did not see
//! a line and no explanation is known. An explanation is an entry of `REASONS`; add an entry only if no
//! processor could contend for the line. In all other cases, make the access visible to the simulation.

#[cfg(not(sim))]
fn main() {
    eprintln!("built without --cfg sim: run `cargo xtask coverage`");
    std::process::exit(2);
}

#[cfg(sim)]
#[global_allocator]
static ALLOCATOR: traced::Logged = traced::Logged;

#[cfg(sim)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("traced") => traced::main(),
        _ => compare::main(),
    }
}

/// The traced program.
#[cfg(sim)]
mod traced {
    use freehold::engine::{Config, Engine};
    use freehold::fault::Access;
    use freehold::space::{MapFlags, Prot, SpaceConfig};
    use freehold_machine::DefaultFormat;
    use freehold_machine::{Cpu, Machine, MachineConfig, Process};
    use freehold_sim::{Apart, Machine as Model, names, run, trace};
    use std::alloc::{GlobalAlloc, Layout};
    use std::cell::{Cell, RefCell};
    use std::error::Error;
    use std::io::stdin;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// The allocator of this program. Places each object on cache lines of its own. While an operation is
    /// traced, logs the objects that the operation allocates.
    pub struct Logged;

    /// Number of objects since logging began. The number may exceed the length of the log. Logging is off if
    /// the value is at least `OFF`.
    static NEXT: AtomicUsize = AtomicUsize::new(OFF);
    /// The log: first address and end of each object.
    static MADE: [[AtomicUsize; 2]; 256] = [const { [const { AtomicUsize::new(0) }; 2] }; 256];
    const OFF: usize = usize::MAX / 2;

    /// Logs an object if logging is on. Returns its address.
    fn noted(at: *mut u8, layout: Layout) -> *mut u8 {
        if let Some(place) = MADE.get(NEXT.fetch_add(1, Relaxed)) {
            place[0].store(at.addr(), Relaxed);
            place[1].store(at.addr() + layout.size(), Relaxed);
        }
        at
    }

    // SAFETY: every call is passed on to `Apart`, which keeps the contract of the trait.
    unsafe impl GlobalAlloc for Logged {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller keeps the contract of `alloc`, which is the same for `Apart`.
            noted(unsafe { Apart.alloc(layout) }, layout)
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same for `Apart`.
            noted(unsafe { Apart.alloc_zeroed(layout) }, layout)
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract of `dealloc`, which is the same for `Apart`.
            unsafe { Apart.dealloc(pointer, layout) }
        }
    }

    /// An operation of a processor. The number is the count of earlier repetitions.
    type Operation<'a> = &'a dyn Fn(&mut Cpu<DefaultFormat>, u64);

    const PAGE: u64 = 4096;
    const RW: Prot = Prot::READ.union(Prot::WRITE);
    const ANON: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

    thread_local! {
        /// A thread-local byte, whose address shows where the thread's own words are.
        static HERE: Cell<u8> = const { Cell::new(0) };
    }

    pub fn main() -> Result<(), Box<dyn Error>> {
        println!("marks {:x?}", trace::marks());
        let log = [(&raw const MADE).addr(), (&raw const NEXT).addr()];
        println!("log {:x} {:x} {:x}", log[0], log[0] + size_of_val(&MADE), log[1]);
        // Waits until the process that reads the trace knows the marks.
        stdin().read_line(&mut String::new())?;
        let machine: Machine = Machine::new(MachineConfig::phantom(64 << 20).cpus(1).fast())?;
        let engine = Engine::new(machine.clone(), Config::default())?;
        let process = Process::new(&engine, &SpaceConfig::default())?;
        let at = process.mmap(0, 64 * PAGE, RW, ANON, None, 0)?;
        let touch = |cpu: &mut Cpu<DefaultFormat>, page: u64| {
            process.touch(cpu, at + page * PAGE, Access::WRITE).expect("a page");
        };
        let map = |_: &mut Cpu<DefaultFormat>, _: u64| {
            let fresh = process.mmap(0, 2 * PAGE, RW, ANON, None, 0).expect("a mapping");
            process.munmap(fresh, 2 * PAGE).expect("unmapped");
        };
        let children = RefCell::new(Vec::new());
        let fork = |_: &mut Cpu<DefaultFormat>, _: u64| {
            let child = process.fork().expect("a child");
            children.borrow_mut().push(child);
        };
        // Reserves room, so that the push after a traced fork allocates nothing.
        children.borrow_mut().reserve(16);
        let operations: [(&str, Operation<'_>); 3] =
            [("fault", &touch), ("mmap-munmap", &map), ("fork", &fork)];
        let model = Model::named("e5-2690v4")?;
        for (name, operation) in operations {
            let (stack, made) = (Cell::new(0), Cell::new(0));
            let once = |number: u64, looked_at: bool| {
                run(
                    &model,
                    1,
                    1,
                    [|| {
                        let mut cpu = machine.cpu(0);
                        stack.set((&raw const cpu).addr());
                        match looked_at {
                            true => {
                                NEXT.store(0, Relaxed);
                                trace::marked(|| operation(&mut cpu, number));
                                made.set(NEXT.swap(OFF, Relaxed));
                            }
                            false => operation(&mut cpu, number),
                        }
                    }],
                )
            };
            (0..4).for_each(|number| drop(once(number, false)));
            let report = once(4, true);
            println!("operation {name} {:x} {:x}", stack.get(), HERE.with(|here| (&raw const *here).addr()));
            for [from, to] in &MADE[..made.get()] {
                println!("made {:x} {:x}", from.load(Relaxed), to.load(Relaxed));
            }
            report.touched.iter().for_each(|line| println!("seen {line:x}"));
            names::describe().lines().for_each(|line| println!("record {line}"));
        }
        print!("{}", std::fs::read_to_string("/proc/self/maps")?);
        Ok(())
    }
}
/// The program that reads the trace.
#[cfg(sim)]
mod compare {
    use std::collections::{BTreeMap, BTreeSet};
    use std::env::current_exe;
    use std::error::Error;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::{Arc, OnceLock};
    use std::thread;

    type Outcome<T> = Result<T, Box<dyn Error>>;
    const LINE: u64 = 64;

    /// The accesses of an operation to a line: the numbers of reads and writes for each pair of an
    /// instruction and the bytes that it accesses.
    #[derive(Default)]
    struct Touched {
        by: BTreeMap<(u64, u64), [u64; 2]>,
    }
    type Lines = BTreeMap<u64, Touched>;

    /// The reasons why lines are not seen. Each has four parts. The first is a part of the record's name. The
    /// second is a part of the path of every file that touches the lines; if it ends in `*`, one such file is
    /// enough. The third is true if the reason also covers lines that are written. The fourth is the text for
    /// the table.
    const REASONS: &[(&str, &str, bool, &str)] = &[
        ("AddressSpace", "", false, "these fields are written when the space is made"),
        ("RmapRoot", "rwsem", false, "the lock's rank and statistics, written when it is made"),
        ("Engine", "", false, "these fields are written when the engine is made"),
        (
            "no record",
            "freehold-pagetable/*",
            false,
            "the machine and the record of its memory: written when the machine is made",
        ),
        ("no record", "freehold-sync/", false, "a counted record's value: written when it is made"),
        ("no record", "tlb.rs*", true, "the processor's own TLB: hardware"),
        ("no record", "cpu.rs*", true, "the machine's processor: hardware"),
        ("no record", "mmu.rs*", true, "the machine's record of a space: the processors that run it"),
        ("no record", "local.rs", true, "the task's own data"),
        ("no record", "frames.rs*", true, "lists of free memory: charged as `memory.frame`"),
        ("no record", "bitmap.rs*", true, "existing spaces and frames: charged as `memory.frame`"),
        ("no record", "coverage.rs*", true, "the traced program's own data"),
        ("no record", "host_sim*", true, "the simulated host: read sections and tasks"),
        (
            "no record",
            "freehold-machine/",
            false,
            "the machine's arrays and configuration: written when it is made",
        ),
        ("no record", "std", true, "collections of the machine and its host; the engine has none of these"),
        (
            "no record",
            "the host's library",
            true,
            "the host's allocator, and lists of the machine's host that it copies",
        ),
    ];

    /// Returns the first reason that explains why the simulation did not see a line. `name` is that of the
    /// record, `places` are the files that touch the line, and `written` is true if the line is written.
    fn reason(name: &str, places: &BTreeSet<String>, written: bool) -> Option<&'static str> {
        let holds = |(record, part, also_written, _): &&(&str, &str, bool, &str)| {
            let touched = match part.strip_suffix('*') {
                Some(part) => places.iter().any(|place| place.contains(part)),
                None => places.iter().all(|place| place.contains(part)),
            };
            name.contains(record) && touched && (*also_written || !written)
        };
        REASONS.iter().find(holds).map(|reason| reason.3)
    }

    pub fn main() -> Outcome<()> {
        let program = current_exe()?;
        let mut child = Command::new("valgrind")
            .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
            .arg(&program)
            .arg("traced")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| format!("cannot run valgrind, which records the trace: {why}"))?;
        let marks = Arc::new(OnceLock::new());
        let known = Arc::clone(&marks);
        let trace = child.stderr.take().ok_or("its output")?;
        let reader = thread::spawn(move || read(BufReader::with_capacity(1 << 20, trace), &known));
        let mut out = BufReader::new(child.stdout.take().ok_or("its output")?);
        let mut first = String::new();
        out.read_line(&mut first)?;
        let first = first.trim().trim_start_matches("marks [").trim_end_matches(']');
        let first: Vec<u64> = first.split(", ").map(hex).collect::<Result<_, _>>()?;
        marks.set(first).map_err(|_| "the marks were printed twice")?;
        child.stdin.take().ok_or("its input")?.write_all(b"\n")?;
        let mut text = String::new();
        out.read_to_string(&mut text)?;
        let traced = reader.join().map_err(|_| "the reader panicked")?;
        if !child.wait()?.success() {
            return Err("the traced program failed".into());
        }
        let mut unexplained = 0;
        let names: Vec<&str> = text.lines().filter(|line| line.starts_with("operation ")).collect();
        assert_eq!(names.len(), traced.len(), "the trace has one part for each operation");
        for (number, lines) in traced.iter().enumerate() {
            unexplained += Operation::of(&text, number)?.table(lines, &program)?;
        }
        if unexplained > 0 {
            return Err(format!("{unexplained} lines not seen have no explanation").into());
        }
        Ok(())
    }

    fn hex(text: &str) -> Result<u64, std::num::ParseIntError> {
        u64::from_str_radix(text.trim_start_matches("0x"), 16)
    }

    /// Returns the accesses between the marks, without those of the simulation.
    fn read(mut trace: impl BufRead, marks: &OnceLock<Vec<u64>>) -> Vec<Lines> {
        let (mut all, mut line) = (Vec::<Lines>::new(), Vec::new());
        let (mut looking, mut depth, mut at) = (false, 0_u32, 0);
        while trace.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = std::str::from_utf8(&line).unwrap_or_default();
            let access = text.get(3..).and_then(|rest| rest.trim().split_once(','));
            let access = access.and_then(|(address, bytes)| Some((hex(address).ok()?, bytes.parse().ok()?)));
            if let (Some(marks), Some((address, bytes))) = (marks.get(), access) {
                let kind = text.as_bytes()[1];
                let mark = marks.iter().position(|mark| *mark == address && kind == b'S');
                match (mark, text.as_bytes()[0]) {
                    (_, b'I') => at = address,
                    (Some(0), _) => depth += 1,
                    (Some(1), _) => depth = depth.saturating_sub(1),
                    (Some(2), _) => {
                        looking = true;
                        all.push(Lines::new());
                    }
                    (Some(_), _) => looking = false,
                    (None, b' ') if looking && depth == 0 => {
                        let lines = all.last_mut().expect("begun");
                        note(lines, address, bytes, at, kind);
                    }
                    _ => {}
                }
            }
            line.clear();
        }
        all
    }

    /// Adds an access by the instruction at `at` to the lines that it touches.
    fn note(lines: &mut Lines, address: u64, bytes: u64, at: u64, kind: u8) {
        let end = address + bytes.max(1);
        for line in (address / LINE..end.div_ceil(LINE)).map(|line| line * LINE) {
            let counts = lines.entry(line).or_default().by.entry((at, address.max(line))).or_default();
            counts[0] += u64::from(kind != b'S');
            counts[1] += u64::from(kind != b'L');
        }
    }

    /// The output of the traced program about one operation.
    struct Operation<'t> {
        name: &'t str,
        stack: u64,
        thread: u64,
        seen: BTreeSet<u64>,
        /// The objects that the operation allocated.
        made: Vec<(u64, u64)>,
        /// The addresses of the traced program's log of these objects.
        log: Vec<u64>,
        /// The records by first address: end, size, name with fields.
        records: BTreeMap<u64, (u64, u64, Vec<&'t str>)>,
        /// The mappings of the program's file: first address, end, permissions.
        program: Vec<(u64, u64, &'t str)>,
    }

    impl<'t> Operation<'t> {
        fn of(text: &'t str, number: usize) -> Outcome<Operation<'t>> {
            let mut parts = text.split("operation ").skip(number + 1);
            let part = parts.next().ok_or("no output for this operation")?;
            let mut head = part.lines().next().unwrap_or_default().split(' ');
            let mut word = || head.next().ok_or("a word is missing");
            let (name, stack, thread) = (word()?, hex(word()?)?, hex(word()?)?);
            let (mut seen, mut records, mut made) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
            let log = text.lines().next().and_then(|line| line.strip_prefix("log ")).ok_or("no log")?;
            let log = log.split(' ').map(hex).collect::<Result<_, _>>()?;
            for line in part.lines() {
                if let Some(line) = line.strip_prefix("seen ") {
                    seen.insert(hex(line)?);
                } else if let Some((from, to)) =
                    line.strip_prefix("made ").and_then(|made| made.split_once(' '))
                {
                    made.push((hex(from)?, hex(to)?));
                } else if let Some(record) = line.strip_prefix("record ") {
                    let words: Vec<&str> = record.split(' ').collect();
                    records.insert(hex(words[0])?, (hex(words[1])?, words[2].parse()?, words[3..].to_vec()));
                }
            }
            let mut program = Vec::new();
            for line in text.lines().filter(|line| line.ends_with("/coverage")) {
                let (range, rest) = line.split_once(' ').ok_or("a map")?;
                let (from, to) = range.split_once('-').ok_or("a range")?;
                program.push((hex(from)?, hex(to)?, rest.split(' ').next().unwrap_or_default()));
            }
            Ok(Operation { name, stack, thread, seen, made, log, records, program })
        }

        /// Returns the kind of a line that no other processor uses: 0 the task's stack, 1 the thread's words,
        /// 2 constants or the log, 3 an allocated object, 4 the allocator's words before such an object.
        /// Returns `None` for all other lines.
        fn private(&self, line: u64) -> Option<usize> {
            let near = |at: u64, below, above| (at.saturating_sub(below)..at + above).contains(&line);
            let constant =
                self.program.iter().any(|(from, to, how)| (*from..*to).contains(&line) && !how.contains('w'));
            let log =
                (self.log[0] / LINE * LINE..self.log[1]).contains(&line) || line == self.log[2] / LINE * LINE;
            let made = self.made.iter().any(|(from, to)| (*from..*to).contains(&line));
            // An object begins at a line, and the allocator's words are in the line before.
            let before = self.made.iter().any(|(from, _)| line + LINE == *from);
            let kinds = [
                near(self.stack, 256 << 10, 8 << 10),
                near(self.thread, 4 << 10, 4 << 10),
                constant || log,
                made,
                before,
            ];
            kinds.iter().position(|kind| *kind)
        }

        /// Returns the name of the record that contains a line, the number of the line in the record, and the
        /// fields at `addresses`. Returns `None` if no known record contains the addresses.
        fn named(&self, line: u64, addresses: impl Iterator<Item = u64>) -> Option<String> {
            let mut name = None;
            let mut fields = BTreeSet::new();
            for address in addresses {
                let Some((start, (end, size, words))) = self.records.range(..=address).next_back() else {
                    continue;
                };
                if address >= *end {
                    continue;
                }
                let offset = (address - start) % size;
                name = Some(format!("`{}`, line {}", words[0], (line.max(*start) - start) % size / LINE + 1));
                let begins = words[1..].iter().filter_map(|word| {
                    let (field, begins) = word.split_once(':')?;
                    Some((begins.parse::<u64>().ok()?, field))
                });
                fields.extend(begins.filter(|field| field.0 <= offset).max().map(|field| field.1));
            }
            let fields: Vec<&str> = fields.into_iter().collect();
            name.map(|name| if fields.is_empty() { name } else { format!("{name}: {}", fields.join(", ")) })
        }

        /// Prints the lines that were not seen. Returns how many of them have no explanation.
        fn table(&self, lines: &Lines, program: &Path) -> Outcome<u64> {
            let mut private = [0; 5];
            let (mut both, mut unexplained) = (0_usize, 0);
            let mut rows: BTreeMap<(String, String, Option<&str>), [u64; 3]> = BTreeMap::new();
            for (line, touched) in lines {
                if self.seen.contains(line) {
                    both += 1;
                } else if let Some(kind) = self.private(*line) {
                    private[kind] += 1;
                } else {
                    let name = self.named(*line, touched.by.keys().map(|(_, address)| *address));
                    let name = name.unwrap_or_else(|| "no record".to_owned());
                    let mut places = BTreeSet::new();
                    for (at, _) in touched.by.keys() {
                        places.insert(self.place(*at, program)?);
                    }
                    let [loads, stores] =
                        touched.by.values().fold([0; 2], |sum, more| [sum[0] + more[0], sum[1] + more[1]]);
                    let why = reason(&name, &places, stores > 0);
                    let places = places.into_iter().collect::<Vec<_>>().join(", ");
                    let counts = rows.entry((name, places, why)).or_default();
                    counts.iter_mut().zip([1, loads, stores]).for_each(|(sum, more)| *sum += more);
                }
            }
            let alone = self.seen.iter().filter(|line| !lines.contains_key(*line)).count();
            let [stack, thread, constant, made, allocator] = private;
            let shared = lines.len() - private.iter().sum::<usize>();
            println!("### {}\n", self.name);
            println!(
                "| of lines in the trace | how many |\n| --- | --- |\n\
                 | that could be shared | {shared} |\n| of these seen | {both} |\n\
                 | of these not seen: below | {} |\n| seen, and not in the trace | {alone} |\n\
                 | left out: the task's stack | {stack} |\n| the thread's own words | {thread} |\n\
                 | constants | {constant} |\n| objects that the operation made | {made} |\n\
                 | the allocator's words before these | {allocator} |\n",
                shared - both
            );
            println!(
                "| lines not seen | loads | stores | record: fields | touched in | why |\n| --- | --- | --- | --- | --- | --- |"
            );
            for ((name, places, why), [count, loads, stores]) in rows {
                unexplained += if why.is_none() { count } else { 0 };
                println!("| {count} | {loads} | {stores} | {name} | {places} | {} |", why.unwrap_or("?"));
            }
            println!();
            Ok(unexplained)
        }

        /// Returns the source file of an instruction.
        fn place(&self, at: u64, program: &Path) -> Outcome<String> {
            let inside = self.program.iter().any(|(from, to, _)| (*from..*to).contains(&at));
            let Some((base, ..)) = self.program.first().filter(|_| inside) else {
                return Ok("the host's library".to_owned());
            };
            let found = Command::new("addr2line")
                .args(["-f", "-C", "-i", "-e"])
                .arg(program)
                .arg(format!("{:x}", at - base))
                .output()?;
            let text = String::from_utf8_lossy(&found.stdout).into_owned();
            let frames: Vec<&str> = text.lines().collect();
            let below_wing = |file: &str| {
                let ends = |wing: &str| file.find(wing).map(|at| at + wing.len() - "freehold".len());
                ["engine/freehold", "lab/freehold", "tools/freehold"].into_iter().find_map(ends)
            };
            let own = frames.chunks(2).find(|frame| frame.len() == 2 && below_wing(frame[1]).is_some());
            let frame = own.or_else(|| frames.chunks(2).next()).filter(|frame| frame.len() == 2);
            Ok(frame.map_or("?".to_owned(), |frame| {
                let file = frame[1].split(':').next().unwrap_or_default();
                let file = below_wing(file).map_or(file, |from| &file[from..]);
                let file = file.replace("host_sim/../", "");
                // The source of code that the compiler generates is the name of its codegen unit.
                let file =
                    if file.contains("-cgu.") { "freehold-machine/examples/coverage.rs" } else { &file };
                if file.starts_with("/rustc/") { "`std`".to_owned() } else { format!("`{file}`") }
            }))
        }
    }
}
