//! Tests of the static library, with programs in C in the folder `c`.
//!
//! The programs use the machine of `examples/c`. Without a C compiler, the tests print the reason and do
//! nothing.

use std::io::Write;
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Builds the library. Returns its path, or `None` if there is no C compiler.
fn library(arguments: &[&str]) -> Option<String> {
    if Command::new("cc").arg("--version").output().is_err() {
        // Not captured by the harness.
        let _ = writeln!(std::io::stderr(), "== left out: programs in C, because there is no C compiler");
        return None;
    }
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["xtask", "c-library"]).args(arguments).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

/// Compiles a program of the folder `c`, with these arguments before the library, and runs it.
fn run(name: &str, library: &str, arguments: &[&str]) -> Output {
    let program = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        "engine/freehold-c/include",
        "-I",
        "examples/c",
    ]);
    cc.arg(format!("engine/freehold-c/tests/c/{name}.c")).args(arguments).args([library, "-o", &program]);
    let compiled = cc.current_dir(ROOT).output().unwrap();
    assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
    Command::new(program).output().unwrap()
}

#[track_caller]
fn assert_prints(output: &Output, text: &str) {
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, text, "{} {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
}

#[test]
fn calls_without_heap_return_enomem_and_leak_nothing() {
    let Some(library) = library(&[]) else { return };
    assert_prints(&run("failures", &library, &["-pthread"]), "0 frames and 0 bytes leaked\n");
}

#[test]
fn panic_calls_the_function_of_the_kernel() {
    let Some(library) = library(&[]) else { return };
    let output = run("panic", &library, &["-pthread", "examples/c/board.c"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.starts_with("panic: panicked at ") && message.contains("a handle is not null"),
        "{message}"
    );
    assert!(!output.status.success());
}

#[test]
fn program_needs_no_c_library() {
    let Some(library) = library(&[]) else { return };
    let options = ["-ffreestanding", "-fno-builtin", "-fno-stack-protector", "-nostdlib", "-static"];
    assert_prints(&run("freestanding", &library, &options), "0 frames leaked\n");
}

#[test]
fn mandatory_functions_are_found_by_the_linker() {
    // The other variant of the library takes as long to build as the first one.
    if std::env::var("FREEHOLD_EFFORT").is_ok_and(|effort| effort == "quick") {
        return;
    }
    let Some(library) = library(&["--link-time"]) else { return };
    assert_prints(&run("link_time", &library, &["-pthread"]), "0 frames and 0 bytes leaked\n");
}
