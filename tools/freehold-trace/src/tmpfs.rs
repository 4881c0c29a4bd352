//! The huge pages of files on a tmpfs: the mount option `huge`.
//!
//! `freehold-record` reads the option from the list of mounts. The writer and the reader of `NAME.trace` use
//! the names of its values (line `# tmpfs`), and the replay gives the policy to the engine's files. The names
//! are those of Linux and are part of the format. `page_properties_of_files_are_read` (`trace_tests.rs`)
//! checks the lines.

/// The policy for huge pages of files on a tmpfs: its mount option `huge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TmpfsHuge {
    /// No file has huge pages. Linux's default without the option.
    Never,
    /// All suitable parts of files have huge pages.
    Always,
    /// Parts within the length of the file have huge pages.
    WithinSize,
    /// Memory with MADV_HUGEPAGE has huge pages.
    Advise,
}

impl TmpfsHuge {
    /// Returns the policy with this option value.
    pub fn of_name(name: &str) -> Option<TmpfsHuge> {
        let all = [TmpfsHuge::Never, TmpfsHuge::Always, TmpfsHuge::WithinSize, TmpfsHuge::Advise];
        all.into_iter().find(|huge| huge.name() == name)
    }

    /// Returns the option value, as in a list of mounts.
    pub fn name(self) -> &'static str {
        match self {
            TmpfsHuge::Never => "never",
            TmpfsHuge::Always => "always",
            TmpfsHuge::WithinSize => "within_size",
            TmpfsHuge::Advise => "advise",
        }
    }
}
