//! How much disk a database takes: its files, logs and free space included, whatever the engine itself reports.
use std::fs;
use std::io;
use std::path::Path;

/// Sizes of all files of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Sum of the lengths of the files.
    pub length_bytes: u64,
    /// Sum of what the file system has given to them; less than the length for sparse files.
    pub allocated_bytes: u64,
}

/// Measures `path`: a directory with everything below it, or a file with its siblings whose names begin with its own (`db`, `db-wal`).
///
/// Files that vanish while being measured (logs are recycled at any time) count as nothing.
pub fn usage(path: &Path) -> io::Result<DiskUsage> {
    let mut total = DiskUsage::default();
    if path.is_dir() {
        add_directory(path, &mut total)?;
    } else if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        for entry in fs::read_dir(parent)? {
            let entry = entry?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(name.as_encoded_bytes())
            {
                add_entry(&entry.path(), &mut total)?;
            }
        }
    }
    Ok(total)
}

/// Sizes of one file; nothing if it is not there any more.
pub fn file_usage(path: &Path) -> io::Result<DiskUsage> {
    let mut total = DiskUsage::default();
    add_entry(path, &mut total)?;
    Ok(total)
}

fn add_directory(path: &Path, total: &mut DiskUsage) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        add_entry(&entry?.path(), total)?;
    }
    Ok(())
}

fn add_entry(path: &Path, total: &mut DiskUsage) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if metadata.is_dir() {
        return add_directory(path, total);
    }
    total.length_bytes += metadata.len();
    total.allocated_bytes += allocated(&metadata);
    Ok(())
}

#[cfg(unix)]
fn allocated(metadata: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    metadata.blocks() * 512
}

#[cfg(not(unix))]
fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_siblings_are_summed() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        fs::create_dir(directory.path().join("below"))?;
        fs::write(directory.path().join("db"), [0; 100])?;
        fs::write(directory.path().join("db-wal"), [0; 30])?;
        fs::write(directory.path().join("below/other"), [0; 7])?;
        assert_eq!(usage(directory.path())?.length_bytes, 137);
        assert_eq!(usage(&directory.path().join("db"))?.length_bytes, 130);
        Ok(())
    }
}
