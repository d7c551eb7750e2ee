//! Which cases the profiles are made of: for each of the published pages the runs that reproduce it, on the engines that belong to it.
//!
//! An engine runs where its kind is compared: key-value stores with transactions in the bank, engines in the manner of RocksDB under
//! `db-bench`, SQL engines under SQL. Every engine of the program is in at least one case.
use super::results::{Case, Page};
use crate::registry::Entry;
use crate::report::grouped;
use crate::tides;
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    #[default]
    Quick,
    Standard,
    Full,
}

impl Profile {
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }

    pub fn repeat(self) -> u32 {
        match self {
            Self::Quick | Self::Standard => 1,
            Self::Full => 5,
        }
    }

    /// Runs of what is short.
    pub fn repeat_short(self) -> u32 {
        match self {
            Self::Quick => 1,
            Self::Standard => 3,
            Self::Full => 5,
        }
    }

    pub fn timeout_seconds(self) -> u64 {
        match self {
            Self::Quick => 60,
            Self::Standard => 300,
            Self::Full => 4 * 3_600,
        }
    }

    /// The number of its column.
    fn pick(self, sizes: [u64; 3]) -> u64 {
        match self {
            Self::Quick => sizes[0],
            Self::Standard => sizes[1],
            Self::Full => sizes[2],
        }
    }
}

/// What is asked of the commands of emdb's page that take long whatever the number of records: the published numbers, or less.
#[derive(Default)]
struct Less {
    lmdb_style: &'static str,
    lmdb_style_redb: &'static str,
    /// Of the workloads that go on for a time.
    steady: &'static str,
    group_commit: &'static str,
    write_through: &'static str,
}

impl Less {
    fn of(profile: Profile) -> Less {
        match profile {
            Profile::Quick => Less {
                lmdb_style: " --individual-writes 200 --batches 20 --nosync-writes 5000 --reads 100000 --range-reads 20000",
                lmdb_style_redb: " --sorted-inserts 20000",
                steady: " --warm-up-seconds 0.05 --sample-seconds 0.1",
                group_commit: " --per-thread 50 --samples 3",
                write_through: " --samples 3",
            },
            Profile::Standard => Less {
                steady: " --samples 5 --warm-up-seconds 0.3 --sample-seconds 0.7",
                ..Less::default()
            },
            Profile::Full => Less::default(),
        }
    }
}

const TRANSACTIONAL: &[&str] = &[
    "psitri",
    "psitri-direct",
    "rocksdb",
    "rocksdb-txn",
    "mdbx",
    "mdbx-safe",
    "lmdb",
    "redb",
    "fjall",
    "canopydb",
    "sqlite",
    "tidesdb",
];
const KEY_VALUE: &[&str] = &[
    "psitri",
    "rocksdb",
    "mdbx",
    "mdbx-safe",
    "lmdb",
    "redb",
    "fjall",
    "sled",
    "canopydb",
    "bf-tree",
    "tidesdb",
];
/// Engines that the page of emdb compares, and what has been added to it since.
const EMDB_PAGE: &[&str] = &[
    "psitri",
    "emdb",
    "emdb-ranges",
    "redb",
    "sled",
    "rocksdb",
    "mdbx",
    "lmdb",
    "fjall",
    "canopydb",
    "sqlite",
];
/// Where engines run side by side on a small task, all of them do.
const EVERY: &[&str] = &[
    "psitri",
    "psitri-direct",
    "emdb",
    "emdb-ranges",
    "redb",
    "sled",
    "rocksdb",
    "mdbx",
    "lmdb",
    "fjall",
    "canopydb",
    "bf-tree",
    "sqlite",
    "redis",
    "tidesdb",
];
const LOG_STRUCTURED: &[&str] = &["psitri", "rocksdb", "tidesdb", "lmdb", "mdbx", "fjall"];
const TIDES: &[&str] = &["psitri", "rocksdb", "tidesdb", "lmdb"];
const OVERWRITE: &[&str] = &["psitri", "rocksdb", "mdbx", "fjall"];
const SQL_BANK: &[&str] = &["psitri", "sqlite"];
/// The engine that can be told of keys ahead, and the fastest of those that cannot.
const ANNOUNCED: &[&str] = &["psitri", "rocksdb", "mdbx", "lmdb", "canopydb"];
/// So slow that the bank would take half as long again, or twice as long, for them alone: 7,000 to 13,000 transfers a second at one a commit, 23,000 at 100.
const FULL_ONLY: &[&str] = &["mdbx-safe"];

/// Collects the cases for which there are engines.
struct Cases<'a> {
    built: Vec<&'a str>,
    list: Vec<Case>,
}

