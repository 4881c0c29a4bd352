//! /proc and /sys: text that is made when it is read.
//!
//! | file | what |
//! | --- | --- |
//! | here | the folder /proc |
//! | [`text`] | files of text |
//! | [`system`] | the system as a whole: meminfo, cpuinfo, stat… |
//! | [`settings`] | /proc/sys |
//! | [`process`] | the folders of processes |
//! | [`subject`] | the process or thread of a folder, and whether it still exists |
//! | [`maps`] | reports of what is mapped: maps, smaps, pagemap, mem |
//! | [`query`] | the request of maps for one VMA |
//! | [`scan`] | the request of pagemap for ranges of pages |
//! | [`numa_maps`] | the policies of mappings, and the nodes of their pages |
//! | [`conformance`] | the conformance suite of `freehold-kit`, run by a read |
//! | [`clear_refs`] | clear_refs, which clears marks of pages |
//! | [`descriptors`] | the open files of processes |
//! | [`sys`] | /sys |
//! | [`huge`] | the settings of huge pages in /sys |
//!
//! `start.rs` mounts both folders. Each lookup in /proc makes a new [`Node`] (`files/tree.rs`), which for a
//! folder contains a [`Listing`]. Only the nodes of /proc/sys and /sys are made once, at boot. To add a file
//! of the whole system, add a line to `system::FILES`; the head of `proc/process.rs` says how to add a file
//! of a process. Programs parse the text, so its form is Linux's. A process may end at any time between the
//! lookup and the read.

pub mod clear_refs;
pub mod conformance;
pub mod descriptors;
pub mod huge;
pub mod maps;
pub mod numa_maps;
pub mod process;
pub mod query;
pub mod scan;
pub mod settings;
pub mod subject;
pub mod sys;
pub mod system;
pub mod text;

use crate::files::tree::{Jump, Listed, Listing, Node, listed};
use crate::process as processes;
use crate::sched::current;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;
use text::{FOLDER, LINKED, PLAIN, number, text};

/// A link of /proc whose target, a path relative to /proc, depends on the calling thread.
struct Pointer(fn() -> String);

impl Jump for Pointer {
    fn text(&self) -> Result<Vec<u8>, Errno> {
        Ok((self.0)().into_bytes())
    }

    fn node(&self) -> Result<Arc<Node>, Errno> {
        crate::files::tree::lookup(&crate::files::tree::root(), &[b"/proc/", &*self.text()?].concat(), true)
    }
}

/// The folder /proc.
struct Root {
    sys: Arc<Node>,
}

/// Makes the folder /proc.
pub fn root() -> Arc<Node> {
    Node::listing(Box::new(Root { sys: settings::root() }))
}

/// Returns the target of /proc/self.
fn own_pid() -> String {
    alloc::format!("{}", current().process().pid)
}

/// Returns the target of /proc/thread-self.
fn own_thread() -> String {
    alloc::format!("{}/task/{}", current().process().pid, current().tid())
}

impl Listing for Root {
    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        match name {
            b"self" => return Ok(Node::jump(Box::new(Pointer(own_pid)))),
            b"thread-self" => return Ok(Node::jump(Box::new(Pointer(own_thread)))),
            b"mounts" => return Ok(Node::link(b"self/mounts")),
            b"sys" => return Ok(self.sys.clone()),
            b"sysvipc" => return Ok(Node::listing(Box::new(Ipc))),
            _ => {}
        }
        if let Some((_, make)) = system::FILES.iter().find(|(file, _)| file.as_bytes() == name) {
            let make = *make;
            return Ok(text(move || Ok(make().into_bytes())));
        }
        let pid = number(name).ok().and_then(|pid| u32::try_from(pid).ok()).ok_or(Errno::ENOENT)?;
        process::folder(pid)
    }

    fn names(&self, from: u64) -> Result<Vec<Listed>, Errno> {
        let mut names = Vec::new();
        for name in ["self", "thread-self", "mounts"] {
            names.push((name.into(), LINKED));
        }
        for name in ["sys", "sysvipc"] {
            names.push((name.into(), FOLDER));
        }
        names.extend(system::FILES.iter().map(|(name, _)| ((*name).into(), PLAIN)));
        names.extend(processes::pids().iter().map(|pid| (alloc::format!("{pid}").into_bytes(), FOLDER)));
        Ok(listed(names, from))
    }
}

/// The folder /proc/sysvipc.
struct Ipc;

impl Listing for Ipc {
    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        match name {
            b"shm" => Ok(text(|| {
                let mut out = Vec::new();
                crate::process::segments::write_report(&mut out);
                Ok(out)
            })),
            b"sem" => Ok(text(|| {
                let mut out = Vec::new();
                crate::process::semaphores::write_report(&mut out);
                Ok(out)
            })),
            b"msg" => Ok(text(|| Ok(Vec::new()))),
            _ => Err(Errno::ENOENT),
        }
    }

    fn names(&self, from: u64) -> Result<Vec<Listed>, Errno> {
        Ok(listed(["shm", "sem", "msg"].map(|name| (name.into(), PLAIN)).into(), from))
    }
}
