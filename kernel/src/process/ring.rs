//! Signals of timers. [`ring`] sends the signal when a timer expires, and [`tell`] completes the signal's
//! information when a thread takes the signal. This file connects `itimers.rs`, which knows nothing about
//! processes, with `signal/`. [`ring`] runs in the timer interrupt, so it never sleeps. The program `jobs.c`
//! of the tests checks overruns.

use crate::process::itimers::{Notify, Timer};
use crate::process::signal::{self, Info};
use crate::process::{self, Process};
use linux_raw_sys::general::SIGALRM;

/// Sends a timer's signal. Returns false if the signal is already pending.
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

/// Arms the timer whose signal a thread of the process is taking, and adds the number of merged expirations to
/// `info`. SIGALRM may also come from another sender than ITIMER_REAL; it arms this timer in any case.
pub fn tell(process: &Process, info: &mut Info) {
    if let Some(id) = info.timer {
        let timer = process.timers.lock().get(id);
        if let Some(timer) = timer {
            info.fields[0] |= u64::from(timer.taken()) << 32;
        }
    } else if info.signal == SIGALRM {
        let timer = process.timers.lock().existing_real();
        if let Some(timer) = timer {
            timer.taken();
        }
    }
}

/// Takes a signal in `of` that is pending for the calling thread or its process.
pub fn take(of: crate::process::signal::Set) -> Option<Info> {
    let here = crate::sched::current();
    let process = here.process();
    let mut signals = process.signals.lock();
    let own = here.pending.lock().take(of);
    let mut info = own.or_else(|| signals.pending.take(of))?;
    drop(signals);
    tell(process, &mut info);
    Some(info)
}
