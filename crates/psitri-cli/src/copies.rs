//! Commands that copy whole databases: backups, and entries as text.
//!
//! A dump is lines of text: a first line with the format, then for each keyspace a line with its name and a line for each entry, key and value
//! with a tab between them, and a last line that says that it is complete. Bytes that are not printable are escaped, tabs and line ends among
//! them. Keys whose values are subtrees, with what is in those, and saved snapshots are left out; standard error has how many.
//!
//! The line of a keyspace whose entries expire is `expiring`, after how many milliseconds they do if they do not say themselves (0 for never),
//! and the name; its entries have a third column: the moment of their expiry in milliseconds since the Unix epoch, 0 for never.
use crate::bar::Bar;
use crate::commands::{FOUND, Outcome, keyspace_or_new, open_read_only, print_json};
use crate::failure::{Failure, warn};
use crate::text;
use psitri::{
    BackupInfo, BackupKind, BackupOptions, Database, Entry, Expiry, KeyspaceOptions, Options,
};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const DUMP_FIRST_LINE: &str = "psitri dump, format 1";
const DUMP_KEYSPACE: &str = "keyspace ";
const DUMP_EXPIRING_KEYSPACE: &str = "expiring ";
const DUMP_LAST_LINE: &str = "end";
/// Lines of a dump between two movements of the bar.
const LINES_BETWEEN_LOOKS: u64 = 1024;

pub fn backup(
    path: &Path,
    directory: &Path,
    since: &[PathBuf],
    json: bool,
    out: &mut impl Write,
) -> Outcome {
    let database = open_read_only(path)?;
    let bar = Bar::new();
    let mut report = |progress| bar.show(progress);
    let options = BackupOptions::new().since(since).progress(&mut report);
    let info = database.backup_with(directory, options)?;
    drop(bar);
    print_info(&info, json, out)?;
    Ok(FOUND)
}

fn print_info(info: &BackupInfo, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let (kind, base) = match info.kind {
        BackupKind::Full => ("full", None),
        BackupKind::Incremental { base } => ("incremental", Some(format!("{base:016x}"))),
    };
    if json {
        return print_json(
            out,
            &json!({
                "id": format!("{:016x}", info.id),
                "kind": kind,
                "base": base,
                "csn": info.csn,
                "keyspaces": info.keyspaces,
                "entries": info.entries,
            }),
        );
    }
    Ok(writeln!(
        out,
        "{kind} backup {:016x}: {} entries, {} keyspaces, commits up to {}; verified",
        info.id, info.entries, info.keyspaces, info.csn
    )?)
}

pub fn restore(path: &Path, backups: &[PathBuf], json: bool, out: &mut impl Write) -> Outcome {
    let bar = Bar::new();
    Database::restore_with(backups, path, |progress| bar.show(progress))?;
    drop(bar);
    if json {
        print_json(out, &json!({ "ok": true }))?;
    }
    Ok(FOUND)
}

pub fn dump(path: &Path, json: bool, out: &mut impl Write) -> Outcome {
    if json {
        let what = "a dump is text; leave --json out".to_owned();
        return Err(Failure::Usage(what));
    }
    let database = open_read_only(path)?;
    let mut subtrees = 0u64;
    let snapshot = database.snapshot();
    writeln!(out, "{DUMP_FIRST_LINE}")?;
    for name in database.keyspaces() {
        let keyspace = database.open_keyspace(&name)?;
        let (options, name) = (keyspace.options(), text::escaped(name.as_bytes()));
        if options.do_entries_expire() {
            let after = options.expires_after().unwrap_or_default().as_millis();
            writeln!(out, "{DUMP_EXPIRING_KEYSPACE}{after} {name}")?;
        } else {
            writeln!(out, "{DUMP_KEYSPACE}{name}")?;
        }
        let mut cursor = snapshot.cursor(&keyspace)?;
        let mut found = cursor.seek_first()?;
        while found {
            if cursor.value().is_empty() && snapshot.subtree(&keyspace, cursor.key())?.is_some() {
                subtrees += 1;
                found = cursor.next()?;
                continue;
            }
            let (key, value) = (text::escaped(cursor.key()), text::escaped(cursor.value()));
            match cursor.expiry().filter(|_| options.do_entries_expire()) {
                None => writeln!(out, "{key}\t{value}")?,
                Some(Expiry::At(at)) => {
                    let millis = at
                        .duration_since(UNIX_EPOCH)
                        .unwrap_or_default()
                        .as_millis();
                    writeln!(out, "{key}\t{value}\t{millis}")?;
                }
                Some(_) => writeln!(out, "{key}\t{value}\t0")?,
            }
            found = cursor.next()?;
        }
    }
    writeln!(out, "{DUMP_LAST_LINE}")?;
    let saved = database.saved_snapshots().len();
    if subtrees > 0 {
        warn(&format!(
            "{subtrees} keys whose values are subtrees are not in the dump; `psitri backup` copies them"
        ));
    }
    if saved > 0 {
        warn(&format!("{saved} saved snapshots are not in the dump"));
    }
    Ok(FOUND)
}

/// Key, value and moment.
type ExpiringEntry = (Vec<u8>, Vec<u8>, Expiry);

/// The lines of a dump, with their numbers.
struct Lines<'i, I> {
    input: &'i mut I,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    bar: Bar,
}

