//! Backups of a database in use, full and incremental, and what is restored from them.

use std::path::PathBuf;

use psitri::{BackupKind, BackupOptions, Database};

use super::{World, check};

const CHAIN_MAX: usize = 3;

/// Backups, each with what has changed since the one before.
pub(super) struct Chain {
    directory: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl World {
    /// Another backup, and a restored database that has what is there now.
    pub(super) fn back_up(&mut self) {
        let mut chain = match self.chain.take() {
            Some(chain) if chain.paths.len() < CHAIN_MAX => chain,
            _ => Chain {
                directory: tempfile::tempdir().unwrap(),
                paths: Vec::new(),
            },
        };
        let path = chain
            .directory
            .path()
            .join(format!("backup {}", chain.paths.len()));
        let options = BackupOptions::new().since(&chain.paths);
        let info = self.db().backup_with(&path, options).unwrap();
        assert_eq!(info.kind == BackupKind::Full, chain.paths.is_empty());
        chain.paths.push(path);
        let place = chain.directory.path().join("restored");
        Database::restore(&chain.paths, &place).unwrap();
        let restored = self.by_the_clock().open(&place).unwrap();
        let live = self.oracle.live();
        assert_eq!(restored.keyspaces().len(), live.len());
        for table in live {
            let model = &self.oracle.tables[table];
            let keyspace = restored.open_keyspace(&model.name).unwrap();
            check::all(&restored.snapshot(), &keyspace, &model.entries(self.time()));
        }
        restored.close().unwrap();
        std::fs::remove_dir_all(&place).unwrap();
        self.chain = Some(chain);
    }
}
