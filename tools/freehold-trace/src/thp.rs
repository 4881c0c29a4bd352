//! Where memory had huge pages while a recording was made.

use crate::error::ReadError;
use crate::input;
use crate::recording::Recording;
use crate::snap::parse_area;
use std::path::Path;

/// What `/sys/kernel/mm/transparent_hugepage/enabled` said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thp {
    /// Nowhere.
    Never,
    /// Where MADV_HUGEPAGE asked for them.
    Madvise,
    /// Wherever they fit.
    Always,
}

impl Thp {
    /// The size of huge pages that have an entry of the table above, in bytes.
    pub const LARGEST: u64 = 2 << 20;

    /// The setting of this name, as [`Recording::machine`](crate::Recording::machine) has it under `thp`.
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
    /// Where anonymous memory had huge pages of so many bytes, those included that have an entry for each
    /// small page; `all`: where it had any whose size says nothing else (`inherit`). None if that is not
    /// known.
    pub fn thp_of_size(&self, bytes: u64, all: Option<Thp>) -> Option<Thp> {
        match self.machine(&format!("thp-{}kB", bytes >> 10))? {
            "inherit" => all,
            word => Thp::of_name(word),
        }
    }
}

/// What the snapshots of the recording `path` show of the setting, wherever in them: those in the file
/// `snapshots`, or else beside it. None if they do not show it: an anonymous VMA that may have huge pages,
/// without having asked for them, is `always`'s.
///
/// # Errors
///
/// A file that cannot be read. Lines that make no sense are left to the reader of the snapshots.
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
