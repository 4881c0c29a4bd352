//! Virtual CPUs: loads and stores through a TLB.
//!
//! Tests and [`Process`](crate::Process) access memory through a [`Cpu`], which one thread at a time uses. An
//! access looks in the TLB (`tlb.rs`), walks the tables if necessary, and lets the oracles check the
//! translation. The access holds its CPU's lock from the look-up of the translation to the last use of the
//! translation. A flush takes that lock, so it knows that no access is in progress. A fault drops all TLB
//! entries for the address, as on x86, and releases the lock. On a format with `CACHES_INVALID`, the fault
//! caches the page as invalid instead, and the entries are dropped when the handler has resolved the fault.
//! Then the access calls the caller's handler and starts again. The lock must not be held during the handler,
//! because the handler calls the engine, which flushes. A new kind of access calls `access` or `translate`,
//! which do all this. `tests/tlb.rs` and `tests/memory.rs` test CPUs.

use crate::contents::{Page, Word};
use crate::host;
use crate::inner::Inner;
use crate::local::CpuId;
use crate::mmu::Mmu;
use crate::oracle;
use crate::tlb::{Place, Tlb, Verdict};
use freehold_pagetable::{Access, Format, PAGE_SIZE, Pfn, Pte, Rights, VirtAddr, WalkFault};
use freehold_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of faults of one access that a handler may report as resolved. An access that races with
/// other CPUs has far fewer faults.
const MAX_FAULTS: u32 = 100_000;

/// A claimed virtual CPU. The owner of the CPU runs the CPU, from one thread at a time.
///
/// The handler of an access runs as this CPU. The handler resolves a fault (as the engine's fault entry point
/// does), or returns the signal that ends the access.
pub struct Cpu<F: Format> {
    inner: Arc<Inner<F>>,
    number: usize,
}

impl<F: Format> Cpu<F> {
    /// Claims a CPU of the machine. Returns `None` if the CPU is claimed already.
    pub(crate) fn claim(inner: &Arc<Inner<F>>, number: usize) -> Option<Self> {
        // Acquire: pairs with the release in `drop`.
        let taken = inner.cpus[number].claimed.swap(true, Ordering::Acquire);
        (!taken).then(|| Cpu { inner: Arc::clone(inner), number })
    }

    /// The number of this CPU in its machine.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Makes the calling thread run as this CPU until the guard is dropped. A flush by this thread then
    /// treats this CPU as the local CPU.
    pub fn enter(&self) -> Entered {
        let own = CpuId { machine: self.inner.id, number: self.number };
        Entered {
            before: host::local(|local| local.replace_cpu(Some(own))),
            not_send: std::marker::PhantomData,
        }
    }

    /// Runs `f` as this CPU, for example a call of the engine.
    pub fn call<R>(&self, f: impl FnOnce() -> R) -> R {
        let _entered = self.enter();
        f()
    }

    /// Starts to run `space`. Translations of other spaces stay in the TLB. Each access also starts to run
    /// the space that it accesses.
    pub fn run(&mut self, space: &Mmu<F>) {
        let mut tlb = self.inner.cpus[self.number].lock();
        self.switch(&mut tlb, space);
    }

    /// Stops running a space. Translations stay in the TLB until they are flushed.
    pub fn idle(&mut self) {
        self.inner.cpus[self.number].lock().active = None;
    }

    /// Returns the register of protection-key rights (PKRU). Bit 2k denies access by key k, and bit 2k+1
    /// denies writing.
    pub fn pkru(&self) -> u32 {
        self.inner.cpus[self.number].lock().pkru
    }

    /// Sets the register of protection-key rights, as WRPKRU does.
    pub fn set_pkru(&mut self, pkru: u32) {
        self.inner.cpus[self.number].lock().pkru = pkru;
    }

