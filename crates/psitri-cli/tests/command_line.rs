//! What users of the command line see: output, exit codes, messages.
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn psitri(arguments: &[&str]) -> Ran {
    psitri_with_input(arguments, b"")
}

fn psitri_with_input(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_psitri"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psitri starts");
    // A command that does not read its input may be gone already.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output().expect("psitri ends");
    Ran {
        code: output.status.code().expect("no signal"),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A database with three fruits and an entry that is not text.
struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        let db = fixture.db();
        assert_eq!(psitri(&["put", &db, "--create", "apple", "red"]).code, 0);
        for (key, value) in [("apricot", "orange"), ("banana", "yellow")] {
            assert_eq!(psitri(&["put", &db, key, value]).code, 0);
        }
        assert_eq!(psitri(&["put", &db, "--hex", "ff00", "0a"]).code, 0);
        fixture
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("db")
    }

    fn db(&self) -> String {
        self.path().to_str().expect("a text path").to_owned()
    }
}

#[test]
fn put_get_and_delete() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let got = psitri(&["get", &db, "apple"]);
    assert_eq!((got.code, got.out.as_str()), (0, "red\n"));
    assert_eq!(psitri(&["get", &db, "--hex", "ff00"]).out, "0a\n");
    assert_eq!(psitri(&["del", &db, "apple"]).code, 0);
    let got = psitri(&["get", &db, "apple"]);
    assert_eq!((got.code, got.out.as_str()), (1, ""));
    assert_eq!(psitri(&["del", &db, "apple"]).code, 1);
}

#[test]
fn a_value_from_standard_input_keeps_every_byte() {
    let fixture = Fixture::new();
    let db = fixture.db();
    assert_eq!(
        psitri_with_input(&["put", &db, "raw", "-"], b"\x00line\n").code,
        0
    );
    assert_eq!(psitri(&["get", &db, "raw"]).out, "\0line\n\n");
}

#[test]
fn scans_go_both_ways_and_keep_to_prefix_and_limit() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let all = "apple\tred\napricot\torange\nbanana\tyellow\n\\xff\\x00\t\\n\n";
    assert_eq!(psitri(&["scan", &db]).out, all);
    assert_eq!(
        psitri(&["scan", &db, "--prefix", "ap"]).out,
        "apple\tred\napricot\torange\n"
    );
    assert_eq!(
        psitri(&["scan", &db, "--prefix", "ap", "--reverse"]).out,
        "apricot\torange\napple\tred\n"
    );
    assert_eq!(
        psitri(&["scan", &db, "--reverse", "--limit", "1", "--hex"]).out,
        "ff00\t0a\n"
    );
    assert_eq!(
        psitri(&["scan", &db, "--hex", "--prefix", "ff", "--reverse"]).out,
        "ff00\t0a\n"
    );
    let none = psitri(&["scan", &db, "--prefix", "zebra"]);
    assert_eq!((none.code, none.out.as_str()), (0, ""));
    assert_eq!(psitri(&["scan", &db, "--limit", "0"]).out, "");
}

#[test]
fn json_is_one_object_a_line() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let scanned = psitri(&["scan", &db, "--json"]);
    let entries: Vec<serde_json::Value> = scanned
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(entries.len(), 4);
    assert_eq!(entries[0]["key"], "apple");
    assert_eq!(entries[3]["key_hex"], "ff00");
    assert_eq!(entries[3].get("key"), None);
    let stat: serde_json::Value =
        serde_json::from_str(&psitri(&["stat", &db, "--json"]).out).expect("JSON");
    let keyspace = &stat["keyspaces"][0];
    assert_eq!(
        (&keyspace["name"], &keyspace["keys"]),
        (&"default".into(), &4.into())
    );
}

