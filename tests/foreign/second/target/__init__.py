"""The target's end of HyperSCSI, written from docs/hyperscsi.md alone."""
