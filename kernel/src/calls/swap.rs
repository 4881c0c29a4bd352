//! swapon and swapoff of the kernel's only swap device (`platform/swap.rs`). The program `swap.c` of the tests
//! checks both.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::files::path;
use crate::platform::engine;
use crate::platform::swap;
use crate::process;
use crate::sched::current;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[(__NR_swapon, swapon), (__NR_swapoff, swapoff)];

/// Flag of swapon: the lower bits are the priority.
const PREFER: u64 = 0x8000;
/// The bits of the priority.
const PRIORITY: u64 = 0x7fff;
/// The flags for discards, which change nothing here.
const DISCARD: u64 = 0x7_0000;

/// Checks the caller's right and the name of the device.
fn check(name: u64) -> Result<(), Errno> {
    if !current().process().ids.lock().may(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    match path(name)? == swap::NAME.as_bytes() {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

fn swapon(frame: &mut Frame) -> Answer {
    let [name, flags, ..] = frame.args();
    if flags & !(PREFER | PRIORITY | DISCARD) != 0 {
        return Err(Errno::EINVAL);
    }
    check(name)?;
    swap::on(if flags & PREFER != 0 { (flags & PRIORITY) as i16 } else { swap::USUAL_PRIORITY }).map(|()| 0)
}

fn swapoff(frame: &mut Frame) -> Answer {
    let [name, ..] = frame.args();
    check(name)?;
    let id = swap::device().ok_or(Errno::EINVAL)?;
    let spaces = || process::all().filter_map(|process| process.space.lock().clone());
    engine().swap_off(id, spaces).map_err(|error| error.errno())?;
    swap::removed();
    Ok(0)
}