    /// Reads an integer. The read is atomic if the address is aligned.
    ///
    /// # Errors
    /// Fails with the error that the handler returned.
    ///
    /// # Panics
    /// Panics if an oracle finds a bug in the engine.
    pub fn load<T: Word, S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        mut handler: impl FnMut(VirtAddr, Access) -> Result<(), S>,
    ) -> Result<T, S> {
        if address.is_multiple_of(size_of::<T>() as u64) {
            let word = |page: Option<&Page>, offset| page.map_or(0, |page| page.word_at(offset));
            return Ok(T::of_word(self.access(space, address, Access::READ, &mut handler, word)?));
        }
        let mut bytes = T::Bytes::default();
        self.read(space, address, bytes.as_mut(), handler)?;
        Ok(T::of_bytes(bytes))
    }

    /// Writes an integer. The write is atomic if the address is aligned.
    ///
    /// # Errors
    /// Fails with the error that the handler returned. The bytes before the failing page are written.
    ///
    /// # Panics
    /// Panics if an oracle finds a bug in the engine.
    pub fn store<T: Word, S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        value: T,
        handler: impl FnMut(VirtAddr, Access) -> Result<(), S>,
    ) -> Result<(), S> {
        self.write(space, address, value.bytes().as_ref(), handler)
    }

    /// Reads bytes, one page at a time.
    ///
    /// # Errors
    /// Fails with the error that the handler returned.
    pub fn read<S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        out: &mut [u8],
        mut handler: impl FnMut(VirtAddr, Access) -> Result<(), S>,
    ) -> Result<(), S> {
        let mut at = address;
        let mut rest = out;
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut(rest.len().min(room(at)));
            self.access(space, at, Access::READ, &mut handler, |page, offset| match page {
                Some(page) => page.read(offset, part),
                None => part.fill(0),
            })?;
            at = at.wrapping_add(part.len() as u64);
            rest = after;
        }
        Ok(())
    }

    /// Writes bytes, one page at a time.
    ///
    /// # Errors
    /// Fails with the error that the handler returned. The bytes before the failing page are written.
    pub fn write<S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        data: &[u8],
        mut handler: impl FnMut(VirtAddr, Access) -> Result<(), S>,
    ) -> Result<(), S> {
        let mut at = address;
        let mut rest = data;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(room(at)));
            self.access(space, at, Access::WRITE, &mut handler, |page, offset| {
                if let Some(page) = page {
                    page.write(offset, part);
                }
            })?;
            at = at.wrapping_add(part.len() as u64);
            rest = after;
        }
        Ok(())
    }

    /// Adds atomically to the aligned 8 bytes at `address`. Returns the previous value.
    ///
    /// # Errors
    /// Fails with the error that the handler returned.
    ///
    /// # Panics
    /// Panics if `address` is not a multiple of 8.
    pub fn fetch_add<S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        value: u64,
        mut handler: impl FnMut(VirtAddr, Access) -> Result<(), S>,
    ) -> Result<u64, S> {
        self.access(space, address, Access::WRITE, &mut handler, |page, offset| {
            page.map_or(0, |page| page.fetch_add(offset, value))
        })
    }

    /// Translates an address, as an access does, without touching contents. This is the only access that
    /// phantom memory needs.
    ///
    /// # Errors
    /// Fails with the error that the handler returned.
    #[inline]
    pub fn touch<S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        access: Access,
        mut handler: impl FnMut(VirtAddr, Access) -> Result<(), S>,
    ) -> Result<(), S> {
        let address = VirtAddr::new(address);
        self.translate(space, address, access, &mut handler, |_, _| ())
    }

    /// Translates `address`, and calls `f` with the contents of its frame and the offset, under this CPU's
    /// lock. Phantom memory has no contents.
    #[inline]
    fn access<R, S>(
        &mut self,
        space: &Mmu<F>,
        address: u64,
        access: Access,
        handler: &mut impl FnMut(VirtAddr, Access) -> Result<(), S>,
        mut f: impl FnMut(Option<&Page>, usize) -> R,
    ) -> Result<R, S> {
        let address = VirtAddr::new(address);
        let offset = address.page_offset() as usize;
        self.translate(space, address, access, handler, |inner, frame| f(inner.page(frame), offset))
    }

    /// Calls `f` once with the frame behind `address`, under this CPU's lock.
    #[inline]
    fn translate<R, S>(
        &mut self,
        space: &Mmu<F>,
        address: VirtAddr,
        access: Access,
        handler: &mut impl FnMut(VirtAddr, Access) -> Result<(), S>,
        mut f: impl FnMut(&Inner<F>, Pfn) -> R,
    ) -> Result<R, S> {
        let mut faults = 0;
        loop {
            let access = {
                let mut tlb = self.inner.cpus[self.number].lock();
                let access = Access { pkru: access.pkru | tlb.pkru, ..access };
                if tlb.active != Some(space.tag()) {
                    self.switch(&mut tlb, space);
                }
                if let Some(frame) = self.frame(&mut tlb, space, address, access) {
                    return Ok(f(&self.inner, frame));
                }
                tlb.counts.faults += 1;
                if F::CACHES_INVALID {
                    tlb.insert_invalid(space.tag(), address);
                } else {
                    tlb.drop_address(space.tag(), address);
                }
                access
            };
            faults += 1;
            assert!(faults < MAX_FAULTS, "endless faults at {address:?} on CPU {}: {access:?}", self.number);
            let _entered = self.enter();
            host::trap();
            handler(address, access)?;
            if F::CACHES_INVALID {
                // The kernel's part, see `Format::CACHES_INVALID`.
                self.inner.cpus[self.number].lock().drop_address(space.tag(), address);
            }
        }
    }

    /// Returns the frame for an access, or `None` if the access faults.
    #[inline]
    fn frame(&self, tlb: &mut Tlb, space: &Mmu<F>, address: VirtAddr, access: Access) -> Option<Pfn> {
        if F::CACHES_INVALID && tlb.is_invalid(space.tag(), address) {
            return None;
        }
        if let Some(leaf) = tlb.find(space.tag(), address) {
            match leaf.judge(access) {
                Verdict::Serve => {
                    let frame = leaf.frame_of(address);
                    if let Err(how) = self.inner.frames.check(frame, leaf.stamp) {
                        oracle::stale_leaf(address, frame, self.number, how);
                    }
                    return Some(frame);
                }
                Verdict::Fault => return None,
                Verdict::WalkAgain => {}
            }
        }
        self.walk(tlb, space, address, access).ok()
    }

    /// Walks the tables, starting at the lowest cached table, and caches the result.
    #[cold]
    #[inline(never)]
    fn walk(
        &self,
        tlb: &mut Tlb,
        space: &Mmu<F>,
        address: VirtAddr,
        access: Access,
    ) -> Result<Pfn, WalkFault> {
        F::hardware_address(address.get(), access)?;
        tlb.counts.walks += 1;
        let table_stamp = self.inner.tables.stamp();
        let frame_stamp = self.inner.frames.stamp();
        let mut at = Step::first(tlb, space, address, table_stamp);
        loop {
            if let Err(how) = self.inner.tables.check(at.table, at.stamp) {
                oracle::stale_table(address, at.table, self.number, how);
            }
            let entry = self.inner.table(at.table).entry(address.index(at.level));
            let raw = hardware_read::<F>(entry, &mut at, access)?;
            let place = Place { space: space.tag(), address, level: at.level, stamp: frame_stamp };
            if F::BREAK_BEFORE_MAKE
                && self.inner.config.oracles
                && let Some(cached) = tlb.conflict(&place, F::is_leaf(raw, at.level))
            {
                oracle::size_changed(address, at.level, cached, self.number);
            }
            if F::is_leaf(raw, at.level) {
                let frame = F::pfn(raw).add(address.frame_in_leaf(at.level));
                if let Err(how) = self.inner.frames.check(frame, frame_stamp) {
                    oracle::stale_leaf(address, frame, self.number, how);
                }
                if !F::COHERENT_FETCH
                    && self.inner.config.oracles
                    && Pte::<F>::from_raw(raw).permits_fetch(at.level)
                    && self.inner.is_unpublished(frame)
                {
                    oracle::old_code(address, frame, self.number);
                }
                tlb.insert::<F>(place, raw, at.rights);
                return Ok(frame);
            }
            tlb.insert_walk(Place { stamp: table_stamp, ..place }, F::pfn(raw), at.rights);
            at = Step { table: F::pfn(raw), level: at.level.below(), stamp: table_stamp, ..at };
        }
    }

    /// Marks the CPU as running `space`. The caller holds the CPU's lock.
    #[cold]
    fn switch(&self, tlb: &mut Tlb, space: &Mmu<F>) {
        assert!(space.is_of(&self.inner), "a CPU cannot run a space of another machine");
        space.mark(self.number);
        tlb.active = Some(space.tag());
    }
}

