//! Signals of timers: sent when a timer goes off, and completed when a thread takes one.

use crate::process::itimers::{Notify, Timer};
use crate::process::signal::{self, Info};
use crate::process::{self, Process};
use linux_raw_sys::general::SI_TIMER;

/// Sends a timer's signal. False: that is pending already.
pub fn ring(timer: &Timer) -> bool {
    let Some(process) = process::find(timer.process) else { return true };
    match timer.notify {
        Notify::Nobody => true,
        Notify::Process(info) => signal::send(&process, None, info),
        Notify::Thread(tid, info) => {
            let thread = process.threads.lock().iter().find(|thread| thread.tid() == tid).cloned();
            thread.is_none_or(|thread| signal::send(&process, Some(&thread), info))
        }
    }
}

/// A timer's signal is taken by a thread of the process.
pub fn tell(process: &Process, info: &mut Info) {
    if info.code == SI_TIMER {
        let timer = process.timers.lock().get(info.fields[0] as u32);
        if let Some(timer) = timer {
            timer.tell(info);
        }
    }
}
