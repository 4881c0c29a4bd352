//! What calls that recordings do not hold tell of CAP_IPC_LOCK, as far as it counts: in the first user
//! namespace.
//!
//! A process that gives up being root gives up all effective capabilities, also where it keeps its permitted
//! ones, unless it has asked for no such consequence (SECBIT_NO_SETUID_FIXUP). One that becomes root, or runs
//! a program while it is not, may have them again. In another user namespace than the first a process has
//! none that count, whatever it is told there.

use super::head::find;
use super::text::{Arg, args, end};
use super::value::number;
use crate::Returned;

/// An argument of setreuid and setresuid that leaves a user as it was.
const SAME: u64 = u64::MAX;
/// `CLONE_NEWUSER`.
const NEW_NAMESPACE: u64 = 0x1000_0000;

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credentials {
    /// The effective user.
    user: Option<u64>,
    /// Changes of it leave the capabilities as they are.
    keeps: bool,
    /// It was root, and is not.
    gave_up: bool,
    /// It is in a user namespace of its own.
    apart: bool,
}

impl Credentials {
    /// Those of a process of which its effective user may be known.
    pub(super) fn of_user(user: Option<u32>) -> Credentials {
        Credentials { user: user.map(u64::from), ..Credentials::default() }
    }

    /// Those of a process that it creates.
    pub(super) fn of_child(self, flags: u64) -> Credentials {
        let apart = flags & NEW_NAMESPACE != 0;
        Credentials { apart: self.apart || apart, user: self.user.filter(|_| !apart), ..self }
    }

    /// None of its capabilities counts.
    pub(super) fn is_apart(self) -> bool {
        self.apart
    }

    /// The call in `text`, which need not have an end, was made. Whether it may lock more than its limit from
    /// now on; none if nothing more is known of that.
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

    /// A successful execve; as for [`call`](Self::call).
    pub(super) fn exec(&mut self) -> Option<bool> {
        let others = self.user.filter(|user| *user != 0);
        // The file may be of another user, and say that it runs as that.
        others.is_some().then(|| self.user = None)?;
        std::mem::take(&mut self.gave_up).then_some(true).filter(|_| !self.apart)
    }

    /// A setns of the namespaces that the descriptor `of` is of, or of those among them that `kinds` names. A
    /// process does not come back to the first user namespace, and not to its own: it is in another one.
    fn enters(&mut self, of: &[u8], kinds: &[u8]) -> Option<bool> {
        if find(kinds, b"CLONE_NEWUSER").is_some() || kinds == b"0" && find(of, b"<user:[").is_some() {
            *self = self.of_child(NEW_NAMESPACE);
            return Some(false);
        }
        // The text does not show what kind that is.
        (kinds == b"0" && !of.contains(&b'<')).then(|| self.perhaps("setns"))?
    }

    /// What such a call may have changed of which only the beginning is known.
    fn perhaps(&mut self, name: &str) -> Option<bool> {
        let users = name.starts_with("set");
        users.then(|| self.user = None)?;
        (!self.apart).then_some(true)
    }

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

/// Whether a call of which recordings hold nothing else tells something here.
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
