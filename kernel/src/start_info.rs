//! The start info of the boot protocol (PVH): command line, initial file system, memory map.
//!
//! `boot.s` passes the physical address to `kernel_main`. `memory/mod.rs` makes free frames from the memory
//! map, and `boot/madt.rs` finds the CPUs through `rsdp`. All addresses in the structures are physical and
//! are read through the direct map. The structures stay valid: they lie in memory below 1 MiB, which never
//! becomes free frames.

use crate::arch::layout::direct;
use core::ffi::CStr;

/// Value of `magic` in a start info.
const MAGIC: u32 = 0x336e_c578;
/// Type of usable memory in the memory map.
const RAM: u32 = 1;

/// The start info of the protocol (hvm_start_info), version 1. Its layout is fixed by the protocol.
#[repr(C)]
pub struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    /// Address of the root pointer of the ACPI tables; 0 if there are none.
    pub rsdp: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

/// An entry of the memory map. Its layout is fixed by the protocol.
#[repr(C)]
struct MapEntry {
    at: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// A range of physical memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
}

impl StartInfo {
    /// Returns the start info at this physical address. Panics if another protocol booted the kernel.
    ///
    /// # Safety
    ///
    /// The boot protocol gave the address, and nothing was written there since.
    pub unsafe fn at(address: u64) -> &'static StartInfo {
        // SAFETY: by the caller's promise. The address is below 4 GiB, which the direct map contains from the
        // start.
        let info = unsafe { &*direct::<StartInfo>(address) };
        assert_eq!(info.magic, MAGIC, "not booted by PVH");
        assert!(info.version >= 1, "the boot protocol gives no memory map");
        info
    }

    /// Returns the command line, or an empty string if there is none or it is not UTF-8.
    pub fn command_line(&self) -> &'static str {
        if self.command_line == 0 {
            return "";
        }
        // SAFETY: by the protocol, this is the address of a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(direct(self.command_line)) };
        text.to_str().unwrap_or_default()
    }

    /// Returns the first module: the initial file system, or a program.
    pub fn module(&self) -> Option<Region> {
        if self.modules == 0 {
            return None;
        }
        // SAFETY: by the protocol, this is the list of modules, which begins with the address and size of the
        // first module.
        let [start, bytes] = unsafe { *direct::<[u64; 2]>(self.module_list) };
        Some(Region { start, end: start + bytes })
    }

    /// Returns the usable memory.
    pub fn memory(&self) -> impl Iterator<Item = Region> + Clone {
        // SAFETY: by the protocol, these are the address and the length of the memory map.
        let map = unsafe {
            core::slice::from_raw_parts(direct::<MapEntry>(self.memory_map), self.memory_entries as usize)
        };
        let ram = map.iter().filter(|entry| entry.kind == RAM);
        ram.map(|entry| Region { start: entry.at, end: entry.at + entry.bytes })
    }
}
