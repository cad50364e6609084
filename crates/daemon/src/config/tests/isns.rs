//! Tests of name servers.

use super::*;

/// Returns a configuration with these keys of `[isns]`.
fn with(portal: &str, keys: &str) -> String {
    format!(
        "portal = [{{ listen = \"{portal}\" }}]\nisns = {{ {keys} }}\n[[target]]\n\
         name = \"iqn.2001-04.com.example:a\"\nlun = [{{ type = \"ram\", size = \"1M\" }}]\n"
    )
}

#[test]
fn servers_have_a_port_and_a_change_is_told() {
    let scratch = Scratch::new();
    let config = |servers: &str| scratch.config(&with("127.0.0.1", servers));
    let first =
        config("servers = [\"a.example\", \"[2001:db8::1]:99\"], entity = \"san\", event_port = 4000");
    let isns = first.isns.as_ref().unwrap();
    let servers: Vec<String> = isns.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["a.example:3205", "[2001:db8::1]:99"]);
    assert_eq!((isns.entity.as_deref(), isns.event_port), (Some("san"), Some(4000)));
    let second = config("servers = [\"a.example\"]");
    assert_eq!(Config::diff(&first, &second).to_string(), "isns changed");
}

#[test]
fn mistakes_are_told_where_they_are() {
    let scratch = Scratch::new();
    let nine = (0..9).map(|at| format!("\"s{at}\"")).collect::<Vec<_>>().join(", ");
    for (keys, told) in [
        ("servers = []".to_owned(), "2:10: \"servers\" is an empty list"),
        ("servers = [\"a b\"]".to_owned(), "2:21: \"a b\" is not HOST, HOST:PORT or [IPV6]:PORT"),
        ("servers = [\"a\", \"a:3205\"]".to_owned(), "2:26: name server \"a:3205\" is given twice"),
        (format!("servers = [{nine}]"), "2:8: isns has more than 8 servers"),
    ] {
        check(&scratch.errors(&with("127.0.0.1", &keys)), &format!("DIR/targe.toml:{told}"));
    }
}
