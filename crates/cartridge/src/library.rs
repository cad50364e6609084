//! A tape library: drives, slots and mail slots, and which cartridge is in which of them. [`file`](mod@file)
//! reads and writes it as the file of a library folder (`docs/library.md`).
//!
//! A cartridge is known by the name of its folder and by its bar code. Every change is made on a copy, which
//! the owner writes into the file before it takes the place of the library. A cartridge is therefore in
//! exactly one element, whatever interrupts a change.

pub mod file;

use alloc::string::String;
use alloc::vec::Vec;

use crate::label::BARCODE_LEN_MAX;
use crate::profile::Profile;

/// The most drives of a library.
pub const DRIVES_MAX: u16 = 32;
/// The most slots of a library. The status of all of them has less than 256 KiB.
pub const SLOTS_MAX: u16 = 2000;
/// The most mail slots of a library.
pub const MAIL_SLOTS_MAX: u16 = 64;
/// The length of the serial number of a library.
pub const SERIAL_LEN: usize = 8;
/// The longest name of the folder of a cartridge in a library.
pub const NAME_LEN_MAX: usize = 64;

/// A place of a library that holds one cartridge or none. Each kind is numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// A mail slot, through which an operator takes cartridges out and puts them in.
    Mail(u16),
    /// A drive.
    Drive(u16),
    /// A slot.
    Slot(u16),
}

impl core::fmt::Display for Element {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Mail(number) => write!(f, "mail slot {number}"),
            Self::Drive(number) => write!(f, "drive {number}"),
            Self::Slot(number) => write!(f, "slot {number}"),
        }
    }
}

/// Parses an element as operators write it: `5`, `mail1`, `drive2`.
impl core::str::FromStr for Element {
    type Err = LibraryError;

    fn from_str(text: &str) -> Result<Self, LibraryError> {
        let (number, kind): (&str, fn(u16) -> Self) =
            match (text.strip_prefix("mail"), text.strip_prefix("drive")) {
                (Some(number), _) => (number, Self::Mail),
                (_, Some(number)) => (number, Self::Drive),
                _ => (text.strip_prefix("slot").unwrap_or(text), Self::Slot),
            };
        number.parse().map(kind).map_err(|_| LibraryError::ElementName)
    }
}

/// How many elements of each kind a library has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Drives, at least one.
    pub drives: u16,
    /// Slots, at least one.
    pub slots: u16,
    /// Mail slots.
    pub mail_slots: u16,
}

/// A cartridge in a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCartridge {
    /// The name of its folder in the folder of the library.
    pub name: String,
    /// The bar code, or nothing.
    pub barcode: String,
    /// Where it is.
    pub element: Element,
    /// The number of the slot that it was moved from last.
    pub source: Option<u16>,
    /// Whether an operator has locked it in its mail slot.
    pub is_vaulted: bool,
}

/// A tape library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    serial: String,
    profile: Profile,
    counts: Counts,
    /// In the order of their elements.
    cartridges: Vec<StoredCartridge>,
}

/// Why a change of a library is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryError {
    /// The name of an element is none.
    ElementName,
    /// The library has no such element.
    NoElement,
    /// There is no cartridge in the element that one is taken from.
    Empty,
    /// There is a cartridge in the element that one is put into.
    Full,
    /// The cartridge is locked in its mail slot.
    Vaulted,
    /// A cartridge can be locked in a mail slot only.
    NotMailSlot,
    /// The cartridge is not locked.
    NotVaulted,
    /// An operator does not reach into a drive.
    InDrive,
    /// A cartridge with the same folder is in the library.
    NameTwice,
    /// A cartridge with the same bar code is in the library.
    BarcodeTwice,
    /// The name of the folder of a cartridge is not possible.
    Name,
    /// The bar code is not possible.
    Barcode,
    /// The numbers of elements are not possible.
    Counts,
    /// The serial number is not possible.
    Serial,
}

