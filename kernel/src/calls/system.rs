//! The calls about the system as a whole: uname and getrandom. They have no state. The release that uname
//! returns must agree with `proc/settings.rs` and `proc/system.rs`. The random bytes come from
//! `arch/random.rs`. The program `corners.c` tests getrandom.

use crate::arch::{frame::Frame, random};
use crate::calls::answer::{Answer, Calls};
use crate::calls::descriptors::MAX_TRANSFER;
use crate::platform::user;
use crate::sched::checkpoint;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[(__NR_uname, uname), (__NR_getrandom, getrandom)];

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
    let [out, len, flags, ..] = frame.args();
    let kinds = GRND_RANDOM | GRND_INSECURE;
    let flags = flags as u32;
    if flags & !(kinds | GRND_NONBLOCK) != 0 || flags & kinds == kinds {
        return Err(Errno::EINVAL);
    }
    let mut part = [0; 256];
    let len = len.min(MAX_TRANSFER);
    for done in (0..len).step_by(part.len()) {
        let bytes = part.len().min((len - done) as usize);
        random::fill(&mut part[..bytes]);
        match checkpoint().and_then(|()| user::copy_out(out.wrapping_add(done), &part[..bytes])) {
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
            Ok(()) => {}
        }
    }
    Ok(len)
}
