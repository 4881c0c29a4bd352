//! Calls and results as lines of text. Addresses in and around the arena are written `A+0x3000`.
//!
//! Cases (`cases.rs`), reports of differences and the example `transcript` use this form. [`parse_op`] reads
//! what [`op`] writes: both follow the order of arguments in `parts`. A new call needs an arm in `parts` and
//! in `build`. Addresses are relative to the arena of a [`World`], so that a line means the same in worlds
//! with other arenas. A changed form needs new case files.

use std::fmt::Write as _;

use crate::op::*;
use crate::world::World;

/// Formats a number, relative to the arena if the number is near the arena.
pub fn number(w: &World, x: u64) -> String {
    let near = w.start - 16 * PAGE..=w.end + 16 * PAGE;
    match x {
        x if !near.contains(&x) => format!("{x:#x}"),
        x if x < w.start => format!("A-{:#x}", w.start - x),
        x => format!("A+{:#x}", x - w.start),
    }
}

/// Parses the output of [`number`].
fn parse_number(w: &World, s: &str) -> Option<u64> {
    let plain = |s: &str| match s.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    };
    if let Some(rest) = s.strip_prefix("A+") {
        return Some(w.start + plain(rest)?);
    }
    if let Some(rest) = s.strip_prefix("A-") {
        return Some(w.start - plain(rest)?);
    }
    plain(s)
}

/// Represents the absence of a file in the list of `parts`.
const NONE: u64 = u64::MAX;

/// Returns the name and the arguments of a call. Writing and reading use this order.
fn parts(call: &Call) -> (&'static str, Vec<(&'static str, u64)>) {
    match *call {
        Call::Mmap { addr, len, prot, flags, file, off } => {
            let file = file.map_or(NONE, u64::from);
            let args = vec![
                ("addr", addr),
                ("len", len),
                ("prot", prot),
                ("flags", flags),
                ("file", file),
                ("off", off),
            ];
            ("mmap", args)
        }
        Call::Munmap { addr, len } => ("munmap", vec![("addr", addr), ("len", len)]),
        Call::Mprotect { addr, len, prot } => {
            ("mprotect", vec![("addr", addr), ("len", len), ("prot", prot)])
        }
        Call::Mremap { old, old_len, new_len, flags, new_addr } => {
            let args = vec![
                ("old", old),
                ("len", old_len),
                ("new_len", new_len),
                ("flags", flags),
                ("new", new_addr),
            ];
            ("mremap", args)
        }
        Call::Madvise { addr, len, advice } => {
            ("madvise", vec![("addr", addr), ("len", len), ("advice", advice)])
        }
        Call::Mlock { addr, len } => ("mlock", vec![("addr", addr), ("len", len)]),
        Call::Mlock2 { addr, len, flags } => ("mlock2", vec![("addr", addr), ("len", len), ("flags", flags)]),
        Call::Munlock { addr, len } => ("munlock", vec![("addr", addr), ("len", len)]),
        Call::Mlockall { flags } => ("mlockall", vec![("flags", flags)]),
        Call::Munlockall => ("munlockall", vec![]),
        Call::Mseal { addr, len, flags } => ("mseal", vec![("addr", addr), ("len", len), ("flags", flags)]),
        Call::SetMdwe { bits } => ("set_mdwe", vec![("bits", bits)]),
        Call::SetMerge { on } => ("set_merge", vec![("on", on)]),
        Call::Brk { addr } => ("brk", vec![("addr", addr)]),
        Call::Msync { addr, len, flags } => ("msync", vec![("addr", addr), ("len", len), ("flags", flags)]),
        Call::Mincore { addr, len } => ("mincore", vec![("addr", addr), ("len", len)]),
        Call::Read { addr, len } => ("read", vec![("addr", addr), ("len", len)]),
        Call::Write { addr, value } => ("write", vec![("addr", addr), ("value", value.into())]),
        Call::Fork => ("fork", vec![]),
        Call::Exit => ("exit", vec![]),
        Call::Ftruncate { file, len } => ("ftruncate", vec![("file", file.into()), ("len", len)]),
        Call::FileWrite { file, off, len, seed } => {
            ("pwrite", vec![("file", file.into()), ("off", off), ("len", len), ("seed", seed.into())])
        }
        Call::FileRead { file, off, len } => {
            ("pread", vec![("file", file.into()), ("off", off), ("len", len)])
        }
        Call::Setrlimit { limit, pages } => ("setrlimit", vec![("limit", limit as u64), ("pages", pages)]),
    }
}

/// Returns the call's name.
pub fn name(call: &Call) -> &'static str {
    parts(call).0
}

