//! The text form of locking designs, for example `unmap=sectioned:1GiB,fault=vma-count`.
//!
//! A design is written as a list of `KEY=VALUE`, with the keys `unmap`, `fault`, `write`, `hugetlb` and
//! `file-rmap`. [`parse`] reads the option `--locking` of the command line; the functions `*_name` write the
//! values into reports. Both directions must agree: `locking_tests.rs` checks that every design reads back.
//! The designs themselves are described in the crate `freehold`.
//!
//! A new value needs four changes here: the list of valid values, the parser of its key, its name, and, if
//! `freehold replay --compare` is to use it, [`Design::compared`].

use freehold::{
    rmap::FileRmap,
    space::{FaultLock, HugetlbLock, Locking, Unmap, Write},
};
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// Valid values of each key, for error messages.
const UNMAP: &str = "exclusive, sectioned[:BYTES], downgraded, released";
const FAULT: &str = "mmap-lock, vma-rwsem, vma-count, per-cpu";
const WRITE: &str = "whole, ranges, ranges-only";
const HUGETLB: &str = "file-lock, vma-lock";
const FILE_RMAP: &str = "mutex, exclusive, shared";

/// A choice of locks for each address space and for all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Design {
    /// Locks that an address space uses for munmap, faults and changes.
    pub space: Locking,
    /// Lock of a file's reverse map.
    pub file_rmap: FileRmap,
}

impl Design {
    /// Returns the designs of [`Locking::ALL`], and then one design for each other value of the locks of huge
    /// pages and of files. In the added designs, all other choices are the defaults.
    pub fn compared() -> Vec<Design> {
        let spaces = Locking::ALL.map(Design::from);
        let tables = Locking::default().hugetlb(HugetlbLock::FileLock);
        let others = FileRmap::ALL.into_iter().filter(|design| *design != FileRmap::default());
        let files = others.map(|file_rmap| Design { file_rmap, ..Design::default() });
        spaces.into_iter().chain([tables.into()]).chain(files).collect()
    }
}

impl From<Locking> for Design {
    fn from(space: Locking) -> Self {
        Design { space, ..Design::default() }
    }
}

/// Serialises the names of the values.
impl Serialize for Design {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut parts = to.serialize_struct("Design", 5)?;
        parts.serialize_field("unmap", &unmap_name(self.space.unmap))?;
        parts.serialize_field("fault", fault_name(self.space.fault))?;
        parts.serialize_field("write", write_name(self.space.write))?;
        parts.serialize_field("hugetlb", hugetlb_name(self.space.hugetlb))?;
        parts.serialize_field("file_rmap", file_rmap_name(self.file_rmap))?;
        parts.end()
    }
}

/// Parses `spec`. Values that `spec` does not set are the defaults.
///
/// # Errors
///
/// Fails with a message that says what is wrong and lists the valid values.
pub fn parse(spec: &str) -> Result<Design, String> {
    let mut design = Design::default();
    let (mut unmap, mut fault, mut write, mut hugetlb, mut file_rmap) = (false, false, false, false, false);
    for part in spec.split(',') {
        let (knob, value) = part.split_once('=').unwrap_or((part, ""));
        let seen = match knob {
            "unmap" => {
                design.space.unmap = parse_unmap(value)?;
                &mut unmap
            }
            "fault" => {
                design.space.fault = parse_fault(value)?;
                &mut fault
            }
            "write" => {
                design.space.write = parse_write(value)?;
                &mut write
            }
            "hugetlb" => {
                design.space.hugetlb = parse_hugetlb(value)?;
                &mut hugetlb
            }
            "file-rmap" => {
                design.file_rmap = parse_file_rmap(value)?;
                &mut file_rmap
            }
            _ => {
                return Err(format!(
                    "`{part}` is not a locking choice: expected unmap=({UNMAP}), fault=({FAULT}), write=({WRITE}), hugetlb=({HUGETLB}) or file-rmap=({FILE_RMAP})"
                ));
            }
        };
        if std::mem::replace(seen, true) {
            return Err(format!("`{knob}` is given twice"));
        }
    }
    Ok(design)
}

/// Parses the value of `unmap`.
fn parse_unmap(value: &str) -> Result<Unmap, String> {
    let unmap = match value.split_once(':') {
        None => match value {
            "exclusive" => Unmap::Exclusive,
            "sectioned" => Unmap::SECTIONED,
            "downgraded" => Unmap::Downgraded,
            "released" => Unmap::Released,
            _ => return Err(format!("unknown value `{value}` for unmap: expected {UNMAP}")),
        },
        Some(("sectioned", bytes)) => match parse_bytes(bytes) {
            Some(bytes) if bytes > 0 => Unmap::Sectioned { bytes },
            _ => {
                return Err(format!("`{bytes}` is not a section size: expected bytes, or a size like 1GiB"));
            }
        },
        Some((name, _)) => return Err(format!("unmap=`{name}` takes no size: expected {UNMAP}")),
    };
    Ok(unmap)
}

