//! Edits of texts: what changes, and that everything else stays as it was.

use std::path::Path;

use super::*;
use crate::config::{ConfigReport, Environment, document, raw, resolve};

const TEXT: &str = r#"# The disks of the building.
log = "info" # quiet

[[portal]]
listen = "127.0.0.1:3260"

# Shared by both.
[[lun]]
name = "common"
type = "ram"
size = "1M"

# The first one.
[[target]]
name = "iqn.2026-11.org.example:a"   # never rename

# The system.
[[target.lun]]
type = "ram" # fast
size = "1M"

[[target.lun]]
type = "null"
size = "2M"

[[target.lun]]
share = "common"

# Everyone of the lab.
[[target.acl]]
initiators = ["iqn.2000-01.org.example:x", "iqn.2000-01.org.example:y"]

[target.acl.auth]
user = "lab"
secret_file = "/lab.secret"

[[target.acl]]
initiators = ["iqn.2000-01.org.example:z"]
luns = [0, { lun = 1, as = 7 }]

[[target]]
name = "iqn.2026-11.org.example:b"
lun = [{ share = "common" }, { type = "null", size = "1M" }]
# The end.
"#;

/// Returns the meaning of a text, as far as it has one: the files that it names do not exist.
fn resolved(text: &str) -> Config {
    let mut report = ConfigReport::new(None);
    let tree = document::from_toml(text, &mut report);
    let root = raw::Root::read(tree, &mut report);
    resolve::resolve(root, &Environment::for_tests(Path::new("/here")), &mut report)
}

/// Makes one edit.
fn edit(text: &str, done: &Edit) -> Result<String, String> {
    edit_with(text, done, None)
}

/// Makes one edit where the names of the daemon are unknown, for this reason.
fn edit_with(text: &str, done: &Edit, unknown_names: Option<String>) -> Result<String, String> {
    let resolve = |text: &str| Ok(resolved(text));
    let context = EditContext { directory: "/here".into(), resolve: &resolve, unknown_names };
    super::edit(text, resolved(&text.replace("\r\n", "\n")), std::slice::from_ref(done), &context)
}

#[test]
fn the_meaning_of_a_text_is_found_once_for_all_additions_to_an_access_list() {
    let additions = |count: usize| {
        let name = "iqn.2026-11.org.example:c".to_owned();
        let mut edits = vec![Edit::AddTarget {
            name: name.clone(),
            luns: vec!["null:1M".to_owned()],
            settings: Vec::new(),
        }];
        for number in 0..count {
            let initiator = format!("iqn.2000-01.org.example:n{number}");
            edits.push(Edit::AddAcl {
                target: name.clone(),
                initiators: vec![initiator.clone()],
                settings: Vec::new(),
                first: false,
            });
            let secret = settings(&[("secret_file", "/lab.secret")]);
            let place = AuthPlace::Initiator(name.clone(), initiator);
            edits.push(Edit::AddUser { place, user: "lab".to_owned(), settings: secret });
        }
        edits
    };
    let made = |edits: &[Edit]| {
        let count = std::cell::Cell::new(0);
        let resolve = |text: &str| {
            count.set(count.get() + 1);
            Ok(resolved(text))
        };
        let context = EditContext { directory: "/here".into(), resolve: &resolve, unknown_names: None };
        (super::edit(TEXT, resolved(TEXT), edits, &context).unwrap(), count.get())
    };
    let (text, count) = made(&additions(20));
    assert_eq!(count, made(&additions(1)).1);
    let one_by_one = additions(20).iter().fold(TEXT.to_owned(), |text, one| edit(&text, one).unwrap());
    assert_eq!(text, one_by_one);
    // A wrong one among them is refused.
    let twice = [additions(2), additions(2).split_off(1)].concat();
    let resolve = |text: &str| Ok(resolved(text));
    let context = EditContext { directory: "/here".into(), resolve: &resolve, unknown_names: None };
    super::edit(TEXT, resolved(TEXT), &twice, &context).unwrap_err();
}

fn a() -> String {
    "iqn.2026-11.org.example:A".to_owned()
}

