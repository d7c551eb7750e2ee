//! The runs of the original tool's comparison script, by the names they have there.
//!
//! Eight threads, no flush of commits, keys of 16 and values of 100 bytes unless the name says otherwise; a cache of blocks and a write
//! buffer of 64 MiB each, which are the tool's own. Where there are fewer operations, both are smaller by as much, or a run that is meant
//! to flush and merge would end in its first buffer. What the script calls random is the pattern `random32`: the published runs are older
//! than the one in which keys collide.
//!
//! Six runs are added: puts and gets in an order that is random, puts of values that can be compressed, with compression, and gets, seeks and ranges
//! with a cache for everything. The tool's own cache holds a twentieth, which binds the engines that keep blocks of their own, and not those that read
//! where the system has mapped the file.

/// Of the cache and of the write buffer, with as many operations as published.
const CACHE_MIB: u64 = 64;

/// Of a cache that has room for everything, with as many operations as published; and for the smallest scales.
const CACHED_MIB: (u64, u64) = (2048, 32);
const CACHED: [&str; 3] = [
    "read_random_10M_t8",
    "seek_random_5M_t8",
    "range_random_100_1M_t8",
];

const COMPRESSED: &str = "write_random_compressed_10M_t8_b1000";

/// Name and arguments of each run. `scale` shrinks the number of operations, the cache and the write buffer: 0.01 makes ten million a
/// hundred thousand. Neither cache nor buffer is smaller than a mebibyte.
pub fn cases(scale: f64) -> Vec<(String, Vec<String>)> {
    let mut cases = cases_of_the_tool(scale);
    let (all, least) = CACHED_MIB;
    let cached_mib = ((all as f64 * scale) as u64).max(least);
    for name in CACHED {
        let found = cases.iter().find(|(other, _)| other == name);
        let (_, arguments) = found.expect("it was just added").clone();
        let name = format!("{name}_cached");
        let arguments = arguments
            .into_iter()
            .map(|argument| match argument.split('=').next() {
                Some("--test-name") => format!("--test-name={name}"),
                Some("--cache-mib") => format!("--cache-mib={cached_mib}"),
                _ => argument,
            });
        let arguments = arguments.collect();
        cases.push((name, arguments));
    }
    cases
}

