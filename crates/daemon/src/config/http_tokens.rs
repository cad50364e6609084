//! The tokens of the HTTP server and what each allows.
//!
//! A token file has one line for each token: `NAME ROLE TOKEN`. Empty lines and lines that begin with `#` are
//! ignored. A file that holds nothing but one token gives it the role `read`.

use std::fmt;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpRole {
    /// To see everything that is served.
    Read,
    /// To change it as well.
    Admin,
}

impl HttpRole {
    /// Returns the word that stands for the role in a token file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

/// A token: its name for the audit log, its role, and the SHA-256 of its text. `Debug` does not print the
/// latter.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpToken {
    /// The name of its owner.
    pub name: String,
    /// What it allows.
    pub role: HttpRole,
    digest: [u8; 32],
}

impl fmt::Debug for HttpToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpToken({} {})", self.name, self.role.name())
    }
}

/// The tokens of a file; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTokens(Vec<HttpToken>);

impl HttpTokens {
    /// The longest token file in bytes: 64 lines with the longest name and the longest token, and as much for
    /// comments.
    pub(crate) const FILE_LEN_MAX: usize = 128 << 10;

    /// Reads the text of a token file.
    ///
    /// # Errors
    /// A fragment that describes the mistake, without any part of a token.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > Self::FILE_LEN_MAX {
            return Err(format!("it has more than {} KiB", Self::FILE_LEN_MAX >> 10));
        }
        let text = str::from_utf8(text).map_err(|_| NO_TOKEN.to_owned())?;
        let words: Vec<&str> = text.split_ascii_whitespace().take(2).collect();
        if let [token] = words.as_slice() {
            return Ok(Self(vec![HttpToken::new("token", HttpRole::Read, token)?]));
        }
        let mut tokens: Vec<HttpToken> = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_entry(line)) {
            let token = entry(line).map_err(|why| format!("line {number}: {why}"))?;
            if tokens.iter().any(|other| other.name == token.name || other.digest == token.digest) {
                return Err(format!("line {number}: the name or the token stands in a line before"));
            }
            tokens.push(token);
        }
        match tokens.len() {
            0 => Err(NO_TOKEN.to_owned()),
            1..=TOKENS_MAX => Ok(Self(tokens)),
            _ => Err(format!("it has more than {TOKENS_MAX} tokens")),
        }
    }

    /// Returns the token that a client sent, if it is one of these. Digests are compared instead of tokens,
    /// so that the comparison takes equally long whatever a client sends.
    pub fn find(&self, token: &[u8]) -> Option<&HttpToken> {
        let given = digest(token);
        let is_same = |known: &&HttpToken| {
            let differing = known.digest.iter().zip(given).fold(0, |bits, (a, b)| bits | (a ^ b));
            std::hint::black_box(differing) == 0
        };
        self.0.iter().find(is_same)
    }

    /// Returns whether one of the tokens has this role.
    pub fn has(&self, role: HttpRole) -> bool {
        self.0.iter().any(|token| token.role == role)
    }
}

impl HttpToken {
    fn new(name: &str, role: HttpRole, token: &str) -> Result<Self, String> {
        if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&token.len()) || !is_printable(token) {
            return Err(NO_TOKEN.to_owned());
        }
        Ok(Self { name: name.to_owned(), role, digest: digest(token.as_bytes()) })
    }
}

fn is_entry(line: &str) -> bool {
    !line.trim().is_empty() && !line.trim_start().starts_with('#')
}

fn entry(line: &str) -> Result<HttpToken, String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, role, token] = words.as_slice() else {
        return Err("it must be NAME ROLE TOKEN".to_owned());
    };
    let role = [HttpRole::Read, HttpRole::Admin].into_iter().find(|known| known.name() == *role);
    let role = role.ok_or("the role must be read or admin")?;
    if name.len() > NAME_LEN_MAX || !is_printable(name) {
        return Err(format!("the name must have at most {NAME_LEN_MAX} printable characters"));
    }
    HttpToken::new(name, role, token)
}

fn is_printable(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_graphic())
}

fn digest(token: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(token).into()
}

/// The most tokens: one for each program and each administrator.
const TOKENS_MAX: usize = 64;
/// The longest name.
const NAME_LEN_MAX: usize = 64;
/// The least length of a token. A shorter one could be guessed.
const TOKEN_LEN_MIN: usize = 16;
/// The greatest length of a token: that of a header field that no client refuses to send.
const TOKEN_LEN_MAX: usize = 512;

const NO_TOKEN: &str =
    "there must be a token of 16 to 512 printable characters, or lines of the form NAME ROLE TOKEN";

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef";
    const TWO: &str = "fedcba9876543210";

    fn parse(text: &str) -> Result<HttpTokens, String> {
        HttpTokens::parse(text.as_bytes())
    }

    #[test]
    fn a_lone_token_may_read_and_a_line_names_owner_and_role() {
        for text in [ONE.to_owned(), format!("{ONE}\n"), format!("{ONE}\r\n")] {
            let tokens = parse(&text).unwrap();
            assert_eq!(tokens.find(ONE.as_bytes()).unwrap().role, HttpRole::Read);
            assert!(!tokens.has(HttpRole::Admin));
        }
        let tokens =
            parse(&format!("# who may ask\n\nprometheus read {ONE}\n  anna\tadmin {TWO}\n")).unwrap();
        let anna = tokens.find(TWO.as_bytes()).unwrap();
        assert_eq!((anna.name.as_str(), anna.role), ("anna", HttpRole::Admin));
        assert_eq!(tokens.find(ONE.as_bytes()).unwrap().name, "prometheus");
        assert!(tokens.find(b"").is_none() && tokens.find(&ONE.as_bytes()[1..]).is_none());
        assert!(tokens.has(HttpRole::Admin));
    }

    #[test]
    fn a_mistake_names_its_line_and_never_a_token() {
        let many: String = (0..65).map(|at| format!("n{at} read {ONE}{at}\n")).collect();
        for (text, why) in [
            (String::new(), "there must be a token"),
            ("short".to_owned(), "there must be a token"),
            ("x".repeat(513), "there must be a token"),
            (format!("{ONE}\u{e9}"), "there must be a token"),
            ("# nothing\n".to_owned(), "there must be a token"),
            (format!("a read {ONE}\nb write {TWO}\n"), "line 2: the role must be read or admin"),
            (format!("a read {ONE}\nadmin {TWO}\n"), "line 2: it must be NAME ROLE TOKEN"),
            (format!("a read {ONE}\na admin {TWO}\n"), "line 2: the name or the token"),
            (format!("a read {ONE}\nb admin {ONE}\n"), "line 2: the name or the token"),
            (format!("{} read {ONE}\n", "n".repeat(65)), "line 1: the name must have"),
            ("a read short\n".to_owned(), "line 1: there must be a token"),
            (many, "it has more than 64 tokens"),
            (format!("{ONE}{}", " ".repeat(HttpTokens::FILE_LEN_MAX)), "it has more than 128 KiB"),
        ] {
            let found = parse(&text).unwrap_err();
            assert!(found.starts_with(why), "{found}: {why}");
            assert!(!found.contains(ONE) && !found.contains(TWO), "{found}");
        }
        assert_eq!(format!("{:?}", parse(ONE).unwrap()), "HttpTokens([HttpToken(token read)])");
    }
}
