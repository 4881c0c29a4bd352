//! Calls on files, and their effects on mappings: ftruncate, pread and pwrite of a [`FileId`].
//!
//! The functions make the checks of a file system; contents are in `inode.rs`. A shorter file loses its pages
//! in every process that maps it, private copies included. In a world with `Quirks::Kept`, a file that grows
//! shows the bytes that programs stored behind its end. Holes that madvise punches are in `madvise.rs`.
//! `cases/files.txt` and the two cases `stores-behind-the-end` have the rules that are easy to miss.

use super::*;

impl Model {
    /// Returns the inode behind a mapping.
    pub(super) fn inode_of(&self, back: Backing) -> Option<usize> {
        match back {
            Backing::File(f) => Some(World::FILES[f as usize].inode as usize),
            Backing::Shared(i) => Some(i),
            Backing::Anon | Backing::Outside => None,
        }
    }

    /// Prepares a file that grows. Called before the bytes from the end of the file to `to` become a part of
    /// the file.
    fn file_grows(&mut self, inode: usize, to: u64) {
        let behind = self.inodes[inode].behind_end(to);
        self.met_quirk |= behind.iter().any(|byte| *byte != 0);
        if self.world.quirks == Quirks::Cured {
            behind.fill(0);
        }
    }

    /// Truncates a file. Also drops private copies of the pages behind the new end.
    pub(super) fn ftruncate(&mut self, file: FileId, len: u64) -> Res {
        let desc = World::FILES[file as usize];
        if len > i64::MAX as u64 || !desc.write {
            return Err(libc::EINVAL);
        }
        let inode = desc.inode as usize;
        self.file_grows(inode, len);
        let shrinks = len < self.inodes[inode].size;
        self.inodes[inode].truncate(len);
        if shrinks {
            let keep = len.div_ceil(PAGE);
            for p in self.procs.iter_mut().flatten() {
                let of_inode = |v: &&Vma| matches!(v.back, Backing::File(f) if World::FILES[f as usize].inode as usize == inode);
                let cut: Vec<(u64, u64)> = p
                    .vmas
                    .iter()
                    .filter(of_inode)
                    .map(|v| (v.start + keep.saturating_sub(v.pgoff).min(v.pages()) * PAGE, v.end))
                    .collect();
                for (start, end) in cut {
                    p.forget_pages(start, end, |page| !matches!(page, Page::Guard));
                }
            }
        }
        Ok(0)
    }

    /// Writes the bytes `seed, seed+1, ..` at offset `off`. The file may grow.
    pub(super) fn file_write(&mut self, file: FileId, off: u64, len: u64, seed: u8) -> Res {
        let desc = World::FILES[file as usize];
        if off > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        if !desc.write {
            return Err(libc::EBADF);
        }
        let size = self.inodes[desc.inode as usize].size;
        let off = if desc.append { size } else { off };
        if len > 0 {
            self.file_grows(desc.inode as usize, off);
            let inode = &mut self.inodes[desc.inode as usize];
            inode.write(off, (0..len).map(|i| seed.wrapping_add(i as u8)));
        }
        Ok(len)
    }

    /// Reads bytes at offset `off`, up to the end of the file.
    pub(super) fn file_read(&mut self, file: FileId, off: u64, len: u64) -> Res<Vec<u8>> {
        let desc = World::FILES[file as usize];
        if off > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        if !desc.read {
            return Err(libc::EBADF);
        }
        let inode = &self.inodes[desc.inode as usize];
        let end = off.saturating_add(len).min(inode.size);
        Ok((off..end).map(|at| inode.byte(at / PAGE, (at % PAGE) as usize)).collect())
    }
}
