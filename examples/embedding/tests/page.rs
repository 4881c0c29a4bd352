//! Test of the example's page: the program prints its text.

use std::process::Command;

#[test]
fn program_prints_the_text_of_its_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_freehold-example-embedding")).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let page = include_str!("../README.md");
    let shown = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(Some(printed.as_str()), shown);
    assert!(output.status.success());
}
