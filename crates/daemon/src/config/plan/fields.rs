//! Single values of a configuration in words.

use std::fmt::Display;

use crate::config::resolved::{Auth, AuthMethods, Chap};

/// Adds `NAME: WAS -> IS` if the two differ.
pub(super) fn field<T: PartialEq + Display>(details: &mut Vec<String>, name: &str, was: &T, is: &T) {
    if was != is {
        details.push(format!("{name}: {was} -> {is}"));
    }
}

/// Describes an authentication, without its secrets.
pub(super) fn auth(of: &Auth) -> String {
    let Auth::Required(AuthMethods { chap, passwords }) = of else { return "none".to_owned() };
    let chap = chap.as_ref().map(|Chap { user, own, .. }| {
        let mutual = own.as_ref().map_or(String::new(), |own| format!(", mutual as {:?}", own.name));
        format!("CHAP user {:?}{mutual}", user.name)
    });
    let users = passwords.as_ref().map(|file| match file.users().count() {
        1 => "password login of 1 user".to_owned(),
        some => format!("password login of {some} users"),
    });
    chap.into_iter().chain(users).collect::<Vec<_>>().join(" or ")
}

/// Describes how an authentication changes. Of a secret it says only that it changed.
pub(super) fn auth_details(was: &Auth, is: &Auth, details: &mut Vec<String>) {
    if was == is {
        return;
    }
    let (before, after) = (auth(was), auth(is));
    if before != after {
        details.push(format!("auth: {before} -> {after}"));
        return;
    }
    let (Auth::Required(was), Auth::Required(is)) = (was, is) else { return };
    let mut parts = Vec::new();
    if let (Some(was), Some(is)) = (&was.chap, &is.chap) {
        if was.user != is.user {
            parts.push("the secret of the initiator changed");
        }
        if was.own != is.own {
            parts.push("the secret of the target changed");
        }
        if was.algorithms != is.algorithms {
            parts.push("the accepted algorithms changed");
        }
    }
    if was.passwords != is.passwords {
        parts.push("the password records changed");
    }
    details.push(format!("auth: {}", parts.join(", ")));
}
