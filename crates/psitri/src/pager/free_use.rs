//! How much of the data file is free, and how it lies: in which runs, and with or without blocks.
//!
//! # Thread safety
//! Plain numbers.
//!
//! # Failure modes
//! None.

use super::page_map::{PUNCHED, is_free};

/// What is free, and how it lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FreeUse {
    pub pages: u64,
    /// Of these, pages without blocks in the file system.
    pub hole_pages: u64,
    /// Runs of neighbouring free pages, and the longest of them.
    pub runs: u64,
    pub run_max_pages: u64,
}

impl FreeUse {
    pub(super) fn count(held: &[u8]) -> FreeUse {
        let mut found = FreeUse::default();
        let mut run = 0;
        // Most of the map is alike for long stretches: those are passed without a look at each page.
        for piece in held.chunks(64) {
            let free = piece.iter().filter(|&&h| is_free(h)).count() as u64;
            found.pages += free;
            if free == 0 {
                found.end(&mut run);
                continue;
            }
            found.hole_pages += piece.iter().filter(|&&h| h == PUNCHED).count() as u64;
            if free == piece.len() as u64 {
                run += free;
                continue;
            }
            for &h in piece {
                if is_free(h) {
                    run += 1;
                } else {
                    found.end(&mut run);
                }
            }
        }
        found.end(&mut run);
        found
    }

    fn end(&mut self, run: &mut u64) {
        self.runs += u64::from(*run > 0);
        self.run_max_pages = self.run_max_pages.max(std::mem::take(run));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::page_map::RESERVED, *};

    #[test]
    fn free_use_counts_like_a_look_at_each_page() {
        // Deterministic, and with runs that begin and end in the middle of pieces.
        let mut held: Vec<u8> = (0..1000u32)
            .map(|page| match page * page / 97 % 5 {
                0 => 0,
                1 => PUNCHED,
                2 => RESERVED,
                _ => 3,
            })
            .collect();
        held[130..400].fill(0);
        held[500..650].fill(7);
        held[990..].fill(PUNCHED);
        for len in [0, 1, 63, 64, 65, 200, 384, 640, 1000] {
            let held = &held[..len];
            let runs: Vec<&[u8]> = held
                .split(|&h| !is_free(h))
                .filter(|run| !run.is_empty())
                .collect();
            let expected = FreeUse {
                pages: runs.iter().map(|run| run.len() as u64).sum(),
                hole_pages: held.iter().filter(|&&h| h == PUNCHED).count() as u64,
                runs: runs.len() as u64,
                run_max_pages: runs.iter().map(|run| run.len() as u64).max().unwrap_or(0),
            };
            assert_eq!(FreeUse::count(held), expected, "{len}");
        }
    }
}
