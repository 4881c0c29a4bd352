//! Inodes: file contents, truncation, holes.

use super::*;

/// A file's contents. Pages that were never written are absent and read as zeros.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    size: u64,
    data: BTreeMap<u64, Box<Bytes>>,
}

impl Inode {
    pub(super) fn empty(size: u64) -> Inode {
        Inode { size, data: BTreeMap::new() }
    }
    pub(super) fn initial(number: u8) -> Inode {
        let size = World::INODES[number as usize];
        let mut inode = Inode::empty(size);
        for index in 0..inode.pages() {
            let end = (size - index * PAGE).min(PAGE);
            let page = inode.page_mut(index);
            for at in 0..end {
                page[at as usize] = World::initial(number, index * PAGE + at);
            }
        }
        inode
    }
    /// Pages up to the end of the file.
    pub(super) fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE)
    }
    pub(super) fn page_mut(&mut self, index: u64) -> &mut Bytes {
        self.data.entry(index).or_insert_with(|| Box::new([0; PAGE as usize]))
    }
    fn byte(&self, index: u64, at: usize) -> u8 {
        self.data.get(&index).map_or(0, |page| page[at])
    }
    pub(super) fn page(&self, index: u64) -> Option<&Bytes> {
        self.data.get(&index).map(|page| &**page)
    }
    pub(super) fn copy(&self, index: u64) -> Bytes {
        self.data.get(&index).map_or([0; PAGE as usize], |page| **page)
    }
    /// Drops whole pages.
    pub(super) fn punch(&mut self, first: u64, end: u64) {
        self.data.retain(|n, _| !(first..end).contains(n));
    }
    /// The bytes between the end of the file and `to` in the last page: stores through mappings may have left
    /// something there.
    fn behind_end(&mut self, to: u64) -> &mut [u8] {
        let (size, end) = (self.size, to.min(page_up(self.size)));
        match self.data.get_mut(&(size / PAGE)) {
            Some(page) if size < end => &mut page[(size % PAGE) as usize..][..(end - size) as usize],
            _ => &mut [],
        }
    }
    fn write(&mut self, off: u64, bytes: impl Iterator<Item = u8>) {
        let mut at = off;
        for byte in bytes {
            self.page_mut(at / PAGE)[(at % PAGE) as usize] = byte;
            at += 1;
        }
        self.size = self.size.max(at);
    }
    fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.data.retain(|n, _| *n < size.div_ceil(PAGE));
            if let Some(page) = self.data.get_mut(&(size / PAGE)) {
                page[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }
}

impl Model {
    /// The inode behind a mapping.
    pub(super) fn inode_of(&self, back: Backing) -> Option<usize> {
        match back {
            Backing::File(f) => Some(World::FILES[f as usize].inode as usize),
            Backing::Shared(i) => Some(i),
            Backing::Anon | Backing::Outside => None,
        }
    }

    /// Before the bytes from the end of a file to `to` become a part of it.
    fn file_grows(&mut self, inode: usize, to: u64) {
        let behind = self.inodes[inode].behind_end(to);
        self.met_quirk |= behind.iter().any(|byte| *byte != 0);
        if self.world.quirks == Quirks::Cured {
            behind.fill(0);
        }
    }

    /// Cutting a file also takes the private copies of the pages that go.
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
