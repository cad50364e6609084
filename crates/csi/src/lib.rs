//! A driver of the Container Storage Interface (CSI 1.12): the volumes of Kubernetes.
//!
//! [`proto`] has the messages.
#![forbid(unsafe_code)]

pub mod proto;
