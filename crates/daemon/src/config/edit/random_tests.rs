//! Random edits of random configurations: what hosts find changes only where the edit names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use base::rng::Rng;

use super::*;
use crate::config::{Environment, Flags, MappedLun, Target};
use crate::scratch::Scratch;

/// The files of libraries with one, two and three drives.
const LIBRARIES: [&str; 3] = [
    "targe-library 1\nserial LIB00001\nprofile lto8\ndrives 1\nslots 4\nmail-slots 0\ncrc32c 747684c8\n",
    "targe-library 1\nserial LIB00002\nprofile lto8\ndrives 2\nslots 4\nmail-slots 0\ncrc32c 59b2f953\n",
    "targe-library 1\nserial LIB00003\nprofile lto8\ndrives 3\nslots 4\nmail-slots 0\ncrc32c 42f12dda\n",
];

/// Initiators whose access is compared. Those of an access list match none, one or several of its patterns.
const INITIATORS: [&str; 5] = [
    "iqn.2000-01.org.example:a",
    "iqn.2000-01.org.example:ab",
    "iqn.2000-01.org.example:b",
    "iqn.2000-01.org.example:c",
    "iqn.2000-01.org.example:other",
];

/// The words of access lists.
const WORDS: [&str; 6] = [
    "iqn.2000-01.org.example:a",
    "iqn.2000-01.org.example:a*",
    "IQN.2000-01.org.example:b",
    "iqn.2000-01.org.example:c",
    "@lab",
    "iqn.2000-01.*",
];

/// One run of the test.
struct Run<'s> {
    rng: Rng,
    scratch: &'s Scratch,
}

