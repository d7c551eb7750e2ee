//! What each command does.
use crate::arguments::{Cli, Command, Target};
use crate::bar::Bar;
use crate::copies;
use crate::failure::{Failure, NOT_FOUND, warn};
use crate::salvage;
use crate::text;
use crate::top;
use psitri::{Database, Error, Expiry, Keyspace, KeyspaceOptions, Options, Snapshot, StorageError};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub type Outcome = Result<ExitCode, Failure>;

pub const FOUND: ExitCode = ExitCode::SUCCESS;

pub fn run(cli: &Cli, out: &mut impl Write) -> Outcome {
    let json = cli.json;
    match &cli.command {
        Command::Stat { database } => stat(database, json, out),
        Command::Top {
            database,
            interval,
            once,
        } => top::top(database, *interval, *once, json, out),
        Command::Verify { database } => verify(database, json, out),
        Command::Get { target, key } => get(target, key, json, out),
        Command::Put {
            target,
            key,
            value,
            create,
            expire_after,
        } => {
            let expiry = expire_after.map(|seconds| Expiry::After(Duration::from_secs(seconds)));
            put(target, key, value, *create, expiry, json, out)
        }
        Command::Del { target, key } => delete(target, key, json, out),
        Command::Scan {
            target,
            prefix,
            limit,
            reverse,
        } => scan(target, prefix, *limit, *reverse, json, out),
        Command::Keyspaces { database } => keyspaces(database, json, out),
        Command::Compact { database } => compact(database, json, out),
        Command::Checkpoint { database } => checkpoint(database, json, out),
        Command::Backup {
            database,
            directory,
            since,
        } => copies::backup(database, directory, since, json, out),
        Command::Restore { database, backups } => copies::restore(database, backups, json, out),
        Command::Salvage {
            damaged,
            target,
            past_damage,
        } => salvage::salvage(damaged, target, *past_damage, json, out),
        Command::Dump { database } => copies::dump(database, json, out),
        Command::Load { database } => {
            let bytes = copies::input_bytes();
            copies::load(database, &mut io::stdin().lock(), bytes, json, out)
        }
    }
}

/// Opens a database for reading; beside the process that writes to it, if there is one.
pub fn open_read_only(path: &Path) -> Result<Database, Failure> {
    let opened = match Options::new().open_read_only(path) {
        Err(Error::Storage(StorageError::Locked { holder, .. })) => {
            let who = holder.map_or("another process".to_owned(), |id| format!("process {id}"));
            warn(&format!(
                "{who} writes to the database; reading its last checkpoint"
            ));
            Options::new().open_beside_writer(path)
        }
        opened => opened,
    };
    opened.map_err(|error| Failure::open(path, error))
}

fn open_existing(path: &Path) -> Result<Database, Failure> {
    Options::new()
        .open_existing(path)
        .map_err(|error| Failure::open(path, error))
}

/// The keyspace, which a command that reads or deletes must not create.
fn existing_keyspace(database: &Database, name: &str) -> Result<Keyspace, Failure> {
    if !database
        .keyspaces()
        .iter()
        .any(|existing| existing.as_str() == name)
    {
        return Err(Failure::NoKeyspace(name.to_owned()));
    }
    Ok(database.open_keyspace(name)?)
}

/// The keyspace; made with these options if there is none.
pub fn keyspace_or_new(
    database: &Database,
    name: &str,
    options: KeyspaceOptions,
) -> Result<Keyspace, Error> {
    match database.open_keyspace(name) {
        Err(Error::KeyspaceNotFound { .. }) => database.create_keyspace_with(name, options),
        found => found,
    }
}

pub fn not_found() -> ExitCode {
    ExitCode::from(NOT_FOUND)
}

