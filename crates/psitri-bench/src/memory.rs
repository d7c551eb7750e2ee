//! Memory of processes, peaks of this one among them, from `/proc`.
//!
//! The kernel keeps the peak of the resident set itself; it counts pages of mapped files, which the kernel can take back at any time.
//! The anonymous part, which it cannot, is sampled by a thread. Elsewhere than on Linux both are absent, not zero.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Samples until dropped or finished.
pub struct MemorySampler {
    stop: Arc<AtomicBool>,
    anonymous_bytes_peak: Arc<AtomicU64>,
    /// What was there before: the harness's own.
    anonymous_bytes_before: u64,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct PeakMemory {
    /// Peak resident set, mapped files included.
    pub resident_bytes: Option<u64>,
    /// Highest sampled anonymous resident set, less what the process had when sampling began.
    pub anonymous_bytes: Option<u64>,
}

impl MemorySampler {
    pub fn start() -> Self {
        Self::beyond(status_bytes("self", "RssAnon:").unwrap_or(0))
    }

    /// What is there before counts as far as it is more than that.
    pub fn beyond(anonymous_bytes_before: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let anonymous_bytes_peak = Arc::new(AtomicU64::new(0));
        let thread = {
            let (stop, peak) = (Arc::clone(&stop), Arc::clone(&anonymous_bytes_peak));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(bytes) = status_bytes("self", "RssAnon:") {
                        peak.fetch_max(bytes, Ordering::Relaxed);
                    }
                    std::thread::park_timeout(SAMPLE_INTERVAL);
                }
            })
        };
        Self {
            stop,
            anonymous_bytes_peak,
            anonymous_bytes_before,
            thread: Some(thread),
        }
    }

    /// Begins anew: what was used so far and is free again belongs to no peak. The kernel forgets its own peak as well, if it lets us.
    pub fn forget_peaks(&mut self) {
        self.anonymous_bytes_peak.store(0, Ordering::Relaxed);
        // Where that is not allowed the peak stays what it was: too high, not too low.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }

    pub fn finish(self) -> PeakMemory {
        let sampled = self.anonymous_bytes_peak.load(Ordering::Relaxed);
        PeakMemory {
            resident_bytes: status_bytes("self", "VmHWM:"),
            anonymous_bytes: status_bytes("self", "RssAnon:")
                .map(|now| now.max(sampled).saturating_sub(self.anonymous_bytes_before)),
        }
    }
}

impl Drop for MemorySampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread runs no code that can panic.
            let _ = thread.join();
        }
    }
}

/// What a process holds that is not backed by a file.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    status_bytes(&pid.to_string(), "RssAnon:")
}

/// A field of `/proc/PROCESS/status` that is given in kB, in bytes.
fn status_bytes(process: &str, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The peaks are those of the process, and so of both tests.
    static PEAKS: Mutex<()> = Mutex::new(());

    #[test]
    fn the_peak_survives_the_memory_that_made_it() {
        let _alone = PEAKS.lock();
        // Other tests of the process may free what is there before, so that nothing less than all of it is a lower bound.
        let sampler = MemorySampler::beyond(0);
        let block = vec![1u8; 64 << 20];
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(std::hint::black_box(&block)[1 << 20], 1);
        drop(block);
        let peak = sampler.finish();
        assert!(peak.anonymous_bytes.expect("Linux") >= 64 << 20, "{peak:?}");
        assert!(peak.resident_bytes.expect("Linux") >= 64 << 20, "{peak:?}");
    }

    #[test]
    fn what_was_there_before_does_not_count() {
        let sampler = MemorySampler::beyond(u64::MAX);
        assert_eq!(sampler.finish().anonymous_bytes, Some(0));
    }

    #[test]
    fn a_peak_that_was_forgotten_does_not_count() {
        let _alone = PEAKS.lock();
        let mut sampler = MemorySampler::start();
        let block = vec![1u8; 256 << 20];
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(std::hint::black_box(&block)[1 << 20], 1);
        drop(block);
        sampler.forget_peaks();
        let peak = sampler.finish();
        assert!(peak.anonymous_bytes.expect("Linux") < 256 << 20, "{peak:?}");
    }
}
