//! The table of mutations in `xtask/mutants/README.md`, generated from the files of the mutations
//! (`mutation.rs`) by `cargo xtask mutants --table`. Do not edit the table by hand: `tests/tidy.rs` checks
//! that it matches the files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::mutation::{FOLDER, Mutation};

const BEGIN: &str = "<!-- mutants: written by `cargo xtask mutants --table` -->\n";
const END: &str = "<!-- end of mutants -->\n";

/// Returns the path of the document that contains the table, relative to the repository's root.
#[must_use]
pub fn document() -> PathBuf {
    Path::new(FOLDER).join("README.md")
}

/// Returns the text of the table.
#[must_use]
pub fn of(mutations: &[Mutation]) -> String {
    let mut text = String::from(
        "| mutation | the protection, and what goes wrong without it | caught by |\n| --- | --- | --- |\n",
    );
    for it in mutations {
        let by = match (&it.caught, &it.argued) {
            (Some(test), _) => {
                format!("{}: {} `{}` `{}`", test.suite.name(), test.package, test.target, test.test)
            }
            (None, argued) => {
                format!("nothing: {}", argued.as_deref().unwrap_or_default().replace('\n', " "))
            }
        };
        text.push_str(&format!("| `{}` | {} | {} |\n", it.name, it.what, by.trim()));
    }
    text
}

/// Returns `document` with `table` between its marks.
///
/// # Errors
///
/// Fails if the document has no marks.
pub fn put(document: &str, table: &str) -> Result<String, String> {
    let parts = document.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.ok_or("the document has no marks for the table")?;
    Ok(format!("{head}{BEGIN}\n{table}\n{END}{tail}"))
}

/// Writes the table of the repository's mutations to its document.
///
/// # Errors
///
/// Fails if a file cannot be read, parsed or written.
pub fn write() -> Result<(), String> {
    let root = crate::root();
    let path = root.join(document());
    let said = |error: std::io::Error| format!("{}: {error}", path.display());
    let document = fs::read_to_string(&path).map_err(said)?;
    fs::write(&path, put(&document, &of(&Mutation::all(&root)?))?).map_err(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_replaces_the_previous_table() {
        let document = format!("before\n{BEGIN}old\n{END}after\n");
        let once = put(&document, "| new |\n").expect("it has marks");
        assert_eq!(once, format!("before\n{BEGIN}\n| new |\n\n{END}after\n"));
        assert_eq!(put(&once, "| new |\n"), Ok(once.clone()));
        assert!(put("no marks", "").is_err());
    }
}
