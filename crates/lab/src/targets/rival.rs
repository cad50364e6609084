//! Rival files: how a target is started, configured, found and ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::experiment::LabError;

/// The built-in rival files: name and text.
const BUILT_IN: [(&str, &str); 6] = [
    ("targe", include_str!("../../rivals/targe.toml")),
    ("tgt", include_str!("../../rivals/tgt.toml")),
    ("istgt", include_str!("../../rivals/istgt.toml")),
    ("lio", include_str!("../../rivals/lio.toml")),
    ("scst", include_str!("../../rivals/scst.toml")),
    ("spdk", include_str!("../../rivals/spdk.toml")),
];

/// The rival that the others are compared with.
pub(super) const OURS: &str = "targe";

/// The most bytes of a rival file.
const LEN_MAX: u64 = 64 << 10;

/// The most rivals of a run, each of which needs memory for its disk.
const RIVALS_MAX: usize = 16;

/// The directories of programs for administrators, where `PATH` need not lead.
pub(super) const ADMIN_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// A target that can be compared, as a rival file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The name on the command line and of the file, without `.toml`.
    pub name: String,
    pub(super) file: RivalFile,
}

/// The keys of a rival file. Commands are those of a shell, which stops at the first error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RivalFile {
    /// The name in reports.
    pub(super) title: String,
    /// The product and who makes it, in a few words.
    pub(super) about: String,
    /// The command whose first line of output is the version.
    pub(super) version: String,
    /// What holds the data.
    pub(super) backing: String,
    /// The programs without which the target is absent.
    #[serde(default)]
    pub(super) programs: Vec<String>,
    /// The kernel modules without which the target is absent. A target with modules and without `serve` runs
    /// in the kernel.
    #[serde(default)]
    pub(super) modules: Vec<String>,
    /// The number of the LUN.
    #[serde(default)]
    pub(super) lun: u16,
    /// Whether the processes stand still while others are measured.
    #[serde(default)]
    pub(super) pause: bool,
    /// The commands before the start.
    #[serde(default)]
    pub(super) prepare: String,
    /// The commands that become the process of the target, by `exec`; none for a kernel target.
    #[serde(default)]
    pub(super) serve: String,
    /// The commands that configure the running target.
    #[serde(default)]
    pub(super) setup: String,
    /// The commands after its end.
    #[serde(default)]
    pub(super) teardown: String,
}

/// Returns the built-in rivals, and those of the `.toml` files of a directory. A file replaces a built-in
/// rival of its name.
///
/// # Errors
/// [`LabError::Plan`] names the file, the key and what is possible.
pub fn rivals(directory: Option<&Path>) -> Result<Vec<Rival>, LabError> {
    let mut found = Vec::new();
    for (name, text) in BUILT_IN {
        found.push(Rival::parse(name, text).map_err(|why| LabError::Plan(format!("{name}: {why}")))?);
    }
    let Some(directory) = directory else { return Ok(found) };
    for path in toml_files(directory)? {
        let cannot = |why: String| LabError::Plan(format!("{}: {why}", path.display()));
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let len = std::fs::metadata(&path).map_err(|why| cannot(why.to_string()))?.len();
        if len > LEN_MAX {
            return Err(cannot(format!("{len} bytes; a rival file has at most {LEN_MAX}")));
        }
        let text = std::fs::read_to_string(&path).map_err(|why| cannot(why.to_string()))?;
        let rival = Rival::parse(name, &text).map_err(cannot)?;
        match found.iter_mut().find(|known| known.name == rival.name) {
            Some(known) => *known = rival,
            None => found.push(rival),
        }
    }
    Ok(found)
}

/// Returns the rivals of these names, and ours; all if there are no names.
///
/// # Errors
/// [`LabError::Plan`] for a name that is not there, and for too many.
pub fn choose(rivals: Vec<Rival>, names: &[String]) -> Result<Vec<Rival>, LabError> {
    let known: Vec<&str> = rivals.iter().map(|rival| rival.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(LabError::Plan(format!("--rival {name}: there are {}", known.join(", "))));
    }
    let is_chosen = |rival: &Rival| names.is_empty() || rival.name == OURS || names.contains(&rival.name);
    let chosen: Vec<Rival> = rivals.into_iter().filter(is_chosen).collect();
    if chosen.len() > RIVALS_MAX {
        return Err(LabError::Plan(format!("{} rivals; the most is {RIVALS_MAX}", chosen.len())));
    }
    Ok(chosen)
}

