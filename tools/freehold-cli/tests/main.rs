//! Tests of the command `freehold`, in one program: replay, help and manual pages (`command.rs`), replays in
//! limited memory (`policies.rs`), the pages in a browser (`browser.rs`), and reproduction (`reproduce.rs`). `record.rs` and `random.rs` are programs
//! of their own, because they record themselves. The other files are modules of `record.rs`. A test that runs
//! no recorder belongs in `command.rs` or in `reproduce.rs`.

mod browser;
mod command;
mod policies;
mod reproduce;