impl Cases<'_> {
    fn add(&mut self, page: Page, id: &str, title: &str, engines: &[&str], arguments: &str) {
        let engines: Vec<String> = engines
            .iter()
            .filter(|engine| self.built.contains(engine))
            .map(|&engine| engine.to_owned())
            .collect();
        if engines.is_empty() {
            return;
        }
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        self.list.push(Case {
            id: id.to_owned(),
            page,
            title: title.to_owned(),
            workload: arguments[0].clone(),
            arguments,
            engines,
        });
    }
}

/// The cases of a profile for the engines of a program.
pub fn of(profile: Profile, entries: &[Entry], sql_engines: &[String]) -> Vec<Case> {
    let key_value = entries.iter().map(|entry| entry.name.as_str());
    let built: Vec<&str> = key_value
        .chain(sql_engines.iter().map(String::as_str))
        .filter(|engine| profile == Profile::Full || !FULL_ONLY.contains(engine))
        .collect();
    let mut cases = Cases {
        built,
        list: Vec::new(),
    };
    bank(profile, &mut cases);
    upsert(profile, &mut cases);
    emdb(profile, &mut cases);
    sql(profile, &mut cases, sql_engines);
    tides(profile, &mut cases);
    db_bench(profile, &mut cases);
    cases.list
}

/// Ten attempts an account, as published, but for the quick profile, and for `bank-large` and the sweep of the standard one.
fn bank(profile: Profile, cases: &mut Cases<'_>) {
    let accounts = profile.pick([20_000, 100_000, 1_000_000]);
    for (batch, words, attempts) in [
        (
            1,
            "one transfer a commit",
            profile.pick([30_000, 1_000_000, 10_000_000]),
        ),
        (
            100,
            "100 transfers a commit",
            profile.pick([30_000, 1_000_000, 10_000_000]),
        ),
    ] {
        cases.add(
            Page::Bank,
            &format!("bank-batch-{batch}"),
            &format!("Bank: {} accounts, {words}", grouped(accounts)),
            TRANSACTIONAL,
            &format!(
                "bank --num-accounts {accounts} --num-transactions {attempts} --batch-size {batch}"
            ),
        );
    }
    if profile != Profile::Quick {
        let attempts = profile.pick([0, 1_000_000, 10_000_000]);
        for (batch, words) in [
            (1, "one transfer a commit"),
            (100, "100 transfers a commit"),
        ] {
            cases.add(
                Page::Bank,
                &format!("bank-batch-{batch}-one-by-one"),
                &format!(
                    "Bank: {} accounts, {words}, nothing announced, each read on its own",
                    grouped(accounts)
                ),
                ANNOUNCED,
                &format!("bank --num-accounts {accounts} --num-transactions {attempts} --batch-size {batch} --announce 0 --reads-at-once 1"),
            );
        }
        let attempts = profile.pick([0, 200_000, 10_000_000]);
        cases.add(
            Page::Bank,
            "bank-large",
            "Bank: 1,000,000 accounts, 100 transfers a commit",
            TRANSACTIONAL,
            &format!("bank --num-accounts 1000000 --num-transactions {attempts} --batch-size 100"),
        );
    }
    let attempts = profile.pick([20_000, 100_000, 2_000_000]);
    let batch_max = profile.pick([10_000, 1_000_000, 1_000_000]);
    cases.add(
        Page::Bank,
        "bank-sweep",
        "Bank: from one transfer a commit to a million",
        TRANSACTIONAL,
        &format!("bank --num-accounts {accounts} --num-transactions {attempts} --sweep --sweep-batch-max {batch_max}"),
    );
}

fn upsert(profile: Profile, cases: &mut Cases<'_>) {
    // But for the quick profile, many times what a write buffer holds: what merging costs is in the rounds.
    let rounds = profile.pick([2, 10, 200]);
    let items = profile.pick([50_000, 400_000, 1_000_000]);
    cases.add(
        Page::Upsert,
        "upsert",
        "Random upsert: 8-byte keys, 256-byte values, 100 a commit",
        KEY_VALUE,
        &format!("upsert --rounds {rounds} --items {items} --batch 100 --value-size 256"),
    );
    cases.add(
        Page::Upsert,
        "upsert-overwrite",
        "Random upsert of keys that exist",
        OVERWRITE,
        &format!(
            "upsert --rounds {rounds} --items {items} --batch 100 --value-size 256 --true-overwrite"
        ),
    );
    cases.add(
        Page::Upsert,
        "upsert-readers",
        "Random upsert beside one reader",
        OVERWRITE,
        &format!(
            "upsert --rounds {rounds} --items {items} --batch 100 --value-size 256 --readers 1"
        ),
    );
}

