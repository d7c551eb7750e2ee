use super::*;

fn extent(page: u64, units: u32) -> Extent {
    Extent::of_pages(page, units, 0)
}

#[test]
fn a_page_is_handed_out_again_only_when_its_last_unit_is_released() {
    let mut map = PageMap::new(5);
    assert_eq!(map.reserve(2), Some((2, 2)));
    map.settle(2, 20);
    map.settle(3, 0);
    map.born(extent(2, 8));
    map.born(extent(2, 12));
    map.died(extent(2, 8));
    map.release(extent(2, 8));
    assert_eq!(map.reserve(9), Some((3, 2)));
    assert_eq!(map.reserve(1), None);
    map.died(extent(2, 12));
    map.release(extent(2, 12));
    assert_eq!(map.reserve(1), Some((2, 1)));
}

#[test]
fn runs_are_neighbours_and_page_zero_is_never_given() {
    let mut map = PageMap::new(11);
    let (page, _) = map.reserve(1).unwrap();
    map.settle(page, 64);
    assert_eq!(map.reserve_run(8), Some(3));
    assert_eq!(map.reserve_run(1), None);
}

#[test]
fn what_was_searched_is_not_searched_again() {
    let mut map = PageMap::new(1000);
    let (first, count) = (2, 400);
    assert_eq!(map.reserve(count), Some((first, count)));
    // Every second page is free, and a run of two and one of three are behind them.
    for page in (first..first + count as u64).step_by(2) {
        map.settle(page, 0);
        map.settle(page + 1, 1);
    }
    let rest = map.reserve_run(598).unwrap();
    for page in rest..rest + 598 {
        map.settle(page, u32::from(![500, 501, 600, 601, 602].contains(&page)));
    }
    assert_eq!(map.reserve_run(3), Some(600));
    assert_eq!(map.run_hints.search(3).from, 603);
    assert_eq!(map.reserve_run(2), Some(500));
    assert_eq!(map.run_hints.search(2).from, 502);
    assert_eq!(map.reserve_run(2), None);
    assert_eq!(map.run_hints.search(2).from, 1000);
    // Its neighbours are free, and in use.
    map.release(extent(9, 1));
    assert_eq!(map.run_hints.search(2).from, 8);
    assert_eq!(map.reserve_run(3), Some(8));
    assert_eq!(map.reserve(1), Some((2, 1)));
    map.grow(1004);
    assert_eq!(map.reserve_run(4), Some(1000));
}

/// A run that is a page too short for all who come is not where each of them begins.
#[test]
fn a_run_that_is_too_short_is_passed_once() {
    let mut map = PageMap::new(2000);
    let all = map.reserve_run(1998).unwrap();
    for page in all..all + 1998 {
        let is_free = (100..124).contains(&page) || page >= 1000;
        map.settle(page, u32::from(!is_free));
    }
    for round in 0..3 {
        assert_eq!(map.reserve_run(25), Some(1000 + 25 * round));
        assert_eq!(map.run_hints.search(25).from, 1025 + 25 * round as usize);
    }
    assert_eq!(map.reserve_run(24), Some(100));
    assert_eq!(map.reserve_run(24), Some(1075));
    map.release(extent(300, 1));
    map.release(extent(301, 1));
    assert_eq!(map.reserve_run(2), Some(300));
    assert_eq!(map.reserve_run(27), Some(1099));
}

proptest::proptest! {
    /// Searches find what a look at every page from the first on finds.
    #[test]
    fn runs_are_the_first_that_are_long_enough(
        steps in proptest::collection::vec((0u8..8, 0u64..300, 1usize..40), 1..200),
    ) {
        let mut map = PageMap::new(200);
        for (kind, page, count) in steps {
            let page = page % map.page_end();
            let held = map.held[page as usize];
            match kind {
                0..4 => {
                    let mut runs = map.held.windows(count);
                    let expected = runs.position(|run| run.iter().all(|&h| is_free(h)));
                    let found = map.reserve_run(count);
                    proptest::prop_assert_eq!(found, expected.map(|at| at as u64));
                    for page in found.into_iter().flat_map(|at| at..at + count as u64) {
                        map.settle(page, 1);
                    }
                }
                4 if page >= SUPERBLOCK_PAGES && !is_free(held) => {
                    let end = (page + count as u64).min(map.page_end());
                    for page in (page..end).step_by(1 + count % 3) {
                        if !is_free(map.held[page as usize]) {
                            map.release(extent(page, 1));
                        }
                    }
                }
                5 => {
                    let free = map.held[page as usize..].iter().take(count).position(|&h| !is_free(h));
                    let free = free.unwrap_or(count.min((map.page_end() - page) as usize));
                    map.fill(page as usize..page as usize + free, RESERVED);
                    map.put_back(page, free as u64, count % 2 == 0);
                }
                6 if count < 4 => map.grow(map.page_end() + count as u64),
                7 if count < 4 => map.cut_tail(),
                _ => {
                    if let Some((at, run)) = map.reserve(count) {
                        (at..at + run as u64).for_each(|page| map.settle(page, u32::from(count % 3 > 0)));
                    }
                }
            }
        }
    }
}