impl<F: Format> Drop for Cpu<F> {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `claim`.
        self.inner.cpus[self.number].claimed.store(false, Ordering::Release);
    }
}

impl<F: Format> fmt::Debug for Cpu<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu {}", self.number)
    }
}

/// Makes the calling thread run as a CPU while the guard lives. Guards must be dropped in reverse order.
#[derive(Debug)]
pub struct Entered {
    before: Option<CpuId>,
    /// The guard belongs to the thread that entered the CPU.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        host::local(|local| local.replace_cpu(self.before));
    }
}

/// The position of a walk.
#[derive(Clone, Copy)]
struct Step {
    table: Pfn,
    level: freehold_pagetable::Level,
    rights: Rights,
    /// The tables' clock when `table` was read.
    stamp: u64,
}

impl Step {
    /// Returns the first step of a walk: the lowest cached table for the address, or the root.
    fn first<F: Format>(tlb: &mut Tlb, space: &Mmu<F>, address: VirtAddr, now: u64) -> Self {
        if let Some(walk) = tlb.find_walk(space.tag(), address) {
            tlb.counts.walk_cache_hits += 1;
            return Step { table: walk.table, level: walk.level(), rights: walk.rights, stamp: walk.stamp };
        }
        let rights = Rights { write: true, user: true, exec: true };
        Step { table: space.root(), level: F::ROOT, rights, stamp: now }
    }
}

/// Reads one entry as the hardware does: checks it, and sets the accessed and dirty bits. If the entry
/// changes at the same time, checks the new value.
fn hardware_read<F: Format>(entry: &AtomicU64, at: &mut Step, access: Access) -> Result<u64, WalkFault> {
    let above = at.rights;
    // Acquire here and below: pairs with the release of the store that installed the entry.
    let mut raw = entry.load(Acquire);
    loop {
        at.rights = above;
        let marked = F::hardware_step(raw, at.level, access, &mut at.rights)?;
        if marked == raw {
            return Ok(raw);
        }
        // Relaxed on success: the bits carry no data.
        match entry.compare_exchange(raw, marked, Relaxed, Acquire) {
            Ok(_) => return Ok(marked),
            Err(now) => raw = now,
        }
    }
}

/// Number of bytes from `address` to the end of its page.
fn room(address: u64) -> usize {
    (PAGE_SIZE - VirtAddr::new(address).page_offset()) as usize
}
