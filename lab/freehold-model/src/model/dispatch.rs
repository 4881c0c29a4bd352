//! The model as a subject: maps calls to operations, and exports the state that is compared.
//!
//! The other files of `model` have one operation each, with the arguments of its system call.
//! [`Subject::apply`] calls them, and converts results and errnos to an [`Outcome`]. [`Subject::check`] tests
//! the invariants of the model: sorted VMAs, and counters that equal their sums. A new call gets an arm in
//! `Model::call`.

use super::*;

impl Model {
    /// Makes a call of process `p`, which lives.
    fn call(&mut self, p: usize, call: &Call) -> Res<Outcome> {
        let ok = |r: Res| r.map(Outcome::Ok);
        match *call {
            Call::Mmap { addr, len, prot, flags, file, off } => {
                ok(self.mmap(p, &mmap::Args { addr, len, prot, flags, file, off }))
            }
            Call::Munmap { addr, len } => ok(self.munmap(p, addr, len)),
            Call::Mprotect { addr, len, prot } => ok(self.mprotect(p, addr, len, prot)),
            Call::Mremap { old, old_len, new_len, flags, new_addr } => {
                ok(self.mremap(p, old, old_len, new_len, flags, new_addr))
            }
            Call::Madvise { addr, len, advice } => ok(self.madvise(p, addr, len, advice)),
            Call::Mlock { addr, len } => ok(self.mlock(p, addr, len, vmflag::LOCKED)),
            Call::Mlock2 { addr, len, flags } => ok(self.mlock2(p, addr, len, flags)),
            Call::Munlock { addr, len } => ok(self.munlock(p, addr, len)),
            Call::Mlockall { flags } => ok(self.mlockall(p, flags)),
            Call::Munlockall => ok(self.set_lock_all(p, 0)),
            Call::Mseal { addr, len, flags } => ok(self.mseal(p, addr, len, flags)),
            Call::SetMdwe { bits } => ok(self.set_mdwe(p, bits)),
            Call::SetMerge { on } => ok(self.set_merge(p, on != 0)),
            Call::Brk { addr } => ok(self.brk(p, addr)),
            Call::Msync { addr, len, flags } => ok(self.msync(p, addr, len, flags)),
            Call::Mincore { addr, len } => self.mincore(p, addr, len).map(Outcome::Bytes),
            Call::Read { addr, len } => Ok(self.read(p, addr, len)),
            Call::Write { addr, value } => Ok(self.write(p, addr, value)),
            Call::Fork => Ok(self.fork(p)),
            Call::Exit => Ok(self.exit(p)),
            Call::Ftruncate { file, len } => ok(self.ftruncate(file, len)),
            Call::FileWrite { file, off, len, seed } => ok(self.file_write(file, off, len, seed)),
            Call::FileRead { file, off, len } => self.file_read(file, off, len).map(Outcome::Bytes),
            Call::Setrlimit { limit, pages } => {
                let l = &mut self.proc(p).limits;
                match limit {
                    Limit::As => l.space = pages,
                    Limit::Data => l.data = pages,
                    Limit::Lock => l.lock = pages,
                    Limit::Stack => l.stack = pages,
                }
                Ok(Outcome::Ok(0))
            }
        }
    }
}

impl Subject for Model {
    fn reset(&mut self) {
        self.start();
    }
    fn world(&self) -> World {
        self.world.clone()
    }
    fn apply(&mut self, op: &Op) -> Outcome {
        match self.procs.get(op.proc as usize) {
            Some(Some(_)) => self.call(op.proc as usize, &op.call).unwrap_or_else(Outcome::Err),
            _ => Outcome::Err(libc::ESRCH),
        }
    }
    /// Checks that VMAs are sorted, disjoint and page aligned, and that the counters equal their sums.
    /// `locked_vm` is not checked while the kernel's quirks are [kept](Quirks::Kept).
    fn check(&mut self) {
        for p in self.procs.iter().flatten() {
            let mut sum = Counters { locked_vm: p.count.locked_vm, ..self.world.outside };
            if self.world.quirks == Quirks::Cured {
                let inside = p.vmas.iter().filter(|v| v.back != Backing::Outside);
                let locked = inside.filter(|v| v.has(vmflag::LOCKED)).map(|v| v.pages() as i64);
                let outside = if p.vmas[0].has(vmflag::LOCKED) { self.world.outside_lockable } else { 0 };
                assert_eq!(locked.sum::<i64>() + outside, p.count.locked_vm, "wrong locked_vm");
            }
            for pair in p.vmas.windows(2) {
                assert!(pair[0].end <= pair[1].start, "VMAs overlap: {pair:x?}");
            }
            for v in &p.vmas {
                assert!(v.start < v.end && aligned(v.start) && aligned(v.end), "odd VMA {v:x?}");
                if v.back != Backing::Outside {
                    sum.map_count += 1;
                    sum.add(v.flags, v.pages() as i64);
                }
            }
            assert_eq!(sum, p.count, "the counters differ from the VMAs");
        }
    }
    fn maps(&mut self, proc: Proc) -> Vec<MapLine> {
        let Some(Some(p)) = self.procs.get(proc as usize) else { return Vec::new() };
        let inside = p.vmas.iter().filter(|v| v.back != Backing::Outside);
        inside
            .map(|v| MapLine {
                start: v.start,
                end: v.end,
                flags: v.flags,
                offset: if v.back == Backing::Anon { 0 } else { v.pgoff.wrapping_mul(PAGE) },
                file: match v.back {
                    Backing::File(f) => Some(MapFile::Inode(World::FILES[f as usize].inode)),
                    Backing::Shared(_) => Some(MapFile::SharedAnon),
                    _ => None,
                },
            })
            .collect()
    }
    fn counters(&mut self, proc: Proc) -> Option<Counters> {
        let out = self.world.outside;
        let c = self.procs.get(proc as usize)?.as_ref()?.count;
        Some(Counters {
            map_count: c.map_count - out.map_count,
            total_vm: c.total_vm - out.total_vm,
            locked_vm: c.locked_vm - out.locked_vm,
            data_vm: c.data_vm - out.data_vm,
            stack_vm: c.stack_vm - out.stack_vm,
        })
    }
}
