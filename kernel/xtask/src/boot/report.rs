//! Reads the kernel's report (`kernel/PROTOCOL.md`), and turns the end of a machine into the command's exit
//! status and message. `kernel/src/arch/report.rs` writes the report. Change a line on both sides and in the
//! protocol. The report of a machine that stopped may be cut off anywhere, so no line is required.

use std::{collections::BTreeSet, fs};

/// The C library's list of system calls.
const NAMES: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";

/// The line that announces that input is accepted.
pub const READY: &str = "ready";

/// The way in which the machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The program ended with this status.
    Status(u8),
    /// The kernel panicked with this text.
    Panic(String),
    /// The machine stopped without a last line.
    Silent,
    /// The time limit was exceeded. The text is the kernel's report of its state, if it sent one.
    Limit(Option<String>),
    /// The user pressed ^C.
    Interrupted,
}

impl End {
    /// Returns the exit status of the command.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            End::Status(status) => *status,
            End::Panic(_) | End::Silent => 125,
            End::Limit(_) => 124,
            End::Interrupted => 130,
        }
    }

    /// Returns a message for the user, unless the program ended or the user ended the run.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        match self {
            End::Status(_) | End::Interrupted => None,
            End::Panic(text) => Some(format!("the kernel panicked: {text}")),
            End::Silent => Some("the machine stopped without a report, as after a triple fault".into()),
            End::Limit(None) => Some("time limit exceeded".into()),
            End::Limit(Some(text)) => Some(format!("time limit exceeded: {text}")),
        }
    }
}

/// The whole report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The end that the last line reports, if there is one.
    pub end: Option<End>,
    /// Messages, without the word `log`.
    pub log: Vec<String>,
    /// Numbers of the system calls that programs called and the kernel lacks.
    pub missing: BTreeSet<u32>,
    /// The first program and the reason why it could not run.
    pub refused: Option<String>,
}

impl Report {
    /// Returns the longest time in nanoseconds that interrupts were off, and where, if the kernel measured it
    /// (option `irqoff`).
    #[must_use]
    pub fn longest_irq_off(&self) -> Option<(u64, String)> {
        self.log.iter().find_map(|line| {
            let (number, place) =
                line.strip_prefix("interrupts were off for ")?.split_once(" ns at most, ")?;
            let place = match place.rsplit_once(" call ") {
                Some((before, call)) => match call.parse() {
                    Ok(number) => format!("{before} {}", call_name(number)),
                    Err(_) => place.to_owned(),
                },
                None => place.to_owned(),
            };
            Some((number.parse().ok()?, place))
        })
    }

    /// Reads a report. Unknown lines count as messages.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut report = Self::default();
        for line in text.lines() {
            if let Some(End::Panic(panic)) = &mut report.end {
                panic.push('\n');
                panic.push_str(line);
                continue;
            }
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (word, rest) {
                ("panic", text) => report.end = Some(End::Panic(text.into())),
                ("status", number) if number.parse::<u8>().is_ok() => {
                    report.end = number.parse().ok().map(End::Status);
                }
                ("missing", number) if number.parse::<u32>().is_ok() => {
                    report.missing.extend(number.parse::<u32>().ok());
                }
                ("refused", text) => report.refused = Some(text.into()),
                // This line is for the thread that feeds the input (`qemu.rs`).
                (READY, "") => {}
                ("log", text) => report.log.push(text.into()),
                _ => report.log.push(line.into()),
            }
        }
        report
    }
}

/// Returns the name of a system call. Returns its number if this machine lacks the list of names or the list
/// lacks the number.
#[must_use]
pub fn call_name(number: u32) -> String {
    let list = fs::read_to_string(NAMES).unwrap_or_default();
    let named = list.lines().find_map(|line| {
        let (name, value) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        (value.trim() == number.to_string()).then_some(name)
    });
    named.map_or_else(|| number.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_time_is_parsed_with_its_place() {
        let report = Report::read(b"log up\nlog interrupts were off for 1234 ns at most, in vector 14\n");
        assert_eq!(report.longest_irq_off(), Some((1234, "in vector 14".into())));
        let report = Report::read(b"log interrupts were off for 1234 ns at most, in call 11\n");
        let place = report.longest_irq_off().map(|(_, place)| place);
        assert!(place.is_some_and(|place| place == "in munmap" || place == "in 11"));
        assert_eq!(Report::read(b"log up\n").longest_irq_off(), None);
    }

    #[test]
    fn report_of_a_program_is_parsed() {
        let report = Report::read(b"ready\nlog up\nmissing 41\nmissing 41\nodd line\nstatus 255\n");
        assert_eq!(report.end, Some(End::Status(255)));
        assert_eq!(report.log, ["up", "odd line"]);
        assert_eq!(report.missing, BTreeSet::from([41]));
    }

    #[test]
    fn refused_program_is_named() {
        let report = Report::read(b"ready\nrefused /x: it is missing\nstatus 127\n");
        assert_eq!(report.refused.as_deref(), Some("/x: it is missing"));
        assert_eq!(report.end, Some(End::Status(127)));
    }

    #[test]
    fn all_lines_after_panic_belong_to_it() {
        let report = Report::read(b"panic at fault.rs:7\n  address 0x10\nstatus 0\n");
        assert_eq!(report.end, Some(End::Panic("at fault.rs:7\n  address 0x10\nstatus 0".into())));
        assert_eq!(report.end.map(|end| end.status()), Some(125));
    }

    #[test]
    fn report_without_status_is_no_success() {
        assert_eq!(Report::read(b"").end, None);
        assert_eq!(Report::read(b"status 256\n").end, None);
        assert_eq!(
            [End::Silent, End::Limit(None), End::Interrupted].map(|end| end.status()),
            [125, 124, 130]
        );
    }
}
