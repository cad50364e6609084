//! The controller service of CSI: requests are checked here, and carried out by [`Volumes`].

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::capability::Capability;
use crate::error::{CsiError, CsiResult};
use crate::proto;
use crate::proto::controller_server::Controller;
use crate::proto::controller_service_capability::{Rpc, Type, rpc};
use crate::proto::volume_content_source;
use crate::record::{Snapshot, Source, Volume};
use crate::request::{bounded, present};
use crate::topology::Topology;
use crate::volumes::{NewVolume, SizeRange, Volumes};

/// The service.
pub(crate) struct ControllerService {
    volumes: Arc<Volumes>,
    topology: Topology,
}

impl ControllerService {
    pub(crate) const fn new(volumes: Arc<Volumes>, topology: Topology) -> Self {
        Self { volumes, topology }
    }

    /// Carries out a call on a thread that may wait.
    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        done: impl FnOnce(&Volumes) -> CsiResult<T> + Send + 'static,
    ) -> Result<T, Status> {
        let volumes = Arc::clone(&self.volumes);
        crate::blocking(name, move || done(&volumes)).await
    }

    fn volume(&self, volume: &Volume) -> proto::Volume {
        proto::Volume {
            capacity_bytes: signed(volume.bytes),
            volume_id: volume.id.clone(),
            volume_context: BTreeMap::new(),
            content_source: volume.source.as_ref().map(content_source),
            accessible_topology: self.topology.told(),
        }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<proto::CreateVolumeRequest>,
    ) -> Result<Response<proto::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        present("name", &request.name)?;
        if request.volume_capabilities.is_empty() {
            return Err(CsiError::invalid("the volume capabilities are missing").into());
        }
        for capability in &request.volume_capabilities {
            Capability::of(Some(capability))?;
        }
        self.topology.check(request.accessibility_requirements.as_ref())?;
        let wanted = NewVolume {
            name: request.name,
            size: size(request.capacity_range)?,
            source: request.volume_content_source.map(source).transpose()?,
            parameters: bounded(request.parameters)?,
            mutable: bounded(request.mutable_parameters)?,
        };
        let volume = self.call("CreateVolume", move |volumes| volumes.create(&wanted)).await?;
        Ok(Response::new(proto::CreateVolumeResponse { volume: Some(self.volume(&volume)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<proto::DeleteVolumeRequest>,
    ) -> Result<Response<proto::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        present("volume ID", &id)?;
        self.call("DeleteVolume", move |volumes| volumes.delete(&id)).await?;
        Ok(Response::new(proto::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<proto::ControllerPublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        present("node ID", &request.node_id)?;
        let capability = Capability::of(request.volume_capability.as_ref())?;
        let publish = move |volumes: &Volumes| {
            let (id, node) = (&request.volume_id, &request.node_id);
            volumes.publish(id, node, &capability, request.readonly, &request.secrets)
        };
        let publish_context = self.call("ControllerPublishVolume", publish).await?;
        Ok(Response::new(proto::ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<proto::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<proto::ControllerUnpublishVolumeResponse>, Status> {
        let proto::ControllerUnpublishVolumeRequest { volume_id, node_id, .. } = request.into_inner();
        present("volume ID", &volume_id)?;
        let unpublish = move |volumes: &Volumes| {
            let node = Some(node_id.as_str()).filter(|node| !node.is_empty());
            volumes.unpublish(&volume_id, node)
        };
        self.call("ControllerUnpublishVolume", unpublish).await?;
        Ok(Response::new(proto::ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<proto::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<proto::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(CsiError::invalid("the volume capabilities are missing").into());
        }
        let volume = self.volumes.volume(&request.volume_id)?;
        let refused = request.volume_capabilities.iter().find_map(|one| Capability::of(Some(one)).err());
        let parameters = &request.parameters;
        let (confirmed, message) = match refused {
            Some(error) => (None, error.message),
            None if !parameters.is_empty() && *parameters != volume.parameters => {
                (None, "the volume has other parameters".to_owned())
            }
            None => {
                let confirmed = proto::validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                };
                (Some(confirmed), String::new())
            }
        };
        Ok(Response::new(proto::ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(
        &self,
        request: Request<proto::ListVolumesRequest>,
    ) -> Result<Response<proto::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let (found, next) = self.volumes.list(entries(request.max_entries)?, &request.starting_token)?;
        let entry = |volume: &Volume| proto::list_volumes_response::Entry {
            volume: Some(self.volume(volume)),
            status: Some(proto::list_volumes_response::VolumeStatus {
                published_node_ids: volume.publications.keys().cloned().collect(),
                volume_condition: None,
            }),
        };
        let entries = found.iter().map(entry).collect();
        Ok(Response::new(proto::ListVolumesResponse { entries, next_token: next.unwrap_or_default() }))
    }

    async fn get_capacity(
        &self,
        request: Request<proto::GetCapacityRequest>,
    ) -> Result<Response<proto::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let is_possible = request.volume_capabilities.iter().all(|one| Capability::of(Some(one)).is_ok())
            && crate::parameters::of_new_volume(&request.parameters).is_ok()
            && request.accessible_topology.is_none_or(|wanted| self.topology.is_in(&wanted));
        let free = match is_possible {
            true => self.call("GetCapacity", Volumes::free_bytes).await?,
            false => 0,
        };
        Ok(Response::new(proto::GetCapacityResponse {
            available_capacity: signed(free),
            maximum_volume_size: Some(signed(free)),
            minimum_volume_size: None,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<proto::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<proto::ControllerGetCapabilitiesResponse>, Status> {
        let always = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::PublishUnpublishVolume,
            rpc::Type::PublishReadonly,
            rpc::Type::ListVolumes,
            rpc::Type::ListVolumesPublishedNodes,
            rpc::Type::GetCapacity,
            rpc::Type::ExpandVolume,
            rpc::Type::ModifyVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let copies = [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::CloneVolume];
        let copies = copies.into_iter().filter(|_| self.volumes.can_copy());
        let capability = |kind: rpc::Type| proto::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = always.into_iter().chain(copies).map(capability).collect();
        Ok(Response::new(proto::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<proto::CreateSnapshotRequest>,
    ) -> Result<Response<proto::CreateSnapshotResponse>, Status> {
        let proto::CreateSnapshotRequest { source_volume_id, name, parameters, .. } = request.into_inner();
        present("source volume ID", &source_volume_id)?;
        present("name", &name)?;
        check_snapshot_parameters(&parameters)?;
        let create = move |volumes: &Volumes| volumes.create_snapshot(&name, &source_volume_id);
        let snapshot = self.call("CreateSnapshot", create).await?;
        Ok(Response::new(proto::CreateSnapshotResponse { snapshot: Some(snapshot_of(&snapshot)) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<proto::DeleteSnapshotRequest>,
    ) -> Result<Response<proto::DeleteSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        present("snapshot ID", &id)?;
        self.call("DeleteSnapshot", move |volumes| volumes.delete_snapshot(&id)).await?;
        Ok(Response::new(proto::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<proto::ListSnapshotsRequest>,
    ) -> Result<Response<proto::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        let (found, next) = self.volumes.list_snapshots(
            entries(request.max_entries)?,
            &request.starting_token,
            &request.source_volume_id,
            &request.snapshot_id,
        )?;
        let entry = |snapshot: &Snapshot| proto::list_snapshots_response::Entry {
            snapshot: Some(snapshot_of(snapshot)),
        };
        let entries = found.iter().map(entry).collect();
        Ok(Response::new(proto::ListSnapshotsResponse { entries, next_token: next.unwrap_or_default() }))
    }

    async fn get_snapshot(
        &self,
        request: Request<proto::GetSnapshotRequest>,
    ) -> Result<Response<proto::GetSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        present("snapshot ID", &id)?;
        let (found, _) = self.volumes.list_snapshots(1, "", "", &id)?;
        let snapshot =
            found.first().ok_or_else(|| CsiError::not_found(format!("there is no snapshot {id}")))?;
        Ok(Response::new(proto::GetSnapshotResponse { snapshot: Some(snapshot_of(snapshot)) }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<proto::ControllerExpandVolumeRequest>,
    ) -> Result<Response<proto::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let range =
            request.capacity_range.ok_or_else(|| CsiError::invalid("the capacity range is missing"))?;
        if let Some(capability) = &request.volume_capability {
            Capability::of(Some(capability))?;
        }
        let (id, range) = (request.volume_id, size(Some(range))?);
        let bytes = self.call("ControllerExpandVolume", move |volumes| volumes.expand(&id, range)).await?;
        let capacity_bytes = signed(bytes);
        // A node has to notice the new size of a block device, too.
        let answer = proto::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true };
        Ok(Response::new(answer))
    }

    async fn controller_get_volume(
        &self,
        _: Request<proto::ControllerGetVolumeRequest>,
    ) -> Result<Response<proto::ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("ControllerGetVolume is not offered"))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<proto::ControllerModifyVolumeRequest>,
    ) -> Result<Response<proto::ControllerModifyVolumeResponse>, Status> {
        let proto::ControllerModifyVolumeRequest { volume_id, mutable_parameters, .. } = request.into_inner();
        present("volume ID", &volume_id)?;
        let mutable_parameters = bounded(mutable_parameters)?;
        let modify = move |volumes: &Volumes| volumes.modify(&volume_id, &mutable_parameters);
        self.call("ControllerModifyVolume", modify).await?;
        Ok(Response::new(proto::ControllerModifyVolumeResponse {}))
    }
}

fn size(range: Option<proto::CapacityRange>) -> CsiResult<SizeRange> {
    let Some(proto::CapacityRange { required_bytes, limit_bytes }) = range else {
        return Ok(SizeRange::default());
    };
    let positive = |bytes: i64| u64::try_from(bytes).map_err(|_| CsiError::invalid("a size is negative"));
    let size = SizeRange { required: positive(required_bytes)?, limit: positive(limit_bytes)? };
    if size.limit > 0 && size.limit < size.required {
        return Err(CsiError::invalid("the limit of the size is less than the required size"));
    }
    Ok(size)
}

fn entries(max: i32) -> CsiResult<usize> {
    usize::try_from(max).map_err(|_| CsiError::invalid("the number of entries is negative"))
}

/// Sizes are at most 1 EiB, which fits.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn source(source: proto::VolumeContentSource) -> CsiResult<Source> {
    let (what, source) = match source.r#type {
        Some(volume_content_source::Type::Snapshot(snapshot)) => {
            ("source snapshot ID", Source::Snapshot(snapshot.snapshot_id))
        }
        Some(volume_content_source::Type::Volume(volume)) => {
            ("source volume ID", Source::Volume(volume.volume_id))
        }
        None => return Err(CsiError::invalid("the content source is missing")),
    };
    let (Source::Snapshot(id) | Source::Volume(id)) = &source;
    present(what, id)?;
    Ok(source)
}

fn content_source(source: &Source) -> proto::VolumeContentSource {
    let kind = match source {
        Source::Snapshot(id) => {
            volume_content_source::Type::Snapshot(volume_content_source::SnapshotSource {
                snapshot_id: id.clone(),
            })
        }
        Source::Volume(id) => {
            volume_content_source::Type::Volume(volume_content_source::VolumeSource { volume_id: id.clone() })
        }
    };
    proto::VolumeContentSource { r#type: Some(kind) }
}

/// Refuses parameters of a snapshot, but for those that Kubernetes adds.
pub(crate) fn check_snapshot_parameters(parameters: &BTreeMap<String, String>) -> CsiResult<()> {
    match parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
        Some(key) => Err(CsiError::invalid(format!("unknown parameter {key}; snapshots have none"))),
        None => Ok(()),
    }
}

pub(crate) fn snapshot_of(snapshot: &Snapshot) -> proto::Snapshot {
    proto::Snapshot {
        size_bytes: signed(snapshot.bytes),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(prost_types::Timestamp { seconds: snapshot.created_s, nanos: 0 }),
        ready_to_use: true,
        group_snapshot_id: snapshot.group.clone().unwrap_or_default(),
    }
}