/// Returns the call with this name and these arguments, in the order of `parts`.
fn build(name: &str, a: &[u64]) -> Option<Call> {
    let n = |i: usize| a.get(i).copied();
    Some(match name {
        "mmap" => {
            let file = n(4)?;
            let file = if file == NONE { None } else { Some(file as u8) };
            Call::Mmap { addr: n(0)?, len: n(1)?, prot: n(2)?, flags: n(3)?, file, off: n(5)? }
        }
        "munmap" => Call::Munmap { addr: n(0)?, len: n(1)? },
        "mprotect" => Call::Mprotect { addr: n(0)?, len: n(1)?, prot: n(2)? },
        "mremap" => {
            Call::Mremap { old: n(0)?, old_len: n(1)?, new_len: n(2)?, flags: n(3)?, new_addr: n(4)? }
        }
        "madvise" => Call::Madvise { addr: n(0)?, len: n(1)?, advice: n(2)? },
        "mlock" => Call::Mlock { addr: n(0)?, len: n(1)? },
        "mlock2" => Call::Mlock2 { addr: n(0)?, len: n(1)?, flags: n(2)? },
        "munlock" => Call::Munlock { addr: n(0)?, len: n(1)? },
        "mlockall" => Call::Mlockall { flags: n(0)? },
        "munlockall" => Call::Munlockall,
        "mseal" => Call::Mseal { addr: n(0)?, len: n(1)?, flags: n(2)? },
        "set_mdwe" => Call::SetMdwe { bits: n(0)? },
        "set_merge" => Call::SetMerge { on: n(0)? },
        "brk" => Call::Brk { addr: n(0)? },
        "msync" => Call::Msync { addr: n(0)?, len: n(1)?, flags: n(2)? },
        "mincore" => Call::Mincore { addr: n(0)?, len: n(1)? },
        "read" => Call::Read { addr: n(0)?, len: n(1)? },
        "write" => Call::Write { addr: n(0)?, value: n(1)? as u8 },
        "fork" => Call::Fork,
        "exit" => Call::Exit,
        "ftruncate" => Call::Ftruncate { file: n(0)? as u8, len: n(1)? },
        "pwrite" => Call::FileWrite { file: n(0)? as u8, off: n(1)?, len: n(2)?, seed: n(3)? as u8 },
        "pread" => Call::FileRead { file: n(0)? as u8, off: n(1)?, len: n(2)? },
        "setrlimit" => {
            let limit = [Limit::As, Limit::Data, Limit::Lock, Limit::Stack];
            Call::Setrlimit { limit: *limit.get(n(0)? as usize)?, pages: n(1)? }
        }
        _ => return None,
    })
}

/// Formats a call: `p0 munmap addr=A+0x1000 len=0x1000`.
pub fn op(w: &World, op: &Op) -> String {
    let (name, args) = parts(&op.call);
    let mut s = format!("p{} {name}", op.proc);
    for (key, value) in args {
        let _ = write!(
            s,
            " {key}={}",
            if key == "file" && value == NONE { "none".into() } else { number(w, value) }
        );
    }
    s
}

/// Parses the output of [`op`].
pub fn parse_op(w: &World, line: &str) -> Option<Op> {
    let mut words = line.split_whitespace();
    let proc = words.next()?.strip_prefix('p')?.parse().ok()?;
    let name = words.next()?;
    let value = |word: &str| {
        let value = word.split_once('=')?.1;
        if value == "none" { Some(NONE) } else { parse_number(w, value) }
    };
    let args: Option<Vec<u64>> = words.map(value).collect();
    Some(Op { proc, call: build(name, &args?)? })
}

/// Formats a result: `ok 0x0`, `err EINVAL`, `bytes 00 ff`, `signal SegvMapErr A+0x0`.
pub fn outcome(w: &World, o: &Outcome) -> String {
    match o {
        Outcome::Ok(x) => format!("ok {}", number(w, *x)),
        Outcome::Err(e) => match ERRNOS.iter().find(|(n, _)| n == e) {
            Some((_, name)) => format!("err {name}"),
            None => format!("err {e}"),
        },
        Outcome::Bytes(b) => b.iter().fold("bytes".to_string(), |mut s, b| {
            let _ = write!(s, " {b:02x}");
            s
        }),
        Outcome::Signal(sig) => format!("signal {:?} {}", sig.kind, number(w, sig.addr)),
        Outcome::Dead => "dead".into(),
    }
}

/// Formats a line of `maps`: `A+0x0 A+0x1000 rd,wr,mr,mw,me off=0x0 none`.
pub fn map_line(w: &World, m: &MapLine) -> String {
    let names = vmflag::NAMES.iter().enumerate().filter(|(bit, _)| m.flags >> bit & 1 != 0);
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    let file = match m.file {
        None => "none".into(),
        Some(MapFile::Inode(n)) => format!("inode{n}"),
        Some(MapFile::SharedAnon) => "shared-anon".into(),
    };
    format!("{} {} {} off={:#x} {file}", number(w, m.start), number(w, m.end), names.join(","), m.offset)
}
