//! The manifest: the file that makes a directory a backup. Lines of text with a checksum.

use std::{fmt::Write as _, path::Path};

use super::{BackupInfo, BackupKind};
use crate::{
    Result,
    error::Error,
    storage::{OpenMode, OsStorage, Storage, StorageError},
};

const FILE: &str = "backup";
const FILE_NEW: &str = "backup.new";
const FIRST_LINE: &str = "psitri backup, format 1";
const BYTES_MAX: u64 = 4096;

pub fn write(path: &Path, info: &BackupInfo) -> Result<()> {
    let mut text = format!("{FIRST_LINE}\n");
    let base = match info.kind {
        BackupKind::Full => "none".to_owned(),
        BackupKind::Incremental { base } => format!("{base:016x}"),
    };
    let BackupInfo {
        id,
        csn,
        keyspaces,
        entries,
        ..
    } = info;
    let _ = write!(
        text,
        "id {id:016x}\nbase {base}\ncommit {csn}\nkeyspaces {keyspaces}\nentries {entries}\n"
    );
    let _ = writeln!(text, "checksum {:08x}", crc32c::crc32c(text.as_bytes()));
    let storage = OsStorage::open(path)?;
    if storage.exists(FILE_NEW)? {
        storage.remove(FILE_NEW)?;
    }
    let file = storage.open(FILE_NEW, OpenMode::Create)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync_data()?;
    storage.rename(FILE_NEW, FILE)?;
    storage.sync_dir()?;
    Ok(())
}

/// What is open for writing is a backup no more. Other files of this name are none of ours.
pub fn remove(storage: &dyn Storage) -> Result<()> {
    let mut bytes = [0; FIRST_LINE.len()];
    let is_manifest = storage
        .open(FILE, OpenMode::Read)
        .and_then(|file| file.read_at(&mut bytes, 0))
        .is_ok()
        && bytes == FIRST_LINE.as_bytes();
    if is_manifest {
        storage.remove(FILE)?;
        storage.sync_dir()?;
    }
    Ok(())
}

pub fn read(path: &Path) -> Result<BackupInfo> {
    let refuse = |what: &str| Error::Backup {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let storage = match OsStorage::open(path) {
        Ok(storage) => storage,
        Err(error) => return Err(not_found(error, path)),
    };
    if !storage.exists(FILE)? {
        return Err(refuse(
            "there is no backup here, or one that was not finished",
        ));
    }
    let file = storage.open(FILE, OpenMode::Read)?;
    let mut bytes = vec![0; file.len()?.min(BYTES_MAX) as usize];
    file.read_at(&mut bytes, 0)?;
    parse(&bytes).ok_or_else(|| refuse("its manifest is damaged, or of a newer release"))
}

fn not_found(error: StorageError, path: &Path) -> Error {
    if path.is_dir() {
        return error.into();
    }
    Error::Backup {
        path: path.to_owned(),
        what: "there is no backup here".to_owned(),
    }
}

/// What a manifest says; `None` if it is none of this release.
fn parse(bytes: &[u8]) -> Option<BackupInfo> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (signed, checksum) = text.rsplit_once("checksum ")?;
    let checksum = u32::from_str_radix(checksum.strip_suffix('\n')?, 16).ok()?;
    if checksum != crc32c::crc32c(signed.as_bytes()) {
        return None;
    }
    let mut lines = signed.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let id = u64::from_str_radix(field("id")?, 16).ok()?;
    let kind = match field("base")? {
        "none" => BackupKind::Full,
        base => BackupKind::Incremental {
            base: u64::from_str_radix(base, 16).ok()?,
        },
    };
    Some(BackupInfo {
        id,
        kind,
        csn: field("commit")?.parse().ok()?,
        keyspaces: field("keyspaces")?.parse().ok()?,
        entries: field("entries")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_back_and_damage_is_noticed() {
        for kind in [BackupKind::Full, BackupKind::Incremental { base: 7 }] {
            let dir = tempfile::tempdir().unwrap();
            let info = BackupInfo {
                id: u64::MAX,
                kind,
                csn: 3,
                keyspaces: 2,
                entries: 1,
            };
            write(dir.path(), &info).unwrap();
            assert_eq!(read(dir.path()).unwrap(), info);
            let bytes = std::fs::read(dir.path().join(FILE)).unwrap();
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert_eq!(parse(&damaged), None, "byte {at}");
                assert_eq!(parse(&bytes[..at]), None, "cut at {at}");
            }
        }
    }
}
