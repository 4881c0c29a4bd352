//! Tests the layouts of trace events (`format.rs`): parsing of descriptions, and decoding of fields.
//!
//! A test parses a description in the form of a file `format` of tracefs, and decodes bytes with the result.
//! The description is that of a real event ([`FAULT`]), or is built from a list of fields ([`lines`]).

use super::*;

const FAULT: &str = "\
name: page_fault_user
ID: 190
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long address;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long ip;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long error_code;\toffset:24;\tsize:8;\tsigned:0;

print fmt: \"address=%ps ip=%ps error_code=0x%lx\", (void *)REC->address, (void *)REC->ip, REC->error_code
";

/// Returns a description with these fields: declaration, offset, size, and true for a signed number.
fn lines(fields: &[(&str, usize, usize, bool)]) -> String {
    let mut text = "ID: 7\n".to_owned();
    for (declared, offset, size, signed) in fields {
        let signed = u8::from(*signed);
        text += &format!("\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n");
    }
    text
}

#[test]
fn fault_is_decoded_by_the_kernels_layout() {
    let (id, layout) = Layout::parse("page_fault_user", FAULT).unwrap();
    assert_eq!(id, 190);
    let mut data = [0; 32];
    data[8..16].copy_from_slice(&0x7fff_1234_u64.to_le_bytes());
    data[24] = 6;
    assert_eq!(layout.decode(&data), Some(RawKind::Fault { address: 0x7fff_1234, code: 6 }));
    assert_eq!(layout.decode(&data[..31]), None, "a truncated event is not decoded");
}

#[test]
fn arguments_of_a_call_follow_its_number() {
    let text = lines(&[
        ("int common_pid", 4, 4, true),
        ("int __syscall_nr", 8, 4, true),
        ("unsigned long addr", 16, 8, false),
        ("size_t len", 24, 8, false),
        ("char __data_loc[] extra", 32, 4, false),
    ]);
    let (_, layout) = Layout::parse("sys_enter_munmap", &text).unwrap();
    let mut data = [0; 40];
    data[16] = 0x10;
    data[24] = 0x20;
    assert_eq!(layout.decode(&data), Some(RawKind::Enter(CallName::Munmap, [0x10, 0x20, 0, 0, 0, 0])));
}

#[test]
fn narrow_signed_fields_keep_their_sign() {
    let text = lines(&[("int sig", 8, 4, true), ("int code", 12, 4, true)]);
    let (_, layout) = Layout::parse("signal_generate", &text).unwrap();
    let mut data = [0; 16];
    data[8] = 11;
    data[12..].copy_from_slice(&(-6_i32).to_le_bytes());
    assert_eq!(layout.decode(&data), Some(RawKind::Signal { signal: 11, code: -6 }));
}

#[test]
fn fields_of_newer_kernels_may_be_missing() {
    let lock = [("struct mm_struct * mm", 8, 8, false), ("bool write", 16, 1, false)];
    let (_, layout) = Layout::parse("mmap_lock_acquire_returned", &lines(&lock)).unwrap();
    let taken = RawKind::Lock { step: LockStep::Taken(true), space: 5, write: true };
    let mut data = [0; 17];
    (data[8], data[16]) = (5, 1);
    assert_eq!(layout.decode(&data), Some(taken));
    let (_, layout) = Layout::parse("sched_process_exit", &lines(&[("pid_t pid", 8, 4, true)])).unwrap();
    assert_eq!(layout.decode(&[0; 16]), Some(RawKind::Exit { last: None }));
}

#[test]
fn unusable_formats_are_refused() {
    for (event, text, why) in [
        ("sched_switch", "ID: 1\n", "not a recorded event"),
        ("page_fault_user", "nonsense", "no number"),
        ("page_fault_user", "ID: 4\n", "no field address"),
        ("sys_enter_munmap", &lines(&[("int __syscall_nr", 8, 4, true)]), "0 arguments"),
    ] {
        let error = Layout::parse(event, text).unwrap_err().to_string();
        assert!(error.contains(why), "{event}: {error}");
    }
}