fn b() -> String {
    "iqn.2026-11.org.example:b".to_owned()
}

fn settings(list: &[(&str, &str)]) -> Vec<Setting> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Returns the lines that an edit removes, marked with `-`, and those that it adds, marked with `+`.
#[track_caller]
fn diff(done: &Edit) -> String {
    diff_of(TEXT, done)
}

#[track_caller]
fn diff_of(text: &str, done: &Edit) -> String {
    let new = edit(text, done).unwrap();
    assert!(new.parse::<DocumentMut>().is_ok(), "{new}");
    let (old, new): (Vec<&str>, Vec<&str>) = (text.lines().collect(), new.lines().collect());
    // The longest common subsequence of lines.
    let mut lengths = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            lengths[i][j] = if old[i] == new[j] {
                lengths[i + 1][j + 1] + 1
            } else {
                lengths[i + 1][j].max(lengths[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut told) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || lengths[i + 1][j] >= lengths[i][j + 1]) {
            told.push(format!("-{}", old[i]));
            i += 1;
        } else {
            told.push(format!("+{}", new[j]));
            j += 1;
        }
    }
    told.join("\n")
}

#[track_caller]
fn refused(done: &Edit) -> String {
    edit(TEXT, done).unwrap_err()
}

#[test]
fn a_lun_is_added_after_the_others_with_its_number() {
    let spec = "file:d.img,size=1G,ro".to_owned();
    assert_eq!(
        diff(&Edit::AddLun { target: a(), spec, reserved: BTreeSet::new() }),
        "+[[target.lun]]\n+lun = 3\n+type = \"file\"\n+path = \"/here/d.img\"\n+size = \"1G\"\n+ro = true\n+"
    );
    let spec = "null:3M,lun=9".to_owned();
    assert_eq!(
        diff(&Edit::AddLun { target: b(), spec, reserved: BTreeSet::new() }),
        "-lun = [{ share = \"common\" }, { type = \"null\", size = \"1M\" }]\n\
         +lun = [{ share = \"common\" }, { type = \"null\", size = \"1M\" }, { lun = 9, type = \"null\", size = \"3M\" }]"
    );
}

#[test]
fn a_new_lun_gets_no_number_that_a_host_may_have_open() {
    let spec = "file:d.img,size=1G,ro".to_owned();
    let added = diff(&Edit::AddLun { target: a(), spec, reserved: [0, 3, 4, 6].into() });
    assert!(added.starts_with("+[[target.lun]]\n+lun = 5\n"), "{added}");
    // The operator can choose it all the same.
    let spec = "null:3M,lun=9".to_owned();
    let added = diff(&Edit::AddLun { target: a(), spec, reserved: [9].into() });
    assert!(added.starts_with("+[[target.lun]]\n+lun = 9\n"), "{added}");
}

#[test]
fn luns_that_stay_keep_their_numbers() {
    assert_eq!(
        diff(&Edit::RemoveLun { target: a(), lun: 0 }),
        "-# The system.\n-type = \"ram\" # fast\n-size = \"1M\"\n-\n-[[target.lun]]\n+lun = 1\n+lun = 2\n\
         -luns = [0, { lun = 1, as = 7 }]\n+luns = [{ lun = 1, as = 7 }]"
    );
    // A number that is fixed in the middle would move the others.
    let spec = "null:3M,lun=1".to_owned();
    assert_eq!(
        refused(&Edit::AddLun { target: a(), spec, reserved: BTreeSet::new() }),
        "LUN 1 exists already"
    );
    let only = Edit::RemoveLun { target: b(), lun: 5 };
    assert_eq!(refused(&only), "the target has no LUN 5; it has 0, 1");
}

