//! Users and groups of a process (credentials(7)). There is one user: the numbers are stored, and only
//! [`Ids::is_root`] counts for anything.

/// A user's or a group's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub real: u32,
    pub effective: u32,
    pub saved: u32,
}

/// A process's users and groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids {
    pub user: Numbers,
    pub group: Numbers,
    /// It has given up all capabilities (capset).
    pub gave_up: bool,
}

impl Ids {
    /// Returns whether the effective user is 0, and has not given up what it may do: it may lock any amount of memory, map low addresses, and inject
    /// memory failures.
    pub fn is_root(&self) -> bool {
        self.user.effective == 0 && !self.gave_up
    }
}
