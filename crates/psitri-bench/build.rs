//! Tells the program of which commit its sources are: results are not worth much without, and the program is run in other directories than
//! that of its sources.
//!
//! Without git, or where the sources are in no repository, the commit is not known, which is no error.
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is compiled again with this package anyway, so that watching it costs nothing.
const WATCHED: [&str; 2] = ["src", "../psitri/src"];
/// The sources of the other engines, and how everything is compiled. A change of these alone is noticed the next time that something of the above is
/// compiled.
const OTHERS: [&str; 4] = [
    "../psitri-bench-peers/src",
    "../../Cargo.toml",
    "../../Cargo.lock",
    "../../.cargo",
];

fn main() {
    // Without any such line, cargo runs this again for each file of the package that changes.
    println!("cargo::rerun-if-changed=build.rs");
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return;
    };
    // Unpacked inside of a repository that is not theirs, the sources are of none of its commits.
    if git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_none() {
        return;
    }
    let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--"];
    status.extend(WATCHED);
    status.extend(OTHERS);
    let is_changed = git(&status).is_none_or(|changes| !changes.is_empty());
    let changes = if is_changed { " with changes" } else { "" };
    println!("cargo::rustc-env=PSITRI_BENCH_COMMIT={commit}{changes}");
    watch();
}

/// What another commit or another change of the sources would change.
fn watch() {
    // In a worktree `.git` is a file, so git is asked where its files are.
    let path = |name: &str| git(&["rev-parse", "--git-path", name]).map(PathBuf::from);
    let mut watched: Vec<PathBuf> = WATCHED.map(PathBuf::from).to_vec();
    watched.extend(path("HEAD"));
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        // A packed branch has no file of its own until the next commit makes one in this directory. Cargo would take a file that is not
        // there for one that has changed, and compile everything each time.
        let exists = |path: &&Path| path.exists();
        let branch = path(&branch);
        let nearest = branch
            .iter()
            .flat_map(|path| path.ancestors())
            .find(exists)
            .map(Path::to_owned);
        watched.extend(nearest);
        watched.extend(path("packed-refs").filter(|path| path.exists()));
    }
    for path in watched {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// What git prints in the directory of this package, which is where cargo starts this; nothing if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
