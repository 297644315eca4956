// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that the command line names.

use crate::error::{Error, Result};
use std::fs;
use tramplab_model::function::FunctionName;

/// Reads names, and files with a name per line. A value with a slash is a file. A name that is
/// there twice counts once.
pub fn read(values: &[String]) -> Result<Vec<FunctionName>> {
    let mut functions: Vec<FunctionName> = Vec::new();
    for value in values {
        let found = match value.contains('/') {
            true => of_file(value)?,
            false if value.ends_with(".txt") => {
                return Err(Error::Usage(format!("--function: a file needs a slash: ./{value}")));
            }
            false => {
                vec![value.parse().map_err(|error| Error::Usage(format!("--function: {error}")))?]
            }
        };
        for function in found {
            if !functions.contains(&function) {
                functions.push(function);
            }
        }
    }
    Ok(functions)
}

/// Empty lines do not count, nor does the rest of a line from a `#` on.
fn of_file(path: &str) -> Result<Vec<FunctionName>> {
    let text = fs::read_to_string(path)
        .map_err(|error| Error::Usage(format!("--function: failed to read {path}: {error}")))?;
    let mut functions = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let name = line.split('#').next().unwrap_or_default().trim();
        if !name.is_empty() {
            let error = |error| Error::Usage(format!("{path}:{number}: {error}"));
            functions.push(name.parse().map_err(error)?);
        }
    }
    match functions.is_empty() {
        true => Err(Error::Usage(format!("{path}: expected a function per line, found none"))),
        false => Ok(functions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_and_files_and_rejects_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let good = write("good", "# mine\n\nvfs_read  # often\n__sys_bpf\nvfs_read\n");
        let names = |values: &[&str]| {
            read(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
                .map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names(&["__sys_bpf", &good]).unwrap(), ["__sys_bpf", "vfs_read"]);
        assert_eq!(names(&[]).unwrap(), [""; 0]);
        let glob = write("glob", "vfs_read\ntcp_*\n");
        for (bad, words) in [
            ("tcp_*", "--function: `tcp_*` is a pattern".to_owned()),
            ("mine.txt", "./mine.txt".to_owned()),
            (&*glob, format!("{glob}:2: `tcp_*` is a pattern")),
            (&*write("empty", "# none\n"), "expected a function per line".to_owned()),
        ] {
            match names(&[bad]) {
                Err(Error::Usage(message)) => assert!(message.contains(&words), "{message}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
        assert!(matches!(names(&["/no/such/file"]), Err(Error::Usage(_))));
    }
}
