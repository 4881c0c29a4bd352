//! What reports show of swapped pages.
