//! Finds functions of a linked image that use the red zone: memory below the stack pointer, which an
//! interrupt in the kernel overwrites.
//!
//! `kernel.rs` runs this check after each build, because tests would find a red zone only by chance.
//! `objdump` disassembles the image. The check finds accesses through `%rsp` with a negative offset, and
//! accesses through a frame pointer to memory below everything that was pushed and reserved. It does not find
//! accesses through a frame pointer with an index, or accesses in functions that reserve a computed amount. An
//! access through `%rsp` with an index counts only in a function that reserves nothing: in others, it may be the
//! access to the element before that of the index.

use std::{path::Path, process::Command};

/// A function that uses the red zone.
#[derive(Debug, PartialEq, Eq)]
pub struct Use {
    /// The function's name.
    pub function: String,
    /// The instruction that uses the red zone.
    pub instruction: String,
}

/// Checks an image.
///
/// # Errors
///
/// Fails with the functions that use the red zone, or with the reason why the image could not be checked.
pub fn check(image: &Path) -> Result<(), String> {
    let objdump = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(image).output();
    let listing =
        objdump.map_err(|error| format!("cannot start objdump: {error} (apt-get install binutils)"))?;
    if !listing.status.success() {
        return Err(format!("objdump: {}", String::from_utf8_lossy(&listing.stderr).trim()));
    }
    let (functions, found) = uses(&String::from_utf8_lossy(&listing.stdout));
    if functions == 0 {
        return Err(format!("objdump found no code in {}", image.display()));
    }
    if found.is_empty() {
        return Ok(());
    }
    let lines = found.iter().map(|it| format!("\n  {}: {}", it.function, it.instruction));
    Err(format!(
        "{} of {functions} functions of the kernel use the red zone:{}",
        found.len(),
        lines.collect::<String>()
    ))
}

/// Returns the number of functions in a listing, and the functions that use the red zone.
fn uses(listing: &str) -> (usize, Vec<Use>) {
    let mut functions = 0;
    let mut found = Vec::new();
    let mut name = "";
    let mut state = Frame::default();
    for line in listing.lines() {
        if let Some(next) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
            found.extend(state.ended(name));
            (functions, name, state) = (functions + 1, next.1, Frame::default());
        } else if let Some((_, instruction)) = line.split_once(":\t") {
            state.see(instruction.trim());
        }
    }
    found.extend(state.ended(name));
    (functions, found)
}

/// The known state of one function's frame.
#[derive(Default)]
struct Frame {
    /// Bytes pushed and reserved since the frame pointer was set.
    reserved: Option<u64>,
    /// The largest distance of an access below the frame pointer, in bytes.
    lowest: u64,
    /// The instruction of that access.
    by_frame: Option<String>,
    /// True if a computed amount is reserved.
    computed: bool,
    /// True if a constant amount is reserved by the stack pointer.
    reserves: bool,
    /// The first instruction that accesses memory below the stack pointer.
    below: Option<String>,
}

impl Frame {
    /// Takes the next instruction of the function into account.
    fn see(&mut self, instruction: &str) {
        let (verb, operands) = instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
        let operands = operands.trim_start();
        match (verb, self.reserved) {
            ("mov", _) if operands == "%rsp,%rbp" => self.reserved = Some(0),
            (verb, Some(bytes)) if verb.starts_with("push") => self.reserved = Some(bytes + 8),
            ("sub", Some(bytes)) => {
                let more = operands.strip_prefix("$0x").and_then(|rest| rest.strip_suffix(",%rsp"));
                let more = more.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                self.reserved = Some(bytes + more.unwrap_or(0));
            }
            _ => {}
        }
        self.computed |= match verb {
            "and" => operands.starts_with("$0x") && operands.ends_with(",%rsp"),
            "sub" => operands.starts_with('%') && operands.ends_with(",%rsp"),
            "lea" => operands.ends_with(",%rsp") && !operands.contains("(%rbp)"),
            _ => false,
        };
        self.reserves |= verb == "sub" && operands.starts_with("$0x") && operands.ends_with(",%rsp");
        // These instructions compute an address without an access.
        if verb.starts_with("lea") || verb.starts_with("nop") {
            return;
        }
        let register = if self.reserves { "(%rsp)" } else { "(%rsp" };
        if offset_before(operands, register).is_some() {
            self.below.get_or_insert_with(|| instruction.into());
        }
        if let (Some(_), Some(offset)) = (self.reserved, offset_before(operands, "(%rbp)"))
            && offset > self.lowest
        {
            (self.lowest, self.by_frame) = (offset, Some(instruction.into()));
        }
    }

    /// Returns the use of the red zone that was found in the function.
    fn ended(&mut self, function: &str) -> Option<Use> {
        let by_frame = self
            .by_frame
            .take()
            .filter(|_| !self.computed && self.reserved.is_some_and(|reserved| self.lowest > reserved));
        let instruction = self.below.take().or(by_frame)?;
        Some(Use { function: function.into(), instruction })
    }
}

/// Returns the absolute value of the negative offset directly before `register`, such as 8 in `-0x8(%rsp)`.
fn offset_before(operands: &str, register: &str) -> Option<u64> {
    let front = &operands[..operands.find(register)?];
    let digits = front.rsplit_once("-0x")?.1;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lines: &[&str]) -> Option<String> {
        let code: String = lines.iter().map(|line| format!("  ffffffff80000000:\t{line}\n")).collect();
        let (functions, found) = uses(&format!("ffffffff80000000 <f>:\n{code}"));
        assert_eq!(functions, 1);
        found.into_iter().next().map(|it| it.instruction)
    }

    #[test]
    fn access_below_the_stack_pointer_is_found() {
        let bad = "mov    %rax,-0x8(%rsp)";
        assert_eq!(found(&["sub    $0x8,%rsp", bad, "ret"]).as_deref(), Some(bad));
        let indexed = "movaps -0x10(%rsp,%rax,8),%xmm0";
        assert_eq!(found(&[indexed]).as_deref(), Some(indexed));
        assert_eq!(found(&["sub    $0x48,%rsp", indexed]), None);
        assert_eq!(found(&["mov    %rax,0x8(%rsp)", "lea    -0x8(%rsp),%rax", "mov    (%rsp),%rax"]), None);
    }

    #[test]
    fn access_below_the_reserved_frame_is_found() {
        let frame = ["push   %rbp", "mov    %rsp,%rbp", "push   %rbx", "sub    $0x10,%rsp"];
        let store = |offset: &str| format!("mov    %rax,-0x{offset}(%rbp)");
        let with = |last: &str| found(&[&frame[..], &[last]].concat());
        assert_eq!(with(&store("18")), None);
        assert_eq!(with(&store("20")), Some(store("20")));
        assert_eq!(found(&[frame[0], frame[1], "and    $0xffffffffffffffe0,%rsp", &store("20")]), None);
        // Without a frame pointer, `%rbp` is an ordinary register.
        assert_eq!(found(&[&store("20")]), None);
    }

    /// `objdump` exists on every machine that links programs, and ordinary programs use the red zone.
    #[test]
    fn ordinary_program_uses_the_red_zone() {
        let itself = std::env::current_exe().expect("a test has an executable");
        let why = check(&itself).expect_err("compiled with a red zone");
        assert!(why.contains("use the red zone"), "{why}");
    }
}
