//! Damage to the log, and segments that are gone.

use std::fs;

use psitri::SalvageOptions;

use super::{
    case::Case,
    common::{Random, seed},
    rounds, spoil,
    story::{self, story},
};

/// The segments that hold records of the story's tail.
fn live_logs() -> Vec<(String, usize)> {
    let story = story();
    let with_records = story::logs(&story.path()).into_iter().filter_map(|name| {
        let bytes = fs::read(story.path().join(&name)).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0);
        (used > 4096 + 64).then_some((name, used))
    });
    with_records.collect()
}

#[test]
fn the_log_counts_up_to_the_damage() {
    let mut random = Random::new(seed(5));
    let tail = story().tail.len() as u64;
    for _ in 0..rounds(12) {
        let logs = live_logs();
        assert!(logs.len() >= 2, "the tail takes several segments");
        let (name, used) = random.pick(&logs).clone();
        let case = Case::new();
        case.edit(&name, |bytes| spoil(bytes, &(4096..used - 32), &mut random));
        let report = case.salvage();
        case.check(&report);
        assert!(report.log.commits < tail, "{report}");
        assert!(!report.is_whole() && !report.log.damage.is_empty());
        assert!(report.log.commits + report.log.commits_passed_by < tail);

        fs::remove_dir_all(case.target()).unwrap();
        let past = case.salvage_with(SalvageOptions::new().past_damage(true));
        let read_again = report.log.commits + report.log.commits_passed_by;
        assert_eq!(
            (past.log.commits, past.log.commits_passed_by),
            (read_again, 0)
        );
        assert!(!past.is_whole());
    }
}

#[test]
fn missing_and_short_segments_are_noticed() {
    let mut random = Random::new(seed(6));
    let tail = story().tail.len() as u64;
    let logs = live_logs();
    let sequence = |name: &String| {
        let bytes = fs::read(story().path().join(name)).unwrap();
        u64::from_le_bytes(bytes[16..24].try_into().unwrap())
    };
    let last = logs
        .iter()
        .map(|(name, _)| name)
        .max_by_key(|name| sequence(name));
    let last = last.unwrap().clone();
    for round in 0..rounds(8) as usize {
        let (name, used) = &logs[round % logs.len()];
        let case = Case::new();
        let is_gone = random.percent(50);
        if is_gone {
            fs::remove_file(case.damaged().join(name)).unwrap();
        } else {
            case.edit(name, |bytes| bytes.truncate(random.below(*used - 32)));
        }
        let report = case.salvage();
        case.check(&report);
        assert!(report.log.commits < tail, "{report}");
        // No other file has a trace of the last segment.
        let has_trace = !is_gone || *name != last;
        assert!(!has_trace || !report.is_whole(), "{name}\n{report}");
    }
    let case = Case::new();
    for name in story::logs(&case.damaged()) {
        fs::remove_file(case.damaged().join(name)).unwrap();
    }
    let report = case.salvage();
    case.check(&report);
    assert!(report.log.commits == 0 && !report.is_whole(), "{report}");
}
