//! The setting for transparent huge pages during the recording.
//!
//! The replay needs the setting to know which memory Linux filled with huge pages; the planner needs it to
//! know where a fork may share huge pages (`plan/kin.rs`). Newer recordings contain the setting in their head
//! ([`Recording::machine`]). For other recordings, [`shown_thp`] finds a hint in the snapshots: smaps marks
//! VMAs that may have huge pages. The setting may differ for each size of page ([`Recording::thp_of_size`]).
//! An unknown setting stays `None`, and the code that uses the setting decides which values are possible.
//! `setting_of_huge_pages_is_recorded_or_shown_in_a_snapshot` (`freehold-replay/tests/small.rs`) tests both
//! sources.

use crate::error::ReadError;
use crate::input;
use crate::recording::Recording;
use crate::snap::parse_area;
use std::path::Path;

/// The value of `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thp {
    /// No anonymous memory has huge pages.
    Never,
    /// Anonymous memory with MADV_HUGEPAGE has huge pages.
    Madvise,
    /// All suitable anonymous memory has huge pages.
    Always,
}

impl Thp {
    /// The size in bytes of huge pages that are mapped by one entry of a PMD table.
    pub const LARGEST: u64 = 2 << 20;

    /// Returns the setting with this name, as in the machine's setting `thp`
    /// ([`Recording::machine`](crate::Recording::machine)).
    pub fn of_name(name: &str) -> Option<Thp> {
        match name {
            "never" => Some(Thp::Never),
            "madvise" => Some(Thp::Madvise),
            "always" => Some(Thp::Always),
            _ => None,
        }
    }
}

impl Recording {
    /// Returns the setting for anonymous huge pages of `bytes` bytes, including sizes whose pages are mapped
    /// by small entries. `all` is the setting that `inherit` refers to. Returns `None` if the setting is
    /// unknown.
    pub fn thp_of_size(&self, bytes: u64, all: Option<Thp>) -> Option<Thp> {
        match self.machine(&format!("thp-{}kB", bytes >> 10))? {
            "inherit" => all,
            word => Thp::of_name(word),
        }
    }
}

/// Returns the setting that the snapshots of the recording `path` show. The snapshots are in the file
/// `snapshots` if it is given, otherwise in the folder of the recording.
///
/// An anonymous VMA that may have huge pages without MADV_HUGEPAGE shows [`Thp::Always`]. Returns `None` if
/// there is no such VMA.
///
/// # Errors
///
/// Fails if a file cannot be read. Invalid lines are not an error here; the reader of the snapshots reports
/// them.
pub fn shown_thp(path: &Path, snapshots: Option<&Path>) -> Result<Option<Thp>, ReadError> {
    let file = snapshots.map(Path::to_owned).or_else(|| input::snapshots_beside(path));
    let Some(file) = file else { return Ok(None) };
    let mut lines = input::open(&file)?;
    while lines.advance()? {
        let line = lines.line();
        if line.last() != Some(&b'!') || line.starts_with(b"@") || line.starts_with(b"#") {
            continue;
        }
        let shown = parse_area(line).is_ok_and(|area| {
            let anonymous = matches!(area.name.as_str(), "" | "[heap]" | "[stack]");
            let asked = area.flags.iter().flatten().any(|code| code == b"hg");
            anonymous && !area.shared && area.thp_eligible && !asked
        });
        if shown {
            return Ok(Some(Thp::Always));
        }
    }
    Ok(None)
}