#[test]
fn a_value_is_replaced_and_its_comment_stays() {
    let edit = Edit::SetLun { target: a(), lun: 0, settings: settings(&[("type", "null"), ("bs", "4096")]) };
    assert_eq!(diff(&edit), "-type = \"ram\" # fast\n+type = \"null\" # fast\n+bs = 4096");
    let edit = Edit::SetTarget {
        name: a(),
        settings: settings(&[("alias", "Haus"), ("portals", "in,out"), ("session.data_digest", "require")]),
    };
    let expected =
        "+alias = \"Haus\"\n+portals = [\"in\", \"out\"]\n+[target.session]\n+data_digest = \"require\"\n+";
    assert_eq!(diff(&edit), expected);
    let edit =
        Edit::SetTarget { name: a(), settings: settings(&[("session.data_digest", ""), ("alias", "")]) };
    assert_eq!(diff(&edit), "");
    let edit = Edit::SetTarget { name: a(), settings: settings(&[("alais", "x")]) };
    assert_eq!(refused(&edit), "unknown key \"alais\" in target (did you mean \"alias\"?)");
}

#[test]
fn a_target_comes_and_goes() {
    let luns = vec!["ram:1M".to_owned(), "share:common,lun=4".to_owned()];
    let name = "iqn.2026-11.org.example:c".to_owned();
    let add = Edit::AddTarget { name: name.clone(), luns, settings: settings(&[("alias", "C")]) };
    assert_eq!(
        diff(&add),
        "+\n+[[target]]\n+name = \"iqn.2026-11.org.example:c\"\n+alias = \"C\"\n+\n+[[target.lun]]\n+lun = 0\n+type = \
         \"ram\"\n+size = \"1M\"\n+\n+[[target.lun]]\n+lun = 4\n+share = \"common\""
    );
    let with = edit(TEXT, &add).unwrap();
    assert_eq!(edit(&with, &Edit::RemoveTarget { name }).unwrap(), TEXT);
    let again = Edit::AddTarget { name: a(), luns: vec!["ram:1M".to_owned()], settings: Vec::new() };
    assert_eq!(refused(&again), "target \"iqn.2026-11.org.example:A\" exists already");
    let unknown = Edit::RemoveTarget { name: "iqn.2026-11.org.example:d".to_owned() };
    assert!(refused(&unknown).starts_with("no target is named"), "{}", refused(&unknown));
}

#[test]
fn a_shared_lun_keeps_its_name_when_its_first_target_goes() {
    let naa = format!("+naa = \"{}\"", resolved(TEXT).units[0].identity.naa);
    let told = diff(&Edit::RemoveTarget { name: a() });
    assert!(told.contains(&naa), "{told}");
    let told = diff(&Edit::RemoveLun { target: a(), lun: 2 });
    assert!(told.contains(&naa), "{told}");
    let told = diff(&Edit::RemoveTarget { name: b() });
    assert!(!told.contains("naa"), "{told}");
}

#[test]
fn a_name_that_is_unknown_is_not_written_down() {
    let edit = |done: &Edit| edit_with(TEXT, done, Some("say which".to_owned()));
    for done in [Edit::RemoveTarget { name: a() }, Edit::RemoveLun { target: a(), lun: 2 }] {
        let why = edit(&done).unwrap_err();
        assert!(why.contains("the shared LUN \"common\"") && why.contains("say which"), "{why}");
    }
    // Nothing has to be written down.
    edit(&Edit::RemoveTarget { name: b() }).unwrap();
}

#[test]
fn a_comment_that_stands_alone_survives_the_table_below_it() {
    let text = "# License\n\n# Of x.\n[[target]]\nname = \"iqn.2026-11.x:x\"\n\n[[target]]\nname = \"iqn.2026-11.x:y\"\n";
    let told = diff_of(text, &Edit::RemoveTarget { name: "iqn.2026-11.x:x".to_owned() });
    assert_eq!(told, "-# Of x.\n-name = \"iqn.2026-11.x:x\"\n-\n-[[target]]");
    let text = "# License\n\n# Of x.\n[[target]]\nname = \"iqn.2026-11.x:x\"\n";
    let told = diff_of(text, &Edit::RemoveTarget { name: "iqn.2026-11.x:x".to_owned() });
    assert_eq!(told, "-\n-# Of x.\n-[[target]]\n-name = \"iqn.2026-11.x:x\"");
}

