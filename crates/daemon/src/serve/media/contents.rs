//! What an open medium holds.

use std::sync::Arc;

use backends::open::FileIdentity;

use super::OpenMedium;
use super::error::MediaError;
use crate::config::{Medium, Unit};
use crate::serve::media::identity::MediumIdentity;
use crate::serve::sanitize_record::SanitizeRecord;

impl OpenMedium {
    /// Looks at what distinguishes the medium from others, as far as its opening did not. Its path is not
    /// looked at any more on the main thread, which must not wait for a file system.
    pub(super) fn look_at_identity(&mut self, unit: &Unit) {
        self.created = match (&unit.medium, self.identity()) {
            (Medium::Tape { path } | Medium::Sg { path, .. }, Some(FileIdentity::File(..))) => {
                path.metadata().and_then(|facts| facts.created()).ok()
            }
            _ => None,
        };
        self.record = Some(Arc::new(SanitizeRecord::of(unit, self.identity())));
    }

    /// Returns the identity of the file or device, if the medium is one, and what lasts of it.
    pub(in crate::serve) fn identities(&self) -> Option<(FileIdentity, MediumIdentity)> {
        let identity = self.identity()?;
        let lasting = self.bare.lasting_identity();
        let medium = lasting.unwrap_or_else(|| MediumIdentity::created(identity, self.created));
        Some((identity, medium))
    }

    /// Returns what a SANITIZE that has not ended is recorded with.
    pub(in crate::serve) fn sanitize_record(&self, unit: &Unit) -> Arc<SanitizeRecord> {
        self.record.clone().unwrap_or_else(|| Arc::new(SanitizeRecord::of(unit, self.identity())))
    }

    /// Returns the serial numbers of the drives of a library, if the medium is one.
    pub(in crate::serve) fn drive_serials(&self) -> Option<Vec<String>> {
        self.bare.drive_serials()
    }

    /// Checks that a file or device holds a logical block. The reactor would refuse to serve it otherwise.
    pub(super) fn expect_a_block(&self, unit: &Unit) -> Result<(), MediaError> {
        let Some((len, path)) = self.bare.size() else { return Ok(()) };
        let block = u64::from(unit.block_size.bytes());
        let data = self.keys.as_ref().map_or(len, |keys| keys.data_len(len));
        if data >= block || self.unread.is_some() {
            return Ok(());
        }
        let why = format!("{} holds {data} bytes, less than one block of {block}", path.display());
        Err(MediaError::new(unit, why))
    }
}
