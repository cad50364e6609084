//! The group controller service of CSI: snapshots of several volumes at one point in time.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::controller::{check_snapshot_parameters, snapshot_of};
use crate::error::{CsiError, CsiResult};
use crate::proto;
use crate::proto::group_controller_server::GroupController;
use crate::proto::group_controller_service_capability::{Rpc, Type, rpc};
use crate::record::{Group, Snapshot};
use crate::request::present;
use crate::volumes::Volumes;

/// The longest list of IDs of a request. A longer one is of no group.
const IDS_MAX: usize = 1024;

/// The service.
pub(crate) struct GroupControllerService {
    /// The volumes.
    pub(crate) volumes: Arc<Volumes>,
}

impl GroupControllerService {
    /// Carries out a call on a thread that may wait.
    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        done: impl FnOnce(&Volumes) -> CsiResult<T> + Send + 'static,
    ) -> Result<T, Status> {
        let volumes = Arc::clone(&self.volumes);
        crate::blocking(name, move || done(&volumes)).await
    }
}

#[tonic::async_trait]
impl GroupController for GroupControllerService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<proto::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<proto::GroupControllerGetCapabilitiesResponse>, Status> {
        let kind = rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into();
        let capability =
            proto::GroupControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind })) };
        Ok(Response::new(proto::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<proto::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<proto::CreateVolumeGroupSnapshotResponse>, Status> {
        let proto::CreateVolumeGroupSnapshotRequest { name, source_volume_ids, parameters, .. } =
            request.into_inner();
        present("name", &name)?;
        check_ids("source volume ID", &source_volume_ids)?;
        check_snapshot_parameters(&parameters)?;
        let create = move |volumes: &Volumes| volumes.create_group(&name, &source_volume_ids);
        let made = self.call("CreateVolumeGroupSnapshot", create).await?;
        let group_snapshot = Some(group_of(&made));
        Ok(Response::new(proto::CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<proto::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<proto::DeleteVolumeGroupSnapshotResponse>, Status> {
        let proto::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id, snapshot_ids, .. } =
            request.into_inner();
        present("group snapshot ID", &id)?;
        check_ids("snapshot ID", &snapshot_ids)?;
        let delete = move |volumes: &Volumes| volumes.delete_group(&id, &snapshot_ids);
        self.call("DeleteVolumeGroupSnapshot", delete).await?;
        Ok(Response::new(proto::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<proto::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<proto::GetVolumeGroupSnapshotResponse>, Status> {
        let proto::GetVolumeGroupSnapshotRequest { group_snapshot_id: id, snapshot_ids, .. } =
            request.into_inner();
        present("group snapshot ID", &id)?;
        check_ids("snapshot ID", &snapshot_ids)?;
        let found = self.volumes.group(&id, &snapshot_ids)?;
        let group_snapshot = Some(group_of(&found));
        Ok(Response::new(proto::GetVolumeGroupSnapshotResponse { group_snapshot }))
    }
}

fn check_ids(what: &str, ids: &[String]) -> CsiResult<()> {
    if ids.len() > IDS_MAX {
        return Err(CsiError::invalid(format!("the list has more than {IDS_MAX} items")));
    }
    ids.iter().try_for_each(|id| present(what, id))
}

fn group_of((group, snapshots): &(Group, Vec<Snapshot>)) -> proto::VolumeGroupSnapshot {
    proto::VolumeGroupSnapshot {
        group_snapshot_id: group.id.clone(),
        snapshots: snapshots.iter().map(snapshot_of).collect(),
        creation_time: Some(prost_types::Timestamp { seconds: group.created_s, nanos: 0 }),
        ready_to_use: true,
    }
}
