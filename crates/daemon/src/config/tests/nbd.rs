//! Tests of exports of NBD servers.

use std::time::Duration;

use super::*;

/// Returns a configuration with these LUNs.
fn with_luns(luns: &str) -> String {
    format!(
        "portal = [{{ listen = \"127.0.0.1\" }}]\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{luns}]\n"
    )
}

#[test]
fn an_export_keeps_its_name_however_its_address_is_written() {
    let scratch = Scratch::new();
    let unit = |keys: &str| {
        let config = scratch.config(&with_luns(&format!("{{ type = \"nbd\", {keys} }}")));
        config.units[0].clone()
    };
    let first = unit("uri = \"nbd://host:10809/a%2fb\"");
    let second = unit("uri = \"nbd://host/a/b\", reconnect_timeout = \"0s\"");
    assert_eq!(first.medium.to_string(), "nbd:nbd://host/a/b");
    assert_eq!(first.key(), second.key());
    assert_eq!(first.identity.naa, second.identity.naa);
    let patience = |unit: &Unit| match unit.medium {
        Medium::Nbd { patience, .. } => patience,
        _ => panic!("{}", unit.medium),
    };
    assert_eq!((patience(&first), patience(&second)), (Some(Duration::from_secs(30)), None));
    assert_ne!(unit("uri = \"nbd://host/c\"").identity.naa, first.identity.naa);
}

#[test]
fn an_export_is_the_medium_of_one_unit_only() {
    let scratch = Scratch::new();
    let one = "{ type = \"nbd\", uri = \"nbd://host/\" }";
    let text = with_luns(&format!("{one}, {{ type = \"nbd\", uri = \"nbd://host:10809\" }}"));
    let told = scratch.told(&scratch.load(&text).unwrap_err());
    let expected = "nbd:nbd://host/ is already the medium of iqn.2001-04.com.example:a/0";
    assert!(told.contains(expected), "{told}");
    let told = scratch.told(&scratch.load(&with_luns("{ type = \"nbd\" }")).unwrap_err());
    assert!(told.contains("lun of type nbd has no \"uri\""), "{told}");
}
