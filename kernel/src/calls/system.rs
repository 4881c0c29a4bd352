//! The system as a whole.

use super::{Answer, Calls};
use crate::arch::clock;
use crate::arch::trap::Frame;
use crate::arch::user::{self, UserPtr};
use crate::memory::{self, frames};
use crate::random;
use crate::task::process;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[(__NR_uname, uname), (__NR_getrandom, getrandom), (__NR_prlimit64, prlimit), (__NR_sysinfo, sysinfo)];

fn uname(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    let fields = ["Linux", "freehold", "6.12.0", "Freehold", "x86_64", "(none)"];
    for (n, text) in fields.iter().enumerate() {
        let mut field = [0; 65];
        field[..text.len()].copy_from_slice(text.as_bytes());
        user::copy_out(out.wrapping_add(65 * n as u64), &field)?;
    }
    Ok(0)
}

fn getrandom(frame: &mut Frame) -> Answer {
    let [out, len, ..] = frame.args();
    let mut part = [0; 256];
    let len = len.min(i32::MAX as u64);
    for done in (0..len).step_by(part.len()) {
        let bytes = part.len().min((len - done) as usize);
        random::fill(&mut part[..bytes]);
        user::copy_out(out.wrapping_add(done), &part[..bytes])?;
    }
    Ok(len)
}

/// `struct sysinfo`, as it lies in memory.
fn sysinfo(frame: &mut Frame) -> Answer {
    let [out, ..] = frame.args();
    let mut words = [0u64; 14];
    words[0] = clock::now_ns() / 1_000_000_000;
    (words[4], words[5]) = (memory::total_bytes(), frames::free_count() * PAGE_SIZE);
    words[10] = process::pids().len() as u64;
    words[13] = 1;
    UserPtr::<[u64; 14]>::new(out).write(&words)?;
    Ok(0)
}

/// Limits: those of the stack and of descriptors are what they are; no other is kept.
fn prlimit(frame: &mut Frame) -> Answer {
    let [_, resource, _, old, ..] = frame.args();
    if resource >= 16 {
        return Err(Errno::EINVAL);
    }
    if let Some(old) = UserPtr::<[u64; 2]>::optional(old) {
        let limit = match resource as u32 {
            RLIMIT_STACK => [8 << 20, u64::MAX],
            RLIMIT_NOFILE => [crate::files::table::MOST as u64; 2],
            RLIMIT_CORE => [0, u64::MAX],
            _ => [u64::MAX; 2],
        };
        old.write(&limit)?;
    }
    Ok(0)
}
