//! Project tasks that `make` calls. Logic that knows the project is written here and not in shell, so that it
//! has tests of its own.

mod tidy;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("tidy") => tidy::main(),
        Some(other) => usage(&format!("unknown chore `{other}`")),
        None => usage("which chore?"),
    }
}

fn usage(complaint: &str) -> ExitCode {
    eprintln!(
        "{complaint}\n\nusage: cargo xtask tidy    check what the compiler cannot: layers, sizes, leftovers, citations"
    );
    ExitCode::from(2)
}
