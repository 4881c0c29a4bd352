//! Starts QEMU, feeds its input, keeps its output, and waits for its end.
//!
//! A [`Machine`] describes a run; `boot`, `kernel_tests` and `kernel_bench` fill it in. The arguments of QEMU
//! must offer the ports of `kernel/PROTOCOL.md`. Three things must hold: QEMU never outlives this program,
//! the terminal is restored, and a machine that makes no progress ends. QEMU therefore gets SIGKILL when this
//! program dies. To end QEMU itself, this program sends SIGTERM, at which QEMU restores the terminal, and
//! SIGKILL only if QEMU does not end. At a time limit the machine first gets a nonmaskable interrupt, at
//! which the kernel reports its state. A new argument of QEMU belongs in `Machine::command`, or in
//! `Machine::more` if only some runs need it.

#![expect(unsafe_code, reason = "requests before exec that QEMU dies with this program")]

use std::{
    fs,
    io::{IsTerminal, Read, Write},
    mem,
    os::unix::{
        net::UnixStream,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{
    report::{End, READY, Report},
    scratch::Scratch,
    symbols,
};

/// The name of the program.
const QEMU: &str = "qemu-system-x86_64";

/// Time that QEMU may take to end after a request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of QEMU that make the machine's clocks count instructions: one nanosecond for each. The clock does
/// not advance while all CPUs halt, except to the next timer.
pub const COUNTING: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// A machine to start.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The kernel.
    pub image: PathBuf,
    /// The archive.
    pub archive: PathBuf,
    /// The number of CPUs.
    pub cpus: u32,
    /// The size of memory, in QEMU's form.
    pub memory: String,
    /// The CPU model, by QEMU's name.
    pub cpu: String,
    /// The port at which the machine waits for a debugger.
    pub gdb: Option<u16>,
    /// How much the kernel logs: 0 nothing, 1 unusual events, 2 everything.
    pub log: u8,
    /// Time after which the machine is ended.
    pub limit: Option<Duration>,
    /// Time without output after which the machine is ended. Has an effect only if output is kept.
    pub silence: Option<Duration>,
    /// Options of the kernel.
    pub options: Vec<String>,
    /// The whole command line, for a kernel that is not this project's.
    pub command_line: Option<String>,
    /// More arguments for QEMU.
    pub more: Vec<String>,
}

/// The place of the machine's console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Console {
    /// Standard input and output of this program.
    Here,
    /// The machine gets no input, and its output is kept.
    Kept,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    /// The way in which the machine ended.
    pub end: End,
    /// The kernel's report.
    pub report: Report,
    /// The output, if it was kept.
    pub output: Vec<u8>,
}

impl Machine {
    /// Returns a machine with the command's defaults: one CPU, 1 GiB.
    #[must_use]
    pub fn new(image: PathBuf, archive: PathBuf) -> Self {
        Self {
            image,
            archive,
            cpus: 1,
            memory: "1G".into(),
            cpu: "max".into(),
            gdb: None,
            log: 0,
            limit: None,
            silence: None,
            options: Vec::new(),
            command_line: None,
            more: Vec::new(),
        }
    }

    /// Makes the kernel write a recording to this file, in the form that `recording` reads.
    pub fn record_to(&mut self, file: &Path) {
        self.options.push("record".into());
        let path = file.to_string_lossy().replace(',', ",,");
        let carrier = ["-chardev", &format!("file,id=record,path={path}")].map(str::to_owned);
        let port = ["-device", "isa-debugcon,iobase=0xea,readback=0xea,chardev=record"].map(str::to_owned);
        self.more.extend(carrier.into_iter().chain(port));
    }

