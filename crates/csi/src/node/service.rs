//! The node service of CSI: requests are checked here, and carried out by [`Node`].

use std::path::{Component, PathBuf};
use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::Node;
use crate::capability::Capability;
use crate::error::{CsiError, CsiResult};
use crate::proto;
use crate::proto::node_server::Node as NodeCalls;
use crate::proto::node_service_capability::{Rpc, Type, rpc};
use crate::proto::volume_usage::Unit;
use crate::request::present;
use crate::topology::Topology;

/// The service.
pub(crate) struct NodeService {
    node: Arc<Node>,
    topology: Topology,
}

impl NodeService {
    pub(crate) const fn new(node: Arc<Node>, topology: Topology) -> Self {
        Self { node, topology }
    }

    /// Carries out a call on a thread that may wait.
    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        done: impl FnOnce(&Node) -> CsiResult<T> + Send + 'static,
    ) -> Result<T, Status> {
        let node = Arc::clone(&self.node);
        crate::blocking(name, move || done(&node)).await
    }
}

#[tonic::async_trait]
impl NodeCalls for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<proto::NodeStageVolumeRequest>,
    ) -> Result<Response<proto::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let path = path("staging target path", &request.staging_target_path)?;
        let capability = Capability::of(request.volume_capability.as_ref())?;
        let stage = move |node: &Node| {
            node.stage(&request.volume_id, &path, &capability, &request.publish_context, &request.secrets)
        };
        self.call("NodeStageVolume", stage).await?;
        Ok(Response::new(proto::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<proto::NodeUnstageVolumeRequest>,
    ) -> Result<Response<proto::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let path = path("staging target path", &request.staging_target_path)?;
        self.call("NodeUnstageVolume", move |node| node.unstage(&request.volume_id, &path)).await?;
        Ok(Response::new(proto::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<proto::NodePublishVolumeRequest>,
    ) -> Result<Response<proto::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let path = path("target path", &request.target_path)?;
        let capability = Capability::of(request.volume_capability.as_ref())?;
        let publish =
            move |node: &Node| node.publish(&request.volume_id, &path, &capability, request.readonly);
        self.call("NodePublishVolume", publish).await?;
        Ok(Response::new(proto::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<proto::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<proto::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let path = path("target path", &request.target_path)?;
        self.call("NodeUnpublishVolume", move |node| node.unpublish(&request.volume_id, &path)).await?;
        Ok(Response::new(proto::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<proto::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let path = path("volume path", &request.volume_path)?;
        let measure = move |node: &Node| node.usage(&request.volume_id, &path);
        let usage = self.call("NodeGetVolumeStats", measure).await?;
        let used = |unit: Unit, amounts: [u64; 3]| {
            let [total, used, available] = amounts.map(|amount| i64::try_from(amount).unwrap_or(i64::MAX));
            proto::VolumeUsage { available, total, used, unit: unit.into() }
        };
        let fault = usage.condition.fault();
        let condition = proto::VolumeCondition {
            abnormal: fault.is_some(),
            message: fault.unwrap_or("nothing is known against it").to_owned(),
        };
        let measured = usage.measured.iter();
        let usage = measured.flat_map(|measured| {
            let inodes = measured.inodes.map(|inodes| used(Unit::Inodes, inodes));
            [used(Unit::Bytes, measured.bytes)].into_iter().chain(inodes)
        });
        let usage = usage.collect();
        Ok(Response::new(proto::NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<proto::NodeExpandVolumeRequest>,
    ) -> Result<Response<proto::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        present("volume ID", &request.volume_id)?;
        let path = path("volume path", &request.volume_path)?;
        let required = request.capacity_range.map_or(0, |range| range.required_bytes);
        let required = u64::try_from(required).map_err(|_| CsiError::invalid("a size is negative"))?;
        let expand = move |node: &Node| node.expand(&request.volume_id, &path, required);
        let bytes = self.call("NodeExpandVolume", expand).await?;
        let capacity_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(Response::new(proto::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<proto::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<proto::NodeGetCapabilitiesResponse>, Status> {
        let kinds = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::VolumeCondition,
        ];
        let capability = |kind: rpc::Type| proto::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(proto::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<proto::NodeGetInfoRequest>,
    ) -> Result<Response<proto::NodeGetInfoResponse>, Status> {
        Ok(Response::new(proto::NodeGetInfoResponse {
            node_id: self.node.id().to_owned(),
            max_volumes_per_node: self.node.max_volumes().map_or(0, |max| i64::from(max.get())),
            accessible_topology: self.topology.of_node(),
        }))
    }
}

/// Reads a path of this host. It names a folder or file of its own, and leads through no parent folder: what
/// is at it is mounted, unmounted and removed.
fn path(what: &str, text: &str) -> CsiResult<PathBuf> {
    present(what, text)?;
    let path = PathBuf::from(text);
    let is_plain = |part: Component| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() {
        return Err(CsiError::invalid(format!("the {what} is not absolute")));
    }
    if text.chars().any(char::is_control) || !path.components().all(is_plain) || path.file_name().is_none() {
        return Err(CsiError::invalid(format!(
            "the {what} is the root, or has \"..\" or a control character"
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_folder_that_they_name() {
        for text in ["/var/lib/kubelet/pods/a b/..mount", "/a/./b", "/a//b/"] {
            assert_eq!(path("path", text).unwrap(), PathBuf::from(text));
        }
        for text in ["", "a", "-o", "/", "/..", "/var/lib/kubelet/../../../etc", "/a/..", "/a\0b", "/a\nb"] {
            let error = path("path", text).unwrap_err();
            assert_eq!(error.code, tonic::Code::InvalidArgument, "{text:?}");
        }
    }
}
