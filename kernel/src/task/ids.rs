//! Users, groups and rights of a process (credentials(7), capabilities(7)). All threads have the same: libraries
//! see to that on Linux, and the kernel here.

use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;

/// All rights that there are: CAP_CHOWN to CAP_CHECKPOINT_RESTORE.
pub const ALL_RIGHTS: u64 = (1 << 41) - 1;
pub const CAP_CHOWN: u32 = 0;
pub const CAP_DAC_OVERRIDE: u32 = 1;
pub const CAP_DAC_READ_SEARCH: u32 = 2;
pub const CAP_FOWNER: u32 = 3;
pub const CAP_KILL: u32 = 5;
pub const CAP_SETGID: u32 = 6;
pub const CAP_SETUID: u32 = 7;
pub const CAP_SETPCAP: u32 = 8;
pub const CAP_IPC_LOCK: u32 = 14;
pub const CAP_SYS_RAWIO: u32 = 17;
pub const CAP_SYS_PTRACE: u32 = 19;
pub const CAP_SYS_ADMIN: u32 = 21;
pub const CAP_SYS_NICE: u32 = 23;
pub const CAP_SYS_RESOURCE: u32 = 24;
pub const CAP_SYS_TIME: u32 = 25;

/// A user's or a group's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub real: u32,
    pub effective: u32,
    pub saved: u32,
    pub files: u32,
}

impl Numbers {
    fn any_is(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }

