//! Commands that copy whole databases: backups, and entries as text.
//!
//! A dump is lines of text: a first line with the format, then for each keyspace a line with its name and a line for each entry, key and value
//! with a tab between them, and a last line that says that it is complete. Bytes that are not printable are escaped, tabs and line ends among
//! them.
use crate::bar::Bar;
use crate::commands::{FOUND, Outcome, open_read_only, print_json};
use crate::failure::Failure;
use crate::text;
use psitri::{BackupInfo, BackupKind, BackupOptions, Database, Entry, Options};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const DUMP_FIRST_LINE: &str = "psitri dump, format 1";
const DUMP_KEYSPACE: &str = "keyspace ";
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

pub fn dump(path: &Path, out: &mut impl Write) -> Outcome {
    let database = open_read_only(path)?;
    let snapshot = database.snapshot();
    writeln!(out, "{DUMP_FIRST_LINE}")?;
    for name in database.keyspaces() {
        let keyspace = database.open_keyspace(&name)?;
        writeln!(out, "{DUMP_KEYSPACE}{}", text::escaped(name.as_bytes()))?;
        let mut cursor = snapshot.cursor(&keyspace)?;
        let mut found = cursor.seek_first()?;
        while found {
            let (key, value) = (text::escaped(cursor.key()), text::escaped(cursor.value()));
            writeln!(out, "{key}\t{value}")?;
            found = cursor.next()?;
        }
    }
    writeln!(out, "{DUMP_LAST_LINE}")?;
    Ok(FOUND)
}

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

    fn wrong(&self, what: &str) -> Failure {
        Failure::Usage(format!("line {} of the dump: {what}", self.number))
    }

    /// The entry on the present line; `None` if the line is of another kind.
    fn entry(&self) -> Option<Result<Entry, Failure>> {
        let tab = self.line.iter().position(|&byte| byte == b'\t')?;
        let (key, value) = (&self.line[..tab], &self.line[tab + 1..]);
        let entry = text::unescaped(key).zip(text::unescaped(value));
        Some(entry.ok_or_else(|| self.wrong("an escape that nothing is written as")))
    }
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
        let name = (lines.line.strip_prefix(DUMP_KEYSPACE.as_bytes()))
            .and_then(text::unescaped)
            .and_then(|name| String::from_utf8(name).ok())
            .ok_or_else(|| lines.wrong("the name of a keyspace is expected"))?;
        let keyspace = database.keyspace(&name)?;
        let mut failure = None;
        let mut transaction = database.begin_direct(&[&keyspace])?;
        let read = std::iter::from_fn(|| {
            let next = lines.advance().and_then(|whole| {
                is_whole = whole;
                lines.entry().filter(|_| whole).transpose()
            });
            next.unwrap_or_else(|error| {
                failure = Some(error);
                None
            })
        });
        entries += transaction.ingest(&keyspace, read)?;
        if let Some(failure) = failure {
            return Err(failure);
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