fn cases_of_the_tool(scale: f64) -> Vec<(String, Vec<String>)> {
    let cache_mib = ((CACHE_MIB as f64 * scale) as u64).max(1);
    let mut cases = Vec::new();
    let mut add =
        |name: &str, workload: &str, pattern: &str, operations: u64, more: &[(&str, u64)]| {
            let operations = ((operations as f64 * scale) as u64).max(1);
            let pattern = if pattern == "random" {
                "random32"
            } else {
                pattern
            };
            let mut arguments = vec![
                format!("--test-name={name}"),
                format!("--workload={workload}"),
                format!("--pattern={pattern}"),
                format!("--operations={operations}"),
                "--threads=8".to_owned(),
                format!("--cache-mib={cache_mib}"),
                format!("--write-buffer-mib={cache_mib}"),
            ];
            arguments.extend(
                more.iter()
                    .map(|(option, value)| format!("--{option}={value}")),
            );
            cases.push((name.to_owned(), arguments));
        };
    const MILLION: u64 = 1_000_000;
    let batch = [("batch", 1_000)];

    add(
        "write_seq_10M_t8_b1000",
        "write",
        "seq",
        10 * MILLION,
        &batch,
    );
    add(
        "write_random_10M_t8_b1000",
        "write",
        "random",
        10 * MILLION,
        &batch,
    );
    add("read_random_10M_t8", "read", "random", 10 * MILLION, &[]);
    add(
        "mixed_random_5M_t8_b1000",
        "mixed",
        "random",
        5 * MILLION,
        &batch,
    );
    add(
        "write_zipfian_5M_t8_b1000",
        "write",
        "zipfian",
        5 * MILLION,
        &batch,
    );
    add(
        "mixed_zipfian_5M_t8_b1000",
        "mixed",
        "zipfian",
        5 * MILLION,
        &batch,
    );
    add(
        "delete_random_5M_t8_b1000",
        "delete",
        "random",
        5 * MILLION,
        &batch,
    );
    add(
        "write_large_values_1M_k256_v4096_t8_b1000",
        "write",
        "random",
        MILLION,
        &[("batch", 1_000), ("key-size", 256), ("value-size", 4_096)],
    );
    add(
        "write_small_values_50M_k16_v64_t8_b1000",
        "write",
        "random",
        50 * MILLION,
        &[("batch", 1_000), ("value-size", 64)],
    );
    for batch in [1, 10, 100, 1_000, 10_000] {
        let name = format!("batch_{batch}_10M_t8");
        add(&name, "write", "random", 10 * MILLION, &[("batch", batch)]);
    }
    for batch in [1, 100, 1_000] {
        let name = format!("delete_batch_{batch}_5M_t8");
        add(&name, "delete", "random", 5 * MILLION, &[("batch", batch)]);
    }
    for pattern in ["random", "seq", "zipfian"] {
        add(
            &format!("seek_{pattern}_5M_t8"),
            "seek",
            pattern,
            5 * MILLION,
            &[],
        );
    }
    for (pattern, range_size, operations, label) in [
        ("random", 100, MILLION, "1M"),
        ("random", 1_000, MILLION / 2, "500K"),
        ("seq", 100, MILLION, "1M"),
    ] {
        let name = format!("range_{pattern}_{range_size}_{label}_t8");
        add(
            &name,
            "range",
            pattern,
            operations,
            &[("range-size", range_size)],
        );
    }
    add(
        "write_permutation_10M_t8_b1000",
        "write",
        "permutation",
        10 * MILLION,
        &batch,
    );
    add(
        "read_permutation_10M_t8",
        "read",
        "permutation",
        10 * MILLION,
        &[],
    );
    add(COMPRESSED, "write", "random", 10 * MILLION, &batch);
    if let Some((_, arguments)) = cases.iter_mut().find(|(name, _)| name == COMPRESSED) {
        arguments.extend(["--values=compressible", "--compression=lz4"].map(str::to_owned));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tides::TidesConfig;
    use clap::Parser;
    use std::collections::HashSet;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        config: TidesConfig,
    }

    #[test]
    fn every_case_is_a_valid_command_with_a_name_of_its_own() {
        let cases = cases(0.001);
        let names: HashSet<_> = cases.iter().map(|(name, _)| name).collect();
        assert_eq!((cases.len(), names.len()), (29, 29));
        for (name, arguments) in &cases {
            let all = std::iter::once("test".to_owned()).chain(arguments.iter().cloned());
            let config = Command::try_parse_from(all)
                .expect("valid arguments")
                .config;
            assert_eq!((&config.test_name, config.threads), (name, 8));
            assert!(config.operations <= 50_000);
        }
    }

    #[test]
    fn caches_shrink_with_the_operations() {
        for (scale, mib) in [(1.0, 64), (0.1, 6), (0.001, 1)] {
            for (name, arguments) in cases_of_the_tool(scale) {
                for option in ["cache", "write-buffer"] {
                    let expected = format!("--{option}-mib={mib}");
                    assert!(arguments.contains(&expected), "{name}: {expected}");
                }
            }
            let cached = cases(scale).split_off(cases_of_the_tool(scale).len());
            assert_eq!(cached.len(), CACHED.len());
            for (name, arguments) in cached {
                assert!(name.ends_with("_cached"), "{name}");
                let is_cache = |argument: &&String| argument.starts_with("--cache-mib=");
                let caches: Vec<_> = arguments.iter().filter(is_cache).collect();
                let expected = format!("--cache-mib={}", ((2048.0 * scale) as u64).max(32));
                assert_eq!(caches, [&expected]);
            }
        }
    }
}
