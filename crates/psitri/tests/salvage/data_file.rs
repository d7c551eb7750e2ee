//! Damage to the data file: nodes, values, superblocks, the page map, the catalog, its end.

use std::fs;

use psitri::{
    SalvageOptions, SalvagedFrom, SalvagedKeyspace,
    node::{self, NodeRef},
    salvage,
};

use super::{
    case::{Case, read},
    common::{Random, seed},
    layout::{Layout, Place},
    rounds, spoil,
    story::{NAMES, Table, options, story, temporary},
};

#[test]
fn damaged_nodes_of_keyspaces_are_lost_ranges() {
    let mut random = Random::new(seed(1));
    let layout = Layout::of(&fs::read(story().path().join("data")).unwrap());
    let leaf: fn(&Place) -> bool = |place| place.level == 0;
    let inner: fn(&Place) -> bool = |place| place.level > 0 && !place.is_root;
    let root: fn(&Place) -> bool = |place| place.is_root;
    let mut found_again = 0;
    for kind in [leaf, inner, root, |_| true] {
        for _ in 0..rounds(8) {
            let case = Case::new();
            let mut damaged = 0;
            case.edit("data", |data| {
                for _ in 0..random.between(1, 3) {
                    let name = *random.pick(&NAMES);
                    let places: Vec<_> = layout.trees[name].iter().filter(|p| kind(p)).collect();
                    if !places.is_empty() {
                        spoil(data, &random.pick(&places).bytes, &mut random);
                        damaged += 1;
                    }
                }
            });
            let report = case.salvage();
            case.check(&report);
            assert_eq!(report.is_whole(), damaged == 0, "{report}");
            assert_eq!(report.keyspaces.len(), 3, "{report}");
            assert_eq!(report.log.commits as usize, story().tail.len());
            found_again += report.keyspaces.iter().map(|k| k.possibly_old).sum::<u64>();
        }
    }
    assert!(found_again > 0, "the scan never found an old leaf");
}

#[test]
fn damaged_values_are_named() {
    let mut random = Random::new(seed(2));
    let layout = Layout::of(&fs::read(story().path().join("data")).unwrap());
    for _ in 0..rounds(8) {
        let case = Case::new();
        case.edit("data", |data| {
            spoil(data, random.pick(&layout.values), &mut random);
        });
        let report = case.salvage();
        case.check(&report);
        let lost: usize = report.keyspaces.iter().map(|k| k.values_lost.len()).sum();
        assert_eq!((lost, report.is_whole()), (1, false), "{report}");
    }
}

#[test]
fn a_damaged_superblock_or_page_map_hides_nothing() {
    let layout = Layout::of(&fs::read(story().path().join("data")).unwrap());
    let mut random = Random::new(seed(3));
    let all = story().state_after(story().tail.len());
    let (newest, older) = (layout.slot, 4096 - layout.slot);
    for _ in 0..rounds(3) {
        for place in [
            older..older + 128,
            layout.map_table.clone(),
            layout.map_piece.clone(),
        ] {
            let case = Case::new();
            case.edit("data", |data| spoil(data, &place, &mut random));
            let report = case.salvage();
            assert_eq!(case.check(&report), all, "{report}");
            assert!(report.is_whole() && !report.damage.is_empty(), "{report}");
        }
        for both in [false, true] {
            let case = Case::new();
            case.edit("data", |data| {
                spoil(data, &(newest..newest + 128), &mut random);
                if both {
                    spoil(data, &(older..older + 128), &mut random);
                }
            });
            let report = case.salvage();
            assert_eq!(report.checkpoint.is_none(), both);
            let found = case.check(&report);
            for name in NAMES {
                assert!(found[name] == all[name], "{name}\n{report}");
            }
            // Without a superblock nothing proves that it is all. With the one before: its trees and the log together do.
            assert_eq!(report.is_whole(), !both, "{report}");
        }
    }
}

