//! A row of the file of figures: the columns of the original tool, all of them in every row.
//!
//! Latencies are in microseconds with three digits behind the point. Memory is the peak of the process. Figures that the system does not
//! give are empty.
use super::config::TidesConfig;
use crate::engine::SyncMode;
use crate::report::Phase;
use serde::Serialize;

/// What belongs to a whole run and stands in each of its rows.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    pub resident_bytes_peak: Option<u64>,
    pub address_space_bytes_peak: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub user_seconds: Option<f64>,
    pub system_seconds: Option<f64>,
    pub cpu_percent: Option<f64>,
    pub database_bytes: u64,
    pub write_amplification: Option<f64>,
    pub read_amplification: Option<f64>,
    pub space_amplification: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    engine: String,
    test_name: String,
    operation: &'static str,
    ops_per_sec: f64,
    duration_sec: f64,
    avg_latency_us: Option<f64>,
    stddev_us: Option<f64>,
    cv_percent: Option<f64>,
    p50_us: Option<f64>,
    p95_us: Option<f64>,
    p99_us: Option<f64>,
    min_us: Option<f64>,
    max_us: Option<f64>,
    peak_rss_mb: Option<f64>,
    peak_vms_mb: Option<f64>,
    disk_read_mb: Option<f64>,
    disk_write_mb: Option<f64>,
    cpu_user_sec: Option<f64>,
    cpu_sys_sec: Option<f64>,
    cpu_percent: Option<f64>,
    db_size_mb: f64,
    write_amp: Option<f64>,
    read_amp: Option<f64>,
    space_amp: Option<f64>,
    workload: &'static str,
    pattern: &'static str,
    threads: u64,
    num_operations: u64,
    batch_size: u64,
    key_size: u64,
    value_size: u64,
    range_size: u64,
    sync_enabled: u8,
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 20)
}

impl Row {
    /// Nothing for phases that are no operation of the original.
    pub fn new(
        engine: &str,
        config: &TidesConfig,
        phase: &Phase,
        resources: &Resources,
    ) -> Option<Self> {
        let operation = match phase.name.as_str() {
            "put" => "PUT",
            "get" => "GET",
            "delete" => "DELETE",
            "seek" => "SEEK",
            "range" => "RANGE",
            "iter" => "ITER",
            _ => return None,
        };
        let latency = phase.latency_us.as_ref();
        Some(Self {
            engine: engine.to_owned(),
            test_name: config.test_name.clone(),
            operation,
            ops_per_sec: phase.ops_per_second,
            duration_sec: phase.seconds,
            avg_latency_us: latency.map(|latency| latency.mean),
            stddev_us: latency.map(|latency| latency.stddev),
            cv_percent: latency
                .filter(|latency| latency.mean > 0.0)
                .map(|latency| 100.0 * latency.stddev / latency.mean),
            p50_us: latency.map(|latency| latency.p50),
            p95_us: latency.map(|latency| latency.p95),
            p99_us: latency.map(|latency| latency.p99),
            min_us: latency.map(|latency| latency.min),
            max_us: latency.map(|latency| latency.max),
            peak_rss_mb: resources.resident_bytes_peak.map(mebibytes),
            peak_vms_mb: resources.address_space_bytes_peak.map(mebibytes),
            disk_read_mb: resources.read_bytes.map(mebibytes),
            disk_write_mb: resources.written_bytes.map(mebibytes),
            cpu_user_sec: resources.user_seconds,
            cpu_sys_sec: resources.system_seconds,
            cpu_percent: resources.cpu_percent,
            db_size_mb: mebibytes(resources.database_bytes),
            write_amp: resources.write_amplification,
            read_amp: resources.read_amplification,
            space_amp: resources.space_amplification,
            workload: config.workload.name(),
            pattern: config.pattern.name(),
            threads: config.threads,
            num_operations: config.operations,
            batch_size: config.batch,
            key_size: config.key_size,
            value_size: config.value_size,
            range_size: config.range_size,
            sync_enabled: u8::from(matches!(
                config.engine.sync_mode,
                SyncMode::Sync | SyncMode::WriteThrough
            )),
        })
    }
}
