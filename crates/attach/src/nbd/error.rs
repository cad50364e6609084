//! Why a client is disconnected.

/// Why a client is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The client set flags that were not offered.
    UnknownClientFlags,
    /// The bytes where an option should start are no option.
    NotAnOption,
    /// The bytes where a request should start are no request.
    NotARequest,
    /// The client chose an export that does not exist with `EXPORT_NAME`, which can be refused only by
    /// disconnecting.
    UnknownExport,
    /// The client did not complete the negotiation in time.
    TooSlow,
}

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UnknownClientFlags => "the client set flags that were not offered",
            Self::NotAnOption => "the client sent a malformed option",
            Self::NotARequest => "the client sent a malformed request",
            Self::UnknownExport => "the client requested an export that does not exist",
            Self::TooSlow => "the client did not complete the negotiation in time",
        })
    }
}
