//! Hand-overs of whole logical units.
