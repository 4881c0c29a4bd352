//! Reads ahead on a thread of its own, so that unpacking and understanding go on at the same time.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Bytes handed over at a time.
const CHUNK: usize = 256 << 10;
/// Chunks that wait to be taken, at most.
const WAITING: usize = 4;

/// What another thread has read.
pub(crate) struct Ahead {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    /// How much of the chunk was taken.
    taken: usize,
}

impl Ahead {
    /// Reads `input` ahead.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn of(input: Box<dyn Read + Send>) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(WAITING);
        thread::Builder::new().name("unpack".to_owned()).spawn(move || send_all(input, &sender))?;
        Ok(Ahead { chunks, chunk: Vec::new(), taken: 0 })
    }
}

/// Until the end, an error, or nobody wants more.
fn send_all(mut input: Box<dyn Read + Send>, sender: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        let read = input.by_ref().take(CHUNK as u64).read_to_end(&mut chunk);
        let last = read.as_ref().map_or(true, |read| *read == 0);
        // What came before an error is good.
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
                // The other side is done.
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

    /// Gives bytes one to seven at a time, then fails or ends.
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
    fn everything_comes_in_order_and_an_error_comes_last() {
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
    fn it_may_be_left_in_the_middle() {
        let mut ahead = Ahead::of(Box::new(io::repeat(7))).unwrap();
        let mut some = [0; 100];
        ahead.read_exact(&mut some).unwrap();
        assert_eq!(some, [7; 100]);
    }
}