#[test]
fn an_access_list_is_edited_by_initiator() {
    let who = "iqn.2000-01.org.example:n".to_owned();
    let add = |first| Edit::AddAcl {
        target: a(),
        initiators: vec![who.clone()],
        settings: settings(&[("luns", "0,2"), ("ro", "true")]),
        first,
    };
    let entry =
        "+[[target.acl]]\n+initiators = [\"iqn.2000-01.org.example:n\"]\n+luns = [0, 2]\n+ro = true\n+";
    assert_eq!(diff(&add(false)), entry);
    let first = edit(TEXT, &add(true)).unwrap();
    assert!(first.find("example:n").unwrap() < first.find("example:x").unwrap(), "{first}");
    // An entry of two initiators is split, with its authentication.
    let set = Edit::SetAcl {
        target: a(),
        initiator: "iqn.2000-01.org.example:X".to_owned(),
        settings: settings(&[("ro", "yes")]),
    };
    let split = edit(TEXT, &set).unwrap();
    let document: DocumentMut = split.parse().unwrap();
    let entries = document["target"][0]["acl"].as_array_of_tables().unwrap();
    assert_eq!(entries.len(), 3);
    let one = |at: usize| entries.get(at).unwrap();
    assert_eq!(one(0)["initiators"].to_string().trim(), "[\"iqn.2000-01.org.example:X\"]");
    assert_eq!((one(0)["ro"].as_bool(), one(0)["auth"]["user"].as_str()), (Some(true), Some("lab")));
    assert_eq!(one(1)["initiators"].as_array().unwrap().len(), 1);
    assert_eq!((one(1).get("ro").is_none(), one(1)["auth"]["user"].as_str()), (true, Some("lab")));
    let remove = |initiator: &str, admit_all| Edit::RemoveAcl {
        target: a(),
        initiator: format!("iqn.2000-01.org.example:{initiator}"),
        admit_all,
        even_if_others_match: false,
    };
    let without = edit(TEXT, &remove("z", false)).unwrap();
    let without = edit(&without, &remove("x", false)).unwrap();
    let refused = edit(&without, &remove("y", false)).unwrap_err();
    assert!(refused.contains("admits every initiator"), "{refused}");
    let open = edit(&without, &remove("y", true)).unwrap();
    assert!(!open.contains("acl"), "{open}");
}

#[test]
fn users_are_edited_where_they_are() {
    let add = |place| Edit::AddUser {
        place,
        user: "u".to_owned(),
        settings: settings(&[("secret_file", "u.secret")]),
    };
    let auth = "user = \"u\"\n+secret_file = \"/here/u.secret\"\n+";
    assert_eq!(diff(&add(AuthPlace::Target(a()))), format!("+[target.auth]\n+{auth}"));
    assert_eq!(
        diff(&add(AuthPlace::Discovery)),
        format!("+\n+[discovery.auth]\n+{}", auth.trim_end_matches("\n+"))
    );
    let z = || AuthPlace::Initiator(a(), "iqn.2000-01.org.example:z".to_owned());
    assert_eq!(diff(&add(z())), format!("+[target.acl.auth]\n+{auth}"));
    let x = || AuthPlace::Initiator(a(), "iqn.2000-01.org.example:x".to_owned());
    assert!(refused(&add(x())).contains("already"));
    let records = |place| Edit::AddPasswordFile { place, password_file: "u.passwords".to_owned() };
    assert_eq!(diff(&records(z())), "+[target.acl.auth]\n+password_file = \"/here/u.passwords\"\n+");
    assert!(refused(&records(x())).contains("already"));
    let set = |user: &str| Edit::SetUser {
        place: x(),
        user: user.to_owned(),
        settings: settings(&[("algorithms", "SHA-256,SHA1")]),
    };
    assert!(diff(&set("lab")).contains("+algorithms = [\"SHA-256\", \"SHA1\"]"));
    assert_eq!(refused(&set("other")), "the user there is \"lab\", not \"other\"");
    let remove = |admit_all| Edit::RemoveUser { place: x(), user: "lab".to_owned(), admit_all };
    assert!(refused(&remove(false)).contains("--admit-all"));
    assert!(edit(TEXT, &remove(true)).is_ok());
}