impl core::fmt::Display for LibraryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::ElementName => f.write_str(
                "a slot is a number, such as 5, and a mail slot a number behind \"mail\", such as mail1",
            ),
            Self::NoElement => f.write_str("the library has no such slot"),
            Self::Empty => f.write_str("there is no cartridge"),
            Self::Full => f.write_str("there is a cartridge already"),
            Self::Vaulted => f.write_str("the cartridge is locked in its mail slot"),
            Self::NotMailSlot => f.write_str("a cartridge can be locked in a mail slot only"),
            Self::NotVaulted => f.write_str("the cartridge is not locked"),
            Self::InDrive => {
                f.write_str("a cartridge in a drive is moved to a slot first (mtx unload, for example)")
            }
            Self::NameTwice => f.write_str("the cartridge is in the library already"),
            Self::BarcodeTwice => f.write_str("another cartridge in the library has the same bar code"),
            Self::Name => write!(
                f,
                "the folder of a cartridge has up to {NAME_LEN_MAX} letters, digits, dots, hyphens and underscores"
            ),
            Self::Barcode => {
                write!(f, "a bar code has up to {BARCODE_LEN_MAX} upper-case letters and digits")
            }
            Self::Counts => write!(
                f,
                "a library has 1 to {DRIVES_MAX} drives, 1 to {SLOTS_MAX} slots and up to {MAIL_SLOTS_MAX} mail slots"
            ),
            Self::Serial => {
                write!(f, "the serial number of a library has {SERIAL_LEN} upper-case letters and digits")
            }
        }
    }
}

impl core::error::Error for LibraryError {}

impl Library {
    /// Makes a library without cartridges.
    ///
    /// # Errors
    /// [`LibraryError::Counts`] and [`LibraryError::Serial`].
    pub fn new(serial: String, profile: Profile, counts: Counts) -> Result<Self, LibraryError> {
        let Counts { drives, slots, mail_slots } = counts;
        if !(1..=DRIVES_MAX).contains(&drives)
            || !(1..=SLOTS_MAX).contains(&slots)
            || mail_slots > MAIL_SLOTS_MAX
        {
            return Err(LibraryError::Counts);
        }
        if serial.len() != SERIAL_LEN || !serial.bytes().all(is_code) {
            return Err(LibraryError::Serial);
        }
        Ok(Self { serial, profile, counts, cartridges: Vec::new() })
    }

    /// Returns the serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Returns the serial number of a drive: that of the library and two digits.
    pub fn drive_serial(&self, number: u16) -> String {
        alloc::format!("{}{number:02}", self.serial)
    }

    /// Returns the generation of the cartridges.
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns how many elements there are.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the cartridges, in the order of their elements.
    pub fn cartridges(&self) -> &[StoredCartridge] {
        &self.cartridges
    }

    /// Returns every element, in order.
    pub fn elements(&self) -> impl Iterator<Item = Element> {
        let Counts { drives, slots, mail_slots } = self.counts;
        let mail = (1..=mail_slots).map(Element::Mail);
        mail.chain((1..=drives).map(Element::Drive)).chain((1..=slots).map(Element::Slot))
    }

    /// Returns the cartridge in an element.
    pub fn at(&self, element: Element) -> Option<&StoredCartridge> {
        self.index(element).ok().and_then(|index| self.cartridges.get(index))
    }

    /// Puts a cartridge into an element.
    ///
    /// # Errors
    /// [`LibraryError`]
    pub fn put(&mut self, element: Element, name: &str, barcode: &str) -> Result<(), LibraryError> {
        let cartridge = StoredCartridge {
            name: name.into(),
            barcode: barcode.into(),
            element,
            source: None,
            is_vaulted: false,
        };
        self.insert(cartridge)
    }

    /// Takes a cartridge out of the library.
    ///
    /// # Errors
    /// [`LibraryError`]
    pub fn take(&mut self, element: Element) -> Result<StoredCartridge, LibraryError> {
        self.expect_element(element)?;
        let index = self.index(element).map_err(|_| LibraryError::Empty)?;
        Ok(self.cartridges.remove(index))
    }

    /// Moves a cartridge to an empty element.
    ///
    /// # Errors
    /// [`LibraryError`]
    pub fn move_cartridge(&mut self, from: Element, to: Element) -> Result<(), LibraryError> {
        self.expect_element(from)?;
        self.expect_element(to)?;
        self.expect_movable(from)?;
        if from == to {
            return Ok(());
        }
        if self.at(to).is_some() {
            return Err(LibraryError::Full);
        }
        let cartridge = self.take(from)?;
        self.insert(moved(cartridge, to))
    }

