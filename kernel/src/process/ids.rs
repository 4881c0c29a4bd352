//! Users and groups of a process (credentials(7)). There is one user: the numbers are stored, and only
//! [`Ids::is_root`] has an effect. `calls/identity.rs` reads and sets the numbers, and `limits.rs` passes the
//! privileges on memory to the engine. The program `corners.c` of the tests checks the numbers.

/// The numbers of a user or a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The number of the user or group that started the program.
    pub real: u32,
    /// The number that decides about privileges.
    pub effective: u32,
    /// The number to which the effective number may be set back.
    pub saved: u32,
}

/// The users and groups of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids {
    pub user: Numbers,
    pub group: Numbers,
    /// True if the process has dropped all capabilities (capset).
    pub gave_up: bool,
}

impl Ids {
    /// Returns true if the effective user is 0 and the process has not dropped its capabilities. Such a
    /// process may lock any amount of memory, map low addresses, and inject memory failures.
    pub fn is_root(&self) -> bool {
        self.user.effective == 0 && !self.gave_up
    }
}
