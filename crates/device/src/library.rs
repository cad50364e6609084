//! The interface between a medium changer with its drives and the owner of the library, which moves the files
//! of cartridges.
//!
//! A changer asks for one change at a time ([`LibraryEvent::Change`]). Its owner tells the drives that lose a
//! cartridge to give it up ([`LibraryInput::Eject`]), opens the cartridges that go into drives, replaces the
//! file of the library, tells these drives ([`LibraryInput::Inserted`]), and answers with
//! [`LibraryInput::Changed`].

use alloc::string::String;
use alloc::vec::Vec;

use cartridge::library::{Element, Library, LibraryError};
use scsi::sense::Sense;

/// What the owner of a library tells a changer or a drive.
#[derive(Debug)]
pub enum LibraryInput {
    /// To a changer: the library, and the names of cartridges that cannot be used. Until then the changer is
    /// not ready.
    Install {
        /// The file of the library.
        file: Vec<u8>,
        /// The names of the cartridges that cannot be used.
        unusable: Vec<String>,
    },
    /// To a changer: the names of its drives, in order.
    Drives(Vec<DriveName>),
    /// To a changer: an operator wants a change. [`LibraryEvent::OperatorDone`] answers.
    Operator {
        /// Names the request.
        ticket: u64,
        /// The change.
        change: OperatorChange,
    },
    /// To a changer: the change that it asked for was made, or nothing has changed.
    Changed(Result<(), ChangeFailure>),
    /// To a drive: make everything durable and give up the cartridge. [`LibraryEvent::Ejected`] answers.
    Eject,
    /// To a drive: its store holds a cartridge, another one or the same again.
    Inserted,
}

/// The names of a drive, beside its serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveName {
    /// T10 vendor identification: ASCII, space-padded.
    pub vendor: [u8; 8],
    /// Product identification: ASCII, space-padded.
    pub product: [u8; 16],
}

/// What a changer or a drive asks of the owner of its library, or answers.
#[derive(Debug)]
pub enum LibraryEvent {
    /// A changer asks for a change.
    Change(LibraryChange),
    /// A changer has carried out the change of an operator, or refuses it.
    OperatorDone {
        /// The request.
        ticket: u64,
        /// Why it is refused.
        result: Result<(), String>,
    },
    /// A drive has given up its cartridge, and no operation on it is under way. Or the cartridge stays.
    Ejected(Result<(), Sense>),
}

/// A change of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryChange {
    /// The file of the library after the change.
    pub file: Vec<u8>,
    /// The drives that lose their cartridge, by number, with its name.
    pub ejects: Vec<(u16, String)>,
    /// The drives that get a cartridge, by number, with its name.
    pub inserts: Vec<(u16, String)>,
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeFailure {
    /// How the command ends.
    pub status: MotionFailure,
    /// The name of the cartridge that cannot be used, if that is the reason.
    pub unusable: Option<String>,
    /// The reason, for an operator.
    pub why: String,
}

/// How a command ends whose motion was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MotionFailure {
    /// With BUSY, since the operator drains one of the drives: its host repeats it.
    Busy,
    /// With CHECK CONDITION and this sense data.
    CheckCondition(Sense),
}

/// A change that an operator makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorChange {
    /// Put cartridges, each with its name and bar code, into elements: the first into this one, the others
    /// into the ones after it.
    Load(Element, Vec<(String, String)>),
    /// Take a cartridge out.
    Eject(Element),
    /// Lock a cartridge in its mail slot, or unlock it.
    Vault(Element, bool),
}

impl OperatorChange {
    /// Makes the change.
    ///
    /// # Errors
    /// [`LibraryError`]; the library is then to be dropped.
    pub fn apply(&self, library: &mut Library) -> Result<(), LibraryError> {
        match self {
            Self::Load(first, cartridges) => {
                let mut element = *first;
                for (name, barcode) in cartridges {
                    expect_reach(element)?;
                    library.put(element, name, barcode)?;
                    element = following(element);
                }
                Ok(())
            }
            Self::Eject(element) => {
                expect_reach(*element)?;
                library.take(*element).map(drop)
            }
            Self::Vault(element, is_vaulted) => library.set_vaulted(*element, *is_vaulted),
        }
    }

    /// Returns an element that the change is about.
    pub(crate) const fn element(&self) -> Element {
        match self {
            Self::Load(element, _) | Self::Eject(element) | Self::Vault(element, _) => *element,
        }
    }
}

const fn expect_reach(element: Element) -> Result<(), LibraryError> {
    if matches!(element, Element::Drive(_)) { Err(LibraryError::InDrive) } else { Ok(()) }
}

const fn following(element: Element) -> Element {
    match element {
        Element::Mail(number) => Element::Mail(number.saturating_add(1)),
        Element::Drive(number) => Element::Drive(number.saturating_add(1)),
        Element::Slot(number) => Element::Slot(number.saturating_add(1)),
    }
}
