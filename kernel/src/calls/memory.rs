//! Memory: nearly all of it is the engine's.

use super::{Answer, Calls};
use crate::arch::cpu::current;
use crate::arch::trap::Frame;
use crate::arch::user;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::space::{Advice, LockAllFlags, LockFlags, MapFlags, Prot, RemapFlags, SyncFlags};
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_mmap, mmap),
    (__NR_munmap, munmap),
    (__NR_mprotect, mprotect),
    (__NR_mremap, mremap),
    (__NR_madvise, madvise),
    (__NR_brk, brk),
    (__NR_mincore, mincore),
    (__NR_msync, msync),
    (__NR_mlock, mlock),
    (__NR_mlock2, mlock2),
    (__NR_munlock, munlock),
    (__NR_mlockall, mlockall),
    (__NR_munlockall, munlockall),
];

fn mmap(frame: &mut Frame) -> Answer {
    let [at, len, prot, flags, descriptor, offset] = frame.args();
    let (prot, flags) = (Prot::from_bits_retain(prot), MapFlags::from_bits_retain(flags));
    let thread = current();
    let file = match flags.contains(MapFlags::ANONYMOUS) {
        true => None,
        false => Some(thread.process().files.get(descriptor & 0xffff_ffff)?.mapped()?),
    };
    thread.space().mmap(at, len, prot, flags, file.as_ref(), offset).map_err(|error| error.errno())
}

fn munmap(frame: &mut Frame) -> Answer {
    let [at, len, ..] = frame.args();
    current().space().munmap(at, len).map(|()| 0).map_err(|error| error.errno())
}

fn mprotect(frame: &mut Frame) -> Answer {
    let [at, len, prot, ..] = frame.args();
    let prot = Prot::from_bits_retain(prot);
    current().space().mprotect(at, len, prot).map(|()| 0).map_err(|error| error.errno())
}

fn mremap(frame: &mut Frame) -> Answer {
    let [at, old, new, flags, to, _] = frame.args();
    let flags = RemapFlags::from_bits_retain(flags);
    current().space().mremap(at, old, new, flags, to).map_err(|error| error.errno())
}

fn madvise(frame: &mut Frame) -> Answer {
    let [at, len, advice, ..] = frame.args();
    let advice = Advice::from_raw(advice as u32).map_err(|error| error.errno())?;
    current().space().madvise(at, len, advice).map(|()| 0).map_err(|error| error.errno())
}

fn brk(frame: &mut Frame) -> Answer {
    let [to, ..] = frame.args();
    current().space().brk(to).map_err(|_| Errno::EINTR)
}

fn mincore(frame: &mut Frame) -> Answer {
    let [at, len, out, ..] = frame.args();
    const PART: usize = 256;
    let (pages, mut states) = (len.div_ceil(PAGE_SIZE), [0; PART]);
    for first in (0..pages.max(1)).step_by(PART) {
        let count = (pages - first).min(PART as u64);
        let from = at.checked_add(first * PAGE_SIZE).ok_or(Errno::ENOMEM)?;
        let states = &mut states[..count as usize];
        current().space().mincore(from, count * PAGE_SIZE, states).map_err(|error| error.errno())?;
        user::copy_out(out.wrapping_add(first), states)?;
    }
    Ok(0)
}

fn msync(frame: &mut Frame) -> Answer {
    let [at, len, flags, ..] = frame.args();
    let flags = SyncFlags::from_bits_retain(flags as _);
    current().space().msync(at, len, flags).map(|()| 0).map_err(|error| error.errno())
}

fn mlock(frame: &mut Frame) -> Answer {
    let [at, len, ..] = frame.args();
    current().space().mlock(at, len).map(|()| 0).map_err(|error| error.errno())
}

fn mlock2(frame: &mut Frame) -> Answer {
    let [at, len, flags, ..] = frame.args();
    let flags = LockFlags::from_bits_retain(flags as _);
    current().space().mlock2(at, len, flags).map(|()| 0).map_err(|error| error.errno())
}

fn munlock(frame: &mut Frame) -> Answer {
    let [at, len, ..] = frame.args();
    current().space().munlock(at, len).map(|()| 0).map_err(|error| error.errno())
}

fn mlockall(frame: &mut Frame) -> Answer {
    let [flags, ..] = frame.args();
    let flags = LockAllFlags::from_bits_retain(flags as _);
    current().space().mlockall(flags).map(|()| 0).map_err(|error| error.errno())
}

fn munlockall(_: &mut Frame) -> Answer {
    current().space().munlockall().map(|()| 0).map_err(|error| error.errno())
}
