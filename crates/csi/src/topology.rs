//! Where volumes can be reached from, in the words of a cluster: keys with values, such as a zone.

use std::collections::BTreeMap;

use crate::error::{CsiError, CsiResult};
use crate::proto;

/// The segments of this driver. None means that every node reaches every volume.
#[derive(Clone, Debug, Default)]
pub struct Topology(pub BTreeMap<String, String>);

impl Topology {
    /// Returns the topologies of a volume.
    pub fn told(&self) -> Vec<proto::Topology> {
        self.of_node().into_iter().collect()
    }

    /// Returns the topology of a node.
    pub fn of_node(&self) -> Option<proto::Topology> {
        (!self.0.is_empty()).then(|| proto::Topology { segments: self.0.clone() })
    }

    /// Returns whether the volumes are in a topology.
    pub fn is_in(&self, wanted: &proto::Topology) -> bool {
        wanted.segments.iter().all(|(key, value)| self.0.get(key).is_none_or(|own| own == value))
    }

    /// Checks where a volume has to be.
    ///
    /// # Errors
    /// It has to be where the volumes are not.
    pub fn check(&self, wanted: Option<&proto::TopologyRequirement>) -> CsiResult<()> {
        match wanted.map(|wanted| &wanted.requisite) {
            Some(allowed) if !allowed.is_empty() && !allowed.iter().any(|one| self.is_in(one)) => {
                Err(CsiError::exhausted("the pool is in none of the requisite topologies"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_made_only_where_the_pool_is() {
        let segments = |zone: &str| BTreeMap::from([("example.org/zone".to_owned(), zone.to_owned())]);
        let topology = Topology(segments("a"));
        let wanted = |zones: &[&str]| proto::TopologyRequirement {
            requisite: zones.iter().map(|zone| proto::Topology { segments: segments(zone) }).collect(),
            preferred: Vec::new(),
        };
        topology.check(None).unwrap();
        topology.check(Some(&wanted(&[]))).unwrap();
        topology.check(Some(&wanted(&["b", "a"]))).unwrap();
        let error = topology.check(Some(&wanted(&["b"]))).unwrap_err();
        assert_eq!(error.code, tonic::Code::ResourceExhausted);
        assert_eq!(topology.told().len(), 1);
        assert!(Topology::default().told().is_empty());
        Topology::default().check(Some(&wanted(&["b"]))).unwrap();
    }
}
