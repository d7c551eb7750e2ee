//! Cases that differ in one number: a sweep, which is a chart of its own.
use super::figures;
use crate::suite::results::Case;
use std::collections::BTreeMap;

/// The cases of a sweep in the order of the number.
pub struct Sweep<'r> {
    /// Without the hyphens before it: `batch-size`.
    pub option: String,
    /// What all cases have in common, as arguments.
    pub common: String,
    /// The number as it stands in the arguments, and the position of the case.
    pub cases: Vec<(f64, &'r Case)>,
}

/// Fewer points are a comparison, not a line.
const CASES_MIN: usize = 3;

/// Options that give a run a name and change nothing in it: cases that differ in them alone are the same.
const NAMING: &[&str] = &["test-name"];

/// Workload, swept option, and the other options.
type GroupKey = (String, String, String);

impl Sweep<'_> {
    pub fn words(&self) -> String {
        match self.option.as_str() {
            "batch" => "batch size".to_owned(),
            option => option.replace('-', " "),
        }
    }
}

/// The options of a case without those that name it.
pub fn settings(case: &Case) -> BTreeMap<String, String> {
    let mut options = figures::options(&case.arguments);
    options.retain(|option, _| !NAMING.contains(&option.as_str()));
    options
}

/// All sweeps among the cases, in the order of their first cases.
pub fn find<'r>(cases: &[&'r Case]) -> Vec<Sweep<'r>> {
    let options: Vec<_> = cases.iter().map(|case| settings(case)).collect();
    let mut groups: Vec<(GroupKey, Vec<(f64, &'r Case)>)> = Vec::new();
    for (case, given) in cases.iter().zip(&options) {
        for (option, value) in given {
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            let rest: BTreeMap<_, _> = given.iter().filter(|(other, _)| *other != option).collect();
            let rest: Vec<String> = rest
                .into_iter()
                .map(|(option, value)| format!("--{option} {value}").trim_end().to_owned())
                .collect();
            let key = (case.workload.clone(), option.clone(), rest.join(" "));
            let position = groups.iter().position(|(known, _)| *known == key);
            let position = position.unwrap_or_else(|| {
                groups.push((key, Vec::new()));
                groups.len() - 1
            });
            let group = &mut groups[position].1;
            if group.iter().all(|(known, _)| *known != value) {
                group.push((value, case));
            }
        }
    }
    groups
        .into_iter()
        .filter(|(_, cases)| cases.len() >= CASES_MIN)
        .map(|((workload, option, rest), mut cases)| {
            cases.sort_by(|a, b| a.0.total_cmp(&b.0));
            Sweep {
                option,
                common: format!("{workload} {rest}").trim_end().to_owned(),
                cases,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::results::Page;

    #[test]
    fn cases_that_differ_in_one_number_are_a_sweep() {
        let case = |accounts: &str, batch: &str| Case {
            id: format!("bank-{accounts}-{batch}"),
            page: Page::Bank,
            title: String::new(),
            workload: "bank".to_owned(),
            arguments: ["bank", "--num-accounts", accounts, "--batch-size", batch]
                .map(str::to_owned)
                .to_vec(),
            engines: Vec::new(),
        };
        let cases = [
            case("10", "100"),
            case("10", "1"),
            case("10", "5000"),
            case("20", "1"),
        ];
        let sweeps = find(&cases.each_ref());
        assert_eq!(sweeps.len(), 1);
        assert_eq!(sweeps[0].option, "batch-size");
        assert_eq!(sweeps[0].common, "bank --num-accounts 10");
        let numbers: Vec<f64> = sweeps[0].cases.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1.0, 100.0, 5000.0]);
    }

    #[test]
    fn a_name_of_its_own_does_not_keep_a_case_out_of_a_sweep() {
        let cases: Vec<Case> = crate::tides::cases(0.01)
            .into_iter()
            .map(|(name, arguments)| Case {
                id: name.replace('_', "-"),
                page: Page::Tides,
                title: name,
                workload: "tides".to_owned(),
                arguments: std::iter::once("tides".to_owned())
                    .chain(arguments)
                    .collect(),
                engines: Vec::new(),
            })
            .collect();
        let sweeps = find(&cases.iter().collect::<Vec<_>>());
        let found: Vec<(String, Vec<f64>)> = sweeps
            .iter()
            .map(|sweep| {
                let numbers = sweep.cases.iter().map(|(number, _)| *number);
                (sweep.words(), numbers.collect())
            })
            .collect();
        let by_batch = |numbers: &[f64]| ("batch size".to_owned(), numbers.to_vec());
        assert_eq!(
            found,
            [
                by_batch(&[1.0, 10.0, 100.0, 1_000.0, 10_000.0]),
                by_batch(&[1.0, 100.0, 1_000.0]),
            ]
        );
        assert!(!sweeps[0].common.contains("test-name"));
    }
}
