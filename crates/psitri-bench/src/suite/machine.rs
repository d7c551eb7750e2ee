//! What a run says about the machine. What cannot be found out is empty, never guessed.
use super::results::Machine;
use std::fs;
use std::path::Path;
use std::process::Command;

pub fn this(directory: &Path) -> Machine {
    Machine {
        cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
        memory_bytes: field("/proc/meminfo", "MemTotal")
            .and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024),
        kernel: kernel().unwrap_or_default(),
        filesystem: filesystem(directory).unwrap_or_default(),
        rustc: output("rustc", &["--version"]).unwrap_or_default(),
    }
}

/// The commit of the sources that this program was compiled from, marked if they differed from it; the build script finds it out.
pub fn commit() -> Option<String> {
    option_env!("PSITRI_BENCH_COMMIT").map(str::to_owned)
}

/// The first value of a `name : value` line.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn kernel() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(format!("Linux {}", release.trim()))
}

/// Type of the file system whose mount point is the longest that holds `directory`.
fn filesystem(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (point, kind) = (words.next()?, words.next()?);
            directory
                .starts_with(point)
                .then(|| (point.len(), kind.to_owned()))
        })
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
