//! The conformance score of a target: `targe conform target` as a child process, since this crate judges from
//! outside and does not link the suite.

use std::path::Path;

use serde::Deserialize;

use crate::bed::Bed;
use crate::experiment::LabError;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, TargetProcess};

/// The verdicts of the cases that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Score {
    pub(super) passed: u32,
    pub(super) failed: u32,
    /// Cases that do not apply to what the target offers.
    pub(super) skipped: u32,
}

/// The file of the verdicts in the directory of a run.
const VERDICTS: &str = "verdicts.json";
/// The file that tells that a run is over. The supervisor removes the directory when the program ends, so
/// that the program waits until its standard input closes.
const OVER: &str = "over";

/// A run of the suite against one target.
#[derive(Debug)]
pub(super) struct ConformanceRun(TargetProcess);

/// The end of a portal, the name of the target and the number of its LUN.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) portal: String,
    pub(super) name: String,
    pub(super) lun: u16,
}

impl ConformanceRun {
    /// Starts the cases that match the patterns.
    pub(super) fn start(
        bed: &Bed,
        program: &Path,
        place: &Place,
        patterns: &[String],
    ) -> Result<Self, LabError> {
        let system = |why| LabError::System { what: "create a directory".to_owned(), why };
        let directory = PrivateDirectory::create().map_err(system)?;
        let variables = [
            ("TARGE", program.display().to_string()),
            ("PORTAL", place.portal.clone()),
            ("IQN", place.name.clone()),
            ("LUN", place.lun.to_string()),
            ("PATTERNS", patterns.join("\n")),
        ];
        let supervised = Supervised {
            serve: COMMANDS.to_owned(),
            teardown: String::new(),
            variables: variables.map(|(name, value)| (name.to_owned(), value)).into(),
        };
        supervised.start(Some(bed.initiator()), directory).map(Self)
    }

    /// Returns the score once the run is over, or why there is none.
    pub(super) fn result(&mut self) -> Option<Result<Score, String>> {
        if let Some(why) = self.0.end() {
            return Some(Err(why.replace("the target ended", "the suite ended")));
        }
        if !self.0.directory().path().join(OVER).exists() {
            return None;
        }
        let text = std::fs::read(self.0.directory().path().join(VERDICTS)).unwrap_or_default();
        Some(serde_json::from_slice(&text).map_err(|_| self.0.messages_now()))
    }
}

/// The arguments of `--only` are lines of a variable.
const COMMANDS: &str = r#"
set -f
IFS='
'
set --
for pattern in $PATTERNS; do set -- "$@" --only "$pattern"; done
"$TARGE" conform target "$PORTAL" --target "$IQN" --lun "$LUN" --write --json "$@" >verdicts.json 2>errors || :
tail -n 1 errors >&2
: >over
while :; do sleep 1; done
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_in_the_verdicts() {
        let text = r#"{"passed": 3, "failed": 2, "skipped": 1, "results": []}"#;
        let score: Score = serde_json::from_str(text).unwrap();
        assert_eq!(score, Score { passed: 3, failed: 2, skipped: 1 });
    }
}