/// Prints what a command has found out. Its exit code says that too, and stands if nobody reads what is printed.
pub fn print_verdict(out: &mut impl Write, verdict: &dyn fmt::Display) -> Result<(), Failure> {
    match writeln!(out, "{verdict}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

pub fn print_json(out: &mut impl Write, value: &Value) -> Result<(), Failure> {
    Ok(writeln!(out, "{value}")?)
}

/// A key or a value in JSON: always as digits, and as text where it is text.
fn bytes_json(name: &str, bytes: &[u8], object: &mut serde_json::Map<String, Value>) {
    object.insert(format!("{name}_hex"), text::hex(bytes).into());
    if let Ok(text) = std::str::from_utf8(bytes) {
        object.insert(name.to_owned(), text.into());
    }
}

fn entry_json(key: &[u8], value: &[u8]) -> Value {
    let mut object = serde_json::Map::new();
    bytes_json("key", key, &mut object);
    bytes_json("value", value, &mut object);
    Value::Object(object)
}

fn stat(path: &Path, json: bool, out: &mut impl Write) -> Outcome {
    let database = open_read_only(path)?;
    let stats = database.stats()?;
    let snapshot = database.snapshot();
    let mut keyspaces = Vec::new();
    for name in database.keyspaces() {
        let keyspace = database.open_keyspace(&name)?;
        let keys = snapshot.count(&keyspace, ..)?;
        keyspaces.push((name, keys, keyspace.options()));
    }
    let figures = [
        ("file_bytes", json!(stats.file_bytes)),
        ("wal_bytes", json!(stats.wal_bytes)),
        ("reachable_bytes", json!(stats.reachable_bytes)),
        ("free_bytes", json!(stats.free_bytes)),
        ("csn", json!(stats.csn)),
    ];
    if json {
        let mut object: serde_json::Map<_, _> = figures
            .into_iter()
            .map(|(name, figure)| (name.to_owned(), figure))
            .collect();
        let keyspaces = keyspaces.iter().map(|(name, keys, options)| {
            json!({
                "name": name,
                "keys": keys,
                "entries_expire": options.do_entries_expire(),
                "expire_after_ms": options.expires_after().map(|after| after.as_millis() as u64),
            })
        });
        object.insert("keyspaces".to_owned(), keyspaces.collect());
        print_json(out, &Value::Object(object))?;
    } else {
        for (name, figure) in &figures {
            writeln!(out, "{name:<18} {figure}")?;
        }
        for (name, keys, options) in &keyspaces {
            let expiry = match options.expires_after() {
                Some(after) => format!(", which expire after {after:?} unless they say themselves"),
                None if options.do_entries_expire() => ", which may expire".to_owned(),
                None => String::new(),
            };
            writeln!(
                out,
                "keyspace           {} with {keys} keys{expiry}",
                text::escaped(name.as_bytes()),
            )?;
        }
    }
    Ok(FOUND)
}

fn verify(path: &Path, json: bool, out: &mut impl Write) -> Outcome {
    let bar = Bar::new();
    let report = open_read_only(path)?.verify_with(|progress| bar.show(progress))?;
    drop(bar);
    let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    if json {
        let found = json!({ "ok": errors.is_empty(), "keys": report.keys, "errors": errors });
        print_verdict(out, &found)?;
    } else if errors.is_empty() {
        print_verdict(out, &format!("no damage found in {} keys", report.keys))?;
    } else {
        let places = errors.join("\n");
        print_verdict(
            out,
            &format!(
                "{places}\ndamage in {} places, the first of each tree; salvage tells how much is lost",
                errors.len()
            ),
        )?;
    }
    Ok(if errors.is_empty() {
        FOUND
    } else {
        not_found()
    })
}

fn get(target: &Target, key: &str, json: bool, out: &mut impl Write) -> Outcome {
    let key = text::parse(key, target.hex)?;
    let database = open_read_only(&target.database)?;
    let keyspace = existing_keyspace(&database, &target.keyspace)?;
    let Some(value) = database.get(&keyspace, &key)? else {
        return Ok(not_found());
    };
    if json {
        print_json(out, &entry_json(&key, &value))?;
    } else if target.hex {
        writeln!(out, "{}", text::hex(&value))?;
    } else {
        // As it is, so that a value can be piped on; a line end is added for people.
        out.write_all(&value)?;
        writeln!(out)?;
    }
    Ok(FOUND)
}

fn put(
    target: &Target,
    key: &str,
    value: &str,
    create: bool,
    expiry: Option<Expiry>,
    json: bool,
    out: &mut impl Write,
) -> Outcome {
    let key = text::parse(key, target.hex)?;
    let value = if value == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes)?;
        bytes
    } else {
        text::parse(value, target.hex)?
    };
    let path = &target.database;
    let database = if create {
        Options::new()
            .open(path)
            .map_err(|error| Failure::Open(path.clone(), error))?
    } else {
        open_existing(path)?
    };
    let options = match expiry {
        None => KeyspaceOptions::new(),
        Some(_) => KeyspaceOptions::new().entries_expire(),
    };
    let keyspace = keyspace_or_new(&database, &target.keyspace, options)?;
    let mut transaction = database.begin(&[&keyspace])?;
    match expiry {
        None => transaction.upsert(&keyspace, &key, &value)?,
        Some(expiry) => transaction.upsert_expiring(&keyspace, &key, &value, expiry)?,
    }
    transaction.commit()?;
    drop(keyspace);
    database.close()?;
    if json {
        print_json(out, &json!({ "ok": true }))?;
    }
    Ok(FOUND)
}

