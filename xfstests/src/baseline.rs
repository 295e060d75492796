//! What of the suites does not pass, test by test, with the reason: `expected.toml`. It is strict: a
//! failure that is not listed is a fault, and so is a listed test that passes.

use std::collections::BTreeMap;

use serde::Deserialize;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As the suite wants it.
    Passed,
    /// Not as the suite wants it; what the suite said of it.
    Failed(String),
    /// The suite did not run it; why it says so.
    Skipped(String),
    /// It was ended by its time limit. No baseline makes this right.
    Hung,
}

/// Outcomes by the name of the test.
pub type Results = BTreeMap<String, Outcome>;

/// What is expected of all suites, by their name.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Baseline(BTreeMap<String, Expected>);

/// What is expected of one suite. Whatever is not named passes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expected {
    /// Tests that fail, and why.
    fail: BTreeMap<String, String>,
    /// Tests that the suite skips, and why.
    skip: BTreeMap<String, String>,
    /// What the suite says, in part, when it skips for want of something that a view or the machine
    /// does not have, and why it does not. Holds for every test, whether listed or not.
    lacks: BTreeMap<String, String>,
}

/// What a suite's results are by the baseline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed, expected or not.
    pub failed: usize,
    /// Tests that were skipped, expected or not.
    pub skipped: usize,
    /// What is not as expected, one a line.
    pub faults: Vec<String>,
}

impl Baseline {
    /// Reads a baseline.
    ///
    /// # Errors
    /// What is wrong with it: no TOML, an unknown word, a line without a reason.
    pub fn parse(text: &str) -> Result<Baseline, String> {
        let baseline: Baseline = toml::from_str(text).map_err(|error| error.to_string())?;
        for (suite, expected) in &baseline.0 {
            let lists = [&expected.fail, &expected.skip, &expected.lacks];
            for (name, reason) in lists.into_iter().flatten() {
                if reason.trim().is_empty() {
                    return Err(format!("{suite}: {name:?} has no reason"));
                }
            }
            if let Some(name) = expected
                .fail
                .keys()
                .find(|name| expected.skip.contains_key(*name))
            {
                return Err(format!("{suite}: {name:?} cannot both fail and be skipped"));
            }
        }
        Ok(baseline)
    }

    /// What is expected of `suite`; that all passes if it is not named.
    pub fn of(&self, suite: &str) -> Expected {
        self.0.get(suite).cloned().unwrap_or_default()
    }
}

impl Expected {
    /// Holds results to what is expected. Tests that are listed and did not run at all are no fault:
    /// a part of a suite may be run.
    pub fn judge(&self, results: &Results) -> Verdict {
        let mut verdict = Verdict::default();
        if results.is_empty() {
            verdict.faults.push("nothing ran".to_owned());
        }
        for (name, outcome) in results {
            match outcome {
                Outcome::Passed => {
                    verdict.passed += 1;
                    if self.fail.contains_key(name) || self.skip.contains_key(name) {
                        verdict
                            .faults
                            .push(format!("{name} passes, and is listed as if it did not"));
                    }
                }
                Outcome::Failed(said) => {
                    verdict.failed += 1;
                    if !self.fail.contains_key(name) {
                        verdict.faults.push(format!("{name} fails: {said}"));
                    }
                }
                Outcome::Skipped(said) => {
                    verdict.skipped += 1;
                    let lacking = self.lacks.keys().any(|part| said.contains(part));
                    if !lacking && !self.skip.contains_key(name) {
                        verdict.faults.push(format!("{name} was skipped: {said}"));
                    }
                }
                Outcome::Hung => {
                    verdict.failed += 1;
                    verdict.faults.push(format!("{name} did not end"));
                }
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [suite.fail]
        "a/1" = "why it fails"
        [suite.skip]
        "a/2" = "why it is skipped"
        [suite.lacks]
        "no gadget" = "why there is none"
    "#;

    fn judge(outcomes: &[(&str, Outcome)]) -> Verdict {
        let results = outcomes
            .iter()
            .map(|(name, outcome)| ((*name).to_owned(), outcome.clone()))
            .collect();
        Baseline::parse(TEXT).unwrap().of("suite").judge(&results)
    }

    #[test]
    fn what_is_expected_is_right() {
        let verdict = judge(&[
            ("a/1", Outcome::Failed("x".into())),
            ("a/2", Outcome::Skipped("y".into())),
            ("a/3", Outcome::Passed),
            ("a/4", Outcome::Skipped("there is no gadget here".into())),
        ]);
        assert_eq!(verdict.faults, [""; 0]);
        assert_eq!((verdict.passed, verdict.failed, verdict.skipped), (1, 1, 2));
    }

    #[test]
    fn whatever_is_not_listed_must_pass() {
        let faults = |name, outcome| judge(&[(name, outcome)]).faults.len();
        assert_eq!(faults("a/3", Outcome::Failed("x".into())), 1);
        assert_eq!(faults("a/3", Outcome::Skipped("y".into())), 1);
        // What fails may not be skipped instead, nor the other way round.
        assert_eq!(faults("a/1", Outcome::Skipped("y".into())), 1);
        assert_eq!(faults("a/2", Outcome::Failed("x".into())), 1);
        assert_eq!(judge(&[]).faults, ["nothing ran"]);
    }

    #[test]
    fn whatever_is_listed_must_not_pass() {
        for name in ["a/1", "a/2"] {
            assert_eq!(judge(&[(name, Outcome::Passed)]).faults.len(), 1, "{name}");
        }
    }

    #[test]
    fn a_hang_is_never_right() {
        for name in ["a/1", "a/2", "a/3"] {
            assert_eq!(judge(&[(name, Outcome::Hung)]).faults.len(), 1, "{name}");
        }
    }

    #[test]
    fn every_line_has_a_reason() {
        for text in [
            "[s.fail]\n\"a\" = \" \"",
            "[s.skip]\n\"a\" = \"\"",
            "[s.unknown]\n\"a\" = \"x\"",
            "[s.fail]\n\"a\" = \"x\"\n[s.skip]\n\"a\" = \"x\"",
        ] {
            assert!(Baseline::parse(text).is_err(), "{text}");
        }
        let ours = include_str!("../expected.toml");
        Baseline::parse(ours).unwrap();
    }
}