fn emdb(profile: Profile, cases: &mut Cases<'_>) {
    let records = profile.pick([20_000, 300_000, 5_000_000]);
    let page = Page::Emdb;
    let less = Less::of(profile);
    cases.add(
        page,
        "lmdb-style-redb",
        "LMDB-style, as redb defines it today",
        EMDB_PAGE,
        &format!(
            "lmdb-style --variant redb --records {records} --cache-mib 4096{}{}",
            less.lmdb_style, less.lmdb_style_redb
        ),
    );
    cases.add(
        page,
        "lmdb-style-emdb",
        "LMDB-style, as emdb defines it",
        EMDB_PAGE,
        &format!(
            "lmdb-style --variant emdb --records {records}{}",
            less.lmdb_style
        ),
    );
    let records = profile.pick([2_000, 20_000, 20_000]);
    cases.add(
        page,
        "comparative",
        "Inserts and reads on a small database",
        EVERY,
        &format!("comparative --records {records}{}", less.steady),
    );
    cases.add(
        page,
        "kv",
        "Insert, get and remove",
        EMDB_PAGE,
        &format!("kv{}", less.steady),
    );
    cases.add(
        page,
        "concurrent-reads",
        "Reads from one to eight threads",
        EMDB_PAGE,
        &format!("concurrent-reads --records {records}{}", less.steady),
    );
    cases.add(
        page,
        "group-commit",
        "Durable writes from eight threads",
        EMDB_PAGE,
        &format!("group-commit{}", less.group_commit),
    );
    cases.add(
        page,
        "write-through",
        "Durable writes from one thread",
        EMDB_PAGE,
        &format!("write-through{}", less.write_through),
    );
    let records = profile.pick([10_000, 100_000, 100_000]);
    cases.add(
        page,
        "index-hotpath",
        "Gets, replacements and a mix of both",
        EMDB_PAGE,
        &format!("index-hotpath --records {records}{}", less.steady),
    );
}

fn sql(profile: Profile, cases: &mut Cases<'_>, sql_engines: &[String]) {
    let sql_engines: Vec<&str> = sql_engines.iter().map(String::as_str).collect();
    let page = Page::Sqlite;
    let accounts = profile.pick([10_000, 10_000, 10_000]);
    let attempts = profile.pick([20_000, 100_000, 100_000]);
    cases.add(
        page,
        "sql-bank",
        "Bank on SQLite: 10,000 accounts, one transfer a commit",
        SQL_BANK,
        &format!("bank --num-accounts {accounts} --num-transactions {attempts}"),
    );
    let rows = profile.pick([20_000, 100_000, 100_000]);
    cases.add(
        page,
        "sql-insert",
        "INSERT: integer and text keys, autocommit and batched",
        &sql_engines,
        &format!("sql-insert --rows {rows}"),
    );
    let (subscribers, seconds) = (
        profile.pick([2_000, 20_000, 100_000]),
        profile.pick([2, 5, 10]),
    );
    let tatp: Vec<&str> = ["psitri"].into_iter().chain(sql_engines).collect();
    cases.add(
        page,
        "tatp",
        "TATP: telecom transactions",
        &tatp,
        &format!("tatp --subscribers {subscribers} --duration {seconds}"),
    );
}

fn tides(profile: Profile, cases: &mut Cases<'_>) {
    let scale = match profile {
        Profile::Quick => 0.002,
        Profile::Standard => 0.1,
        Profile::Full => 1.0,
    };
    for (name, arguments) in tides::cases(scale) {
        let operations = arguments
            .iter()
            .find_map(|argument| argument.strip_prefix("--operations="))
            .and_then(|operations| operations.parse().ok())
            .map_or_else(String::new, grouped);
        cases.add(
            Page::Tides,
            &format!("tides-{}", name.replace('_', "-")),
            &format!("{name}, {operations} operations"),
            TIDES,
            &format!("tides {}", arguments.join(" ")),
        );
    }
}

fn db_bench(profile: Profile, cases: &mut Cases<'_>) {
    let num = profile.pick([20_000, 200_000, 10_000_000]);
    cases.add(
        Page::DbBench,
        "db-bench",
        "db_bench: 16-byte keys, 100-byte values",
        LOG_STRUCTURED,
        &format!("db-bench --num {num}"),
    );
    cases.add(
        Page::DbBench,
        "db-bench-threads",
        "db_bench: reads and writes at the same time",
        LOG_STRUCTURED,
        &format!("db-bench --num {num} --benchmarks fillrandom,readwhilewriting,scanwhilewriting --threads 2"),
    );
}
