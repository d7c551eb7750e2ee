//! Bars for commands that take long. They are shown on terminals only.
use indicatif::{ProgressBar, ProgressStyle};
use psitri::{Progress, ProgressUnit};
use std::ops::ControlFlow;

const ENTRIES: &str = "{wide_bar} {human_pos} of {human_len} entries, {eta} left";
const BYTES: &str = "{wide_bar} {bytes} of {total_bytes}, {eta} left";
/// Where nobody knows how much there is.
const BYTES_SO_FAR: &str = "{spinner} {bytes}, {bytes_per_sec}";

/// A bar that goes away with the command.
pub struct Bar(ProgressBar);

impl Bar {
    /// For what the engine reports.
    pub fn new() -> Bar {
        Bar(ProgressBar::new(0))
    }

    /// For a stream of this length, if that is known.
    pub fn of_bytes(total: Option<u64>) -> Bar {
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let bar = Bar(bar);
        bar.style(if total.is_some() { BYTES } else { BYTES_SO_FAR });
        bar
    }

    fn style(&self, template: &str) {
        let style = ProgressStyle::with_template(template);
        self.0.set_style(style.expect("the template is right"));
    }

    /// Shows what a call of the engine reports, and lets it go on.
    pub fn show(&self, progress: Progress) -> ControlFlow<()> {
        if self.0.length() == Some(0) && progress.total > 0 {
            self.style(match progress.unit {
                ProgressUnit::Bytes => BYTES,
                _ => ENTRIES,
            });
        }
        self.0.set_length(progress.total);
        self.0.set_position(progress.done);
        ControlFlow::Continue(())
    }

    pub fn reach(&self, bytes: u64) {
        self.0.set_position(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
