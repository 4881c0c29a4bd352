//! Tests the text form of values by their unit (`unit.rs`), in tables and at the marks of axes. Each test is
//! a list of units, values and texts.

use super::*;

#[test]
fn values_are_written_with_a_fitting_unit() {
    let written = [
        (Unit::Nanoseconds, 9.44, "9.4 ns"),
        (Unit::Nanoseconds, 0.0, "0"),
        (Unit::Nanoseconds, 5_008_377_000.0, "5.01 s"),
        (Unit::Nanoseconds, 1_230.0, "1.2 us"),
        (Unit::Count, 2.5, "2.5"),
        (Unit::Count, 3.0, "3"),
        (Unit::PerSecond, 554_894.0, "554,894"),
        (Unit::PerSecond, 22_500_000.0, "22.5 million"),
        (Unit::PerMinute, 3e9, "3.00 billion"),
        (Unit::Bytes, (80u64 << 30) as f64, "80 GiB"),
        (Unit::Change, -0.0206, "-2.1 %"),
        (Unit::Change, 0.5859, "+58.6 %"),
        (Unit::Share, 0.5, "50 %"),
        (Unit::Share, 0.001, "0.1 %"),
        (Unit::Share, 1e-6, "0.0001 %"),
        (Unit::Times, 1.9, "1.90"),
    ];
    for (unit, value, text) in written {
        assert_eq!(unit.text(value), text, "{unit:?} {value}");
    }
}

#[test]
fn axis_marks_are_short() {
    let written = [
        (Unit::PerSecond, 5_000_000.0, "5 M"),
        (Unit::PerMinute, 2_500.0, "2.5 k"),
        (Unit::Count, 48.0, "48"),
        (Unit::Nanoseconds, 10.0, "10 ns"),
        (Unit::Nanoseconds, 1e9, "1 s"),
        (Unit::Bytes, 4096.0, "4 KiB"),
        (Unit::Share, 0.1, "10 %"),
    ];
    for (unit, value, text) in written {
        assert_eq!(unit.tick(value), text, "{unit:?} {value}");
    }
}