/// The tables of the last target are interleaved, and some of its LUNs have no number.
const MIXED: &str = r#"[[target]]
name = "iqn.2026-11.org.example:a"
[[target.lun]]
type = "null"
size = "1M"

[[target]]
name = "iqn.2026-11.org.example:b"

# The implicit ones.
[[target.lun]]
type = "null"
size = "1M"
[[target.lun]]
type = "null"
size = "2M"
[[target.acl]]
initiators = ["iqn.2000-01.org.example:x"]
[[target.lun]]
lun = 1
type = "null"
size = "3M"
[target.session]
data_digest = "require"
[[target.lun]]
type = "null"
size = "4M"

[[portal]]
listen = "127.0.0.1:3260"
"#;

#[test]
fn a_new_target_takes_nothing_from_the_last_one() {
    let name = "iqn.2026-11.org.example:c".to_owned();
    let add = Edit::AddTarget {
        name: name.clone(),
        luns: vec!["null:1M".to_owned(), "null:2M".to_owned()],
        settings: settings(&[("session.data_digest", "require")]),
    };
    let with = edit(MIXED, &add).unwrap();
    assert!(with.starts_with(MIXED), "{with}");
    assert_eq!(edit(&with, &Edit::RemoveTarget { name }).unwrap(), MIXED);
    let other = "iqn.2026-11.org.example:d".to_owned();
    let add = Edit::AddTarget { name: other, luns: vec!["null:1M".to_owned()], settings: Vec::new() };
    let more = edit(&with, &add).unwrap();
    assert!(more.starts_with(&with), "{more}");
}

#[test]
fn an_edit_that_changes_more_than_it_says_is_refused() {
    let before: DocumentMut = MIXED.parse().unwrap();
    let wrong =
        |after: &str, edit: &Edit| unchanged::check(&before, after, &resolved(MIXED), edit).unwrap_err();
    let set_a = Edit::SetTarget { name: a(), settings: Vec::new() };
    let set_b = Edit::SetTarget { name: b(), settings: Vec::new() };
    let bigger = MIXED.replace("\"4M\"", "\"5M\"");
    assert!(wrong(&bigger, &set_a).contains("internal error: the edit would also change target"));
    assert_eq!(unchanged::check(&before, &bigger, &resolved(MIXED), &set_b), Ok(()));
    let lun = Edit::SetLun { target: b(), lun: 3, settings: Vec::new() };
    assert_eq!(unchanged::check(&before, &bigger, &resolved(MIXED), &lun), Ok(()));
    let lun = Edit::RemoveLun { target: b(), lun: 2 };
    assert!(wrong(&bigger, &lun).contains("example:b"));
    let acl = Edit::AddAcl { target: b(), initiators: Vec::new(), settings: Vec::new(), first: false };
    assert!(wrong(&bigger, &acl).contains("example:b"));
    assert!(wrong(&MIXED.replace("3260", "3261"), &set_b).contains("\"portal\""));
    // Another form of the same is no change.
    let inline =
        MIXED.replace("[target.session]\ndata_digest = \"require\"\n[[target.lun]]\n", "[[target.lun]]\n");
    let inline = inline.replace(":b\"\n", ":b\"\nsession = { data_digest = 'require' }\n");
    assert_eq!(unchanged::check(&before, &inline, &resolved(MIXED), &set_a), Ok(()));
}

#[test]
fn a_lun_before_the_removed_one_keeps_its_number() {
    // LUNs 0, 2, 1 and 3: the second and the last have no number of their own.
    let new = edit(MIXED, &Edit::RemoveLun { target: b(), lun: 1 }).unwrap();
    let document: DocumentMut = new.parse().unwrap();
    let target = tables::all(document.as_table(), "target")[1];
    let numbers: Vec<u16> = resolved(&new).targets[1].numbers.iter().map(|table| table.lun).collect();
    assert_eq!(numbers, [0, 2, 3], "{new}");
    let sizes = tables::all(target, "lun").into_iter().map(|lun| tables::text(lun, "size").unwrap());
    assert_eq!(sizes.collect::<Vec<_>>(), ["1M", "2M", "4M"]);
}