impl Run<'_> {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(u64::try_from(bound).unwrap())).unwrap()
    }

    fn pick<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.below(words.len())]
    }

    fn resolve(&self, text: &str) -> Result<Config, String> {
        let environment = Environment::for_tests(self.scratch.path());
        let file = self.scratch.path().join("targe.toml");
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let loaded = Config::load_text_without_media(&flags, &environment, &file, text, None);
        loaded.map(|loaded| loaded.config).map_err(|report| report.to_string())
    }

    /// Returns a configuration that can be used.
    fn text(&mut self) -> (String, Config) {
        loop {
            let mut libraries = vec!["lib1", "lib2", "lib3"];
            let mut text = "portal = [{ listen = \"127.0.0.1\" }]\n[[group]]\nname = \"lab\"\ninitiators = \
                            [\"iqn.2000-01.org.example:c\"]\n"
                .to_owned();
            let mut shared = Vec::new();
            for number in 0..self.below(3) {
                let (name, medium) = (format!("s{number}"), self.medium(&mut libraries));
                text += &format!("[[lun]]\nname = \"{name}\"\n{medium}");
                shared.push(name);
            }
            let targets = 1 + self.below(3);
            let mut heads = Vec::new();
            for number in 0..targets {
                let mut head = format!("[[target]]\nname = \"iqn.2026-11.org.example:t{number}\"\n");
                let mut left = shared.clone();
                for _ in 0..1 + self.below(5) {
                    let lun = self.lun(&mut libraries, &mut left);
                    head += &format!("[[target.lun]]\n{lun}");
                }
                heads.push(head);
            }
            // The rows of access lists name numbers that exist.
            let Ok(config) = self.resolve(&format!("{text}{}", heads.concat())) else { continue };
            for (head, target) in heads.iter().zip(&config.targets) {
                text += head;
                if self.rng.chance(2, 3) {
                    for _ in 0..1 + self.below(3) {
                        let entry = self.entry(target);
                        text += &entry;
                    }
                }
            }
            if let Ok(config) = self.resolve(&text) {
                return (text, config);
            }
        }
    }

    fn medium(&mut self, libraries: &mut Vec<&str>) -> String {
        if !libraries.is_empty() && self.rng.chance(1, 3) {
            let at = self.below(libraries.len());
            return format!("type = \"changer\"\npath = \"{}\"\n", libraries.remove(at));
        }
        let size = 1 + self.below(9);
        format!("type = \"{}\"\nsize = \"{size}M\"\n", self.pick(&["ram", "null"]))
    }

    fn lun(&mut self, libraries: &mut Vec<&str>, shared: &mut Vec<String>) -> String {
        let mut lun = match shared.pop().filter(|_| self.rng.chance(1, 2)) {
            Some(name) => format!("share = \"{name}\"\n"),
            None => self.medium(libraries),
        };
        if self.rng.chance(1, 3) {
            lun += &format!("lun = {}\n", self.below(9));
        }
        if lun.contains("changer") && self.rng.chance(1, 3) {
            lun += &format!("drive_lun = {}\n", self.below(12));
        }
        lun
    }

    fn entry(&mut self, target: &Target) -> String {
        let words: BTreeSet<&str> = (0..1 + self.below(2)).map(|_| self.pick(&WORDS)).collect();
        let mut entry =
            format!("[[target.acl]]\ninitiators = {words:?}\n").replace('{', "[").replace('}', "]");
        if self.rng.chance(2, 3) {
            let mut rows: Vec<String> = Vec::new();
            for lun in &target.luns {
                match self.below(4) {
                    0 => rows.push(lun.lun.to_string()),
                    1 => rows.push(format!("{{ lun = {}, as = {}, ro = true }}", lun.lun, 100 + lun.lun)),
                    _ => {}
                }
            }
            entry += &format!("luns = [{}]\n", rows.join(", "));
        }
        entry
    }

    /// Returns an edit, most of whose words exist.
    fn edit(&mut self, config: &Config) -> Edit {
        let target = &config.targets[self.below(config.targets.len())];
        let name = target.name.to_string();
        let lun = target.luns[self.below(target.luns.len())].lun;
        let settings = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        let specs =
            ["ram:1M", "null:2M", "ram:3M,lun=7", "changer:lib1", "changer:lib3,drive_lun=9", "share:s0"];
        let spec = self.pick(&specs).to_owned();
        let is_listed = |word: &&str| {
            let patterns = access::patterns(word, &config.groups);
            let mut entries = target.acl.iter().flatten();
            entries.any(|entry| patterns.iter().all(|pattern| entry.initiators.contains(pattern)))
        };
        let listed: Vec<&str> = WORDS.into_iter().filter(is_listed).collect();
        let word = if listed.is_empty() { self.pick(&WORDS) } else { self.pick(&listed) }.to_owned();
        match self.below(14) {
            0 | 1 => Edit::AddLun { target: name, spec, reserved: BTreeSet::new() },
            2 | 3 => Edit::RemoveLun { target: name, lun },
            4 => Edit::SetLun { target: name, lun, settings: settings("ro", "true") },
            5 => {
                let number = self.below(12).to_string();
                let key = self.pick(&["lun", "lun", "drive_lun"]);
                let value = if self.rng.chance(1, 3) { "" } else { &number };
                Edit::SetLun { target: name, lun, settings: settings(key, value) }
            }
            6 => Edit::SetLun { target: name, lun, settings: settings("path", self.pick(&["lib1", "lib3"])) },
            7 => Edit::SetLun { target: name, lun, settings: settings("size", "12M") },
            8 => {
                let to = config.targets[self.below(config.targets.len())].name.to_string();
                let path = self.scratch.path().join("clone.img").to_str().unwrap().to_owned();
                let settings = [settings("type", "file"), settings("size", "1M")].concat();
                Edit::CloneLun { target: name, lun, to, path, settings, reserved: BTreeSet::new() }
            }
            9 => Edit::RemoveTarget { name },
            10 => {
                let (name, luns) =
                    ("iqn.2026-11.org.example:new".to_owned(), vec![spec, "ram:5M".to_owned()]);
                Edit::AddTarget { name, luns, settings: Vec::new() }
            }
            11 => {
                let (initiators, first) = (vec![word], self.rng.chance(1, 2));
                Edit::AddAcl { target: name, initiators, settings: settings("luns", &lun.to_string()), first }
            }
            12 => Edit::SetAcl { target: name, initiator: word, settings: settings("ro", "true") },
            _ => {
                Edit::RemoveAcl { target: name, initiator: word, admit_all: true, even_if_others_match: true }
            }
        }
    }
}

/// What hosts find: each LUN of each target for every initiator of [`INITIATORS`], by target, initiator,
/// number and label of the unit.
type View = BTreeMap<(String, &'static str, u16, String), String>;

fn view(config: &Config) -> View {
    let mut view = View::new();
    for target in &config.targets {
        for initiator in INITIATORS {
            let fits =
                |words: &[crate::config::NamePattern]| words.iter().any(|word| word.overlaps(initiator));
            let entry = target.acl.as_ref().map(|acl| acl.iter().find(|entry| fits(&entry.initiators)));
            let luns: &[MappedLun] = match &entry {
                None => &target.luns,
                Some(entry) => entry.map_or(&[], |entry| &entry.luns),
            };
            for lun in luns {
                let unit = &config.units[lun.unit.0];
                let key = (target.name.to_string(), initiator, lun.lun, unit.label.clone());
                let found = format!("{unit:?} ro {} {}", lun.read_only, lun.protection);
                assert_eq!(view.insert(key, found), None);
            }
        }
    }
    view
}

/// Returns the labels of the units of a LUN, with those of the drives of a library.
fn labels(config: &Config, target: &str, table: Option<&LunNumbers>) -> BTreeSet<String> {
    let target = config.targets.iter().find(|known| known.name.as_str() == target);
    let numbers: BTreeSet<u16> = table.into_iter().flat_map(LunNumbers::all).collect();
    let luns = target.into_iter().flat_map(|target| &target.luns).filter(|lun| numbers.contains(&lun.lun));
    luns.map(|lun| config.units[lun.unit.0].label.clone()).collect()
}

fn tables<'c>(config: &'c Config, target: &str) -> &'c [LunNumbers] {
    let target = config.targets.iter().find(|known| known.name.as_str() == target);
    target.map_or(&[], |target| &target.numbers)
}

