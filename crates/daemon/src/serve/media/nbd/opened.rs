//! An export before it is on its reactor.

use base::state_machine::MediumId;
use target::units::UnitId;

use super::{ATTEMPT_MAX, ExportAddress, ExportConnection, NbdExport, OpenExport};
use crate::config::Unit;
use crate::serve::media::handed_over::{MovedExport, SessionMedia};
use crate::serve::media::opened::{OpenedMedium, Place, nothing};
use crate::serve::media::served::ServedMedium;
use crate::serve::media::{MediaError, loss};
use crate::serve::state::StateDir;

/// An export that is to be served.
#[derive(Debug)]
pub(in crate::serve) struct ConnectedExport {
    address: ExportAddress,
    /// `None` until the connection to the server, or the description of the device, comes with the sessions
    /// of another process.
    export: Option<OpenExport>,
}

impl ConnectedExport {
    /// Connects to an export.
    ///
    /// # Errors
    /// [`MediaError`]
    pub(in crate::serve) fn open(unit: &Unit, address: ExportAddress) -> Result<Self, MediaError> {
        let connection = address.open(ATTEMPT_MAX);
        let connection =
            connection.map_err(|error| MediaError::of_server(unit, error.why, error.is_unreachable))?;
        let export = OpenExport::new(unit, address.clone(), connection.info, Some(connection));
        let export = export.map_err(|why| MediaError::new(unit, why))?;
        Ok(Self { address, export: Some(export) })
    }

    /// Waits for what another process gives. A server may accept one connection only, or end after it.
    pub(in crate::serve) const fn awaited(address: ExportAddress) -> Self {
        Self { address, export: None }
    }
}

impl OpenedMedium for ConnectedExport {
    fn check_loss(&mut self, unit: &Unit, state: &StateDir) -> Result<Option<String>, MediaError> {
        loss::check_export(unit, &self.address, state)
    }

    fn receive(&mut self, unit: &Unit, media: &mut SessionMedia) -> Result<(), MediaError> {
        if self.export.is_some() {
            return Ok(());
        }
        let (address, failed) = (&self.address, |why| MediaError::new(unit, why));
        let moved = media.exports.remove(&unit.identity.naa.to_string());
        let moved = moved.filter(|moved| moved.socket.is_none() == address.is_device());
        let moved = moved.ok_or_else(|| failed(format!("the connection to {address} is missing")))?;
        let MovedExport { info, socket } = moved;
        let connection = socket.map(|socket| ExportConnection::taken_over(info, socket));
        let export = OpenExport::new(unit, address.clone(), info, connection);
        self.export = Some(export.map_err(failed)?);
        Ok(())
    }

    fn place(self: Box<Self>, place: Place<'_>) -> Box<dyn ServedMedium> {
        let Place { pool, exports, id: MediumId(id), label, .. } = place;
        let Some(export) = self.export else { return nothing() };
        Box::new(NbdExport::new(export, (exports, UnitId(id)), label, pool))
    }
}
