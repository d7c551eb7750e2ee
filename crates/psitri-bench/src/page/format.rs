//! Figures as text: as many digits as say something, and the unit that a reader thinks in.
use super::figures::Unit;
use crate::report::grouped;

/// With its unit.
pub fn text(unit: Unit, value: f64) -> String {
    match unit {
        Unit::PerSecond => format!("{}/s", plain(value)),
        Unit::Seconds => duration(value * 1e6),
        Unit::Milliseconds => duration(value * 1e3),
        Unit::Microseconds => duration(value),
        Unit::Bytes => bytes(value),
        Unit::Times => format!("{value:.2}"),
        Unit::Plain => plain(value),
    }
}

/// Short, for the ticks of an axis.
pub fn tick(unit: Unit, value: f64) -> String {
    match unit {
        Unit::PerSecond | Unit::Plain => compact(value),
        _ => text(unit, value),
    }
}

/// `12,345`, `12.3`, `0.123`.
pub fn plain(value: f64) -> String {
    let size = value.abs();
    if size >= 1_000.0 || value == value.trunc() {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", grouped(size.round() as u64))
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// `1.2M`, `35k`.
pub fn compact(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = format!("{scaled:.2}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{suffix}")
}

fn duration(microseconds: f64) -> String {
    let (value, unit) = match microseconds.abs() {
        size if size >= 1e6 => (microseconds / 1e6, "s"),
        size if size >= 1e3 => (microseconds / 1e3, "ms"),
        _ => (microseconds, "µs"),
    };
    format!("{} {unit}", three_digits(value))
}

fn bytes(value: f64) -> String {
    let mut scaled = value;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled.abs() < 1024.0 {
            return format!("{} {unit}", three_digits(scaled));
        }
        scaled /= 1024.0;
    }
    format!("{} TiB", three_digits(scaled))
}

fn three_digits(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 1_000.0 => return grouped(value.abs().round() as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `3.2×`; a quotient by nothing is `∞`.
pub fn times(ratio: f64) -> String {
    if ratio.is_infinite() {
        "∞".to_owned()
    } else if ratio >= 100.0 {
        format!("{}×", grouped(ratio.round() as u64))
    } else if ratio >= 10.0 {
        format!("{ratio:.1}×")
    } else {
        format!("{ratio:.2}×")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_the_size_of_the_figure() {
        assert_eq!(text(Unit::PerSecond, 376_691.4), "376,691/s");
        assert_eq!(text(Unit::Seconds, 0.0345), "34.5 ms");
        assert_eq!(text(Unit::Microseconds, 1_500_000.0), "1.5 s");
        assert_eq!(text(Unit::Bytes, 1_140_850_688.0), "1.06 GiB");
        assert_eq!(text(Unit::Bytes, 0.0), "0 B");
        assert_eq!(tick(Unit::PerSecond, 1_200_000.0), "1.2M");
        assert_eq!(
            [times(1.0), times(12.34), times(f64::INFINITY)],
            ["1.00×", "12.3×", "∞"]
        );
    }
}
