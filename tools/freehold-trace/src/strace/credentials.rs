//! Changes of CAP_IPC_LOCK by calls that recordings do not contain. Only the capability in the initial user
//! namespace counts.
//!
//! A process that gives up root also loses all effective capabilities, even if it keeps its permitted
//! capabilities. A process that has set SECBIT_NO_SETUID_FIXUP keeps its effective capabilities. A process
//! that becomes root, or that executes a program while not root, may regain capabilities. A process outside
//! the initial user namespace has no capabilities that count.
//!
//! `mod.rs` passes the text of each setuid, setreuid, setresuid, setns, unshare and prctl(PR_SET_SECUREBITS),
//! and reports a change as a capset. In case of doubt the process has the capability: the replay then does
//! not compare refusals for RLIMIT_MEMLOCK. The tests are in `credentials_tests.rs`.

use super::head::find;
use super::text::{Arg, args, end};
use super::value::number;
use crate::Returned;

/// An argument of setreuid and setresuid that leaves a user unchanged.
const SAME: u64 = u64::MAX;
/// `CLONE_NEWUSER`.
const NEW_NAMESPACE: u64 = 0x1000_0000;

/// The known credentials of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credentials {
    /// The effective user.
    user: Option<u64>,
    /// True if changes of the user do not change the capabilities.
    keeps: bool,
    /// True if the process has given up root since its last execve.
    gave_up: bool,
    /// True if the process is in a user namespace other than the initial one.
    apart: bool,
}

impl Credentials {
    /// Returns the credentials of a process with this effective user, if known.
    pub(super) fn of_user(user: Option<u32>) -> Credentials {
        Credentials { user: user.map(u64::from), ..Credentials::default() }
    }

    /// Returns the credentials of a child that the process creates with these flags.
    pub(super) fn of_child(self, flags: u64) -> Credentials {
        let apart = flags & NEW_NAMESPACE != 0;
        Credentials { apart: self.apart || apart, user: self.user.filter(|_| !apart), ..self }
    }

    /// Returns true if the process is in another user namespace, in which no capability counts.
    pub(super) fn is_apart(self) -> bool {
        self.apart
    }

    /// Applies the call in `text`, which may be incomplete. Returns true if the process may lock more than
    /// its limit from now on, and false if it may not. Returns `None` if the call does not change this right.
    pub(super) fn call(&mut self, name: &str, text: &[u8]) -> Option<bool> {
        let (found, closed) = args(text, name.len() + 1).ok()?;
        let Some(returned) = closed.and_then(|closed| end(text, closed + 1).ok()) else {
            return self.perhaps(name);
        };
        if returned.returned != Returned::Value(0) {
            return None;
        }
        match name {
            "prctl" => {
                let bits = found.get(1).map_or(&b""[..], |bits| bits.text);
                let by_number = bits != b"0" && bits.first().is_some_and(u8::is_ascii_digit);
                self.keeps = by_number || find(bits, b"SECBIT_NO_SETUID_FIXUP").is_some();
                None
            }
            "unshare" => {
                let apart = found.first().is_some_and(|flags| find(flags.text, b"CLONE_NEWUSER").is_some());
                apart.then(|| *self = self.of_child(NEW_NAMESPACE)).map(|()| false)
            }
            "setns" => self.enters(found.first()?.text, found.get(1)?.text),
            "setuid" => self.becomes(found.first()),
            _ => self.becomes(found.get(1)),
        }
    }

    /// Applies a successful execve. Returns the same values as [`call`](Self::call).
    pub(super) fn exec(&mut self) -> Option<bool> {
        let others = self.user.filter(|user| *user != 0);
        // The executed file may have the set-user-ID bit and belong to another user.
        others.is_some().then(|| self.user = None)?;
        std::mem::take(&mut self.gave_up).then_some(true).filter(|_| !self.apart)
    }

    /// Applies a setns with the descriptor `of` and the kinds of namespace `kinds`. A process cannot return
    /// to the initial user namespace, and cannot enter its current namespace again. A setns to a user
    /// namespace therefore always leaves the initial user namespace.
    fn enters(&mut self, of: &[u8], kinds: &[u8]) -> Option<bool> {
        if find(kinds, b"CLONE_NEWUSER").is_some() || kinds == b"0" && find(of, b"<user:[").is_some() {
            *self = self.of_child(NEW_NAMESPACE);
            return Some(false);
        }
        // strace does not show the kind of the descriptor, so the process may have entered a user namespace.
        (kinds == b"0" && !of.contains(&b'<')).then(|| self.perhaps("setns"))?
    }

    /// Applies a call whose arguments or result are unknown: the process may have any user afterwards.
    fn perhaps(&mut self, name: &str) -> Option<bool> {
        let users = name.starts_with("set");
        users.then(|| self.user = None)?;
        (!self.apart).then_some(true)
    }

    /// Applies a call that sets the effective user to the number in this argument.
    fn becomes(&mut self, user: Option<&Arg<'_>>) -> Option<bool> {
        let user = number(*user?).ok().filter(|user| *user as u32 != SAME as u32)?;
        let before = self.user.replace(user);
        if self.apart || self.keeps || before == Some(user) {
            return None;
        }
        self.gave_up = before == Some(0);
        match (before, user) {
            (_, 0) => Some(true),
            (Some(0), _) => Some(false),
            _ => None,
        }
    }
}

/// Returns true if the call, which recordings do not contain, may change the credentials.
pub(super) fn concern(name: &str, text: &[u8]) -> bool {
    match name {
        "setns" | "setuid" | "setreuid" | "setresuid" | "unshare" => true,
        "prctl" => find(text, b"prctl(PR_SET_SECUREBITS").is_some(),
        _ => false,
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
