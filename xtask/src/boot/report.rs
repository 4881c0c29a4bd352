//! What the kernel says on its report port: `kernel/PROTOCOL.md`.

use std::collections::BTreeMap;

/// How the machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The program ended with this status.
    Status(u8),
    /// The kernel could not go on; its words.
    Panic(String),
    /// The machine stopped without a last line.
    Silent,
    /// The time limit was over.
    Limit,
    /// Somebody pressed ^C.
    Interrupted,
}

impl End {
    /// The status of the command.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            End::Status(status) => *status,
            End::Panic(_) | End::Silent => 125,
            End::Limit => 124,
            End::Interrupted => 130,
        }
    }

    /// What to tell somebody, if it is not the program's own affair.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        match self {
            End::Status(_) | End::Interrupted => None,
            End::Panic(text) => Some(format!("the kernel panicked: {text}")),
            End::Silent => Some("the machine stopped without a word, as on a triple fault".into()),
            End::Limit => Some("the time limit is over".into()),
        }
    }
}

/// Everything on the port.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The last line, if there is one.
    pub end: Option<End>,
    /// Messages.
    pub log: Vec<String>,
    /// System calls that programs called and the kernel lacks.
    pub missing: BTreeMap<u32, String>,
}

impl Report {
    /// Reads what was written. Lines that mean nothing are taken for messages.
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
                ("missing", what) => {
                    let (number, name) = what.split_once(' ').unwrap_or((what, "?"));
                    report.missing.insert(number.parse().unwrap_or(u32::MAX), name.into());
                }
                ("log", text) => report.log.push(text.into()),
                _ => report.log.push(line.into()),
            }
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends() {
        let report = Report::read(b"log up\nmissing 41 socket\nmissing 41 socket\nodd line\nstatus 255\n");
        assert_eq!(report.end, Some(End::Status(255)));
        assert_eq!(report.log, ["up", "odd line"]);
        assert_eq!(report.missing, BTreeMap::from([(41, "socket".into())]));
    }

    #[test]
    fn a_panic_has_all_that_follows() {
        let report = Report::read(b"panic at fault.rs:7\n  address 0x10\nstatus 0\n");
        assert_eq!(report.end, Some(End::Panic("at fault.rs:7\n  address 0x10\nstatus 0".into())));
        assert_eq!(report.end.map(|end| end.status()), Some(125));
    }

    #[test]
    fn silence_is_no_success() {
        assert_eq!(Report::read(b"").end, None);
        assert_eq!(Report::read(b"status 256\n").end, None);
        assert_eq!([End::Silent, End::Limit, End::Interrupted].map(|end| end.status()), [125, 124, 130]);
    }
}
