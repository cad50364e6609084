//! The identity service of CSI.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::proto;
use crate::proto::identity_server::Identity;
use crate::proto::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::volumes::Volumes;

/// The service.
pub(crate) struct IdentityService {
    /// The name of the driver.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: &'static str,
    /// The volumes, where the controller runs.
    pub(crate) volumes: Option<Arc<Volumes>>,
    /// Whether volumes can be reached from some nodes only.
    pub(crate) has_topology: bool,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<proto::GetPluginInfoRequest>,
    ) -> Result<Response<proto::GetPluginInfoResponse>, Status> {
        Ok(Response::new(proto::GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: self.version.to_owned(),
            manifest: BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<proto::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<proto::GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| proto::PluginCapability {
            r#type: Some(Type::Service(Service { r#type: kind.into() })),
        };
        let expansion = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let mut capabilities =
            vec![proto::PluginCapability { r#type: Some(Type::VolumeExpansion(expansion)) }];
        if self.volumes.is_some() {
            capabilities.push(service(service::Type::ControllerService));
        }
        if self.volumes.as_ref().is_some_and(|volumes| volumes.can_copy()) {
            capabilities.push(service(service::Type::GroupControllerService));
        }
        if self.has_topology {
            capabilities.push(service(service::Type::VolumeAccessibilityConstraints));
        }
        Ok(Response::new(proto::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<proto::ProbeRequest>) -> Result<Response<proto::ProbeResponse>, Status> {
        let ready = match &self.volumes {
            None => true,
            Some(volumes) => {
                let volumes = Arc::clone(volumes);
                crate::blocking("Probe", move || Ok(volumes.is_ready())).await?
            }
        };
        Ok(Response::new(proto::ProbeResponse { ready: Some(ready) }))
    }
}
