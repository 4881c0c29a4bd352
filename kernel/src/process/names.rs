//! Names of processes, and the auxiliary vectors of their programs. Core files (`dump.rs`) and /proc
//! (`proc/process.rs`) contain both. The functions may be called for any process, even for a process that is
//! ending.

use crate::process::Process;
use alloc::vec::Vec;

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

/// Returns the auxiliary vector of the program, including its end.
pub fn auxv(process: &Process) -> Vec<u8> {
    let vector = process.layout.lock().vector.clone();
    let pairs = vector.chunks(16).position(|pair| pair[..8] == [0; 8]).map_or(0, |end| end + 1);
    vector[..pairs * 16].to_vec()
}