#[test]
fn keyspaces_are_apart() {
    let fixture = Fixture::new();
    let db = fixture.db();
    assert_eq!(
        psitri(&["put", &db, "--keyspace", "other", "apple", "green"]).code,
        0
    );
    assert_eq!(
        psitri(&["get", &db, "--keyspace", "other", "apple"]).out,
        "green\n"
    );
    assert_eq!(psitri(&["get", &db, "apple"]).out, "red\n");
    assert_eq!(psitri(&["keyspaces", &db]).out, "default\nother\n");
    let missing = psitri(&["get", &db, "--keyspace", "none", "apple"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("no keyspace"), "{}", missing.err);
    assert_eq!(
        psitri(&["keyspaces", &db]).out,
        "default\nother\n",
        "reading created a keyspace"
    );
}

#[test]
fn checkpoint_and_verify_pass_on_a_good_database() {
    let fixture = Fixture::new();
    let db = fixture.db();
    assert_eq!(psitri(&["checkpoint", &db]).code, 0);
    assert_eq!(psitri(&["compact", &db]).code, 0);
    let verified = psitri(&["verify", &db]);
    assert_eq!(verified.code, 0, "{}{}", verified.out, verified.err);
    assert_eq!(psitri(&["get", &db, "banana"]).out, "yellow\n");
}

#[test]
fn a_missing_database_is_named_and_not_created() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("absent");
    let db = path.to_str().expect("a text path");
    for arguments in [
        &["stat", db][..],
        &["get", db, "a"],
        &["put", db, "a", "b"],
        &["del", db, "a"],
        &["checkpoint", db],
    ] {
        let ran = psitri(arguments);
        assert_eq!(ran.code, 3, "{arguments:?}");
        assert!(ran.err.contains("no database at"), "{}", ran.err);
        assert!(!path.exists(), "{arguments:?} created it");
    }
}

#[test]
fn a_database_in_use_is_said_to_be() {
    let fixture = Fixture::new();
    let held = psitri::Database::open(fixture.path()).expect("opens");
    let ran = psitri(&["put", &fixture.db(), "a", "b"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("is locked by process"), "{}", ran.err);
    drop(held);
}

#[test]
fn a_database_in_use_is_read_at_its_last_checkpoint() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let held = psitri::Database::open(fixture.path()).expect("opens");
    held.checkpoint().expect("a checkpoint");
    let keyspace = held.keyspace("default").expect("a keyspace");
    let mut txn = held.begin(&[&keyspace]).expect("begins");
    txn.upsert(&keyspace, b"later", b"than that").expect("puts");
    txn.commit().expect("commits");
    let got = psitri(&["get", &db, "apple"]);
    assert_eq!((got.code, got.out.as_str()), (0, "red\n"), "{}", got.err);
    assert!(
        got.err.contains("reading its last checkpoint"),
        "{}",
        got.err
    );
    assert_eq!(psitri(&["get", &db, "later"]).code, 1);
    let verified = psitri(&["verify", &db]);
    assert_eq!(verified.code, 0, "{}{}", verified.out, verified.err);
    held.checkpoint().expect("a checkpoint");
    assert_eq!(psitri(&["get", &db, "later"]).out, "than that\n");
    drop(keyspace);
    held.close().expect("closes");
    assert_eq!(
        psitri(&["get", &db, "later"]).err,
        "",
        "nobody writes to it now"
    );
}

#[test]
fn damage_is_not_taken_for_a_database() {
    let fixture = Fixture::new();
    assert_eq!(psitri(&["checkpoint", &fixture.db()]).code, 0);
    overwrite(&fixture.path());
    let ran = psitri(&["get", &fixture.db(), "apple"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("cannot open"), "{}", ran.err);
}

/// Fills every file of the database with nonsense of the same length.
fn overwrite(path: &Path) {
    let files = if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("readable");
        entries
            .map(|entry| entry.expect("readable").path())
            .filter(|path| path.is_file())
            .collect()
    } else {
        vec![path.to_owned()]
    };
    for file in files {
        let bytes = std::fs::metadata(&file).expect("readable").len() as usize;
        std::fs::write(&file, vec![0x5a; bytes]).expect("writable");
    }
}

#[test]
fn salvage_rebuilds_and_says_what_is_lost() {
    let fixture = Fixture::new();
    let db = fixture.db();
    assert_eq!(psitri(&["checkpoint", &db]).code, 0);
    let at = |name: &str| {
        let path = fixture.directory.path().join(name);
        path.to_str().expect("a text path").to_owned()
    };
    let whole = psitri(&["salvage", &db, &at("copy")]);
    assert_eq!((whole.code, whole.err.as_str()), (0, ""), "{}", whole.out);
    assert!(whole.out.ends_with("nothing is lost\n"), "{}", whole.out);
    assert_eq!(
        psitri(&["dump", &at("copy")]).out,
        psitri(&["dump", &db]).out
    );

    let taken = psitri(&["salvage", &db, &at("copy")]);
    assert_eq!(taken.code, 4);
    assert!(taken.err.contains("not empty"), "{}", taken.err);
    assert_eq!(psitri(&["salvage", &at("none"), &at("new")]).code, 3);

    // The leaf has the only copy of this value.
    let data = fixture.path().join("data");
    let mut bytes = std::fs::read(&data).expect("readable");
    let found = bytes.windows(6).position(|window| window == b"yellow");
    bytes[found.expect("the value is in the file")] = b'Y';
    std::fs::write(&data, bytes).expect("writable");
    let lost = psitri(&["--json", "salvage", &db, &at("rest")]);
    assert_eq!(lost.code, 1, "{}", lost.err);
    let report: serde_json::Value = serde_json::from_str(&lost.out).expect("JSON");
    let keyspace = &report["keyspaces"][0];
    assert_eq!(
        (&report["whole"], &keyspace["keys"], &keyspace["keys_lost"]),
        (&false.into(), &0.into(), &4.into())
    );
    assert_eq!(keyspace["lost"][0]["from_hex"], "");
    assert_eq!(psitri(&["scan", &at("rest")]).out, "");
}

