//! Designs of locking as a user writes and reads them: `unmap=sectioned:1GiB,fault=vma-lock`.

use freehold::space::{FaultLock, Locking, Unmap};

/// What there is, for the texts of errors.
const UNMAP: &str = "exclusive, sectioned[:BYTES], downgraded, released";
const FAULT: &str = "mmap-lock, vma-lock";

/// The design that `spec` names; what it does not name is the default.
///
/// # Errors
///
/// What is wrong with it, and what there is.
pub fn parse(spec: &str) -> Result<Locking, String> {
    let mut locking = Locking::default();
    let (mut unmap, mut fault) = (false, false);
    for part in spec.split(',') {
        let (knob, value) = part.split_once('=').unwrap_or((part, ""));
        let seen = match knob {
            "unmap" => {
                locking.unmap = parse_unmap(value)?;
                &mut unmap
            }
            "fault" => {
                locking.fault = parse_fault(value)?;
                &mut fault
            }
            _ => {
                return Err(format!(
                    "`{part}` is no choice of locking: there are unmap=({UNMAP}) and fault=({FAULT})"
                ));
            }
        };
        if std::mem::replace(seen, true) {
            return Err(format!("`{knob}` is chosen twice"));
        }
    }
    Ok(locking)
}

fn parse_unmap(value: &str) -> Result<Unmap, String> {
    let unmap = match value.split_once(':') {
        None => match value {
            "exclusive" => Unmap::Exclusive,
            "sectioned" => Unmap::SECTIONED,
            "downgraded" => Unmap::Downgraded,
            "released" => Unmap::Released,
            _ => return Err(format!("there is no unmap=`{value}`: there are {UNMAP}")),
        },
        Some(("sectioned", bytes)) => match parse_bytes(bytes) {
            Some(bytes) if bytes > 0 => Unmap::Sectioned { bytes },
            _ => {
                return Err(format!("`{bytes}` is no size of a section: say bytes, or as 64KiB, 2MiB, 1GiB"));
            }
        },
        Some((name, _)) => return Err(format!("unmap=`{name}` takes no size: there are {UNMAP}")),
    };
    Ok(unmap)
}

fn parse_fault(value: &str) -> Result<FaultLock, String> {
    match value {
        "mmap-lock" => Ok(FaultLock::MmapLock),
        "vma-lock" => Ok(FaultLock::VmaLock),
        _ => Err(format!("there is no fault=`{value}`: there are {FAULT}")),
    }
}

/// A number of bytes, plain or in KiB, MiB, GiB.
fn parse_bytes(text: &str) -> Option<u64> {
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

/// `released`, `sectioned:1GiB`: as [`parse`] reads it.
pub fn unmap_name(unmap: Unmap) -> String {
    match unmap {
        Unmap::Exclusive => "exclusive".to_owned(),
        Unmap::SECTIONED => "sectioned".to_owned(),
        Unmap::Sectioned { bytes } => format!("sectioned:{}", plain_bytes(bytes)),
        Unmap::Downgraded => "downgraded".to_owned(),
        Unmap::Released => "released".to_owned(),
    }
}

/// `vma-lock` or `mmap-lock`.
pub fn fault_name(fault: FaultLock) -> &'static str {
    match fault {
        FaultLock::MmapLock => "mmap-lock",
        FaultLock::VmaLock => "vma-lock",
    }
}

/// The whole, as [`parse`] reads it.
pub fn name(locking: Locking) -> String {
    format!("unmap={},fault={}", unmap_name(locking.unmap), fault_name(locking.fault))
}

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
