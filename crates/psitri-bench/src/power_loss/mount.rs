//! A file system in an image, mounted, and how it loses its power.
//!
//! Nothing is left behind: what is mounted is unmounted when the value goes, with patience if something still uses it, and the system takes
//! the loop device away with the mount. The whole run has a mount namespace of its own where the tool `unshare` is installed, so that the
//! same happens if it is killed.
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// XFS does not make smaller ones.
const IMAGE_BYTES: u64 = 320 << 20;
/// How often an unmount is tried, and how long it waits in between, before the mount is only taken out of sight.
const UNMOUNT_TRIES: u32 = 20;
const UNMOUNT_WAIT: Duration = Duration::from_millis(50);
/// Says that the process has mounts of its own already.
const NAMESPACE_VARIABLE: &str = "PSITRI_BENCH_OWN_MOUNTS";

/// Goes on as a process whose mounts nobody else sees, and which go away with it. Returns where that is so, or cannot be.
pub fn enter_own_namespace() {
    if std::env::var_os(NAMESPACE_VARIABLE).is_some() {
        return;
    }
    let works = Command::new("unshare").args(["--mount", "true"]).output();
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    if works.is_ok_and(|output| output.status.success()) {
        // Only a failure returns, and then the run goes on as it is.
        let _ = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(NAMESPACE_VARIABLE, "1")
            .exec();
    }
}

/// Runs a tool to its end. The signal of an interrupted run does not reach it.
fn run(command: &mut Command) -> Result<()> {
    let output = command
        .process_group(0)
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

pub struct Mount {
    image: PathBuf,
    pub directory: PathBuf,
    is_mounted: bool,
}

impl Mount {
    pub fn make(parent: &Path, file_system: &str) -> Result<Mount> {
        let image = parent.join(format!("{file_system}.img"));
        fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        let force = if file_system == "xfs" { "-f" } else { "-F" };
        run(Command::new(format!("mkfs.{file_system}"))
            .args(["-q", force])
            .arg(&image))?;
        let directory = parent.join(file_system);
        fs::create_dir(&directory)?;
        let mut mount = Mount {
            image,
            directory,
            is_mounted: false,
        };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&mut self) -> Result<()> {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.image)
            .arg(&self.directory))?;
        self.is_mounted = true;
        Ok(())
    }

    /// Nothing is written from now on, what is under way excepted.
    pub fn shut_down(&self) -> Result<()> {
        run(Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(&self.directory))
    }

    pub fn mount_again(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn unmount(&mut self) -> Result<()> {
        for _ in 0..UNMOUNT_TRIES {
            if run(Command::new("umount").arg(&self.directory)).is_ok() {
                self.is_mounted = false;
                return Ok(());
            }
            // A process that was killed may not be gone altogether.
            std::thread::sleep(UNMOUNT_WAIT);
        }
        run(Command::new("umount").arg(&self.directory))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted && self.unmount().is_err() {
            // Out of sight now, and gone with the last user; there is nobody to tell.
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.directory));
        }
    }
}
