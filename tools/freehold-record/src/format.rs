//! Parses the files `events/*/*/format` of tracefs, which describe the layout of each trace event, and
//! decodes events.
//!
//! 1. At the start of a recording, `tracefs.rs` reads the file of each enabled event, and [`Layout::parse`]
//!    finds the offsets of the needed fields in it. The kernel may change the offsets from version to
//!    version, so no offset is a constant here.
//! 2. After the command has ended, `ring.rs` splits the pages of the ring buffer into events, and
//!    [`Layout::decode`] turns the bytes of an event into a [`RawKind`].
//!
//! This module only parses; it opens no files. Layouts do not change after the start. A new event needs a
//! line in `EVENTS` (`tracefs.rs`), an arm in `meaning`, a variant of [`RawKind`], an arm in
//! [`Layout::decode`], and a test in `format_tests.rs`.

use super::raw::{LockStep, RawKind};
use anyhow::{Context, ensure};
use freehold_trace::CallName;
use std::collections::HashMap;

/// The layout of the events of one kind in the buffer, and their meaning.
#[derive(Debug)]
pub struct Layout {
    /// The meaning of the events.
    kind: Kind,
    /// The fields that the kind needs, in the order of the list from `meaning`; `decode` finds a field by its
    /// position.
    fields: Vec<Field>,
}

/// The meanings of events. Each is decoded into the variant of [`RawKind`] with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A thread enters this system call (`sys_enter_*`).
    Enter(CallName),
    /// A thread returns from this system call (`sys_exit_*`).
    Leave(CallName),
    /// A page fault in user or kernel mode.
    Fault,
    /// A step of taking or releasing an mmap lock (`mmap_lock_*`).
    Lock(LockStep),
    /// The kernel unmaps a whole address space (`exit_mmap`).
    TornDown,
    /// A thread creates a task by clone or fork (`task_newtask`).
    NewTask,
    /// A thread starts a new program (`sched_process_exec`).
    Exec,
    /// A thread exits (`sched_process_exit`).
    Exit,
    /// The kernel generates a signal (`signal_generate`).
    Signal,
    /// A CPU sends TLB-flush interrupts to other CPUs (`tlb_flush`, filtered by its reason in `tracefs.rs`).
    Interrupt,
}

/// The place of one integer field in the bytes of an event.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// Offset in bytes from the start of the event.
    offset: usize,
    /// Size in bytes, at most 8.
    size: usize,
    /// True if the value is extended to 64 bits with its sign.
    signed: bool,
}

impl Layout {
    /// Parses a description. Returns the number by which the buffer identifies events of this kind, and
    /// their layout. `event` is the name of the event without its group, for example `page_fault_user`.
    /// `text` is the contents of its file `format`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not such a description, or if a needed field is missing.
    pub fn parse(event: &str, text: &str) -> anyhow::Result<(u16, Layout)> {
        let (kind, wanted) = meaning(event).with_context(|| format!("{event} is not a recorded event"))?;
        let id = text.lines().find_map(|line| line.strip_prefix("ID: "));
        let id = id.and_then(|id| id.trim().parse().ok()).context("no number (ID)")?;
        let all: Vec<_> = text.lines().filter_map(field).collect();
        let mut fields = Vec::new();
        if let Kind::Enter(call) = kind {
            // The arguments follow the number of the call, in order.
            let number =
                all.iter().position(|(name, _)| *name == "__syscall_nr").context("no number of a call")?;
            fields.extend(all[number + 1..].iter().take(call.arity()).map(|(_, field)| *field));
            ensure!(fields.len() == call.arity(), "{event} has {} arguments", fields.len());
        }
        for name in wanted {
            match all.iter().find(|(found, _)| found == name) {
                Some((_, field)) => fields.push(*field),
                None if kind == Kind::Exit || *name == "success" => {}
                None => anyhow::bail!("{event} has no field {name}"),
            }
        }
        Ok((id, Layout { kind, fields }))
    }