    /// Moves a cartridge to `first`, and the one that is there to `second`, which is empty or `from`.
    ///
    /// # Errors
    /// [`LibraryError`]
    pub fn exchange(&mut self, from: Element, first: Element, second: Element) -> Result<(), LibraryError> {
        for element in [from, first, second] {
            self.expect_element(element)?;
        }
        self.expect_movable(from)?;
        self.expect_movable(first)?;
        if first == from || second == first {
            return Err(LibraryError::Full);
        }
        if second != from && self.at(second).is_some() {
            return Err(LibraryError::Full);
        }
        let (cartridge, other) = (self.take(from)?, self.take(first)?);
        self.insert(moved(cartridge, first))?;
        self.insert(moved(other, second))
    }

    /// Locks the cartridge in a mail slot, or unlocks it.
    ///
    /// # Errors
    /// [`LibraryError`]
    pub fn set_vaulted(&mut self, element: Element, is_vaulted: bool) -> Result<(), LibraryError> {
        self.expect_element(element)?;
        if !matches!(element, Element::Mail(_)) {
            return Err(LibraryError::NotMailSlot);
        }
        let index = self.index(element).map_err(|_| LibraryError::Empty)?;
        let cartridge = self.cartridges.get_mut(index).ok_or(LibraryError::Empty)?;
        if !is_vaulted && !cartridge.is_vaulted {
            return Err(LibraryError::NotVaulted);
        }
        cartridge.is_vaulted = is_vaulted;
        Ok(())
    }

    /// Checks that the library has an element.
    ///
    /// # Errors
    /// [`LibraryError::NoElement`]
    pub fn expect_element(&self, element: Element) -> Result<(), LibraryError> {
        let (number, count) = match element {
            Element::Mail(number) => (number, self.counts.mail_slots),
            Element::Drive(number) => (number, self.counts.drives),
            Element::Slot(number) => (number, self.counts.slots),
        };
        if (1..=count).contains(&number) { Ok(()) } else { Err(LibraryError::NoElement) }
    }

    /// Checks that there is a cartridge in an element, and that it can be moved.
    fn expect_movable(&self, element: Element) -> Result<(), LibraryError> {
        match self.at(element) {
            None => Err(LibraryError::Empty),
            Some(cartridge) if cartridge.is_vaulted => Err(LibraryError::Vaulted),
            Some(_) => Ok(()),
        }
    }

    fn insert(&mut self, cartridge: StoredCartridge) -> Result<(), LibraryError> {
        self.expect_element(cartridge.element)?;
        if !is_name(&cartridge.name) {
            return Err(LibraryError::Name);
        }
        if cartridge.barcode.len() > BARCODE_LEN_MAX || !cartridge.barcode.bytes().all(is_code) {
            return Err(LibraryError::Barcode);
        }
        if self.cartridges.iter().any(|other| other.name == cartridge.name) {
            return Err(LibraryError::NameTwice);
        }
        let is_same =
            |other: &StoredCartridge| !other.barcode.is_empty() && other.barcode == cartridge.barcode;
        if self.cartridges.iter().any(is_same) {
            return Err(LibraryError::BarcodeTwice);
        }
        let Err(at) = self.index(cartridge.element) else { return Err(LibraryError::Full) };
        self.cartridges.insert(at, cartridge);
        Ok(())
    }

    /// Returns where the cartridge in an element is in the list, or where it would be.
    fn index(&self, element: Element) -> Result<usize, usize> {
        self.cartridges.binary_search_by_key(&element, |cartridge| cartridge.element)
    }
}

fn moved(cartridge: StoredCartridge, to: Element) -> StoredCartridge {
    let source = match cartridge.element {
        Element::Slot(number) => Some(number),
        Element::Mail(_) | Element::Drive(_) => cartridge.source,
    };
    StoredCartridge { element: to, source, ..cartridge }
}

/// Returns whether a byte can be in a bar code or a serial number.
const fn is_code(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

/// Returns whether the folder of a cartridge can have a name.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=NAME_LEN_MAX).contains(&name.len()) && !name.starts_with(['.', '-']) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests;
