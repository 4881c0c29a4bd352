//! Any bytes are a recording, a text of strace, or refused with an error that says where, in part or as a
//! whole; nothing panics or fills the memory.
//!
//! Run as `engine.rs` says; the files in `tools/freehold-trace/tests/data` are a good beginning for its
//! corpus.
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
        // Each line that cannot be read is named.
        let unread = recording.unread();
        assert!(unread.first().len() as u64 <= unread.count());
        assert!(unread.first().iter().all(|error| error.to_string().starts_with("x:")));
        Ok(())
    }) else {
        return;
    };
    assert!(error.to_string().starts_with('x'), "{error}");
});
