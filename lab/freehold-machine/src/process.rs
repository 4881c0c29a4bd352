//! A process of the machine: an address space of the engine and the threads that run it.
//!
//! This is the part of a kernel between a CPU and the engine. [`Process`] passes the faults of a [`Cpu`] to
//! [`AddressSpace::handle_fault`] and returns the error as the signal that a program would get. Tests,
//! benches and replays access memory through a process. A process has no state besides its address space,
//! whose calls are available by dereferencing the process. A new kind of access of [`Cpu`] gets a function
//! here, which passes `fault` as the handler.

use crate::DefaultFormat;
use crate::{Cpu, Machine, Word};
use freehold::counted::Counted;
use freehold::engine::Engine;
use freehold::error::SpaceError;
use freehold::fault::{Access, FaultError};
use freehold::space::{AddressSpace, SpaceConfig};
use freehold_pagetable::{Format, VirtAddr};
use std::ops::Deref;

/// An address space on a [`Machine`], shared by the threads that run it. Dereferences to the address space.
pub struct Process<F: Format = DefaultFormat> {
    space: Counted<AddressSpace<Machine<F>>>,
}

impl<F: Format> Process<F> {
    /// The end of the addresses of a process.
    pub const TASK_SIZE: u64 = AddressSpace::<Machine<F>>::TASK_SIZE;
    /// See [`AddressSpace::MAP_WINDOW_END`].
    pub const MAP_WINDOW_END: u64 = AddressSpace::<Machine<F>>::MAP_WINDOW_END;
    /// See [`AddressSpace::LEGACY_BASE`].
    pub const LEGACY_BASE: u64 = AddressSpace::<Machine<F>>::LEGACY_BASE;
    /// See [`AddressSpace::DEFAULT_MMAP_BASE`].
    pub const DEFAULT_MMAP_BASE: u64 = AddressSpace::<Machine<F>>::DEFAULT_MMAP_BASE;
    /// See [`AddressSpace::DEFAULT_BRK`].
    pub const DEFAULT_BRK: u64 = AddressSpace::<Machine<F>>::DEFAULT_BRK;

    /// Creates a process with an empty address space.
    ///
    /// # Errors
    /// Fails like [`AddressSpace::new`].
    pub fn new(engine: &Counted<Engine<Machine<F>>>, config: &SpaceConfig) -> Result<Self, SpaceError> {
        Ok(Process { space: AddressSpace::new(engine, config)? })
    }

    /// Wraps an existing space, for example the result of a fork.
    pub fn of(space: Counted<AddressSpace<Machine<F>>>) -> Self {
        Process { space }
    }

    /// The address space.
    pub fn space(&self) -> &Counted<AddressSpace<Machine<F>>> {
        &self.space
    }

    /// Loads a value, as a program that runs on `cpu`.
    ///
    /// # Errors
    /// Fails with the signal that the program gets.
    pub fn load<T: Word>(&self, cpu: &mut Cpu<F>, address: u64) -> Result<T, FaultError> {
        cpu.load(self.space.mmu(), address, |at, access| self.fault(at, access))
    }

    /// Stores a value, as a program that runs on `cpu`.
    ///
    /// # Errors
    /// Fails with the signal that the program gets.
    pub fn store<T: Word>(&self, cpu: &mut Cpu<F>, address: u64, value: T) -> Result<(), FaultError> {
        cpu.store(self.space.mmu(), address, value, |at, access| self.fault(at, access))
    }

    /// Loads many bytes.
    ///
    /// # Errors
    /// Fails with the signal that the program gets.
    pub fn read(&self, cpu: &mut Cpu<F>, address: u64, out: &mut [u8]) -> Result<(), FaultError> {
        cpu.read(self.space.mmu(), address, out, |at, access| self.fault(at, access))
    }

    /// Stores many bytes.
    ///
    /// # Errors
    /// Fails with the signal that the program gets. The bytes before the failing page are written.
    pub fn write(&self, cpu: &mut Cpu<F>, address: u64, data: &[u8]) -> Result<(), FaultError> {
        cpu.write(self.space.mmu(), address, data, |at, access| self.fault(at, access))
    }

    /// Makes an access that transfers no contents. Phantom memory needs no other kind.
    ///
    /// # Errors
    /// Fails with the signal that the program gets.
    #[inline]
    pub fn touch(&self, cpu: &mut Cpu<F>, address: u64, access: Access) -> Result<(), FaultError> {
        cpu.touch(self.space.mmu(), address, access, |at, access| self.fault(at, access))
    }

    #[inline]
    fn fault(&self, at: VirtAddr, access: Access) -> Result<(), FaultError> {
        self.space.handle_fault(at.get(), access).map(drop)
    }
}

impl<F: Format> Clone for Process<F> {
    fn clone(&self) -> Self {
        Process { space: self.space.clone() }
    }
}

impl<F: Format> Deref for Process<F> {
    type Target = AddressSpace<Machine<F>>;
    fn deref(&self) -> &Self::Target {
        &self.space
    }
}