impl<I: BufRead> Lines<'_, I> {
    /// Reads the next line; false at the end.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        self.bytes += self.input.read_until(b'\n', &mut self.line)? as u64;
        if self.number.is_multiple_of(LINES_BETWEEN_LOOKS) {
            self.bar.reach(self.bytes);
        }
        let is_whole = self.line.pop_if(|last| *last == b'\n').is_some();
        self.number += 1;
        Ok(is_whole)
    }

    /// Entries up to a line that is none.
    fn read<'r, T>(
        &'r mut self,
        entry: impl Fn(&Self) -> Option<Result<T, Failure>> + 'r,
        is_whole: &'r mut bool,
        failure: &'r mut Option<Failure>,
    ) -> impl Iterator<Item = T> + 'r {
        std::iter::from_fn(move || {
            let next = self.advance().and_then(|whole| {
                *is_whole = whole;
                entry(self).filter(|_| whole).transpose()
            });
            next.unwrap_or_else(|error| {
                *failure = Some(error);
                None
            })
        })
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::Usage(format!("line {} of the dump: {what}", self.number))
    }

    /// The keyspace on the present line, and its options.
    fn keyspace(&self) -> Result<(String, KeyspaceOptions), Failure> {
        let plain = self.line.strip_prefix(DUMP_KEYSPACE.as_bytes());
        let expiring = self.line.strip_prefix(DUMP_EXPIRING_KEYSPACE.as_bytes());
        let described = match expiring {
            None => plain.map(|name| (name, KeyspaceOptions::new())),
            Some(line) => line
                .iter()
                .position(|&byte| byte == b' ')
                .and_then(|space| {
                    let options = match number(&line[..space])? {
                        0 => KeyspaceOptions::new().entries_expire(),
                        after => KeyspaceOptions::new().expire_after(Duration::from_millis(after)),
                    };
                    Some((&line[space + 1..], options))
                }),
        };
        described
            .and_then(|(name, options)| {
                let name = String::from_utf8(text::unescaped(name)?).ok()?;
                Some((name, options))
            })
            .ok_or_else(|| self.wrong("the name of a keyspace is expected"))
    }

    /// As [`Lines::entry`], of a keyspace whose entries expire.
    fn expiring_entry(&self) -> Option<Result<ExpiringEntry, Failure>> {
        let mut columns = self.line.split(|&byte| byte == b'\t');
        let (key, value) = (columns.next()?, columns.next()?);
        let expiry = match (columns.next().and_then(number), columns.next()) {
            (Some(0), None) => Expiry::Never,
            (Some(millis), None) => match UNIX_EPOCH.checked_add(Duration::from_millis(millis)) {
                Some(at) => Expiry::At(at),
                None => return Some(Err(self.wrong("a moment that is too far in the future"))),
            },
            _ => return Some(Err(self.wrong("a third column with a moment is expected"))),
        };
        let entry = text::unescaped(key).zip(text::unescaped(value));
        let entry = entry.map(|(key, value)| (key, value, expiry));
        Some(entry.ok_or_else(|| self.wrong(ESCAPE)))
    }

    /// The entry on the present line; `None` if the line is of another kind.
    fn entry(&self) -> Option<Result<Entry, Failure>> {
        let tab = self.line.iter().position(|&byte| byte == b'\t')?;
        let (key, value) = (&self.line[..tab], &self.line[tab + 1..]);
        let entry = text::unescaped(key).zip(text::unescaped(value));
        Some(entry.ok_or_else(|| self.wrong(ESCAPE)))
    }
}

const ESCAPE: &str = "an escape that nothing is written as";

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Bytes of the file that is standard input; `None` if it is something else.
pub fn input_bytes() -> Option<u64> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let metadata = input.metadata().ok()?;
    metadata.is_file().then_some(metadata.len())
}

/// `input_bytes`: length of the input, if it is known.
pub fn load(
    path: &Path,
    input: &mut impl BufRead,
    input_bytes: Option<u64>,
    json: bool,
    out: &mut impl Write,
) -> Outcome {
    let mut lines = Lines {
        input,
        line: Vec::new(),
        number: 0,
        bytes: 0,
        bar: Bar::of_bytes(input_bytes),
    };
    if !lines.advance()? || lines.line != DUMP_FIRST_LINE.as_bytes() {
        return Err(lines.wrong("this is no dump, or one of a newer release"));
    }
    let database = (Options::new().open(path)).map_err(|error| Failure::open(path, error))?;
    let (mut keyspaces, mut entries) = (0, 0);
    let mut is_whole = lines.advance()?;
    while is_whole && lines.line != DUMP_LAST_LINE.as_bytes() {
        let (name, options) = lines.keyspace()?;
        let keyspace = keyspace_or_new(&database, &name, options)?;
        let there = keyspace.options();
        if there.do_entries_expire() != options.do_entries_expire() {
            let (here, dumped) = match there.do_entries_expire() {
                true => ("expire", "do not"),
                false => ("do not expire", "do"),
            };
            let what = format!(
                "keyspace '{name}' is there already, and its entries {here}; those of the dump {dumped}"
            );
            return Err(Failure::Usage(what));
        }
        let mut failure = None;
        let mut transaction = database.begin_direct(&[&keyspace])?;
        entries += if options.do_entries_expire() {
            let read = lines.read(Lines::expiring_entry, &mut is_whole, &mut failure);
            transaction.ingest_expiring(&keyspace, read)?
        } else {
            let read = lines.read(Lines::entry, &mut is_whole, &mut failure);
            transaction.ingest(&keyspace, read)?
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !is_whole {
            // What is missing may be of this keyspace, which stays as it was.
            break;
        }
        transaction.commit()?;
        keyspaces += 1;
    }
    if !is_whole {
        return Err(lines.wrong("the dump ends here; it was cut short"));
    }
    drop(lines);
    database.close()?;
    if json {
        print_json(out, &json!({ "keyspaces": keyspaces, "entries": entries }))?;
    } else {
        writeln!(out, "{entries} entries, {keyspaces} keyspaces")?;
    }
    Ok(FOUND)
}
