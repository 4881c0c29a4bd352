//! Messages of errors: every variant of every error of the engine's crates prints a sentence that differs
//! from the sentences of the other variants. A test searches the sources of the crates for types of errors
//! and fails if `all` does not list one of them.
//!
//! An error type that has the constant `ALL` is one more name in `listed!`. Any other error type belongs in
//! `named!` with all its variants; no test detects a variant that is missing there.

use freehold::{error::*, fault::FaultError, fault::SegvCode, file::*, rmap::*, swap::*};
use freehold_pagetable::{FaultCode, Level, OutOfTables, TableError, WalkFault};
use freehold_range::ClaimError;
use freehold_sync::{Interrupted, Killed, ReadFail};
use freehold_vmspace::{
    ListenError, MapError, NoHugePages, NoMemory, TakeError,
    frame::{NotMapped, ShareError},
};
use std::{collections::BTreeSet, error::Error, path::Path};

/// Returns the message of an error and its Debug form.
fn texts(error: &(impl Error + ?Sized)) -> (String, String) {
    (error.to_string(), format!("{error:?}"))
}

/// Lists the texts of types that enumerate their variants, with the name of each type.
macro_rules! listed {
    ($($name:ident)*) => {
        [$((stringify!($name), $name::ALL.iter().map(|error| texts(error)).collect::<Vec<_>>()),)*]
    };
}

/// Lists the texts of values that are named one by one, with the name of each type.
macro_rules! named {
    ($($name:ident: [$($value:expr),* $(,)?],)*) => { [$((stringify!($name), vec![$(texts(&$value)),*]),)*] };
}

/// Names of error types, each with the message and the Debug form of its variants.
type Texts = Vec<(&'static str, Vec<(String, String)>)>;

fn all() -> Texts {
    let mut all = Texts::new();
    all.extend(listed! {
        AccessError ArgumentsError BrkError EngineError FillError ForkError HeapError HookFault MadviseError MapError
        MbindError MdweError MergeError MigrateError MincoreError MlockError MmapError MprotectError
        MremapError MsealError MsyncError MunmapError NotMapped OfflineError PageError PinError PkeyError
        PopulateError ProbeError QueryError ReadFail ClaimError RemapFilePagesError SealError ShmatError
        ShmdtError SoftDirtyError SpaceError ListenError StackMoveError SyncError UffdError UffdReadError UffdRegisterError
        ShareError WriteRefused SwapOnError SwapOffError SwapReadError NoSlot DuplicateError
    });
    let segv = |code| FaultError::Segv { addr: 0x1000, code };
    all.extend(named! {
        Errno: [Errno::EPERM, Errno::ENOMEM, Errno::EHWPOISON, Errno(4095)],
        FaultError: [
            segv(SegvCode::Maperr), segv(SegvCode::Accerr), segv(SegvCode::Pkuerr(3)),
            FaultError::Bus { addr: 0x1000 }, FaultError::MemoryFailed { addr: 0x1000 },
            FaultError::OutOfMemory, FaultError::Killed, FaultError::Interrupted,
        ],
        Interrupted: [Interrupted],
        IoError: [IoError],
        Killed: [Killed],
        NoHugePages: [NoHugePages],
        NoMemory: [NoMemory],
        TakeError: [TakeError::NoHugePage, TakeError::Refused, TakeError::Returning(3)],
        OutOfTables: [OutOfTables],
        TableError: [
            TableError::OutOfTables, TableError::Huge(Level::Pmd), TableError::Marker(Level::Pte),
        ],
        WalkFault: [WalkFault::Page(FaultCode::PRESENT), WalkFault::NonCanonical],
    });
    all
}

#[test]
fn every_error_prints_a_sentence_of_its_own() {
    for (name, texts) in all() {
        let messages: BTreeSet<_> = texts.iter().map(|(message, _)| message).collect();
        assert_eq!(messages.len(), texts.len(), "two variants of {name} print the same");
        for (message, debug) in &texts {
            assert!(message.contains(' ') && message != debug, "{name}: {message:?}");
            assert!(
                !message.ends_with(['.', ' ']) && !message.contains(['\n', '`', '[']),
                "{name}: {message:?}"
            );
            let [first, second] = [0, 1].map(|n| message.chars().nth(n).unwrap());
            assert!(first.is_lowercase() || second.is_uppercase() || second == '_', "{name}: {message:?}");
        }
    }
    let said = |error: &dyn Error| error.to_string();
    assert_eq!(
        said(&MunmapError::TooManyVmas),
        "the limit on VMAs would be exceeded by splitting one in two"
    );
    assert_eq!(said(&Errno::ENOMEM), "out of memory, a limit, or a hole in the range (errno 12)");
    let fault = FaultError::Segv { addr: 0x1000, code: SegvCode::Maperr };
    assert_eq!(said(&fault), "segmentation fault at 0x1000: nothing is mapped there");
}

/// Returns the names of the errors that the sources of a crate define.
fn defined(source: &str) -> Vec<String> {
    let word = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string();
    let after = |text: &str, what: &str| text.split_once(what).map(|(_, rest)| word(rest));
    let mut found = Vec::new();
    for (n, line) in source.lines().enumerate() {
        found.extend(after(line, "impl core::error::Error for "));
        let below = || source.lines().skip(n + 1).map(str::trim_start);
        if line.ends_with("error_enum! {") && !line.contains("//") {
            found.extend(below().find_map(|line| after(line, "enum ")));
        } else if line.ends_with("_error! {") && !line.contains("macro_rules") {
            found.extend(below().find(|line| !line.starts_with(['/', '#'])).map(word));
        }
    }
    found.retain(|name| !name.is_empty() && name != "Wrong");
    found
}

#[test]
fn every_error_of_the_engine_is_covered() {
    let mut sources = String::new();
    for name in ["freehold", "freehold-vmspace", "freehold-pagetable", "freehold-range", "freehold-sync"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).join("src");
        sources.push_str(&text_below(&folder));
    }
    let defined: BTreeSet<_> = defined(&sources).into_iter().collect();
    let looked_at: BTreeSet<_> = all().iter().map(|(name, _)| (*name).to_string()).collect();
    assert_eq!(defined, looked_at);
}

fn text_below(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&text_below(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
    text
}
