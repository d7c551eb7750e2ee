//! Where the search for a run of free pages begins: behind all that is too short.
//!
//! Files whose free space is in many short runs are common: one page for each node that is written anew. Without this, whoever needs two pages that
//! follow one another would pass all of them, each time.
//!
//! Lengths that are looked for are in classes, so that a run that is too short for one of them stops no other for longer than a class. Within a class a length
//! of its own is remembered, too: one run that is a page too short for all who come would stop them for ever.
//!
//! # Thread safety
//! Plain data of the page map.
//!
//! # Invariants
//! (1) No free run of at least a hint's `length` begins before its `at`, but for those that pages from `freed` on are in.

/// The least length of each class, in pages: each up to sixteen, and four for each power of two behind that.
const CLASSES: [usize; 48] = {
    let mut lengths = [0; 48];
    let mut i = 0;
    while i < lengths.len() {
        lengths[i] = if i < 16 {
            i + 1
        } else {
            (5 + i % 4) << (2 + (i - 16) / 4)
        };
        i += 1;
    }
    lengths
};

#[derive(Debug)]
pub(super) struct RunHints {
    classes: [Class; CLASSES.len()],
    /// The first page that became free since the hints were brought up to date; `usize::MAX` for none.
    freed: usize,
}

#[derive(Debug, Clone, Copy)]
struct Class {
    /// For the least length of the class, and for one of those that were looked for.
    least: Hint,
    sought: Hint,
}

#[derive(Debug, Clone, Copy)]
struct Hint {
    length: usize,
    at: usize,
}

/// A search for a run of free pages.
pub(super) struct RunSearch {
    count: usize,
    class: usize,
    /// Where it begins.
    pub from: usize,
    /// Of the runs that were passed and have the least length of the class: the first one, and the length of the longest.
    first: Option<usize>,
    longest: usize,
}

impl Hint {
    /// A page is free now. A run with it that begins further before it was long enough without it.
    fn lower(&mut self, freed: usize) {
        self.at = self.at.min(freed.saturating_sub(self.length - 1));
    }
}

impl Default for RunHints {
    fn default() -> RunHints {
        let classes = CLASSES.map(|length| {
            let hint = Hint { length, at: 0 };
            Class {
                least: hint,
                sought: hint,
            }
        });
        RunHints {
            classes,
            freed: usize::MAX,
        }
    }
}

impl RunHints {
    /// A page is free, or is about to be, and may make a run of what is free around it.
    pub fn note_freed(&mut self, page: usize) {
        self.freed = self.freed.min(page);
    }

    /// Begins a search for a run of `count` pages, at least one.
    pub fn search(&mut self, count: usize) -> RunSearch {
        let freed = std::mem::replace(&mut self.freed, usize::MAX);
        if freed != usize::MAX {
            for class in &mut self.classes {
                class.least.lower(freed);
                class.sought.lower(freed);
            }
        }
        let class = CLASSES.partition_point(|&length| length <= count) - 1;
        let Class { least, sought } = self.classes[class];
        let from = if sought.length <= count {
            least.at.max(sought.at)
        } else {
            least.at
        };
        RunSearch {
            count,
            class,
            from,
            first: None,
            longest: 0,
        }
    }

    /// Ends a search, which took or passed everything before `end`.
    pub fn end(&mut self, search: RunSearch, end: usize) {
        let Class { least, sought } = &mut self.classes[search.class];
        // Unless there may be runs of the least length before it.
        if search.from == least.at {
            least.at = search.first.unwrap_or(end);
        }
        if search.longest >= sought.length || search.count < sought.length {
            sought.length = search.count;
        }
        sought.at = end;
    }
}

impl RunSearch {
    /// Passes a run that is too short.
    pub fn pass(&mut self, start: usize, len: usize) {
        if len >= CLASSES[self.class] {
            self.first.get_or_insert(start);
            self.longest = self.longest.max(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_grow_by_a_quarter_at_most() {
        assert!((0..16).all(|i| CLASSES[i] == i + 1));
        let mut pairs = CLASSES[15..].windows(2);
        assert!(pairs.all(|pair| pair[0] < pair[1] && 4 * pair[1] <= 5 * pair[0]));
    }
}