    /// setuid: all of them for the privileged, else the effective one.
    ///
    /// # Errors
    ///
    /// EPERM.
    pub fn set(&mut self, id: u32, privileged: bool) -> Result<(), Errno> {
        if privileged {
            *self = Numbers { real: id, effective: id, saved: id, files: id };
        } else if id == self.real || id == self.saved {
            (self.effective, self.files) = (id, id);
        } else {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// setresuid; None: as it is.
    ///
    /// # Errors
    ///
    /// EPERM.
    pub fn set_all(&mut self, to: [Option<u32>; 3], privileged: bool) -> Result<(), Errno> {
        if !privileged && !to.iter().flatten().all(|id| self.any_is(*id)) {
            return Err(Errno::EPERM);
        }
        let [real, effective, saved] = to;
        self.real = real.unwrap_or(self.real);
        self.effective = effective.unwrap_or(self.effective);
        self.saved = saved.unwrap_or(self.saved);
        self.files = self.effective;
        Ok(())
    }

    /// setreuid; None: as it is.
    ///
    /// # Errors
    ///
    /// EPERM.
    pub fn set_two(
        &mut self,
        real: Option<u32>,
        effective: Option<u32>,
        privileged: bool,
    ) -> Result<(), Errno> {
        let real_fits = real.is_none_or(|id| id == self.real || id == self.effective);
        let effective_fits = effective.is_none_or(|id| self.any_is(id));
        if !(privileged || real_fits && effective_fits) {
            return Err(Errno::EPERM);
        }
        let before = self.real;
        self.real = real.unwrap_or(self.real);
        self.effective = effective.unwrap_or(self.effective);
        if real.is_some() || effective.is_some_and(|id| id != before) {
            self.saved = self.effective;
        }
        self.files = self.effective;
        Ok(())
    }

    /// setfsuid.
    pub fn set_files(&mut self, id: u32, privileged: bool) {
        if privileged || self.any_is(id) {
            self.files = id;
        }
    }
}

/// A process's users and groups, and what it may do.
#[derive(Clone, Debug)]
pub struct Ids {
    pub user: Numbers,
    pub group: Numbers,
    pub groups: Arc<Vec<u32>>,
    /// Rights that it uses, may use, passes on by exec, and may ever get.
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub bounding: u64,
    /// Rights that also another user's program has; all permitted and inheritable (PR_CAP_AMBIENT).
    pub ambient: u64,
    /// PR_SET_KEEPCAPS: another user keeps the rights.
    pub keeps_rights: bool,
}

impl Ids {
    /// The first process's.
    pub fn root() -> Self {
        Ids {
            user: Numbers::default(),
            group: Numbers::default(),
            groups: Arc::default(),
            effective: ALL_RIGHTS,
            permitted: ALL_RIGHTS,
            inheritable: 0,
            bounding: ALL_RIGHTS,
            ambient: 0,
            keeps_rights: false,
        }
    }

    pub fn may(&self, right: u32) -> bool {
        self.effective >> right & 1 != 0
    }

    /// Whether another has one user and one group alone, and they are these.
    pub fn are_all_of(&self, other: &Ids) -> bool {
        let all = |own: u32, other: &Numbers| {
            [other.real, other.effective, other.saved].iter().all(|id| *id == own)
        };
        all(self.user.real, &other.user) && all(self.group.real, &other.group)
    }

    /// Whether these are of another's user, real or effective, or may do what only CAP_SYS_NICE allows.
    pub fn may_schedule(&self, other: &Ids) -> bool {
        [other.user.real, other.user.effective].contains(&self.user.effective) || self.may(CAP_SYS_NICE)
    }

    /// The user has changed from `before`: rights go with root.
    pub fn user_changed(&mut self, before: Numbers) {
        let is_root = |user: &Numbers| user.any_is(0);
        if is_root(&before) && !is_root(&self.user) {
            // What is ambient goes even where the rest is kept.
            self.ambient = 0;
            if !self.keeps_rights {
                (self.permitted, self.effective) = (0, 0);
            }
        }
        if before.effective == 0 && self.user.effective != 0 {
            self.effective = 0;
        } else if before.effective != 0 && self.user.effective == 0 {
            self.effective = self.permitted;
        }
    }

    /// Whether a process of these may send signals to one of those.
    pub fn may_signal(&self, other: &Ids) -> bool {
        let is_own = |id: u32| id == other.user.real || id == other.user.saved;
        self.may(CAP_KILL) || is_own(self.user.real) || is_own(self.user.effective)
    }

    /// PR_CAP_AMBIENT, with its four arguments.
    ///
    /// # Errors
    ///
    /// EINVAL; EPERM: the right is not permitted, or not inheritable.
    pub fn change_ambient(&mut self, [what, right, rest @ ..]: [u64; 4]) -> Result<u64, Errno> {
        const IS_SET: u64 = 1;
        const RAISE: u64 = 2;
        const LOWER: u64 = 3;
        const CLEAR_ALL: u64 = 4;
        let bit = u32::try_from(right).ok().and_then(|right| 1u64.checked_shl(right)).unwrap_or(0);
        if rest != [0, 0] || what != CLEAR_ALL && ALL_RIGHTS & bit == 0 {
            return Err(Errno::EINVAL);
        }
        match what {
            IS_SET => return Ok((self.ambient & bit != 0).into()),
            RAISE if self.permitted & self.inheritable & bit == 0 => return Err(Errno::EPERM),
            RAISE => self.ambient |= bit,
            LOWER => self.ambient &= !bit,
            CLEAR_ALL if right == 0 => self.ambient = 0,
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    /// Whether it acts for another user or group than its own.
    pub fn act_for_others(&self) -> bool {
        self.user.real != self.user.effective || self.group.real != self.group.effective
    }

    /// A program is executed: root's has all rights, but none that it had not, if it may get no new ones.
    pub fn executes(&mut self, no_new_privs: bool) {
        let (before, is_root) = (self.permitted, self.user.effective == 0);
        let all = self.user.real == 0 || is_root;
        self.permitted = if all { self.bounding | self.inheritable } else { 0 };
        let others = self.act_for_others();
        if no_new_privs && (others || self.permitted & !before != 0) {
            self.user.effective = self.user.real;
            self.group.effective = self.group.real;
            self.permitted &= before;
        }
        if others {
            self.ambient = 0;
        }
        self.permitted |= self.ambient;
        self.effective = if is_root { self.permitted } else { self.ambient };
        for numbers in [&mut self.user, &mut self.group] {
            (numbers.saved, numbers.files) = (numbers.effective, numbers.effective);
        }
        self.keeps_rights = false;
    }
}