fn delete(target: &Target, key: &str, json: bool, out: &mut impl Write) -> Outcome {
    let key = text::parse(key, target.hex)?;
    let database = open_existing(&target.database)?;
    let keyspace = existing_keyspace(&database, &target.keyspace)?;
    let mut transaction = database.begin(&[&keyspace])?;
    let removed = transaction.remove(&keyspace, &key)?;
    transaction.commit()?;
    drop(keyspace);
    database.close()?;
    if json {
        print_json(out, &json!({ "ok": true, "removed": removed }))?;
    }
    Ok(if removed { FOUND } else { not_found() })
}

fn scan(
    target: &Target,
    prefix: &str,
    limit: Option<u64>,
    reverse: bool,
    json: bool,
    out: &mut impl Write,
) -> Outcome {
    let prefix = text::parse(prefix, target.hex)?;
    let database = open_read_only(&target.database)?;
    let keyspace = existing_keyspace(&database, &target.keyspace)?;
    let snapshot = database.snapshot();
    let mut print = |key: &[u8], value: &[u8]| {
        if json {
            return print_json(out, &entry_json(key, value));
        }
        Ok(writeln!(
            out,
            "{}\t{}",
            text::show(key, target.hex),
            text::show(value, target.hex)
        )?)
    };
    visit(
        &snapshot,
        &keyspace,
        &prefix,
        limit.unwrap_or(u64::MAX),
        reverse,
        &mut print,
    )?;
    Ok(FOUND)
}

/// Calls `each` for at most `limit` entries whose keys begin with `prefix`.
fn visit(
    snapshot: &Snapshot,
    keyspace: &Keyspace,
    prefix: &[u8],
    limit: u64,
    reverse: bool,
    each: &mut impl FnMut(&[u8], &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut cursor = snapshot.cursor(keyspace)?.with_prefix(prefix);
    let mut left = limit;
    let mut found = if reverse {
        cursor.seek_last()?
    } else {
        cursor.seek_first()?
    };
    while found && left > 0 {
        each(cursor.key(), cursor.value())?;
        left -= 1;
        found = if reverse {
            cursor.prev()?
        } else {
            cursor.next()?
        };
    }
    Ok(())
}

fn keyspaces(path: &Path, json: bool, out: &mut impl Write) -> Outcome {
    let names = open_read_only(path)?.keyspaces();
    if json {
        print_json(out, &json!(names))?;
    } else {
        for name in &names {
            writeln!(out, "{}", text::escaped(name.as_bytes()))?;
        }
    }
    Ok(FOUND)
}

fn compact(path: &Path, json: bool, out: &mut impl Write) -> Outcome {
    let database = open_existing(path)?;
    let before = database.stats()?.file_bytes;
    let bar = Bar::new();
    database.compact_with(|progress| bar.show(progress))?;
    drop(bar);
    let after = database.stats()?.file_bytes;
    database.close()?;
    if json {
        print_json(
            out,
            &json!({ "file_bytes_before": before, "file_bytes_after": after }),
        )?;
    } else {
        writeln!(out, "{before} bytes before, {after} after")?;
    }
    Ok(FOUND)
}

fn checkpoint(path: &Path, json: bool, out: &mut impl Write) -> Outcome {
    let database = open_existing(path)?;
    database.checkpoint()?;
    database.close()?;
    if json {
        print_json(out, &json!({ "ok": true }))?;
    }
    Ok(FOUND)
}
