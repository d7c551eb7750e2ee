//! Progress of long phases on a terminal: done, rate, time left. Silent when standard error is not a terminal.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that disappears when it is dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new(phase: &str, total: u64) -> Self {
        let bar =
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
        let template = "{msg:<12} {wide_bar} {human_pos}/{human_len} {per_sec} {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(phase.to_owned());
        Self { bar }
    }

    pub fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
        }
    }

    /// Call a few times a second, not for every operation.
    pub fn at(&self, done: u64) {
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
