//! The alerts of TLS by their names (RFC 8446 §B.2), with what the one who receives them can do.

/// The names, by number. Those that only TLS 1.2 and earlier know are missing: no other end sends them here.
const NAMES: [(u8, &str); 27] = [
    (0, "close_notify"),
    (10, "unexpected_message"),
    (20, "bad_record_mac"),
    (22, "record_overflow"),
    (40, "handshake_failure"),
    (42, "bad_certificate"),
    (43, "unsupported_certificate"),
    (44, "certificate_revoked"),
    (45, "certificate_expired"),
    (46, "certificate_unknown"),
    (47, "illegal_parameter"),
    (48, "unknown_ca"),
    (49, "access_denied"),
    (50, "decode_error"),
    (51, "decrypt_error"),
    (70, "protocol_version"),
    (71, "insufficient_security"),
    (80, "internal_error"),
    (86, "inappropriate_fallback"),
    (90, "user_canceled"),
    (109, "missing_extension"),
    (110, "unsupported_extension"),
    (112, "unrecognized_name"),
    (113, "bad_certificate_status_response"),
    (115, "unknown_psk_identity"),
    (CERTIFICATE_REQUIRED, "certificate_required"),
    (120, "no_application_protocol"),
];

const CERTIFICATE_REQUIRED: u8 = 116;

/// Returns the name of an alert, and what it means where the reader can do something about it.
pub(crate) fn describe(alert: u8) -> String {
    let name = NAMES.iter().find(|(number, _)| *number == alert).map(|(_, name)| *name);
    let name = name.map_or_else(|| alert.to_string(), str::to_owned);
    match meaning(alert) {
        Some(meaning) => format!("{name}: {meaning}"),
        None => name,
    }
}

const fn meaning(alert: u8) -> Option<&'static str> {
    Some(match alert {
        40 => "the two ends have no TLS parameters in common",
        42 | 43 | 46 => "it does not accept the certificate of this end",
        44 => "the certificate of this end is revoked",
        45 => "the certificate of this end has expired",
        48 => "it does not know the authority that signed the certificate of this end",
        49 => "it refuses the owner of this end's certificate",
        70 => "it does not speak TLS 1.3",
        112 => "it has no certificate for the name by which it was asked",
        CERTIFICATE_REQUIRED => {
            "it demands a certificate of this end (tls_certificate and tls_key of an initiator's URL)"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_their_names_and_what_to_do() {
        assert_eq!(
            describe(48),
            "unknown_ca: it does not know the authority that signed the certificate of this end"
        );
        assert!(describe(116).starts_with("certificate_required: it demands a certificate of this end"));
        assert_eq!(describe(80), "internal_error");
        assert_eq!(describe(200), "200");
        assert!(NAMES.is_sorted_by(|(one, _), (next, _)| one < next));
    }
}
