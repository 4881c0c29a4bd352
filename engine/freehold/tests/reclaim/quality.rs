//! A comparison of the policies: the misses of each policy for the same accesses in the same memory.
//!
//! The accesses are reads of files by calls, from one task and in a fixed order, so the results depend on
//! neither time nor load. The reference is exact LRU, which the test simulates.

use super::*;
use rand_pcg::{Pcg64Mcg, rand_core::Rng};

/// Number of pages that the files may have in their caches at a time.
const MEMORY: u64 = 128;
/// Number of pages that one call of reclaim frees.
const RECLAIMED: u64 = 8;

/// A page: the number of its file, and its index there.
type PageOf = (usize, u64);

/// The files of a scenario and the misses so far.
struct Caches {
    world: World,
    files: Vec<Counted<File<Machine>>>,
    misses: u64,
}

impl Caches {
    fn new(policy: ReclaimPolicy, files: &[u64]) -> Self {
        let world = with(policy);
        let files = files.iter().map(|pages| world.file(*pages)).collect();
        Caches { world, files, misses: 0 }
    }

    fn has(&self, (file, page): PageOf) -> bool {
        self.files[file].mapping().has_page(PageIndex::new(page))
    }

    /// Reads a page. Returns true if it was in the cache.
    fn read(&mut self, page: PageOf) -> bool {
        let hit = self.has(page);
        if !hit {
            self.misses += 1;
            let present = self.files.iter().map(|file| file.mapping().present_pages()).sum::<u64>();
            if present >= MEMORY {
                let freed = self.world.engine().reclaim(&ReclaimRequest::pages(RECLAIMED)).freed;
                assert!(freed > 0, "clean pages can go");
            }
        }
        self.files[page.0].mapping().read_at(page.1 * PAGE, &mut [0]).unwrap();
        hit
    }

    fn end(self) -> u64 {
        drop(self.files);
        self.world.end();
        self.misses
    }
}

/// Returns the misses of exact LRU.
fn lru_misses(accesses: &[PageOf]) -> u64 {
    let (mut pages, mut misses) = (Vec::<PageOf>::new(), 0);
    for page in accesses {
        match pages.iter().position(|found| found == page) {
            Some(at) => _ = pages.remove(at),
            None => misses += 1,
        }
        pages.push(*page);
        if pages.len() as u64 > MEMORY {
            pages.remove(0);
        }
    }
    misses
}

/// Returns accesses whose frequency is inversely proportional to the number of the page (zipf), spread over
/// the file by a permutation.
fn zipf(pages: u64, count: usize) -> Vec<PageOf> {
    let mut random = Pcg64Mcg::new(0x51);
    let weights: Vec<u64> = (1..=pages).map(|rank| (1 << 32) / rank).collect();
    let sum: u64 = weights.iter().sum();
    let draw = |_| {
        let mut rest = random.next_u64() % sum;
        let rank = weights.iter().position(|weight| {
            let found = rest < *weight;
            rest = rest.saturating_sub(*weight);
            found
        });
        (0, page_of_rank(rank.unwrap() as u64, pages))
    };
    (0..count).map(draw).collect()
}

/// Returns the page with this rank: neighbours in rank are not neighbours in the file.
fn page_of_rank(rank: u64, pages: u64) -> u64 {
    rank * 37 % pages
}

#[test]
fn policies_keep_the_frequent_pages_of_a_zipf_distribution() {
    let (pages, hot) = (512, 32);
    let accesses = zipf(pages, 20_000);
    let reference = lru_misses(&accesses);
    let hot_pages: Vec<u64> = (0..hot).map(|rank| page_of_rank(rank, pages)).collect();
    for policy in POLICIES {
        let mut caches = Caches::new(policy, &[pages]);
        // Which pages are there at one moment depends on the place of the hand, so the accesses count.
        let (mut found, mut all) = (0, 0);
        for (n, page) in accesses.iter().enumerate() {
            let hit = caches.read(*page);
            if n >= accesses.len() / 2 && hot_pages.contains(&page.1) {
                all += 1;
                found += u64::from(hit);
            }
        }
        let misses = caches.end();
        println!(
            "zipf, {policy:?}: {misses} misses, LRU {reference}; {found} of {all} accesses of hot pages hit"
        );
        assert!(misses * 100 <= reference * 115, "{policy:?}: {misses} misses, LRU {reference}");
        assert!(found * 100 >= 90 * all, "{policy:?}: {found} of {all} accesses of hot pages hit");
    }
}

/// A hot set beside a scan of another file.
struct Scan {
    rounds: u64,
    /// Number of rounds before the misses count.
    warm: u64,
    /// Number of pages that the scan reads in each round.
    pages: u64,
    /// Number of reads of each of these pages.
    reads: u64,
}

impl Scan {
    /// Returns the number of accesses to the hot set that miss, and the number of all.
    fn lost(&self, policy: ReclaimPolicy) -> (u64, u64) {
        let hot = 64;
        let mut caches = Caches::new(policy, &[hot, self.pages * self.rounds]);
        let mut lost = 0;
        for round in 0..self.rounds {
            for page in 0..2 * hot {
                let hit = caches.read((0, page % hot));
                lost += u64::from(round >= self.warm && !hit);
            }
            for page in self.pages * round..self.pages * (round + 1) {
                (0..self.reads).for_each(|_| _ = caches.read((1, page)));
            }
        }
        caches.end();
        let all = 2 * hot * (self.rounds - self.warm);
        println!(
            "{policy:?}, {} reads of each page: {lost} of {all} accesses to the hot set miss",
            self.reads
        );
        (lost, all)
    }
}

#[test]
fn scan_does_not_displace_the_hot_set() {
    for policy in POLICIES {
        let (lost, all) = Scan { rounds: 40, warm: 4, pages: 32, reads: 1 }.lost(policy);
        assert!(lost * 100 <= all, "{policy:?}: {lost} of {all} accesses to the hot set miss");
    }
}

/// A program that reads a file in pieces reads each page several times, and does not need it again. Only the
/// tiers of `Generations` tell such pages from others.
#[test]
fn scan_in_pieces_does_not_displace_the_hot_set() {
    for policy in POLICIES {
        let (lost, all) = Scan { rounds: 60, warm: 20, pages: 64, reads: 4 }.lost(policy);
        let most = if matches!(policy, ReclaimPolicy::Generations) { all / 100 } else { all / 3 };
        assert!(lost <= most, "{policy:?}: {lost} of {all} accesses to the hot set miss");
    }
}

#[test]
fn policies_follow_a_change_of_the_hot_set() {
    let (hot, rounds) = (96, 20);
    for policy in POLICIES {
        let mut caches = Caches::new(policy, &[hot, hot]);
        for file in [0, 1] {
            for round in 0..rounds {
                let before = caches.misses;
                (0..hot).for_each(|page| _ = caches.read((file, page)));
                let missed = caches.misses - before;
                println!("change, {policy:?}: file {file}, round {round}: {missed} of {hot}");
                assert!(round < rounds / 2 || missed == 0, "{policy:?}: round {round}: {missed} misses");
            }
        }
        caches.end();
    }
}
