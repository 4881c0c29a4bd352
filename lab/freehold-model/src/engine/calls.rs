//! Calls on the engine: the work that a kernel's system call layer does around them.
//!
//! The engine is a library; a kernel decodes arguments and encodes results around each of its calls. This
//! file does that for the subject [`EngineOn`]: it passes raw bits as flags of the engine, makes the call on
//! a virtual CPU, and returns the result, errno or signal that a program would see. Nothing here may hide an
//! error of the engine, so arguments that the engine checks are not checked here. `files.rs` has the calls on
//! files, and `kernel/src/calls` does the same work in the kernel. A new system call gets an arm in
//! `system_call`, and a new kind of access in `call`.

use freehold::error::{Errno, MdweError, MmapError};
use freehold::fault::{FaultError, SegvCode};
use freehold::{
    call::{Advice, LockAllFlags, LockFlags, RemapFlags, SyncFlags},
    space::{MapFlags, Mdwe, Prot},
};
use freehold_machine::{Cpu, Process};
use freehold_pagetable::Format;

use super::{CPUS, EngineOn};
use crate::model::MAX_PROCS;
use crate::op::*;

/// The value of a call, or its errno.
type Res<T = u64> = Result<T, i32>;

/// Converts the result of a call that returns no value.
fn done<E>(result: Result<(), E>, errno: impl Fn(E) -> Errno) -> Res {
    result.map(|()| 0).map_err(|error| errno(error).0)
}

/// Converts the result of a call. Converts the error of a failed call to an errno. The error types of all
/// calls have the method `errno`.
macro_rules! errno {
    ($result:expr) => {
        done($result, |error| error.errno())
    };
}

impl<F: Format> EngineOn<F> {
    /// Executes one call of a living process on this CPU.
    pub(super) fn call(&self, cpu: &mut Cpu<F>, process: &Process<F>, op: &Op) -> Outcome {
        match op.call {
            Call::Read { addr, len } => read(cpu, process, addr, len),
            Call::Write { addr, value } => match process.store(cpu, addr, value) {
                Ok(()) => Outcome::Ok(0),
                Err(error) => signal(error),
            },
            Call::Fork => self.fork(cpu, process),
            _ => cpu.call(|| self.system_call(process, &op.call)).unwrap_or_else(Outcome::Err),
        }
    }

    /// Returns the CPU for a call of a single-threaded run. Adjacent pages and adjacent bytes are accessed on
    /// different CPUs.
    pub(super) fn cpu_for(&self, op: &Op) -> usize {
        match op.call {
            Call::Read { addr, .. } | Call::Write { addr, .. } => {
                ((addr / PAGE).wrapping_add(addr) % CPUS as u64) as usize
            }
            Call::Fork => (self.run().procs.len() - 1) % CPUS,
            _ => op.proc as usize % CPUS,
        }
    }

    /// Makes a system call, except fork, exit and accesses to memory.
    fn system_call(&self, p: &Process<F>, call: &Call) -> Res<Outcome> {
        let files = &self.run().files;
        Ok(Outcome::Ok(match *call {
            Call::Mmap { addr, len, prot, flags, file, off } => {
                self.mmap(p, addr, len, prot, flags, file, off)?
            }
            Call::Munmap { addr, len } => errno!(p.munmap(addr, len))?,
            Call::Mprotect { addr, len, prot } => {
                errno!(p.mprotect(addr, len, Prot::from_bits_retain(prot)))?
            }
            Call::Mremap { old, old_len, new_len, flags, new_addr } => {
                let flags = RemapFlags::from_bits_retain(flags);
                p.mremap(old, old_len, new_len, flags, new_addr).map_err(|error| error.errno().0)?
            }
            // Here and below, the kernel's parameter is an int.
            Call::Madvise { addr, len, advice } => {
                let advice = Advice::from_raw(advice as u32);
                errno!(advice.and_then(|advice| p.madvise(addr, len, advice)))?
            }
            Call::Mlock { addr, len } => errno!(p.mlock(addr, len))?,
            Call::Mlock2 { addr, len, flags } => {
                errno!(p.mlock2(addr, len, LockFlags::from_bits_retain(flags as u32)))?
            }
            Call::Munlock { addr, len } => errno!(p.munlock(addr, len))?,
            Call::Mlockall { flags } => errno!(p.mlockall(LockAllFlags::from_bits_retain(flags as u32)))?,
            Call::Munlockall => errno!(p.munlockall())?,
            Call::Mseal { addr, len, flags } => errno!(p.mseal(addr, len, flags))?,
            Call::SetMdwe { bits } => errno!(
                u32::try_from(bits)
                    .map_err(|_| MdweError::Invalid)
                    .and_then(|bits| p.set_mdwe(Mdwe::from_bits_retain(bits)))
            )?,
            Call::SetMerge { on } => errno!(p.set_memory_merge(on != 0))?,
            Call::Brk { addr } => p.brk(addr).map_err(|_| libc::EINTR)?,
            Call::Msync { addr, len, flags } => {
                errno!(p.msync(addr, len, SyncFlags::from_bits_retain(flags as u32)))?
            }
            Call::Mincore { addr, len } => return self.mincore(p, addr, len),
            Call::Ftruncate { file, len } => files.truncate(file, len)?,
            Call::FileWrite { file, off, len, seed } => files.write(file, off, len, seed)?,
            Call::FileRead { file, off, len } => return files.read(file, off, len).map(Outcome::Bytes),
            Call::Setrlimit { limit, pages } => self.set_limit(p, limit, pages),
            Call::Read { .. } | Call::Write { .. } | Call::Fork | Call::Exit => unreachable!("special call"),
        }))
    }