#[test]
fn stored_pieces_come_back_as_they_were() {
    let mut map = PageMap::new(CHUNK_PAGES + 10);
    assert_eq!(map.reserve_run(5000), None);
    let run = map.reserve_run(4000).unwrap();
    for page in run..run + 4000 {
        map.settle(page, 64);
    }
    map.born(extent(run, 4000 * 64));
    let pieces = map.take_dirty();
    let mut back = PageMap::new(CHUNK_PAGES + 10);
    for (index, mut bytes) in pieces {
        bytes.resize(CHUNK_PAGES as usize, 0);
        assert!(back.load(index, &bytes));
    }
    assert_eq!(back.live(), map.live());
    assert_eq!(back.live_bytes(), map.live_bytes());
    let mut behind = vec![0; CHUNK_PAGES as usize];
    behind[10] = 1;
    assert!(!back.load(1, &behind), "a page behind the end");
    assert!(
        !back.load(2, &[0; CHUNK_PAGES as usize]),
        "a piece behind it"
    );
}

#[test]
fn free_tail_is_cut_and_free_middle_is_given_back_once() {
    let mut map = PageMap::new(20);
    assert_eq!(map.reserve(10), Some((2, 10)));
    for page in 2..=11 {
        map.settle(page, if page == 11 { 64 } else { 0 });
    }
    assert_eq!(map.tail_pages(), 8);
    map.cut_tail();
    assert_eq!(map.page_end(), 12);
    assert!(map.unpunched_runs(4, 9, 8).is_empty());
    assert_eq!(map.unpunched_runs(4, 0, 8), vec![(2, 9)]);
    assert_eq!(map.take_unpunched(2..11, 4), Some((2, 9)));
    assert_eq!(map.reserve(3), None);
    map.put_back(2, 9, false);
    assert_eq!(map.unpunched_runs(4, 0, 8), vec![(2, 9)]);
    assert_eq!(map.take_unpunched(2..11, 4), Some((2, 9)));
    map.put_back(2, 9, true);
    assert!(map.unpunched_runs(4, 0, 8).is_empty());
    assert_eq!(map.take_unpunched(2..11, 1), None, "there is none left");
    assert_eq!(map.reserve(3), Some((2, 3)));
}

#[test]
fn what_was_used_since_or_cut_off_is_not_given_back() {
    let mut map = PageMap::new(20);
    assert_eq!(map.unpunched_runs(1, 0, 8), vec![(2, 18)]);
    assert_eq!(map.reserve_run(18), Some(2));
    for page in 2..20 {
        map.settle(page, u32::from([5, 10].contains(&page)));
    }
    assert_eq!(map.take_unpunched(2..20, 4), Some((6, 4)));
    map.put_back(6, 4, true);
    assert_eq!(map.take_unpunched(2..20, 1), Some((2, 3)));
    assert_eq!(map.take_unpunched(2..20, 4), Some((11, 9)));
    map.put_back(11, 9, false);
    map.cut_tail();
    assert_eq!(
        map.take_unpunched(5..20, 1),
        None,
        "there are no such pages"
    );
}

#[test]
fn holes_to_which_nothing_was_written_are_holes() {
    let mut map = PageMap::new(12);
    assert_eq!(map.take_unpunched(2..11, 1), Some((2, 9)));
    map.put_back(2, 9, true);
    let free = |map: &PageMap| (map.free_pages(), map.unpunched_pages());
    assert_eq!(free(&map), (10, 1));
    assert_eq!(map.reserve_run(4), Some(2));
    assert_eq!(map.reserve(9), Some((6, 6)));
    assert_eq!(free(&map), (0, 0));
    for page in 2..12 {
        map.settle(page, u32::from(page % 4 == 3));
    }
    // Pages 3, 7 and 11 are in use, and the last of them had blocks.
    assert_eq!(free(&map), (7, 0));
    map.release(extent(3, 1));
    assert_eq!(free(&map), (8, 1));
    assert_eq!(map.free_use().pages, 8);
}