#[test]
fn a_dump_says_what_is_not_in_it() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let opened = psitri::Database::open(&db).expect("opens");
    let fruit = opened.open_keyspace("default").expect("exists");
    for key in [b"basket", b"cellar"] {
        opened.create_subtree(&fruit, key).expect("is made");
    }
    let mut txn = opened.begin(&[&fruit]).expect("begins");
    txn.upsert(&fruit, b"empty", b"").expect("is written");
    txn.commit().expect("is committed");
    opened.save_snapshot("monday").expect("is saved");
    drop(fruit);
    opened.close().expect("closes");

    let dump = psitri(&["dump", &db]);
    assert_eq!(dump.code, 0, "{}", dump.err);
    assert_eq!(
        dump.out,
        "psitri dump, format 1\nkeyspace default\napple\tred\napricot\torange\nbanana\tyellow\nempty\t\n\\xff\\x00\t\\n\nend\n"
    );
    assert_eq!(
        dump.err,
        "psitri: 2 keys whose values are subtrees are not in the dump; `psitri backup` copies them\npsitri: 1 saved snapshots are not in the dump\n"
    );
    let json = psitri(&["dump", &db, "--json"]);
    assert_eq!((json.code, json.out.as_str()), (2, ""));
    assert!(json.err.contains("a dump is text"), "{}", json.err);
}

#[test]
fn wrong_usage_has_its_own_code() {
    let fixture = Fixture::new();
    assert_eq!(psitri(&["nonsense"]).code, 2);
    assert_eq!(psitri(&["get", &fixture.db(), "--hex", "xyz"]).code, 2);
}

#[test]
fn backups_are_restored_and_dumps_are_loaded() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let at = |name: &str| {
        let path = fixture.directory.path().join(name);
        path.to_str().expect("a text path").to_owned()
    };
    let full = psitri(&["backup", &db, &at("full")]);
    assert_eq!((full.code, full.err.as_str()), (0, ""));
    assert!(full.out.starts_with("full backup "), "{}", full.out);
    assert!(full.out.contains("4 entries, 1 keyspaces"), "{}", full.out);
    assert_eq!(psitri(&["put", &db, "cherry", "tab\there"]).code, 0);
    assert_eq!(psitri(&["del", &db, "banana"]).code, 0);
    let next = psitri(&["--json", "backup", &db, &at("next"), "--since", &at("full")]);
    assert!(next.out.contains("\"entries\":2"), "{}", next.out);
    assert_eq!(
        psitri(&["restore", &at("again"), &at("full"), &at("next")]).code,
        0
    );

    let dump = psitri(&["dump", &db]);
    assert_eq!(
        dump.out,
        "psitri dump, format 1\nkeyspace default\napple\tred\napricot\torange\ncherry\ttab\\there\n\\xff\\x00\t\\n\nend\n"
    );
    assert_eq!(psitri(&["dump", &at("again")]).out, dump.out);
    let load = psitri_with_input(&["load", &at("loaded")], dump.out.as_bytes());
    assert_eq!(
        (load.code, load.out.as_str()),
        (0, "4 entries, 1 keyspaces\n")
    );
    assert_eq!(psitri(&["dump", &at("loaded")]).out, dump.out);

    let failures: [(&[&str], i32, &str); 3] = [
        (&["backup", &db, &at("full")], 4, "not empty"),
        (&["restore", &at("wrong"), &at("next")], 4, "incremental"),
        (&["restore", &at("wrong")], 2, "<BACKUPS>"),
    ];
    for (arguments, code, message) in failures {
        let ran = psitri(arguments);
        assert_eq!(ran.code, code, "{arguments:?}");
        assert!(ran.err.contains(message), "{}", ran.err);
    }
    for (text, message) in [
        ("something\n", "line 1 of the dump: this is no dump"),
        (&dump.out[..dump.out.len() - 5], "cut short"),
        (
            "psitri dump, format 1\nx\ty\nend\n",
            "line 2 of the dump: the name of a keyspace",
        ),
        (
            "psitri dump, format 1\nkeyspace k\na\t\\q\nend\n",
            "line 3 of the dump: an escape",
        ),
    ] {
        let ran = psitri_with_input(&["load", &at("broken")], text.as_bytes());
        assert_eq!(ran.code, 2, "{text:?}");
        assert!(ran.err.contains(message), "{}", ran.err);
    }
    let broken = psitri(&["dump", &at("broken")]);
    assert!(
        !broken.out.contains("apple"),
        "a part of a keyspace: {}",
        broken.out
    );
}