/// Parses the value of `fault`.
fn parse_fault(value: &str) -> Result<FaultLock, String> {
    match value {
        "mmap-lock" => Ok(FaultLock::MmapLock),
        "vma-rwsem" => Ok(FaultLock::VmaRwsem),
        "vma-count" => Ok(FaultLock::VmaCount),
        "per-cpu" => Ok(FaultLock::VmaPerCpu),
        _ => Err(format!("unknown value `{value}` for fault: expected {FAULT}")),
    }
}

/// Parses the value of `write`.
fn parse_write(value: &str) -> Result<Write, String> {
    match value {
        "whole" => Ok(Write::Whole),
        "ranges" => Ok(Write::Ranges),
        "ranges-only" => Ok(Write::RangesOnly),
        _ => Err(format!("unknown value `{value}` for write: expected {WRITE}")),
    }
}

/// Parses the value for locks of huge pages.
fn parse_hugetlb(value: &str) -> Result<HugetlbLock, String> {
    match value {
        "file-lock" => Ok(HugetlbLock::FileLock),
        "vma-lock" => Ok(HugetlbLock::VmaLock),
        _ => Err(format!("unknown value `{value}` for hugetlb: expected {HUGETLB}")),
    }
}

/// Parses the value for the lock of a file's reverse map.
fn parse_file_rmap(value: &str) -> Result<FileRmap, String> {
    match value {
        "mutex" => Ok(FileRmap::Mutex),
        "exclusive" => Ok(FileRmap::Exclusive),
        "shared" => Ok(FileRmap::Shared),
        _ => Err(format!("unknown value `{value}` for file-rmap: expected {FILE_RMAP}")),
    }
}

/// Parses a number of bytes, plain or in KiB, MiB or GiB. Returns `None` if the text has another form, or if
/// the number is too large.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return None,
    };
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Returns `released`, `sectioned:1GiB` and so on, in the form that [`parse`] reads.
pub fn unmap_name(unmap: Unmap) -> String {
    match unmap {
        Unmap::Exclusive => "exclusive".to_owned(),
        Unmap::SECTIONED => "sectioned".to_owned(),
        Unmap::Sectioned { bytes } => format!("sectioned:{}", plain_bytes(bytes)),
        Unmap::Downgraded => "downgraded".to_owned(),
        Unmap::Released => "released".to_owned(),
    }
}

/// Returns `mmap-lock` and so on, in the form that [`parse`] reads.
pub fn fault_name(fault: FaultLock) -> &'static str {
    match fault {
        FaultLock::MmapLock => "mmap-lock",
        FaultLock::VmaRwsem => "vma-rwsem",
        FaultLock::VmaCount => "vma-count",
        FaultLock::VmaPerCpu => "per-cpu",
    }
}

/// Returns `whole`, `ranges` or `ranges-only`.
pub fn write_name(write: Write) -> &'static str {
    match write {
        Write::Whole => "whole",
        Write::Ranges => "ranges",
        Write::RangesOnly => "ranges-only",
    }
}

/// Returns `file-lock` or `vma-lock`.
pub fn hugetlb_name(hugetlb: HugetlbLock) -> &'static str {
    match hugetlb {
        HugetlbLock::FileLock => "file-lock",
        HugetlbLock::VmaLock => "vma-lock",
    }
}

/// Returns `shared`, `exclusive` or `mutex`.
pub fn file_rmap_name(file_rmap: FileRmap) -> &'static str {
    match file_rmap {
        FileRmap::Mutex => "mutex",
        FileRmap::Exclusive => "exclusive",
        FileRmap::Shared => "shared",
    }
}

/// Returns the whole design in the form that [`parse`] reads. Omits defaults of huge pages and files.
pub fn name(design: Design) -> String {
    let Locking { unmap, fault, write, .. } = design.space;
    let rest = rest(design);
    let comma = if rest.is_empty() { "" } else { "," };
    let (unmap, fault, write) = (unmap_name(unmap), fault_name(fault), write_name(write));
    format!("unmap={unmap},fault={fault},write={write}{comma}{rest}")
}

/// Returns the values for huge pages and files that are not the default, in the form that [`parse`] reads.
pub fn rest(design: Design) -> String {
    let mut choices = Vec::new();
    if design.space.hugetlb != HugetlbLock::default() {
        choices.push(format!("hugetlb={}", hugetlb_name(design.space.hugetlb)));
    }
    if design.file_rmap != FileRmap::default() {
        choices.push(format!("file-rmap={}", file_rmap_name(design.file_rmap)));
    }
    choices.join(",")
}

/// Formats bytes in the form that [`parse_bytes`] reads.
fn plain_bytes(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
#[path = "locking_tests.rs"]
mod tests;