fn toml_files(directory: &Path) -> Result<Vec<PathBuf>, LabError> {
    let cannot = |why: std::io::Error| LabError::Plan(format!("{}: {why}", directory.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        paths.push(entry.map_err(cannot)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    Ok(paths)
}

impl Rival {
    /// Parses a rival file. The error is a sentence without the name of the file.
    fn parse(name: &str, text: &str) -> Result<Self, String> {
        let is_name = !name.is_empty()
            && name.len() <= NAME_MAX
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if !is_name {
            return Err(format!(
                "the name of the file names the rival: expected up to {NAME_MAX} of a to z, 0 to 9 and -"
            ));
        }
        let file: RivalFile = toml::from_str(text).map_err(|why| why.to_string().trim_end().to_owned())?;
        if file.serve.trim().is_empty() && file.modules.is_empty() {
            return Err("serve: expected the command of a process, or modules of the kernel".to_owned());
        }
        if file.title.trim().is_empty() {
            return Err("title: expected the name of the target".to_owned());
        }
        Ok(Self { name: name.to_owned(), file })
    }

    /// Returns whether the target runs in the kernel, so that no process shows what it uses.
    pub(super) fn is_in_kernel(&self) -> bool {
        !self.file.modules.is_empty()
    }

    /// Returns why the target cannot run on this machine: what is not there.
    pub(super) fn absence(&self) -> Option<String> {
        let program = self.file.programs.iter().find(|program| find_program(program).is_none());
        let module = || self.file.modules.iter().find(|module| !has_module(module));
        program
            .map(|program| format!("the program {program} is not there"))
            .or_else(|| module().map(|module| format!("the kernel module {module} is not there")))
    }
}

/// The longest name of a rival: it is a part of an iSCSI name.
const NAME_MAX: usize = 32;

/// Returns the search path of programs.
pub(crate) fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    format!("{path}:{ADMIN_PATH}")
}

/// Returns the path of a program in the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = search_path();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Returns whether a module is loaded, is built into the kernel, or can be loaded.
fn has_module(name: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let directory = Path::new("/lib/modules").join(release.trim());
    // Module names have underscores; their files can have hyphens instead.
    let files = [format!("/{name}.ko"), format!("/{}.ko", name.replace('_', "-"))];
    let is_listed = |list: &str| {
        let text = std::fs::read_to_string(directory.join(list)).unwrap_or_default();
        files.iter().any(|file| text.contains(file))
    };
    Path::new("/sys/module").join(name).exists() || is_listed("modules.dep") || is_listed("modules.builtin")
}

/// Returns the variables that the commands of a rival file can use.
pub(super) fn variables(values: &BTreeMap<&'static str, String>) -> Vec<(String, String)> {
    values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target_process::PrivateDirectory;

    const GOOD: &str = "title = \"One\"\nabout = \"a test\"\nversion = \"echo 1\"\nbacking = \"none\"\n";

    #[test]
    fn every_built_in_file_is_good_and_every_file_is_built_in() {
        let built_in = rivals(None).unwrap();
        let mut files: Vec<String> = toml_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals"))
            .unwrap()
            .iter()
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut names: Vec<String> = built_in.iter().map(|rival| rival.name.clone()).collect();
        assert_eq!(names[0], OURS);
        files.sort();
        names.sort();
        assert_eq!(files, names);
        let in_kernel: Vec<&str> =
            built_in.iter().filter(|rival| rival.is_in_kernel()).map(|rival| rival.name.as_str()).collect();
        assert_eq!(in_kernel, ["lio", "scst"]);
    }

    #[test]
    fn mistakes_are_refused_with_their_key() {
        for (name, text, wanted) in [
            ("one", "titel = \"One\"\n", "titel"),
            ("one", &GOOD[14..], "title"),
            ("one", GOOD, "serve: expected"),
            ("one", &format!("{GOOD}serve = 1\n"), "serve"),
            ("One!", &format!("{GOOD}serve = \"x\"\n"), "the name of the file"),
            ("one", &format!("{GOOD}serve = \"x\"\nlun = 70000\n"), "lun"),
        ] {
            let why = Rival::parse(name, text).unwrap_err();
            assert!(why.contains(wanted), "{name}: {text}: {why}");
        }
        assert!(Rival::parse("one", &format!("{GOOD}serve = \"x\"\n")).is_ok());
    }

    #[test]
    fn files_of_a_directory_add_and_replace_rivals() {
        let directory = PrivateDirectory::create().unwrap();
        for name in ["tgt.toml", "another.toml", "notes.txt"] {
            std::fs::write(directory.path().join(name), format!("{GOOD}serve = \"exec true\"\n")).unwrap();
        }
        let found = rivals(Some(directory.path())).unwrap();
        assert_eq!(found.len(), BUILT_IN.len() + 1);
        assert_eq!(found.iter().filter(|rival| rival.file.title == "One").count(), 2);
        let chosen = choose(found.clone(), &["another".to_owned()]).unwrap();
        assert_eq!(chosen.iter().map(|rival| rival.name.as_str()).collect::<Vec<_>>(), ["targe", "another"]);
        let why = choose(found, &["nobody".to_owned()]).unwrap_err().to_string();
        assert!(why.contains("nobody") && why.contains("istgt"), "{why}");
        std::fs::write(directory.path().join("bad.toml"), "title").unwrap();
        let why = rivals(Some(directory.path())).unwrap_err().to_string();
        assert!(why.contains("bad.toml"), "{why}");
        let why = rivals(Some(Path::new("/none"))).unwrap_err().to_string();
        assert!(why.contains("/none"), "{why}");
    }

    #[test]
    fn an_absent_rival_has_a_reason() {
        let text = format!("{GOOD}serve = \"x\"\nprograms = [\"sh\", \"no-such-program\"]\n");
        let rival = Rival::parse("one", &text).unwrap();
        assert_eq!(rival.absence().as_deref(), Some("the program no-such-program is not there"));
        let rival = Rival::parse("one", &format!("{GOOD}modules = [\"no_such_module\"]\n")).unwrap();
        assert_eq!(rival.absence().as_deref(), Some("the kernel module no_such_module is not there"));
        let rival = Rival::parse("one", &format!("{GOOD}serve = \"x\"\nprograms = [\"sh\"]\n")).unwrap();
        assert_eq!(rival.absence(), None);
    }
}
