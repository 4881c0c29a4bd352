//! Threads of Rust's standard library: scopes, channels, locks, a caught panic, growing memory. Four threads
//! run at a time. The test `threads-rust` compares the output with that of the same run on Linux, so every
//! line must be the same in every run: no times, addresses or orders of threads. Checks of the C library's
//! threads belong in `threads.c`.

use std::{
    collections::{BTreeMap, HashMap},
    panic,
    sync::{
        Arc, Barrier, Condvar, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

const THREADS: u64 = 4;

/// Adds numbers in scoped threads.
fn sums() {
    let words: Vec<u64> = (0..1 << 20).collect();
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for part in words.chunks(words.len() / THREADS as usize) {
            let total = &total;
            scope.spawn(move || total.fetch_add(part.iter().sum(), Ordering::Relaxed));
        }
    });
    println!("sum {}", total.into_inner());
}

/// Sends messages over a bounded channel.
fn channels() {
    let (send, receive) = mpsc::sync_channel::<(u64, Vec<u8>)>(8);
    let senders: Vec<_> = (0..THREADS)
        .map(|number| {
            let send = send.clone();
            thread::spawn(move || (0..500).for_each(|n| send.send((number, vec![n as u8; 1000])).unwrap()))
        })
        .collect();
    drop(send);
    let mut bytes = BTreeMap::new();
    for (number, text) in receive {
        *bytes.entry(number).or_insert(0) += text.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    println!("received {bytes:?}");
}

/// Uses a map behind a lock, a barrier and a condition variable.
fn locks() {
    let map = Arc::new(RwLock::new(HashMap::new()));
    let ready = Arc::new((Mutex::new(0), Condvar::new()));
    let barrier = Arc::new(Barrier::new(THREADS as usize));
    for number in 0..THREADS {
        let (map, ready, barrier) = (map.clone(), ready.clone(), barrier.clone());
        thread::spawn(move || {
            barrier.wait();
            for n in 0..2000 {
                map.write().unwrap().insert((number, n), n.to_string());
                assert_eq!(map.read().unwrap()[&(number, n)], n.to_string());
            }
            *ready.0.lock().unwrap() += 1;
            ready.1.notify_one();
        });
    }
    let done = ready.1.wait_while(ready.0.lock().unwrap(), |done| *done < THREADS).unwrap();
    println!("{} threads, {} entries", *done, map.read().unwrap().len());
}

/// Catches the panic of a thread.
fn panics() {
    panic::set_hook(Box::new(|_| {}));
    let caught = thread::spawn(|| panic!("on purpose")).join();
    println!("caught {:?}", caught.unwrap_err().downcast_ref::<&str>());
}

/// Allocates and frees blocks of many sizes in all threads.
fn memory() {
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            thread::spawn(move || {
                let mut kept = Vec::new();
                for n in 0..200_u64 {
                    kept.push(vec![(n ^ number) as u8; 1 << (n % 16)]);
                    if n % 3 == 0 {
                        kept.swap_remove((n / 2) as usize % kept.len());
                    }
                }
                kept.iter().map(Vec::len).sum::<usize>()
            })
        })
        .collect();
    let sizes: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    println!("kept {sizes:?}");
}

fn main() {
    sums();
    channels();
    locks();
    panics();
    memory();
    let before = Instant::now();
    thread::sleep(Duration::from_millis(20));
    assert!(before.elapsed() >= Duration::from_millis(20));
    println!("slept");
}
