use super::*;

#[test]
fn keys_that_only_resemble_secret_ones_are_not_masked() {
    let mask = |text: &[u8]| {
        let mut text = text.to_vec();
        SecretMask::default().mask(&mut text, false);
        text
    };
    assert_eq!(mask(b"CHAP_R=a=b\0CHAP_RX=1\0XCHAP_R=2\0"), b"CHAP_R=***\0CHAP_RX=1\0XCHAP_R=2\0");
    assert_eq!(
        mask(b"X-org.targe.ke1=0x00\0X-org.targe.stretch=8,1,1\0"),
        b"X-org.targe.ke1=****\0X-org.targe.stretch=8,1,1\0"
    );
    let long = [&[b'x'; 100][..], b"CHAP_R=1\0"].concat();
    assert_eq!(mask(&long), long);
    assert!(SECRET_KEYS.iter().all(|key| key.len() < KEY_MAX));
}

#[test]
fn a_secret_value_without_an_end_is_masked_in_the_next_pdu_too() {
    let mut mask = SecretMask::default();
    for (text, wanted) in [
        (&b"CHAP_R=0x1"[..], &b"CHAP_R=***"[..]),
        (b"2\0CHAP_A=5", b"*\0CHAP_A=5"),
        (b"CHAP_N=a", b"CHAP_N=*"),
    ] {
        let mut text = text.to_vec();
        mask.mask(&mut text, false);
        assert_eq!(text, wanted);
    }
}

#[test]
fn a_value_is_found_by_its_whole_key() {
    let text = b"XInitiatorName=no\0InitiatorName=iqn.a=b\0TargetName=\xff\0";
    assert_eq!(value_of(text, "InitiatorName"), Some("iqn.a=b"));
    assert_eq!(value_of(text, "TargetName"), None);
}