    /// Runs the machine to its end.
    ///
    /// # Errors
    ///
    /// Fails if QEMU is missing or refuses its arguments.
    pub fn run(&self, console: Console) -> Result<Ran, String> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| error.to_string())?;
        }
        let folder = Scratch::new("report")?;
        let (report, monitor) = (folder.path().join("report"), folder.path().join("monitor"));
        let terminal = console == Console::Here && std::io::stdin().is_terminal();
        let mut command = self.command(folder.path(), terminal);
        if console == Console::Kept {
            command.stdout(Stdio::piped());
        }
        command.stdin(if terminal { Stdio::inherit() } else { Stdio::piped() });
        // SAFETY: between fork and exec the closure only makes one system call.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut qemu = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{QEMU} is missing: apt-get install qemu-system-x86")
            }
            _ => format!("cannot start {QEMU}: {error}"),
        })?;
        if let Some(input) = qemu.stdin.take() {
            feed(input, console, report.clone());
        }
        let printed = Arc::new(Mutex::new(Printed { bytes: Vec::new(), last: Instant::now() }));
        let reader = qemu.stdout.take().map(|from| {
            let printed = Arc::clone(&printed);
            thread::spawn(move || keep(from, &printed))
        });
        let ended = self.follow(&mut qemu, &stop, &printed, &monitor)?;
        // An error means that the reader panicked. The output so far is used then.
        let _ = reader.map(thread::JoinHandle::join);
        let output = mem::take(&mut lock(&printed).bytes);
        let report = Report::read(&fs::read(report).unwrap_or_default());
        let end = match (ended, report.end.clone()) {
            (None, Some(End::Panic(text))) => End::Panic(symbols::explain(&text, &self.image)),
            // After a nonmaskable interrupt the kernel reports its state as a panic.
            (Some(End::Limit(_)), Some(End::Panic(text))) => {
                End::Limit(Some(symbols::explain(&text, &self.image)))
            }
            (ended, last) => ended.or(last).unwrap_or(End::Silent),
        };
        Ok(Ran { end, report, output })
    }

    /// Returns QEMU's command line.
    fn command(&self, folder: &Path, terminal: bool) -> Command {
        let at = |name| folder.join(name).to_string_lossy().replace(',', ",,");
        let mut command = Command::new(QEMU);
        let console = if terminal { "terminal" } else { "pipe" };
        let options = self.options.iter().map(|option| format!(" {option}")).collect::<String>();
        let ours = format!("console={console} log={}{options} -- ", self.log);
        command
            .args(["-accel", "tcg", "-cpu", &self.cpu, "-m", &self.memory, "-smp", &self.cpus.to_string()])
            .args(["-display", "none", "-vga", "none", "-net", "none", "-no-reboot"])
            .args(["-monitor", &monitor(&folder.join("monitor"))])
            .args(["-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"])
            .args(["-chardev", &format!("file,id=report,path={}", at("report"))])
            .args(["-device", "isa-debugcon,iobase=0xe9,chardev=report"])
            .args(["-append", self.command_line.as_ref().unwrap_or(&ours)])
            .arg("-kernel")
            .arg(&self.image)
            .arg("-initrd")
            .arg(&self.archive);
        if let Some(port) = self.gdb {
            command.args(["-S", "-gdb", &format!("tcp:127.0.0.1:{port}")]);
        }
        command.args(&self.more);
        command
    }

    /// Waits until QEMU ends. Ends QEMU at ^C, at the time limit, or after too long a silence, and then
    /// returns the reason. Returns `None` if QEMU ended by itself.
    fn follow(
        &self,
        qemu: &mut Child,
        stop: &AtomicBool,
        printed: &Mutex<Printed>,
        monitor: &Path,
    ) -> Result<Option<End>, String> {
        let started = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            if let Some(status) = qemu.try_wait().map_err(|error| error.to_string())? {
                // A terminal sends ^C to QEMU, too.
                // Relaxed: the flag publishes no other memory.
                if stop.load(Ordering::Relaxed) {
                    return Ok(Some(End::Interrupted));
                }
                // QEMU exits with an odd status of at least 3 when the kernel ends it, and with 0 when the
                // machine resets.
                return match (status.code(), status.signal()) {
                    (Some(1), _) => Err(format!("{QEMU} refused its arguments")),
                    (_, Some(signal)) => Err(format!("{QEMU} was ended by signal {signal}")),
                    _ => Ok(None),
                };
            }
            if stop.load(Ordering::Relaxed) {
                end(qemu)?;
                return Ok(Some(End::Interrupted));
            }
            let silent = self.silence.is_some_and(|most| lock(printed).last.elapsed() > most);
            if silent || self.limit.is_some_and(|limit| started.elapsed() > limit) {
                // A kernel of this project reports its state at a nonmaskable interrupt and then ends the
                // machine. If QEMU does not end, for example because it runs another kernel, this function
                // ends QEMU.
                let asked =
                    UnixStream::connect(monitor).and_then(|mut to| to.write_all(b"nmi\n").map(|()| to));
                if asked.is_err() || !has_ended(qemu)? {
                    end(qemu)?;
                }
                drop(asked);
                return Ok(Some(End::Limit(None)));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// Returns the argument of `-monitor`: a socket at this path, or `none` if the path is too long for a socket.
fn monitor(path: &Path) -> String {
    const LONGEST: usize = 100;
    let path = path.to_string_lossy().replace(',', ",,");
    if path.len() > LONGEST { "none".into() } else { format!("unix:{path},server=on,wait=off") }
}

/// Output of QEMU, which one thread stores and another reads.
struct Printed {
    /// The output so far.
    bytes: Vec<u8>,
    /// The time of the last output.
    last: Instant,
}

/// Locks the output, even if a thread panicked while it held the lock.
fn lock(printed: &Mutex<Printed>) -> MutexGuard<'_, Printed> {
    printed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads QEMU's output to its end, and stores it in `printed`.
fn keep(mut from: ChildStdout, printed: &Mutex<Printed>) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let mut printed = lock(printed);
        printed.bytes.extend_from_slice(&bytes[..len]);
        printed.last = Instant::now();
    }
}

