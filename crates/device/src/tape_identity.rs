//! The product revision levels of the LTO drives that a tape drive can be named after. Programs read them:
//! LTFS refuses drives whose firmware is older than one that it names.

use cartridge::profile::Profile;

/// The drives of a maker: how their PRODUCT IDENTIFICATION begins and ends around the generation, and a
/// revision that was delivered for each generation of [`Profile::ALL`].
struct Family {
    prefixes: &'static [&'static str],
    suffix: &'static str,
    revisions: [&'static str; Profile::ALL.len()],
}

const FAMILIES: [Family; 2] = [
    // IBM, and the half-height drives of Quantum.
    Family {
        prefixes: &["ULT3580-TD", "ULT3580-HH", "ULTRIUM-TD", "ULTRIUM-HH", "HH LTO Gen "],
        suffix: "",
        revisions: ["D2AC", "D2DA", "HB82", "HB82", "N7N0"],
    },
    // HP and HPE, whose drives are those of IBM since LTO-7.
    Family { prefixes: &["Ultrium "], suffix: "-SCSI", revisions: ["I3CS", "J2DS", "G9Q1", "HB82", "N7N0"] },
];

/// Returns a revision of the LTO drive with a product identification, such as `ULT3580-TD8`.
pub fn usual_revision(product: &str) -> Option<&'static str> {
    FAMILIES.iter().find_map(|family| {
        let inner = product.trim_end().strip_suffix(family.suffix)?;
        let generation = family.prefixes.iter().find_map(|prefix| inner.strip_prefix(prefix))?;
        let mut generations = Profile::ALL.iter().zip(family.revisions);
        generations
            .find(|(profile, _)| generation.parse() == Ok(profile.generation()))
            .map(|(_, revision)| revision)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_has_the_revision_of_the_one_that_it_is_named_after() {
        let cases = [
            ("ULT3580-TD8", Some("HB82")),
            ("ULTRIUM-HH5", Some("D2AC")),
            ("HH LTO Gen 9    ", Some("N7N0")),
            ("Ultrium 6-SCSI", Some("J2DS")),
            ("Ultrium 6", None),
            ("ULT3580-TD4", None),
            ("ULT3580-TD", None),
            ("ULT3580-TD88", None),
            ("03592E08", None),
            ("Virtual Tape", None),
            ("", None),
        ];
        for (product, expected) in cases {
            assert_eq!(usual_revision(product), expected, "{product}");
        }
    }

    #[test]
    fn ltfs_accepts_the_revisions() {
        for (product, oldest) in [("ULT3580-TD5", "B170"), ("ULT3580-TD8", "HB81"), ("ULT3580-HH8", "HB81")] {
            assert!(usual_revision(product).unwrap() >= oldest, "{product}");
        }
    }
}
