//! Reads a file ahead on a separate thread, so that decompression and parsing run concurrently.
//!
//! `input.rs` wraps a compressed input in [`Ahead`]. The thread decompresses chunks of 256 KiB into a bounded
//! queue; the reader takes them in order through [`Read`]. An error is delivered after the data before it.
//! The thread ends at the end of the input, at an error, or when the reader is dropped: the queue then
//! refuses the next chunk. Nothing else is shared between the two threads. The tests at the end check the
//! order of data and error, and the early drop.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Size in bytes of a chunk, the unit in which one thread passes data to the other thread.
const CHUNK: usize = 256 << 10;
/// Maximum number of chunks in the queue. The thread waits while the queue is full.
const WAITING: usize = 4;

/// The reading end of an input that another thread reads ahead.
pub(crate) struct Ahead {
    /// The queue of chunks.
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// The current chunk.
    chunk: Vec<u8>,
    /// Number of bytes of the chunk that have been consumed.
    taken: usize,
}

impl Ahead {
    /// Starts a thread that reads `input` ahead.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot be created.
    pub(crate) fn of(input: Box<dyn Read + Send>) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(WAITING);
        thread::Builder::new().name("unpack".to_owned()).spawn(move || send_all(input, &sender))?;
        Ok(Ahead { chunks, chunk: Vec::new(), taken: 0 })
    }
}

/// Sends the chunks of `input` until the end of the input, an error, or the drop of the receiver.
fn send_all(mut input: Box<dyn Read + Send>, sender: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        let read = input.by_ref().take(CHUNK as u64).read_to_end(&mut chunk);
        let last = read.as_ref().map_or(true, |read| *read == 0);
        // The data before an error is valid.
        if !chunk.is_empty() && sender.send(Ok(chunk)).is_err() {
            return;
        }
        if let Err(error) = read {
            let _ = sender.send(Err(error));
        }
        if last {
            return;
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() {
            match self.chunks.recv() {
                Ok(chunk) => (self.chunk, self.taken) = (chunk?, 0),
                // The sender has reached the end of the input.
                Err(_) => return Ok(0),
            }
        }
        let count = out.len().min(self.chunk.len() - self.taken);
        out[..count].copy_from_slice(&self.chunk[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An input that returns one to seven bytes per read, and then fails or ends.
    struct Drops(Vec<u8>, usize, bool);

    impl Read for Drops {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            if self.1 == self.0.len() {
                return if self.2 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(0) };
            }
            let count = out.len().min(self.1 % 7 + 1).min(self.0.len() - self.1);
            out[..count].copy_from_slice(&self.0[self.1..self.1 + count]);
            self.1 += count;
            Ok(count)
        }
    }

    #[test]
    fn data_arrives_in_order_before_the_error() {
        let bytes: Vec<u8> = (0..3 * CHUNK + 17).map(|n| (n % 251) as u8).collect();
        for fails in [false, true] {
            let mut ahead = Ahead::of(Box::new(Drops(bytes.clone(), 0, fails))).unwrap();
            let mut read = Vec::new();
            let result = ahead.read_to_end(&mut read);
            assert_eq!(read, bytes);
            assert_eq!(result.is_err(), fails);
        }
    }

    #[test]
    fn reader_may_be_dropped_before_the_end() {
        let mut ahead = Ahead::of(Box::new(io::repeat(7))).unwrap();
        let mut some = [0; 100];
        ahead.read_exact(&mut some).unwrap();
        assert_eq!(some, [7; 100]);
    }
}