    /// Makes an mmap, with the file and its open mode.
    #[expect(clippy::too_many_arguments, reason = "mmap has them")]
    fn mmap(
        &self,
        p: &Process<F>,
        addr: u64,
        len: u64,
        prot: u64,
        flags: u64,
        file: Option<FileId>,
        off: u64,
    ) -> Res {
        let (prot, flags) = (Prot::from_bits_retain(prot), MapFlags::from_bits_retain(flags));
        let file = file.map(|file| self.run().files.get(file));
        p.mmap(addr, len, prot, flags, file, off).map_err(|error| match error {
            // The engine has no space at a fixed address in the last page. Linux reads such an address as an
            // errno, so a kernel that uses the engine must return the same errno.
            MmapError::NoSpace
                if addr > u64::MAX - 4095
                    && len <= self.world.task_size
                    && flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE) =>
            {
                addr.wrapping_neg() as i32
            }
            error => error.errno().0,
        })
    }

    /// Makes a mincore. Returns one byte per page.
    fn mincore(&self, p: &Process<F>, addr: u64, len: u64) -> Res<Outcome> {
        // For a range outside the arena the buffer is empty: the engine fails before it writes a byte.
        let inside = addr.checked_add(len).is_some_and(|end| self.world.holds(addr, end));
        let pages = if inside { len.div_ceil(PAGE) } else { 0 };
        let mut bits = vec![0; pages as usize];
        p.mincore(addr, len, &mut bits).map_err(|error| error.errno().0)?;
        if self.file_pages_resident {
            for line in p.maps(addr).take_while(|line| line.start < addr + len) {
                if self.run().files.is_file(&line.name) {
                    let first = (line.start - addr) / PAGE;
                    let end = (line.end - addr).div_ceil(PAGE).min(pages);
                    bits[first as usize..end as usize].fill(1);
                }
            }
        }
        Ok(Outcome::Bytes(bits))
    }

    /// Sets a resource limit. Adds the memory outside the arena to the limits of address space and data.
    fn set_limit(&self, p: &Process<F>, limit: Limit, pages: u64) -> u64 {
        let outside = &self.run().outside;
        let bytes =
            |extra: u64| pages.checked_add(extra).and_then(|n| n.checked_mul(PAGE)).unwrap_or(u64::MAX);
        let mut limits = p.limits().get();
        match limit {
            Limit::As => limits.address_space = bytes(outside.total()),
            // The hard limit is set too, because at a soft limit of zero only the hard limit counts.
            Limit::Data => (limits.data, limits.data_hard) = (bytes(outside.data()), bytes(outside.data())),
            Limit::Lock => limits.memlock = bytes(0),
            Limit::Stack => limits.stack = bytes(0),
        }
        p.limits().set(&limits);
        0
    }

    /// Forks the process. Returns the index of the child.
    fn fork(&self, cpu: &Cpu<F>, process: &Process<F>) -> Outcome {
        if self.run().procs.len() >= MAX_PROCS {
            return Outcome::Err(libc::EAGAIN);
        }
        match cpu.call(|| process.fork()) {
            Ok(child) => {
                let child = Process::of(child);
                let mut born = self.run().born.lock().expect("no panic under the lock");
                born.push(child);
                Outcome::Ok((self.run().procs.len() + born.len()) as u64 - 1)
            }
            Err(error) => Outcome::Err(error.errno().0),
        }
    }
}

/// Loads bytes one by one, up to the first fault.
fn read<F: Format>(cpu: &mut Cpu<F>, process: &Process<F>, addr: u64, len: u64) -> Outcome {
    let mut bytes = vec![0; len.min(PAGE) as usize];
    match process.read(cpu, addr, &mut bytes) {
        Ok(()) => Outcome::Bytes(bytes),
        Err(error) => signal(error),
    }
}

/// Converts the error of a fault to the signal that a program sees.
fn signal(error: FaultError) -> Outcome {
    let (kind, addr) = match error {
        FaultError::Segv { addr, code: SegvCode::Maperr } => (SignalKind::SegvMapErr, addr),
        FaultError::Segv { addr, code: SegvCode::Accerr } => (SignalKind::SegvAccErr, addr),
        FaultError::Bus { addr } => (SignalKind::BusAdrErr, addr),
        _ => return Outcome::Dead,
    };
    Outcome::Signal(Signal { kind, addr })
}
