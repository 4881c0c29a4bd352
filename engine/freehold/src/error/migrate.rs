//! Why a page stays in its frame.

freehold_sync::error_enum! {
    /// Why a page stayed where it was.
    #[non_exhaustive]
    pub enum MigrateError {
        /// The frame holds no page of a program or file, or the page is changing.
        NoPage,
        /// The page is in use outside of page tables and caches.
        Busy,
        /// There is no frame to move the page to.
        OutOfMemory,
    }
}