const PATTERNS: &str = r#"[[group]]
name = "lab"
initiators = ["iqn.2000-01.org.example:m*"]

[[target]]
name = "iqn.2026-11.org.example:a"
lun = [{ type = "null", size = "1M" }]

[[target.acl]]
initiators = ["iqn.2000-01.org.example:x", "iqn.2000-01.org.example:y*", "iqn.2000-01.org.example:ya"]
ro = true

[[target.acl]]
initiators = ["@lab"]

[[target.acl]]
initiators = ["iqn.2000-01.org.example:x*"]
"#;

#[test]
fn an_initiator_that_other_entries_match_is_not_removed_silently() {
    let remove = |text: &str, initiator: &str, even_if_others_match| {
        let initiator = initiator.replace(':', "iqn.2000-01.org.example:");
        let done = Edit::RemoveAcl { target: a(), initiator, admit_all: false, even_if_others_match };
        edit(text, &done)
    };
    let told = remove(PATTERNS, ":X", false).unwrap_err();
    assert!(told.starts_with("\"iqn.2000-01.org.example:x*\" of the access list also matches"), "{told}");
    assert!(!remove(PATTERNS, ":X", true).unwrap().contains("example:x\""));
    // Of the same entry, of a pattern, and of a group.
    assert!(remove(PATTERNS, ":ya", false).unwrap_err().contains("example:y*\" of"));
    assert!(remove(PATTERNS, ":y*", false).unwrap_err().contains("example:ya\" of"));
    let grouped = PATTERNS.replace("example:ya", "example:ma");
    assert!(remove(&grouped, ":ma", false).unwrap_err().contains("\"@lab\" of"));
    assert!(remove(&grouped, "@lab", false).unwrap_err().contains("example:ma\" of"));
    assert!(remove(&grouped, ":y*", false).is_ok());
    assert!(remove(PATTERNS, "@lab", false).is_ok());
}

#[test]
fn a_pattern_that_is_split_off_takes_no_initiator_from_its_entry() {
    let set = |initiator: &str| {
        let initiator = format!("iqn.2000-01.org.example:{initiator}");
        let done = Edit::SetAcl { target: a(), initiator, settings: settings(&[("ro", "")]) };
        let document: DocumentMut = edit(PATTERNS, &done).unwrap().parse().unwrap();
        let target = tables::all(document.as_table(), "target")[0];
        let entries = tables::all(target, "acl").into_iter();
        entries
            .take(2)
            .map(|entry| entry.get("initiators").unwrap().as_array().unwrap().len())
            .collect::<Vec<_>>()
    };
    assert_eq!(set("y*"), [2, 1]);
    assert_eq!(set("ya"), [1, 2]);
}

#[test]
fn authentications_are_changed_by_their_own_commands_only() {
    let keys = || settings(&[("auth.user", ""), ("auth.secret_file", "")]);
    let x = "iqn.2000-01.org.example:x".to_owned();
    let only = "\"auth.user\" is set by \"targe user\"";
    assert_eq!(refused(&Edit::SetTarget { name: a(), settings: keys() }), only);
    assert_eq!(refused(&Edit::SetAcl { target: a(), initiator: x.clone(), settings: keys() }), only);
    let luns = vec!["null:1M".to_owned()];
    assert_eq!(refused(&Edit::AddTarget { name: "iqn.n".to_owned(), luns, settings: keys() }), only);
    let set = |list| Edit::SetUser {
        place: AuthPlace::Initiator(a(), x.clone()),
        user: "lab".to_owned(),
        settings: settings(list),
    };
    assert!(refused(&set(&[("user", ""), ("secret_file", "")])).contains("prove nothing"));
    assert!(
        refused(&set(&[("method", "none"), ("user", ""), ("secret_file", "")])).contains("prove nothing")
    );
}

#[test]
fn a_list_of_luns_is_not_empty() {
    let add = Edit::AddAcl {
        target: a(),
        initiators: vec!["iqn.2000-01.org.example:n".to_owned()],
        settings: settings(&[("luns", " ,")]),
        first: false,
    };
    assert_eq!(refused(&add), "\"luns\" names no LUN");
}

