// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that the command line names.

use crate::error::{Error, Result};
use std::{collections::HashSet, fmt::Display, fs, io::Read, path::Path};
use tramplab_model::function::Among;
use tramplab_protocol::pattern::Pattern;
use tramplab_suite::{TargetSet, binary};

/// Bytes of a file. Executables with their debugging information may be large.
const LARGEST: u64 = 256 << 20;

/// Reads names, patterns, files with one of these per line, and executables and libraries. A value
/// with a slash is a file. Doubles count once.
pub fn read(values: &[String]) -> Result<Vec<TargetSet>> {
    let mut sets: Vec<TargetSet> = Vec::new();
    for value in values {
        let set = match value.contains('/') {
            true => of_file(value)?,
            false if value.ends_with(".txt") => {
                return Err(Error::Usage(format!("--function: a file needs a slash: ./{value}")));
            }
            false => value.parse().map_err(|error| Error::Usage(format!("--function: {error}")))?,
        };
        match sets.iter().find(|known| known.name == set.name) {
            Some(known) if *known != set => {
                return Err(Error::Usage(format!(
                    "--function: two different lists are named `{}`; rename a file",
                    set.name
                )));
            }
            Some(_) => {}
            None => sets.push(set),
        }
    }
    Ok(sets)
}

/// A list has the file's name without its extension, an executable or library the whole one.
fn of_file(path: &str) -> Result<TargetSet> {
    let unread =
        |why: &dyn Display| Error::Usage(format!("--function: failed to read {path}: {why}"));
    let mut bytes = Vec::new();
    // A device may be without end. A pipe is a list.
    let limited = fs::File::open(path).map(|file| file.take(LARGEST + 1));
    limited.and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|error| unread(&error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(unread(&"it is larger than 256 MiB"));
    }
    let file = Path::new(path);
    if binary::is_elf(&bytes) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let binary = binary::read(&name, &bytes)
            .map_err(|error| Error::Usage(format!("--function: {path}: {error}")))?;
        // `libstdc++.so.6` is no name of cells.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let name = named(&name.replace(|c| !is_plain(c), "_"), path)?;
        return Ok(TargetSet { name, of: Vec::new(), binary: Some(binary) });
    }
    let text = String::from_utf8(bytes).map_err(|error| unread(&error))?;
    let name = named(&file.file_stem().unwrap_or_default().to_string_lossy(), path)?;
    Ok(TargetSet { name, of: of_lines(path, &text)?, binary: None })
}

fn named(stem: &str, path: &str) -> Result<Among> {
    stem.parse().map_err(|_| {
        Error::Usage(format!(
            "--function: cells are named after the file, and `{stem}` does not fit into a name; \
             rename {path} to letters, digits, `_` and `.`"
        ))
    })
}

/// Empty lines do not count, nor does the rest of a line from a `#` on.
fn of_lines(path: &str, text: &str) -> Result<Vec<Pattern>> {
    let (mut of, mut known) = (Vec::<Pattern>::new(), HashSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let name = line.split('#').next().unwrap_or_default().trim();
        if !name.is_empty() {
            let error = |error| Error::Usage(format!("{path}:{number}: {error}"));
            let pattern = name.parse().map_err(error)?;
            if known.insert(name) {
                of.push(pattern);
            }
        }
    }
    if of.is_empty() {
        return Err(Error::Usage(format!("{path}: expected a function per line, found none")));
    }
    Ok(of)
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
        let good = write("good.txt", "# mine\n\nvfs_read  # often\ntcp_*\next4:*\nvfs_read\n");
        let names = |values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            let text = |set: &TargetSet| {
                let of: Vec<String> = set.of.iter().map(ToString::to_string).collect();
                format!("{}: {}", set.name, of.join(" "))
            };
            read(&values).map(|found| found.iter().map(text).collect::<Vec<_>>())
        };
        assert_eq!(
            names(&["__sys_bpf", &good, "__sys_bpf", "tcp_*"]).unwrap(),
            ["__sys_bpf: __sys_bpf", "good: vfs_read tcp_* ext4:*", "tcp_*: tcp_*"]
        );
        assert_eq!(names(&[]).unwrap(), [""; 0]);
        let wrong = write("wrong", "vfs_read\ntcp_[\n");
        let spaced = write("my list", "vfs_read\n");
        for (bad, words) in [
            ("tcp_**", "--function: `tcp_**` is no name or pattern".to_owned()),
            ("mine.txt", "./mine.txt".to_owned()),
            (&*wrong, format!("{wrong}:2: `tcp_[` is no name or pattern")),
            (&*spaced, "`my list` does not fit".to_owned()),
            (&*write("empty", "# none\n"), "expected a function per line".to_owned()),
        ] {
            match names(&[bad]) {
                Err(Error::Usage(message)) => assert!(message.contains(&words), "{message}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
        assert!(matches!(names(&["/no/such/file"]), Err(Error::Usage(_))));
        assert!(matches!(names(&["/dev/zero"]), Err(Error::Usage(_))), "it is without end");
        assert!(matches!(names(&["good", &good]), Err(Error::Usage(_))), "two lists of one name");
    }
}
