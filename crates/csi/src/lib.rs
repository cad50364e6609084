//! A driver of the Container Storage Interface (CSI 1.12): the volumes of Kubernetes as files of a pool,
//! which the daemon serves, and the nodes that attach them.
//!
//! * [`volumes`], [`publish`], [`snapshots`] and [`groups`] are the controller: what exists, who may use it.
//!   They ask the daemon through [`target_admin`], keep records ([`record`]) and files ([`pool`]), and can be
//!   killed at any moment.
//! * [`node`] attaches volumes to this host and mounts them.
//! * [`server`] offers both on a Unix socket, by gRPC; [`proto`] has the messages.
//!
//! **Invariant:** this crate knows no configuration file, no admin socket and no SCSI.
#![forbid(unsafe_code)]

pub mod capability;
mod controller;
pub mod error;
mod ext;
mod group_controller;
pub mod groups;
mod identity;
mod kill_point;
mod link_free;
mod lock;
pub mod node;
pub mod parameters;
pub mod pool;
mod program;
pub mod protection;
pub mod proto;
pub mod publish;
pub mod record;
mod request;
pub mod server;
pub mod snapshots;
mod spares;
pub mod target_admin;
pub mod topology;
pub mod volumes;

use tonic::Status;

use error::CsiResult;

/// Carries out a call on a thread that may wait, and logs why it failed.
async fn blocking<T: Send + 'static>(
    name: &'static str,
    done: impl FnOnce() -> CsiResult<T> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(done).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => {
            eprintln!("targe: {name}: {error}");
            Err(error.into())
        }
        Err(_) => Err(Status::internal("the call panicked; this is a bug in targe")),
    }
}
