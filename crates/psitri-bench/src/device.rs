//! How much a device has written.
//!
//! The kernel's count for a process ([`usage`](crate::usage)) says how much became dirty in the page cache, in the units of the cache: a store of a few bytes may make 64 KiB
//! dirty and count as these, after every flush once more. With PsiTri that was 2.5 to 4 times what the drive wrote. So the device is asked.
//!
//! That needs a file system on a block device that the kernel knows, on Linux; elsewhere there is no figure. Whatever else writes to the device
//! counts, too.
use std::io;
use std::path::{Path, PathBuf};

/// What the device of a file system writes from some moment on.
pub struct DeviceWrites {
    directory: PathBuf,
    before: Option<u64>,
}

impl DeviceWrites {
    /// Begins to count, after a flush of the file system: what is dirty from before is not counted. `path`: of a database that exists.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let directory = if path.is_dir() {
            path
        } else {
            path.parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
        };
        let mut writes = Self {
            directory: directory.to_owned(),
            before: None,
        };
        writes.before = writes.written()?;
        Ok(writes)
    }

    /// Bytes since then, with what a flush writes now.
    pub fn end(&self) -> io::Result<Option<u64>> {
        Ok(self
            .written()?
            .zip(self.before)
            .map(|(now, then)| now - then))
    }

    #[cfg(target_os = "linux")]
    fn written(&self) -> io::Result<Option<u64>> {
        use std::fs::{self, File};
        use std::os::unix::fs::MetadataExt;

        const SECTOR_BYTES: u64 = 512;
        let directory = File::open(&self.directory)?;
        rustix::fs::syncfs(&directory)?;
        let device = directory.metadata()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        // File systems that are not on one device have a number that is none of a device.
        let Ok(figures) = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")) else {
            return Ok(None);
        };
        let sectors = figures.split_ascii_whitespace().nth(6);
        let sectors = sectors.and_then(|sectors| sectors.parse::<u64>().ok());
        Ok(sectors.map(|sectors| sectors * SECTOR_BYTES))
    }

    #[cfg(not(target_os = "linux"))]
    fn written(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn what_is_written_is_counted_where_there_is_a_device() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let writes = DeviceWrites::begin(directory.path()).unwrap();
        let mut file = File::create(directory.path().join("file")).unwrap();
        let bytes: Vec<u8> = (0..4u32 << 18).flat_map(|n| n.to_le_bytes()).collect();
        file.write_all(&bytes).unwrap();
        if let Some(written) = writes.end().unwrap() {
            assert!(written >= bytes.len() as u64, "{written}");
        }
    }
}
