//! The sweep of batch sizes runs each size on a database of its own, and fails as a whole if one of them does.
use crate::faulty::*;
use psitri_bench::bank::BankConfig;
use psitri_bench::engine::Engine;
use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};
use psitri_bench::report::Report;

const SMALL: &[&str] = &[
    "--num-accounts=1000",
    "--num-transactions=2000",
    "--sweep",
    "--sweep-batch-max=1000",
];

fn sweep<E: Engine>() -> Report {
    assert_passes::<BankConfig, E>(SMALL)
}

#[test]
fn every_batch_size_has_its_phases_and_its_points() {
    let report = sweep::<Psitri>();
    assert_eq!(
        phase_names(&report),
        [
            "write_only_batch_1",
            "write_read_batch_1",
            "write_only_batch_100",
            "write_read_batch_100",
            "write_only_batch_1000",
            "write_read_batch_1000"
        ]
    );
    for series in &report.series {
        let sizes: Vec<f64> = series.points.iter().map(|point| point.0).collect();
        assert_eq!(sizes, [1.0, 100.0, 1_000.0], "{}", series.name);
        assert!(series.points.iter().all(|point| point.1 > 0.0));
    }
    assert_eq!(report.series.len(), 3);
}

/// The same transfers succeed at every batch size.
#[test]
fn counts_do_not_depend_on_the_batch_size() {
    for report in [sweep::<Model>(), sweep::<PsitriDirect>()] {
        let successes = |name: &str| -> Vec<_> {
            let named = |phase: &&psitri_bench::report::Phase| phase.name.starts_with(name);
            report
                .phases
                .iter()
                .filter(named)
                .map(|phase| phase.successes)
                .collect()
        };
        for name in ["write_only", "write_read"] {
            let all = successes(name);
            assert_eq!(all.len(), 3);
            assert!(all[0].is_some() && all.iter().all(|one| *one == all[0]));
        }
    }
}

#[test]
fn a_faulty_engine_is_found_out() {
    assert_found_out::<BankConfig>(Defect::LosesAPut, SMALL, "batches of 100: ");
    assert_found_out::<BankConfig>(Defect::ScanSkips, SMALL, "batches of 1: scan");
}
