//! The model of mmap: checks the arguments in the kernel's order, chooses the address, removes the mappings
//! that a fixed mapping replaces, and adds the VMA.
//!
//! The choice of the address is in `place.rs`, the removal in `munmap.rs`, the merge with neighbours in
//! `merge.rs`. An mmap that fails at a limit may already have split VMAs at the edges of its range, as on
//! Linux (`cases/refused-mmap-splits.txt`). A new flag of mmap is a constant below and a check in
//! `Model::mmap`, `file_flags` or `anon_flags`.

use super::ksm::may_merge;
use super::merge::Candidate;
use super::place::Want;
use super::*;

/// The arguments of mmap.
pub(super) struct Args {
    pub addr: u64,
    pub len: u64,
    pub prot: u64,
    pub flags: u64,
    pub file: Option<FileId>,
    pub off: u64,
}

const MAP_SHARED: u64 = 1;
const MAP_PRIVATE: u64 = 2;
const MAP_SHARED_VALIDATE: u64 = 3;
const MAP_DROPPABLE: u64 = 8;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_32BIT: u64 = 0x40;
const MAP_ABOVE4G: u64 = 0x80;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_LOCKED: u64 = 0x2000;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_NONBLOCK: u64 = 0x1_0000;
const MAP_STACK: u64 = 0x2_0000;
const MAP_HUGETLB: u64 = 0x4_0000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
/// The flags that `MAP_SHARED_VALIDATE` accepts in addition to the type. These flags existed before
/// `MAP_SHARED_VALIDATE`.
const LEGACY: u64 = MAP_FIXED
    | MAP_ANONYMOUS
    | MAP_GROWSDOWN
    | MAP_LOCKED
    | MAP_NORESERVE
    | MAP_POPULATE
    | MAP_NONBLOCK
    | MAP_STACK
    | MAP_HUGETLB
    | 0x1800 // DENYWRITE, EXECUTABLE
    | MAP_32BIT
    | MAP_ABOVE4G
    | 0x400_0000
    | (0x3f << 26 & (21 << 26 | 30 << 26));

const MAX_FILE: u64 = i64::MAX as u64;

impl Model {
    /// Makes the call in process `p`. Returns the address of the mapping.
    pub(super) fn mmap(&mut self, p: usize, a: &Args) -> Res {
        let w = self.world.clone();
        let mut map = a.flags;
        if !aligned(a.off) {
            return Err(libc::EINVAL);
        }
        let file = if map & MAP_ANONYMOUS != 0 { None } else { Some(a.file.ok_or(libc::EBADF)?) };
        if a.len == 0 || (map & MAP_HUGETLB != 0 && file.is_some()) {
            return Err(libc::EINVAL);
        }
        // The pool of huge pages is empty.
        if map & MAP_HUGETLB != 0 {
            return Err(libc::ENOMEM);
        }
        if map & MAP_FIXED_NOREPLACE != 0 {
            map |= MAP_FIXED;
        }
        let mut addr = a.addr;
        if map & MAP_FIXED == 0 {
            addr = page_down(addr);
            if addr != 0 && addr < w.min_addr {
                addr = page_up(w.min_addr);
            }
        }
        let len = page_up(a.len);
        let pr = self.proc(p);
        if len == 0 || pr.count.map_count as u64 > w.max_map_count {
            return Err(libc::ENOMEM);
        }
        let mut flags =
            (a.prot & 7) as u32 | vmflag::MAYREAD | vmflag::MAYWRITE | vmflag::MAYEXEC | pr.def_flags;
        for (bit, flag) in [
            (MAP_GROWSDOWN, vmflag::GROWSDOWN),
            (MAP_LOCKED, vmflag::LOCKED),
            (MAP_STACK, vmflag::NOHUGEPAGE),
        ] {
            if map & bit != 0 {
                flags |= flag;
            }
        }
        let fixed = map & MAP_FIXED != 0;
        let anon = file.is_none() && map & 0xf != MAP_SHARED;
        let (low, high) = (map & MAP_32BIT != 0, map & MAP_ABOVE4G != 0);
        let want = Want { addr, len, fixed, anon, low, high };
        let addr = pr.place(&w, &want)?;
        if map & MAP_FIXED_NOREPLACE != 0 && pr.occupied(addr, addr + len) {
            return Err(libc::EEXIST);
        }
        if map & MAP_LOCKED != 0 && !w.may_lock && pr.limits.lock == 0 {
            return Err(libc::EPERM);
        }
        if !pr.may_lock(flags, len, &w) {
            return Err(libc::EAGAIN);
        }
        let pgoff = match file {
            Some(f) => {
                file_flags(f, a, map, len, &mut flags)?;
                a.off / PAGE
            }
            None => anon_flags(map, addr, &mut flags)?,
        };
        if !may_merge(flags) {
            flags &= !vmflag::MERGEABLE;
        }
        if map & MAP_NORESERVE != 0 {
            flags |= vmflag::NORESERVE;
        }
        if pr.denies_exec(flags, flags) {
            return Err(libc::EACCES);
        }
        self.region(p, addr, len, flags, pgoff, file)?;
        if flags & vmflag::LOCKED != 0 || map & (MAP_POPULATE | MAP_NONBLOCK) == MAP_POPULATE {
            let _ = self.populate(p, addr, addr + len, true);
        }
        Ok(addr)
    }

