//! Where files of a tmpfs have huge pages.

/// Where files of a tmpfs have huge pages: its mount option `huge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TmpfsHuge {
    /// Nowhere: also where the mount says nothing.
    Never,
    /// Wherever they fit.
    Always,
    /// Where they fit into the length of the file.
    WithinSize,
    /// Where MADV_HUGEPAGE asked for them.
    Advise,
}

impl TmpfsHuge {
    /// The option's value of this name.
    pub fn of_name(name: &str) -> Option<TmpfsHuge> {
        let all = [TmpfsHuge::Never, TmpfsHuge::Always, TmpfsHuge::WithinSize, TmpfsHuge::Advise];
        all.into_iter().find(|huge| huge.name() == name)
    }

    /// As a list of mounts has it.
    pub fn name(self) -> &'static str {
        match self {
            TmpfsHuge::Never => "never",
            TmpfsHuge::Always => "always",
            TmpfsHuge::WithinSize => "within_size",
            TmpfsHuge::Advise => "advise",
        }
    }
}