#[test]
fn lines_keep_their_ends() {
    let crlf = TEXT.replace('\n', "\r\n");
    let remove = Edit::RemoveTarget { name: a() };
    let expected = edit(TEXT, &remove).unwrap().replace('\n', "\r\n");
    assert_eq!(edit(&crlf, &remove).unwrap(), expected);
    let text = "# License\r\n\r\n# Of x.\r\n[[target]]\r\nname = \"iqn.2026-11.x:x\"\r\n";
    let told = edit(text, &Edit::RemoveTarget { name: "iqn.2026-11.x:x".to_owned() }).unwrap();
    assert_eq!(told, "# License\r\n");
    let mixed = TEXT.replacen('\n', "\r\n", 1);
    assert!(edit(&mixed, &remove).unwrap_err().starts_with("some lines of the file end with CR LF"));
}

#[test]
fn names_of_groups_are_compared_as_they_are_written() {
    let text = PATTERNS.replace("[\"@lab\"]", "[\"@lab\", \"@Lab\"]");
    let done = |initiator: &str| Edit::RemoveAcl {
        target: a(),
        initiator: initiator.to_owned(),
        admit_all: false,
        even_if_others_match: false,
    };
    let line = |names: &str| format!("initiators = [{names}]");
    let after = edit(&text, &done("@Lab")).unwrap();
    assert_eq!(after, text.replace(&line("\"@lab\", \"@Lab\""), &line("\"@lab\"")));
    let told = edit(&text, &done("@LAB")).unwrap_err();
    assert_eq!(told, "no entry of the access list names \"@LAB\"");
}

/// An access list whose rows are tables of their own.
const ROWS: &str = r#"[[target]]
name = "iqn.2026-11.org.example:a"
lun = [{ type = "null", size = "1M" }, { type = "null", size = "2M" }]

[[target.acl]]
initiators = ["iqn.2000-01.org.example:x", "iqn.2000-01.org.example:y"]
[[target.acl.luns]]
lun = 0
[[target.acl.luns]]
lun = 1
as = 7

[[target.acl]]
initiators = ["iqn.2000-01.org.example:z"]
[[target.acl.luns]]
lun = 1
"#;

#[test]
fn rows_that_are_tables_stay_with_their_entry() {
    let set = Edit::SetAcl {
        target: a(),
        initiator: "iqn.2000-01.org.example:y".to_owned(),
        settings: settings(&[("ro", "true")]),
    };
    let rows = |text: &str| {
        let document: DocumentMut = text.parse().unwrap();
        let target = tables::all(document.as_table(), "target")[0];
        let count = |entry: &&dyn TableLike| tables::all(*entry, "luns").len();
        tables::all(target, "acl").iter().map(count).collect::<Vec<_>>()
    };
    let new = edit(ROWS, &set).unwrap();
    assert_eq!(rows(&new), [2, 2, 1], "{new}");
    let new = edit(ROWS, &Edit::RemoveLun { target: a(), lun: 1 }).unwrap();
    assert_eq!(rows(&new), [1, 0], "{new}");
    assert!(new.contains("luns = []"), "{new}");
}

/// Comments in arrays, and above the last LUN and the last entry.
const COMMENTS: &str = r#"[[target]]
name = "iqn.2026-11.org.example:a"

[[target.lun]]
type = "null"
size = "1M"

# The disks end here.

# Spare.
[[target.lun]]
type = "null"
size = "2M"

[[target.acl]]
initiators = [
    # The first room.
    "iqn.2000-01.org.example:x", # x
    # The second room.
    "iqn.2000-01.org.example:y", # y
    "iqn.2000-01.org.example:z" # z
]
luns = [ # LUNs
    0, 1 ]

# Nobody else.

# Of w.
[[target.acl]]
initiators = ["iqn.2000-01.org.example:w"]
luns = [0]

[[portal]]
listen = "127.0.0.1:3260"
"#;

