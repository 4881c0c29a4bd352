//! Test of the examples: the commands of the page run, and print what the page shows.
//!
//! The commands run a second time with AddressSanitizer. Without a C compiler, or without its sanitizer, the
//! test prints the reason and leaves the commands out.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs commands of a shell in the folder of the repository, and returns what they print.
fn run(commands: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = Command::new("sh").args(["-e", "-c", commands]).current_dir(root).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{commands}{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns true if the C compiler can link a program with this option.
fn can_compile(option: &str) -> bool {
    let mut cc = Command::new("cc");
    cc.args(["-x", "c", option, "-o", "/dev/null", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = cc.spawn() else { return false };
    // A compiler that refuses the option may end before it reads the program.
    let _ = child.stdin.take().map(|mut program| program.write_all(b"int main(void) { return 0; }"));
    child.wait().is_ok_and(|status| status.success())
}

/// Returns the commands of the page, each with the text that the page shows after it.
fn commands() -> Vec<(&'static str, &'static str)> {
    let block = |rest: &'static str| rest.split("```").next().unwrap();
    let after = |part: &'static str| part.split("```text\n").nth(1).map_or("", block);
    include_str!("../README.md").split("```sh\n").skip(1).map(|part| (block(part), after(part))).collect()
}

#[test]
fn commands_of_the_page_print_its_text() {
    let mut commands = commands();
    assert_eq!(commands.len(), 4);
    // The other variant of the library takes as long to build as the first one.
    if std::env::var("FREEHOLD_EFFORT").is_ok_and(|effort| effort == "quick") {
        commands.pop();
    }
    if !can_compile("-pthread") {
        // Not captured by the harness.
        let _ = writeln!(std::io::stderr(), "== left out: the examples in C, because there is no C compiler");
        return;
    }
    for (command, text) in &commands {
        assert_eq!(&run(command), text, "{command}");
    }
    if !can_compile("-fsanitize=address") {
        let _ =
            writeln!(std::io::stderr(), "== left out: AddressSanitizer, which the C compiler does not have");
        return;
    }
    for (command, text) in &commands[1..] {
        let checked = command.replace("cc ", "cc -g -fsanitize=address ");
        let checked = checked.replace("-o target/c/", "-o target/c/asan-");
        assert_eq!(&run(&checked.replace("./target/c/", "./target/c/asan-")), text, "{checked}");
    }
}
