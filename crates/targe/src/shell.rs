//! Text for a shell.

/// Quotes a word so that a shell reads it as one word.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@%+,=".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_is_one_word_to_a_shell() {
        for (word, text) in [
            ("target/release/targe", "target/release/targe"),
            ("Lager 7", "'Lager 7'"),
            ("it's", "'it'\\''s'"),
            ("hyperscsi://a@eth0/b/0?password_file=FILE", "'hyperscsi://a@eth0/b/0?password_file=FILE'"),
        ] {
            assert_eq!(quoted(word), text);
        }
    }
}