/// Runs the test [`an_owner_that_writes`] of this program in a process of its own, which opens the database and writes until it is killed.
struct Owner(std::process::Child);

impl Owner {
    fn start(path: &Path) -> Owner {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "an_owner_that_writes", "--ignored"])
            .env("PSITRI_TEST_OWNER", path)
            .stdout(Stdio::null())
            .spawn();
        Owner(child.expect("the owner starts"))
    }

    fn kill(mut self) -> u32 {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
        self.0.id()
    }
}

/// No test by itself: the process that `psitri top` looks at.
#[test]
#[ignore = "run by the tests of top, in a process of its own"]
fn an_owner_that_writes() {
    let Some(path) = std::env::var_os("PSITRI_TEST_OWNER") else {
        return;
    };
    let db = psitri::Database::open(path).expect("opens");
    let keyspace = db.keyspace("k").expect("a keyspace");
    let _snapshot = db.snapshot();
    for n in 0u64.. {
        let mut txn = db.begin(&[&keyspace]).expect("begins");
        txn.upsert(&keyspace, &n.to_be_bytes(), &[1; 100])
            .expect("writes");
        txn.commit().expect("commits");
        // Slowly, but for ever.
        if n.is_multiple_of(100) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn top_json(db: &str, code: i32) -> serde_json::Value {
    let ran = psitri(&["top", db, "--once", "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (code, ""));
    serde_json::from_str(&ran.out).expect("JSON")
}

#[test]
fn top_watches_another_process() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("db");
    let db = path.to_str().expect("a text path");
    let absent = psitri(&["top", db, "--once"]);
    assert_eq!(absent.code, 3, "{}", absent.err);
    let owner = Owner::start(&path);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while psitri(&["top", db, "--once"]).code != 0 {
        assert!(std::time::Instant::now() < deadline, "no statistics");
    }
    let seen = top_json(db, 0);
    assert_eq!(seen["process_id"], owner.0.id());
    assert_eq!(seen["stale"], false);
    assert!(seen["per_second"]["commits"].as_f64() > Some(0.0), "{seen}");
    assert!(seen["per_second"]["wal_appended_bytes"].as_f64() > Some(0.0));
    assert!(seen["figures"]["commits"].as_u64() > Some(0));
    assert_eq!(
        seen["figures"]["pins"].as_u64().map(|pins| pins > 0),
        Some(true)
    );

    let text = psitri(&["top", db, "--once"]).out;
    let process = format!("open in process {} for ", owner.0.id());
    for part in [
        process.as_str(),
        "commits /s",
        "active buffer",
        "frozen, waiting",
        "to replay",
        "oldest sees the past of",
        "data file",
        "longest free run",
        "the last took",
        "writers waited",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours: {text}");

    // The screen needs a terminal, and JSON is for one frame.
    for (arguments, part) in [
        (&["top", db][..], "no terminal"),
        (&["top", db, "--json"], "--once"),
        (&["top", db, "--interval", "0"], "seconds are allowed"),
    ] {
        let ran = psitri(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}");
        assert!(ran.err.contains(part), "{}", ran.err);
    }

    let process = owner.kill();
    // As if it had been a minute ago.
    let mut record = std::fs::read(path.join("stats")).expect("the record is still there");
    let written = u64::from_le_bytes(record[24..32].try_into().expect("8 bytes"));
    record[24..32].copy_from_slice(&(written - 61_000_000).to_le_bytes());
    let crc = crc32c::crc32c(&record[..1020]);
    record[1020..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(path.join("stats"), record).expect("writable");
    let text = psitri(&["top", db, "--once"]).out;
    assert!(text.contains("no news for 1 min "), "{text}");
    assert!(
        text.contains(&format!("process {process} was killed, or hangs")),
        "{text}"
    );
    assert_eq!(top_json(db, 1)["stale"], true);

    psitri::Database::open(&path)
        .expect("opens")
        .close()
        .expect("closes");
    let closed = psitri(&["top", db, "--once"]);
    assert_eq!(closed.code, 1);
    assert!(closed.err.contains("no statistics"), "{}", closed.err);
}

#[test]
fn no_bar_is_drawn_where_there_is_no_terminal() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let at = |name: &str| {
        let path = fixture.directory.path().join(name);
        path.to_str().expect("a text path").to_owned()
    };
    let dump = psitri(&["dump", &db]).out;
    let (copy, again, loaded) = (at("copy"), at("again"), at("loaded"));
    let commands: [&[&str]; 5] = [
        &["verify", &db],
        &["compact", &db],
        &["backup", &db, &copy],
        &["restore", &again, &copy],
        &["load", &loaded],
    ];
    for arguments in commands {
        let ran = psitri_with_input(arguments, dump.as_bytes());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn entries_expire_and_dumps_keep_their_moments() {
    let fixture = Fixture::new();
    let db = fixture.db();
    let refused = psitri(&["put", &db, "apple", "red", "--expire-after", "60"]);
    assert_eq!(refused.code, 4);
    assert!(refused.err.contains("do not expire"), "{}", refused.err);

    let put = |key: &str, more: &[&str]| {
        let put = ["put", &db, "--keyspace", "sessions", key, "v"];
        assert_eq!(psitri(&[&put[..], more].concat()).code, 0);
    };
    put("soon", &["--expire-after", "0"]);
    put("later", &["--expire-after", "1000000"]);
    put("never", &[]);
    let get = |key: &str| psitri(&["get", &db, "--keyspace", "sessions", key]).code;
    assert_eq!((get("soon"), get("later"), get("never")), (1, 0, 0));
    let stat = psitri(&["stat", &db]).out;
    assert!(
        stat.contains("sessions with 2 keys, which may expire\n"),
        "{stat}"
    );
    let stat = psitri(&["stat", &db, "--json"]).out;
    assert!(stat.contains(r#""entries_expire":true"#), "{stat}");

    let dump = psitri(&["dump", &db]).out;
    let (_, sessions) = dump
        .split_once("expiring 0 sessions\n")
        .expect("it is listed");
    let lines: Vec<Vec<&str>> = sessions.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(lines[0][0], "later");
    assert_eq!(lines[1], ["never", "v", "0"]);
    let moment: u64 = lines[0][2].parse().expect("a number");
    assert!(moment > 1_700_000_000_000, "{moment}");
    let loaded = fixture.directory.path().join("loaded");
    let loaded = loaded.to_str().expect("a text path");
    assert_eq!(
        psitri_with_input(&["load", loaded], dump.as_bytes()).code,
        0
    );
    assert_eq!(psitri(&["dump", loaded]).out, dump);
    let other = dump.replace("expiring 0 sessions", "keyspace sessions");
    let other = other.replace(lines[0][2], "").replace("\t0\n", "\n");
    let other: String = other.replace("\t\n", "\n");
    let ran = psitri_with_input(&["load", loaded], other.as_bytes());
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("its entries expire"), "{}", ran.err);
    assert_eq!(psitri(&["dump", loaded]).out, dump);

    // A default, and moments that have passed or make no sense.
    let head = "psitri dump, format 1\nexpiring 60000 k\n";
    let text = format!("{head}a\tv\t5\nb\tv\t0\nend\n");
    let path = fixture.directory.path().join("by hand");
    let path = path.to_str().expect("a text path");
    assert_eq!(psitri_with_input(&["load", path], text.as_bytes()).code, 0);
    assert_eq!(psitri(&["dump", path]).out, format!("{head}b\tv\t0\nend\n"));
    let stat = psitri(&["stat", path]).out;
    assert!(stat.contains("which expire after 60s unless"), "{stat}");
    for (lines, message) in [
        ("expiring k\n", "line 2 of the dump: the name of a keyspace"),
        (
            "expiring x k\n",
            "line 2 of the dump: the name of a keyspace",
        ),
        ("expiring 0 k\na\tv\n", "line 3 of the dump: a third column"),
        (
            "expiring 0 k\na\tv\tx\n",
            "line 3 of the dump: a third column",
        ),
        (
            "expiring 0 k\na\tv\t18446744073709551616\n",
            "line 3 of the dump: a third column",
        ),
    ] {
        let text = format!("psitri dump, format 1\n{lines}end\n");
        let broken = fixture.directory.path().join("broken");
        let broken = broken.to_str().expect("a text path");
        let ran = psitri_with_input(&["load", broken], text.as_bytes());
        assert!(ran.code == 2 || ran.code == 4, "{text:?}");
        assert!(ran.err.contains(message), "{}", ran.err);
    }
}