/// Returns true if QEMU ends by itself within `PATIENCE`.
fn has_ended(qemu: &mut Child) -> Result<bool, String> {
    let asked = Instant::now();
    while asked.elapsed() < PATIENCE {
        if qemu.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
}

/// Ends QEMU: by SIGTERM, at which QEMU restores the terminal, or by SIGKILL if QEMU does not end.
fn end(qemu: &mut Child) -> Result<(), String> {
    if let Some(pid) = i32::try_from(qemu.id()).ok().and_then(Pid::from_raw) {
        // The call fails only if QEMU has already ended.
        let _ = kill_process(pid, Signal::TERM);
    }
    if has_ended(qemu)? {
        return Ok(());
    }
    let killed = qemu.kill().and_then(|()| qemu.wait());
    killed.map(drop).map_err(|error| format!("cannot end {QEMU}: {error}"))
}

/// Starts a thread that feeds the machine's input once the kernel is ready: standard input if the console is
/// here, and then the mark for the end of input.
fn feed(mut to: ChildStdin, console: Console, report: PathBuf) {
    thread::spawn(move || {
        while !fs::read_to_string(&report).is_ok_and(|text| text.lines().any(|line| line == READY)) {
            // The machine may end before it takes input. Its folder is removed then.
            if !report.parent().is_some_and(Path::exists) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let mut bytes = [0; 4096];
        let mut here = std::io::stdin();
        let mut read = |bytes: &mut [u8]| if console == Console::Here { here.read(bytes) } else { Ok(0) };
        while let Ok(len @ 1..) = read(&mut bytes) {
            if to.write_all(&escaped(&bytes[..len])).is_err() {
                return;
            }
        }
        let _ = to.write_all(&[END_OF_INPUT]);
        // QEMU reads no more from a closed pipe, so the pipe stays open until the machine ends.
        std::mem::forget(to);
    });
}

/// The byte that ends the input.
const END_OF_INPUT: u8 = 0x04;
/// The byte that escapes the next byte.
const AS_IT_IS: u8 = 0x10;

/// Escapes the bytes that have a meaning for the kernel.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let marked = |byte: u8| matches!(byte, END_OF_INPUT | AS_IT_IS).then_some(AS_IT_IS);
    bytes.iter().flat_map(|byte| marked(*byte).into_iter().chain([*byte])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_input_byte_is_escaped() {
        assert_eq!(escaped(b"ab\x04\x10"), b"ab\x10\x04\x10\x10");
    }

    #[test]
    fn refused_arguments_are_an_error_not_a_panic() {
        let machine = Machine::new("/no/such/kernel".into(), "/no/such/archive".into());
        let why = machine.run(Console::Kept).expect_err("there is no kernel");
        assert!(why.contains("refused") || why.contains("is missing"), "{why}");
    }

    #[test]
    fn comma_in_a_path_is_escaped_for_qemu() {
        let more = vec!["-icount".into()];
        let machine = Machine { gdb: Some(7), log: 2, more, ..Machine::new("k".into(), "a".into()) };
        let command = machine.command(Path::new("/a,b"), false);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert!(words.iter().any(|word| word == "file,id=report,path=/a,,b/report"), "{words:?}");
        assert!(words.iter().any(|word| word == "console=pipe log=2 -- "), "{words:?}");
        assert_eq!(words.last().map(|word| &**word), Some("-icount"));
    }
}
