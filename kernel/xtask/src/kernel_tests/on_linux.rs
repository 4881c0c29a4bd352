//! Runs a test on this machine's Linux, with a temporary folder as the root of its file system. For a test
//! with `same_as_linux`, the run gives the expected result. With `--linux`, the run is the test itself.
//!
//! The program runs in namespaces of its own (`unshare`), so it sees no other process and leaves no mount
//! behind. It has the same files, arguments and environment as on the kernel, but the host's devices and
//! number of CPUs. Output and errors share one pipe, because the kernel's console has one stream.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::verdict::Seen;
use crate::boot::{
    pack::Program,
    scratch::Scratch,
    tree::{Content, Node, Tree},
};

/// Shell commands that make a folder the root of the file system and run a program there. The first argument
/// is the folder; the others are the program and its arguments.
const ENTER: &str = "root=$1; shift; mount -t proc proc \"$root/proc\" && mount --rbind /dev \"$root/dev\" \
     && mount -t tmpfs tmpfs \"$root/tmp\" && exec chroot \"$root\" \"$@\"";

/// Runs the first program of a tree.
///
/// # Errors
///
/// Fails if this machine does not allow a separate root, or if the limit is exceeded.
pub fn run(program: &Program, limit: Duration) -> Result<Seen, String> {
    let folder = Scratch::new("root")?;
    unpack(&program.tree, folder.path())?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["sh", "-c", ENTER, "sh"]).arg(folder.path()).args(&program.args);
    command.env_clear().envs(&program.env).stdin(Stdio::null()).stdout(Stdio::piped());
    // Errors appear in order with the output, as on the kernel's console.
    let (reader, writer) = io::pipe().map_err(|error| error.to_string())?;
    let again = writer.try_clone().map_err(|error| error.to_string())?;
    command.stdout(writer).stderr(again);
    let mut child = command.spawn().map_err(|error| format!("cannot start unshare: {error}"))?;
    drop(command);
    let output = thread::spawn(move || io::read_to_string(reader).unwrap_or_default());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if started.elapsed() > limit {
            child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
            return Err("time limit exceeded".into());
        }
        thread::sleep(Duration::from_millis(5));
    };
    let output = output.join().unwrap_or_default();
    let status = status.code().and_then(|code| u8::try_from(code).ok()).ok_or("the program was killed")?;
    Ok(Seen { status, output, note: String::new() })
}

/// Writes a tree to a folder.
fn unpack(tree: &Tree, to: &Path) -> Result<(), String> {
    for (path, node) in tree.nodes() {
        let at = to.join(path.strip_prefix("/").unwrap_or(path));
        let mode = |mode| fs::set_permissions(&at, fs::Permissions::from_mode(mode));
        let done = match node {
            Node::Folder(bits) => fs::create_dir_all(&at).and_then(|()| mode(*bits)),
            Node::File(bits, _, Content::Bytes(bytes)) => fs::write(&at, bytes).and_then(|()| mode(*bits)),
            Node::File(bits, time, Content::Host(host)) => {
                fs::copy(host, &at).and_then(|_| mode(*bits)).and_then(|()| {
                    let time = std::time::UNIX_EPOCH + Duration::from_secs(*time);
                    fs::File::open(&at)?.set_modified(time)
                })
            }
            Node::Link(target) => symlink(target, &at),
            // Linux has its own devices.
            Node::Device(..) => Ok(()),
        };
        done.map_err(|error| format!("cannot write {}: {error}", at.display()))?;
    }
    Ok(())
}
