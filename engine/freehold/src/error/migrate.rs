//! The error of a move of a page to another frame. `rmap/migrate.rs` and `file/change/exchange.rs` return it.
//! No system call reports this error, so it has no errno: `rmap/failure.rs` and `call/madvise/failure.rs`
//! convert it, and a new variant needs an arm there.

freehold_sync::error_enum! {
    /// Reason why a page was not moved to another frame.
    #[non_exhaustive]
    pub enum MigrateError {
        /// The frame holds no page of a program or file, or the page is changing.
        NoPage,
        /// The page is in use outside of page tables and caches.
        Busy,
        /// There is no free frame to move the page to.
        OutOfMemory,
    }
}
