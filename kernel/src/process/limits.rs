//! Resource limits of a process (getrlimit(2)). The engine enforces the limits on memory, `files/table.rs`
//! enforces the limit on descriptors, and `renew.rs` enforces the limit on the size of files. Other limits
//! are read where the resource is used.
//!
//! The engine and the table of descriptors have copies of their limits. After a change of limits or of
//! privileges the caller therefore calls `renew::renew`, which calls [`Limits::apply`]. `Process::limits` is
//! the spin lock of the limits.
//!
//! A new limit of the engine belongs in [`Limits::apply`], and a new default value in [`Limits::first`]. The
//! programs `jobs.c`, `corners.c` and `appends.c` of the tests check limits.

use crate::platform::Space;
use crate::process::ids::Ids;
use freehold::error::Errno;
use freehold::space::limits;
use linux_raw_sys::general::*;

/// The value that means "no limit" (`RLIM_INFINITY`).
pub const UNLIMITED: u64 = u64::MAX;
/// Number of limits.
const COUNT: usize = RLIM_NLIMITS as usize;
/// Maximum of the hard limit on descriptors, as on Linux.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// A soft and a hard limit, in this order.
pub type Limit = [u64; 2];

/// All limits of a process, indexed by the number of the resource.
#[derive(Clone, Debug)]
pub struct Limits([Limit; COUNT]);

impl Limits {
    /// Returns the limits of the first process.
    pub fn first() -> Self {
        let mut all = [[UNLIMITED; 2]; COUNT];
        all[RLIMIT_STACK as usize] = [8 << 20, UNLIMITED];
        all[RLIMIT_CORE as usize] = [0, UNLIMITED];
        all[RLIMIT_NOFILE as usize] = [1024, 1 << 19];
        all[RLIMIT_NPROC as usize] = [1 << 15; 2];
        all[RLIMIT_MEMLOCK as usize] = [8 << 20; 2];
        all[RLIMIT_SIGPENDING as usize] = [1 << 12; 2];
        all[RLIMIT_MSGQUEUE as usize] = [819_200; 2];
        all[RLIMIT_NICE as usize] = [0; 2];
        all[RLIMIT_RTPRIO as usize] = [0; 2];
        Limits(all)
    }

    /// Returns a limit.
    ///
    /// # Errors
    ///
    /// EINVAL if there is no such limit.
    pub fn get(&self, resource: u64) -> Result<Limit, Errno> {
        self.0.get(resource as usize).copied().ok_or(Errno::EINVAL)
    }

    /// Returns the soft limit of an existing resource.
    pub fn soft(&self, resource: u32) -> u64 {
        self.0[resource as usize][0]
    }

    /// Sets a limit.
    ///
    /// # Errors
    ///
    /// EINVAL if there is no such limit or the soft limit is above the hard one; EPERM if an unprivileged
    /// process raises a hard limit, or if the hard limit on descriptors is above its maximum.
    pub fn set(&mut self, resource: u64, to: Limit, privileged: bool) -> Result<(), Errno> {
        let limit = self.0.get_mut(resource as usize).ok_or(Errno::EINVAL)?;
        if to[0] > to[1] {
            return Err(Errno::EINVAL);
        }
        let too_much = resource == RLIMIT_NOFILE.into() && to[1] > MAX_DESCRIPTORS;
        if too_much || to[1] > limit[1] && !privileged {
            return Err(Errno::EPERM);
        }
        *limit = to;
        Ok(())
    }

    /// Copies the limits on memory, and the privileges that follow from `ids`, into the engine's address
    /// space.
    pub fn apply(&self, space: &Space, ids: &Ids) {
        let [data, data_hard] = self.0[RLIMIT_DATA as usize];
        space.limits().set(
            &limits::Limits::new()
                .address_space(self.soft(RLIMIT_AS))
                .data(data)
                .data_hard(data_hard)
                .memlock(self.soft(RLIMIT_MEMLOCK))
                .stack(self.soft(RLIMIT_STACK))
                .may_lock(ids.may(CAP_IPC_LOCK))
                .may_map_low(ids.may(CAP_SYS_RAWIO))
                .may_inject_failure(ids.may(CAP_SYS_ADMIN)),
        );
    }
}