#[test]
fn no_comment_in_an_array_is_lost() {
    let done = |initiator: &str| Edit::RemoveAcl {
        target: a(),
        initiator: format!("iqn.2000-01.org.example:{initiator}"),
        admit_all: false,
        even_if_others_match: false,
    };
    for (name, left) in [("x", ["y", "z"]), ("y", ["x", "z"]), ("z", ["x", "y"])] {
        let new = edit(COMMENTS, &done(name)).unwrap();
        for comment in ["# The first room.", "# x\n", "# The second room.", "# y\n", "# z\n", "# LUNs\n"] {
            assert!(new.contains(comment), "{comment} {new}");
        }
        let document: DocumentMut = new.parse().unwrap();
        let target = tables::all(document.as_table(), "target")[0];
        let names: Vec<String> = left.iter().map(|name| format!("iqn.2000-01.org.example:{name}")).collect();
        let list = tables::all(target, "acl")[0].get("initiators").unwrap().as_array().unwrap();
        assert_eq!(list.iter().map(|name| name.as_str().unwrap()).collect::<Vec<_>>(), names, "{new}");
    }
    let both = edit(&edit(COMMENTS, &done("z")).unwrap(), &done("y")).unwrap();
    assert!(both.parse::<DocumentMut>().is_ok(), "{both}");
    let lun = Edit::RemoveLun { target: a(), lun: 1 };
    let told = diff_of(COMMENTS, &lun);
    assert!(told.ends_with("-    0, 1 ]\n+    0]"), "{told}");
}

#[test]
fn a_comment_that_stands_alone_survives_the_last_lun_or_entry() {
    let lun = Edit::RemoveLun { target: a(), lun: 1 };
    let new = edit(COMMENTS, &lun).unwrap();
    assert!(new.contains("size = \"1M\"\n\n# The disks end here.\n\n[[target.acl]]"), "{new}");
    let entry = Edit::RemoveAcl {
        target: a(),
        initiator: "iqn.2000-01.org.example:w".to_owned(),
        admit_all: false,
        even_if_others_match: false,
    };
    let new = edit(COMMENTS, &entry).unwrap();
    assert!(new.contains("    0, 1 ]\n\n# Nobody else.\n\n[[portal]]"), "{new}");
}

#[test]
fn a_clone_has_the_keys_of_its_source_and_an_identity_of_its_own() {
    let text = "[[lun]]\nname = \"common\"\ntype = \"file\"\npath = \"c.img\"\nbs = 4096 # as the guest wants\nnaa = \
                \"3000000000000001\"\n\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\n[[target.lun]]\ntype = \
                \"file\"\npath = \"a.img\"\nencrypt = \"key\"\nserial = \"S1\"\n\n[[target]]\nname = \
                \"iqn.2026-11.org.example:b\"\nlun = [{ share = \"common\", ro = true }]\n";
    let a = "iqn.2026-11.org.example:a".to_owned();
    let clone = |target: &str, to: &str, list: &[(&str, &str)]| {
        diff_of(
            text,
            &Edit::CloneLun {
                target: target.to_owned(),
                lun: 0,
                to: to.to_owned(),
                path: "/srv/new.img".to_owned(),
                settings: settings(list),
                reserved: BTreeSet::new(),
            },
        )
    };
    assert_eq!(
        clone(&a, &a, &[]),
        "+[[target.lun]]\n+lun = 1\n+type = \"file\"\n+encrypt = \"key\"\n+path = \"/srv/new.img\"\n+"
    );
    assert_eq!(
        clone(&b(), &a, &[("ro", "")]),
        "+[[target.lun]]\n+lun = 1\n+type = \"file\"\n+bs = 4096\n+path = \"/srv/new.img\"\n+"
    );
    let lines = clone(&a, &b(), &[("vendor", "ACME")]);
    assert!(
        lines.contains(
            "{ lun = 1, type = \"file\", encrypt = \"key\", path = \"/srv/new.img\", vendor = \"ACME\" }"
        ),
        "{lines}"
    );
    let missing = Edit::CloneLun {
        target: a.clone(),
        lun: 7,
        to: a,
        path: "x".to_owned(),
        settings: Vec::new(),
        reserved: BTreeSet::new(),
    };
    assert!(edit(text, &missing).unwrap_err().contains("no LUN 7"));
}
