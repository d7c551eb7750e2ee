//! What this process has used so far, as the kernel counts it: processor time, bytes from storage, address space.
//!
//! From `/proc/self`; elsewhere than on Linux, or where the kernel does not count, a figure is absent. Bytes are those that were not in the page
//! cache; what is written is another matter ([`device`](crate::device)). A file system in memory counts nothing. Processor time comes in steps of a
//! hundredth of a second.
use std::fs;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub user_seconds: Option<f64>,
    pub system_seconds: Option<f64>,
    pub read_bytes: Option<u64>,
}

impl Usage {
    pub fn now() -> Self {
        let mut usage = Self::default();
        if let Ok(io) = fs::read_to_string("/proc/self/io") {
            let mut lines = io.lines();
            let read = lines.find_map(|line| line.strip_prefix("read_bytes:"));
            usage.read_bytes = read.and_then(|bytes| bytes.trim().parse().ok());
        }
        if let Ok(stat) = fs::read_to_string("/proc/self/stat")
            // The name of the program, in parentheses, may contain anything.
            && let Some((_, fields)) = stat.rsplit_once(')')
        {
            let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
            // Fields 14 and 15; the first after the name is field 3.
            let mut times = fields.split_ascii_whitespace().skip(11);
            let mut seconds = || Some(times.next()?.parse::<u64>().ok()? as f64 / ticks_per_second);
            usage.user_seconds = seconds();
            usage.system_seconds = seconds();
        }
        usage
    }

    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        fn less<T: std::ops::Sub<Output = T>>(now: Option<T>, then: Option<T>) -> Option<T> {
            Some(now? - then?)
        }
        Self {
            user_seconds: less(self.user_seconds, earlier.user_seconds),
            system_seconds: less(self.system_seconds, earlier.system_seconds),
            read_bytes: less(self.read_bytes, earlier.read_bytes),
        }
    }
}

/// The most address space that this process ever had, in bytes.
pub fn address_space_bytes_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPeak:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn time_that_was_spent_is_counted() {
        let before = Usage::now();
        let start = Instant::now();
        let mut number = 1u64;
        while start.elapsed() < Duration::from_millis(200) {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        let used = Usage::now().since(&before);
        assert!(used.user_seconds.expect("Linux") >= 0.02, "{used:?}");
        assert!(address_space_bytes_peak().expect("Linux") > 1 << 20);
    }
}
