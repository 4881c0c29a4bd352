//! Adds the names of functions to the addresses in the text of a panic, from the symbols of the kernel's
//! image. `qemu.rs` calls [`explain`] before it returns a panic. The tests whose names begin with `end-` in
//! `kernel/tests/tests.toml` expect such names.

use std::{fs, path::Path};

use elf::{ElfBytes, abi, endian::LittleEndian};

/// Start of the kernel's own code.
const KERNEL: u64 = 0xffff_ffff_8000_0000;

/// Appends to each line of a text the names of the functions that contain the addresses in the line. An
/// address in no known function is skipped.
#[must_use]
pub fn explain(text: &str, image: &Path) -> String {
    let functions = functions(image).unwrap_or_default();
    let lines = text.lines().map(|line| {
        let names = line.split_whitespace().filter_map(address).filter_map(|at| name(&functions, at));
        names.fold(line.to_owned(), |line, name| format!("{line} <{name}>"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the address in a word of a panic's text, if the word is an address of the kernel's code.
fn address(word: &str) -> Option<u64> {
    let digits = word.strip_prefix("0x")?.trim_end_matches([',', ')', '.']);
    u64::from_str_radix(digits, 16).ok().filter(|address| *address >= KERNEL)
}

/// A function: its start, its end, and its name.
type Function = (u64, u64, String);

/// Returns the name of the function that contains an address, and the offset in the function.
fn name(functions: &[Function], at: u64) -> Option<String> {
    let (start, _, name) = functions.iter().find(|(start, end, _)| (*start..*end).contains(&at))?;
    Some(format!("{:#}+{:#x}", rustc_demangle::demangle(name), at - start))
}

/// Returns the functions of an image, or `None` if the image cannot be read.
fn functions(image: &Path) -> Option<Vec<Function>> {
    let bytes = fs::read(image).ok()?;
    let file = ElfBytes::<LittleEndian>::minimal_parse(&bytes).ok()?;
    let (symbols, names) = file.symbol_table().ok()??;
    let functions = symbols.iter().filter(|symbol| symbol.st_symtype() == abi::STT_FUNC);
    let named = functions.filter_map(|symbol| {
        let name = names.get(symbol.st_name as usize).ok()?;
        Some((symbol.st_value, symbol.st_value + symbol.st_size, name.to_owned()))
    });
    Some(named.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_address_resolves_to_its_function() {
        let functions = vec![(KERNEL, KERNEL + 16, "_ZN4core3fmt5write17h0123456789abcdefE".to_owned())];
        assert_eq!(name(&functions, KERNEL + 3).as_deref(), Some("core::fmt::write+0x3"));
        assert_eq!(name(&functions, KERNEL + 16), None);
        assert_eq!(address("0xffffffff80000010,"), Some(KERNEL + 16));
        assert_eq!(address("0x10"), None);
    }

    #[test]
    fn text_is_unchanged_without_an_image() {
        assert_eq!(
            explain("at 0xffffffff80000010\nmore", Path::new("/no/such")),
            "at 0xffffffff80000010\nmore"
        );
    }
}
