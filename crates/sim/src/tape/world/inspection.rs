//! The inspection at the end of a run: every cartridge is read to its end.

use base::time::Duration;

use super::World;
use crate::property::Property;
use crate::tape::command::{Answer, DriveCommand, FIRST_DRIVE, TapeCommand};
use crate::tape::plan::{CARTRIDGES, DRIVES};

/// How often the last inspection looks for a cartridge that a drive should hold, a millisecond apart.
const MOTION_LOOKS: usize = 200;

impl World {
    /// Sends commands of initiator 0, one after the other, until one is executed; returns its answer.
    pub(super) fn execute(&mut self, command: TapeCommand) -> Option<Answer> {
        while self.failures.is_empty() {
            let now = self.clock.now();
            self.heard = None;
            if !self.actors[0].is_up || !self.send(now, 0, command) {
                self.step();
                continue;
            }
            while self.failures.is_empty() && self.heard.is_none() {
                self.step();
            }
            if !matches!(self.heard, Some(Answer::NotRun(_) | Answer::Doubtful)) {
                return self.heard.take();
            }
            if self.heard == Some(Answer::NotRun("position lost")) && self.plan.iscsi.is_some() {
                return self.heard.take();
            }
            if self.heard == Some(Answer::NotRun("position lost")) {
                self.fail(Property::Records, format!("the position is lost for {command:?}"));
            }
            // A drive that is loading a cartridge is asked again.
            self.clock.set(self.clock.now().after(Duration::from_millis(1)));
        }
        None
    }

    /// Reads every cartridge to its end. The judge compares.
    pub(super) fn inspect(&mut self) {
        self.is_inspecting = true;
        self.execute(TapeCommand::Elements);
        for cartridge in 0..CARTRIDGES {
            let (place, free) = match self.judge.any_state() {
                Some(state) => (state.place_of(cartridge), state.empty_slot()),
                None => return,
            };
            let Some(place) = place else { continue };
            let drive = match place.checked_sub(FIRST_DRIVE).filter(|drive| *drive < DRIVES) {
                Some(drive) => drive,
                None => {
                    if let Some(free) = free {
                        self.execute(TapeCommand::Move(FIRST_DRIVE, free));
                    }
                    self.execute(TapeCommand::Move(place, FIRST_DRIVE));
                    0
                }
            };
            // A motion whose end nobody knows may still take the cartridge away, or bring one.
            for _ in 0..MOTION_LOOKS {
                if self.read_to_end(drive) {
                    break;
                }
                self.clock.set(self.clock.now().after(Duration::from_millis(1)));
            }
            self.execute(TapeCommand::Drive(drive, DriveCommand::Position));
        }
        self.execute(TapeCommand::Elements);
    }

    /// Reads the cartridge in a drive to its end. Returns false if the drive has none.
    fn read_to_end(&mut self, drive: usize) -> bool {
        let is_empty = |answer: &Option<Answer>| matches!(answer, Some(Answer::Sense(0x02, 0x3a00, _)));
        // The unit attention of a READ would make the position unknown.
        let commands = [TapeCommand::Test(drive + 1), TapeCommand::Drive(drive, DriveCommand::Load)];
        if commands.into_iter().any(|command| is_empty(&self.execute(command))) {
            return false;
        }
        while let Some(answer) = self.execute(TapeCommand::Drive(drive, DriveCommand::Read)) {
            if matches!(answer, Answer::Sense(0x08, ..)) {
                break;
            }
            if is_empty(&Some(answer.clone())) || answer == Answer::NotRun("position lost") {
                return false;
            }
        }
        true
    }
}
