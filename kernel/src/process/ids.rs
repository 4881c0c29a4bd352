//! Users, groups and capabilities of a process (credentials(7), capabilities(7)). There is one user: the
//! numbers are stored, and what a process may do depends on its capabilities alone ([`Ids::may`]).
//! `calls/identity.rs` reads and sets the values, exec calls [`Ids::execute`], and `limits.rs` passes the
//! privileges on memory to the engine. Unlike on Linux, all threads of a process have the same values. The
//! programs `corners.c` and `capabilities.c` of the tests check the values.

use freehold::error::Errno;

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

impl Numbers {
    /// Returns true if one of the numbers is `id`.
    pub fn has(self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }

    /// Returns true if one of the numbers is that of the superuser.
    fn has_root(self) -> bool {
        self.has(0)
    }
}

/// Sets of capabilities. Bit N of a set is capability N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The capabilities in effect.
    pub effective: u64,
    /// The capabilities that the process may put into effect.
    pub permitted: u64,
    /// The capabilities that the process offers to a program that it executes. No program takes them.
    pub inheritable: u64,
}

impl Capabilities {
    /// The set of all capabilities, CAP_CHOWN to CAP_CHECKPOINT_RESTORE.
    pub const ALL: u64 = (1 << 41) - 1;
}

impl Default for Capabilities {
    /// Returns the capabilities of the superuser.
    fn default() -> Self {
        Self { effective: Self::ALL, permitted: Self::ALL, inheritable: 0 }
    }
}

/// The users, groups and capabilities of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids {
    pub user: Numbers,
    pub group: Numbers,
    pub capabilities: Capabilities,
    /// True if the permitted capabilities survive a change of users (PR_SET_KEEPCAPS).
    pub keeps_capabilities: bool,
}

impl Ids {
    /// Returns true if the process has this capability.
    pub fn may(&self, capability: u32) -> bool {
        self.capabilities.effective >> capability & 1 != 0
    }

    /// Sets the numbers of the user. The capabilities follow: the last superuser's number that is given up
    /// takes the permitted ones with it, and the effective number alone decides about the effective ones.
    pub fn set_user(&mut self, to: Numbers) {
        let was = core::mem::replace(&mut self.user, to);
        let sets = &mut self.capabilities;
        if was.has_root() && !to.has_root() && !self.keeps_capabilities {
            sets.permitted = 0;
        }
        match (was.effective, to.effective) {
            (0, 0) => {}
            (0, _) => sets.effective = 0,
            (_, 0) => sets.effective = sets.permitted,
            _ => sets.effective &= sets.permitted,
        }
    }

    /// Sets the capabilities.
    ///
    /// # Errors
    ///
    /// EPERM if a capability would be gained, or would be in effect and not permitted.
    pub fn set_capabilities(&mut self, to: Capabilities) -> Result<(), Errno> {
        let was = self.capabilities;
        let gained = to.permitted & !was.permitted
            | to.effective & !to.permitted
            | to.inheritable & !(was.inheritable | was.permitted);
        if gained != 0 {
            return Err(Errno::EPERM);
        }
        self.capabilities = to;
        Ok(())
    }

    /// Changes the values as exec does: the superuser gets all capabilities, and other users lose them.
    pub fn execute(&mut self) {
        let Numbers { real, effective, .. } = self.user;
        let all = |is: bool| if is { Capabilities::ALL } else { 0 };
        self.capabilities.permitted = all(real == 0 || effective == 0);
        self.capabilities.effective = all(effective == 0);
        self.user.saved = effective;
        self.group.saved = self.group.effective;
        self.keeps_capabilities = false;
    }
}
