//! Resource limits of a process.
//!
//! [`Limits`] are the complete limits of a line `R` in a recording; [`KnownLimits`] are the limits that the
//! events so far have shown. Later calls change these limits (`plan/limited.rs`). The replay sets the known
//! limits on the engine's address spaces. Units are bytes. The capability CAP_IPC_LOCK is kept with the
//! limits because it lifts RLIMIT_MEMLOCK. `freehold-record` writes limits with [`Display`](fmt::Display),
//! and [`Limits::read`] must read that form (`trace_tests.rs`). A new limit needs a field in both types, an
//! entry in `rlimit::KEPT` (`operation.rs`), and a higher version of `NAME.trace`.

use crate::CallName;
use crate::error::Bad;
use crate::fields::Fields;
use crate::operation::{capability, rlimit};
use crate::{Call, Returned};
use std::fmt;

/// The resource limits of a process that concern memory, in bytes, as for setrlimit. [`u64::MAX`] means no
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// RLIMIT_AS.
    pub address_space: u64,
    /// RLIMIT_DATA.
    pub data: u64,
    /// The hard limit of RLIMIT_DATA, which applies if the soft limit is 0.
    pub data_hard: u64,
    /// RLIMIT_STACK.
    pub stack: u64,
    /// RLIMIT_MEMLOCK.
    pub memlock: u64,
    /// True if the process may lock more than RLIMIT_MEMLOCK (CAP_IPC_LOCK).
    pub may_lock: bool,
}

/// The resource limits of a process, as far as a recording contains them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownLimits {
    /// RLIMIT_AS.
    pub address_space: Option<u64>,
    /// RLIMIT_DATA, soft and hard.
    pub data: Option<(u64, u64)>,
    /// RLIMIT_STACK.
    pub stack: Option<u64>,
    /// RLIMIT_MEMLOCK.
    pub memlock: Option<u64>,
    /// CAP_IPC_LOCK. A value of true means only that the process once had the capability: not every recording
    /// contains the changes of credentials.
    pub may_lock: Option<bool>,
}

impl Limits {
    /// Parses the format that [`Display`](fmt::Display) writes.
    pub(crate) fn read(fields: &mut Fields) -> Result<Limits, Bad> {
        const LIMIT: &str = "a limit in bytes, hexadecimal";
        let mut limit = || {
            fields.blank(LIMIT)?;
            fields.hex(LIMIT)
        };
        let [address_space, data, data_hard, stack, memlock] =
            [limit()?, limit()?, limit()?, limit()?, limit()?];
        let may_lock = fields.eat_text(b" c");
        Ok(Limits { address_space, data, data_hard, stack, memlock, may_lock })
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { address_space, data, data_hard, stack, memlock, may_lock } = self;
        write!(f, " {address_space:x} {data:x} {data_hard:x} {stack:x} {memlock:x}")?;
        if *may_lock { write!(f, " c") } else { Ok(()) }
    }
}

impl From<Limits> for KnownLimits {
    fn from(limits: Limits) -> Self {
        let Limits { address_space, data, data_hard, stack, memlock, may_lock } = limits;
        KnownLimits {
            address_space: Some(address_space),
            data: Some((data, data_hard)),
            stack: Some(stack),
            memlock: Some(memlock),
            may_lock: Some(may_lock),
        }
    }
}

impl KnownLimits {
    /// Returns true if all limits are known.
    pub fn are_all(&self) -> bool {
        let KnownLimits { address_space, data, stack, memlock, may_lock } = self;
        address_space.is_some()
            && data.is_some()
            && stack.is_some()
            && memlock.is_some()
            && may_lock.is_some()
    }

    /// Returns true if the process is known to be limited by RLIMIT_MEMLOCK.
    pub fn forbid_locks(&self) -> bool {
        self.memlock.is_some() && self.may_lock == Some(false)
    }

    /// Applies a successful call that changes limits. The call's arguments contain the new limits.
    pub(crate) fn note(&mut self, call: &Call) {
        let [first, second, third, fourth, ..] = call.args;
        if call.returned != Returned::Value(0) {
            return;
        }
        match call.name {
            CallName::Setrlimit => self.set(first, second, third),
            CallName::Prlimit64 => self.set(second, third, fourth),
            CallName::Capset => self.may_lock = Some(first & capability::IPC_LOCK != 0),
            _ => {}
        }
    }

    /// Sets a limit. Resources that do not limit memory are ignored.
    fn set(&mut self, resource: u64, soft: u64, hard: u64) {
        match resource {
            rlimit::AS => self.address_space = Some(soft),
            rlimit::DATA => self.data = Some((soft, hard)),
            rlimit::STACK => self.stack = Some(soft),
            rlimit::MEMLOCK => self.memlock = Some(soft),
            _ => {}
        }
    }
}