    /// Replaces the mappings in the range by the new mapping.
    fn region(
        &mut self,
        p: usize,
        addr: u64,
        len: u64,
        mut flags: u32,
        pgoff: u64,
        file: Option<FileId>,
    ) -> Res<()> {
        let w = self.world.clone();
        let end = addr + len;
        let pr = self.proc(p);
        let grows = (len / PAGE) as i64 - pr.pages_in(addr, end) as i64;
        pr.cut_out(addr, end, w.max_map_count)?;
        if !pr.may_expand(flags, grows, &w.outside) {
            return Err(libc::ENOMEM);
        }
        if flags & (vmflag::NORESERVE | vmflag::SHARED | vmflag::WRITE) == vmflag::WRITE {
            flags |= vmflag::ACCOUNT;
        }
        pr.drop_range(addr, end);
        let back = match file {
            Some(f) => Backing::File(f),
            None if flags & vmflag::SHARED != 0 => {
                self.inodes.push(Inode::empty(len));
                Backing::Shared(self.inodes.len() - 1)
            }
            None => Backing::Anon,
        };
        let pr = self.proc(p);
        pr.insert(&Candidate {
            start: addr,
            end,
            flags,
            pgoff,
            back,
            anon: None,
            forked: false,
            just_expand: false,
        });
        pr.count.add(flags, (len / PAGE) as i64);
        if flags & vmflag::LOCKED != 0 {
            if flags & vmflag::DROPPABLE != 0 {
                let i = pr.at(addr).expect("just mapped");
                pr.vmas[i].flags &= !vmflag::LOCK_MASK;
            } else {
                pr.count.locked_vm += (len / PAGE) as i64;
            }
        }
        Ok(())
    }
}

/// Checks the flags of a mapping of a file and adds its VMA flags.
fn file_flags(f: FileId, a: &Args, map: u64, len: u64, flags: &mut u32) -> Res<()> {
    let desc = World::FILES[f as usize];
    if len > MAX_FILE || a.off / PAGE > (MAX_FILE - len) / PAGE {
        return Err(libc::EOVERFLOW);
    }
    let kind = map & 0xf;
    match kind {
        MAP_SHARED | MAP_SHARED_VALIDATE => {
            if kind == MAP_SHARED_VALIDATE && map & !(LEGACY | 3) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if a.prot & 2 != 0 && !desc.write {
                return Err(libc::EACCES);
            }
            *flags |= vmflag::SHARED | vmflag::MAYSHARE;
            if !desc.write {
                *flags &= !(vmflag::MAYWRITE | vmflag::SHARED);
            }
        }
        MAP_PRIVATE => {}
        _ => return Err(libc::EINVAL),
    }
    if !desc.read {
        return Err(libc::EACCES);
    }
    if *flags & vmflag::GROWSDOWN != 0 {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// Checks the flags of an anonymous mapping and adds its VMA flags. Returns the page offset.
fn anon_flags(map: u64, addr: u64, flags: &mut u32) -> Res {
    let grows = *flags & vmflag::GROWSDOWN != 0;
    match map & 0xf {
        MAP_SHARED if !grows => {
            *flags |= vmflag::SHARED | vmflag::MAYSHARE;
            Ok(0)
        }
        MAP_DROPPABLE if !grows && map & (MAP_LOCKED | MAP_HUGETLB) == 0 => {
            *flags |= vmflag::DROPPABLE | vmflag::NORESERVE | vmflag::WIPEONFORK | vmflag::DONTDUMP;
            Ok(addr / PAGE)
        }
        MAP_PRIVATE => Ok(addr / PAGE),
        _ => Err(libc::EINVAL),
    }
}
