//! Measures what operations cost: the program of `cargo xtask boot --bench`, which runs unmodified on Linux.
//! Each line of output is a name and a number.
//!
//!     bench counts|times|long [rest SECONDS] [end]
//!
//! `counts` reads the CPU's counter, which counts instructions if the machine runs with `-icount shift=0`.
//! `times` measures nanoseconds: one thread, two threads, and one thread during a long munmap. `long` makes
//! calls that take long. `rest` sleeps first. `end` stops the machine at the end, as Linux's first process
//! must. `kernel_bench` of `kernel/xtask` starts the program with these words and reads the lines. The names
//! of the lines are in its `rows.rs`; a missing line `done 1` means that the program failed. The program is
//! one file without dependencies, so it declares the C functions that it calls. A new figure needs a line in
//! `rows.rs` or, for times, in `document.rs`.

use std::{
    arch::x86_64::_rdtsc,
    env,
    ffi::{CString, c_char, c_void},
    fs,
    os::unix::fs::PermissionsExt,
    ptr,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn posix_spawn(
        pid: *mut i32,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> i32;
    fn mmap(at: *mut c_void, len: usize, prot: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, len: usize) -> i32;
    fn mprotect(at: *mut c_void, len: usize, prot: i32) -> i32;
    fn madvise(at: *mut c_void, len: usize, advice: i32) -> i32;
    fn syscall(number: i64, ...) -> i64;
    fn sync();
    fn reboot(how: i32) -> i32;
}

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const READ: i32 = 1;
const READ_WRITE: i32 = 3;
const PRIVATE_ANONYMOUS: i32 = 0x22;
const DONTNEED: i32 = 4;
const GETPPID: i64 = 110;
const RESTART: i32 = 0x0123_4567;
/// Bytes that are touched before a fork.
const MEMORY: usize = 64 * MIB;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if arguments.get(1).is_some_and(|word| word == "nothing") {
        return;
    }
    let after = |name: &str| {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(seconds) = after("rest") {
        thread::sleep(Duration::from_secs(seconds));
    }
    match arguments.get(1).map(String::as_str) {
        Some("counts") => counts(&arguments[0]),
        Some("times") => times(),
        Some("long") => long(),
        _ => panic!("usage: bench counts|times|long [rest SECONDS] [end]"),
    }
    println!("done 1");
    if arguments.iter().any(|word| word == "end") {
        // SAFETY: the call stops the machine, as the word `end` requests.
        unsafe {
            sync();
            reboot(RESTART);
        }
    }
}

/// Returns the CPU's counter.
fn counter() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction.
    unsafe { _rdtsc() }
}

/// Prints the average cost of a round, from the cost of all `rounds` rounds.
fn say(name: &str, all: u64, rounds: usize) {
    println!("{name} {:.1}", all as f64 / rounds as f64);
}

/// Returns the cost of all rounds together, after one round that is not counted.
fn count(rounds: usize, mut f: impl FnMut()) -> u64 {
    f();
    let before = counter();
    for _ in 0..rounds {
        f();
    }
    counter() - before
}

/// Maps new memory.
fn map(len: usize) -> *mut u8 {
    // SAFETY: maps new memory.
    let at = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) };
    assert_ne!(at as isize, -1, "out of memory");
    at.cast()
}

/// Unmaps memory of `map`.
fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the range came from `map`.
    assert_eq!(unsafe { munmap(at.cast(), len) }, 0);
}

/// Stores to each page of a range.
fn touch(at: *mut u8, len: usize) {
    for page in (0..len).step_by(PAGE) {
        // SAFETY: the range is mapped for writing.
        unsafe { at.add(page).write_volatile(1) };
    }
}

/// Measures instructions, if the counter counts instructions.
fn counts(own: &str) {
    // The first round is not counted, because it also allocates page tables and frames that no CPU has
    // cached.
    for last in [false, true] {
        let at = map(MEMORY);
        touch(at, PAGE);
        let before = counter();
        touch(at.wrapping_add(PAGE), MEMORY - PAGE);
        let touched = counter();
        unmap(at, MEMORY);
        let unmapped = counter();
        if last {
            say("fault", touched - before, MEMORY / PAGE - 1);
            say("munmap", unmapped - touched, MEMORY / PAGE);
        }
    }
    let page = map(MIB);
    touch(page, PAGE);
    const ROUNDS: usize = 20_000;
    // SAFETY: only this program uses the memory, and a touch maps it again.
    let discard = count(ROUNDS, || unsafe {
        madvise(page.cast(), PAGE, DONTNEED);
        touch(page, PAGE);
    });
    say("madvise-touch", discard, ROUNDS);
    // SAFETY: as above. The page is writable when it is touched.
    let protect = count(ROUNDS, || unsafe {
        mprotect(page.cast(), PAGE, READ);
        mprotect(page.cast(), PAGE, READ_WRITE);
        touch(page, PAGE);
    });
    say("mprotect-touch", protect, ROUNDS);
    unmap(page, MIB);
    // SAFETY: a call without arguments.
    let null = count(ROUNDS, || unsafe {
        syscall(GETPPID);
    });
    say("null", null, ROUNDS);
    let untouched = count(ROUNDS, || unmap(map(MIB), MIB));
    say("mmap-munmap", untouched, ROUNDS);
    let fork_empty = count(20, fork_and_wait);
    say("fork-empty", fork_empty, 20);
    let at = map(MEMORY);
    touch(at, MEMORY);
    let fork_full = count(4, fork_and_wait);
    unmap(at, MEMORY);
    say("fork-page", fork_full - fork_empty / 5, 4 * (MEMORY / PAGE));
    let tiny = "/tmp/tiny";
    fs::create_dir_all("/tmp").expect("a folder");
    fs::write(tiny, least_program()).expect("a file");
    fs::set_permissions(tiny, fs::Permissions::from_mode(0o755)).expect("a program");
    say("exec-least", count(50, || spawn_and_wait(tiny)), 50);
    say("exec-static", count(50, || spawn_and_wait(own)), 50);
}