/// Compares what hosts find before and after an edit.
fn compare(before: &Config, after: &Config, edit: &Edit) {
    let place = |name: &str, lun: u16| tables(before, name).iter().position(|table| table.lun == lun);
    let (target, labels) = match edit {
        Edit::AddTarget { name, .. } | Edit::RemoveTarget { name } => (name, None),
        Edit::AddLun { target, .. } | Edit::CloneLun { to: target, .. } => {
            (target, Some(labels(after, target, tables(after, target).last())))
        }
        Edit::SetLun { target, lun, .. } => {
            let at = place(target, *lun).expect("the edit of a drive is refused");
            let both = [before, after].map(|config| labels(config, target, tables(config, target).get(at)));
            (target, Some(both.concat_sets()))
        }
        Edit::RemoveLun { target, lun } => {
            let at = place(target, *lun).expect("the edit of a drive is refused");
            (target, Some(labels(before, target, tables(before, target).get(at))))
        }
        Edit::AddAcl { target, .. } | Edit::SetAcl { target, .. } | Edit::RemoveAcl { target, .. } => {
            (target, Some(BTreeSet::new()))
        }
        _ => unreachable!("no such edit is made here"),
    };
    let words: Vec<&str> = match edit {
        Edit::AddAcl { initiators, .. } => initiators.iter().map(String::as_str).collect(),
        Edit::SetAcl { initiator, .. } | Edit::RemoveAcl { initiator, .. } => vec![initiator],
        _ => Vec::new(),
    };
    let words: Vec<_> = words.into_iter().flat_map(|word| access::patterns(word, &before.groups)).collect();
    let has_list = |config: &Config| {
        config.targets.iter().any(|known| known.name.as_str() == target && known.acl.is_some())
    };
    let is_named = |(name, initiator, _, label): &(String, &str, u16, String)| {
        name == target
            && (labels.as_ref().is_none_or(|labels| labels.contains(label))
                || words.iter().any(|word| word.overlaps(initiator))
                // The first entry excludes everybody else, and the last one admits everybody.
                || !words.is_empty() && has_list(before) != has_list(after))
    };
    let rest = |config: &Config| view(config).into_iter().filter(|(key, _)| !is_named(key)).collect::<View>();
    assert_eq!(rest(before), rest(after));
}

trait ConcatSets {
    fn concat_sets(self) -> BTreeSet<String>;
}

impl ConcatSets for [BTreeSet<String>; 2] {
    fn concat_sets(self) -> BTreeSet<String> {
        self.into_iter().flatten().collect()
    }
}

#[test]
fn edits_change_only_what_they_name() {
    let scratch = Scratch::new();
    for (file, number) in LIBRARIES.iter().zip(1..) {
        let folder = scratch.path().join(format!("lib{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("library"), file).unwrap();
    }
    let (mut made, mut refused) = (BTreeMap::<String, usize>::new(), 0);
    for seed in 0..100 {
        let mut run = Run { rng: Rng::from_seed(seed), scratch: &scratch };
        let (mut text, mut config) = run.text();
        for step in 0..4 {
            let done = run.edit(&config);
            println!("seed {seed}, step {step}: {done:?} of\n{text}");
            let resolve = |text: &str| run.resolve(text);
            let context = EditContext {
                directory: scratch.path().to_path_buf(),
                resolve: &resolve,
                unknown_names: None,
            };
            let new = edit(&text, config.clone(), std::slice::from_ref(&done), &context);
            // A text with mistakes is refused where it is used.
            match new.map(|new| (run.resolve(&new), new)) {
                Ok((Ok(after), new)) => {
                    println!("gives\n{new}");
                    compare(&config, &after, &done);
                    let kind = format!("{done:?}");
                    *made.entry(kind.split(' ').next().unwrap().to_owned()).or_default() += 1;
                    (text, config) = (new, after);
                }
                Ok((Err(why), new)) => {
                    println!("gives\n{new}\nwhich has mistakes: {why}");
                    refused += 1;
                }
                Err(why) => {
                    println!("is refused: {why}");
                    assert!(!why.contains("internal error"), "{why}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(made.len(), 9, "{made:?}");
    assert!(made.values().all(|count| *count > 2), "{made:?}, and {refused} refused");
}
