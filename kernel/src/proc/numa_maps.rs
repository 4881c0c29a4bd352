//! The file numa_maps of /proc/PID: the policy of each VMA, and the nodes of its pages.
//!
//! The engine reports the runs of present pages; the node of each page is that of its frame. Pages may move
//! while the text is made. A program chooses the number of pages, so the loops are preemption points.
//! `maps.rs` makes the file in parts. Unlike Linux's, it shows neither mapmax nor the numbers of active
//! pages and of pages that are being written. The program `nodes.c` of the tests checks it.

use crate::memory::frames;
use crate::platform::policy::{
    BIND, INTERLEAVE, LOCAL_NODE, PREFERRED, PREFERRED_MANY, RELATIVE, STATIC, WEIGHTED, mode,
};
use crate::platform::{Machine, Space};
use crate::sched::checkpoint;
use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use core::ops::ControlFlow;
use freehold::PAGE_SIZE;
use freehold::error::Errno;
use freehold::report::maps::{MapLine, MapName};
use freehold::report::pagemap::{EntryRun, PageEntry, PageKind};
use freehold::vma::flags::VmFlags;

/// Numbers of pages of a VMA.
#[derive(Default)]
struct Counts {
    nodes: [u64; frames::MAX_NODES],
    anon: u64,
    all: u64,
}

impl Counts {
    /// Counts the present pages of a VMA, in pages of `unit` bytes.
    fn of(space: &Space, line: &MapLine<Machine>, unit: u64) -> Result<Self, Errno> {
        let (mut counts, mut at) = (Counts::default(), line.start);
        while at < line.end {
            checkpoint()?;
            let mut found: Option<EntryRun> = None;
            space.page_entries(at..line.end, |run| match run.entry {
                PageEntry::Page { kind: PageKind::Anon | PageKind::File, .. } => {
                    found = Some(run);
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            });
            let Some(run) = found else { break };
            let end = run.range.end().min(line.end);
            at = run.range.start().max(at);
            while at < end {
                checkpoint()?;
                if let Some(pfn) = space.frame_at(at) {
                    counts.all += 1;
                    counts.nodes[frames::node_of(pfn.get())] += 1;
                    let is_anon = matches!(run.entry, PageEntry::Page { kind: PageKind::Anon, .. });
                    counts.anon += u64::from(is_anon);
                }
                at += unit;
            }
        }
        Ok(counts)
    }
}

/// Returns a set of nodes as Linux prints it: "0-2,5".
fn list(set: u64) -> String {
    let mut text = String::new();
    let is_in = |node: &u32| *node < 32 && set >> node & 1 != 0;
    for first in (0..32).filter(|node| is_in(node) && (*node == 0 || !is_in(&(node - 1)))) {
        let last = (first..32).take_while(is_in).last().unwrap_or(first);
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match first == last {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

/// Returns the text of a policy.
fn policy(tag: u64) -> String {
    let name = match mode(tag) {
        PREFERRED => "prefer",
        PREFERRED_MANY => "prefer (many)",
        BIND => "bind",
        INTERLEAVE => "interleave",
        WEIGHTED => "weighted interleave",
        LOCAL_NODE => "local",
        _ => "default",
    };
    let flag = if tag & STATIC != 0 {
        "=static"
    } else if tag & RELATIVE != 0 {
        "=relative"
    } else {
        ""
    };
    match tag >> 32 {
        0 => format!("{name}{flag}"),
        nodes => format!("{name}{flag}:{}", list(nodes)),
    }
}

/// Appends the line of a VMA. `file` is the name of its file.
///
/// # Errors
///
/// Fails if a signal ends the caller.
pub fn write_line(
    out: &mut String,
    space: &Space,
    line: &MapLine<Machine>,
    file: Option<&str>,
) -> Result<(), Errno> {
    let tag = space.find_vma(line.start).map_or(0, |vma| vma.policy());
    let is_huge = line.flags.contains(VmFlags::HUGETLB);
    let unit = if is_huge { 2 << 20 } else { PAGE_SIZE };
    let counts = Counts::of(space, line, unit)?;
    let _ = write!(out, "{:08x} {}", line.start, policy(tag));
    match &line.name {
        MapName::Object(_) => {
            let _ = write!(out, " file={}", file.unwrap_or_default());
        }
        name if name.as_str() == "[heap]" => out.push_str(" heap"),
        name if name.as_str() == "[stack]" => out.push_str(" stack"),
        _ => {}
    }
    out.push_str(if is_huge { " huge" } else { "" });
    if counts.all > 0 {
        if counts.anon > 0 {
            // Anonymous pages are dirty.
            let _ = write!(out, " anon={0} dirty={0}", counts.anon);
        }
        if counts.all != counts.anon {
            let _ = write!(out, " mapped={}", counts.all);
        }
        for (node, pages) in counts.nodes.iter().enumerate().filter(|(_, pages)| **pages > 0) {
            let _ = write!(out, " N{node}={pages}");
        }
        let _ = write!(out, " kernelpagesize_kB={}", unit >> 10);
    }
    out.push('\n');
    Ok(())
}