#[test]
fn a_lost_catalog_is_found_again_or_its_trees_are_without_names() {
    let data = fs::read(story().path().join("data")).unwrap();
    let layout = Layout::of(&data);
    for has_old_one in [true, false] {
        let case = Case::new();
        case.edit("data", |data| {
            assert_eq!(layout.catalog.len(), 1);
            let place = layout.catalog[0].bytes.clone();
            let mut leaf = data[place.clone()].to_vec();
            data[place].fill(0);
            wipe_names(data);
            if has_old_one {
                // As it may lie about from an earlier checkpoint.
                let page = data.len().div_ceil(4096);
                let at = NodeRef::new(page as u64, 0, node::units(&leaf));
                let birth = node::birth(&leaf);
                node::seal(&mut leaf, at, birth);
                data.resize(page * 4096, 0);
                data.extend_from_slice(&leaf);
            }
        });
        let report = case.salvage();
        let found = case.check(&report);
        assert!(!report.is_whole(), "{report}");
        if has_old_one {
            assert_eq!(report.keyspaces.len(), 3, "{report}");
            let is_found = |k: &SalvagedKeyspace| k.from == SalvagedFrom::FoundCatalog;
            assert!(report.keyspaces.iter().all(is_found), "{report}");
            assert_eq!(found, story().state_after(story().tail.len()), "{report}");
            continue;
        }
        assert_eq!(report.keyspaces_lost, 3, "{report}");
        // A tree found is that of the checkpoint or a newer one, which a merge had written when the files were copied.
        for name in NAMES {
            let base = &story().base[name];
            let has_most = |(_, table): (&String, &Table)| {
                base.keys().filter(|key| table.contains_key(*key)).count() * 10 > base.len() * 9
            };
            let mut salvaged = found
                .iter()
                .filter(|(name, _)| name.starts_with("salvaged-"));
            assert!(salvaged.any(has_most), "{name}\n{report}");
        }
    }
}

/// Spoils what holds the name of a keyspace: the old leaves of the catalog.
fn wipe_names(data: &mut [u8]) {
    let mut at = 8192;
    while let Some(found) = find(&data[at..], b"accounts") {
        data[at + found] ^= 0x20;
        at += found + 1;
    }
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

#[test]
fn catalogs_of_many_keyspaces_lose_what_one_node_holds() {
    let mut random = Random::new(seed(4));
    let dir = temporary();
    let path = dir.path().join("db");
    let db = options().open(&path).unwrap();
    let names: Vec<String> = (0..600).map(|n| format!("keyspace number {n}")).collect();
    for name in &names {
        let ks = db.create_keyspace(name).unwrap();
        let mut txn = db.begin(&[&ks]).unwrap();
        txn.upsert(&ks, name.as_bytes(), name.as_bytes()).unwrap();
        txn.commit().unwrap();
    }
    db.close().unwrap();
    let good = fs::read(path.join("data")).unwrap();
    let layout = Layout::of(&good);
    assert!(layout.catalog.len() > 3, "the catalog has an inner node");
    for round in 0..rounds(6) as usize {
        let mut data = good.clone();
        let place = &layout.catalog[if round == 0 {
            0
        } else {
            random.below(layout.catalog.len())
        }];
        data[place.bytes.clone()].fill(0x5a);
        fs::write(path.join("data"), data).unwrap();
        let target = dir.path().join(format!("target {round}"));
        let report = salvage(&path, &target, SalvageOptions::new()).unwrap();
        assert!(!report.is_whole(), "{report}");
        let found = read(&target);
        let mut missing = 0;
        for name in &names {
            let entry = (name.clone().into_bytes(), name.clone().into_bytes());
            let is_there = found
                .get(name)
                .is_some_and(|table| *table == Table::from([entry]));
            missing += u64::from(!is_there);
        }
        assert!(missing <= report.keyspaces_lost, "{missing}\n{report}");
        assert!(missing < 600, "{report}");
    }
}

#[test]
fn a_data_file_that_is_short_zero_or_gone_leaves_what_is_there() {
    let mut random = Random::new(seed(7));
    for _ in 0..rounds(8) {
        let case = Case::new();
        case.edit("data", |data| data.truncate(random.below(data.len())));
        let report = case.salvage();
        case.check(&report);
    }
    for gone in [false, true] {
        let case = Case::new();
        match gone {
            true => fs::remove_file(case.damaged().join("data")).unwrap(),
            false => case.edit("data", |data| data.fill(0)),
        }
        let report = case.salvage();
        case.check(&report);
        assert!(
            report.checkpoint.is_none() && !report.is_whole(),
            "{report}"
        );
        // What the log has is there, up to the first large value, which is gone.
        let is_unnamed = |k: &SalvagedKeyspace| k.from == SalvagedFrom::LogWithoutName;
        assert!(report.keyspaces.iter().all(is_unnamed), "{report}");
        assert!(report.log.commits > 0, "{report}");
    }
}
