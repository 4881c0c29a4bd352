//! Tests the text form of numbers (`units.rs`): counts, times, shares, ratios, rates and sizes. Each test
//! lists values with their texts, especially values at which the unit or the number of digits changes.

use super::*;

#[test]
fn thousands_are_separated() {
    let texts: Vec<String> = [0, 7, 999, 1_000, 57_665, 1_234_567].map(count).into();
    assert_eq!(texts, ["0", "7", "999", "1,000", "57,665", "1,234,567"]);
    assert_eq!(counted(1, "call"), "1 call");
    assert_eq!(counted(0, "call"), "0 calls");
}

#[test]
fn times_have_a_fitting_unit() {
    let texts: Vec<String> =
        [0, 840, 1_000, 2_140, 9_940, 9_960, 31_200, 4_420_000, 999_900_000, 1_000_000_000, 10_140_000_000]
            .map(nanoseconds)
            .into();
    assert_eq!(
        texts,
        ["0", "840 ns", "1 us", "2.1 us", "9.9 us", "10 us", "31 us", "4.4 ms", "1.00 s", "1.00 s", "10.1 s"]
    );
    assert_eq!(each(Duration::from_micros(10), 4), "2.5 us");
    assert_eq!(each(Duration::from_micros(10), 0), "-");
}

#[test]
fn shares_near_the_limits_are_not_rounded_to_them() {
    assert_eq!(percent(0, 10), "0 %");
    assert_eq!(percent(10, 10), "100 %");
    assert_eq!(percent(99_999_999, 100_000_000), "99.99 %");
    assert_eq!(percent(1, 100_000_000), "0.01 %");
    assert_eq!(percent(987, 1000), "98.7 %");
}

#[test]
fn ratios_and_rates_with_zero_are_none() {
    assert_eq!(ratio(Duration::from_secs(10), Duration::ZERO), None);
    assert_eq!(ratio(Duration::from_millis(10_100), Duration::from_millis(210)).as_deref(), Some("48"));
    assert_eq!(ratio(Duration::from_millis(32), Duration::from_millis(10)).as_deref(), Some("3.2"));
    assert_eq!(ratio(Duration::from_millis(5), Duration::from_millis(10)).as_deref(), Some("0.50"));
    assert_eq!(ratio(Duration::from_millis(5), Duration::from_secs(10)).as_deref(), Some("<0.1"));
    assert_eq!(rate(5, Duration::ZERO), None);
    assert_eq!(rate(1_450_000, Duration::from_secs(1)).as_deref(), Some("1.45 million"));
    assert_eq!(rate(145_000, Duration::from_secs(1)).as_deref(), Some("145,000"));
}

#[test]
fn sizes_have_a_fitting_unit() {
    let texts: Vec<String> = [0, 4096, 135_168, 1 << 30, 3 << 19, u64::MAX].map(bytes).into();
    assert_eq!(texts, ["0 B", "4 KiB", "132 KiB", "1 GiB", "1.5 MiB", "16 EiB"]);
}
