//! Programs that do not end by themselves when this process ends run under a shell that sees to it.
//!
//! The shell starts the program, and waits for its end or for that of its own standard input, which the
//! kernel closes when this process ends. Then it ends the program, by SIGTERM and after two seconds by
//! SIGKILL, runs the commands that clean up, and removes the directory. Its exit code is the program's.

use std::process::Command;

use super::{PrivateDirectory, TargetProcess};
use crate::bed::Namespace;
use crate::experiment::LabError;

/// What a supervisor runs. All commands are those of a shell; they run in the directory, with the variables.
#[derive(Clone, Debug, Default)]
pub struct Supervised {
    /// The commands that become the program (`exec tgtd -f`); none for a target without a process.
    pub serve: String,
    /// The commands that clean up after the end of the program.
    pub teardown: String,
    /// The environment, beside that of this process. The supervisor adds `DIR`, the directory.
    pub variables: Vec<(String, String)>,
}

impl Supervised {
    /// Returns a shell that runs commands with the variables in a directory, and stops at the first error.
    pub fn shell(&self, commands: &str, directory: &PrivateDirectory) -> Command {
        let mut command = Command::new(SHELL);
        command.args(["-ec", commands]);
        self.prepare(&mut command, directory);
        command
    }

    /// Starts the program under a supervisor.
    ///
    /// # Errors
    /// [`LabError`] if there is no shell.
    pub fn start(
        &self,
        host: Option<&Namespace>,
        directory: PrivateDirectory,
    ) -> Result<TargetProcess, LabError> {
        let mut command = Command::new(SHELL);
        command.args(["-c", SUPERVISOR]);
        self.prepare(&mut command, &directory);
        command.env("TARGE_LAB_SERVE", &self.serve).env("TARGE_LAB_TEARDOWN", &self.teardown);
        let mut process = TargetProcess::start(host, command, directory)?;
        let started = process.read_until(|line| line.strip_prefix("started ")?.trim().parse::<u32>().ok())?;
        process.program = Some(started);
        Ok(process)
    }

    fn prepare(&self, command: &mut Command, directory: &PrivateDirectory) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.env("DIR", directory.path()).current_dir(directory.path());
    }
}

const SHELL: &str = "/bin/sh";

/// The supervisor. It prints the number of the program's process, 0 if there is none. The program and the
/// other children do not inherit descriptor 3, the standard input of the supervisor.
const SUPERVISOR: &str = r#"
exec 3<&0 </dev/null
serve=$TARGE_LAB_SERVE teardown=$TARGE_LAB_TEARDOWN
unset TARGE_LAB_SERVE TARGE_LAB_TEARDOWN
if [ -n "$serve" ]; then
    sh -ec "$serve" >&2 3<&- &
    program=$!
    {
        read -r _ <&3
        exec 3<&-
        kill -TERM $program
        kill -CONT $program
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            sleep 0.1
            kill -0 $program || exit 0
        done
        kill -KILL $program
    } >/dev/null 2>&1 &
    watcher=$!
    echo "started $program"
    exec 3<&-
    wait $program 2>/dev/null
    status=$?
    kill $watcher 2>/dev/null
else
    echo "started 0"
    read -r _ <&3
    exec 3<&-
    status=0
fi
if [ -n "$teardown" ]; then sh -c "$teardown" >&2; fi
cd / && rm -rf "$DIR"
exit $status
"#;
