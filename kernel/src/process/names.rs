//! Names of processes, and the auxiliary vectors of their programs. Core files (`dump.rs`) and /proc
//! (`proc/process.rs`) contain both. The functions may be called for any process, even for a process that is
//! ending. They hold no lock while they read the program's memory.

use crate::process::Process;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::remote::AccessMode;

/// Returns the name up to its first zero byte.
pub fn up_to_zero(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the name that `ps` shows: the name of the process's first thread or, if no thread is left, the
/// last name in the program's path.
pub fn short_name(process: &Process) -> Vec<u8> {
    let thread = process.threads.lock().first().cloned();
    if let Some(thread) = thread {
        let comm = *thread.comm.lock();
        return up_to_zero(&comm).to_vec();
    }
    let name = process.name.lock().clone();
    let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    last[..last.len().min(15)].to_vec()
}

/// Returns the auxiliary vector that the kernel wrote for the program, including its end.
pub fn auxv(process: &Process) -> Vec<u8> {
    let (mut out, mut pair) = (Vec::new(), [1; 16]);
    let Some(space) = process.space.lock().clone() else { return out };
    while pair[..8] != [0; 8] && out.len() < 1024 {
        let at = process.auxv_at.load(Relaxed) + out.len() as u64;
        if space.read_memory(at, &mut pair, AccessMode::Forced) != Ok(pair.len()) {
            break;
        }
        out.extend(pair);
    }
    out
}
