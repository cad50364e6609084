//! Project tasks that `make` calls. Logic that knows the project is written here and not in shell, so that it
//! has tests of its own.

mod clauses;
mod tidy;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("clauses") => clauses::main(env::args().nth(2).as_deref()),
        Some("tidy") => tidy::main(env::args().nth(2).as_deref()),
        Some(other) => usage(&format!("unknown chore `{other}`")),
        None => usage("which chore?"),
    }
}

fn usage(complaint: &str) -> ExitCode {
    eprintln!(
        "{complaint}\n\n\
        usage: cargo xtask tidy [BINARY]  check what the compiler cannot: layers, sizes, leftovers, citations; and the \
        size of BINARY\n       \
        cargo xtask clauses    print which clauses of RFC 7143 the code and the tests cite\n           \
            --check        compare the citations with the list of clauses\n           \
            --write        write the report to docs/clauses/README.md"
    );
    ExitCode::from(2)
}