/// Makes a child that ends at once, and waits for it.
fn fork_and_wait() {
    // SAFETY: the child ends at once.
    unsafe {
        match fork() {
            0 => _exit(0),
            child => wait(child),
        }
    }
}

/// Waits for a child, which must end with status 0.
fn wait(child: i32) {
    let mut status = -1;
    // SAFETY: the process is a child of this one, and `status` has room for its status.
    let waited = unsafe { waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

/// Runs a program with the argument `nothing` until it ends.
fn spawn_and_wait(path: &str) {
    let path = CString::new(path).expect("a path");
    let arguments = [path.as_ptr(), c"nothing".as_ptr(), ptr::null()];
    let mut child = 0;
    let (none, environment) = (ptr::null(), [ptr::null()]);
    // SAFETY: the strings and lists end with a null.
    let error = unsafe {
        posix_spawn(&raw mut child, path.as_ptr(), none, none, arguments.as_ptr(), environment.as_ptr())
    };
    assert_eq!(error, 0, "the program does not start");
    wait(child);
}

/// Returns a program of one segment that ends with status 0.
fn least_program() -> Vec<u8> {
    const AT: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // mov eax, 231 (exit_group); xor edi, edi; syscall
    let code = [0xb8, 231, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([2_u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    file.extend(1_u32.to_le_bytes());
    file.extend([AT + HEADERS, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(0_u32.to_le_bytes());
    file.extend([64_u16, 56, 1, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    // The segment is loaded, readable and executable.
    file.extend([1_u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    let len = HEADERS + code.len() as u64;
    file.extend([0, AT, AT, len, len, PAGE as u64].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(code);
    file
}

/// Measures nanoseconds.
fn times() {
    // There are many short runs, because the host may have other load. The best runs are those without other
    // load.
    let two = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    for _ in 0..200 {
        println!("faults-1 {:.0}", faults(1));
        if two {
            println!("faults-2 {:.0}", faults(2));
        }
    }
    if two {
        (0..8).for_each(|_| beside());
    }
}

/// Returns the faults per second of several threads, each in its own memory. The time is that of the slowest
/// thread.
fn faults(threads: usize) -> f64 {
    const EACH: usize = 8 * MIB;
    let start = Barrier::new(threads);
    let run = || {
        let at = map(EACH);
        start.wait();
        let began = Instant::now();
        touch(at, EACH);
        let took = began.elapsed();
        // Unmapping interrupts the other thread, so the time of unmapping is not measured.
        start.wait();
        unmap(at, EACH);
        took
    };
    let took = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|one| one.join().expect("it ends")).max().expect("a thread")
    });
    (threads * (EACH / PAGE)) as f64 / took.as_secs_f64()
}

/// Measures mmap and munmap of an untouched page: without other load, and while another thread unmaps a GiB.
fn beside() {
    const LARGE: usize = 1 << 30;
    let large = map(LARGE);
    touch(large, LARGE);
    tell("alone", turns(|turn| turn < 50_000));
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (large, begun, over) = (large as usize, &begun, &over);
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            while !begun.load(Relaxed) {
                std::hint::spin_loop();
            }
            let began = Instant::now();
            unmap(large as *mut u8, LARGE);
            over.store(true, Relaxed);
            began.elapsed()
        });
        turns(|turn| turn < 1000);
        begun.store(true, Relaxed);
        tell("beside", turns(|_| !over.load(Relaxed)));
        println!("munmap-gib {}", other.join().expect("it ends").as_nanos());
    });
}

/// Maps and unmaps a page in each round. Ends when `go_on`, which gets the number of rounds so far, returns
/// false. Returns the nanoseconds of each round.
fn turns(go_on: impl Fn(usize) -> bool) -> Vec<u64> {
    let mut took = Vec::with_capacity(1 << 20);
    while go_on(took.len()) && took.len() < 1 << 20 {
        let began = Instant::now();
        unmap(map(PAGE), PAGE);
        took.push(began.elapsed().as_nanos() as u64);
    }
    took
}

/// Prints percentiles, the maximum and the number of durations.
fn tell(name: &str, mut took: Vec<u64>) {
    took.sort_unstable();
    let part = |share: f64| took.get((took.len() as f64 * share) as usize).or(took.last()).copied();
    println!("{name}-p50 {}", part(0.5).unwrap_or(0));
    println!("{name}-p99 {}", part(0.99).unwrap_or(0));
    println!("{name}-most {}", part(1.0).unwrap_or(0));
    println!("{name}-turns {}", took.len());
}

/// Makes long calls, to measure the time that interrupts are off.
fn long() {
    const LARGE: usize = 256 * MIB;
    let at = map(LARGE);
    touch(at, LARGE);
    fork_and_wait();
    // SAFETY: only this program uses the memory.
    unsafe {
        mprotect(at.cast(), LARGE, READ);
        mprotect(at.cast(), LARGE, READ_WRITE);
        madvise(at.cast(), LARGE / 2, DONTNEED);
    }
    unmap(at, LARGE);
    let contents = vec![1_u8; 64 * MIB];
    fs::write("/tmp/long", &contents).expect("room");
    assert_eq!(fs::read("/tmp/long").expect("it is there"), contents);
    fs::remove_file("/tmp/long").expect("it is there");
}
