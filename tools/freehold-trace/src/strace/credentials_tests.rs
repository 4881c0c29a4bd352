//! Tests which processes may lock memory without limit after the calls in strace output (`credentials.rs`).
//!
//! A test begins a process with a line `# limits`. The end of the line says if the process has CAP_IPC_LOCK
//! (`c`) and which user the process has (`u0` is root). The test compares the capsets that the reader reports
//! for the calls of the process.

use super::super::tests::parse;

/// Checks the capsets that are reported for `calls`. `head` is the end of the first line.
#[track_caller]
fn assert_may_lock(head: &str, calls: &[&str], expected: &[&str]) {
    let mut text = format!("# limits 1 2 3 4 5{head}\n");
    for (index, call) in calls.iter().enumerate() {
        text += &format!("5 1.{index} {call}\n");
    }
    let (events, reader) = parse(&text).unwrap();
    let mut writer = crate::TraceWriter::new(Vec::new(), "t").unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    let written = String::from_utf8(writer.finish().unwrap()).unwrap();
    let told: Vec<&str> =
        written.lines().filter_map(|line| line.split_once(" capset ").map(|(_, to)| to)).collect();
    assert_eq!((told.as_slice(), reader.unread().count()), (expected, 0), "{calls:?}");
}

#[test]
fn process_that_gives_up_root_loses_cap_ipc_lock() {
    const HAS: &str = "4000 = 0";
    const LACKS: &str = "0 = 0";
    const OWN: &str = "unshare(CLONE_NEWNS|CLONE_NEWUSER) = 0";
    const RAISED: &str = "capset({pid=0}, {effective=1<<CAP_IPC_LOCK, permitted=0, inheritable=0}) = 0";
    const NO_FIXUP: &str = "prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) = 0";
    assert_may_lock(" c u0", &["setuid(1000) = 0"], &[LACKS]);
    assert_may_lock(" c u0", &["setuid(1000) = -1 EAGAIN (Resource temporarily unavailable)"], &[]);
    assert_may_lock(" c u0", &["setresuid(-1, 1000, 0) = 0", "setreuid(-1, 0) = 0"], &[LACKS, HAS]);
    assert_may_lock(" c u0", &["setresuid(1000, -1, 1000) = 0"], &[]);
    // The process is not root at first, or its user is unknown.
    assert_may_lock(" c u7", &["setuid(1000) = 0"], &[]);
    assert_may_lock(" c", &["setuid(1000) = 0", "setuid(0) = 0", "setuid(1) = 0"], &[HAS, LACKS]);
    assert_may_lock(" c u0", &[NO_FIXUP, "setuid(1000) = 0"], &[]);
    assert_may_lock(" c u0", &["prctl(PR_SET_SECUREBITS, 0) = 0", "setuid(1000) = 0"], &[LACKS]);
    // A program may run as another user than its caller.
    let program = "execve(\"/bin/t\", [\"t\"], NULL) = 0";
    assert_may_lock(" c u0", &["setuid(1000) = 0", program, "setuid(1) = 0"], &[LACKS, HAS]);
    assert_may_lock(" c u0", &[program, "setuid(1) = 0"], &[LACKS]);
    assert_may_lock(" c u0", &[OWN, "setuid(0) = 0", RAISED, program], &[LACKS, LACKS]);
    assert_may_lock(" c u0", &["unshare(CLONE_FS) = 0", RAISED], &[HAS]);
    // If a call has two lines, its arguments are not examined, and the process may have the capability.
    assert_may_lock(" c u0", &["setuid(1 <unfinished ...>", "<... setuid resumed>) = 0"], &[HAS]);
}

/// In another user namespace no capability counts, even if the process sets it there.
#[test]
fn process_in_another_user_namespace_lacks_cap_ipc_lock() {
    const HAS: &str = "4000 = 0";
    const LACKS: &str = "0 = 0";
    const RAISED: &str = "capset({pid=0}, {effective=1<<CAP_IPC_LOCK, permitted=0, inheritable=0}) = 0";
    for by in
        ["5<user:[4026532177]>, CLONE_NEWUSER", "5<user:[4026532177]>, 0", "5, CLONE_NEWNS|CLONE_NEWUSER"]
    {
        assert_may_lock(" c u0", &[&format!("setns({by}) = 0"), RAISED, "setuid(0) = 0"], &[LACKS, LACKS]);
        assert_may_lock(
            " c u0",
            &[&format!("setns({by}) = -1 EPERM (Operation not permitted)"), RAISED],
            &[HAS],
        );
    }
    for by in ["5<mnt:[4026531841]>, CLONE_NEWNS", "5<mnt:[4026531841]>, 0", "5, CLONE_NEWNET"] {
        assert_may_lock(" c u0", &[&format!("setns({by}) = 0"), RAISED], &[HAS]);
    }
    // strace does not show the kind of the namespace, or the call has two lines.
    assert_may_lock(" u0", &["setns(5, 0) = 0"], &[HAS]);
    assert_may_lock(" u0", &["setns(5, 0 <unfinished ...>", "<... setns resumed>) = 0"], &[HAS]);
}
