//! /proc and /sys: text that is made when it is read.
//!
//! | file | what |
//! | --- | --- |
//! | here | the folder /proc; files of text |
//! | [`system`] | the system as a whole: meminfo, cpuinfo, stat… |
//! | [`settings`] | /proc/sys |
//! | [`process`] | the folders of processes |
//! | [`maps`] | what is mapped: maps, smaps, pagemap, mem |
//! | [`clear_refs`] | clear_refs |
//! | [`config`] | config.gz |
//! | [`descriptors`] | the open files of processes |
//! | [`sys`] | /sys |

pub mod clear_refs;
pub mod descriptors;
pub mod maps;
pub mod process;
pub mod settings;
pub mod sys;
pub mod system;

use crate::arch::lock::SpinLock;
use crate::files::buffer::UserBuffer;
use crate::files::tree::{Jump, Listing, Node};
use crate::files::{DIRECTORY, File, LINK, REGULAR, Stat};
use crate::process as processes;
use crate::sched::current;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;

/// `d_type` of a directory, a link, a file.
const FOLDER: u8 = (DIRECTORY >> 12) as u8;
const LINKED: u8 = (LINK >> 12) as u8;
const PLAIN: u8 = (REGULAR >> 12) as u8;

type Make = Arc<dyn Fn() -> Result<Vec<u8>, Errno> + Send + Sync>;
type Take = Arc<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// An open file of text. The text is made when its beginning is read.
struct Text {
    make: Make,
    take: Option<Take>,
    text: SpinLock<Option<Arc<Vec<u8>>>>,
}

/// A file of text.
pub fn text(make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static) -> Arc<Node> {
    file(0o444, Arc::new(make), None)
}

/// A file of text that takes what is written to it.
pub fn setting(
    make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
    take: impl Fn(&[u8]) -> Result<(), Errno> + Send + Sync + 'static,
) -> Arc<Node> {
    file(0o644, Arc::new(make), Some(Arc::new(take)))
}

fn file(mode: u32, make: Make, take: Option<Take>) -> Arc<Node> {
    let maker = move || {
        let (make, take) = (make.clone(), take.clone());
        Ok(Arc::new(Text { make, take, text: SpinLock::new(None) }) as Arc<dyn File>)
    };
    Node::made(mode, Box::new(maker))
}

impl Text {
    fn text(&self, from_start: bool) -> Result<Arc<Vec<u8>>, Errno> {
        let kept = self.text.lock().clone();
        match kept {
            Some(text) if !from_start => Ok(text),
            _ => {
                let text = Arc::new((self.make)()?);
                let before = self.text.lock().replace(text.clone());
                drop(before);
                Ok(text)
            }
        }
    }
}

impl File for Text {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let text = self.text(at == 0)?;
        match text.get(at as usize..) {
            Some(rest) if !rest.is_empty() => to.put(rest),
            _ => Ok(0),
        }
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let take = self.take.as_ref().ok_or(Errno::EACCES)?;
        let mut bytes = [0; 256];
        let taken = from.get(&mut bytes)?;
        take(&bytes[..taken])?;
        Ok(taken)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 1, mode: REGULAR | 0o444, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }
}

/// The number that a text begins with.
///
/// # Errors
///
/// EINVAL.
pub fn number(text: &[u8]) -> Result<i64, Errno> {
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    text.trim_matches(|c: char| c.is_whitespace() || c == '\0').parse().map_err(|_| Errno::EINVAL)
}

/// A link whose text is made when it is read, and leads where that says.
struct Pointer(fn() -> String);

impl Jump for Pointer {
    fn text(&self) -> Result<Vec<u8>, Errno> {
        Ok((self.0)().into_bytes())
    }

    fn node(&self) -> Result<Arc<Node>, Errno> {
        crate::files::tree::lookup(&crate::files::tree::root(), &[b"/proc/", &*self.text()?].concat(), true)
    }
}

/// /proc.
struct Root {
    sys: Arc<Node>,
}

pub fn root() -> Arc<Node> {
    Node::listing(Box::new(Root { sys: settings::root() }))
}

fn own_pid() -> String {
    alloc::format!("{}", current().process().pid)
}

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

    fn names(&self) -> Vec<(Vec<u8>, u8)> {
        let mut names = Vec::new();
        for name in ["self", "thread-self", "mounts"] {
            names.push((name.into(), LINKED));
        }
        for name in ["sys", "sysvipc"] {
            names.push((name.into(), FOLDER));
        }
        names.push((b"config.gz".into(), PLAIN));
        names.extend(system::FILES.iter().map(|(name, _)| ((*name).into(), PLAIN)));
        names.extend(processes::pids().iter().map(|pid| (alloc::format!("{pid}").into_bytes(), FOLDER)));
        names
    }
}

/// /proc/sysvipc.
struct Ipc;

impl Listing for Ipc {
    fn child(&self, name: &[u8]) -> Result<Arc<Node>, Errno> {
        match name {
            b"shm" => Ok(text(|| {
                let mut out = Vec::new();
                crate::process::segments::write_report(&mut out);
                Ok(out)
            })),
            b"sem" | b"msg" => Ok(text(|| Ok(Vec::new()))),
            _ => Err(Errno::ENOENT),
        }
    }

    fn names(&self) -> Vec<(Vec<u8>, u8)> {
        ["shm", "sem", "msg"].map(|name| (name.into(), PLAIN)).into()
    }
}
