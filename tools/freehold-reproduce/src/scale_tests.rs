//! Tests the scale of experiments (`scale.rs`): numbers of threads, and sizes limited by the option
//! `--at-most`.

use super::*;

#[test]
fn threads_double_up_to_the_processors() {
    let threads = |cpus| Scale::full(cpus).threads();
    assert_eq!(threads(1), [1]);
    assert_eq!(threads(2), [1, 2]);
    assert_eq!(threads(6), [1, 2, 4, 6]);
    assert_eq!(threads(64), [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn sizes_are_limited_to_the_largest_size() {
    let all = Scale::full(2);
    assert_eq!(all.sizes(&[1, 8, 80], &[1]), [1, 8, 80]);
    let few = Scale { at_most: 10, ..all };
    assert_eq!(few.sizes(&[1, 8, 80, 160], &[1]), [1, 8, 10]);
    assert_eq!(few.size(250, 1), 10);
    assert_eq!(Scale { quick: true, ..few }.size(250, 1), 1);
}