    /// Decodes the bytes of an event. Returns `None` if `data` has too few bytes.
    pub fn decode(&self, data: &[u8]) -> Option<RawKind> {
        let mut values = [0; 6];
        for (value, field) in values.iter_mut().zip(&self.fields) {
            *value = field.value(data)?;
        }
        let [first, second, third, ..] = values;
        Some(match self.kind {
            Kind::Enter(call) => RawKind::Enter(call, values),
            Kind::Leave(call) => RawKind::Leave(call, first as i64),
            Kind::Fault => RawKind::Fault { address: first, code: second },
            Kind::Lock(step) => {
                let taken = self.fields.len() < 3 || third != 0;
                let step = if let LockStep::Taken(_) = step { LockStep::Taken(taken) } else { step };
                RawKind::Lock { step, space: first, write: second != 0 }
            }
            Kind::TornDown => RawKind::TornDown,
            Kind::NewTask => RawKind::NewTask { thread: first as i32, flags: second },
            Kind::Exec => RawKind::Exec { thread: first as i32, before: second as i32 },
            Kind::Exit => RawKind::Exit { last: self.fields.first().map(|_| first != 0) },
            Kind::Signal => RawKind::Signal { signal: first as i32, code: second as i32 },
            Kind::Interrupt => RawKind::Interrupt,
        })
    }
}

/// The layouts of all recorded events, by their numbers in the buffer.
pub type Layouts = HashMap<u16, Layout>;

/// Returns the meaning of an event, and the names of the fields that it needs. Returns `None` for an event
/// that is not recorded.
fn meaning(event: &str) -> Option<(Kind, &'static [&'static str])> {
    if let Some(call) = event.strip_prefix("sys_enter_").and_then(CallName::parse) {
        return Some((Kind::Enter(call), &[]));
    }
    if let Some(call) = event.strip_prefix("sys_exit_").and_then(CallName::parse) {
        return Some((Kind::Leave(call), &["ret"]));
    }
    Some(match event {
        "page_fault_user" | "page_fault_kernel" => (Kind::Fault, &["address", "error_code"]),
        "mmap_lock_start_locking" => (Kind::Lock(LockStep::Wanted), &["mm", "write"]),
        "mmap_lock_acquire_returned" => (Kind::Lock(LockStep::Taken(true)), &["mm", "write", "success"]),
        "mmap_lock_released" => (Kind::Lock(LockStep::Released), &["mm", "write"]),
        "exit_mmap" => (Kind::TornDown, &[]),
        "task_newtask" => (Kind::NewTask, &["pid", "clone_flags"]),
        "sched_process_exec" => (Kind::Exec, &["pid", "old_pid"]),
        "sched_process_exit" => (Kind::Exit, &["group_dead"]),
        "signal_generate" => (Kind::Signal, &["sig", "code"]),
        "tlb_flush" => (Kind::Interrupt, &[]),
        _ => return None,
    })
}

/// Parses the name, offset and size of a field: `field:unsigned long addr; offset:16; size:8; signed:0;`.
fn field(line: &str) -> Option<(&str, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declared = parts.next()?.strip_prefix("field:")?;
    let name = declared.split('[').next()?.rsplit([' ', '*']).find(|word| !word.is_empty())?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
    let (offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")? == 1);
    Some((name, Field { offset, size, signed }))
}

impl Field {
    /// Returns the value of the field in the bytes of an event, extended to 64 bits. Returns `None` if `data`
    /// is too short, or if the field has more than 8 bytes.
    fn value(self, data: &[u8]) -> Option<u64> {
        let bytes = data.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut wide = [0; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let value = u64::from_le_bytes(wide);
        let unused = 64 - 8 * u32::try_from(bytes.len()).ok()?.max(1);
        Some(if self.signed { ((value << unused) as i64 >> unused) as u64 } else { value })
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
