//! A mutant: a row that says which rule a peer breaks, how, and how the case for the rule must say so.

use iscsi::pdu::Opcode;

use crate::pdu::Pdu;
use crate::relay::Wire;

/// What a mutant does with a PDU of the true peer, or for it.
pub(crate) type Mutation = fn(&mut Wire, Pdu);

pub(crate) struct Mutant {
    /// The case that must fail.
    pub(crate) case: &'static str,
    /// What the reason of its failure must contain; `None` if the peer breaks no rule, so that the case must
    /// pass.
    pub(crate) why: Option<&'static str>,
    pub(crate) breaks: Breaks,
}

#[derive(Clone, Copy)]
pub(crate) enum Breaks {
    /// Changes PDUs in either direction.
    Change(fn(&mut Pdu)),
    /// Loses the PDUs that it returns true for.
    Loss(fn(&Pdu) -> bool),
    /// Does with PDUs what it likes.
    By(Mutation),
}

impl Breaks {
    pub(crate) fn apply(self, wire: &mut Wire, mut pdu: Pdu) {
        match self {
            Self::Change(change) => {
                change(&mut pdu);
                wire.pass(pdu);
            }
            Self::Loss(is_lost) => {
                if !is_lost(&pdu) {
                    wire.pass(pdu);
                }
            }
            Self::By(mutation) => mutation(wire, pdu),
        }
    }
}

/// Makes a mutant that changes PDUs.
pub(crate) const fn change(case: &'static str, why: &'static str, change: fn(&mut Pdu)) -> Mutant {
    Mutant { case, why: Some(why), breaks: Breaks::Change(change) }
}

/// Makes a mutant that loses PDUs.
pub(crate) const fn loss(case: &'static str, why: &'static str, is_lost: fn(&Pdu) -> bool) -> Mutant {
    Mutant { case, why: Some(why), breaks: Breaks::Loss(is_lost) }
}

/// Makes a mutant that sends, keeps and answers PDUs.
pub(crate) const fn by(case: &'static str, why: &'static str, mutation: Mutation) -> Mutant {
    Mutant { case, why: Some(why), breaks: Breaks::By(mutation) }
}

/// Makes a peer that uses what a rule allows, unlike the true peer.
pub(crate) const fn lawful(case: &'static str, deviation: Mutation) -> Mutant {
    Mutant { case, why: None, breaks: Breaks::By(deviation) }
}

/// Which of the commands with an operation code a mutant concerns, counted from 1.
pub(crate) struct Nth(pub(crate) u8, pub(crate) u32);

impl Nth {
    /// Returns whether a PDU belongs to the command, and counts it if it is one.
    fn is_of(&self, wire: &mut Wire, pdu: &Pdu) -> bool {
        let Self(operation, number) = *self;
        wire.count += u32::from(pdu.of(Opcode::SCSI_COMMAND, operation));
        wire.count == number && pdu.operation == Some(operation)
    }

    /// Refuses the command, which does nothing.
    pub(crate) fn refuse(&self, wire: &mut Wire, mut pdu: Pdu) {
        if self.is_of(wire, &pdu) {
            pdu.refuse(self.0);
        }
        wire.pass(pdu);
    }

    /// Ends the command with GOOD.
    pub(crate) fn accept(&self, wire: &mut Wire, mut pdu: Pdu) {
        if self.is_of(wire, &pdu) {
            pdu.accept(self.0);
        }
        wire.pass(pdu);
    }

    /// Ends the command with GOOD and does nothing.
    pub(crate) fn forget(&self, wire: &mut Wire, mut pdu: Pdu) {
        if self.is_of(wire, &pdu) {
            pdu.forget(self.0);
        }
        wire.pass(pdu);
    }

    /// Changes the data that the command reads.
    pub(crate) fn on_data(&self, wire: &mut Wire, mut pdu: Pdu, change: impl FnOnce(&mut [u8])) {
        if self.is_of(wire, &pdu) {
            pdu.on_data(self.0, change);
        }
        wire.pass(pdu);
    }

    /// Changes the first byte of the data that the command reads.
    pub(crate) fn spoil(&self, wire: &mut Wire, pdu: Pdu) {
        self.on_data(wire, pdu, |data| data[0] ^= 1);
    }
}
