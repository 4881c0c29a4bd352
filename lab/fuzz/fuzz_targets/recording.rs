//! Checks the reader of recordings (`freehold-trace`): it reads any bytes as a recording or as strace text.
//! It may refuse a part of the bytes, or all bytes, with an error that names the line.
//!
//! The reader never panics and its memory stays bounded: users pass it files of any origin. An error that
//! does not begin with the name of the file is a finding. `engine.rs` describes how to run a target. The
//! files in `tools/freehold-trace/tests/data` are a good initial corpus. Snapshots of recordings are the
//! subject of `snapshots.rs`.
#![no_main]

use freehold_trace::Recording;
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let bytes = Box::new(Cursor::new(data.to_vec()));
    let Err(error) = Recording::read(Path::new("x"), bytes, None).and_then(|mut recording| {
        while let Some(event) = recording.next_event()? {
            assert!(event.line > 0);
        }
        // Each unreadable line is reported with its position.
        let unread = recording.unread();
        assert!(unread.first().len() as u64 <= unread.count());
        assert!(unread.first().iter().all(|error| error.to_string().starts_with("x:")));
        Ok(())
    }) else {
        return;
    };
    assert!(error.to_string().starts_with('x'), "{error}");
});
