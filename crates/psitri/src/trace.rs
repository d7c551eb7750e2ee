//! Spans and events for `tracing`, behind the feature of that name; without it there is no code.
//!
//! All have the target `psitri`. `docs/observability.md` lists them. There are none for single reads, writes and commits.

/// Enters a span until the end of the enclosing block: level, name, fields as for [`tracing::span!`].
#[cfg(feature = "tracing")]
macro_rules! trace_span {
    ($level:ident, $($rest:tt)*) => {
        let _span = ::tracing::span!(target: "psitri", ::tracing::Level::$level, $($rest)*).entered();
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! trace_span {
    ($($rest:tt)*) => {};
}

/// Emits an event: level, fields and message as for [`tracing::event!`].
#[cfg(feature = "tracing")]
macro_rules! trace_event {
    ($level:ident, $($rest:tt)*) => {
        ::tracing::event!(target: "psitri", ::tracing::Level::$level, $($rest)*)
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! trace_event {
    ($($rest:tt)*) => {};
}

/// Emits what a program may also hear of with [`Options::on_event`](crate::Options::on_event).
#[cfg(all(feature = "tracing", not(loom)))]
pub(crate) fn event(event: &crate::Event) {
    use crate::Event;
    let us = |time: &std::time::Duration| time.as_micros() as u64;
    match event {
        Event::Merged { entries, took } => {
            trace_event!(DEBUG, entries, took_us = us(took), "merged")
        }
        Event::Checkpoint { took } => {
            trace_event!(DEBUG, took_us = us(took), "checkpoint is durable")
        }
        Event::Stalled { waited } => {
            trace_event!(
                WARN,
                waited_us = us(waited),
                "a writer waited for the merge"
            )
        }
        Event::Failed { cause } => {
            trace_event!(
                WARN,
                cause,
                "a merge or checkpoint failed, and is tried again"
            )
        }
        Event::Poisoned { cause } => trace_event!(ERROR, cause, "the database refuses writes"),
        Event::SlowReader { age, pending_bytes } => {
            trace_event!(
                WARN,
                age_us = us(age),
                pending_bytes,
                "a snapshot is held for long"
            )
        }
    }
}
