//! Records the effect of calls that change a thread's credentials: whether the thread has CAP_IPC_LOCK in the
//! initial user namespace, which is where the kernel checks for the capability.
//!
//! No event reports the effect. At the end of these calls, a BPF program reads the credentials from the
//! kernel's own structures. The kernel describes the layout of its structures (BTF, in
//! `/sys/kernel/btf/vmlinux`). Without that description, credentials are not recorded. `pointed.rs` attaches
//! the program, whose instructions come from [`Layout::read`], and passes the values that the program has
//! read to [`in_effect`]. The tests at the end parse a small description. Another call that changes
//! credentials needs an entry in [`CALLS`], and in `freehold-trace/src/strace/credentials.rs` for strace
//! output. `credential_changes_are_recorded_as_capset` (`freehold-cli/tests/structures.rs`) records a
//! program.

use super::bpf::{END, Instruction, R, WORD, add, call, copy, load, set, skip_if_null, store};
use anyhow::Context;
use freehold_trace::operation::capability;
use std::fs;

/// Calls that can change the effective capability set.
pub const CALLS: [&str; 6] = ["setuid", "setreuid", "setresuid", "capset", "setns", "unshare"];

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Numbers of the kernel functions with which a BPF program gets the current task and copies kernel memory.
const OWN_TASK: i32 = 35;
const READ_KERNEL: i32 = 113;

/// Offsets in bytes of the relevant members of the kernel's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The credentials in a task.
    credentials: i32,
    /// The effective set in the credentials.
    effective: i32,
    /// The user namespace of the credentials.
    namespace: i32,
    /// The nesting level of the namespace.
    level: i32,
}

impl Layout {
    /// Reads the layout of the running kernel.
    ///
    /// # Errors
    ///
    /// Fails if the kernel has no description, or if the description lacks a member.
    pub fn new() -> anyhow::Result<Layout> {
        let bytes = fs::read(BTF).with_context(|| format!("cannot read {BTF}"))?;
        let member = |of: &str, name: &str| {
            offset(&bytes, of, name).with_context(|| format!("{BTF} has no member {name} of {of}"))
        };
        Ok(Layout {
            credentials: member("task_struct", "cred")?,
            effective: member("cred", "cap_effective")?,
            namespace: member("cred", "user_ns")?,
            level: member("user_namespace", "level")?,
        })
    }

    /// Returns instructions for the end of a call. They store the effective set and the nesting level of the
    /// user namespace in the words of the stack at these offsets. Register 6 must point to the event. If a
    /// read fails, register 0 is nonzero afterwards. If the call failed, the instructions end the program.
    pub fn read(&self, effective: i16, level: i16) -> Vec<Instruction> {
        let word = |to: i16, bytes: i32| {
            [copy(R[1], R[10]), add(R[1], to.into()), set(R[2], bytes), call(READ_KERNEL)]
        };
        const RETURNED: i16 = 16;
        // The program reports nothing about a failed call.
        let mut all = vec![load(WORD, R[1], R[6], RETURNED), skip_if_null(R[1], 2), set(R[0], 0), END];
        all.extend([call(OWN_TASK), copy(R[3], R[0]), add(R[3], self.credentials)]);
        all.extend(word(level, 8));
        all.extend([load(WORD, R[7], R[10], level), copy(R[3], R[7]), add(R[3], self.effective)]);
        all.extend(word(effective, 8));
        all.extend([copy(R[3], R[7]), add(R[3], self.namespace)]);
        all.extend(word(level, 8));
        all.extend([load(WORD, R[3], R[10], level), add(R[3], self.level), set(R[1], 0)]);
        all.push(store(WORD, R[10], level, R[1]));
        all.extend(word(level, 4));
        all
    }
}

/// Returns the lower half of the effective set. Removes CAP_IPC_LOCK if the user namespace has a nesting
/// level other than 0, because the kernel checks for the capability in the initial namespace.
pub fn in_effect(effective: u64, level: u64) -> u64 {
    if level == 0 {
        effective & u64::from(u32::MAX)
    } else {
        effective & u64::from(u32::MAX) & !capability::IPC_LOCK
    }
}

/// Returns the offset in bytes of the member `name` of the structure `of`, from the kernel's description.
fn offset(btf: &[u8], of: &str, name: &str) -> Option<i32> {
    const STRUCTURE: u32 = 4;
    let half = |at: usize| Some(u32::from_le_bytes(btf.get(at..at + 4)?.try_into().ok()?));
    let [header, types, len, texts] = [half(4)?, half(8)?, half(12)?, half(16)?].map(|word| word as usize);
    let is = |text: u32, name: &str| {
        let at = header + texts + text as usize;
        btf.get(at..at + name.len()) == Some(name.as_bytes()) && btf.get(at + name.len()) == Some(&0)
    };
    let (mut at, end) = (header + types, header + types + len);
    while at < end {
        let info = half(at + 4)?;
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let own = at + 12;
        if kind == STRUCTURE && is(half(at)?, of) {
            // If bit 31 of `info` is set, the top byte of a member's offset is the size of a bit field.
            let mask = if info >> 31 != 0 { 0xff_ffff } else { u32::MAX };
            let members = (0..count).map(|number| own + 12 * number);
            let mut found = members.filter(|member| half(*member).is_some_and(|text| is(text, name)));
            if let Some(bits) = found.next().and_then(|member| half(member + 8)) {
                return i32::try_from((bits & mask) / 8).ok();
            }
        }
        at = own + bytes_behind(kind, count)?;
    }
    None
}

/// Returns the number of bytes that follow the head of a type's description.
fn bytes_behind(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | 17 => 4,
        3 => 12,
        4 | 5 | 15 | 19 => 12 * count,
        6 | 13 => 8 * count,
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{in_effect, offset};

    /// The description contains an int, a structure with a bit field and an int member, and a pointer.
    #[test]
    fn offset_finds_members_of_structures() {
        let texts = b"\0int\0cred\0usage\0cap_effective\0";
        let (int, cred, usage, effective) = (1_u32, 5_u32, 10_u32, 16_u32);
        let types = [
            [int, 1 << 24, 4].as_slice(),
            &[0x20],
            &[0, 2 << 24, 1],
            &[cred, 1 << 31 | 4 << 24 | 2, 16],
            &[usage, 1, 4 << 24],
            &[effective, 1, 64],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let head = [0x1_eb9f, 24, 0, types.len() as u32, types.len() as u32, texts.len() as u32];
        let mut btf: Vec<u8> = head.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        btf.extend(types);
        btf.extend(texts);
        assert_eq!(offset(&btf, "cred", "cap_effective"), Some(8));
        assert_eq!(offset(&btf, "cred", "usage"), Some(0));
        assert_eq!(offset(&btf, "cred", "use"), None);
        assert_eq!(offset(&btf, "int", "usage"), None);
        (0..btf.len()).for_each(|len| assert_eq!(offset(&btf[..len.min(60)], "other", "usage"), None));
    }

    #[test]
    fn another_namespace_has_no_ipc_lock_here() {
        assert_eq!(in_effect(0x1ff_ffff_ffff, 0), 0xffff_ffff);
        assert_eq!(in_effect(0x1ff_ffff_ffff, 1), 0xffff_bfff);
    }
}
