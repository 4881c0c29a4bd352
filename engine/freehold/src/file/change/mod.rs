//! Changes of a file that reach the entries which map its pages.

mod drop_clean;
mod exchange;
mod revoke;
mod truncate;
mod unmap;
mod write_back;
